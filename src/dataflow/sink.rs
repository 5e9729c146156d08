//! How a file sink's output becomes visible, exactly once, and how its leftovers go.
//!
//! A task writes `<path>/.tanist/<job>-<run>/<vertex>-<subtask>-<generation>-<random>.pending`, makes it durable and reports a
//! [`Committable`]. Who has recorded that all of the job's tasks finished calls [`commit`], as often as it likes: a part is
//! renamed into its place once and never over another file. [`cleanup`] removes what no commit took, of any generation.
//! All functions block.
//!
//! No two attempts have a name in common, not even those of two runs of a job under one id. So whoever removes what it was writing
//! removes nothing else, however late that is.
//!
//! A commit that has found everything leaves a mark beside the pending files before it takes the first one away. From then on what is
//! in neither place was made visible, and taken away by who was waiting for it. Without the mark it is lost.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tanist_proto::id::JobId;
use tanist_proto::v1::{Committable, JobGraph};

use super::operator::OperatorContext;
use crate::job::OperatorSpec;

/// The directory that holds pending files, inside the output's.
const PENDING_DIRECTORY: &str = ".tanist";
const PART_PREFIX: &str = "part-";
/// The mark of a commit that has begun, beside the pending files.
const COMMITTING: &str = "committing";

/// Why output can't be written, made visible or cleaned up.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The directory has the output of another run.
    #[error(
        "{path:?} is there already: the output of another run is not overwritten; \
         remove it or name another directory"
    )]
    Occupied {
        /// The file in the way.
        path: PathBuf,
    },
    /// There is something else where the directory should be, or be made.
    #[error("{path:?} can't be a directory: there is a file, or a part of the path is one")]
    NoDirectory {
        /// Its path.
        path: PathBuf,
    },
    /// Neither the pending nor the visible file is there.
    #[error("output is lost: neither {pending:?} nor {visible:?} is there")]
    Lost {
        /// Where it should wait.
        pending: PathBuf,
        /// Where it should be visible.
        visible: PathBuf,
    },
    /// Nobody waits for the rest of it.
    #[error("nobody waits any more for output to become visible")]
    NotAwaited,
    /// The file system refuses.
    #[error("can't {action} {path:?}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl SinkError {
    /// Whether only people can mend it: somebody else's file is in the way.
    pub(super) fn is_unrecoverable(&self) -> bool {
        match self {
            SinkError::Occupied { .. } | SinkError::NoDirectory { .. } => true,
            SinkError::Lost { .. } | SinkError::NotAwaited | SinkError::Io { .. } => false,
        }
    }

    fn io(action: &'static str, path: &Path, source: io::Error) -> SinkError {
        SinkError::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

/// Where one subtask of a file sink writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartNames {
    pub(super) directory: PathBuf,
    pub(super) pending: PathBuf,
    pub(super) visible: PathBuf,
}

impl PartNames {
    pub(super) fn of(path: &str, context: &OperatorContext) -> PartNames {
        let OperatorContext {
            graph,
            job,
            vertex,
            subtask,
            generation,
            ..
        } = context;
        let directory = PathBuf::from(path);
        let pending = directory
            .join(PENDING_DIRECTORY)
            .join(run_directory(*job, &graph.run))
            .join(format!(
                "{vertex}-{subtask}-{generation}-{:016x}.pending",
                rand::random::<u64>()
            ));
        let part = match sinks_into(graph, &directory) {
            0 | 1 => format!("{PART_PREFIX}{subtask}"),
            _ => format!("{PART_PREFIX}{subtask}-{vertex}"),
        };
        let visible = directory.join(part);
        PartNames {
            directory,
            pending,
            visible,
        }
    }
}

/// The name of the directory of a run's pending files: what a leader removes that stood still until the id was used again must not be the
/// next run's.
fn run_directory(job: JobId, run: &str) -> String {
    match run {
        "" => job.to_string(),
        run => format!("{job}-{run}"),
    }
}

/// How many file sinks of a graph write into a directory.
fn sinks_into(graph: &JobGraph, directory: &Path) -> usize {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let specs = operators.filter_map(|operator| serde_json::from_str(&operator.spec).ok());
    specs
        .filter(
            |spec| matches!(spec, OperatorSpec::FileSink { path } if Path::new(path) == directory),
        )
        .count()
}

