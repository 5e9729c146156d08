//! Removes what an ended job leaves outside the coordination store: pending files of its sinks, blobs, copies of failed
//! savepoints, and objects of its checkpoints. What a retained checkpoint names stays ([`Kept`]).
//!
//! Owns no state: the result of the job names what is to be removed, and stays dirty until all of it is. So a crash
//! repeats the cleanup, and each step is idempotent. An error or a timeout is retried, up to the number of retries that
//! one term has; then the next leader resumes the cleanup.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::TryFutureExt as _;
use futures::stream::{self, StreamExt as _};
use tanist_gateway::savepoints;
use tanist_ha::blob::BlobStore;
use tanist_ha::election::LeaderSession;
use tanist_ha::keys::Name;
use tanist_ha::retry::Backoff;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use super::job_store::{Kept, Note};
use super::uploads;

/// Timeout for the last check of leftovers before results are removed: a directory may be on a file system that hangs.
const LAST_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of jobs that are checked at the same time.
const CHECKS_AT_ONCE: usize = 16;
/// Timeout for removing one directory or blob; then the try counts as failed.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Output of a job's sinks that is not visible and that its retained checkpoint names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HiddenOutput {
    /// Paths of pending files.
    pub files: BTreeSet<Vec<u8>>,
    /// What is to be committed still.
    pub uncommitted: Vec<pb::CheckpointCommittable>,
}

/// The work on what sinks of ended jobs have left. All of it is idempotent. An error says what could not be done.
/// Dropping a future ends the wait; afterwards nothing more begins.
#[async_trait]
pub trait SinkCleaner: Send + Sync + fmt::Debug + 'static {
    /// Removes the pending files of one run of a job from a sink's directory, except what is kept, and none of another
    /// run under the same id.
    async fn clean(
        &self,
        directory: &str,
        job: JobId,
        run: &str,
        kept: &HiddenOutput,
    ) -> Result<(), String>;

    /// Makes output visible that a durable checkpoint of an ended job lists.
    async fn finish_commit(
        &self,
        number: u64,
        _committables: &[pb::CheckpointCommittable],
    ) -> Result<(), String> {
        Err(format!(
            "no sink is known that has output of checkpoint {number}"
        ))
    }

    /// Gives pending files of an ended job to a run of another one, whose sinks write into these directories. Returns
    /// the paths that it has of them, in the same order. The ended job keeps its own.
    async fn hand_over(
        &self,
        files: &[Vec<u8>],
        (job, _run): (JobId, &str),
        _directories: &[PathBuf],
    ) -> Result<Vec<Vec<u8>>, String> {
        let number = files.len();
        Err(format!(
            "{number} pending files can't be handed to job {job}: no file sinks are available"
        ))
    }
}

/// Result of the last check of one job.
enum LastCheck {
    /// Nothing is left.
    Clean,
    /// Something could not be removed.
    Failed(JobId),
    /// Not checked: the checks of other jobs took all the time.
    NoTime(JobId),
    /// Not checked: the term may be over.
    NotLeading,
}

/// Cleans up after ended jobs.
#[derive(Debug, Clone)]
pub struct Cleaner {
    /// Cleans sinks' directories.
    pub sinks: Arc<dyn SinkCleaner>,
    /// Deletes blobs; needed if graphs can be in one.
    pub blobs: Option<Arc<BlobStore>>,
    /// First delay between tries (`cleanup-strategy.exponential-delay`).
    pub initial_backoff: Duration,
    /// Maximum delay between tries.
    pub max_backoff: Duration,
    /// Number of retries in one term (`cleanup-strategy.exponential-delay.attempts`); `None`: without limit.
    pub attempts: Option<u32>,
}

