//! Indexes and counts over all tasks and regions of an ExecutionGraph, updated with each change, so that no
//! decision has to iterate over all of them. Pure.
//!
//! Only the methods of [`ExecutionGraph`] in `transitions.rs` make changes. Invariant: the indexes always
//! equal what [`Indexes::of`] computes from scratch. The simulation compares them after each event.

use tanist_compact::SmallSet;
use tanist_proto::id::ResourceId;
use tanist_proto::v1::ExecutionState;

use super::blocking::OfVertices;
use super::execution::{Execution, STATES};
use super::slot_uses::SlotUses;
use super::waiting_list::{Need, WaitingList};
use super::{ExecutionGraph, PHASES, RegionPhase, number_of};
use crate::core::result_partitions::ResultPartition;

/// Counts of one region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RegionTally {
    /// Number of its executions that have not ended.
    pub live: usize,
    /// Number of its executions that are RECONCILING.
    pub awaited: usize,
    /// Number of its executions that are RUNNING.
    pub running: usize,
    /// Whether it runs, or waits only for slots.
    pub could_run: bool,
    /// The slots that it still needs.
    pub need: Need,
}

/// Indexes over an ExecutionGraph; see the module.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Indexes {
    /// Number of executions in each state.
    pub states: [usize; STATES],
    /// The regions in each phase.
    pub phases: [SmallSet<usize>; PHASES],
    pub regions: Vec<RegionTally>,
    /// Number of regions that are placed and have not ended, and of those among them that end by themselves.
    pub running: usize,
    pub running_bounded: usize,
    /// By vertex: the number of its executions that have finished.
    pub finished: Vec<usize>,
    pub slots: SlotUses,
    /// Regions that wait for slots, and regions that will: when their backoff is over, or when it is durable
    /// that their input is complete.
    pub waiting: WaitingList,
    pub to_wait: WaitingList,
    pub waiting_since: SmallSet<(u64, usize)>,
    /// (end of the backoff in ms, region).
    pub restarting_at: SmallSet<(u64, usize)>,
    /// (since ms, task) of tasks that are CANCELING.
    pub canceling_since: SmallSet<(u64, usize)>,
    /// (TaskManager, task) of placed tasks, including ended ones.
    pub places: SmallSet<(ResourceId, usize)>,
    pub outputs_awaited: usize,
}

/// The part of one execution's state that the indexes depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub state: ExecutionState,
    pub is_live: bool,
    /// Whether it is in a slot or will be.
    pub is_in_slot: bool,
    pub canceling_since_ms: Option<u64>,
    pub is_output_awaited: bool,
}

impl Share {
    pub(crate) fn of(execution: &Execution) -> Share {
        let is_live = !execution.is_ended();
        let is_canceling = execution.state == ExecutionState::Canceling;
        Share {
            state: execution.state,
            is_live,
            is_in_slot: is_live && execution.place.is_some(),
            canceling_since_ms: is_canceling.then_some(execution.canceling_since_ms),
            is_output_awaited: execution.output == ResultPartition::Awaited,
        }
    }

    pub(crate) fn has_finished(self) -> bool {
        self.state == ExecutionState::Finished
    }

    pub(crate) fn is_running(self) -> bool {
        self.state == ExecutionState::Running
    }

    pub(crate) fn is_awaited(self) -> bool {
        self.state == ExecutionState::Reconciling
    }
}

impl Indexes {
    /// Computes all indexes from scratch.
    pub(crate) fn of(graph: &ExecutionGraph) -> Indexes {
        let mut indexes = Indexes {
            regions: vec![RegionTally::default(); graph.regions.len()],
            finished: vec![0; graph.vertices.len()],
            slots: SlotUses::none(&graph.kinds),
            ..Indexes::default()
        };
        for (task, at) in graph.tasks.iter().enumerate() {
            indexes.add_task(graph, task, Share::of(&at.execution));
            if let Some(place) = &at.execution.place {
                indexes.places.insert((place.task_manager.clone(), task));
            }
        }
        let mut known = OfVertices::default();
        for region in 0..graph.regions.len() {
            let has_finished = |task| graph.has_finished(task);
            let could_run = graph.regions[region].phase != RegionPhase::AwaitingInput
                || graph.reads_only(region, &mut known, has_finished);
            indexes.add_region(graph, region, could_run);
        }
        indexes
    }

    fn add_task(&mut self, graph: &ExecutionGraph, task: usize, share: Share) {
        let at = &graph.tasks[task];
        self.states[number_of(share.state)] += 1;
        let since_ms = share.canceling_since_ms;
        self.canceling_since
            .extend(since_ms.map(|since_ms| (since_ms, task)));
        self.outputs_awaited += usize::from(share.is_output_awaited);
        self.finished[at.vertex] += usize::from(share.has_finished());
        let tally = &mut self.regions[at.region];
        tally.live += usize::from(share.is_live);
        tally.awaited += usize::from(share.is_awaited());
        tally.running += usize::from(share.is_running());
        let key = graph.slot_key(task);
        let in_slot = u32::from(share.is_in_slot);
        self.slots
            .change(&graph.kinds, key, |key| key.live += in_slot);
    }

