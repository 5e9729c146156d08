//! How the Dispatcher's loop ends jobs: write the result, clean up, mark it clean, forget it after the retention time.

use tanist_ha::clock::millis;
use tanist_ha::failpoint::failpoint;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::{error, info, warn};

use super::actor::{DispatcherActor, Event};
use super::core::{self, Entry, accepted, result_key};
use super::descriptions::{Dropped, beyond_capacity};
use super::handle::Reply;
use super::job_store::JobStoreError;

impl DispatcherActor {
    /// The job is globally terminal. Its JobMaster continues to describe it until the result is written.
    pub(super) fn on_job_ended(&mut self, job: JobId, result: Box<pb::JobResult>) {
        let Some(mut result) = self.end_later(job, result) else {
            return;
        };
        self.retention
            .stamp(self.started.uptime(), job, &mut result);
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let written = store.put_result_until_written(*result).await.map(Box::new);
            if written.is_ok() {
                failpoint("job.result-written").await;
            }
            Event::ResultWritten { job, written }
        });
    }

    pub(super) fn on_result_written(
        &mut self,
        job: JobId,
        written: Result<Box<pb::JobResult>, JobStoreError>,
    ) {
        let result = match written {
            Ok(result) => result,
            Err(failure) => {
                error!(%job, %failure, "the result of a job could not be written");
                self.set_busy(job, false);
                self.cancel_failed(job);
                return;
            }
        };
        info!(%job, status = result.status().as_str_name(), "job ended");
        self.retention.noted(result.counted_ms);
        let key = result_key(&result);
        let waiting = Vec::new();
        let ended = Entry::Ended {
            key,
            result,
            waiting,
            left: None,
        };
        let before = self.jobs.insert(job, ended);
        if let Some(Entry::Running { control, .. }) = before {
            self.tasks.spawn(async move {
                control.result_written().await;
                Event::Done
            });
        }
        self.start_cleanup(job);
    }

    pub(super) fn start_cleanup(&mut self, job: JobId) {
        let Some(Entry::Ended { result, .. }) = self.jobs.get(&job) else {
            return;
        };
        let remove = result.remove.clone().unwrap_or_default();
        let cleaner = self.context.cleaner.clone();
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            if let Err(failure) = store.clean_chunks(job, &remove.chunks).await {
                // The term is over: the next one resumes the cleanup.
                warn!(%job, %failure, "the chunks of a graph could not be removed");
                return Event::Done;
            }
            if let Err(reason) = cleaner.run(job, &remove).await {
                return Event::CleanupGivenUp { job, reason };
            }
            failpoint("job.cleaned-up").await;
            Event::CleanedUp { job }
        });
    }

    /// The next leader resumes it. Waiting submissions wait until their timeout.
    pub(super) fn on_cleanup_given_up(&mut self, job: JobId, reason: String) {
        if let Some(Entry::Ended { left, .. }) = self.jobs.get_mut(&job) {
            *left = Some(reason);
        }
    }

    pub(super) fn on_cleaned_up(&mut self, job: JobId) {
        let Some(Entry::Ended { result, .. }) = self.jobs.get(&job) else {
            return;
        };
        let clean = pb::JobResult {
            dirty: false,
            // A TaskExecutor that is cut off may still write there: checked again when the result is removed.
            remove: result.remove.as_ref().map(|remove| pb::Cleanup {
                blobs: Vec::new(),
                chunks: Vec::new(),
                uploads: Vec::new(),
                sink_directories: remove.sink_directories.clone(),
                run: remove.run.clone(),
            }),
            ..(**result).clone()
        };
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let result = store.put_clean_result(&clean).await;
            Event::MarkedClean { job, result }
        });
    }

    /// Forgets jobs whose results were removed.
    pub(super) fn forget(&mut self, expired: &[JobId]) {
        self.is_expiring = false;
        for job in expired {
            self.jobs.remove(job);
            self.retention.forget(*job);
        }
    }

    /// Starts one removal at a time: a second one could hit a later job with the same id.
    pub(super) fn expire_results(&mut self) {
        if self.is_expiring || self.unread.is_some() || self.is_suspended() {
            return;
        }
        let retention_ms = millis(self.options.result_retention);
        let retention = &self.retention;
        let now = self.started.uptime();
        let counted = retention.counted_ms(now);
        let is_expired = |job: JobId, entry: &Entry| match entry {
            Entry::Ended { result, .. } => {
                let since = retention.kept_since_ms(now, job, result);
                core::is_expired(result, since, counted, retention_ms)
            }
            Entry::Persisting { .. }
            | Entry::Running { .. }
            | Entry::Rebuilding { .. }
            | Entry::Quarantined { .. } => false,
        };
        let expired = self
            .jobs
            .iter()
            .filter(|(job, entry)| is_expired(**job, entry));
        let jobs: Vec<JobId> = expired.map(|(job, _)| *job).collect();
        if jobs.is_empty() {
            return;
        }
        self.is_expiring = true;
        let leftovers: Vec<(JobId, pb::Cleanup)> = jobs
            .iter()
            .filter_map(|job| match self.jobs.get(job) {
                Some(Entry::Ended { result, .. }) => Some((*job, result.remove.clone()?)),
                Some(
                    Entry::Persisting { .. }
                    | Entry::Running { .. }
                    | Entry::Rebuilding { .. }
                    | Entry::Quarantined { .. },
                )
                | None => None,
            })
            .collect();
        let cleaner = self.context.cleaner.clone();
        let session = self.context.session.clone();
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            // Before the results are removed: while they exist, no job runs under these ids. After a crash in
            // between, the next term does the removal.
            let result = match cleaner.look_once_more(&leftovers, &session).await {
                true => store.delete_results(&jobs).await,
                false => Err(JobStoreError::NotWritten),
            };
            Event::Expired { jobs, result }
        });
    }

    pub(super) fn on_expired(&mut self, jobs: &[JobId], result: Result<(), JobStoreError>) {
        match result {
            Ok(()) => self.forget(jobs),
            Err(failure) => {
                self.is_expiring = false;
                warn!(%failure, "expired results could not be removed");
            }
        }
        // These share `is_expiring` with the removal, so they may have been skipped.
        self.bound_descriptions();
        self.note_retention();
    }

    /// Drops the descriptions of the oldest jobs beyond the limit. Their results stay.
    pub(super) fn bound_descriptions(&mut self) {
        if self.is_expiring || self.unread.is_some() {
            return;
        }
        let ended = self.jobs.iter().filter_map(|(job, entry)| match entry {
            Entry::Ended { result, .. } => Some((*job, &**result)),
            Entry::Persisting { .. }
            | Entry::Running { .. }
            | Entry::Rebuilding { .. }
            | Entry::Quarantined { .. } => None,
        });
        let beyond = beyond_capacity(ended, self.options.max_described);
        let results: Vec<pb::JobResult> = beyond
            .iter()
            .filter_map(|job| match self.jobs.get(job) {
                Some(Entry::Ended { result, .. }) => Some((**result).clone()),
                _ => None,
            })
            .collect();
        if results.is_empty() {
            return;
        }
        self.is_expiring = true;
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let dropped = store.drop_descriptions(results).await;
            Event::DescriptionsDropped(dropped)
        });
    }

    pub(super) fn on_descriptions_dropped(&mut self, dropped: Dropped) {
        self.is_expiring = false;
        for result in dropped.left {
            let job = result.job_id.parse::<JobId>().ok();
            if let Some(Entry::Ended { result: known, .. }) =
                job.and_then(|job| self.jobs.get_mut(&job))
            {
                **known = result;
            }
        }
        if let Some(failure) = dropped.failure {
            warn!(%failure, "descriptions beyond the capacity could not be dropped");
        }
        // It shares `is_expiring`, so it may have been skipped.
        self.note_retention();
    }

    pub(super) fn on_marked_clean(&mut self, job: JobId, marked: Result<(), JobStoreError>) {
        match (marked, self.jobs.get_mut(&job)) {
            (Ok(()), Some(Entry::Ended { result, .. })) => {
                result.dirty = false;
                // Blobs are gone; `on_cleaned_up` says what is kept.
                if let Some(remove) = &mut result.remove {
                    remove.blobs.clear();
                    remove.chunks.clear();
                    remove.uploads.clear();
                }
                self.answer_waiting(job);
                // Not on each end, as this scans all ended jobs: only once a tenth more than the limit are known.
                let most = self.options.max_described;
                if self.jobs.len() >= most.saturating_add((most / 10).max(1)) {
                    self.bound_descriptions();
                }
            }
            (Ok(()), _) => {}
            (Err(failure), _) => {
                warn!(%job, %failure, "a result could not be marked clean");
                self.on_cleanup_given_up(job, failure.to_string());
            }
        }
    }

    /// A repeated submission of an ended job is acknowledged once the job's leftovers are removed, or after a timeout.
    pub(super) fn wait_for_cleanup(&mut self, job: JobId, reply: Reply<pb::SubmitJobResponse>) {
        if let Some(Entry::Ended { waiting, .. }) = self.jobs.get_mut(&job) {
            waiting.push(reply);
            // Shorter than the caller's timeout.
            let timeout = self.options.store_timeout / 2;
            self.tasks.spawn(async move {
                tokio::time::sleep(timeout).await;
                Event::WaitedForCleanup { job }
            });
        }
    }

    pub(super) fn answer_waiting(&mut self, job: JobId) {
        if let Some(Entry::Ended { waiting, .. }) = self.jobs.get_mut(&job) {
            for reply in waiting.drain(..) {
                let _ = reply.send(Ok(accepted(job, true)));
            }
        }
    }
}
