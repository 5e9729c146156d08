//! Tracks the outputs of finished tasks that other regions read later, over blocking edges (`docs/adr/0011`): where
//! they are kept, which are lost but needed, and which are not needed any more. The ExecutionGraph owns the state of
//! each output, `task_managers.rs` which ones each TaskManager reports.
//!
//! An output belongs to a task, with all its blocking edges, at the generation in which it finished, on the
//! TaskManager where the record places it. A deployed region that reads an output is left alone if that gets
//! lost: it has read all it needs, or fails and reports it. Nothing of this is persisted: after a change of
//! the leader outputs are awaited like executions.

use std::collections::BTreeSet;

use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::Effect;
use super::durable_effects::DurableEffects;
use super::durable_record::DurableRecord;
use super::execution_graph::blocking::OfVertices;
use super::execution_graph::deployment::{cancellation, execution_id};
use super::execution_graph::{ExecutionGraph, RegionPhase};
use super::reports::Reports;

/// The reason of an output that was released after all its readers had read it.
const RELEASED: &str = "it was released when no task needed it any more";

/// The output of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResultPartition {
    /// It can't be read, for this reason. Empty: it is not complete.
    Gone(String),
    /// The TaskManager where it should be has not registered yet.
    Awaited,
    /// It is complete and available. Full reports that were requested after this step contain it.
    Kept {
        /// The step of the core.
        since: u64,
    },
}

impl Default for ResultPartition {
    fn default() -> ResultPartition {
        ResultPartition::Gone(String::new())
    }
}

impl ExecutionGraph {
    /// After a recovery: marks outputs that other regions still need as awaited.
    pub(super) fn await_outputs(&mut self, is_stopping: bool) {
        let mut known = OfVertices::default();
        let is_unfinished = |region: usize| {
            let mut tasks = self.region(region).tasks.iter();
            tasks.any(|task| self.execution(*task).state != ExecutionState::Finished)
        };
        let mut found = Vec::new();
        for (task, at) in self.tasks().iter().enumerate() {
            let execution = &at.execution;
            let is_kept = execution.state == ExecutionState::Finished
                && execution.place.is_some()
                && self.vertex_of(task).is_kept;
            if is_kept {
                let is_needed = !is_stopping && self.is_read_by(task, &mut known, is_unfinished);
                found.push((task, is_needed));
            }
        }
        for (task, is_needed) in found {
            let output = match is_needed {
                true => ResultPartition::Awaited,
                false => ResultPartition::Gone(RELEASED.to_owned()),
            };
            self.set_output(task, output);
        }
    }

    /// Whether outputs are awaited.
    pub(super) fn awaits_outputs(&self) -> bool {
        self.indexes().outputs_awaited > 0
    }

    /// Marks the outputs of these tasks for which `is_meant` is true as lost.
    pub(super) fn lose_outputs(
        &mut self,
        tasks: Vec<usize>,
        is_meant: impl Fn(&ResultPartition) -> bool,
        cause: &str,
    ) {
        for task in tasks {
            let output = &self.execution(task).output;
            let is_known = !matches!(output, ResultPartition::Gone(_));
            if is_known && is_meant(output) {
                self.set_output(task, ResultPartition::Gone(cause.to_owned()));
            }
        }
    }

    /// Notes that a task could not read another task's output, even if a TaskManager reports it as kept.
    pub(super) fn note_unreadable(&mut self, id: &pb::ExecutionId, cause: &str) {
        let Some(task) = self.find(&id.vertex_id, id.subtask) else {
            return;
        };
        let is_kept = self.vertex_of(task).is_kept;
        let execution = self.execution(task);
        if is_kept && execution.generation.get() == id.generation {
            self.set_output(task, ResultPartition::Gone(cause.to_owned()));
        }
    }

    /// The tasks whose output is lost and needed, in the order of regions, with the reasons.
    pub(super) fn lost_and_needed(&self) -> Vec<(usize, String)> {
        let waits = |region: usize| match self.region(region).phase {
            RegionPhase::AwaitingInput
            | RegionPhase::Waiting { .. }
            | RegionPhase::Stopping {
                restart_at_ms: Some(_),
            } => true,
            RegionPhase::Reconciling
            | RegionPhase::Placed
            | RegionPhase::Deployed
            | RegionPhase::Stopping {
                restart_at_ms: None,
            } => false,
        };
        let mut known = OfVertices::default();
        let mut lost = Vec::new();
        for region in self.in_phase(RegionPhase::Deployed) {
            for task in &self.region(*region).tasks {
                let execution = self.execution(*task);
                let ResultPartition::Gone(cause) = &execution.output else {
                    continue;
                };
                let is_lost =
                    self.vertex_of(*task).is_kept && execution.state == ExecutionState::Finished;
                if is_lost && self.is_read_by(*task, &mut known, waits) {
                    let cause = match cause.as_str() {
                        RELEASED => format!("its output is needed again: {cause}"),
                        _ => format!("its output was lost and is needed: {cause}"),
                    };
                    lost.push((*task, cause));
                }
            }
        }
        lost
    }
}

