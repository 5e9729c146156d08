//! Removes pending files of a run of a job that no commit took: after its end those that nothing names, before it those
//! of superseded attempts. The leader calls it, any number of times and however late.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use tanist_proto::id::JobId;

use super::marks::is_mark;
use super::names::{PENDING_DIRECTORY, attempt_of, is_handed_over, run_directory};
use super::owner::Owner;
use super::{SinkError, is_missing, remove_if_exists};

/// By vertex and subtask: the attempts of the generations below it are superseded.
pub type Below = BTreeMap<(String, u32), u64>;

/// Whether there may be pending files in an output directory, of any job.
pub fn has_pending(directory: &Path) -> Result<bool, SinkError> {
    match fs::metadata(directory.join(PENDING_DIRECTORY)) {
        Ok(_) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(SinkError::io("read", directory, error)),
    }
}

/// Pending files of a job that has ended, which a retained checkpoint names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptFiles {
    /// Their paths.
    pub paths: BTreeSet<Vec<u8>>,
    /// Some of them are to be committed: marks say which ones were.
    pub has_uncommitted: bool,
}

/// Removes the pending files of a run of a job from an output directory, except those that are kept, and gives the
/// directory back. The job has ended, and its output is visible. Safe at any later time: another run under the same id
/// has its pending files elsewhere. Idempotent. A directory that does not exist has none: usually no task has created
/// it. If it appears later, it is cleaned again when the job's result is removed.
pub fn cleanup_except(
    directory: &Path,
    (job, run): (JobId, &str),
    kept: &KeptFiles,
) -> Result<(), SinkError> {
    let ours = directory.join(PENDING_DIRECTORY);
    let run = run_directory(job, run);
    let pending = ours.join(&run);
    let removed = match *kept == KeptFiles::default() {
        true => fs::remove_dir_all(&pending),
        false => remove_others(&pending, kept),
    };
    match removed {
        Ok(()) => {}
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(SinkError::io("remove", &pending, error)),
    }
    Owner::new(directory, &run).give_back()?;
    match fs::remove_dir(&ours) {
        Ok(()) => Ok(()),
        // Other jobs write here too.
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty || is_missing(&error) => Ok(()),
        Err(error) => Err(SinkError::io("remove", &ours, error)),
    }
}

/// Removes all pending files of a run of a job; see [`cleanup_except`].
#[cfg(test)]
pub(crate) fn cleanup(directory: &Path, job: JobId, run: &str) -> Result<(), SinkError> {
    cleanup_except(directory, (job, run), &KeptFiles::default())
}

