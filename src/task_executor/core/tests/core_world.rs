//! A TaskExecutor's core and its observed outputs, with invariants for any input:
//!
//! - Messages are accepted only with the highest epoch and the registration of a connection; epochs and
//!   registrations only grow.
//! - A slot has one holder and an allocation one slot; a task runs only in a slot that its job holds.
//! - A generation starts once, never after its cancellation, and generations that the store shows as superseded are
//!   cancelled.
//!
//! It causes none of the events that it checks: [`super::core_tests`] does.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tanist_gateway::fencing::{Contradicted, HighestEpoch, OwnStore, Proof, sender_of};
use tanist_gateway::registration::Registered;
use tanist_gateway::{GatewayError, GatewayResult, NoAnswer, StoredGenerations, StoredJobs};
use tanist_ha::clock::{Moment, Uptime};
use tanist_ha::election::{ClusterIncarnation, Epoch, ProcessId, TermHolder};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::{Generation, JobId};
use tanist_proto::v1 as pb;
use tokio::sync::watch;

use super::calls::Calls;
use super::checkpoint_calls::{CheckpointCalls, with_place};
use super::core_tests::Step;
use crate::core::{Effect, Event, Target, TaskExecutorCore, TaskKey};
use crate::tests::testing::description;

fn holder(epoch: u64) -> TermHolder {
    TermHolder {
        process: ProcessId::new(format!("jm{epoch}")),
        start: "1".to_owned(),
    }
}

/// The sender that the leader of an epoch uses.
pub(super) fn leaders_sender(epoch: u64) -> pb::Sender {
    let incarnation = ClusterIncarnation::new("c1");
    sender_of(&incarnation, Epoch::new(epoch), &holder(epoch), None)
}

/// The view of the store in an epoch.
pub(super) fn shown(epoch: u64) -> LeaderView {
    LeaderView {
        incarnation: Some(ClusterIncarnation::new("c1")),
        epoch: Epoch::new(epoch),
        holder: Some(holder(epoch)),
        ..LeaderView::default()
    }
}

/// The core, and its observed outputs.
pub(super) struct World {
    pub(super) now: Uptime,
    pub(super) core: TaskExecutorCore,
    /// The term that the core accepts.
    pub(super) terms: HighestEpoch,
    runs: BTreeMap<Target, u64>,
    /// Every sender that a registration named, the youngest first.
    senders: Vec<pb::Sender>,
    /// The last registration of each connection, unless it was begun again or ended since.
    registrations: BTreeMap<Target, u64>,
    pub(super) running: Vec<(TaskKey, String)>,
    cancelled_tasks: BTreeSet<TaskKey>,
    read: Option<Vec<JobId>>,
    pub(super) calls: Calls,
    pub(super) checkpoints: CheckpointCalls,
    /// Jobs to which an isolated task was deployed.
    pub(super) isolated: BTreeSet<JobId>,
    /// The last provisional term that the store has contradicted.
    contradicted: Option<Contradicted>,
    /// Started executions since the job was last forgotten.
    started: BTreeSet<TaskKey>,
    pub(super) cancelled: BTreeMap<(JobId, u32), u64>,
    pub(super) epoch: u64,
}

impl World {
    pub(super) fn new() -> World {
        let terms = HighestEpoch::default();
        terms.follow(&shown(1)).expect("the first");
        let now = Uptime::START;
        let options = with_place();
        World {
            now,
            core: TaskExecutorCore::new(now, options, description(), terms.clone(), 100),
            terms,
            runs: BTreeMap::new(),
            senders: Vec::new(),
            registrations: BTreeMap::new(),
            running: Vec::new(),
            cancelled_tasks: BTreeSet::new(),
            read: None,
            calls: Calls::default(),
            checkpoints: CheckpointCalls::default(),
            isolated: BTreeSet::new(),
            contradicted: None,
            started: BTreeSet::new(),
            cancelled: BTreeMap::new(),
            epoch: 1,
        }
    }

