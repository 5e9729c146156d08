//! Restores the state of a job from its record, at the beginning of a term: finished executions stay, placed ones are
//! awaited, regions that an earlier term left unplaced start again. `reconciling.rs` decides about awaited executions.
//! A record that does not fit the graph is an error: the half-restored core is dropped, and nothing is written.

use std::sync::Arc;

use tanist_proto::id::Generation;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::BuildError;
use super::execution_graph::RegionPhase;
use super::execution_graph::execution::{Execution, Place};
use super::status::illegal;
use super::{JobMasterCore, parse};

impl JobMasterCore {
    /// Restores the state from the record. Finished executions stay. Placed ones are awaited on their
    /// TaskManagers. A region that was given up and not placed again gets a new generation, to be placed when
    /// its recorded backoff is over.
    pub(super) fn restore(&mut self, now_ms: u64) -> Result<(), BuildError> {
        self.decided_at_ms = now_ms;
        for region in 0..self.graph.regions().len() {
            self.restore_executions(region)?;
        }
        self.restore_ends()?;
        for region in 0..self.graph.regions().len() {
            let (phase, is_end_unknown) = self.restored_phase(region, now_ms);
            self.graph.restore_phase(region, phase, is_end_unknown);
        }
        self.graph.recount();
        self.graph.await_outputs(self.record.is_stopping());
        self.slots.adopt_all(&self.graph);
        // TaskManagers stop the attempts of an isolated job by themselves within this time.
        let wait_ms = self.options.reconcile_timeout_ms;
        let wait_ms = self.failover.is_stop_first().then_some(wait_ms);
        let takes_checkpoints = self.checkpointing.is_on();
        self.record.take_over(wait_ms, takes_checkpoints, now_ms);
        self.announce_reconciliation();
        Ok(())
    }

    /// The phase of a region: the first of five rules that applies. The flag says that executions of the former
    /// generation may still run: only the former term knew which had ended.
    fn restored_phase(&mut self, region: usize, now_ms: u64) -> (RegionPhase, bool) {
        let state = &self.record.decided().regions[region];
        let (generation, was_placed) = (state.generation, state.placed_before);
        // The clocks of two leaders may differ.
        let latest_ms = now_ms.saturating_add(state.restart_delay_ms);
        let restart_at_ms = state.restart_at_ms.clamp(now_ms, latest_ms);
        let tasks = self.graph.region(region).tasks.iter();
        let states = tasks.map(|task| self.graph.execution(*task).state);
        // It has finished: it runs again only if its output is lost.
        if states.clone().all(|it| it == ExecutionState::Finished) {
            return (RegionPhase::Deployed, false);
        }
        // The job is to end: nothing starts again.
        if self.record.is_stopping() {
            let restart_at_ms = None;
            return (RegionPhase::Stopping { restart_at_ms }, false);
        }
        // It was placed: its tasks may run, and are adopted if their TaskManagers report them.
        let may_run = [ExecutionState::Reconciling, ExecutionState::Finished];
        if states.clone().all(|it| may_run.contains(&it)) {
            return (RegionPhase::Reconciling, false);
        }
        // It was given up, and restarts later: after its backoff, after all others have stopped (full failover), or
        // once no execution of its former generation can run any more (stop-first). Which of these have ended, if
        // there were any, only the former term knew.
        let waits_for_others = self.failover.is_stop_first() || self.failover.restarts_together();
        if generation > 0 && (waits_for_others || restart_at_ms > now_ms) {
            self.region_failover(now_ms)
                .give_up_generation(region, restart_at_ms);
            if restart_at_ms > now_ms {
                self.failover.resume(restart_at_ms);
            }
            let restart_at_ms = Some(restart_at_ms);
            return (RegionPhase::Stopping { restart_at_ms }, was_placed);
        }
        // It was never placed, or restarts at once.
        if generation > 0 {
            self.region_failover(now_ms)
                .give_up_generation(region, now_ms);
        }
        self.region_restart(now_ms).renew_executions(region);
        (RegionPhase::Waiting { since_ms: now_ms }, false)
    }

