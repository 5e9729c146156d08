//! The part of the core that knows by which rule the job's regions are made, and who may be given its tasks (`docs/adr/0024`).
//!
//! The record names the rule. It is chosen by the JobMaster that first writes regions, and fixed by the first placement: from then on
//! TaskManagers know regions by their numbers. Invariant: no task of a job whose regions are sets of subtasks is deployed to a
//! TaskManager that would take them for sets of vertices.

use std::sync::Arc;

use tanist_proto::v1 as pb;

use super::agenda::LookedAt;
use super::coordinator::Coordination;
use super::core::{JobMasterCore, TaskManager};
use super::execution_graph::{BuildError, ExecutionGraph, RegionPhase};
use super::patience::Patience;
use crate::job::{RegionRule, chosen_rule};

/// The rule of a record.
pub(super) fn rule_of(state: &pb::JobState) -> RegionRule {
    match state.region_rule() {
        pb::RegionRule::Vertices => RegionRule::Vertices,
        pb::RegionRule::Subtasks => RegionRule::Subtasks,
    }
}

/// The graph as the record has it. One without regions gets them, by the rule of subtasks where that makes a difference, and not too many.
pub(super) fn build(
    graph: &pb::JobGraph,
    state: &mut Arc<pb::JobState>,
) -> Result<ExecutionGraph, BuildError> {
    if state.regions.is_empty() && chosen_rule(graph).0 == RegionRule::Subtasks {
        Arc::make_mut(state).set_region_rule(pb::RegionRule::Subtasks);
    }
    let execution = ExecutionGraph::build(graph, rule_of(state))?;
    let needed = execution.regions.len();
    if !state.regions.is_empty() && state.regions.len() != needed {
        let there = state.regions.len();
        let other = format!("it has {there} regions, the graph {needed}");
        return Err(BuildError::OtherGraph(other));
    }
    if state.regions.is_empty() {
        let regions = &mut Arc::make_mut(state).regions;
        regions.resize_with(needed, pb::RegionState::default);
    }
    Ok(execution)
}

impl JobMasterCore {
    fn parts_vertices(&self) -> bool {
        rule_of(&self.record) == RegionRule::Subtasks
    }

    /// Whether a TaskManager may be given tasks of the job.
    pub(super) fn may_have_tasks(&self, known: &TaskManager) -> bool {
        known.takes_regions || !self.parts_vertices()
    }

    /// The rule can't change any more.
    pub(super) fn fix_rule(&mut self) {
        if self.parts_vertices() && !self.record.was_placed {
            Arc::make_mut(&mut self.record).was_placed = true;
        }
    }

    /// A TaskManager that takes vertices for regions has registered: so they are, if nothing of the job was ever placed.
    pub(super) fn suit_older(&mut self, known: &TaskManager, now_ms: u64) {
        if self.may_have_tasks(known) || self.is_stopping() || self.result.is_some() {
            return;
        }
        let (job, task_manager) = (&self.record.job_id, &known.location.resource_id);
        if self.record.was_placed {
            tracing::warn!(
                job,
                task_manager,
                "it is of an older version, and gets no tasks of this job: its regions are sets of subtasks"
            );
            return;
        }
        let graph = self.graph.get();
        let Ok(mut execution) = ExecutionGraph::build(&graph, RegionRule::Vertices) else {
            return;
        };
        tracing::info!(
            job,
            task_manager,
            "it is of an older version: the job's regions are sets of vertices"
        );
        self.coordination = Coordination::of(&graph, &mut execution);
        self.execution = execution;
        let phase = RegionPhase::Waiting { since_ms: now_ms };
        for region in 0..self.execution.regions.len() {
            self.execution.set_phase(region, phase);
        }
        let record = Arc::make_mut(&mut self.record);
        let generations = record.regions.iter().map(|region| region.generation);
        // Generations only grow.
        let unplaced = pb::RegionState {
            generation: generations.max().unwrap_or_default(),
            epoch: self.epoch.get(),
            ..pb::RegionState::default()
        };
        record.regions = vec![unplaced; self.execution.regions.len()];
        record.set_region_rule(pb::RegionRule::Vertices);
        record.coordinators.clear();
        self.revision += 1;
        for region in 0..self.execution.regions.len() {
            self.renew_executions(region);
        }
        self.failures.clear();
        // Its turns are regions'. Nothing was ever placed, so that nothing can still run.
        self.held_until.clear();
        self.patience = Patience::default();
        self.looked_at = LookedAt::default();
    }
}
