//! Submissions: admit, write, start, acknowledge, in this order. If the write fails, all tries of the submission get
//! the error, and the job is unknown again; other submissions under its id are decided then.

use tanist_gateway::GatewayError;
use tanist_proto::v1 as pb;

use super::faults::{Fault, is_planted};
use super::{
    Admission, Command, DispatcherCore, Effect, Entry, Known, LogLine, Persisting, Replies,
    Submission, accepted, admit, first_state, suspended,
};
use crate::JobStoreError;

impl<R: Replies> DispatcherCore<R> {
    pub(super) fn submit(&mut self, submission: Submission, reply: R::To<pb::SubmitJobResponse>) {
        let job = submission.job;
        let entry = self.jobs.get(job);
        let undecidable = match entry {
            // Only a newer version knows whether it is the same submission.
            Some(Entry::Quarantined(known)) if known.kind() == pb::QuarantineKind::TooNew => {
                Some(known.reason())
            }
            // Whether it is the same is known once the job's records are read.
            Some(Entry::Rebuilding(known)) if known.key().is_unknown() => Some(known.why()),
            _ => None,
        };
        if let Some(why) = undecidable {
            let refusal = GatewayError::NotYet(format!("job {job}: {why}"));
            self.out.answer_submission(reply, Err(refusal));
            return;
        }
        let known = entry.map_or(Known::Nothing, Entry::known);
        match admit(&submission, known, &self.now.times) {
            Err(refusal) => self.out.answer_submission(reply, Err(refusal)),
            Ok(Admission::Repeated) => self.out.answer_submission(reply, Ok(accepted(job, true))),
            Ok(Admission::RepeatedWhenClean) => self.wait_for_cleanup(job, reply),
            Ok(Admission::Join) => {
                if let Some(persisting) = self.jobs.persisting_mut(job) {
                    persisting.join(reply);
                }
            }
            Ok(Admission::Undecided) => {
                if let Some(persisting) = self.jobs.persisting_mut(job) {
                    persisting.postpone(submission, reply);
                }
            }
            // A suspended term decides nothing new. The client sends it again, here or to a successor.
            Ok(Admission::Accept)
                if self.is_suspended() && !is_planted(Fault::DecidedWhileSuspended) =>
            {
                self.out.answer_submission(reply, Err(suspended()));
            }
            Ok(Admission::Accept) => {
                let persisting = Persisting::of(&submission, reply);
                self.jobs.set(job, Entry::Persisting(persisting));
                self.write_submission(submission);
            }
        }
    }

    fn write_submission(&mut self, submission: Submission) {
        self.submissions += 1;
        let mut state = first_state(&submission, self.now.wall_ms);
        // Not a clock: the clocks of two leaders may differ by more than the time between two submissions.
        state.submission = Some(pb::SubmissionNumber {
            epoch: self.term.epoch.get(),
            number: self.submissions,
        });
        self.out.effect(Effect::WriteSubmission {
            submission: Box::new(submission),
            state: Box::new(state),
        });
    }

    pub(super) fn on_submission_written(
        &mut self,
        submission: Submission,
        state: Box<pb::JobState>,
        written: Result<(), JobStoreError>,
    ) {
        let job = submission.job;
        let Some(persisting) = self.jobs.take_persisting(job) else {
            return;
        };
        let (waiting, others) = persisting.into_waiting();
        match written {
            Ok(()) => {
                let name = submission.graph.name.clone();
                self.out.log(LogLine::JobSubmitted { job, name });
                self.start_job_master(job, Box::new(submission.graph), state, false);
                for (place, reply) in waiting.into_iter().enumerate() {
                    let is_repeated = place > 0 && !is_planted(Fault::RepeatedAcceptedAsNew);
                    let answer = Ok(accepted(job, is_repeated));
                    self.out.answer_submission(reply, answer);
                }
            }
            Err(failure) => {
                let refusal = match is_planted(Fault::FailedWriteAcknowledged) {
                    true => Ok(accepted(job, false)),
                    false => Err(GatewayError::from(failure)),
                };
                for reply in waiting {
                    self.out.answer_submission(reply, refusal.clone());
                }
            }
        }
        // As commands: where the write has failed, a denial needs the store's confirmation.
        for (submission, reply) in others {
            if is_planted(Fault::WaitingSubmissionForgotten) {
                continue;
            }
            let submission = Box::new(submission);
            self.take_command(Command::Submit { submission, reply });
        }
    }
}
