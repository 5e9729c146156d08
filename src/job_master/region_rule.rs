//! The part of the core that chooses the rule by which the job's regions are built, and which TaskManagers
//! may get its tasks (`docs/adr/0024`).
//!
//! The record names the rule. The JobMaster that first writes regions chooses it, and the first placement
//! fixes it: from then on TaskManagers refer to regions by their numbers. Invariant: no task of a job whose
//! regions are sets of subtasks is deployed to a TaskManager that treats regions as sets of vertices.

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

/// Builds the graph as the record has it. A record without regions gets them, by the rule of subtasks if that
/// makes a difference and does not make too many.
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

    /// Whether a TaskManager may get tasks of the job.
    pub(super) fn may_have_tasks(&self, known: &TaskManager) -> bool {
        known.takes_regions || !self.parts_vertices()
    }

    /// Fixes the rule.
    pub(super) fn fix_rule(&mut self) {
        if self.parts_vertices() && !self.record.was_placed {
            Arc::make_mut(&mut self.record).was_placed = true;
        }
    }

    /// Handles a TaskManager that treats regions as sets of vertices: if nothing of the job was ever placed,
    /// its regions become sets of vertices.
    pub(super) fn suit_older(&mut self, known: &TaskManager, now_ms: u64) {
        if self.may_have_tasks(known) || self.is_stopping() || self.result.is_some() {
            return;
        }
        let (job, task_manager) = (&self.record.job_id, &known.location.resource_id);
        if self.record.was_placed {
            tracing::warn!(
                job,
                task_manager,
                "the TaskManager has an older version and gets no tasks of this job, whose regions are sets of subtasks"
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
            "the TaskManager has an older version; the job's regions become sets of vertices"
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
        // Its reservation rounds refer to old region numbers. Nothing was ever placed, so nothing can still
        // run.
        self.held_until.clear();
        self.patience = Patience::default();
        self.looked_at = LookedAt::default();
    }
}
