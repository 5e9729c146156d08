//! The job that owns an output directory: the file `.tanist/owner`, with the name of the job's directory of pending
//! files, and in further lines the ids of the jobs that it descends from.
//!
//! A job takes the directory when the first of its tasks opens, before any of its output is visible. So of two jobs
//! that begin at the same time one is refused, and the other one is never disturbed by files that come later. The
//! cleanup after the job's end gives the directory back, once all of its output is visible. A job that begins from a
//! checkpoint or savepoint takes it from the jobs that it descends from, if they have not given it back after a while:
//! their cluster is gone, or can't clean up. If such a job is still there, it goes on.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use tanist_dataflow::TaskEnding;
use tokio::time::Instant;

use super::names::PENDING_DIRECTORY;
use super::renaming::rename_to_unused;
use super::{SinkError, is_missing, remove_if_exists};
use crate::umask;

/// Name of the file, and how its name begins before it is complete.
const OWNER: &str = "owner";
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// A run of a job, as it owns an output directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    file: PathBuf,
    /// Name of its directory of pending files.
    run: String,
    /// How long it waits for the cleanup after another job, which follows that one's end.
    pub(super) cleanup_timeout: Duration,
}

/// Result of an attempt to take the directory.
enum Taking {
    Taken,
    /// It belongs to this job, which is not related.
    Other(String),
    /// A directory vanished: another job's cleanup removed it while it was empty.
    Again,
}

impl Owner {
    pub(super) fn new(directory: &Path, run: &str) -> Owner {
        Owner {
            file: directory.join(PENDING_DIRECTORY).join(OWNER),
            run: run.to_owned(),
            cleanup_timeout: CLEANUP_TIMEOUT,
        }
    }

    /// Whether it owns the directory.
    pub(super) fn is_owner(&self) -> Result<bool, SinkError> {
        let present = Present::read(&self.file);
        let present = present.map_err(|error| SinkError::io("read", &self.file, error))?;
        Ok(present.run == self.run)
    }

    /// Takes the directory for a job that descends from `ancestors`, unless it belongs to a job that is not related.
    /// Waits a while for one that it belongs to: its last output may still become visible.
    pub(super) fn take(
        &self,
        ancestors: &BTreeSet<String>,
        ending: &TaskEnding,
    ) -> Result<(), SinkError> {
        let since = Instant::now();
        loop {
            if ending.has_begun() {
                return Err(SinkError::NotAwaited);
            }
            let is_over = since.elapsed() >= self.cleanup_timeout;
            let taking = self.try_to_take(ancestors, is_over);
            match taking.map_err(|error| SinkError::io("create", &self.file, error))? {
                Taking::Taken => return Ok(()),
                Taking::Other(other) if is_over => {
                    return Err(SinkError::Owned {
                        owner: other,
                        file: self.file.clone(),
                    });
                }
                Taking::Other(_) | Taking::Again => pause(),
            }
        }
    }