    /// Registered at both sides, with slot 0 for job 1, in which subtask 0 runs with generation 1. Its youngest sender
    /// is the JobMaster, the next one the ResourceManager.
    pub(super) fn running() -> World {
        let mut world = World::new();
        let register = |at| Step::Register { at, succeeds: true };
        let (sender, slot, job, allocation) = (0, 0, 1, 1);
        let request = Step::RequestSlot {
            sender,
            slot,
            job,
            allocation,
        };
        let submit = Step::Submit {
            sender,
            job,
            subtask: 0,
            generation: 1,
            allocation,
        };
        let lead = Step::Lead { epoch: 1 };
        for step in [lead, register(None), request, register(Some(1)), submit] {
            world.step(&step).expect("it holds");
        }
        assert_eq!(world.running.len(), 1);
        world
    }

    /// The present moment by the clock of isolated jobs.
    pub(super) fn at(&self) -> Moment {
        let elapsed = self.now.saturating_duration_since(Uptime::START);
        Moment::default().after(elapsed)
    }

    /// Checks that the accepted epoch only grows, unless the store has contradicted the provisional one.
    pub(super) fn check_epoch(&mut self) -> Result<(), TestCaseError> {
        let accepted = self.terms.accepted().epoch.get();
        let contradicted = self.proof().contradicted();
        let is_contradicted = contradicted != self.contradicted;
        let before = self.epoch;
        prop_assert!(
            accepted >= before || is_contradicted,
            "the epoch went back from {before} to {accepted}"
        );
        self.contradicted = contradicted;
        self.epoch = accepted;
        Ok(())
    }

    pub(super) fn proof(&self) -> Proof {
        self.terms.subscribe().borrow().clone()
    }

    /// A leader calls while the store does not answer, and its term is accepted provisionally.
    pub(super) async fn believe(&mut self, epoch: u64) {
        let leaders = watch::Sender::new(LeaderView::default());
        let silent = OwnStore::start(leaders, std::future::pending);
        self.terms.proven_by(silent);
        // It is refused if the epoch is too low.
        let _refused_or_not = self.terms.prove(Some(&leaders_sender(epoch))).await;
        self.epoch = self.terms.accepted().epoch.get();
    }

    /// The store answers a read that shows no younger term than it had shown before.
    pub(super) fn contradict(&mut self) {
        let (proof, baseline) = (self.proof(), self.terms.read_baseline());
        let incarnation = ClusterIncarnation::new("c1");
        self.terms.answered(&incarnation, proof.proven(), &baseline);
    }

    /// The sender of a leader that knows the TaskExecutor by this registration.
    pub(super) fn sender(&self, which: usize) -> Option<pb::Sender> {
        let registered = self.senders.get(which)?;
        Some(pb::Sender {
            registration: registered.registration,
            ..leaders_sender(registered.epoch)
        })
    }

    /// Checks that a message without the highest epoch and a connection's registration is refused.
    pub(super) fn check_heard<T>(
        &self,
        sender: Option<&pb::Sender>,
        answer: &GatewayResult<T>,
    ) -> Result<(), TestCaseError> {
        let Some(sender) = sender else { return Ok(()) };
        if sender.epoch > self.epoch {
            prop_assert!(answer.is_err(), "its term was contradicted: {sender:?}");
            return Ok(());
        }
        let is_present = self
            .registrations
            .values()
            .any(|&last| last == sender.registration);
        let is_youngest = sender.epoch >= self.epoch;
        if !(is_present && is_youngest) {
            let is_refused = matches!(answer, Err(GatewayError::Outdated { .. }));
            prop_assert!(is_refused, "an outdated message was taken: {sender:?}");
        }
        Ok(())
    }

    pub(super) fn store_says(
        &mut self,
        epoch: u64,
        generation: Option<u64>,
        ended: bool,
    ) -> Result<(), TestCaseError> {
        let Some(jobs) = self.read.take() else {
            return Ok(());
        };
        let stored_generations = |generation| match ended {
            true => StoredGenerations::Ended,
            false => StoredGenerations::Present(vec![Generation::new(generation)]),
        };
        let stored_jobs = generation.map(|generation| StoredJobs {
            incarnation: ClusterIncarnation::new("c1"),
            epoch: Epoch::new(epoch),
            jobs: jobs
                .iter()
                .map(|&job| (job, stored_generations(generation)))
                .collect(),
        });
        let is_believed = epoch >= self.epoch && !ended;
        let answer = stored_jobs.ok_or_else(|| NoAnswer("a test says so".to_owned()));
        self.core.handle(self.now, Event::GenerationsRead(answer));
        // The holder of the epoch is read before anything from it counts.
        let youngest = self.terms.accepted().epoch.get();
        let followed = self.terms.follow(&shown(youngest));
        prop_assert!(followed.is_ok(), "the store shows the youngest epoch");
        self.run_effects()?;
        let superseded = self.running.iter().filter(|(task, _)| {
            let generation = generation.filter(|_| is_believed);
            jobs.contains(&task.job)
                && generation.is_some_and(|stored| task.execution.generation.get() < stored)
        });
        for (task, _) in superseded {
            prop_assert!(
                self.cancelled_tasks.contains(task),
                "{task:?} continues superseded"
            );
        }
        Ok(())
    }

