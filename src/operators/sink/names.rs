//! Where file sinks write: the names of pending and visible files, and the check for files of another run.
//!
//! Each subtask of a file sink has [`PartNames`]. Invariant: no two attempts use the same pending name, in any run. A
//! directory with parts that the job does not expect is refused before anything is written ([`SinkError::Occupied`],
//! [`SinkError::Later`]).

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use tanist_dataflow::{OperatorContext, TaskEnding};
use tanist_model::OperatorSpec;
use tanist_proto::id::JobId;
use tanist_proto::v1::{JobGraph, PendingFile};

use super::SinkError;
use super::owner::Owner;

/// Directory for pending files, inside the output directory.
pub(super) const PENDING_DIRECTORY: &str = ".tanist";
const PART_PREFIX: &str = "part-";
const PENDING_SUFFIX: &str = ".pending";
/// Prefix of the names of pending files that an ended job has handed over.
const HANDED_OVER: &str = "from-";

/// Where one subtask of a file sink writes.
#[derive(Debug, Clone)]
pub(crate) struct PartNames {
    directory: PathBuf,
    /// Directory of the pending files.
    pending: PathBuf,
    /// Vertex, subtask and generation, as they begin the names of pending files.
    attempt: String,
    generation: u64,
    /// The checkpoint that the task is restored from; 0: none.
    restored_from: u64,
    job: JobId,
    /// Its subtask; with its vertex if another sink of the job writes into the directory.
    subtask: String,
    owner: Owner,
    ending: TaskEnding,
}

/// The jobs that the job of a subtask descends from, as far as the subtask knows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Descent<'a> {
    /// These, and its own.
    Jobs(&'a BTreeSet<String>),
    /// Nothing: the subtask did not exist when its job began. Others know.
    Unknown,
}

impl PartNames {
    pub(crate) fn of(path: &str, context: &OperatorContext) -> PartNames {
        let OperatorContext {
            graph,
            job,
            vertex,
            subtask,
            generation,
            restored_from,
            end_guard,
            ..
        } = context;
        let directory = PathBuf::from(path);
        let run = run_directory(*job, &graph.run);
        let owner = Owner::new(&directory, &run);
        let pending = directory.join(PENDING_DIRECTORY).join(run);
        let attempt = format!("{vertex}-{subtask}-{generation}");
        let subtask = match sinks_into(graph, &directory) {
            0 | 1 => subtask.to_string(),
            _ => format!("{subtask}-{vertex}"),
        };
        PartNames {
            directory,
            pending,
            attempt,
            generation: generation.get(),
            restored_from: *restored_from,
            job: *job,
            subtask,
            owner,
            ending: end_guard.ending(),
        }
    }

    /// The path of a pending file: a different one with each call.
    pub(crate) fn pending(&self) -> PathBuf {
        let PartNames {
            pending, attempt, ..
        } = self;
        let random: u64 = rand::random();
        pending.join(format!("{attempt}-{random:016x}{PENDING_SUFFIX}"))
    }

    /// Where a pending file is that a snapshot names: in the directory of this run, if an ended job has handed it over.
    pub(crate) fn found(&self, file: &PendingFile) -> PathBuf {
        let path = Path::new(OsStr::from_bytes(&file.path));
        let name = path.file_name().unwrap_or_default();
        let given = self.pending.join(handed_over(name));
        match given.exists() {
            true => given,
            false => path.to_owned(),
        }
    }

    /// The only part, which becomes visible when the job has finished.
    pub(crate) fn visible_at_end(&self) -> PathBuf {
        let subtask = &self.subtask;
        self.directory.join(format!("{PART_PREFIX}{subtask}"))
    }

    /// The part that is complete at a checkpoint. No other attempt has a part of this name, because no number is given
    /// out twice.
    pub(crate) fn visible_with(&self, number: u64) -> PathBuf {
        self.directory
            .join(format!("{}{number}", self.own_prefix()))
    }

    /// The last part, of a task that has taken up or was restored from `highest` and no later checkpoint. The
    /// generation is in it because a job that goes back to an older checkpoint ends twice behind the same number.
    pub(crate) fn visible_last(&self, highest: u64) -> PathBuf {
        let (prefix, generation) = (self.own_prefix(), self.generation);
        self.directory
            .join(format!("{prefix}end-{highest}-{generation}"))
    }

