//! Properties of a TaskExecutor's core under messages of several terms and registrations in any order: the steps
//! and their mixture. The invariants are in [`super::core_world`].

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tanist_ha::election::{Epoch, LeaderInformation, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::calls::Outcome;
use super::checkpoint_calls::Deed;
use super::core_world::{World, id, leaders_sender, scope, shown};
use crate::core::*;
use crate::launcher::TaskStatus;
use crate::tests::testing::{VERTEX, graph};

const SLOTS: u32 = 2;

/// An event for a TaskExecutor. Senders are chosen from all that were ever valid.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Lead {
        epoch: u64,
    },
    /// The store names no leader.
    NobodyLeads,
    /// A leader announces itself.
    Announce {
        epoch: u64,
    },
    /// The store answers the read in flight, if there is one: the job has ended, or has this generation;
    /// `None`: no answer.
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
    /// A deployment of an isolated job, for which the store has this generation.
    SubmitIsolated {
        sender: usize,
        job: u128,
        subtask: u32,
        generation: u64,
        allocation: u128,
        stored: u64,
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
    /// A heartbeat of the ResourceManager.
    Heartbeat {
        sender: usize,
        draining: bool,
        releasing: bool,
    },
    Stop,
    /// An operator of a running task asks its coordinator.
    AskCoordinator {
        which: usize,
    },
    /// The call with such a request ends, in the present run or the one before.
    EndRequest {
        which: usize,
        is_old: bool,
        outcome: Outcome,
    },
    EndOffer {
        job: u128,
        accepts: bool,
        outcome: Outcome,
    },
    EndReport {
        job: u128,
        outcome: Outcome,
    },
    /// A running task does something for the number that is so far above its highest.
    TakePart {
        which: usize,
        further: u64,
        deed: Deed,
    },
    /// The write of what a task has saved ends.
    EndWrite {
        which: usize,
        succeeds: bool,
    },
    /// A JobMaster aborts a checkpoint.
    AbortCheckpoint {
        sender: usize,
        job: u128,
        subtask: u32,
        generation: u64,
        number: u64,
    },
    EndCheckpointReport {
        which: usize,
        outcome: Outcome,
    },
    /// A leader calls and announces itself while the store is silent.
    Believe {
        epoch: u64,
    },
    /// The store shows no such term.
    Contradict,
    /// The core learns what this process accepts.
    TermChanged,
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Answered),
        2 => Just(Outcome::NotYet),
        1 => Just(Outcome::Outdated),
        1 => Just(Outcome::Invalid),
    ]
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
        1 => (sender.clone(), job.clone(), proptest::bool::weighted(0.3))
            .prop_map(|(sender, job, ended)| Step::Disconnect { sender, job, ended }),
        2 => (0usize..4).prop_map(|which| Step::End { which }),
        1 => (1u64..100).prop_map(|seconds| Step::Wait { seconds }),
        2 => (sender.clone(), job.clone(), 0u32..2, 0u64..5, 1u128..6, 0u64..5).prop_map(
            |(sender, job, subtask, generation, allocation, stored)| {
                Step::SubmitIsolated { sender, job, subtask, generation, allocation, stored }
            }
        ),
        14 => checkpoints(sender.clone(), job.clone()),
        14 => others(sender, job),
    ];
    // Seldom, since almost nothing happens after it.
    let step = prop_oneof![120 => step, 1 => Just(Step::Stop)];
    proptest::collection::vec(step, 0..120)
}