    /// Marks the region's executions as awaited where the record places them.
    fn restore_executions(&mut self, region: usize) -> Result<(), BuildError> {
        let state = self.record.decided().regions[region].clone();
        for task in self.graph.region(region).tasks.clone() {
            let generation = Generation::new(state.generation);
            self.graph.restore(task, Execution::created(generation));
        }
        let damaged = |lacks: &str| BuildError::Damaged(format!("a placement names {lacks}"));
        let mut before: Option<Arc<pb::TaskManagerLocation>> = None;
        for placement in &state.placements {
            let task = self.graph.find(&placement.vertex_id, placement.subtask);
            let task = task.ok_or_else(|| unknown_task(&placement.vertex_id))?;
            let location = placement.location.clone().unwrap_or_default();
            // Saves memory: neighbours are often on the same TaskManager.
            let location = match before.take() {
                Some(before) if *before == location => before,
                _ => Arc::new(location),
            };
            before = Some(location.clone());
            let place = Place {
                task_manager: parse(&location.resource_id)
                    .ok_or_else(|| damaged("no TaskManager"))?,
                allocation: parse(&placement.allocation_id).ok_or_else(|| damaged("no slot"))?,
                location,
            };
            let key = self.graph.slot_key(task);
            self.slots
                .remember(key, place.task_manager.clone(), place.allocation);
            if !self.record.has_durable_end(task) {
                self.slots.begin_use(place.allocation);
            }
            let mut execution = self.graph.execution(task).clone();
            execution.started_at_ms = state.placed_at_ms;
            let entered = [
                (ExecutionState::Created, state.created_at_ms),
                (ExecutionState::Scheduled, state.scheduled_at_ms),
                (ExecutionState::Deploying, state.placed_at_ms),
            ];
            for (state, at_ms) in entered {
                execution.note_entered(state, at_ms);
            }
            execution.enter(ExecutionState::Reconciling, self.decided_at_ms);
            execution.place = Some(place);
            self.graph.restore(task, execution);
        }
        Ok(())
    }

    /// Restores the recorded terminal states of executions.
    fn restore_ends(&mut self) -> Result<(), BuildError> {
        for end in &self.record.decided().terminal {
            let Some(task) = self.graph.find(&end.vertex_id, end.subtask) else {
                return Err(unknown_task(&end.vertex_id));
            };
            let region = self.graph.task(task).region;
            if end.generation != self.record.decided().regions[region].generation {
                continue;
            }
            let mut execution = self.graph.execution(task).clone();
            let entered = [
                (ExecutionState::Initializing, end.initializing_at_ms),
                (ExecutionState::Running, end.running_at_ms),
                (ExecutionState::Canceling, end.canceling_at_ms),
            ];
            for (state, at_ms) in entered {
                execution.note_entered(state, at_ms);
            }
            // Without a placement in the record, only the terminal state matters.
            if execution.place.is_none() {
                execution.enter(ExecutionState::Reconciling, self.decided_at_ms);
            }
            let (from, to) = (execution.state, end.state());
            if execution.enter(to, end.ended_at_ms) {
                execution.cause.clone_from(&end.cause);
                execution.committables.clone_from(&end.committables);
                let committables = &end.checkpoint_committables;
                execution.checkpoint_committables.clone_from(committables);
                execution.highest_checkpoint = end.highest_checkpoint;
                execution.is_recorded = true;
            } else {
                let job = &self.record.decided().job_id;
                self.out.log(illegal(job, &from, &to));
            }
            self.graph.restore(task, execution);
        }
        Ok(())
    }
}

fn unknown_task(vertex: &str) -> BuildError {
    BuildError::OtherGraph(format!("it names {vertex}"))
}
