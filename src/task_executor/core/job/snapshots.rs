//! The part of a job in checkpoints: snapshots of its executions that are written, aborts, and sources that can begin
//! a checkpoint. Pure.

use std::sync::Arc;
use std::time::Duration;

use tanist_dataflow::CheckpointStatus;
use tanist_ha::clock::Uptime;

use super::Job;
#[cfg(test)]
use crate::core::checkpoints::Checkpoints;
use crate::core::checkpoints::Step;
use crate::core::effect::Effect;
use crate::core::event::WrittenSnapshot;
use crate::core::executions::ExecutionKey;
use crate::core::output::Output;

/// Whether the source of an execution can begin a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceState {
    /// Its task says so.
    Runs,
    /// It has finished.
    Ended,
}

impl Job {
    /// Handles a change of a task's checkpoint status. `has_storage`: objects can be written.
    pub(crate) fn checkpoint_changed(
        &mut self,
        execution: ExecutionKey,
        status: CheckpointStatus,
        has_storage: bool,
        output: &mut Output,
    ) {
        let step = self.checkpoints.update(&execution, status, has_storage);
        self.take_step(execution, step, output);
    }

    /// Notes how long writing a snapshot of a task took.
    pub(crate) fn note_writing(&mut self, execution: ExecutionKey, number: u64, took: Duration) {
        self.checkpoints.note_writing(&execution, number, took);
    }

    /// Handles the end of writing a snapshot of a task. The task may drop it then.
    pub(crate) fn snapshot_written(
        &mut self,
        execution: ExecutionKey,
        number: u64,
        written: Result<WrittenSnapshot, String>,
        output: &mut Output,
    ) {
        let written = written.map(|it| (Arc::new(it.snapshot), it.storage));
        let objects = written.as_ref().ok().map(|(objects, _)| objects.clone());
        self.checkpoints.written(&execution, number, written);
        let task = self.task(execution);
        output.effect(Effect::ReleaseSnapshot(task, number, objects));
    }

    /// Reports to an execution that a checkpoint is aborted.
    pub(crate) fn abort_checkpoint(
        &mut self,
        execution: ExecutionKey,
        number: u64,
        output: &mut Output,
    ) {
        let step = self.checkpoints.abort(&execution, number);
        self.take_step(execution, step, output);
        if self.executions.runs(&execution) {
            let task = self.task(execution);
            output.effect(Effect::AbortCheckpoint(task, number));
        }
    }

    fn take_step(&self, execution: ExecutionKey, step: Step, output: &mut Output) {
        let task = self.task(execution);
        match step {
            Step::Nothing => {}
            Step::Drop => output.effect(Effect::DropSnapshot(task)),
            Step::Write {
                number,
                place,
                snapshot,
            } => output.effect(Effect::WriteSnapshot {
                task,
                number,
                place,
                snapshot,
            }),
        }
    }

    /// Whether an execution runs, or its source has ended, or why neither is so.
    pub(crate) fn source(&self, execution: &ExecutionKey) -> Result<SourceState, String> {
        if self.executions.runs(execution) {
            Ok(SourceState::Runs)
        } else if self.checkpoints.has_finished(execution) {
            Ok(SourceState::Ended)
        } else {
            Err("it does not run on this TaskManager".to_owned())
        }
    }

    /// Ends a call with reports of checkpoints. With `retry_at` it failed, and they are sent again then.
    pub(crate) fn finish_checkpoint_report(&mut self, call: u64, retry_at: Option<Uptime>) {
        self.checkpoints.finish_report(call, retry_at);
    }

    /// Has tasks decline the checkpoint for which they block inputs, once there has been no JobMaster for a while.
    pub(crate) fn review_decline(&mut self, now: Uptime, is_led: bool, output: &mut Output) {
        let is_silent = self.connection.doubted_at().is_none_or(|at| at <= now);
        if self.decline_timer.review(now, is_led && !is_silent) {
            for execution in self.checkpoints.take_blocked() {
                output.effect(Effect::DeclineBlocked(self.task(execution)));
            }
        }
    }

    /// The checkpoint states of its executions.
    #[cfg(test)]
    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }
}