/// The directories into which a graph's file sinks write: what [`cleanup`] is called with when the job has ended.
pub fn directories(graph: &JobGraph) -> Vec<PathBuf> {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let mut found: Vec<PathBuf> = operators
        .filter_map(|operator| match serde_json::from_str(&operator.spec) {
            Ok(OperatorSpec::FileSink { path }) => Some(PathBuf::from(path)),
            _ => None,
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Refuses a directory that has part files. No part of a job is visible while one of its tasks may still start, so any
/// that is there belongs to another run.
pub fn check_output(directory: &Path) -> Result<(), SinkError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(SinkError::NoDirectory {
                path: directory.to_owned(),
            });
        }
        Err(error) => return Err(SinkError::io("read", directory, error)),
    };
    for entry in entries {
        let entry = entry.map_err(|error| SinkError::io("read", directory, error))?;
        if entry.file_name().to_string_lossy().starts_with(PART_PREFIX) {
            return Err(SinkError::Occupied { path: entry.path() });
        }
    }
    Ok(())
}

/// Makes output visible. Idempotent: what is visible already stays as it is.
pub fn commit(committables: &[Committable]) -> Result<(), SinkError> {
    commit_while(committables, &|| true)
}

/// The same as long as somebody waits for it: asked before each part, as each may take long where a file system hangs.
pub fn commit_while(
    committables: &[Committable],
    is_awaited: &dyn Fn() -> bool,
) -> Result<(), SinkError> {
    let paths = |committable: &Committable| {
        let pending = PathBuf::from(&committable.pending_path);
        (pending, PathBuf::from(&committable.final_path))
    };
    // Nothing of an output becomes visible if some of it can't.
    let mut waiting = Vec::new();
    for (pending, visible) in committables.iter().map(paths) {
        // In this order: whoever commits the same output at the same moment (a leader that does not know that it is deposed) makes
        // it visible and takes the pending file away at once.
        match (exists(&visible)?, exists(&pending)?) {
            (true, true) if are_one_file(&pending, &visible) => remove_second_name(&pending)?,
            (true, true) => return Err(SinkError::Occupied { path: visible }),
            (true, false) => {}
            (false, true) => waiting.extend(pending.parent().map(Path::to_owned)),
            (false, false) => was_taken(&pending, &visible)?,
        }
    }
    waiting.sort();
    waiting.dedup();
    for directory in waiting {
        mark(&directory).map_err(|error| SinkError::io("write to", &directory, error))?;
    }
    let mut parents = Vec::new();
    for committable in committables {
        let pending = Path::new(&committable.pending_path);
        let visible = Path::new(&committable.final_path);
        if !is_awaited() {
            return Err(SinkError::NotAwaited);
        }
        publish(pending, visible)?;
        parents.extend(visible.parent().map(Path::to_owned));
        parents.extend(pending.parent().map(Path::to_owned));
    }
    parents.sort();
    parents.dedup();
    for parent in parents {
        match sync_directory(&parent) {
            Ok(()) => {}
            // A repeated commit after the cleanup finds the pending files' directory gone.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(SinkError::io("sync", &parent, error)),
        }
    }
    Ok(())
}

fn publish(pending: &Path, visible: &Path) -> Result<(), SinkError> {
    match renameat_with(CWD, pending, CWD, visible, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(()),
        Err(Errno::EXIST) if is_in_the_way(pending, visible)? => {
            return Err(SinkError::Occupied {
                path: visible.to_owned(),
            });
        }
        Err(Errno::EXIST) => return Ok(()),
        Err(Errno::NOENT) => {
            // Or the output's directory was removed: then the pending file went with it.
            return match exists(visible)? {
                true => Ok(()),
                false => was_taken(pending, visible),
            };
        }
        // A file system without this flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        Err(error) => return Err(SinkError::io("move to", visible, error.into())),
    }
    match (exists(visible)?, exists(pending)?) {
        (false, true) => publish_by_a_link(pending, visible),
        (true, true) if are_one_file(pending, visible) => remove_second_name(pending),
        (true, true) => Err(SinkError::Occupied {
            path: visible.to_owned(),
        }),
        (true, false) => Ok(()),
        (false, false) => was_taken(pending, visible),
    }
}