impl Reports<'_> {
    /// Notes that a task has finished and its output is where it ran.
    pub(super) fn note_output(&mut self, task: usize) {
        if !self.graph.vertex_of(task).is_kept {
            return;
        }
        let since = self.turn;
        self.graph.set_output(task, ResultPartition::Kept { since });
        let execution = self.graph.execution(task);
        let generation = execution.generation.get();
        let place = execution.place.as_ref();
        if let Some(place) = place {
            let (id, partition) = (&place.task_manager, (task, generation));
            if self.task_managers.add_partition(id, partition) {
                self.dirty.recheck_outputs(id);
            }
        }
    }

    /// Applies a full report of the outputs on a TaskManager, from a registration or from a heartbeat that
    /// was sent in step `requested_in`.
    pub(super) fn apply_partitions(
        &mut self,
        task_manager: &ResourceId,
        reported: &[pb::ExecutionId],
        requested_in: Option<u64>,
    ) {
        let find = |id: &pb::ExecutionId| {
            let task = self.graph.find(&id.vertex_id, id.subtask)?;
            Some((task, id.generation))
        };
        let reported: BTreeSet<(usize, u64)> = reported.iter().filter_map(find).collect();
        let turn = self.turn;
        let known = &mut self.task_managers;
        let incarnation = known.report_partitions(task_manager, &reported, requested_in.is_none());
        let Some(incarnation) = incarnation else {
            return;
        };
        if !reported.is_empty() {
            self.dirty.recheck_outputs(task_manager);
        }
        for task in self.graph.tasks_on(task_manager) {
            let execution = self.graph.execution(task);
            let Some(place) = &execution.place else {
                continue;
            };
            let is_older = match execution.output {
                ResultPartition::Gone(_) => continue,
                ResultPartition::Awaited => true,
                ResultPartition::Kept { since } => {
                    requested_in.is_none_or(|requested_in| since <= requested_in)
                }
            };
            let is_there = reported.contains(&(task, execution.generation.get()));
            let output = if place.location.incarnation != incarnation {
                ResultPartition::Gone("its TaskManager was restarted".to_owned())
            } else if is_there && execution.output == ResultPartition::Awaited {
                ResultPartition::Kept { since: turn }
            } else if !is_there && is_older {
                ResultPartition::Gone("its TaskManager doesn't have it".to_owned())
            } else {
                continue;
            };
            self.graph.set_output(task, output);
        }
    }
}

impl DurableEffects<'_> {
    /// Releases outputs on TaskManagers that are not needed any more according to the durable record.
    pub(super) fn release_outputs(&mut self) {
        if !self.record.is_durable() {
            return;
        }
        let mut known_needs = OfVertices::default();
        let on = self.dirty.outputs_of();
        let (graph, record) = (&*self.graph, self.record);
        let released = self.task_managers.release_partitions(on, |partition| {
            is_needed(graph, record, partition, &mut known_needs)
        });
        for (connection, partitions) in released {
            let mut tasks = Vec::new();
            for (task, generation) in partitions {
                let id = execution_id(self.graph, task, generation);
                tasks.push(cancellation(id));
                if self.graph.execution(task).generation.get() == generation {
                    let released = ResultPartition::Gone(RELEASED.to_owned());
                    self.graph.set_output(task, released);
                }
            }
            self.out.push(Effect::Cancel { connection, tasks });
        }
    }
}

/// Whether a region may still read a result partition, (task, generation). A generation above the durable one is
/// unexpected and counts as needed.
fn is_needed(
    graph: &ExecutionGraph,
    record: &DurableRecord,
    (task, generation): (usize, u64),
    known: &mut OfVertices,
) -> bool {
    let region = graph.task(task).region;
    let durable = record.durable_generation(region);
    if generation != durable {
        return generation > durable;
    }
    let has_finished = |region: usize| {
        let mut tasks = graph.region(region).tasks.iter();
        tasks.all(|task| record.has_durably_finished(*task))
    };
    let may_read = |reader: usize| !record.is_generation_durable(reader) || !has_finished(reader);
    // Output for readers in the task's own region, over pipelined edges, is released together with it.
    !has_finished(region) || graph.is_read_by(task, known, may_read)
}

/// Whether all inputs of a region over blocking edges have durably finished and are available. The output
/// of a region that is about to run again is not: by the time its reader is deployed it has another
/// generation.
pub(super) fn is_consumable(
    graph: &ExecutionGraph,
    record: &DurableRecord,
    region: usize,
    known: &mut OfVertices,
) -> bool {
    graph.reads_only(region, known, |task| {
        let at = graph.task(task);
        let wanted = record.decided().regions[at.region].generation;
        let is_present = at.execution.generation.get() == wanted;
        let is_durable = record.has_durably_finished(task);
        let is_there = matches!(at.execution.output, ResultPartition::Kept { .. });
        is_present && is_durable && is_there
    })
}
