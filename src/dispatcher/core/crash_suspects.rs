//! Crash suspects: jobs whose recovery is delayed because earlier terms died in recovery
//! (`docs/adr/0012-crash-loop-recovery.md`).
//!
//! Only the state of such a job is read, and no JobMaster is started before its turn. A job that is or was
//! cancelled meanwhile ends without being led: its result CANCELED replaces its records in one transaction,
//! then the request is acknowledged. After a crash before the transaction the job waits again; after it the job
//! has ended. If its turn comes while the result is being written, the job is skipped; if that write fails, it
//! is started then.
//!
//! The job's record puts a cancellation and a finish in order. If the record says that all tasks have finished,
//! an earlier term may have made their output visible: such a job ends only at its turn, by the decision of its
//! JobMaster.

use tanist_gateway::GatewayError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{
    DispatcherCore, Effect, Entry, LogLine, Quarantined, ReadNumber, Rebuilding, Replies, Reread,
    no_job_master,
};

impl<R: Replies> DispatcherCore<R> {
    /// Delays the job, unless its cancellation was acknowledged before.
    pub(super) fn suspect(&mut self, job: JobId, mut state: pb::JobState) {
        let is_canceled = state.wanted() == pb::WantedStatus::Canceled;
        let reason = "its turn to be recovered has not come".to_owned();
        let quarantine = self.found(pb::QuarantineKind::Unspecified, reason);
        let known = Quarantined::of(&mut state, quarantine, None);
        let suspect = Rebuilding::suspect(known, self.last_read.next());
        self.jobs.set(job, Entry::Rebuilding(suspect));
        if is_canceled {
            self.cancel_suspect(job, None);
        }
    }

    /// Ends a job before its turn. Refused for a job whose output may be visible: it can be cancelled at its turn.
    pub(super) fn cancel_suspect(&mut self, job: JobId, reply: Option<R::To<pb::Ack>>) {
        let cancelled = match self.jobs.rebuilding_mut(job) {
            Some(suspect) => suspect.cancel(),
            None => Err(None),
        };
        match cancelled {
            Ok(known) => {
                self.out.log(LogLine::SuspectCancelled { job });
                let epoch = self.term.epoch.get();
                let result = known.canceled_in_wait(job, epoch, self.now.wall_ms);
                self.end_canceled(job, Box::new(result), reply);
            }
            Err(why) => {
                let not_yet = |why| GatewayError::NotYet(format!("job {job}: {why}"));
                let refusal = why.map_or_else(|| no_job_master(job), not_yet);
                self.out.acknowledge_if_asked(reply, Err(refusal));
            }
        }
    }

    /// The result of a job that was cancelled before its turn could not be written.
    pub(super) fn cancel_failed(&mut self, job: JobId) {
        let suspect = self.jobs.rebuilding_mut(job);
        if suspect.is_some_and(|suspect| suspect.cancel_failed()) {
            self.read_waiting_jobs(vec![job], None);
        }
    }

    /// Reads jobs whose turn has come.
    pub(super) fn read_waiting_jobs(&mut self, jobs: Vec<JobId>, reply: Option<R::To<()>>) {
        let number = self.number_read();
        self.out.effect(Effect::ReadWaitingJobs {
            jobs,
            number,
            reply,
        });
    }

    /// Starts the jobs that were read.
    pub(super) fn on_waiting_jobs_read(
        &mut self,
        found: Vec<(JobId, Reread)>,
        number: ReadNumber,
        reply: Option<R::To<()>>,
    ) {
        for (job, found) in found {
            match (found, self.jobs.rebuilding_mut(job)) {
                (Err(failure), _) => self.out.log(LogLine::SuspectNotRead { job, failure }),
                (Ok(found), Some(waiting)) => {
                    if waiting.takes_turn(number) {
                        self.take_up(job, found);
                    }
                }
                // The job has ended.
                (Ok(_), None) => {}
            }
        }
        if let Some(reply) = reply {
            self.out.effect(Effect::AnswerDone { reply });
        }
    }
}