    fn add_region(&mut self, graph: &ExecutionGraph, region: usize, could_run: bool) {
        let at = &graph.regions[region];
        let unfinished = at.tasks.iter().filter(|task| !graph.has_finished(**task));
        for task in unfinished.filter(|_| could_run) {
            let key = graph.slot_key(*task);
            self.slots
                .change(&graph.kinds, key, |key| key.unfinished += 1);
        }
        let is_endless = at.phase.is_placed() && !at.is_bounded;
        let mut need = Need {
            slots: 0,
            of_kinds: vec![0; graph.kinds.profiles().len()],
            coordinator_group: at.coordinator_group,
        };
        for key in &at.slots {
            self.slots.change(&graph.kinds, *key, |key| {
                key.unplaced += u32::from(!at.phase.is_placed());
                key.endless += u32::from(is_endless);
            });
            if !self.slots.is_taken(&graph.kinds, *key) {
                need.change(graph.kinds.of(*key), true);
            }
        }
        let tally = &mut self.regions[region];
        tally.could_run = could_run;
        tally.need = need;
        if at.phase.is_placed() && tally.live > 0 {
            self.running += 1;
            self.running_bounded += usize::from(at.is_bounded);
        }
        self.enter(region, at.phase);
        self.list(region, at.phase);
    }

    /// Adds a region to the indexes of the phase that it enters.
    pub(crate) fn enter(&mut self, region: usize, phase: RegionPhase) {
        self.phases[phase.number()].insert(region);
        match phase {
            RegionPhase::Waiting { since_ms } => {
                self.waiting_since.insert((since_ms, region));
            }
            RegionPhase::Stopping { restart_at_ms } => {
                let due = restart_at_ms.map(|at_ms| (at_ms, region));
                self.restarting_at.extend(due);
            }
            RegionPhase::AwaitingInput
            | RegionPhase::Reconciling
            | RegionPhase::Placed
            | RegionPhase::Deployed => {}
        }
    }

    /// Removes a region from the indexes of the phase that it leaves.
    pub(crate) fn leave(&mut self, region: usize, phase: RegionPhase) {
        self.phases[phase.number()].remove(&region);
        match phase {
            RegionPhase::Waiting { since_ms } => {
                self.waiting_since.remove(&(since_ms, region));
            }
            RegionPhase::Stopping { restart_at_ms } => {
                if let Some(at_ms) = restart_at_ms {
                    self.restarting_at.remove(&(at_ms, region));
                }
            }
            RegionPhase::AwaitingInput
            | RegionPhase::Reconciling
            | RegionPhase::Placed
            | RegionPhase::Deployed => {}
        }
    }

    /// Adds a region to the waiting list that belongs to this phase, if there is one.
    pub(crate) fn list(&mut self, region: usize, phase: RegionPhase) {
        let RegionTally {
            need, could_run, ..
        } = &self.regions[region];
        match phase {
            RegionPhase::Waiting { .. } => self.waiting.add(region, need),
            RegionPhase::Stopping {
                restart_at_ms: Some(_),
            } => self.to_wait.add(region, need),
            RegionPhase::AwaitingInput if *could_run => self.to_wait.add(region, need),
            RegionPhase::AwaitingInput
            | RegionPhase::Reconciling
            | RegionPhase::Placed
            | RegionPhase::Deployed
            | RegionPhase::Stopping {
                restart_at_ms: None,
            } => {}
        }
    }

    /// Removes a region from its waiting list. The list is keyed by the region's present need.
    pub(crate) fn unlist(&mut self, region: usize, phase: RegionPhase) {
        let need = &self.regions[region].need;
        match phase {
            RegionPhase::Waiting { .. } => self.waiting.remove(region, need),
            RegionPhase::AwaitingInput | RegionPhase::Stopping { .. } => {
                self.to_wait.remove(region, need);
            }
            RegionPhase::Reconciling | RegionPhase::Placed | RegionPhase::Deployed => {}
        }
    }
}

/// The tasks and regions that have changed since the handlers took each list. An entry may be outdated: the handler
/// checks the present state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    /// Tasks whose execution has ended.
    pub ended: Vec<usize>,
    /// Regions that have no awaited execution any more.
    pub reconciled: SmallSet<usize>,
    /// Regions whose executions all run or have ended.
    pub running: SmallSet<usize>,
    /// Regions whose executions have to end.
    pub stopping: SmallSet<usize>,
    /// Regions among `stopping` that may have ended.
    pub stopped: SmallSet<usize>,
    /// Regions that wait for slots.
    pub waiting: SmallSet<usize>,
    /// Number of changes that readers of outputs depend on: phases, and outputs that appear or are lost. The
    /// end of an execution does not count until it is durable.
    pub reads: u64,
}

impl Changes {
    /// As if everything had changed.
    pub(crate) fn of(graph: &ExecutionGraph) -> Changes {
        let stopping = graph.stopping().collect::<SmallSet<usize>>();
        let reconciling = graph.in_phase(RegionPhase::Reconciling).iter().copied();
        let is_there = |region: &usize| graph.indexes.regions[*region].awaited == 0;
        Changes {
            ended: Vec::new(),
            running: SmallSet::default(),
            reconciled: reconciling.filter(is_there).collect(),
            stopped: stopping.clone(),
            stopping,
            waiting: graph.waiting().clone(),
            reads: graph.changes.reads + 1,
        }
    }
}
