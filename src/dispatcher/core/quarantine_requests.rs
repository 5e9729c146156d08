//! Requests that end a quarantine: retry and delete. Meanwhile the job's entry is *busy*, and refuses other requests.
//!
//! *Retry*: all records are read again, the reason is removed from the record, then the JobMaster is started.
//! After a crash before the write the job is still quarantined; after the write it is recovered like any other
//! job. A retry may name an older checkpoint to which the job goes back (`docs/adr/0060`): then both records are
//! written at once, or neither, if the job can't go back to it. *Delete*: the result CANCELED replaces its records
//! in one transaction, then the request is acknowledged; TaskExecutors stop its tasks once the store says that it
//! has ended. A *cancellation* does the same, except for a job whose tasks have all finished: part of its output may
//! be visible, and only its JobMaster puts a cancellation and a finish in order.

use tanist_gateway::GatewayError;
use tanist_gateway::persistence::PersistError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::faults::{Fault, is_planted};
use super::quarantined::event;
use super::{
    DispatcherCore, Effect, Entry, JobToRetry, LogLine, Replies, Reread, is_written_about,
    no_such_job, suspended,
};
use crate::{JobStoreError, RecoveredJob};

/// How a job leaves quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// It is led again. `from_checkpoint`: it goes back to this retained checkpoint; `None`: it continues as its
    /// records say.
    Retry { from_checkpoint: Option<u64> },
    /// It is cancelled.
    Delete,
}

impl Resolution {
    /// What a request asks for. The error says why it is refused.
    pub(crate) fn of(request: &pb::ResolveQuarantineRequest) -> Result<Resolution, GatewayError> {
        let number = Some(request.from_checkpoint).filter(|number| *number > 0);
        match (request.action(), number) {
            (pb::QuarantineAction::Unspecified, _) => Err(GatewayError::Invalid(
                "the request names no action for the quarantined job".to_owned(),
            )),
            (pb::QuarantineAction::Delete, None) => Ok(Resolution::Delete),
            (pb::QuarantineAction::Delete, Some(_)) => Err(GatewayError::Invalid(
                "a job that is deleted goes back to no checkpoint".to_owned(),
            )),
            (pb::QuarantineAction::Retry, Some(number)) if !request.accept_duplicates => {
                let job = &request.job_id;
                Err(GatewayError::Conflict(format!(
                    "job {job} was not led again from checkpoint {number}: what it has made visible since then would \
                     appear twice; to accept that, say so (--accept-duplicates)"
                )))
            }
            (pb::QuarantineAction::Retry, from_checkpoint) => {
                Ok(Resolution::Retry { from_checkpoint })
            }
        }
    }
}

impl<R: Replies> DispatcherCore<R> {
    /// Retries a quarantined job, or deletes it.
    pub(super) fn resolve_quarantine(
        &mut self,
        job: JobId,
        resolution: Resolution,
        reply: R::To<pb::Ack>,
    ) {
        let is_retry = resolution != Resolution::Delete;
        let is_plain_retry = resolution
            == Resolution::Retry {
                from_checkpoint: None,
            };
        // The first arm that fits. A request whose effect has come already is acknowledged, since it may be repeated
        // after a takeover; one to go back to a checkpoint is refused then.
        let answer = match self.jobs.get(job) {
            None => Err(no_such_job(job)),
            Some(Entry::Running { .. }) if is_plain_retry => {
                self.out.effect(Effect::AnswerRetried { job, reply });
                return;
            }
            // It is being read again anyway, as a retry would do.
            Some(Entry::Rebuilding(_)) if is_plain_retry => Ok(()),
            Some(Entry::Ended(ended))
                if !is_retry && ended.result().status() == pb::JobStatus::Canceled =>
            {
                Ok(())
            }
            Some(Entry::Quarantined(_)) if self.is_suspended() => Err(suspended()),
            Some(Entry::Quarantined(known)) if known.is_busy() => Err(is_written_about(job)),
            Some(Entry::Quarantined(known)) if known.has_ended() && is_retry => Err(
                GatewayError::Conflict(format!("job {job}: {}", known.reason())),
            ),
            Some(Entry::Quarantined(known)) => {
                let has_ended = known.has_ended();
                self.set_busy(job, true);
                match resolution {
                    Resolution::Delete if has_ended => {
                        let effect = Effect::DeleteUnreadableResult { job, reply };
                        self.out.effect(effect);
                    }
                    Resolution::Delete => self.end_quarantined(job, Some(reply)),
                    Resolution::Retry { from_checkpoint } => {
                        self.out.effect(Effect::ReadQuarantined {
                            job,
                            from_checkpoint,
                            reply,
                        });
                    }
                }
                return;
            }
            Some(_) => Err(GatewayError::Conflict(format!(
                "job {job} is not quarantined"
            ))),
        };
        self.out.acknowledge(reply, answer);
    }

