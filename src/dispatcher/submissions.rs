//! How the Dispatcher's loop handles submissions: admit, persist, start, acknowledge, in this order.

use tanist_gateway::GatewayError;
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::NotLeading;
use tanist_ha::failpoint::failpoint;
use tanist_proto::v1 as pb;
use tracing::info;

use super::actor::{DispatcherActor, Event};
use super::core::{self, Admission, Entry, Known, Submission, accepted};
use super::handle::Reply;
use super::job_store::JobStoreError;

/// Error for a request that needs a decision while the term is suspended.
pub(super) fn suspended() -> GatewayError {
    GatewayError::NotYet(format!("{}: try again", NotLeading::Suspended))
}

impl DispatcherActor {
    /// Whether the term must not decide anything now.
    pub(super) fn is_suspended(&self) -> bool {
        self.context.session.check() == Err(NotLeading::Suspended)
    }

    pub(super) fn submit(&mut self, submission: Submission, reply: Reply<pb::SubmitJobResponse>) {
        let known = match self.jobs.get(&submission.job) {
            None => Known::Nothing,
            Some(Entry::Persisting { key, .. }) => Known::Persisting(key),
            Some(Entry::Running { key, .. } | Entry::Rebuilding { key, .. }) => {
                Known::Accepted(key)
            }
            Some(Entry::Ended { key, result, .. }) => Known::Ended {
                key,
                dirty: result.dirty,
            },
            Some(Entry::Quarantined { job }) => Known::Accepted(&job.key),
        };
        let job = submission.job;
        // Only a newer version can tell whether it is the same submission.
        if let Some(Entry::Quarantined { job: quarantined }) = self.jobs.get(&job)
            && quarantined.quarantine.kind() == pb::QuarantineKind::TooNew
        {
            let text = format!("job {job}: {}", quarantined.quarantine.reason);
            let _ = reply.send(Err(GatewayError::NotYet(text)));
            return;
        }
        // Whether it is the same is known once the job's records are read.
        if let Some(Entry::Rebuilding { key, why, .. }) = self.jobs.get(&job)
            && key.is_unknown()
        {
            let _ = reply.send(Err(GatewayError::NotYet(format!("job {job}: {why}"))));
            return;
        }
        match core::admit(&submission, known, &self.clock.times()) {
            Err(refusal) => {
                let _ = reply.send(Err(refusal));
            }
            Ok(Admission::Repeated) => {
                let _ = reply.send(Ok(accepted(job, true)));
            }
            Ok(Admission::RepeatedWhenClean) => self.wait_for_cleanup(job, reply),
            Ok(Admission::Join) => {
                if let Some(Entry::Persisting { waiting, .. }) = self.jobs.get_mut(&job) {
                    waiting.push(reply);
                }
            }
            Ok(Admission::Undecided) => {
                if let Some(Entry::Persisting { others, .. }) = self.jobs.get_mut(&job) {
                    others.push((submission, reply));
                }
            }
            // A suspended term decides nothing new. The client sends it again, here or to a successor.
            Ok(Admission::Accept) if self.is_suspended() => {
                let _ = reply.send(Err(suspended()));
            }
            Ok(Admission::Accept) => {
                let key = submission.key.clone();
                self.jobs.insert(
                    job,
                    Entry::Persisting {
                        key,
                        name: submission.graph.name.clone(),
                        waiting: vec![reply],
                        others: Vec::new(),
                    },
                );
                self.persist(submission);
            }
        }
    }

    fn persist(&mut self, submission: Submission) {
        let store = self.context.store.clone();
        self.submissions += 1;
        let mut state = core::first_state(&submission, wall_clock_ms());
        // Not a clock: the clocks of two leaders may differ by more than the time between two submissions.
        state.submission = Some(pb::SubmissionNumber {
            epoch: self.context.session.epoch().get(),
            number: self.submissions,
        });
        self.tasks.spawn(async move {
            failpoint("submit.persisting").await;
            let result = store.put_submission(&submission.graph, &state).await;
            if result.is_ok() {
                failpoint("submit.persisted").await;
            }
            Event::Persisted {
                submission: Box::new(submission),
                state: Box::new(state),
                result,
            }
        });
    }

    pub(super) fn on_persisted(
        &mut self,
        submission: Submission,
        state: pb::JobState,
        result: Result<(), JobStoreError>,
    ) {
        let job = submission.job;
        let Some(Entry::Persisting {
            waiting, others, ..
        }) = self.jobs.remove(&job)
        else {
            return;
        };
        match result {
            Ok(()) => {
                info!(%job, name = submission.graph.name, "job submitted");
                self.launch(job, submission.graph, state, false);
                for (place, reply) in waiting.into_iter().enumerate() {
                    let _ = reply.send(Ok(accepted(job, place > 0)));
                }
            }
            Err(failure) => {
                let refusal = GatewayError::from(failure);
                for reply in waiting {
                    let _ = reply.send(Err(refusal.clone()));
                }
            }
        }
        for (submission, reply) in others {
            self.submit(submission, reply);
        }
    }
}