    /// Prefix of this subtask's parts that become visible with checkpoints.
    fn own_prefix(&self) -> String {
        format!("{}{}-", job_prefix(&self.job.to_string()), self.subtask)
    }

    /// Takes the directory for a sink that commits at the job's end. Refuses one with parts, unless another sink of the
    /// job has made them visible with a checkpoint: none of its own is visible while one of its tasks may still start.
    pub(crate) fn begin_until_end(&self, descent: Descent<'_>) -> Result<(), SinkError> {
        let job = job_prefix(&self.job.to_string());
        let check = || self.check_parts(|part| part.starts_with(&job));
        check()?;
        match descent {
            Descent::Jobs(jobs) => self.take(check, jobs),
            Descent::Unknown => Ok(()),
        }
    }

    /// Takes the directory for a subtask that begins from the start. Refuses one with parts of other jobs that were
    /// there first, and with parts of this subtask. Other subtasks of the job may have begun earlier.
    pub(crate) fn begin(&self) -> Result<(), SinkError> {
        let (job, own) = (job_prefix(&self.job.to_string()), self.own_prefix());
        self.check_parts(|part| !part.starts_with(&own))?;
        let check = || self.check_parts(|part| part.starts_with(&job));
        self.take(check, &BTreeSet::new())
    }

    /// Takes the directory for a subtask that is restored. Refuses one with parts that were there first: of jobs that
    /// it does not descend from, and of those that it does, if they are later than the checkpoint from which it begins.
    pub(crate) fn resume(&self, descent: Descent<'_>) -> Result<(), SinkError> {
        let Descent::Jobs(jobs) = descent else {
            return Ok(());
        };
        let prefixes: Vec<String> = jobs.iter().map(|job| job_prefix(job)).collect();
        let own = job_prefix(&self.job.to_string());
        let is_earlier = |part: &str| {
            let others = prefixes.iter().filter(|job| **job != own);
            let mut of_others = others.filter_map(|job| part.strip_prefix(&**job));
            !of_others.any(|part| is_later(part, self.restored_from))
        };
        let check = || {
            self.check_parts(|part| prefixes.iter().any(|job| part.starts_with(job)))?;
            match find_part(&self.directory, is_earlier)? {
                Some(path) => Err(SinkError::Later {
                    path,
                    number: self.restored_from,
                }),
                None => Ok(()),
            }
        };
        self.take(check, jobs)
    }

    /// Takes the directory if the job has not got it yet. A former owner gives it back once its parts are visible, so
    /// they are looked for again after that.
    fn take(
        &self,
        check: impl Fn() -> Result<(), SinkError>,
        ancestors: &BTreeSet<String>,
    ) -> Result<(), SinkError> {
        if self.owner.is_owner()? {
            return Ok(());
        }
        check()?;
        self.owner.take(ancestors, &self.ending)?;
        check()
    }

    /// Refuses a directory that has parts which are not expected.
    fn check_parts(&self, is_expected: impl Fn(&str) -> bool) -> Result<(), SinkError> {
        match find_part(&self.directory, is_expected)? {
            Some(path) => Err(SinkError::Occupied { path }),
            None => Ok(()),
        }
    }
}

/// Prefix of a job's parts that become visible with checkpoints.
fn job_prefix(job: &str) -> String {
    format!("{PART_PREFIX}{job}-")
}

/// Whether a part was written after a checkpoint of its job. `part`: its name without that of the job.
fn is_later(part: &str, number: u64) -> bool {
    // The last part of an attempt was written after the checkpoint in its name: it is not in that checkpoint.
    if let Some((_, behind)) = part.rsplit_once("-end-") {
        let behind = behind.split('-').next().and_then(|it| it.parse().ok());
        return behind.is_some_and(|behind: u64| behind >= number);
    }
    let with = part.rsplit('-').next().and_then(|it| it.parse().ok());
    with.is_some_and(|with: u64| with > number)
}

/// The attempt of a pending file, by its name: vertex, subtask and generation.
pub(super) fn attempt_of(name: &str) -> Option<(&str, u32, u64)> {
    let name = name.strip_suffix(PENDING_SUFFIX)?;
    let mut from_behind = name.rsplitn(4, '-').skip(1);
    let generation = from_behind.next()?.parse().ok()?;
    let subtask = from_behind.next()?.parse().ok()?;
    Some((from_behind.next()?, subtask, generation))
}

