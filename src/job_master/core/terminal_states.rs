//! Adds the ends of executions to the decided record, each once: those of FINISHED executions, and all of them once the
//! job has to end. Also removes coordinators that no execution needs any more. A handler: it has no state itself.

use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::coordinator::Coordinators;
use super::durable_record::DurableRecord;
use super::execution_graph::ExecutionGraph;
use super::slots::Slots;

/// Borrows what the terminal states of executions change.
pub(super) struct TerminalStates<'a> {
    pub(super) graph: &'a mut ExecutionGraph,
    pub(super) record: &'a mut DurableRecord,
    pub(super) slots: &'a mut Slots,
    pub(super) coordinators: &'a mut Coordinators,
    /// Whether a write has become durable in this step.
    pub(super) has_written: bool,
}

impl TerminalStates<'_> {
    /// Adds missing terminal states to the record. The end of an execution that only leads to a restart is never added.
    pub(super) fn record_ends(&mut self) {
        let mut ended = self.graph.take_newly_ended();
        for task in &ended {
            self.coordinators.recheck_requests(*task);
            self.slots.recheck_adopted(self.graph, *task);
        }
        let is_stopping = self.record.is_stopping();
        // When the job has to end, executions that ended before are recorded, too.
        if is_stopping && self.record.take_all_ends() {
            ended = (0..self.graph.tasks().len()).collect();
        }
        ended.sort_unstable();
        for task in ended {
            let at = self.graph.task(task);
            let execution = &at.execution;
            let is_of_record =
                self.record.decided().regions[at.region].generation == execution.generation.get();
            let counts = is_stopping || execution.state == ExecutionState::Finished;
            if !execution.is_ended() || execution.is_recorded || !is_of_record || !counts {
                continue;
            }
            let end = pb::TerminalExecution {
                vertex_id: self.graph.vertex_of(task).id.to_string(),
                subtask: at.subtask,
                generation: execution.generation.get(),
                state: execution.state.into(),
                cause: execution.cause.clone(),
                committables: execution.committables.clone(),
                checkpoint_committables: execution.checkpoint_committables.clone(),
                ended_at_ms: execution.ended_at_ms,
                initializing_at_ms: execution.entered_at_ms(ExecutionState::Initializing),
                running_at_ms: execution.entered_at_ms(ExecutionState::Running),
                canceling_at_ms: execution.entered_at_ms(ExecutionState::Canceling),
                highest_checkpoint: execution.highest_checkpoint,
            };
            self.record.record_end(end);
            self.graph.set_recorded(task);
        }
        // A job that has nothing more to run keeps its coordinators to the end.
        if self.has_written && !self.record.all_have_durably_finished() {
            self.coordinators.forget_finished(self.record, self.graph);
        }
    }
}