    /// A deployment of an isolated job, for which the store has this generation.
    pub(super) fn submit_isolated(
        &mut self,
        sender: Option<&pb::Sender>,
        job: JobId,
        request: pb::SubmitTasksRequest,
        stored: u64,
    ) -> Result<(), TestCaseError> {
        let generations = StoredGenerations::Present(vec![Generation::new(stored)]);
        let shown = Ok(StoredJobs {
            incarnation: ClusterIncarnation::new("c1"),
            epoch: self.proof().proven(),
            jobs: BTreeMap::from([(job, generations)]),
        });
        let (now, at) = (self.now, self.at());
        let answer = self.core.submit_confirmed(now, request, at, shown);
        self.check_heard(sender, &answer)?;
        if answer.is_ok() {
            self.isolated.insert(job);
        }
        let earlier = self.running.len();
        self.run_effects()?;
        let (earlier, started) = self.running.split_at(earlier);
        for (task, _) in started {
            let generation = task.execution.generation.get();
            prop_assert_eq!(generation, stored, "the store has another generation");
            let is_same =
                |of: &TaskKey| (of.job, of.execution.subtask) == (task.job, task.execution.subtask);
            let runs_beside = earlier.iter().any(|(of, _)| is_same(of));
            prop_assert!(!runs_beside, "{task:?} runs beside an earlier attempt");
        }
        Ok(())
    }

    pub(super) fn register(
        &mut self,
        at: Option<u128>,
        succeeds: bool,
    ) -> Result<(), TestCaseError> {
        let job = at.map(JobId::from_bits);
        let target = job.map_or(Target::ResourceManager, Target::JobMaster);
        let Some(&run) = self.runs.get(&target) else {
            return Ok(());
        };
        let sender = match job {
            None => self
                .core
                .prepare_resource_manager(run)
                .map(|request| request.sender),
            Some(job) => {
                let request = self.core.prepare_job_master(self.now, job, run, &|_| None);
                if let Ok(request) = &request {
                    self.checkpoints.registered(job, run, request)?;
                }
                request.map(|request| request.sender)
            }
        };
        let Ok(Some(sender)) = sender else {
            return Ok(());
        };
        let last = self
            .senders
            .first()
            .map_or(100, |sender| sender.registration);
        prop_assert!(sender.registration > last, "registrations must grow");
        self.registrations.insert(target, sender.registration);
        self.senders.insert(0, sender);
        if succeeds {
            let success = pb::RegistrationSuccess::default();
            match job {
                None => {
                    let result = Registered::Success(success);
                    let registered = Event::RegisteredAtResourceManager { run, result };
                    self.core.handle(self.now, registered);
                }
                Some(job) => {
                    let result = Registered::Success((success, 1));
                    let registered = Event::RegisteredAtJobMaster { job, run, result };
                    self.core.handle(self.now, registered);
                }
            }
            self.runs.remove(&target);
        }
        Ok(())
    }