fn checkpoints(
    sender: impl Strategy<Value = usize>,
    job: impl Strategy<Value = u128>,
) -> impl Strategy<Value = Step> {
    let deed = prop_oneof![
        Just(Deed::Block),
        Just(Deed::SaveLittle),
        Just(Deed::SaveMuch),
        Just(Deed::Decline),
        Just(Deed::Abort),
    ];
    prop_oneof![
        6 => (0usize..4, 0u64..3, deed)
            .prop_map(|(which, further, deed)| Step::TakePart { which, further, deed }),
        3 => (0usize..3, proptest::bool::weighted(0.8))
            .prop_map(|(which, succeeds)| Step::EndWrite { which, succeeds }),
        1 => (sender, job, 0u32..2, 0u64..5, 1u64..8).prop_map(
            |(sender, job, subtask, generation, number)| {
                Step::AbortCheckpoint { sender, job, subtask, generation, number }
            }
        ),
        3 => (0usize..4, outcome())
            .prop_map(|(which, outcome)| Step::EndCheckpointReport { which, outcome }),
    ]
}

fn others(
    sender: impl Strategy<Value = usize>,
    job: impl Strategy<Value = u128> + Clone,
) -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (sender, any::<bool>(), any::<bool>()).prop_map(
            |(sender, draining, releasing)| Step::Heartbeat { sender, draining, releasing }
        ),
        4 => (0usize..4).prop_map(|which| Step::AskCoordinator { which }),
        4 => (0usize..4, proptest::bool::weighted(0.2), outcome())
            .prop_map(|(which, is_old, outcome)| Step::EndRequest { which, is_old, outcome }),
        4 => (job.clone(), proptest::bool::weighted(0.7), outcome())
            .prop_map(|(job, accepts, outcome)| Step::EndOffer { job, accepts, outcome }),
        4 => (job, outcome()).prop_map(|(job, outcome)| Step::EndReport { job, outcome }),
        1 => (1u64..6).prop_map(|epoch| Step::Believe { epoch }),
        2 => Just(Step::Contradict),
        3 => Just(Step::TermChanged),
    ]
}

/// A deployment of one task.
fn submission(
    sender: Option<pb::Sender>,
    job: u128,
    subtask: u32,
    generation: u64,
    allocation: u128,
) -> pb::SubmitTasksRequest {
    pb::SubmitTasksRequest {
        sender,
        job: scope(job),
        graph: Some(graph()),
        tasks: vec![pb::TaskDeployment {
            vertex_id: VERTEX.to_owned(),
            subtask,
            generation,
            allocation_id: id(allocation),
            takes_checkpoints: true,
            ..pb::TaskDeployment::default()
        }],
        graph_reference: None,
        stopping: false,
        stop_first: None,
    }
}

