//! The tasks of a job: how they are admitted, change, and are cancelled, and which are superseded. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use tanist_ha::clock::{Uptime, millis};
use tanist_proto::id::{AllocationId, Generation, JobVertexId};
use tanist_proto::v1 as pb;

use super::Job;
use crate::Fatal;
use crate::core::checkpoints::SnapshotPlace;
use crate::core::effect::Effect;
use crate::core::executions::{CancellationTimeouts, ExecutionKey};
use crate::core::log_line::LogLine;
use crate::core::output::Output;
use crate::launcher::TaskStatus;

/// What an execution begins with.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// Where it writes objects.
    pub place: SnapshotPlace,
    /// The checkpoint that it is restored from; 0: it begins from the start.
    pub restored_from: u64,
    /// Whether its region takes part in checkpoints. If it does not, it still can under a later leader: then it is
    /// reported from the first number on that its task receives.
    pub takes_checkpoints: bool,
}

impl Job {
    /// Records the regions of deployed tasks, and the vertices whose outputs are kept after their end.
    pub(crate) fn record_deployment(
        &mut self,
        tasks: &[pb::TaskDeployment],
        kept_vertices: BTreeSet<JobVertexId>,
    ) {
        self.regions.record(tasks);
        self.executions.keep_outputs_of(kept_vertices);
    }

    /// The generation of an execution's region, out of those of all regions.
    pub(crate) fn stored_generation(
        &self,
        execution: &ExecutionKey,
        regions: &[Generation],
    ) -> Option<Generation> {
        self.regions.generation(execution, regions)
    }

    /// Admits an execution, or returns why it may not start. The job's record has its generation: older ones have no
    /// effect any more, and are cancelled.
    pub(crate) fn admit(
        &mut self,
        execution: ExecutionKey,
        allocation: AllocationId,
        begins: Beginning,
        timeouts: CancellationTimeouts,
        output: &mut Output,
    ) -> Result<(), String> {
        let now = timeouts.from;
        self.executions.admit(execution, allocation, now)?;
        self.checkpoints.admit(execution, begins);
        let older = execution.previous();
        let superseded = self.executions.cancel_up_to(older, timeouts);
        output.cancel(self.id, superseded);
        self.has_files = true;
        Ok(())
    }

    /// Handles a change of a task's status.
    pub(crate) fn task_changed(
        &mut self,
        now: Uptime,
        execution: ExecutionKey,
        status: TaskStatus,
        metrics: Option<pb::TaskMetrics>,
        output: &mut Output,
    ) {
        let is_final = status.is_terminal();
        if is_final {
            self.outbox.drop_requests_of(&execution, output);
            let is_finished = matches!(status, TaskStatus::Finished { .. });
            let highest = self.checkpoints.end(&execution, is_finished);
            self.executions.set_highest_checkpoint(&execution, highest);
        }
        let has_changed = self.executions.update(&execution, status, metrics, now);
        if has_changed && is_final && self.executions.is_cancelled(&execution) {
            output.effect(Effect::ReleaseTask(self.task(execution)));
        }
    }

    /// Notes why the snapshot from which an execution is restored can't be read at present.
    pub(crate) fn note_unread_state(&mut self, execution: ExecutionKey, reason: String) {
        self.executions.note_unread_state(&execution, reason);
    }

    /// Sets all notices of an execution for users.
    pub(crate) fn set_notices(&mut self, execution: ExecutionKey, notices: Vec<String>) {
        self.executions.set_notices(&execution, notices);
    }

    /// Whether a task of the job that was not cancelled runs in a slot. Logs that: the caller considers the slot idle.
    pub(crate) fn continues_in(&self, allocation: AllocationId, output: &mut Output) -> bool {
        let continues = self.executions.continues_in(allocation);
        if continues {
            let job = self.id;
            output.log(LogLine::SlotKept { job, allocation });
        }
        continues
    }

    /// Forgets an execution whose terminal state is in the job's record.
    pub(crate) fn acknowledge(&mut self, execution: &ExecutionKey) {
        self.executions.acknowledge(execution);
    }

    /// Cancels a subtask up to this generation, and forbids these generations.
    pub(crate) fn cancel_up_to(
        &mut self,
        up_to: ExecutionKey,
        timeouts: CancellationTimeouts,
        output: &mut Output,
    ) {
        let cancelled = self.executions.cancel_up_to(up_to, timeouts);
        self.checkpoints.forget_up_to(up_to);
        // The output of a running task is released after its end: without its output it would seem to have failed.
        if !self.executions.is_running_up_to(up_to) {
            output.effect(Effect::ReleaseTask(self.task(up_to)));
        }
        output.cancel(self.id, cancelled);
    }

    /// Cancels the tasks in a slot that the job loses, and does not offer it any more.
    pub(crate) fn lose_slot(
        &mut self,
        allocation: AllocationId,
        timeouts: CancellationTimeouts,
        output: &mut Output,
    ) {
        self.outbox.withdraw_offer(allocation);
        let cancelled = self.executions.cancel_in(allocation, timeouts);
        output.cancel(self.id, cancelled);
    }

    /// Cancels all tasks. Returns the number of those that were not cancelled before.
    pub(crate) fn cancel_all(
        &mut self,
        timeouts: CancellationTimeouts,
        output: &mut Output,
    ) -> usize {
        let cancelled = self.executions.cancel_all(timeouts);
        let count = cancelled.len();
        output.cancel(self.id, cancelled);
        count
    }

    /// Cancels tasks of which the store has a younger generation. Returns whether any such task still runs.
    pub(crate) fn cancel_superseded(
        &mut self,
        regions: &[Generation],
        timeouts: CancellationTimeouts,
        output: &mut Output,
    ) -> bool {
        let stored = |key: &ExecutionKey| self.regions.generation(key, regions);
        let cancelled = self.executions.supersede(&stored, timeouts);
        let is_running = self.executions.runs_superseded(&stored);
        if !cancelled.is_empty() {
            output.log(LogLine::TasksSuperseded {
                job: self.id,
                tasks: cancelled.len(),
            });
            output.cancel(self.id, cancelled);
        }
        is_running
    }

    /// Repeats cancellations that are due. A task that did not end within `timeout` is fatal.
    pub(crate) fn review_cancellations(
        &mut self,
        now: Uptime,
        timeout: Duration,
        output: &mut Output,
    ) {
        let job = self.id;
        for (execution, since) in self.executions.take_due_cancellations(now) {
            output.log(LogLine::TaskStillRuns {
                job,
                vertex: execution.vertex,
                subtask: execution.subtask,
                ms: millis(now - since),
            });
            output.cancel(job, vec![execution]);
        }
        if let Some(overdue) = self.executions.take_overdue(now).first() {
            let (vertex, subtask) = (overdue.vertex, overdue.subtask);
            output.effect(Effect::Fatal(Fatal::CancellationTimedOut(format!(
                "task {vertex}/{subtask} of job {job} did not end within {timeout:?} after its \
                 cancellation"
            ))));
        }
    }

    /// Extends the deadlines of cancelled tasks.
    pub(crate) fn extend_deadlines(&mut self, by: Duration) {
        self.executions.extend_deadlines(by);
    }

    /// Ends the sources of the running tasks, and of those that start later.
    pub(crate) fn stop_sources(&mut self, output: &mut Output) {
        if !std::mem::replace(&mut self.is_stopped, true) {
            output.log(LogLine::JobStopped { job: self.id });
        }
        for execution in self.executions.running() {
            output.effect(Effect::Stop(self.task(execution)));
        }
    }
}