    /// The job was read again: removes the quarantine from its record.
    pub(super) fn on_quarantined_read(
        &mut self,
        job: JobId,
        found: Reread,
        from_checkpoint: Option<u64>,
        reply: R::To<pb::Ack>,
    ) {
        let judged = match found {
            Ok(RecoveredJob::Unavailable { reason, .. }) => {
                self.set_busy(job, false);
                let text = format!("the records of job {job} can't be read at present: {reason}");
                let refusal = GatewayError::NotYet(text);
                return self.out.acknowledge(reply, Err(refusal));
            }
            Ok(found) => self.judge(found, true),
            Err(failure) => {
                self.set_busy(job, false);
                return self.out.acknowledge(reply, Err(failure.into()));
            }
        };
        let known = match self.jobs.get(job) {
            Some(Entry::Quarantined(known)) => Some(known),
            _ => None,
        };
        match judged {
            Ok(mut to_retry) => {
                let epoch = self.term.epoch.get();
                let mut retried = event(pb::JobEventKind::Retry, epoch, self.now.wall_ms);
                if let Some(number) = from_checkpoint {
                    retried.text = format!(
                        "from checkpoint {number}: what it has made visible since then may appear twice"
                    );
                }
                let quarantined = known.map(|known| known.quarantine_event());
                let events = &mut to_retry.state.events;
                events.extend(quarantined.into_iter().chain([retried]));
                self.out.effect(Effect::RemoveQuarantine {
                    job,
                    to_retry,
                    from_checkpoint,
                    reply,
                });
            }
            Err(mut found) => {
                let same = known.filter(|known| known.kind() == found.kind());
                if let Some(before) = same {
                    found.lasts_since(before.since_ms());
                }
                let text = format!("job {job} stays quarantined: {}", found.reason());
                self.quarantine(job, *found);
                self.out
                    .acknowledge(reply, Err(GatewayError::Conflict(text)));
            }
        }
    }

    pub(super) fn on_quarantine_removed(
        &mut self,
        job: JobId,
        (to_retry, goes_back): (JobToRetry, bool),
        written: Result<(), PersistError>,
        reply: R::To<pb::Ack>,
    ) {
        let written = match is_planted(Fault::LedWithoutWrite) {
            true => Ok(()),
            false => written,
        };
        let answer = match written {
            Ok(()) => {
                self.out.log(LogLine::LedAgain { job });
                self.job_master_failures.forget(job);
                self.start_job_master(job, to_retry.graph, to_retry.state, true);
                Ok(())
            }
            Err(error) => {
                self.set_busy(job, false);
                Err(match error {
                    PersistError::TermOver => GatewayError::Unknown(error.to_string()),
                    PersistError::NoBlobs(_) => GatewayError::StoreRefused(error.to_string()),
                    // Nothing was written.
                    PersistError::Refused(reason) if goes_back => GatewayError::Conflict(reason),
                    PersistError::TooLarge { .. } | PersistError::Refused(_) => {
                        GatewayError::Internal(error.to_string())
                    }
                })
            }
        };
        self.out.acknowledge(reply, answer);
    }

    /// An ended job whose result can't be read is forgotten.
    pub(super) fn on_unreadable_result_deleted(
        &mut self,
        job: JobId,
        deleted: Result<(), JobStoreError>,
        reply: R::To<pb::Ack>,
    ) {
        self.set_busy(job, false);
        if deleted.is_ok() {
            self.jobs.forget(job);
        }
        let answer = deleted.map_err(GatewayError::from);
        self.out.acknowledge(reply, answer);
    }
}
