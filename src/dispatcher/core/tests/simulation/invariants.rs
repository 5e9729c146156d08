//! What holds after each step, and what each answer promises.

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::world::{Asked, Reached, Ticket, Tickets, World};
use crate::core::{Described, Effect};

/// A suspended term decides nothing new: it takes no request that changes something, and forgets nothing.
pub(super) fn check_suspended(effects: &[Effect<Tickets>], is_asked: bool) {
    for effect in effects {
        let decides = match effect {
            Effect::WriteSubmission { .. }
            | Effect::CancelByJobMaster { .. }
            | Effect::StopByJobMaster { .. }
            | Effect::ReadQuarantined { .. }
            | Effect::DeleteUnreadableResult { .. }
            | Effect::DeleteResults { .. }
            | Effect::DropDescriptions { .. }
            | Effect::NoteRetention { .. } => true,
            Effect::WriteResult { .. } => is_asked,
            _ => false,
        };
        assert!(!decides, "decided while suspended: {effect:?}");
    }
}

impl World {
    /// Whether the store says that the job ends, or has ended, as CANCELED.
    fn is_canceled(&self, job: JobId) -> bool {
        let state = self.store.states.get(&job);
        let result = self.store.results.get(&job);
        let wanted = state.is_some_and(|it| it.value.wanted() == pb::WantedStatus::Canceled);
        wanted || result.is_some_and(|it| it.value.status() == pb::JobStatus::Canceled)
    }

    /// Checks the store and the JobMasters.
    pub(super) fn check(&self) {
        for (job, run) in &self.runs {
            let graph = self.store.graphs.contains_key(job);
            let state = self.store.states.contains_key(job);
            let result = self.store.results.get(job);
            assert_eq!(graph, state, "{job} has one record alone");
            assert_ne!(
                state,
                result.is_some(),
                "{job} is lost, or runs and has ended"
            );
            if run.is_cancel_acknowledged {
                assert!(self.is_canceled(*job), "the cancellation of {job} is lost");
            }
            if let Some(result) = result {
                let is_clean = !result.value.dirty;
                assert!(!is_clean || run.is_cleaned_up, "{job} is clean too early");
            }
        }
        for (job, job_master) in &self.job_masters {
            let runs = self.store.has_begun(*job);
            assert!(job_master.has_ended || runs, "{job} runs without records");
        }
    }

    /// Checks an effect against the store and the JobMasters.
    pub(super) fn check_effect(&self, effect: &Effect<Tickets>) {
        let has_job_master = |job: JobId| {
            let has = self.job_masters.contains_key(&job);
            assert!(has, "{job} has no JobMaster to ask");
        };
        let described = |(job, described): &(JobId, Described)| {
            if matches!(described, Described::ByJobMaster) {
                has_job_master(*job);
            }
        };
        match effect {
            Effect::StartJobMaster {
                job, graph, state, ..
            } => {
                assert!(
                    !self.job_masters.contains_key(job),
                    "{job} has a JobMaster already"
                );
                assert!(
                    self.store.has_begun(*job),
                    "a JobMaster of {job}, which is not in the store"
                );
                assert!(
                    !self.store.results.contains_key(job),
                    "{job} has a result and runs again"
                );
                assert!(state.quarantine.is_none(), "{job} is quarantined and runs");
                assert_eq!(**graph, self.store.graphs[job].value, "the graph of {job}");
                assert_eq!(**state, self.store.states[job].value, "the state of {job}");
            }
            Effect::ReleaseJobMaster { job } => {
                let has_ended = self.store.results.contains_key(job);
                assert!(has_ended, "{job} is released without a result");
            }
            Effect::CancelByJobMaster { job, .. }
            | Effect::StopByJobMaster { job, .. }
            | Effect::AnswerRetried { job, .. }
            | Effect::AnswerJobMaster {
                answer: Ok(job), ..
            } => has_job_master(*job),
            Effect::AnswerJobMasters { jobs, .. } => {
                jobs.iter().flatten().copied().for_each(has_job_master);
            }
            Effect::Describe { described: it, .. } => it.iter().for_each(described),
            Effect::List { jobs, .. } => jobs.iter().for_each(described),
            Effect::CleanUp { job, remove } => self.check_cleanup(*job, remove),
            Effect::DeleteResults { jobs, leftovers } => {
                let named: Vec<JobId> = leftovers.iter().map(|(job, _)| *job).collect();
                assert_eq!(named, *jobs, "what a job left is not checked again");
                let leftovers = leftovers.iter();
                leftovers.for_each(|(job, remove)| self.check_cleanup(*job, remove));
            }
            _ => {}
        }
    }