impl Cleaner {
    /// Removes all that `remove` names. Fails with the last error once the retries of one term are used up. A retry
    /// does not wait any longer when the storage of blobs is available again (`storage_trouble`).
    pub(super) async fn run(
        &self,
        job: JobId,
        remove: &pb::Cleanup,
        kept: &Kept,
        mut storage_trouble: watch::Receiver<Option<String>>,
    ) -> Result<(), String> {
        let mut backoff = Backoff::new(self.initial_backoff, self.max_backoff);
        let mut retries = 0;
        while let Err(reason) = self.try_once(job, remove, kept).await {
            if self.attempts.is_some_and(|attempts| retries >= attempts) {
                warn!(%job, reason, retries, "cleanup is given up in this term: the next leader resumes it");
                return Err(reason);
            }
            retries += 1;
            let delay = backoff.next_delay();
            warn!(%job, reason, ?delay, "cleanup is tried again");
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = available_again(&mut storage_trouble) => {}
            }
        }
        Ok(())
    }

    /// Checks again, before ended jobs are forgotten, for what they may have left; all of it within
    /// [`LAST_CHECK_TIMEOUT`]. What can't be removed in that time is logged. Returns the jobs that may have left
    /// something. None: this term may be over; then nothing more is removed, as there may be another run under one of
    /// these ids.
    pub(super) async fn check_leftovers(
        &self,
        leftovers: &[(JobId, pb::Cleanup)],
        session: &LeaderSession,
    ) -> Option<BTreeSet<JobId>> {
        let until = Instant::now() + LAST_CHECK_TIMEOUT;
        let nothing = Kept::default();
        let check = async |(job, remove): &(JobId, pb::Cleanup)| {
            if session.check().is_err() {
                return LastCheck::NotLeading;
            }
            if Instant::now() >= until {
                return LastCheck::NoTime(*job);
            }
            let removing = self.try_once(*job, remove, &nothing);
            match tokio::time::timeout_at(until, removing).await {
                Ok(Ok(())) => return LastCheck::Clean,
                Ok(Err(reason)) => {
                    warn!(%job, reason, "files of an ended job can't be removed");
                }
                Err(_elapsed) => {
                    let directories = &remove.sink_directories;
                    warn!(%job, ?directories, "files of an ended job can't be removed: the sink directories do not answer");
                }
            }
            LastCheck::Failed(*job)
        };
        let mut checks = stream::iter(leftovers)
            .map(check)
            .buffer_unordered(CHECKS_AT_ONCE);
        let (mut left, mut unchecked) = (BTreeSet::new(), 0);
        while let Some(checked) = checks.next().await {
            match checked {
                LastCheck::Clean => {}
                LastCheck::Failed(job) => drop(left.insert(job)),
                LastCheck::NoTime(job) => {
                    left.insert(job);
                    unchecked += 1;
                }
                LastCheck::NotLeading => return None,
            }
        }
        if unchecked > 0 {
            warn!(
                jobs = unchecked,
                "files of ended jobs can't be looked for: other directories did not answer in time"
            );
        }
        Some(left)
    }

    async fn try_once(&self, job: JobId, remove: &pb::Cleanup, kept: &Kept) -> Result<(), String> {
        // If it is unknown which files a retained checkpoint names, all of them stay until the job's result is removed.
        if let Kept::These { output, .. } = kept {
            for directory in &remove.sink_directories {
                let cleaning = self.sinks.clean(directory, job, &remove.run, output);
                answered(directory, cleaning).await?;
            }
        }
        let named = remove.blobs.iter().map(|name| name.parse::<Name>());
        let named = named.collect::<Result<Vec<Name>, _>>();
        let mut objects = named.map_err(|error| error.to_string())?;
        objects.extend(remove.uploads.iter().flat_map(uploads::objects_of));
        for name in objects {
            let Some(blobs) = &self.blobs else {
                return Err(format!(
                    "blob {name} can't be removed: no blob store is configured"
                ));
            };
            let removal = blobs.delete(&name);
            let removal = removal.map_err(|error| error.to_string());
            answered(name.as_str(), removal).await?;
        }
        let of_job = job.to_string();
        for path in &remove.savepoints {
            // The path belongs to the user, and nothing of Tanist reads it: a failure does not delay the result.
            let discarding = savepoints::discard_copy(path, &of_job);
            let discarding = discarding.map_err(|error| error.to_string());
            if let Err(reason) = answered(path, discarding).await {
                warn!(%job, path, reason, "what was copied for a failed savepoint is left behind");
            }
        }
        match kept {
            Kept::These { objects, .. } if remove.checkpoints => {
                self.remove_checkpoints(job, &remove.run, objects).await
            }
            Kept::These { .. } | Kept::All => Ok(()),
        }
    }

    /// Removes all objects of a job's checkpoints except `kept`. Without a blob store there are none: all of its state
    /// was in its record.
    async fn remove_checkpoints(
        &self,
        job: JobId,
        run: &str,
        kept: &BTreeSet<String>,
    ) -> Result<(), String> {
        let Some(blobs) = &self.blobs else {
            return Ok(());
        };
        let name = Name::new(job.to_string()).map_err(|error| error.to_string())?;
        let storage = blobs.checkpoints(&name);
        let place = storage.location();
        let listing = storage.list().map_err(|error| error.to_string());
        let listed = answered(&place, listing).await?;
        for object in listed.into_iter().filter(|object| !kept.contains(object)) {
            let place = format!("{place}/{object}");
            let reading = Note::read(&storage, &object);
            let note = answered(&place, reading.map_err(|error| error.to_string())).await?;
            // The note is of an attempt of the job's submission that was not written.
            if let Some(note) = note {
                let cleaning = note.clean(&*self.sinks, job, run);
                answered("a directory of a sink", cleaning).await?;
            }
            let removal = storage.remove(&object);
            let removal = removal.map_err(|error| error.to_string());
            answered(&place, removal).await?;
        }
        let removal = storage.remove_directory();
        answered(&place, removal.map_err(|error| error.to_string())).await
    }
}