    fn try_to_take(&self, ancestors: &BTreeSet<String>, from_ancestor: bool) -> io::Result<Taking> {
        // In the directory of this run, so that its cleanup removes the file wherever this stops.
        let directory = self.file.with_file_name(&self.run);
        let unfinished = directory.join(format!("{OWNER}.{:016x}", rand::random::<u64>()));
        let written = umask::create_output_directories(&directory).and_then(|()| {
            let mut file = umask::create_output_file(&unfinished)?;
            writeln!(file, "{}", self.run)?;
            for job in ancestors {
                writeln!(file, "{job}")?;
            }
            file.sync_all()
        });
        let taken = written.and_then(|()| match move_to_unused(&unfinished, &self.file) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.try_to_take_over(&unfinished, ancestors, from_ancestor)
            }
            renamed => renamed.map(|()| Taking::Taken),
        });
        match taken {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Taking::Again),
            taken => taken,
        }
    }

    fn try_to_take_over(
        &self,
        unfinished: &Path,
        ancestors: &BTreeSet<String>,
        from_ancestor: bool,
    ) -> io::Result<Taking> {
        let present = Present::read(&self.file)?;
        let is_own = present.run == self.run;
        if !is_own && from_ancestor && ancestors.contains(present.job()) {
            fs::rename(unfinished, &self.file)?;
            return Ok(Taking::Taken);
        }
        fs::remove_file(unfinished)?;
        Ok(
            match is_own || present.ancestors.contains(job_of(&self.run)) {
                true => Taking::Taken,
                false => Taking::Other(present.job().to_owned()),
            },
        )
    }

    /// Gives the directory back. Idempotent. A descendant that takes it between the two steps takes it again with its
    /// next task that opens.
    pub(super) fn give_back(&self) -> Result<(), SinkError> {
        if !self.is_owner()? {
            return Ok(());
        }
        remove_if_exists(&self.file).map_err(|error| SinkError::io("remove", &self.file, error))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "another process changes the file, perhaps on another host: nothing wakes this thread"
)]
fn pause() {
    sleep(PAUSE);
}

/// Content of the file; empty if there is none.
#[derive(Debug, Default)]
struct Present {
    run: String,
    ancestors: BTreeSet<String>,
}

impl Present {
    fn read(file: &Path) -> io::Result<Present> {
        let content = match fs::read_to_string(file) {
            Err(error) if is_missing(&error) => return Ok(Present::default()),
            content => content?,
        };
        let mut lines = content.lines().map(str::to_owned);
        Ok(Present {
            run: lines.next().unwrap_or_default(),
            ancestors: lines.collect(),
        })
    }

    fn job(&self) -> &str {
        job_of(&self.run)
    }
}

/// The job of a run, by the name of its directory.
fn job_of(run: &str) -> &str {
    run.split('-').next().unwrap_or_default()
}