    /// A cleanup concerns the files of this run.
    fn check_cleanup(&self, job: JobId, remove: &pb::Cleanup) {
        // A term may not know that it has removed the result.
        if let Some(run) = self.runs.get(&job) {
            let is_unknown = run.was_damaged && remove.run.is_empty();
            assert!(is_unknown || remove.run == run.name, "another run of {job}");
        }
    }

    /// Whether the job's result is removed, and the core has not heard of it.
    fn is_being_forgotten(&self, job: JobId) -> bool {
        let removes = |effect: &Effect<Tickets>| match effect {
            Effect::DeleteResults { jobs, .. } => jobs.contains(&job),
            Effect::DeleteUnreadableResult { job: removed, .. } => *removed == job,
            _ => false,
        };
        if self.removed.contains_key(&job) {
            return true;
        }
        let mut applied = self.pending.iter().filter(|it| it.is_applied);
        applied.any(|it| removes(&it.effect))
    }

    /// Checks the answer to a submission.
    pub(super) fn check_submission(
        &mut self,
        job: JobId,
        token: u8,
        answer: GatewayResult<pb::SubmitJobResponse>,
    ) {
        // A deposed term may not know that it has removed the result.
        let is_forgotten = self.is_fenced && self.forgotten.contains(&job);
        if is_forgotten || self.is_being_forgotten(job) {
            return;
        }
        let run = self.runs.get_mut(&job);
        match answer {
            Ok(response) => {
                let run = run.expect("an acknowledged job is stored");
                assert_eq!(run.token, token, "{job} is another job");
                let before = run.acknowledged_in.replace(self.epoch);
                if response.repeated {
                    self.reach(Reached::Repeated);
                    if before.is_some_and(|epoch| epoch < self.epoch) {
                        self.reach(Reached::RepeatedAfterTakeover);
                    }
                } else {
                    assert_eq!(before, None, "{job} is accepted twice");
                }
            }
            Err(GatewayError::Conflict(_)) => {
                let run = run.expect("a conflict with a stored job");
                assert_ne!(run.token, token, "{job} is in conflict with itself");
                self.reach(Reached::Conflict);
            }
            Err(GatewayError::Incomparable(_)) => {
                assert!(run.is_some_and(|run| run.was_damaged), "{job} is readable");
            }
            Err(error @ (GatewayError::Invalid(_) | GatewayError::Outdated { .. })) => {
                assert!(run.is_none(), "{job} is stored: {error}");
                self.reach(Reached::Denied);
            }
            Err(GatewayError::NotYet(_) | GatewayError::StoreRefused(_)) => {}
            Err(GatewayError::Unknown(_)) => assert!(self.is_fenced),
            Err(error) => panic!("{job}: {error:?}"),
        }
    }

    /// Takes the answer to a cancellation, a stop, a retry or a delete.
    pub(super) fn acknowledge(&mut self, reply: Ticket, answer: GatewayResult<()>) {
        let asked = self.answered(reply);
        let (Asked::Cancel(job) | Asked::Stop(job) | Asked::Retry(job) | Asked::Delete(job)) =
            asked
        else {
            panic!("the answer to {asked:?}");
        };
        match answer {
            Err(GatewayError::NotFound(_)) => {
                assert!(!self.store.has(job), "{job} is denied");
                self.reach(Reached::Denied);
                return;
            }
            Err(_) => return,
            Ok(()) => {}
        }
        let is_gone = !self.store.has(job) && self.forgotten.contains(&job);
        match asked {
            Asked::Cancel(_) => {
                assert!(is_gone || self.is_canceled(job), "{job} is not canceled");
                if let Some(run) = self.runs.get_mut(&job) {
                    run.is_cancel_acknowledged = true;
                }
                if self.store.results.contains_key(&job) {
                    self.reach(Reached::CanceledWithoutJobMaster);
                }
            }
            Asked::Delete(_) => {
                let is_canceled = is_gone || self.is_canceled(job);
                let has_ended = !self.store.has_begun(job);
                assert!(is_canceled && has_ended, "{job} is not deleted");
                self.reach(Reached::Deleted);
            }
            Asked::Stop(_) => self.reach(Reached::Stopped),
            _ => {}
        }
    }

    /// Takes the answer to a description.
    pub(super) fn described<T>(&mut self, reply: Ticket, answer: &GatewayResult<T>) {
        let asked = self.answered(reply);
        if let (Asked::Describe(job), Err(GatewayError::NotFound(_))) = (asked, answer) {
            assert!(!self.store.has(job), "{job} is denied");
            self.reach(Reached::Denied);
        }
    }
}
