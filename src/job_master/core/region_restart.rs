//! Runs regions again that were given up. Three conditions must hold: the give-up is durable, all executions have
//! ended, and the backoff is over. An isolated job also waits for executions whose end is unknown. The last condition
//! to be met triggers the restart, so each has to be noted: the write, the end of an execution, the deadline.

use std::collections::BTreeMap;

use tanist_proto::id::{Generation, ResourceId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::Effect;
use super::durable_record::DurableRecord;
use super::execution_graph::deployment::{cancellation, execution_id};
use super::execution_graph::execution::Execution;
use super::execution_graph::{ExecutionGraph, RegionPhase};
use super::failover::Failover;
use super::output::Output;
use super::slots::Slots;
use super::task_managers::TaskManagers;

/// Borrows what the decisions about restarts need.
pub(super) struct RegionRestart<'a> {
    pub(super) failover: &'a mut Failover,
    pub(super) graph: &'a mut ExecutionGraph,
    pub(super) record: &'a DurableRecord,
    pub(super) slots: &'a mut Slots,
    pub(super) task_managers: &'a TaskManagers,
    pub(super) out: &'a mut Output,
    pub(super) now_ms: u64,
}

impl RegionRestart<'_> {
    /// In regions that stop, marks executions CANCELED that were never deployed.
    pub(super) fn stop_regions(&mut self) {
        let regions = self.graph.regions().len();
        if self.record.is_stopping() && self.graph.in_phase(RegionPhase::STOPPING).len() < regions {
            for region in 0..regions {
                self.graph.set_phase(region, RegionPhase::STOPPING);
            }
        }
        for region in self.graph.take_newly_stopping() {
            let phase = self.graph.region(region).phase;
            if !matches!(phase, RegionPhase::Stopping { .. }) {
                continue;
            }
            for task in self.graph.region(region).tasks.clone() {
                let execution = self.graph.execution(task);
                if !execution.is_deployed() && !execution.is_ended() {
                    self.graph
                        .decide(task, ExecutionState::Canceled, self.now_ms, self.out);
                }
            }
        }
    }

    /// Restarts regions for which all conditions hold. The last one to be met triggers the check. `has_written`: a
    /// write has become durable in this step.
    pub(super) fn restart_regions(&mut self, has_written: bool) {
        let mut may_restart = self.graph.take_newly_stopped();
        if has_written {
            may_restart.extend(self.graph.restarting().iter().copied());
        }
        may_restart.extend(self.failover.take_due(self.graph, self.now_ms));
        let restarts_together = self.failover.restarts_together();
        if restarts_together && !may_restart.is_empty() {
            may_restart.clone_from(self.graph.restarting());
        }
        let mut may_start = Vec::new();
        for region in may_restart {
            let RegionPhase::Stopping {
                restart_at_ms: Some(at_ms),
            } = self.graph.region(region).phase
            else {
                continue;
            };
            if !self.record.is_generation_durable(region) || self.is_held(region) {
                continue;
            }
            if self.now_ms >= at_ms && self.graph.region_is_ended(region) {
                may_start.push(region);
            }
        }
        if restarts_together && may_start.len() < self.graph.restarting().len() {
            return;
        }
        for region in may_start {
            self.renew_executions(region);
            let since_ms = self.now_ms;
            self.graph
                .set_phase(region, RegionPhase::Waiting { since_ms });
        }
    }

    fn is_held(&mut self, region: usize) -> bool {
        self.failover
            .hold(region, self.graph, self.record, self.now_ms, self.out)
    }

    /// Creates executions of the generation in the record. They prefer the slots of the former ones. Former
    /// executions that ended by themselves may have left output on their TaskManager that no task will read:
    /// it is released by a cancellation.
    pub(super) fn renew_executions(&mut self, region: usize) {
        let generation = self.record.decided().regions[region].generation;
        let generation = Generation::new(generation);
        let at_ms = self.created_at_ms(generation);
        let mut left: BTreeMap<ResourceId, Vec<pb::TaskCancellation>> = BTreeMap::new();
        for task in self.graph.region(region).tasks.clone() {
            let mut execution = Execution::created(generation);
            execution.note_entered(ExecutionState::Created, at_ms);
            let former = self.graph.replace(task, execution);
            if let Some(place) = former.place {
                if matches!(
                    former.state,
                    ExecutionState::Finished | ExecutionState::Failed
                ) {
                    let id = execution_id(self.graph, task, former.generation.get());
                    let there = left.entry(place.task_manager.clone()).or_default();
                    there.push(cancellation(id));
                }
                if !self.record.has_durable_end(task) {
                    self.slots.end_use(place.allocation);
                }
                let key = self.graph.slot_key(task);
                self.slots
                    .remember(key, place.task_manager, place.allocation);
            }
        }
        self.graph.forget_given_up(region);
        for (task_manager, tasks) in left {
            if let Some(connection) = self.task_managers.connection(&task_manager) {
                self.out.push(Effect::Cancel { connection, tasks });
            }
        }
    }

    /// When executions of a generation that are made at present were CREATED. Those of a region that was
    /// never placed exist since the job's submission, under any leader.
    fn created_at_ms(&self, generation: Generation) -> u64 {
        let mut entered = self.record.decided().statuses.iter();
        let created = entered.find(|it| it.status() == pb::JobStatus::Created);
        match created {
            Some(created) if generation.get() == 0 => created.at_ms,
            Some(_) | None => self.now_ms,
        }
    }
}