/// Removes all files of a directory except those that are kept, and the directory if it is empty then.
fn remove_others(pending: &Path, kept: &KeptFiles) -> std::io::Result<()> {
    let names = names_of(&kept.paths);
    for entry in fs::read_dir(pending)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_mark = is_mark(&name.to_string_lossy());
        if names.contains(&*name) || kept.has_uncommitted && is_mark {
            continue;
        }
        remove_if_exists(&entry.path())?;
    }
    match fs::remove_dir(pending) {
        Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The names of the files. They are enough: no two pending files have the same name, whatever path leads to them.
fn names_of(paths: &BTreeSet<Vec<u8>>) -> BTreeSet<&OsStr> {
    let paths = paths.iter().map(|path| Path::new(OsStr::from_bytes(path)));
    paths.filter_map(Path::file_name).collect()
}

/// Removes the pending files of superseded attempts of a run, and those that another job has handed over, except those
/// with the paths `kept`. A file that any later manifest may name is among these or of a younger generation, so this is
/// safe at any later time. Idempotent.
pub fn remove_superseded(
    directory: &Path,
    (job, run): (JobId, &str),
    (below, kept): (&Below, &BTreeSet<Vec<u8>>),
    is_awaited: &dyn Fn() -> bool,
) -> Result<(), SinkError> {
    let pending = directory
        .join(PENDING_DIRECTORY)
        .join(run_directory(job, run));
    let entries = match fs::read_dir(&pending) {
        Ok(entries) => entries,
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) => return Err(SinkError::io("read", &pending, error)),
    };
    let kept = names_of(kept);
    for entry in entries {
        let entry = entry.map_err(|error| SinkError::io("read", &pending, error))?;
        let name = entry.file_name();
        let shown = name.to_string_lossy();
        let is_superseded = is_handed_over(&shown)
            || attempt_of(&shown).is_some_and(|attempt| {
                let (vertex, subtask, generation) = attempt;
                let below = below.get(&(vertex.to_owned(), subtask));
                below.is_some_and(|below| generation < *below)
            });
        if !is_superseded || kept.contains(&*name) {
            continue;
        }
        if !is_awaited() {
            return Err(SinkError::NotAwaited);
        }
        let path = entry.path();
        remove_if_exists(&path).map_err(|error| SinkError::io("remove", &path, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tanist_dataflow::OperatorContext;
    use tanist_proto::v1::JobGraph;

    use super::*;
    use crate::sink::PartNames;
    use crate::sink::testing::pending;

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
    fn what_a_retained_checkpoint_names_is_kept_until_nothing_names_it() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let [open, other] = ["open", "other"].map(|name| pending(directory.path(), job, name));
        let mark = Path::new(&open.pending_path).with_file_name("committing-7");
        fs::write(&mark, "").expect("written");
        // The path is written in another way.
        let name = Path::new(&open.pending_path).file_name().expect("a file");
        let elsewhere = Path::new("/elsewhere").join(name).into_os_string();
        let mut kept = KeptFiles {
            paths: BTreeSet::from([elsewhere.into_encoded_bytes()]),
            has_uncommitted: true,
        };
        for has_uncommitted in [true, false] {
            kept.has_uncommitted = has_uncommitted;
            for _ in 0..2 {
                cleanup_except(directory.path(), (job, ""), &kept).expect("cleaned up");
                assert!(Path::new(&open.pending_path).exists());
                assert!(!Path::new(&other.pending_path).exists());
                assert_eq!(mark.exists(), has_uncommitted);
            }
        }
        cleanup(directory.path(), job, "").expect("cleaned up");
        assert!(!directory.path().join(PENDING_DIRECTORY).exists());
        cleanup_except(directory.path(), (job, ""), &kept).expect("nothing is there");
    }

    /// The process was stopped before it removed anything, and its successor has removed the job since.
    #[test]
    fn a_late_cleanup_leaves_what_another_run_under_the_same_id_writes() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let names = |run: &str| {
            let context = crate::testing::context(0, 1);
            let graph = JobGraph {
                run: run.to_owned(),
                ..(*context.graph).clone()
            };
            let context = OperatorContext {
                graph: std::sync::Arc::new(graph),
                job,
                ..context
            };
            PartNames::of(&directory.path().to_string_lossy(), &context).pending()
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

    #[test]
    fn pending_files_of_superseded_attempts_are_removed_unless_a_manifest_names_them() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let named = |subtask: u32, generation: u64| {
            let name = format!("v-{subtask}-{generation}-{:016x}", 0xabc_u64);
            pending(directory.path(), job, &name).pending_path
        };
        let removed = [named(0, 1), named(0, 2)];
        let kept = [named(0, 3), named(1, 1), named(2, 1), named(0, 0)];
        let below = Below::from([(("v".to_owned(), 0), 3), (("v".to_owned(), 1), 1)]);
        // The path is written in another way.
        let name = Path::new(&kept[3]).file_name().expect("a file");
        let spared = BTreeSet::from([Path::new("/elsewhere")
            .join(name)
            .into_os_string()
            .into_encoded_bytes()]);
        let remove = |is_awaited: &dyn Fn() -> bool| {
            remove_superseded(directory.path(), (job, ""), (&below, &spared), is_awaited)
        };
        let error = remove(&|| false).expect_err("nobody waits");
        assert!(matches!(error, SinkError::NotAwaited), "{error}");
        assert!(removed.iter().all(|path| Path::new(path).exists()));
        for _ in 0..2 {
            remove(&|| true).expect("removed");
            assert!(removed.iter().all(|path| !Path::new(path).exists()));
            assert!(kept.iter().all(|path| Path::new(path).exists()));
        }
        let missing = directory.path().join("missing");
        remove_superseded(&missing, (job, ""), (&below, &spared), &|| true).expect("nothing");
    }
}