/// Makes a file visible where no rename spares what is there: a link never replaces anything, however long ago it was looked whether there
/// is something. Whoever is stopped in between leaves both names of one file, and the second one goes with the next commit.
fn publish_by_a_link(pending: &Path, visible: &Path) -> Result<(), SinkError> {
    match fs::hard_link(pending, visible) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if !is_in_the_way(pending, visible)? {
                return Ok(());
            }
            return Err(SinkError::Occupied {
                path: visible.to_owned(),
            });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return match exists(visible)? {
                true => Ok(()),
                false => was_taken(pending, visible),
            };
        }
        Err(error) => return Err(SinkError::io("link to", visible, error)),
    }
    remove_second_name(pending)
}

fn remove_second_name(pending: &Path) -> Result<(), SinkError> {
    match fs::remove_file(pending) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(SinkError::io("remove", pending, error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether both names are of one file: a commit by a link was stopped before it took the first one away.
fn are_one_file(pending: &Path, visible: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match (identity(pending), identity(visible)) {
        (Ok(pending), Ok(visible)) => pending == visible,
        _ => false,
    }
}

/// A commit begins to take files from this directory. The mark outlives a crash that comes after it.
fn mark(directory: &Path) -> io::Result<()> {
    let mark = directory.join(COMMITTING);
    if !fs::exists(&mark)? {
        File::create(&mark)?;
        sync_directory(directory)?;
    }
    Ok(())
}

/// Of output that is in neither place: whether a commit has made it visible, and somebody has taken it away since.
fn was_taken(pending: &Path, visible: &Path) -> Result<(), SinkError> {
    let mark = pending.with_file_name(COMMITTING);
    if exists(&mark)? {
        return Ok(());
    }
    let (pending, visible) = (pending.to_owned(), visible.to_owned());
    Err(SinkError::Lost { pending, visible })
}

/// Whether what is visible is another run's. Looked at in this order, as in [`commit_while`].
fn is_in_the_way(pending: &Path, visible: &Path) -> Result<bool, SinkError> {
    Ok(exists(visible)? && exists(pending)? && !are_one_file(pending, visible))
}

fn exists(path: &Path) -> Result<bool, SinkError> {
    fs::exists(path).map_err(|error| SinkError::io("read", path, error))
}

/// Whether there may be pending files in an output directory, of whichever job.
pub fn has_pending(directory: &Path) -> Result<bool, SinkError> {
    match fs::metadata(directory.join(PENDING_DIRECTORY)) {
        Ok(_) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(SinkError::io("read", directory, error)),
    }
}

/// Removes all pending files of a run of a job from an output directory, however late: another run under the same id has them elsewhere.
/// Idempotent. A directory that is not there has none: mostly no task has
/// made it. One that comes back later is looked at once more when the job's result is forgotten.
pub fn cleanup(directory: &Path, job: JobId, run: &str) -> Result<(), SinkError> {
    let ours = directory.join(PENDING_DIRECTORY);
    let pending = ours.join(run_directory(job, run));
    match fs::remove_dir_all(&pending) {
        Ok(()) => {}
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(SinkError::io("remove", &pending, error)),
    }
    match fs::remove_dir(&ours) {
        Ok(()) => Ok(()),
        // Other jobs write here too.
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty || is_missing(&error) => Ok(()),
        Err(error) => Err(SinkError::io("remove", &ours, error)),
    }
}

/// Nothing can be in what is not there, nor in what is no directory.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Makes the name of a pending file durable, with those of the job's directory and of ours.
pub(super) fn sync_ancestors(pending: &Path) -> io::Result<()> {
    pending
        .ancestors()
        .skip(1)
        .take(3)
        .try_for_each(sync_directory)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    // The empty path is the working directory.
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(directory: &Path, job: JobId, name: &str) -> Committable {
        let parent = directory.join(PENDING_DIRECTORY).join(job.to_string());
        fs::create_dir_all(&parent).expect("directory");
        let path = parent.join(format!("{name}.pending"));
        fs::write(&path, name).expect("written");
        Committable {
            pending_path: path.to_string_lossy().into_owned(),
            final_path: directory.join(name).to_string_lossy().into_owned(),
        }
    }

    #[test]
    fn a_commit_may_be_repeated_at_any_point() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
        commit(&parts[..1]).expect("first half");
        commit(&parts).expect("all");
        commit(&parts).expect("again");
        cleanup(directory.path(), job, "").expect("cleaned up");
        commit(&parts).expect("after the cleanup");
        assert_eq!(
            fs::read_to_string(directory.path().join("part-1")).expect("part"),
            "part-1"
        );
    }

    #[test]
    fn of_a_commit_that_nobody_waits_for_no_further_part_becomes_visible() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
        let [first, second] = parts.clone().map(|part| PathBuf::from(part.final_path));
        let error = commit_while(&parts, &|| !first.exists()).expect_err("not to its end");
        assert!(matches!(error, SinkError::NotAwaited), "{error}");
        assert!(first.exists() && !second.exists());
        commit(&parts).expect("resumed");
        assert!(second.exists());
    }

    #[test]
    fn a_commit_overwrites_nothing() {
        let directory = tempfile::tempdir().expect("directory");
        let part = pending(directory.path(), JobId::from_bits(1), "part-0");
        fs::write(&part.final_path, "precious").expect("written");
        let error = commit(std::slice::from_ref(&part)).expect_err("refused");
        assert!(matches!(error, SinkError::Occupied { .. }), "{error}");
        assert_eq!(
            fs::read_to_string(&part.final_path).expect("part"),
            "precious"
        );
    }

    /// It had looked, and was stopped; another run's output came meanwhile.
    #[test]
    fn where_renames_replace_files_a_leader_that_stood_still_overwrites_nothing() {
        let directory = tempfile::tempdir().expect("directory");
        let part = pending(directory.path(), JobId::from_bits(1), "part-0");
        let (from, to) = (Path::new(&part.pending_path), Path::new(&part.final_path));
        fs::write(to, "precious").expect("written");
        let error = publish_by_a_link(from, to).expect_err("in the way");
        assert!(matches!(error, SinkError::Occupied { .. }), "{error}");
        assert_eq!(fs::read_to_string(to).expect("part"), "precious");
        // The successor has done it.
        fs::remove_file(to).expect("taken away");
        commit(std::slice::from_ref(&part)).expect("committed");
        publish_by_a_link(from, to).expect("it is there");
        assert_eq!(fs::read_to_string(to).expect("part"), "part-0");
        // And somebody has taken it since.
        fs::remove_file(to).expect("taken away");
        publish_by_a_link(from, to).expect("it was there");
        assert!(!to.exists());
    }

    #[test]
    fn where_a_link_made_it_visible_a_crash_before_the_rest_is_no_other_runs_output() {
        let directory = tempfile::tempdir().expect("directory");
        let part = pending(directory.path(), JobId::from_bits(1), "part-0");
        fs::hard_link(&part.pending_path, &part.final_path).expect("a crash after it");
        commit(std::slice::from_ref(&part)).expect("resumed");
        assert!(!Path::new(&part.pending_path).exists());
        assert_eq!(
            fs::read_to_string(&part.final_path).expect("part"),
            "part-0"
        );
    }

    #[test]
    fn of_an_output_that_is_partly_in_the_way_nothing_becomes_visible() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
        fs::write(&parts[1].final_path, "precious").expect("written");
        let error = commit(&parts).expect_err("refused");
        assert!(matches!(error, SinkError::Occupied { .. }), "{error}");
        assert!(!Path::new(&parts[0].final_path).exists());
    }

    #[test]
    fn lost_output_is_an_error() {
        let directory = tempfile::tempdir().expect("directory");
        let part = pending(directory.path(), JobId::from_bits(1), "part-0");
        fs::remove_file(&part.pending_path).expect("removed");
        let error = commit(&[part]).expect_err("lost");
        assert!(matches!(error, SinkError::Lost { .. }), "{error}");
    }

    #[test]
    fn output_that_was_taken_away_once_it_was_visible_is_not_lost() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
        commit_while(&parts, &|| !Path::new(&parts[0].final_path).exists()).expect_err("a crash");
        fs::remove_file(&parts[0].final_path).expect("taken");
        commit(&parts).expect("by the next leader");
        fs::remove_file(&parts[1].final_path).expect("taken");
        commit(&parts).expect("by the one after it");
        assert!(
            parts
                .iter()
                .all(|part| !Path::new(&part.final_path).exists())
        );
        // What is elsewhere altogether says nothing of that.
        let away = directory.path().join(".away");
        fs::rename(directory.path().join(PENDING_DIRECTORY), away).expect("away");
        let error = commit(&parts).expect_err("lost");
        assert!(matches!(error, SinkError::Lost { .. }), "{error}");
    }

    #[test]
    fn of_an_output_that_is_partly_lost_nothing_becomes_visible() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
        fs::remove_file(&parts[1].pending_path).expect("removed");
        for _ in 0..2 {
            let error = commit(&parts).expect_err("lost");
            assert!(matches!(error, SinkError::Lost { .. }), "{error}");
            assert!(Path::new(&parts[0].pending_path).exists());
        }
    }

    #[test]
    fn cleanup_removes_one_jobs_leftovers_and_may_be_repeated() {
        let directory = tempfile::tempdir().expect("directory");
        let (ours, theirs) = (JobId::from_bits(1), JobId::from_bits(2));
        pending(directory.path(), ours, "part-0");
        let kept = pending(directory.path(), theirs, "part-0");
        assert!(has_pending(directory.path()).expect("readable"));
        cleanup(directory.path(), ours, "").expect("cleaned up");
        cleanup(directory.path(), ours, "").expect("again");
        assert!(Path::new(&kept.pending_path).exists());
        cleanup(directory.path(), theirs, "").expect("cleaned up");
        assert_eq!(
            fs::read_dir(directory.path()).expect("directory").count(),
            0
        );
        assert!(!has_pending(directory.path()).expect("readable"));
        cleanup(&directory.path().join("missing"), ours, "").expect("nothing there");
    }

    #[test]
    fn cleanup_waits_for_no_directory_and_removes_what_is_in_one_that_came_back() {
        let parent = tempfile::tempdir().expect("directory");
        let [directory, away] = ["out", "away"].map(|name| parent.path().join(name));
        let job = JobId::from_bits(1);
        pending(&directory, job, "part-0");
        fs::rename(&directory, &away).expect("away");
        cleanup(&directory, job, "").expect("nothing is there");
        fs::rename(&away, &directory).expect("back");
        cleanup(&directory, job, "").expect("cleaned up");
        assert_eq!(fs::read_dir(&directory).expect("directory").count(), 0);
    }

    #[test]
    fn only_part_files_are_in_the_way() {
        let directory = tempfile::tempdir().expect("directory");
        check_output(&directory.path().join("missing")).expect("free");
        fs::write(directory.path().join("notes.txt"), "").expect("written");
        check_output(directory.path()).expect("free");
        fs::write(directory.path().join("part-7"), "").expect("written");
        assert!(check_output(directory.path()).is_err());
    }

    /// It was stopped before it removed anything, and its successor has forgotten the job since.
    #[test]
    fn a_late_cleanup_leaves_what_another_run_under_the_same_id_writes() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let names = |run: &str| {
            let context = crate::dataflow::operator::testing::context(0, 1);
            let graph = JobGraph {
                run: run.to_owned(),
                ..(*context.graph).clone()
            };
            let context = OperatorContext {
                graph: std::sync::Arc::new(graph),
                job,
                ..context
            };
            PartNames::of(&directory.path().to_string_lossy(), &context).pending
        };
        let (first, second) = (names("a"), names("b"));
        for pending in [&first, &second] {
            fs::create_dir_all(pending.parent().expect("a directory")).expect("made");
            fs::write(pending, "").expect("written");
        }
        cleanup(directory.path(), job, "a").expect("cleaned up");
        assert!(!first.exists() && second.exists());
        cleanup(directory.path(), job, "b").expect("cleaned up");
        assert!(!directory.path().join(PENDING_DIRECTORY).exists());
    }
}
