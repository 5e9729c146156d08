//! Writes and reads of the job store: submissions, results and their cleanup, quarantines, and the records of jobs that
//! wait for them.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tanist_gateway::persistence::JobStateStore as _;
use tanist_ha::Error;
use tanist_ha::failpoint::failpoint;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use super::{Calls, Event};
use crate::core::{JobToRetry, ReadNumber, Submission};
use crate::descriptions::Dropped;
use crate::handle::Reply;
use crate::job_store::{JobStoreError, Retained, fits};

/// Number of waiting jobs that are read at the same time.
const READ_AT_ONCE: usize = 16;
/// Pause after some results could not be removed. The core writes and removes no other clean result meanwhile.
const NEXT_TRY: Duration = Duration::from_secs(60);

/// Submissions, and the results of ended jobs.
impl Calls {
    pub(super) fn write_submission(
        &mut self,
        submission: Box<Submission>,
        mut state: Box<pb::JobState>,
    ) {
        let store = self.context.store.clone();
        let sinks = self.context.cleaner.sinks.clone();
        self.spawn(async move {
            failpoint("submit.persisting").await;
            let written = match &submission.restore {
                None => store.put_submission(&submission.graph, &state).await,
                Some(request) => {
                    let graph = &submission.graph;
                    let how = (fits as _, &*sinks);
                    let putting = store.put_restored_submission(graph, &mut state, request, how);
                    putting.await
                }
            };
            if written.is_ok() {
                failpoint("submit.persisted").await;
            }
            Event::SubmissionWritten {
                submission,
                state,
                written,
            }
        });
    }

    pub(super) fn write_result(
        &mut self,
        job: JobId,
        mut result: pb::JobResult,
        is_retried: bool,
        reply: Option<Reply<pb::Ack>>,
    ) {
        let store = self.context.store.clone();
        let job_master = self.job_master(job);
        let of_job_master = job_master.map(|control| control.retained_checkpoints());
        self.spawn(async move {
            let retained = match of_job_master {
                Some(record) => Ok(record.map_or(Retained::Nothing, Retained::Record)),
                None => store.retained_without_job_master(job, &mut result).await,
            };
            let written = match retained {
                Ok(retained) if is_retried => {
                    let written = store.put_result_until_written(result, &retained).await;
                    if written.is_ok() {
                        failpoint("job.result-written").await;
                    }
                    written
                }
                Ok(retained) => store.put_result_with(result, &retained).await,
                Err(failure) => Err(failure),
            };
            Event::ResultWritten {
                job,
                written: written.map(Box::new),
                reply,
            }
        });
    }

