//! Cancellations and stops. The JobMaster of a running job decides and acknowledges them; a job without one ends by its
//! result CANCELED.

use tanist_gateway::GatewayError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{
    DispatcherCore, Effect, Entry, Replies, is_written_about, no_job_master, no_such_job,
    status_name, suspended,
};

impl<R: Replies> DispatcherCore<R> {
    pub(super) fn cancel(&mut self, job: JobId, reply: R::To<pb::Ack>) {
        let answer = match self.jobs.get(job) {
            None => Err(no_such_job(job)),
            Some(Entry::Persisting(_)) => Err(no_job_master(job)),
            // A suspended term decides nothing new.
            Some(Entry::Running { .. } | Entry::Rebuilding(_) | Entry::Quarantined(_))
                if self.is_suspended() =>
            {
                Err(suspended())
            }
            Some(Entry::Rebuilding(_)) => return self.cancel_suspect(job, Some(reply)),
            Some(Entry::Running { .. }) => {
                self.out.effect(Effect::CancelByJobMaster { job, reply });
                return;
            }
            Some(Entry::Ended(ended)) => match ended.result().status() {
                // Already canceled: mostly the same request, repeated after a takeover.
                pb::JobStatus::Canceled => Ok(()),
                status => Err(has_ended(job, status)),
            },
            Some(Entry::Quarantined(known)) => match known.refuses_cancellation(job) {
                Some(refusal) => Err(refusal),
                None => return self.end_quarantined(job, Some(reply)),
            },
        };
        self.out.acknowledge(reply, answer);
    }

    /// Asks for a savepoint of the job.
    pub(super) fn trigger_savepoint(
        &mut self,
        job: JobId,
        request: Box<pb::TriggerSavepointRequest>,
        reply: R::To<pb::Ack>,
    ) {
        let refusal = match self.jobs.get(job) {
            None => no_such_job(job),
            Some(Entry::Persisting(_) | Entry::Rebuilding(_)) => no_job_master(job),
            // A suspended term decides nothing new.
            Some(Entry::Running { .. }) if self.is_suspended() => suspended(),
            Some(Entry::Running { .. }) => {
                self.out.effect(Effect::TriggerSavepoint {
                    job,
                    request,
                    reply,
                });
                return;
            }
            Some(Entry::Ended(ended)) => has_ended(job, ended.result().status()),
            Some(Entry::Quarantined(known)) => GatewayError::Conflict(format!(
                "job {job} is quarantined, so no savepoint can be taken of it: {}",
                known.reason()
            )),
        };
        self.out.acknowledge(reply, Err(refusal));
    }

    /// Asks the job's sources to end, so that the job finishes.
    pub(super) fn stop_job(&mut self, job: JobId, reply: R::To<pb::Ack>) {
        let answer = match self.jobs.get(job) {
            None => Err(no_such_job(job)),
            Some(Entry::Persisting(_) | Entry::Rebuilding(_)) => Err(no_job_master(job)),
            // A suspended term decides nothing new.
            Some(Entry::Running { .. }) if self.is_suspended() => Err(suspended()),
            Some(Entry::Running { .. }) => {
                self.out.effect(Effect::StopByJobMaster { job, reply });
                return;
            }
            Some(Entry::Ended(ended)) => match ended.result().status() {
                // The same request, repeated after its answer was lost, or after a takeover.
                pb::JobStatus::Finished if ended.result().drained => Ok(()),
                // A stop of a job that had not started was a cancellation.
                pb::JobStatus::Canceled if ended.result().never_placed => Ok(()),
                status => Err(has_ended(job, status)),
            },
            Some(Entry::Quarantined(known)) if known.has_finished() => {
                Err(GatewayError::Conflict(format!(
                    "job {job} is quarantined, and all its tasks have finished: retry it, so that what they wrote becomes visible: {}",
                    known.reason()
                )))
            }
            Some(Entry::Quarantined(known)) => Err(GatewayError::Conflict(format!(
                "job {job} is quarantined, and can only be retried or cancelled: {}",
                known.reason()
            ))),
        };
        self.out.acknowledge(reply, answer);
    }
}

fn has_ended(job: JobId, status: pb::JobStatus) -> GatewayError {
    let status = status_name(status);
    GatewayError::Conflict(format!("job {job} has already ended: {status}"))
}

impl super::Quarantined {
    /// Why the job can't be cancelled now. The first reason counts: "try again", for a busy job, is no answer about a
    /// job that has ended or that only a newer version can end.
    fn refuses_cancellation(&self, job: JobId) -> Option<GatewayError> {
        let reason = self.reason();
        if self.has_ended() {
            return Some(GatewayError::Conflict(format!("job {job}: {reason}")));
        }
        // It is unknown here what the job leaves behind. A newer version ends it properly.
        if self.kind() == pb::QuarantineKind::TooNew {
            return Some(GatewayError::Conflict(format!(
                "job {job}: {reason}; cancel it there, or delete it from quarantine, which may leave files of it behind"
            )));
        }
        if self.is_busy() {
            return Some(is_written_about(job));
        }
        // Part of its output may be visible and stays so; a cancellation would remove the rest. This
        // partial output needs an explicit delete from quarantine.
        self.has_finished().then(|| {
            GatewayError::Conflict(format!(
                "job {job} is quarantined, and all its tasks have finished: retry it, so that what they wrote becomes visible, or \
                 delete it from quarantine, which removes what is not visible yet: {reason}"
            ))
        })
    }
}