/// Renames a file to a name that no file has; an error if one has it.
fn move_to_unused(from: &Path, to: &Path) -> io::Result<()> {
    rename_to_unused(from, to).unwrap_or_else(|| {
        fs::hard_link(from, to)?;
        fs::remove_file(from)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use tanist_dataflow::testing::guard_of_ended;
    use tanist_proto::id::JobId;

    use super::*;
    use crate::sink::{KeptFiles, cleanup, cleanup_except};
    use crate::testing::context;

    const RUNS: [&str; 3] = ["1-r", "2-r", "3-r"];

    fn owner(directory: &Path, run: &str) -> Owner {
        Owner {
            cleanup_timeout: Duration::ZERO,
            ..Owner::new(directory, run)
        }
    }

    fn take(owner: &Owner, ancestors: &[&str]) -> Result<(), SinkError> {
        let ancestors = ancestors.iter().map(|job| (*job).to_owned()).collect();
        owner.take(&ancestors, &context(0, 1).end_guard.ending())
    }

    fn is_owned_by(taken: Result<(), SinkError>, job: &str) -> bool {
        matches!(taken, Err(SinkError::Owned { owner, .. }) if owner == job)
    }

    #[test]
    fn one_of_the_jobs_that_begin_at_the_same_time_gets_the_directory() {
        let directory = tempfile::tempdir().expect("directory");
        for round in 0..20 {
            let output = directory.path().join(round.to_string());
            let runs = ["1-a", "1-a", "2-b", "2-b", "3-c", "3-c"];
            let all_wait = Barrier::new(runs.len());
            let taken: Vec<(&str, bool)> = thread::scope(|scope| {
                let (output, all_wait) = (&output, &all_wait);
                let takes = runs.map(|run| {
                    scope.spawn(move || {
                        all_wait.wait();
                        (run, take(&owner(output, run), &[]).is_ok())
                    })
                });
                takes
                    .into_iter()
                    .map(|it| it.join().expect("no panic"))
                    .collect()
            });
            let owners: BTreeSet<&str> = taken.iter().filter(|it| it.1).map(|it| it.0).collect();
            assert_eq!(owners.len(), 1, "{taken:?}");
            let all_of_it = taken.iter().filter(|it| it.1).count();
            assert_eq!(all_of_it, 2, "each task of the owner: {taken:?}");
        }
    }

    #[test]
    fn a_directory_that_was_given_back_can_be_taken_by_another_job() {
        let directory = tempfile::tempdir().expect("directory");
        let [first, second] = [1, 2].map(JobId::from_bits);
        let [ours, theirs] = [first, second].map(|job| owner(directory.path(), &job.to_string()));
        take(&ours, &[]).expect("unused");
        assert!(is_owned_by(take(&theirs, &[]), &first.to_string()));
        // A cleanup after another job, which never had it.
        cleanup(directory.path(), second, "").expect("cleaned up");
        assert!(ours.is_owner().expect("readable"));
        let kept = KeptFiles {
            paths: BTreeSet::from([b"/a/file".to_vec()]),
            has_uncommitted: true,
        };
        for _ in 0..2 {
            cleanup_except(directory.path(), (first, ""), &kept).expect("cleaned up");
            assert!(!ours.is_owner().expect("readable"));
        }
        take(&theirs, &[]).expect("given back");
        cleanup(directory.path(), second, "").expect("cleaned up");
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 0);
    }

    #[test]
    fn a_job_waits_for_the_cleanup_after_another_one_and_not_after_its_own_end() {
        let directory = tempfile::tempdir().expect("directory");
        let [first, second] = [1, 2].map(JobId::from_bits);
        let [ours, theirs] = [first, second].map(|job| {
            let owner = Owner::new(directory.path(), &job.to_string());
            Owner {
                cleanup_timeout: Duration::from_secs(3600),
                ..owner
            }
        });
        take(&ours, &[]).expect("unused");
        let ended = theirs.take(&BTreeSet::new(), &guard_of_ended().ending());
        assert!(matches!(ended, Err(SinkError::NotAwaited)), "{ended:?}");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| take(&theirs, &[]));
            cleanup(directory.path(), first, "").expect("cleaned up");
            waiting.join().expect("no panic").expect("given back");
        });
        assert!(theirs.is_owner().expect("readable"));
    }

    #[test]
    fn a_descendant_waits_until_its_ancestor_has_given_the_directory_back() {
        let directory = tempfile::tempdir().expect("directory");
        let [first, second] = [1, 2].map(JobId::from_bits);
        let ours = owner(directory.path(), &first.to_string());
        let theirs = Owner {
            cleanup_timeout: Duration::from_secs(3600),
            ..Owner::new(directory.path(), &second.to_string())
        };
        take(&ours, &[]).expect("unused");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| take(&theirs, &[&first.to_string()]));
            pause();
            assert!(
                ours.is_owner().expect("readable"),
                "its output may not be visible yet"
            );
            cleanup(directory.path(), first, "").expect("cleaned up");
            waiting.join().expect("no panic").expect("given back");
        });
        assert!(theirs.is_owner().expect("readable"));
    }

    #[test]
    fn a_descendant_takes_the_directory_over_and_its_ancestor_does_not_give_it_back() {
        let directory = tempfile::tempdir().expect("directory");
        let [first, second, third] = RUNS.map(|run| owner(directory.path(), run));
        take(&first, &[]).expect("unused");
        assert!(is_owned_by(take(&second, &["3"]), "1"));
        take(&second, &["1", "2"]).expect("it descends from it");
        first.give_back().expect("nothing is done");
        take(&first, &["1"]).expect("it is still there, and goes on");
        assert!(second.is_owner().expect("readable"));
        assert!(is_owned_by(take(&third, &[]), "2"));
        let all = fs::read_dir(directory.path().join(PENDING_DIRECTORY));
        let unfinished = all.expect("listed").flat_map(|run| {
            let run = run.expect("an entry").path();
            fs::read_dir(run).into_iter().flatten()
        });
        assert_eq!(unfinished.count(), 0);
    }
}