    pub(super) fn run_effects(&mut self) -> Result<(), TestCaseError> {
        let is_stopping = self.core.lifecycle.is_stopping();
        for effect in self.core.take_effects() {
            self.calls.record(&effect)?;
            self.record_checkpoints(&effect)?;
            let is_refused_now = is_stopping && is_for_running(&effect);
            prop_assert!(!is_refused_now, "it stops: {effect:?}");
            match effect {
                Effect::Register { target, run, .. } => {
                    self.runs.insert(target, run);
                    self.registrations.remove(&target);
                }
                Effect::StopRegistering(target) => {
                    self.runs.remove(&target);
                    self.registrations.remove(&target);
                }
                Effect::Start(task, start) => {
                    prop_assert!(self.started.insert(task), "{task:?} was started twice");
                    let subtask = (task.job, task.execution.subtask);
                    let cancelled = self.cancelled.get(&subtask).copied().unwrap_or_default();
                    let generation = task.execution.generation.get();
                    prop_assert!(generation > cancelled, "{task:?} was cancelled before");
                    prop_assert!(
                        start.epoch.get() >= self.epoch,
                        "an old term started a task"
                    );
                    self.running.push((task, start.deployment.allocation_id));
                }
                Effect::ReleaseFiles(job) => {
                    let is_running = self.running.iter().any(|(task, _)| task.job == job);
                    prop_assert!(!is_running, "{job} has no files while it runs");
                }
                Effect::Release(job) => {
                    let is_running = self.running.iter().any(|(task, _)| task.job == job);
                    prop_assert!(!is_running, "{job} was released while it runs");
                    self.started.retain(|task| task.job != job);
                    self.cancelled.retain(|(of, _), _| *of != job);
                    self.registrations.remove(&Target::JobMaster(job));
                    self.isolated.remove(&job);
                }
                // No sources are stopped here.
                Effect::Stop(_) => {}
                Effect::ReadGenerations(jobs) => {
                    prop_assert!(self.read.is_none(), "two reads at once");
                    self.read = Some(jobs);
                }
                Effect::Cancel(task) => {
                    self.cancelled_tasks.insert(task);
                }
                Effect::Wake(_)
                | Effect::NotifySlots { .. }
                | Effect::Offer { .. }
                | Effect::Update { .. }
                | Effect::ReleaseTask(_)
                | Effect::AskCoordinator { .. }
                | Effect::AnswerCoordinatorRequest { .. }
                | Effect::Extend(..)
                | Effect::ReportCheckpoints { .. }
                | Effect::WriteSnapshot { .. }
                | Effect::DropSnapshot(_)
                | Effect::ReleaseSnapshot(..)
                | Effect::AbortCheckpoint(..)
                | Effect::DeclineBlocked(_)
                | Effect::TriggerCheckpoint { .. }
                | Effect::Fatal(_) => {}
            }
        }
        Ok(())
    }

    pub(super) fn holders(&self) -> BTreeMap<u32, pb::SlotAllocation> {
        let slots = self.core.slots.report(|_| 0).slots;
        slots
            .into_iter()
            .filter_map(|slot| Some((slot.slot, slot.allocation?)))
            .collect()
    }

    pub(super) fn check(&self) -> Result<(), TestCaseError> {
        self.check_follow_ups()?;
        self.check_checkpoints()?;
        let holders = self.holders();
        let allocations: BTreeSet<&str> = holders
            .values()
            .map(|holder| holder.allocation_id.as_str())
            .collect();
        prop_assert_eq!(
            allocations.len(),
            holders.len(),
            "an allocation holds two slots"
        );
        for (task, allocation) in &self.running {
            let is_held = holders
                .values()
                .any(|of| of.allocation_id == *allocation && of.job_id == task.job.to_string());
            prop_assert!(
                is_held,
                "{task:?} runs in a slot that its job does not hold"
            );
        }
        if let Some(deadline) = self.core.next_deadline(self.now, self.at()) {
            prop_assert!(
                deadline >= self.now || self.core.lifecycle.is_stopping(),
                "a deadline was missed"
            );
        }
        Ok(())
    }
}

/// Whether a TaskExecutor does this only while it does not stop.
fn is_for_running(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Register { .. }
            | Effect::NotifySlots { .. }
            | Effect::Offer { .. }
            | Effect::Update { .. }
            | Effect::AskCoordinator { .. }
            | Effect::ReportCheckpoints { .. }
            | Effect::Start(..)
    )
}

pub(super) fn id(bits: u128) -> String {
    tanist_proto::id::AllocationId::from_bits(bits).to_string()
}

pub(super) fn scope(job: u128) -> Option<pb::JobScope> {
    Some(pb::JobScope {
        job_id: JobId::from_bits(job).to_string(),
        job_incarnation: 1,
    })
}
