//! Removes pending files that no commit took, of all generations of one run of a job.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use tanist_proto::id::JobId;

use super::SinkError;
use super::names::{PENDING_DIRECTORY, run_directory};

/// Whether there may be pending files in an output directory, of any job.
pub fn has_pending(directory: &Path) -> Result<bool, SinkError> {
    match fs::metadata(directory.join(PENDING_DIRECTORY)) {
        Ok(_) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(SinkError::io("read", directory, error)),
    }
}

/// Removes all pending files of a run of a job from an output directory. Safe at any later time: another run
/// under the same id has its pending files elsewhere. Idempotent. A directory that does not exist has none:
/// usually no task has created it. If it appears later, it is cleaned again when the job's result is removed.
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

/// Nothing can be in a directory that does not exist or is not a directory.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
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
