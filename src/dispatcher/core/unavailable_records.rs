//! Jobs and results whose records can't be read for now, because the blob store that has one of them does not
//! answer or denies access. That says nothing about the records. They are read again until that succeeds or it
//! is certain that it can't.
//!
//! Such a job is RECONCILING, and its tasks keep running. It can be cancelled if its state was readable, like a
//! suspect job. It can't be retried or deleted, and an unavailable result can neither be forgotten nor
//! its job be run again. None of this is written: the next term finds out for itself. A missing blob, or one
//! with wrong content, is not such a case.

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::faults::{Fault, is_planted};
use super::{DispatcherCore, Effect, Entry, LogLine, Rebuilding, Replies};

const JOB_AWAITED: &str = "the blob store gives no answer for its records, or denies access: the job is led again once they can be read";
const RESULT_AWAITED: &str = "it has ended, and the blob store gives no answer for its result, or denies access: reading is retried";

impl<R: Replies> DispatcherCore<R> {
    /// One of this job's records can't be read for now.
    pub(super) fn await_records(
        &mut self,
        job: JobId,
        state: Option<Box<pb::JobState>>,
        reason: String,
    ) {
        self.out.log(LogLine::RecordsUnavailable { job, reason });
        // The number of the read that begins below. It is taken there and not here: `suspect` counts from the next
        // read, which must be this one. Else the read would not count for a job whose cancellation can't be written.
        let number = self.last_read.next();
        match state {
            Some(state) => {
                let ends = state.wanted() == pb::WantedStatus::Canceled;
                self.suspect(job, *state);
                if let Some(rebuilding) = self.jobs.rebuilding_mut(job)
                    && !ends
                {
                    rebuilding.await_records(JOB_AWAITED, number);
                }
            }
            None => match self.jobs.rebuilding_mut(job) {
                // What was known of the job before still holds.
                Some(rebuilding) => rebuilding.await_records(JOB_AWAITED, number),
                None => {
                    let unknown = Rebuilding::unknown(JOB_AWAITED, number);
                    self.jobs.set(job, Entry::Rebuilding(unknown));
                }
            },
        }
        let number = self.number_read();
        if !is_planted(Fault::RecordsNotAwaited) {
            self.out.effect(Effect::AwaitRecords { job, number });
        }
    }

    /// The result of this job can't be read for now.
    pub(super) fn await_result(&mut self, job: JobId, reason: String) {
        self.out.log(LogLine::ResultUnavailable { job, reason });
        let unknown = Rebuilding::unknown(RESULT_AWAITED, self.last_read.next());
        self.jobs.set(job, Entry::Rebuilding(unknown));
        self.out.effect(Effect::AwaitResult { job });
    }

    pub(super) fn on_result_read(
        &mut self,
        job: JobId,
        found: Result<Box<pb::JobResult>, (pb::QuarantineKind, String)>,
    ) {
        match found {
            Ok(result) => {
                self.out.log(LogLine::ResultRead { job });
                self.retention.found(self.now.uptime, job, &result);
                self.take_up_ended(job, *result);
            }
            Err((kind, reason)) => self.quarantine_ended(job, kind, &reason),
        }
    }
}
