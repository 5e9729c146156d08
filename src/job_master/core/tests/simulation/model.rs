//! A simple model of the rules for a job's graph; the simulation compares the core with it. The model uses only the
//! graph and the stored record, and computes everything from scratch. It implements the text of the rules and shares no
//! code with the core.
//!
//! - Subtasks that pipelined channels connect run together, as one region. If that makes too many regions, all subtasks
//!   of a vertex are in one region, too.
//! - A region may start when all subtasks that it reads from over blocking edges have finished, each in the current
//!   generation of its region.
//! - A region starts as a whole, each of its tasks from CREATED. Subtasks of one vertex run in different slots.
//!   Subtasks with the same number in one slot sharing group share a slot.

use std::collections::{BTreeMap, BTreeSet};

use tanist_model::{MAX_REGIONS, count_regions};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use super::invariants::{is_recorded, region_of};
use super::task_manager::{Running, TaskKey};
use super::world::World;
use crate::core::execution_graph::ExecutionGraph;
use crate::core::execution_graph::execution::is_terminal;
use crate::core::{Connection, Event, JobMasterCore, SubmitOutcome};

/// All channels of an edge, one by one: the subtasks of its source and of its target.
fn channels(graph: &pb::JobGraph, edge: &pb::JobEdge) -> Vec<(TaskKey, TaskKey)> {
    let subtasks = |id: &str| {
        let vertex = graph.vertices.iter().find(|vertex| vertex.id == id);
        0..vertex.expect("an edge between vertices").parallelism
    };
    let is_forward = edge.partitioning() == pb::Partitioning::Forward;
    let pairs = subtasks(&edge.source)
        .flat_map(|source| subtasks(&edge.target).map(move |target| (source, target)));
    let connected = pairs.filter(|(source, target)| !is_forward || source == target);
    let named = connected.map(|(source, target)| {
        let (from, to) = (edge.source.clone(), edge.target.clone());
        ((from, source), (to, target))
    });
    named.collect()
}