/// Completes when a storage that has a trouble, or gets one, has none any more. Else never: the caller has a timeout.
async fn available_again(trouble: &mut watch::Receiver<Option<String>>) {
    let has_trouble = trouble.wait_for(Option::is_some).await.is_ok();
    if !has_trouble || trouble.wait_for(Option::is_none).await.is_err() {
        // The term is over; the pause ends by itself.
        std::future::pending::<()>().await;
    }
}

/// Limits a removal to [`REMOVAL_TIMEOUT`]. A removal that hangs counts as failed and is retried like any other.
async fn answered<T>(
    what: &str,
    removal: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let answer = tokio::time::timeout(REMOVAL_TIMEOUT, removal).await;
    answer.unwrap_or_else(|_elapsed| {
        let seconds = REMOVAL_TIMEOUT.as_secs();
        Err(format!("{what} gives no answer within {seconds} s"))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Debug)]
    struct Hanging;

    #[async_trait]
    impl SinkCleaner for Hanging {
        async fn clean(
            &self,
            _directory: &str,
            _job: JobId,
            _run: &str,
            _kept: &HiddenOutput,
        ) -> Result<(), String> {
            std::future::pending().await
        }
    }

    #[derive(Debug, Default)]
    struct Failing {
        tries: AtomicU32,
    }

    #[async_trait]
    impl SinkCleaner for Failing {
        async fn clean(
            &self,
            _directory: &str,
            _job: JobId,
            _run: &str,
            _kept: &HiddenOutput,
        ) -> Result<(), String> {
            self.tries.fetch_add(1, Ordering::Relaxed);
            Err("no permission".to_owned())
        }
    }

    /// Cleans up after a job that wrote into `/out`, with two retries.
    async fn clean_with(sinks: Arc<dyn SinkCleaner>) -> Result<(), String> {
        let cleaner = Cleaner {
            sinks,
            blobs: None,
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(60),
            attempts: Some(2),
        };
        let remove = pb::Cleanup {
            sink_directories: vec!["/out".to_owned()],
            ..pb::Cleanup::default()
        };
        let (_no_trouble, storage_trouble) = watch::channel(None);
        cleaner
            .run(
                JobId::from_bits(1),
                &remove,
                &Kept::default(),
                storage_trouble,
            )
            .await
    }

    #[tokio::test(start_paused = true)]
    async fn a_cleanup_is_tried_again_as_soon_as_the_storage_is_available_again() {
        let failing = Arc::new(Failing::default());
        let cleaner = Cleaner {
            sinks: failing.clone(),
            blobs: None,
            initial_backoff: Duration::from_secs(600),
            max_backoff: Duration::from_secs(600),
            attempts: Some(1),
        };
        let remove = pb::Cleanup {
            sink_directories: vec!["/out".to_owned()],
            ..pb::Cleanup::default()
        };
        let (trouble, storage_trouble) = watch::channel(Some("not mounted".to_owned()));
        let began = Instant::now();
        let nothing = Kept::default();
        let running = cleaner.run(JobId::from_bits(1), &remove, &nothing, storage_trouble);
        let mounting = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            trouble.send_replace(None);
        };
        let (ended, ()) = tokio::join!(running, mounting);
        assert!(ended.is_err());
        assert_eq!(failing.tries.load(Ordering::Relaxed), 2);
        assert_eq!(began.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cleanup_that_fails_is_tried_again_as_often_as_may_be_in_one_term() {
        let failing = Arc::new(Failing::default());
        let given_up = clean_with(failing.clone()).await;
        assert_eq!(given_up, Err("no permission".to_owned()));
        assert_eq!(failing.tries.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cleanup_that_gives_no_answer_is_given_up_as_one_that_fails() {
        let given_up =
            tokio::time::timeout(Duration::from_secs(3600), clean_with(Arc::new(Hanging)));
        let reason = given_up
            .await
            .expect("bounded")
            .expect_err("nothing is removed");
        assert!(reason.contains("/out gives no answer"), "{reason}");
    }
}
