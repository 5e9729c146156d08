//! Properties of a TaskExecutor's core under messages of several terms and registrations in any order: the steps
//! and their mixture. The invariants are in [`super::core_world`].

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tanist_ha::election::{Epoch, LeaderInformation, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

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
                        region: 0,
                    }],
                    graph_reference: None,
                    stopping: false,
                    stop_first: None,
                };
                let answer = self.core.submit(now, request);
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
        }
        let status = self.core.after_event(self.now, Moment::default(), 0);
        prop_assert!(status.isolated_until.is_none(), "no job is isolated here");
        self.run_effects()?;
        self.core.arm_deadline(self.now, Moment::default());
        let heard = self.terms.accepted().epoch.get();
        prop_assert!(
            heard >= self.epoch,
            "the epoch went back from {} to {heard}",
            self.epoch
        );
        self.epoch = heard;
        Ok(())
    }
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
