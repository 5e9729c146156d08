//! Invariants of the record and of the effects of a JobMaster, as predicates for the simulation.

use std::collections::BTreeMap;

use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use super::task_manager::TaskKey;
use super::world::World;
use crate::core::Connection;
use crate::core::execution_graph::ExecutionGraph;
use crate::core::failover::FailoverStrategy;

/// The region of a task in a record.
pub(super) fn region_of(
    built: &ExecutionGraph,
    state: &pb::JobState,
    (vertex_id, subtask): (&str, u32),
) -> pb::RegionState {
    let task = built.find(vertex_id, subtask).expect("of the graph");
    state
        .regions
        .get(built.task(task).region)
        .cloned()
        .unwrap_or_default()
}

/// Whether a record says that an execution has finished.
pub(super) fn is_recorded(state: &pb::JobState, key: &TaskKey, generation: u64) -> bool {
    state.terminal.iter().any(|end| {
        (&end.vertex_id, end.subtask) == (&key.0, key.1)
            && end.generation == generation
            && end.state() == S::Finished
    })
}

/// The regions that have finished according to a record, with their generations.
pub(super) fn finished_regions(
    built: &ExecutionGraph,
    state: &pb::JobState,
) -> BTreeMap<usize, u64> {
    let regions = state.regions.iter().enumerate();
    let has_finished = |(region, stored): &(usize, &pb::RegionState)| {
        built.region(*region).tasks.iter().all(|task| {
            let vertex = built.vertex_of(*task).id.to_string();
            let key = (vertex, built.task(*task).subtask);
            is_recorded(state, &key, stored.generation)
        })
    };
    regions
        .filter(has_finished)
        .map(|(region, stored)| (region, stored.generation))
        .collect()
}

/// Whether, according to a record, all regions that read a task over blocking edges have finished, and there
/// are some.
pub(super) fn has_been_read(
    graph: &pb::JobGraph,
    built: &ExecutionGraph,
    state: &pb::JobState,
    (vertex_id, subtask): (&str, u32),
) -> bool {
    let is_read =
        |edge: &&pb::JobEdge| edge.source == vertex_id && edge.exchange() == pb::Exchange::Blocking;
    let targets = graph.edges.iter().filter(is_read);
    let region = |edge: &pb::JobEdge| {
        let is_forward = edge.partitioning() == pb::Partitioning::Forward;
        let all = (0..).map_while(|number| built.find(&edge.target, number));
        let reading = all.filter(|task| !is_forward || built.task(*task).subtask == subtask);
        let regions: Vec<usize> = reading.map(|task| built.task(task).region).collect();
        regions
    };
    let readers: Vec<usize> = targets.flat_map(region).collect();
    let is_done = |region: &usize| {
        let generation = state.regions[*region].generation;
        built.region(*region).tasks.iter().all(|task| {
            let vertex = built.vertex_of(*task).id.to_string();
            is_recorded(state, &(vertex, built.task(*task).subtask), generation)
        })
    };
    !readers.is_empty() && readers.iter().all(is_done)
}

/// Whether a record says that all executions of the present generations have finished.
pub(super) fn all_finished(built: &ExecutionGraph, state: &pb::JobState) -> bool {
    built.tasks().iter().enumerate().all(|(number, task)| {
        let region = state.regions.get(task.region);
        let generation = region.map_or(0, |region| region.generation);
        let key = (built.vertex_of(number).id.to_string(), task.subtask);
        is_recorded(state, &key, generation)
    })
}

/// Asserts that a deployed task has the placement that this term has stored.
pub(super) fn assert_persisted_placement(
    stored: &pb::JobState,
    epoch: u64,
    connection: &Connection,
    task: &pb::TaskDeployment,
) {
    let is_stored = stored.regions.iter().any(|region| {
        region.epoch == epoch
            && region.generation == task.generation
            && region.placements.iter().any(|placement| {
                let location = placement.location.as_ref();
                placement.vertex_id == task.vertex_id
                    && placement.subtask == task.subtask
                    && placement.allocation_id == task.allocation_id
                    && location.is_some_and(|it| it.resource_id == connection.task_manager.as_str())
            })
    });
    assert!(is_stored, "deployed, but not stored by this term: {task:?}");
}

impl World {
    /// Asserts that with the full strategy all placed regions that have not finished restart in the same
    /// write, or none.
    pub(super) fn assert_restarts_together(&self, next: &pb::JobState) {
        let is_to_end = next.wanted() == pb::WantedStatus::Canceled || !next.fatal_cause.is_empty();
        if self.failover != FailoverStrategy::Full || is_to_end {
            return;
        }
        let finished = finished_regions(&self.built, &self.stored);
        let regions = self.stored.regions.iter().zip(&next.regions).enumerate();
        let placed: Vec<_> = regions
            .filter(|(_, (before, _))| !before.placements.is_empty())
            .map(|(region, (before, after))| (region, before.generation < after.generation))
            .collect();
        if placed.iter().any(|(_, is_restarted)| *is_restarted) {
            let mut left = placed.iter();
            let left =
                left.find(|(region, is_restarted)| !is_restarted && !finished.contains_key(region));
            assert_eq!(left, None, "it does not start again with the others");
        }
    }
}
