//! Derives effects from the durable record: deployments, cancellations, acknowledgements. Decides nothing.
//!
//! Invariant: an effect follows from the durable record alone, never from a decision that is only being written. So a
//! term that has lost its leadership deploys and cancels nothing that the store does not have.

use std::collections::BTreeMap;

use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::checkpointing::Checkpointing;
use super::dirty::Dirty;
use super::durable_record::DurableRecord;
use super::execution_graph::deployment::{cancellation, execution_id, task_deployment};
use super::execution_graph::execution::Cancellation;
use super::execution_graph::{ExecutionGraph, RegionPhase};
use super::output::Output;
use super::task_managers::TaskManagers;
use super::{Effect, checkpoints};

/// Borrows what the effects of the durable record need.
pub(super) struct DurableEffects<'a> {
    pub(super) graph: &'a mut ExecutionGraph,
    pub(super) record: &'a DurableRecord,
    pub(super) task_managers: &'a mut TaskManagers,
    pub(super) dirty: &'a mut Dirty,
    pub(super) out: &'a mut Output,
    pub(super) checkpointing: &'a Checkpointing,
    pub(super) now_ms: u64,
}

impl DurableEffects<'_> {
    /// Deploys regions whose placement is durable and of this term. Each TaskManager gets one message.
    pub(super) fn deploy(&mut self) {
        if !self.dirty.has_written() {
            return;
        }
        let mut by_task_manager: BTreeMap<ResourceId, Vec<usize>> = BTreeMap::new();
        let mut restored_from: BTreeMap<usize, u64> = BTreeMap::new();
        for region in self.graph.in_phase(RegionPhase::Placed).clone() {
            let Some(durable) = self.record.placement_to_deploy(region) else {
                continue;
            };
            // The time in the record, so that the next leader shows the same.
            let placed_at_ms = durable.placed_at_ms;
            let (generation, number) = (durable.generation, durable.restored_from);
            restored_from.insert(region, number);
            let mut places = Vec::new();
            for task in self.graph.region(region).tasks.clone() {
                self.graph.deploy(task, placed_at_ms, self.out);
                if let Some(place) = &self.graph.execution(task).place {
                    let tasks = by_task_manager.entry(place.task_manager.clone());
                    tasks.or_default().push(task);
                    places.push((task, place.task_manager.clone()));
                }
            }
            self.out.tell(checkpoints::Event::RegionPlaced {
                region,
                generation,
                places,
            });
            self.graph.set_phase(region, RegionPhase::Deployed);
        }
        for (task_manager, tasks) in by_task_manager {
            let tasks = tasks.iter().map(|task| {
                let region = self.graph.task(*task).region;
                let number = restored_from.get(&region).copied().unwrap_or_default();
                let takes_checkpoints = self.checkpointing.takes_part(region);
                task_deployment(self.graph, *task, number, takes_checkpoints)
            });
            let tasks = tasks.collect();
            if let Some(connection) = self.task_managers.connection(&task_manager) {
                self.out.push(Effect::Deploy { connection, tasks });
            }
        }
    }

    /// Cancels executions that the durable record does not want, on any TaskManager.
    pub(super) fn cancel_tasks(&mut self) {
        if !self.record.is_durable() {
            return;
        }
        let is_over = self.record.is_durably_stopping();
        let mut cancellations: BTreeMap<ResourceId, Vec<pb::TaskCancellation>> = BTreeMap::new();
        for task in self.unwanted(is_over) {
            let at = self.graph.task(task);
            if !at.execution.is_deployed() {
                continue;
            }
            let generation = at.execution.generation.get();
            let Some(place) = at.execution.place.clone() else {
                continue;
            };
            let is_registered = self.task_managers.is_registered(&place.task_manager);
            if !is_registered || at.execution.cancellation != Cancellation::NotSent {
                continue;
            }
            let id = execution_id(self.graph, task, generation);
            cancellations
                .entry(place.task_manager)
                .or_default()
                .push(cancellation(id));
            self.graph.cancel(task, self.now_ms, self.out);
        }
        let (graph, durable) = (&*self.graph, self.record.durable());
        let is_unwanted = |location: &pb::TaskManagerLocation, (task, generation)| {
            let number = graph.task(task).region;
            let region = &durable.regions[number];
            let at = graph.region(number).tasks.binary_search(&task);
            let id = execution_id(graph, task, generation);
            // A generation above the durable one is unexpected, but nothing says that it is unwanted.
            generation < region.generation
                || generation == region.generation
                    && (is_over || !is_placed_on(region, at.ok(), &id, location))
        };
        let orphans = self.task_managers.cancel_orphans(is_unwanted, self.now_ms);
        for (task_manager, (task, generation)) in orphans {
            let id = execution_id(graph, task, generation);
            let there = cancellations.entry(task_manager).or_default();
            there.push(cancellation(id));
        }
        for (task_manager, tasks) in cancellations {
            if let Some(connection) = self.task_managers.connection(&task_manager) {
                self.out.push(Effect::Cancel { connection, tasks });
            }
        }
    }

    /// The tasks whose present execution the durable record does not want and that were not examined since
    /// that record became durable.
    fn unwanted(&self, is_over: bool) -> Vec<usize> {
        // All executions of a region have the same generation.
        let is_replaced = |region: usize| {
            let first = self.graph.region(region).tasks.first();
            let generation = first.map(|task| self.graph.execution(*task).generation);
            let durable = self.record.durable_generation(region);
            generation.is_some_and(|generation| durable > generation.get())
        };
        let tasks_of = |region: usize| self.graph.region(region).tasks.iter().copied();
        if !self.dirty.has_written() {
            let open = self.dirty.to_cancel();
            let region = |task: usize| self.graph.task(task).region;
            return open
                .filter(|task| is_over || is_replaced(region(*task)))
                .collect();
        }
        if is_over {
            return (0..self.graph.tasks().len()).collect();
        }
        // A given-up generation has to stop, whether the region restarts or not.
        let mut replaced: Vec<usize> = self.graph.stopping().collect();
        replaced.retain(|region| is_replaced(*region));
        replaced.sort_unstable();
        replaced.into_iter().flat_map(tasks_of).collect()
    }

    /// Sends a heartbeat immediately to TaskManagers that have not received the stop in their present
    /// registration.
    pub(super) fn send_stop(&mut self) {
        if !self.record.is_stop_durable() || self.record.is_stopping() {
            return;
        }
        for connection in self.task_managers.begin_stop() {
            self.out.push(Effect::AskReport(connection));
        }
    }

    /// Acknowledges terminal states that are in the durable record, or whose generation it has replaced.
    pub(super) fn acknowledge(&mut self) {
        if !self.record.is_durable() {
            return;
        }
        let among = self.dirty.take_reported_ends();
        let (graph, record) = (&*self.graph, self.record);
        let acknowledged = self.task_managers.acknowledge(among, |(task, generation)| {
            let durable = record.durable_generation(graph.task(task).region);
            let is_recorded = durable == generation && record.has_durable_end(task);
            is_recorded || durable > generation
        });
        for (connection, ends) in acknowledged {
            let ends = ends.into_iter();
            let executions = ends.map(|(task, generation)| execution_id(graph, task, generation));
            self.out.push(Effect::Acknowledge {
                connection,
                executions: executions.collect(),
            });
        }
    }
}

/// Whether the record places an execution on this TaskManager. `at` is its most likely index among the
/// region's placements.
fn is_placed_on(
    region: &pb::RegionState,
    at: Option<usize>,
    id: &pb::ExecutionId,
    location: &pb::TaskManagerLocation,
) -> bool {
    let likely = at.and_then(|at| region.placements.get(at));
    likely
        .into_iter()
        .chain(&region.placements)
        .any(|placement| {
            placement.vertex_id == id.vertex_id
                && placement.subtask == id.subtask
                && placement.location.as_ref().is_some_and(|placed| {
                    placed.resource_id == location.resource_id
                        && placed.incarnation == location.incarnation
                })
        })
}
