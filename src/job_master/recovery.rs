//! The part of the core that takes up a stored record: what has finished stays, what is placed is looked for, and what
//! a former term left unplaced starts anew. What becomes of what is looked for is decided in `reconciling.rs`.

use std::sync::Arc;

use tanist_proto::id::Generation;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::core::{JobMasterCore, parse};
use super::execution::{Execution, Place};
use super::execution_graph::{BuildError, RegionPhase};
use super::status::illegal;

impl JobMasterCore {
    /// Takes up what the record says: finished executions stay, those that are placed are awaited where they should be,
    /// and a region that was given up without being placed again gets a new generation, when the backoff is over that it was given up
    /// with.
    pub(super) fn take_over(&mut self, now_ms: u64) -> Result<(), BuildError> {
        self.settled_at_ms = now_ms;
        for region in 0..self.execution.regions.len() {
            self.restore_executions(region)?;
        }
        self.restore_ends()?;
        let waits_for_others = self.is_stop_first() || self.begins_together();
        for region in 0..self.execution.regions.len() {
            let state = &self.record.regions[region];
            let generation = state.generation;
            let was_placed = state.placed_before;
            // Clocks of two leaders may be apart.
            let latest_ms = now_ms.saturating_add(state.restart_delay_ms);
            let restart_at_ms = state.restart_at_ms.clamp(now_ms, latest_ms);
            let tasks = &self.execution.regions[region].tasks;
            let executions = tasks
                .iter()
                .map(|task| &self.execution.tasks[*task].execution);
            let is_finished = executions
                .clone()
                .all(|execution| execution.state == ExecutionState::Finished);
            let is_placed = executions.clone().all(|execution| {
                execution.state == ExecutionState::Reconciling
                    || execution.state == ExecutionState::Finished
            });
            let phase = if is_finished {
                RegionPhase::Deployed
            } else if self.is_stopping() {
                RegionPhase::Stopping {
                    restart_at_ms: None,
                }
            } else if is_placed {
                RegionPhase::Reconciling
            } else if generation > 0 && (waits_for_others || restart_at_ms > now_ms) {
                // What the former term knew of the ends of older generations is not known any more: of those that were placed.
                self.supersede(region);
                self.promise_restart(region, restart_at_ms);
                self.execution.regions[region].is_end_unknown = was_placed;
                if restart_at_ms > now_ms {
                    self.backoff.go_on(restart_at_ms);
                }
                RegionPhase::Stopping {
                    restart_at_ms: Some(restart_at_ms),
                }
            } else {
                if generation > 0 {
                    self.supersede(region);
                }
                self.renew_executions(region);
                RegionPhase::Waiting { since_ms: now_ms }
            };
            self.execution.regions[region].phase = phase;
        }
        self.execution.recount();
        self.await_outputs();
        self.note_adopted_slots();
        self.promise_to_wait();
        let record = Arc::make_mut(&mut self.record);
        record.job_incarnation = record.job_incarnation.saturating_add(1);
        let failures = record
            .restarts
            .iter_mut()
            .flat_map(|it| &mut it.failures_ms);
        // They are over, whatever the clock of the leader showed that noted them.
        failures.for_each(|at_ms| *at_ms = (*at_ms).min(now_ms));
        self.revision += 1;
        self.announce_reconciliation();
        Ok(())
    }

    /// Has the region's executions awaited where the record places them.
    fn restore_executions(&mut self, region: usize) -> Result<(), BuildError> {
        let state = self.record.regions[region].clone();
        for task in self.execution.regions[region].tasks.clone() {
            self.execution.tasks[task].execution =
                Execution::created(Generation::new(state.generation));
        }
        let unknown = |what: &str| BuildError::OtherGraph(format!("it names {what}"));
        let mut before: Option<Arc<pb::TaskManagerLocation>> = None;
        for placement in &state.placements {
            let task = self.execution.find(&placement.vertex_id, placement.subtask);
            let task = task.ok_or_else(|| unknown(&placement.vertex_id))?;
            let location = placement.location.clone().unwrap_or_default();
            // Neighbours often are in the same place.
            let location = match before.take() {
                Some(before) if *before == location => before,
                _ => Arc::new(location),
            };
            before = Some(location.clone());
            let place = Place {
                task_manager: parse(&location.resource_id)
                    .ok_or_else(|| unknown("no TaskManager"))?,
                allocation: parse(&placement.allocation_id).ok_or_else(|| unknown("no slot"))?,
                location,
            };
            let key = self.execution.slot_key(task);
            self.pool
                .remember(key, place.task_manager.clone(), place.allocation);
            if !self.durable_ends.contains_key(&task) {
                self.pool.begin_use(place.allocation);
            }
            let execution = &mut self.execution.tasks[task].execution;
            execution.started_at_ms = state.placed_at_ms;
            let entered = [
                (ExecutionState::Created, state.created_at_ms),
                (ExecutionState::Scheduled, state.scheduled_at_ms),
                (ExecutionState::Deploying, state.placed_at_ms),
            ];
            for (state, at_ms) in entered {
                execution.note_entered(state, at_ms);
            }
            execution.enter(ExecutionState::Reconciling, self.settled_at_ms);
            execution.place = Some(place);
        }
        Ok(())
    }

    /// Gives executions the ends that the record has of them.
    fn restore_ends(&mut self) -> Result<(), BuildError> {
        for end in &self.record.terminal {
            let Some(task) = self.execution.find(&end.vertex_id, end.subtask) else {
                return Err(BuildError::OtherGraph(format!(
                    "it names {}",
                    end.vertex_id
                )));
            };
            let region = self.execution.tasks[task].region;
            if end.generation != self.record.regions[region].generation {
                continue;
            }
            let execution = &mut self.execution.tasks[task].execution;
            let entered = [
                (ExecutionState::Initializing, end.initializing_at_ms),
                (ExecutionState::Running, end.running_at_ms),
                (ExecutionState::Canceling, end.canceling_at_ms),
            ];
            for (state, at_ms) in entered {
                execution.note_entered(state, at_ms);
            }
            // Wherever it was: where a record has no placement, its end is all that counts.
            if execution.place.is_none() {
                execution.enter(ExecutionState::Reconciling, self.settled_at_ms);
            }
            let (from, to) = (execution.state, end.state());
            if !execution.enter(to, end.ended_at_ms) {
                illegal(&self.record.job_id, &from, &to);
                continue;
            }
            execution.cause.clone_from(&end.cause);
            execution.committables.clone_from(&end.committables);
            execution.is_recorded = true;
        }
        Ok(())
    }
}