impl World {
    pub(super) fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
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
                    leader: Some(leader),
                    ..shown(epoch)
                };
                self.core.handle(now, Event::LeaderShown(view));
                self.epoch = self.epoch.max(epoch);
            }
            Step::NobodyLeads => {
                let shown = Event::LeaderShown(LeaderView::default());
                self.core.handle(now, shown);
            }
            Step::Announce { epoch } => {
                let request = pb::AnnounceLeaderRequest {
                    sender: Some(leaders_sender(epoch)),
                    leader_rpc_address: format!("jm{epoch}:1"),
                    process: "jm".to_owned(),
                    jobs: Vec::new(),
                };
                let answer = self.core.announce_leader(now, &request);
                prop_assert_eq!(answer.is_ok(), epoch == self.epoch, "{:?}", answer);
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
                if self.core.is_draining() {
                    prop_assert_eq!(&before, &after, "it is drained");
                }
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
                let request = submission(sender.clone(), job, subtask, generation, allocation);
                let answer = self.core.submit(now, request);
                self.check_heard(sender.as_ref(), &answer)?;
            }
            Step::SubmitIsolated {
                sender,
                job,
                subtask,
                generation,
                allocation,
                stored,
            } => {
                let sender = self.sender(sender);
                let mut request = submission(sender.clone(), job, subtask, generation, allocation);
                request.stop_first = Some(pb::StopFirst {
                    timeout_ms: 30_000,
                    cancellation_ms: 10_000,
                });
                self.submit_isolated(sender.as_ref(), JobId::from_bits(job), request, stored)?;
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
                    self.cancelled_generations(job, subtask, generation);
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
                let changed = Event::TaskChanged {
                    task,
                    status: TaskStatus::Canceled,
                    metrics: None,
                };
                self.core.handle(now, changed);
            }
            Step::End { .. } => {}
            Step::Wait { seconds } => {
                self.now += Duration::from_secs(seconds);
                self.core.woke_up(self.now);
                self.core.handle(self.now, Event::DeadlineReached);
            }
            Step::Heartbeat {
                sender,
                draining,
                releasing,
            } => {
                let sender = self.sender(sender);
                let request = pb::HeartbeatFromResourceManagerRequest {
                    sender: sender.clone(),
                    draining,
                    releasing,
                };
                let answer = self.core.heartbeat_from_resource_manager(now, &request, 0);
                self.check_heard(sender.as_ref(), &answer)?;
            }
            Step::Stop => self.core.handle(now, Event::Stopped),
            Step::AskCoordinator { which } => self.ask_coordinator(which),
            Step::EndRequest {
                which,
                is_old,
                outcome,
            } => self.end_request(which, is_old, outcome),
            Step::EndOffer {
                job,
                accepts,
                outcome,
            } => self.end_offer(job, accepts, outcome),
            Step::EndReport { job, outcome } => self.end_report(job, outcome),
            Step::TakePart {
                which,
                further,
                deed,
            } => self.take_part(which, further, deed),
            Step::EndWrite { which, succeeds } => self.end_write(which, succeeds),
            Step::AbortCheckpoint {
                sender,
                job,
                subtask,
                generation,
                number,
            } => {
                let sender = self.sender(sender);
                self.abort_number(sender, job, (subtask, generation), number)?;
            }
            Step::EndCheckpointReport { which, outcome } => {
                self.end_checkpoint_report(which, outcome);
            }
            Step::Believe { epoch } => self.step(&Step::Announce { epoch })?,
            Step::Contradict => self.contradict(),
            Step::TermChanged => {
                let proof = self.proof();
                if self.core.term_changed(&proof) {
                    let is_registered = self.core.resource_manager.is_registered();
                    prop_assert!(!is_registered, "the leader was dropped");
                }
            }
        }
        let status = self.core.after_event(self.now, self.at(), 0);
        self.run_effects()?;
        let mut running = self.running.iter();
        let is_isolated = running.any(|(task, _)| self.isolated.contains(&task.job));
        let is_isolated = is_isolated && !self.core.lifecycle.is_stopping();
        prop_assert_eq!(status.isolated_until.is_some(), is_isolated);
        self.core.arm_deadline(self.now, self.at());
        self.check_epoch()
    }
}

proptest! {
    #[test]
    fn whatever_comes_in_whatever_order_slots_have_one_holder_and_generations_start_once(
        is_running in any::<bool>(),
        steps in steps(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut world = match is_running {
                true => World::running(),
                false => World::new(),
            };
            for step in std::iter::once(&Step::Lead { epoch: 1 }).chain(&steps) {
                if let Step::Believe { epoch } = *step {
                    world.believe(epoch).await;
                }
                world.step(step)?;
                world.check()?;
            }
            Ok::<(), TestCaseError>(())
        })?;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_waited_until_its_registration_was_given_up_starts_nothing() {
    let mut world = World::new();
    let submit = |generation| Step::Submit {
        sender: 0,
        job: 1,
        subtask: 0,
        generation,
        allocation: 1,
    };
    let steps = [
        Step::Lead { epoch: 1 },
        Step::Register {
            at: None,
            succeeds: true,
        },
        Step::RequestSlot {
            sender: 0,
            slot: 0,
            job: 1,
            allocation: 1,
        },
        Step::Register {
            at: Some(1),
            succeeds: true,
        },
        submit(1),
    ];
    for step in &steps {
        world.step(step).expect("it holds");
    }
    assert_eq!(world.running.len(), 1);
    // Its JobMaster is silent, and the next registration is not sent yet.
    world.step(&Step::Wait { seconds: 99 }).expect("it holds");
    world.step(&submit(2)).expect("it is refused");
    assert_eq!(world.running.len(), 1, "{:?}", world.running);
}