    pub(super) fn clean_up(&mut self, job: JobId, remove: pb::Cleanup) {
        let cleaner = self.context.cleaner.clone();
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            if let Err(failure) = store.clean_chunks(job, &remove.chunks).await {
                // The term is over: the next one resumes the cleanup.
                warn!(%job, %failure, "the chunks of a graph could not be removed");
                return None;
            }
            let kept = match store.kept_objects(job).await {
                Ok(kept) => kept,
                Err(failure) => {
                    warn!(%job, %failure, "the cleanup of a job is left to the next term");
                    return None;
                }
            };
            let storage_trouble = store.storage().trouble();
            if let Err(reason) = cleaner.run(job, &remove, &kept, storage_trouble).await {
                return Some(Event::CleanupGivenUp { job, reason });
            }
            failpoint("job.cleaned-up").await;
            Some(Event::CleanedUp { job })
        });
    }

    pub(super) fn write_clean_result(&mut self, job: JobId, result: Box<pb::JobResult>) {
        let store = self.context.store.clone();
        self.spawn(async move {
            let marked = store.put_clean_result(&result).await;
            Event::MarkedClean { job, marked }
        });
    }

    pub(super) fn delete_results(
        &mut self,
        jobs: Vec<JobId>,
        leftovers: Vec<(JobId, pb::Cleanup)>,
    ) {
        let context = self.context.clone();
        self.spawn(async move {
            // Before the results are removed: while they exist, no job runs under these ids. After a crash in
            // between, the next term does the removal.
            let checking = context
                .cleaner
                .check_leftovers(&leftovers, &context.session);
            let Some(left) = checking.await else {
                let error = Error::Unavailable {
                    store: "the store",
                    reason: "it does not confirm this term".to_owned(),
                };
                let deleted = Err(JobStoreError::Refused(error));
                return Event::ResultsDeleted { jobs, deleted };
            };
            // Only the record of a retained checkpoint names its hidden output. Where that could not be removed, the
            // result and this record stay for a later attempt.
            let with_output = context.store.with_retained(&left).await;
            let (kept, jobs): (Vec<_>, Vec<_>) =
                jobs.into_iter().partition(|job| with_output.contains(job));
            let deleted = context.store.delete_results(&jobs).await;
            if !kept.is_empty() {
                tokio::time::sleep(NEXT_TRY).await;
            }
            Event::ResultsDeleted { jobs, deleted }
        });
    }

    pub(super) fn drop_descriptions(&mut self, results: Vec<pb::JobResult>) {
        let store = self.context.store.clone();
        self.spawn(async move {
            let Dropped { left, failure } = store.drop_descriptions(results).await;
            let results = left;
            Event::DescriptionsDropped { results, failure }
        });
    }

    pub(super) fn note_retention(&mut self, job: JobId, result: Box<pb::JobResult>) {
        let store = self.context.store.clone();
        self.spawn(async move {
            Event::RetentionNoted {
                job,
                counted_ms: result.counted_ms,
                noted: store.try_clean_result(&result).await,
            }
        });
    }

    pub(super) fn await_result(&mut self, job: JobId) {
        let store = self.context.store.clone();
        self.spawn(async move {
            let found = store.await_result(job).await.map(Box::new);
            Event::ResultRead { job, found }
        });
    }

    pub(super) fn read_results(&mut self) {
        let records = std::mem::take(&mut self.kept);
        let store = self.context.store.clone();
        self.spawn(async move {
            failpoint("results.reading").await;
            let read = store.read_results_until_answered(&records).await;
            Event::ResultsRead(Box::new(read))
        });
    }

    pub(super) fn delete_unreadable_result(&mut self, job: JobId, reply: Reply<pb::Ack>) {
        let store = self.context.store.clone();
        self.spawn(async move {
            let deleted = store.delete_results(&[job]).await;
            Event::UnreadableResultDeleted {
                job,
                deleted,
                reply,
            }
        });
    }
}

/// The records of jobs that wait for them or are quarantined, and savepoints.
impl Calls {
    pub(super) fn read_waiting_jobs(
        &mut self,
        jobs: Vec<JobId>,
        number: ReadNumber,
        reply: Option<Reply<()>>,
    ) {
        let store = self.context.store.clone();
        self.spawn(async move {
            let reads = jobs.into_iter().map(|job| {
                let store = store.clone();
                async move { (job, store.reread(job).await) }
            });
            let found = stream::iter(reads).buffered(READ_AT_ONCE).collect().await;
            Event::WaitingJobsRead {
                found,
                number,
                reply,
            }
        });
    }

    pub(super) fn await_records(&mut self, job: JobId, number: ReadNumber) {
        let store = self.context.store.clone();
        self.spawn(async move {
            let found = vec![(job, store.await_job(job).await)];
            Event::WaitingJobsRead {
                found,
                number,
                reply: None,
            }
        });
    }

    pub(super) fn write_quarantine(&mut self, job: JobId, state: Box<pb::JobState>) {
        let store = self.context.store.clone();
        self.spawn(async move {
            let written = store.put_state(&state).await;
            Event::QuarantineWritten { job, written }
        });
    }

    pub(super) fn read_quarantined(
        &mut self,
        job: JobId,
        from_checkpoint: Option<u64>,
        reply: Reply<pb::Ack>,
    ) {
        let store = self.context.store.clone();
        self.spawn(async move {
            let found = store.reread(job).await;
            Event::QuarantinedRead {
                job,
                found,
                from_checkpoint,
                reply,
            }
        });
    }

    pub(super) fn remove_quarantine(
        &mut self,
        job: JobId,
        mut to_retry: JobToRetry,
        from_checkpoint: Option<u64>,
        reply: Reply<pb::Ack>,
    ) {
        let store = self.context.store.clone();
        self.spawn(async move {
            let written = match from_checkpoint {
                None => store.put_state(&to_retry.state).await,
                Some(number) => store.go_back(job, &mut to_retry.state, number).await,
            };
            Event::QuarantineRemoved {
                job,
                to_retry,
                goes_back: from_checkpoint.is_some(),
                written,
                reply,
            }
        });
    }

    pub(super) fn dispose_savepoint(&mut self, path: String, reply: Reply<pb::Ack>) {
        // Ends also if no caller waits for the answer any more.
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let disposed = store.dispose_savepoint(&path).await;
            let _ = reply.send(disposed.map(|()| pb::Ack {}));
            None
        });
    }
}