/// The name of a pending file once its job has handed it over, perhaps to one that hands it over again.
pub(super) fn handed_over(name: &OsStr) -> OsString {
    if is_handed_over(&name.to_string_lossy()) {
        return name.to_owned();
    }
    let mut renamed = OsString::from(HANDED_OVER);
    renamed.push(name);
    renamed
}

/// Whether a pending file with this name is of another job.
pub(super) fn is_handed_over(name: &str) -> bool {
    name.starts_with(HANDED_OVER)
}

/// Name of the directory of a run's pending files. It contains the run, so that a leader that was stopped until
/// the job id was used again can't remove the next run's files.
pub(super) fn run_directory(job: JobId, run: &str) -> String {
    match run {
        "" => job.to_string(),
        run => format!("{job}-{run}"),
    }
}

/// Number of file sinks of a graph that write into a directory.
fn sinks_into(graph: &JobGraph, directory: &Path) -> usize {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let specs = operators.filter_map(|operator| serde_json::from_str(&operator.spec).ok());
    let is_into = |spec: &OperatorSpec| match spec {
        OperatorSpec::FileSink(sink) => Path::new(&sink.path) == directory,
        _ => false,
    };
    specs.filter(is_into).count()
}

/// A part in a directory that is not expected.
fn find_part(
    directory: &Path,
    is_expected: impl Fn(&str) -> bool,
) -> Result<Option<PathBuf>, SinkError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(SinkError::NoDirectory {
                path: directory.to_owned(),
            });
        }
        Err(error) => return Err(SinkError::io("read", directory, error)),
    };
    for entry in entries {
        let entry = entry.map_err(|error| SinkError::io("read", directory, error))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PART_PREFIX) && !is_expected(&name) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::context;

    fn names(directory: &Path, job: u128, subtask: u32) -> PartNames {
        let context = OperatorContext {
            job: JobId::from_bits(job),
            ..context(subtask, 8)
        };
        let mut names = PartNames::of(&directory.to_string_lossy(), &context);
        names.owner.cleanup_timeout = Duration::ZERO;
        names
    }

    fn jobs(bits: &[u128]) -> BTreeSet<String> {
        let job = |bits: &u128| JobId::from_bits(*bits).to_string();
        bits.iter().map(job).collect()
    }

    fn is_occupied(taken: &Result<(), SinkError>) -> bool {
        matches!(taken, Err(SinkError::Occupied { .. }))
    }

    fn is_owned(taken: &Result<(), SinkError>) -> bool {
        matches!(taken, Err(SinkError::Owned { .. }))
    }

    #[test]
    fn only_parts_are_in_the_way() {
        let directory = tempfile::tempdir().expect("directory");
        let of = |path: &Path| names(path, 1, 0);
        let begun = |names: &PartNames| names.begin_until_end(Descent::Jobs(&jobs(&[1])));
        begun(&of(&directory.path().join("missing"))).expect("free");
        fs::write(directory.path().join("notes.txt"), "").expect("written");
        let other = names(directory.path(), 2, 0);
        fs::write(directory.path().join("part-7"), "").expect("written");
        for names in [of(directory.path()), other] {
            assert!(is_occupied(&begun(&names)));
            assert!(is_occupied(&names.begin()));
            let jobs = jobs(&[1, 2]);
            assert!(is_occupied(&names.resume(Descent::Jobs(&jobs))));
        }
        fs::remove_file(directory.path().join("part-7")).expect("removed");
        of(directory.path()).begin().expect("free");
    }

    #[test]
    fn parts_of_a_job_are_in_the_way_of_others_and_of_who_begins_from_the_start() {
        let directory = tempfile::tempdir().expect("directory");
        let [own, other, theirs] =
            [(1, 1), (1, 11), (2, 1)].map(|(job, subtask)| names(directory.path(), job, subtask));
        own.begin().expect("unused");
        for part in [own.visible_with(7), own.visible_last(9)] {
            fs::write(&part, "").expect("written");
            assert!(is_occupied(&own.begin()));
            other.begin().expect("another subtask");
            let unrelated = jobs(&[2]);
            own.begin_until_end(Descent::Unknown)
                .expect("another sink of the job has made it visible");
            assert!(is_occupied(&theirs.begin()));
            assert!(is_occupied(&theirs.begin_until_end(Descent::Unknown)));
            assert!(is_occupied(&theirs.resume(Descent::Jobs(&unrelated))));
            fs::remove_file(part).expect("removed");
        }
    }

    /// Both begin before a part is visible. A restart of the owner comes later than parts that are not its own.
    #[test]
    fn of_two_jobs_that_begin_at_once_one_is_refused_and_the_other_one_stays_undisturbed() {
        let directory = tempfile::tempdir().expect("directory");
        let [own, other, theirs] =
            [(1, 1), (1, 11), (2, 1)].map(|(job, subtask)| names(directory.path(), job, subtask));
        own.begin().expect("unused");
        assert!(is_owned(&theirs.begin()));
        let unrelated = jobs(&[2]);
        assert!(is_owned(&theirs.begin_until_end(Descent::Jobs(&unrelated))));
        assert!(is_owned(&theirs.resume(Descent::Jobs(&unrelated))));
        fs::write(theirs.visible_with(7), "").expect("written");
        own.begin().expect("it owns the directory");
        other.begin().expect("it owns the directory");
        let jobs_of_own = jobs(&[1]);
        own.resume(Descent::Jobs(&jobs_of_own))
            .expect("it owns the directory");
    }

    #[test]
    fn a_job_that_is_restored_takes_the_directory_of_the_jobs_that_it_descends_from() {
        let directory = tempfile::tempdir().expect("directory");
        let [former, own] = [1, 2].map(|job| PartNames {
            restored_from: 7,
            ..names(directory.path(), job, 1)
        });
        former.begin().expect("unused");
        fs::write(former.visible_with(7), "").expect("written");
        own.resume(Descent::Unknown).expect("it knows nothing");
        assert!(former.owner.is_owner().expect("readable"));
        let descent = jobs(&[1, 2]);
        own.resume(Descent::Jobs(&descent))
            .expect("it descends from it");
        assert!(own.owner.is_owner().expect("readable"));
        // A sink of the same job that commits at the end.
        let last = names(&directory.path().join("other"), 2, 1);
        names(&directory.path().join("other"), 1, 1)
            .begin()
            .expect("unused");
        last.begin_until_end(Descent::Jobs(&descent))
            .expect("it descends from it");
    }

    #[test]
    fn a_job_does_not_begin_where_its_ancestor_has_written_after_the_checkpoint() {
        let directory = tempfile::tempdir().expect("directory");
        let former = names(directory.path(), 1, 1);
        let own = PartNames {
            restored_from: 7,
            ..names(directory.path(), 2, 3)
        };
        let descent = jobs(&[1, 2]);
        let resumed = || own.resume(Descent::Jobs(&descent));
        for before in [former.visible_with(7), former.visible_last(6)] {
            fs::write(&before, "").expect("written");
        }
        for later in [
            former.visible_with(8),
            former.visible_last(7),
            former.visible_with(10),
        ] {
            fs::write(&later, "").expect("written");
            let refused = resumed().expect_err("it would be there twice");
            let is_told =
                matches!(&refused, SinkError::Later { path, number: 7 } if *path == later);
            assert!(is_told, "{refused}");
            fs::remove_file(later).expect("removed");
        }
        assert!(!own.owner.is_owner().expect("readable"));
        resumed().expect("nothing is later");
        // Its own, in the order of its own numbers.
        fs::write(own.visible_with(9), "").expect("written");
        fs::remove_dir_all(directory.path().join(PENDING_DIRECTORY)).expect("removed");
        resumed().expect("it goes on");
    }

    #[test]
    fn pending_files_name_their_attempt_and_differ() {
        let names = names(Path::new("/out"), 1, 3);
        let (first, second) = (names.pending(), names.pending());
        assert_ne!(first, second);
        let name = first.file_name().expect("a file").to_string_lossy();
        let vertex = context(3, 8).vertex.to_string();
        assert_eq!(attempt_of(&name), Some((&*vertex, 3, 1)));
        for other in ["committing", "committing-7", "a-b-c.pending", ".pending"] {
            assert_eq!(attempt_of(other), None, "{other}");
        }
    }
}
