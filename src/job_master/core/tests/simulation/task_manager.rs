//! A TaskManager for the simulation: slots, executions, and the rules by which it refuses outdated requests.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use crate::core::checkpoints::TaskEnd;
use crate::core::execution_graph::execution::is_terminal;
use crate::core::{Connection, Registration};

/// (vertex id, subtask).
pub(super) type TaskKey = (String, u32);

#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) generation: u64,
    pub(super) state: S,
    pub(super) allocation: String,
    /// Its inputs over blocking edges: producer, generation and place.
    pub(super) inputs: Vec<(TaskKey, u64, pb::TaskManagerLocation)>,
    /// The input that it could not read.
    pub(super) unreadable: Option<pb::ExecutionId>,
    /// Whether it failed for a reason that no restart can fix.
    pub(super) unrecoverable: bool,
    /// What its end names for checkpoints.
    pub(super) end: TaskEnd,
}

#[derive(Debug)]
pub(super) struct TaskManager {
    pub(super) id: ResourceId,
    pub(super) incarnation: u32,
    pub(super) registration: u64,
    pub(super) epoch: u64,
    pub(super) slots: Vec<Option<AllocationId>>,
    /// The profile of each allocation's slot.
    pub(super) profiles: BTreeMap<AllocationId, ResourceProfile>,
    pub(super) running: BTreeMap<TaskKey, Vec<Running>>,
    pub(super) highest: BTreeMap<TaskKey, u64>,
    /// Whether it has received the stop of the job.
    pub(super) is_told_to_stop: bool,
    /// Finished executions whose output is kept.
    pub(super) outputs: BTreeSet<(TaskKey, u64)>,
}

impl TaskManager {
    pub(super) fn connection(&self) -> Connection {
        let registration = Registration::new(self.registration);
        Connection {
            task_manager: self.id.clone(),
            registration,
        }
    }

    pub(super) fn location(&self) -> pb::TaskManagerLocation {
        pb::TaskManagerLocation {
            resource_id: self.id.to_string(),
            incarnation: self.incarnation.to_string(),
            rpc_address: format!("{}:1", self.id),
            data_address: format!("{}:2", self.id),
        }
    }

    pub(super) fn report(&self) -> Vec<pb::ExecutionReport> {
        let of_key = |(key, running): (&TaskKey, &Vec<Running>)| {
            running.iter().map(|it| report(key, it)).collect::<Vec<_>>()
        };
        self.running.iter().flat_map(of_key).collect()
    }

    pub(super) fn offers(&self) -> Vec<pb::SlotOffer> {
        let slots = self.slots.iter().enumerate();
        let offer = |(index, slot): (usize, &Option<AllocationId>)| {
            let slot = slot.as_ref()?;
            let index = u32::try_from(index).expect("few slots");
            Some(pb::SlotOffer {
                allocation_id: slot.to_string(),
                slot: index,
                profile: self
                    .profiles
                    .get(slot)
                    .and_then(ResourceProfile::to_message),
            })
        };
        slots.filter_map(offer).collect()
    }

    pub(super) fn outputs(&self) -> Vec<pb::ExecutionId> {
        let id = |((vertex_id, subtask), generation): &(TaskKey, u64)| pb::ExecutionId {
            vertex_id: vertex_id.clone(),
            subtask: *subtask,
            generation: *generation,
        };
        self.outputs.iter().map(id).collect()
    }

    pub(super) fn crash(&mut self) {
        self.incarnation += 1;
        self.slots.fill(None);
        self.running.clear();
        self.highest.clear();
        self.outputs.clear();
        self.is_told_to_stop = false;
        // Registrations are unique across restarts: earlier messages are refused.
        self.registration += 1;
    }

