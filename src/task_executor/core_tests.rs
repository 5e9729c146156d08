//! Properties of a TaskExecutor's core under messages of several terms and registrations in any order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tanist_ha::clock::Clock;
use tanist_ha::election::{ClusterIncarnation, Epoch, LeaderInformation, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::{Generation, JobId};
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::core::{Core, Effect, Target, TaskKey};
use super::launcher::TaskStatus;
use super::testing::{VERTEX, description, graph};
use super::*;
use crate::gateway::registration::Registered;
use crate::gateway::{GatewayError, GatewayResult, JobStanding, JobStandings, NoAnswer};

const SLOTS: u32 = 2;

/// What happens to a TaskExecutor. Senders are picked from all that were ever valid.
#[derive(Debug, Clone)]
enum Step {
    Lead {
        epoch: u64,
    },
    /// The store names no leader.
    NobodyLeads,
    /// A leader dials.
    Announce {
        epoch: u64,
    },
    /// The store answers the question that is under way, if there is one: of a job that has ended, or with its generation;
    /// `None`: it does not.
    StoreSays {
        epoch: u64,
        generation: Option<u64>,
        ended: bool,
    },
    /// A registration is sent to the ResourceManager or the JobMaster of a job; whether it succeeds.
    Register {
        at: Option<u128>,
        succeeds: bool,
    },
    RequestSlot {
        sender: usize,
        slot: u32,
        job: u128,
        allocation: u128,
    },
    Submit {
        sender: usize,
        job: u128,
        subtask: u32,
        generation: u64,
        allocation: u128,
    },
    Cancel {
        sender: usize,
        job: u128,
        subtask: u32,
        generation: u64,
    },
    Free {
        sender: usize,
        allocation: u128,
    },
    Disconnect {
        sender: usize,
        job: u128,
        ended: bool,
    },
    /// A task that was started ends.
    End {
        which: usize,
    },
    Wait {
        seconds: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Mostly the youngest sender, sometimes any.
    let sender = prop_oneof![3 => 0usize..3, 1 => 0usize..12];
    let job = 1u128..3;
    let allocation = 1u128..6;
    let step = prop_oneof![
        1 => (1u64..6).prop_map(|epoch| Step::Lead { epoch }),
        1 => Just(Step::NobodyLeads),
        1 => (1u64..6).prop_map(|epoch| Step::Announce { epoch }),
        2 => (1u64..6, proptest::option::weighted(0.8, 0u64..5), proptest::bool::weighted(0.1))
            .prop_map(|(epoch, generation, ended)| Step::StoreSays { epoch, generation, ended }),
        4 => (proptest::option::of(job.clone()), proptest::bool::weighted(0.8))
            .prop_map(|(at, succeeds)| Step::Register { at, succeeds }),
        6 => (sender.clone(), 0..SLOTS + 1, job.clone(), allocation.clone()).prop_map(
            |(sender, slot, job, allocation)| Step::RequestSlot { sender, slot, job, allocation }
        ),
        8 => (sender.clone(), job.clone(), 0u32..2, 0u64..5, allocation.clone()).prop_map(
            |(sender, job, subtask, generation, allocation)| {
                Step::Submit { sender, job, subtask, generation, allocation }
            }
        ),
        2 => (sender.clone(), job.clone(), 0u32..2, 0u64..5).prop_map(
            |(sender, job, subtask, generation)| Step::Cancel { sender, job, subtask, generation }
        ),
        1 => (sender.clone(), allocation)
            .prop_map(|(sender, allocation)| Step::Free { sender, allocation }),
        1 => (sender, job, proptest::bool::weighted(0.3))
            .prop_map(|(sender, job, ended)| Step::Disconnect { sender, job, ended }),
        2 => (0usize..4).prop_map(|which| Step::End { which }),
        1 => (1u64..100).prop_map(|seconds| Step::Wait { seconds }),
    ];
    proptest::collection::vec(step, 0..120)
}

/// The core, and what the outside world saw of it.
struct World {
    now: Instant,
    core: Core,
    runs: BTreeMap<Target, u64>,
    /// Every sender that a registration named, the youngest first.
    senders: Vec<pb::Sender>,
    /// The last registration of each connection.
    registrations: BTreeMap<Target, u64>,
    running: Vec<(TaskKey, String)>,
    told_to_end: BTreeSet<TaskKey>,
    asked: Option<Vec<JobId>>,
    /// Since each job was last forgotten.
    started: BTreeSet<TaskKey>,
    cancelled: BTreeMap<(JobId, u32), u64>,
    epoch: u64,
}

impl World {
    fn new() -> World {
        let highest = HighestEpoch::default();
        let cluster = ClusterIncarnation::new("c1");
        highest.observe(&cluster, Epoch::new(1)).expect("the first");
        let now = Instant::now();
        World {
            now,
            core: Core::new(
                now,
                Options::default(),
                description(),
                highest,
                100,
                IsolationGuard::new(Clock::tokio()),
            ),
            runs: BTreeMap::new(),
            senders: Vec::new(),
            registrations: BTreeMap::new(),
            running: Vec::new(),
            told_to_end: BTreeSet::new(),
            asked: None,
            started: BTreeSet::new(),
            cancelled: BTreeMap::new(),
            epoch: 1,
        }
    }

    fn sender(&self, which: usize) -> Option<pb::Sender> {
        self.senders.get(which).cloned()
    }

    /// Nobody who has not the youngest epoch and the last registration of a connection is heard.
    fn check_heard<T>(
        &self,
        sender: Option<&pb::Sender>,
        answer: &GatewayResult<T>,
    ) -> Result<(), TestCaseError> {
        let Some(sender) = sender else { return Ok(()) };
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

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let now = self.now;
        match *step {
            Step::Lead { epoch } => {
                let addresses = BTreeMap::from([("rpc".to_owned(), format!("jm{epoch}:1"))]);
                let leader = LeaderInformation {
                    epoch: Epoch::new(epoch),
                    process: ProcessId::new("jm"),
                    addresses,
                    since_ms: 0,
                };
                let view = LeaderView {
                    incarnation: Some(ClusterIncarnation::new("c1")),
                    epoch: Epoch::new(epoch),
                    leader: Some(leader),
                };
                self.core.leader_changed(now, view);
                self.epoch = self.epoch.max(epoch);
            }
            Step::NobodyLeads => self.core.leader_changed(now, LeaderView::default()),
            Step::Announce { epoch } => {
                let request = pb::AnnounceLeaderRequest {
                    sender: Some(pb::Sender {
                        cluster_incarnation: "c1".to_owned(),
                        epoch,
                        registration: 0,
                    }),
                    leader_rpc_address: format!("jm{epoch}:1"),
                    process: "jm".to_owned(),
                    jobs: Vec::new(),
                };
                let answer = self.core.announce_leader(now, &request);
                prop_assert_eq!(answer.is_ok(), epoch >= self.epoch, "{:?}", answer);
            }
            Step::StoreSays {
                epoch,
                generation,
                ended,
            } => self.store_says(epoch, generation, ended)?,
            Step::Register { at, succeeds } => self.register(at, succeeds)?,
            Step::RequestSlot {
                sender,
                slot,
                job,
                allocation,
            } => {
                let sender = self.sender(sender);
                let request = pb::RequestSlotRequest {
                    sender: sender.clone(),
                    slot,
                    job_id: JobId::from_bits(job).to_string(),
                    allocation_id: id(allocation),
                    profile: None,
                    job_master_address: String::new(),
                };
                let before = self.holders();
                let answer = self.core.request_slot(now, &request);
                self.check_heard(sender.as_ref(), &answer)?;
                let after = self.holders();
                for (slot, holder) in &before {
                    prop_assert_eq!(after.get(slot), Some(holder), "it changed hands");
                }
            }
            Step::Submit {
                sender,
                job,
                subtask,
                generation,
                allocation,
            } => {
                let sender = self.sender(sender);
                let request = pb::SubmitTasksRequest {
                    sender: sender.clone(),
                    job: scope(job),
                    graph: Some(graph()),
                    tasks: vec![pb::TaskDeployment {
                        vertex_id: VERTEX.to_owned(),
                        subtask,
                        generation,
                        allocation_id: id(allocation),
                        inputs: Vec::new(),
                        region: None,
                    }],
                    graph_reference: None,
                    stopping: false,
                    stop_first: None,
                };
                let answer = self.core.submit(now, request, None);
                self.check_heard(sender.as_ref(), &answer)?;
            }
            Step::Cancel {
                sender,
                job,
                subtask,
                generation,
            } => {
                let vertex_id = VERTEX.to_owned();
                let task = pb::TaskCancellation {
                    vertex_id,
                    subtask,
                    up_to_generation: generation,
                };
                let sender = self.sender(sender);
                let (job_scope, tasks) = (scope(job), vec![task]);
                let request = pb::CancelTasksRequest {
                    sender: sender.clone(),
                    job: job_scope,
                    tasks,
                };
                let answer = self.core.cancel_tasks(now, &request);
                self.check_heard(sender.as_ref(), &answer)?;
                if answer.is_ok() {
                    let highest = self
                        .cancelled
                        .entry((JobId::from_bits(job), subtask))
                        .or_default();
                    *highest = (*highest).max(generation);
                }
            }
            Step::Free { sender, allocation } => {
                let sender = self.sender(sender);
                let allocation_ids = vec![id(allocation)];
                let cause = String::new();
                let request = pb::FreeSlotsRequest {
                    sender: sender.clone(),
                    allocation_ids,
                    cause,
                };
                let answer = self.core.free_slots(now, &request);
                self.check_heard(sender.as_ref(), &answer)?;
            }
            Step::Disconnect { sender, job, ended } => {
                let request = pb::DisconnectJobMasterRequest {
                    sender: self.sender(sender),
                    job: scope(job),
                    cause: String::new(),
                    job_ended: ended,
                };
                let _refused_or_not = self.core.disconnect_job_master(now, &request);
            }
            Step::End { which } if which < self.running.len() => {
                let (task, _) = self.running.remove(which);
                self.core
                    .task_changed(now, task, TaskStatus::Canceled, None);
            }
            Step::End { .. } => {}
            Step::Wait { seconds } => {
                self.now += Duration::from_secs(seconds);
                self.core.on_time(self.now);
            }
        }
        self.core.review_doubts(self.now);
        self.run_effects()?;
        let heard = self.core.highest.heard().epoch.get();
        prop_assert!(
            heard >= self.epoch,
            "the epoch went back from {} to {heard}",
            self.epoch
        );
        self.epoch = heard;
        Ok(())
    }

    fn store_says(
        &mut self,
        epoch: u64,
        generation: Option<u64>,
        ended: bool,
    ) -> Result<(), TestCaseError> {
        let Some(jobs) = self.asked.take() else {
            return Ok(());
        };
        let standing = |generation| match ended {
            true => JobStanding::Ended,
            false => JobStanding::Present(vec![Generation::new(generation)]),
        };
        let standings = generation.map(|generation| JobStandings {
            incarnation: ClusterIncarnation::new("c1"),
            epoch: Epoch::new(epoch),
            jobs: jobs
                .iter()
                .map(|&job| (job, standing(generation)))
                .collect(),
        });
        let is_believed = epoch >= self.epoch && !ended;
        let answer = standings.ok_or_else(|| NoAnswer("a test says so".to_owned()));
        self.core.store_answered(self.now, answer);
        self.run_effects()?;
        let superseded = self.running.iter().filter(|(task, _)| {
            let generation = generation.filter(|_| is_believed);
            jobs.contains(&task.job)
                && generation.is_some_and(|stored| task.execution.generation.get() < stored)
        });
        for (task, _) in superseded {
            prop_assert!(
                self.told_to_end.contains(task),
                "{task:?} goes on superseded"
            );
        }
        Ok(())
    }

    fn register(&mut self, at: Option<u128>, succeeds: bool) -> Result<(), TestCaseError> {
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
            Some(job) => self
                .core
                .prepare_job_master(job, run, &|_| None, self.now)
                .map(|request| request.sender),
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
                    self.core
                        .registered_at_resource_manager(self.now, run, result);
                }
                Some(job) => {
                    let result = Registered::Success((success, 1));
                    self.core
                        .registered_at_job_master(self.now, job, run, result);
                }
            }
            self.runs.remove(&target);
        }
        Ok(())
    }

    fn run_effects(&mut self) -> Result<(), TestCaseError> {
        for effect in self.core.take_effects() {
            match effect {
                Effect::Register { target, run, .. } => {
                    self.runs.insert(target, run);
                }
                Effect::StopRegistering(target) => {
                    self.runs.remove(&target);
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
                Effect::Release(job) => {
                    let is_running = self.running.iter().any(|(task, _)| task.job == job);
                    prop_assert!(!is_running, "{job} was released while it runs");
                    self.started.retain(|task| task.job != job);
                    self.cancelled.retain(|(of, _), _| *of != job);
                    self.registrations.remove(&Target::JobMaster(job));
                }
                // No job is stopped here.
                Effect::Stop(_) => {}
                Effect::AskStore(jobs) => {
                    prop_assert!(self.asked.is_none(), "two questions at once");
                    self.asked = Some(jobs);
                }
                Effect::Cancel(task) => {
                    self.told_to_end.insert(task);
                }
                Effect::Wake(_)
                | Effect::NotifySlots { .. }
                | Effect::Offer { .. }
                | Effect::Update { .. }
                | Effect::ReleaseTask(_)
                | Effect::AskCoordinator { .. }
                | Effect::AnswerQuestion { .. }
                | Effect::Extend(..)
                | Effect::Fatal(_) => {}
            }
        }
        Ok(())
    }

    fn holders(&self) -> BTreeMap<u32, pb::SlotAllocation> {
        let slots = self.core.slots.report().slots;
        slots
            .into_iter()
            .filter_map(|slot| Some((slot.slot, slot.allocation?)))
            .collect()
    }

    fn check(&self) -> Result<(), TestCaseError> {
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
        if let Some(deadline) = self.core.next_deadline() {
            prop_assert!(
                deadline >= self.now || self.core.is_stopping,
                "a deadline was missed"
            );
        }
        Ok(())
    }
}

fn id(bits: u128) -> String {
    tanist_proto::id::AllocationId::from_bits(bits).to_string()
}

fn scope(job: u128) -> Option<pb::JobScope> {
    Some(pb::JobScope {
        job_id: JobId::from_bits(job).to_string(),
        job_incarnation: 1,
    })
}

proptest! {
    #[test]
    fn whatever_comes_in_whatever_order_slots_have_one_holder_and_generations_start_once(
        steps in steps(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut world = World::new();
            for step in std::iter::once(&Step::Lead { epoch: 1 }).chain(&steps) {
                world.step(step)?;
                world.check()?;
            }
            Ok::<(), TestCaseError>(())
        })?;
    }
}
