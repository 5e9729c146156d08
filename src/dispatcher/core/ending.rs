//! Ends of jobs: the result is written, then the JobMaster is released and the cleanup starts, in this order. After a
//! crash before the write, the records of a job with a JobMaster still say that it ends; a request to cancel one
//! without is lost, and was not acknowledged. After the write the job is never led again. While the results of earlier
//! terms are unread (`unread`), ends wait.

use tanist_gateway::GatewayError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::faults::{Fault, is_planted};
use super::{DispatcherCore, Effect, Ended, Entry, LogLine, Replies};
use crate::JobStoreError;

impl<R: Replies> DispatcherCore<R> {
    /// The job is globally terminal. Its JobMaster continues to describe it until the result is written.
    pub(super) fn on_job_ended(&mut self, job: JobId, result: Box<pb::JobResult>) {
        match &mut self.unread {
            Some(unread) => unread.keep_ended(job, result),
            None => self.write_result(job, result, true, None),
        }
    }

    /// Replaces the records of a job that has no JobMaster with its result. TaskExecutors end its tasks when they see
    /// that in the store.
    pub(super) fn end_canceled(
        &mut self,
        job: JobId,
        result: Box<pb::JobResult>,
        reply: Option<R::To<pb::Ack>>,
    ) {
        match &mut self.unread {
            Some(unread) => unread.keep_canceled(job, result, reply),
            None => self.write_result(job, result, false, reply),
        }
    }

    fn write_result(
        &mut self,
        job: JobId,
        mut result: Box<pb::JobResult>,
        is_retried: bool,
        reply: Option<R::To<pb::Ack>>,
    ) {
        self.retention.stamp(self.now.uptime, job, &mut result);
        if is_planted(Fault::ReleasedBeforeResult) {
            self.out.effect(Effect::ReleaseJobMaster { job });
        }
        self.out.effect(Effect::WriteResult {
            job,
            result,
            is_retried,
            reply,
        });
    }

    pub(super) fn on_result_written(
        &mut self,
        job: JobId,
        written: Result<Box<pb::JobResult>, JobStoreError>,
        reply: Option<R::To<pb::Ack>>,
    ) {
        let result = match written {
            Ok(result) => result,
            Err(failure) => {
                let answer = match is_planted(Fault::FailedCancellationAcknowledged) {
                    true => Ok(()),
                    false => Err(GatewayError::from(failure.clone())),
                };
                self.out.acknowledge_if_asked(reply, answer);
                self.out.log(LogLine::ResultNotWritten { job, failure });
                self.set_busy(job, false);
                self.cancel_failed(job);
                return;
            }
        };
        self.out.acknowledge_if_asked(reply, Ok(()));
        let status = result.status();
        self.out.log(LogLine::JobEnded { job, status });
        self.retention.noted(result.counted_ms);
        let before = self.jobs.set(job, Entry::Ended(Ended::of(result)));
        if let Some(Entry::Running { .. }) = before {
            self.out.effect(Effect::ReleaseJobMaster { job });
        }
        self.start_cleanup(job);
    }

    /// Continues with a job that has ended.
    pub(super) fn take_up_ended(&mut self, job: JobId, result: pb::JobResult) {
        let is_dirty = result.dirty;
        let ended = Ended::of(Box::new(result));
        self.jobs.set(job, Entry::Ended(ended));
        if is_dirty {
            self.out.log(LogLine::CleanupResumed { job });
            self.start_cleanup(job);
        }
    }
}