    /// `blocking` are the numbers of the blocking edges.
    pub(super) fn submit(
        &mut self,
        tasks: &[pb::TaskDeployment],
        blocking: &BTreeSet<u32>,
    ) -> Vec<pb::TaskRefusal> {
        let mut refused = Vec::new();
        for task in tasks {
            let key = (task.vertex_id.clone(), task.subtask);
            let has_slot = self
                .slots
                .iter()
                .flatten()
                .any(|slot| slot.to_string() == task.allocation_id);
            let is_old = self
                .highest
                .get(&key)
                .is_some_and(|highest| *highest >= task.generation);
            if is_old || !has_slot {
                refused.push(pb::TaskRefusal {
                    vertex_id: task.vertex_id.clone(),
                    subtask: task.subtask,
                    generation: task.generation,
                    reason: "no slot, or an old generation".to_owned(),
                });
                continue;
            }
            for (other, running) in &self.running {
                let is_beside = running.iter().any(|it| {
                    !is_terminal(it.state)
                        && it.allocation == task.allocation_id
                        && other.0 == task.vertex_id
                });
                assert!(
                    !is_beside,
                    "two subtasks of one vertex in a slot: {other:?}, {task:?}"
                );
            }
            self.highest.insert(key.clone(), task.generation);
            self.running.entry(key).or_default().push(Running {
                generation: task.generation,
                state: S::Deploying,
                allocation: task.allocation_id.clone(),
                inputs: complete_inputs(task, blocking),
                unreadable: None,
                unrecoverable: false,
                end: TaskEnd::default(),
            });
        }
        refused
    }

    pub(super) fn cancel(&mut self, tasks: &[pb::TaskCancellation]) {
        for task in tasks {
            let key = (task.vertex_id.clone(), task.subtask);
            let highest = self.highest.entry(key.clone()).or_default();
            *highest = (*highest).max(task.up_to_generation);
            self.outputs
                .retain(|(of, generation)| *of != key || *generation > task.up_to_generation);
            for running in self.running.get_mut(&key).into_iter().flatten() {
                if running.generation <= task.up_to_generation && !is_terminal(running.state) {
                    running.state = S::Canceling;
                }
            }
        }
    }

    /// Frees those of the slots in which nothing runs.
    pub(super) fn free(&mut self, allocations: &[AllocationId]) {
        let goes_on = |allocation: &AllocationId| {
            let mut running = self.running.values().flatten();
            running.any(|it| {
                it.allocation == allocation.to_string()
                    && it.state != S::Canceling
                    && !is_terminal(it.state)
            })
        };
        let allocations: Vec<AllocationId> = allocations
            .iter()
            .filter(|it| !goes_on(it))
            .copied()
            .collect();
        for slot in &mut self.slots {
            if slot.is_some_and(|slot| allocations.contains(&slot)) {
                *slot = None;
            }
        }
        for running in self.running.values_mut().flatten() {
            let is_freed = allocations
                .iter()
                .any(|it| it.to_string() == running.allocation);
            if is_freed && !is_terminal(running.state) {
                running.state = S::Canceled;
            }
        }
    }
}

/// The inputs of a task over blocking edges: producer, generation and place.
pub(super) fn complete_inputs(
    task: &pb::TaskDeployment,
    blocking: &BTreeSet<u32>,
) -> Vec<(TaskKey, u64, pb::TaskManagerLocation)> {
    let gates = task
        .inputs
        .iter()
        .filter(|gate| blocking.contains(&gate.edge));
    let of_channel = |channel: &pb::InputChannel| {
        let key = (channel.source_vertex_id.clone(), channel.source_subtask);
        let location = channel.location.clone().unwrap_or_default();
        (key, channel.generation, location)
    };
    gates
        .flat_map(|gate| gate.channels.iter().map(of_channel))
        .collect()
}

pub(super) fn report(key: &TaskKey, running: &Running) -> pb::ExecutionReport {
    pb::ExecutionReport {
        vertex_id: key.0.clone(),
        subtask: key.1,
        generation: running.generation,
        state: running.state.into(),
        cause: if running.state == S::Failed {
            "division by zero".to_owned()
        } else {
            String::new()
        },
        allocation_id: running.allocation.clone(),
        unreadable: running.unreadable.clone(),
        unrecoverable: running.unrecoverable,
        highest_checkpoint: running.end.highest,
        checkpoint_committables: running.end.committables.clone(),
        ..pb::ExecutionReport::default()
    }
}