/// The tasks that run together with this one, itself included: those that pipelined channels reach, and all subtasks of
/// a vertex if regions are of `whole` vertices.
fn together_with(graph: &pb::JobGraph, whole: bool, task: &TaskKey) -> BTreeSet<TaskKey> {
    let pipelined = graph
        .edges
        .iter()
        .filter(|edge| edge.exchange() == pb::Exchange::Pipelined);
    let mut pairs: Vec<(TaskKey, TaskKey)> =
        pipelined.flat_map(|edge| channels(graph, edge)).collect();
    if whole {
        for vertex in &graph.vertices {
            let first = (vertex.id.clone(), 0);
            let others = (1..vertex.parallelism).map(|it| (vertex.id.clone(), it));
            pairs.extend(others.map(|other| (first.clone(), other)));
        }
    }
    let mut found = BTreeSet::from([task.clone()]);
    loop {
        let before = found.len();
        for (one, other) in &pairs {
            if found.contains(one) || found.contains(other) {
                found.extend([one.clone(), other.clone()]);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Whether all inputs of these tasks over blocking edges have finished.
fn inputs_are_complete(
    graph: &pb::JobGraph,
    built: &ExecutionGraph,
    stored: &pb::JobState,
    tasks: &BTreeSet<TaskKey>,
) -> bool {
    let blocking = graph
        .edges
        .iter()
        .filter(|it| it.exchange() == pb::Exchange::Blocking);
    let mut read = blocking
        .flat_map(|edge| channels(graph, edge))
        .filter(|(_, target)| tasks.contains(target));
    read.all(|(source, _)| {
        let generation = region_of(built, stored, (&source.0, source.1)).generation;
        generation > 0 && is_recorded(stored, &source, generation)
    })
}

/// Asserts that the ExecutionGraph has the regions of the model.
pub(super) fn assert_regions(graph: &pb::JobGraph, max_regions: usize) {
    let built = ExecutionGraph::build(graph, max_regions).expect("valid");
    let key = |task: usize| {
        (
            built.vertex_of(task).id.to_string(),
            built.task(task).subtask,
        )
    };
    for (task, at) in built.tasks().iter().enumerate() {
        let tasks = built.region(at.region).tasks.iter();
        let in_it: BTreeSet<TaskKey> = tasks.map(|task| key(*task)).collect();
        assert_eq!(
            in_it,
            together_with(graph, max_regions < MAX_REGIONS, &key(task))
        );
    }
    let place = |(id, subtask): &TaskKey| {
        let task = built.find(id, *subtask).expect("it has");
        built.task(task).region
    };
    for edge in &graph.edges {
        for (source, target) in channels(graph, edge) {
            let (source, target) = (place(&source), place(&target));
            let is_blocking = edge.exchange() == pb::Exchange::Blocking;
            assert_eq!(source == target, !is_blocking, "{edge:?}");
            assert!(
                source <= target,
                "regions are in topological order: {edge:?}"
            );
        }
    }
    assert_eq!(count_regions(graph, max_regions), built.regions().len());
    // Each subtask number of each slot sharing group needs a slot, also after some tasks have ended.
    let slots: BTreeSet<(&str, u32)> = graph
        .vertices
        .iter()
        .flat_map(|it| (0..it.parallelism).map(|at| (it.slot_sharing_group.as_str(), at)))
        .collect();
    assert_eq!(built.slots_needed(), slots.len());
}

/// State and attempt of each task.
pub(super) type States = BTreeMap<TaskKey, (S, u64)>;

pub(super) fn states_of(core: &JobMasterCore) -> States {
    let tasks = core.graph.tasks().iter().enumerate();
    let states = tasks.map(|(number, task)| {
        let key = (core.graph.vertex_of(number).id.to_string(), task.subtask);
        let execution = &task.execution;
        (key, (execution.state, execution.generation.get()))
    });
    states.collect()
}

fn news_of(pick: usize, connection: Connection, id: pb::ExecutionId) -> Event {
    let states = [S::Running, S::Finished, S::Failed, S::Canceled];
    if let Some(state) = states.get(pick % 7) {
        let report = pb::ExecutionReport {
            vertex_id: id.vertex_id,
            subtask: id.subtask,
            generation: id.generation,
            state: (*state).into(),
            ..pb::ExecutionReport::default()
        };
        return Event::ExecutionsReported {
            connection,
            executions: vec![report],
        };
    }
    let refused = pb::TaskRefusal {
        vertex_id: id.vertex_id.clone(),
        subtask: id.subtask,
        generation: id.generation,
        reason: "it is old".to_owned(),
    };
    match pick % 7 {
        4 => Event::TasksSubmitted {
            connection,
            tasks: vec![id],
            outcome: SubmitOutcome::Answered(vec![refused]),
        },
        5 => Event::TasksSubmitted {
            connection,
            tasks: vec![id],
            outcome: SubmitOutcome::Unknown("no answer".to_owned()),
        },
        _ => Event::TasksCancelled {
            connection,
            tasks: vec![pb::TaskCancellation {
                vertex_id: id.vertex_id,
                subtask: id.subtask,
                up_to_generation: id.generation,
            }],
            is_confirmed: true,
        },
    }
}

impl World {
    /// Asserts that the tasks deployed by one event were allowed to start, by the state before it.
    pub(super) fn assert_may_start(&self, deployed: &[pb::TaskDeployment], before: &States) {
        let mut left: BTreeMap<TaskKey, &pb::TaskDeployment> = deployed
            .iter()
            .map(|task| ((task.vertex_id.clone(), task.subtask), task))
            .collect();
        while let Some((key, first)) = left.pop_first() {
            let tasks = together_with(&self.graph, self.is_whole, &key);
            assert!(
                inputs_are_complete(&self.graph, &self.built, &self.stored, &tasks),
                "it starts before its inputs are complete: {first:?}"
            );
            let others = tasks.iter().filter(|task| **task != key);
            let others: Vec<&pb::TaskDeployment> = others
                .map(|task| left.remove(task).expect("a region starts as a whole"))
                .collect();
            let mut slots: BTreeMap<&str, (String, u32)> = BTreeMap::new();
            for task in std::iter::once(&first).chain(&others) {
                assert_eq!(task.generation, first.generation);
                let key = (task.vertex_id.clone(), task.subtask);
                let (state, attempt) = before[&key];
                let is_new = matches!(state, S::Created | S::Scheduled);
                assert!(
                    is_new,
                    "{key:?} starts, and its attempt {attempt} was {state:?}"
                );
                let vertex = self
                    .graph
                    .vertices
                    .iter()
                    .find(|it| it.id == task.vertex_id);
                let group = &vertex.expect("it has").slot_sharing_group;
                let share = (group.clone(), task.subtask);
                let slot = slots.entry(&task.allocation_id).or_insert(share.clone());
                assert_eq!(*slot, share, "it is in the slot of others");
            }
            let shares: BTreeSet<_> = slots.values().collect();
            assert_eq!(shares.len(), slots.len(), "what shares a slot is spread");
        }
    }

    /// Whether, as far as the JobMaster knows, all tasks that may run do, and no others.
    pub(super) fn all_that_may_run_does(&self) -> bool {
        let states = self.core.iter().flat_map(states_of);
        states.into_iter().all(|(task, (state, _))| {
            let tasks = together_with(&self.graph, self.is_whole, &task);
            let may_run = inputs_are_complete(&self.graph, &self.built, &self.stored, &tasks);
            // If the report that it runs was lost, only the next heartbeat brings it.
            let runs = matches!(state, S::Deploying | S::Running | S::Finished);
            may_run == runs
        })
    }

    /// Reports of an attempt before the present one never change anything about any task.
    pub(super) fn hear_of_an_older_attempt(&mut self, pick: usize) {
        let Some(core) = &mut self.core else {
            return;
        };
        let connections: Vec<_> = core.connections().into_iter().map(|it| it.0).collect();
        let old: Vec<(TaskKey, u64)> = states_of(core)
            .into_iter()
            .filter(|(_, (_, attempt))| *attempt > 1)
            .map(|(key, (_, attempt))| (key, attempt))
            .collect();
        if connections.is_empty() || old.is_empty() {
            return;
        }
        let connection = connections[pick % connections.len()].clone();
        let ((vertex_id, subtask), attempt) = old[pick / 3 % old.len()].clone();
        let generation = 1 + pick as u64 % (attempt - 1);
        let key = (vertex_id.clone(), subtask);
        let runs = |it: &Running| it.generation == generation && !is_terminal(it.state);
        let mut everywhere = self.task_managers.iter();
        if everywhere.any(|it| it.running.get(&key).is_some_and(|all| all.iter().any(runs))) {
            // A running attempt is never reported as ended: its slot would be given to others.
            return;
        }
        let is_awaited = |core: &JobMasterCore| {
            let task = core.graph.find(&key.0, key.1).expect("the graph has it");
            let mut orphans = core.task_managers.orphans().iter();
            orphans
                .any(|(at, orphan)| *at == connection.task_manager && orphan == (task, generation))
        };
        if self.core.as_ref().is_some_and(is_awaited) {
            // The JobMaster knows this orphan; its end frees a slot.
            return;
        }
        let id = pb::ExecutionId {
            vertex_id,
            subtask,
            generation,
        };
        let event = news_of(pick / 7, connection, id);
        // Handles deadlines that are due first, and those that become due by that: a slot that is freed in
        // one step is assigned in the next.
        let standing = |world: &World| {
            let core = world.core.as_ref();
            core.map(|core| (states_of(core), core.status()))
        };
        loop {
            let before = standing(self);
            self.hear(Event::TimePassed);
            if standing(self) == before {
                break;
            }
        }
        let Some(before) = standing(self) else {
            return;
        };
        self.hear(event);
        assert_eq!(
            standing(self),
            Some(before),
            "an older attempt changed something"
        );
        self.reached.older_heard += 1;
    }
}
