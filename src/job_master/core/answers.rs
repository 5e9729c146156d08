//! Applies answers to requests: deployments, cancellations, preparations. A handler: it has no state itself.
//!
//! Neither a missing answer nor a refusal proves that a task does not run. Tasks in doubt are cancelled, and
//! a report is requested.

use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::execution_graph::execution::Cancellation;
use super::reports::Reports;
use super::{Connection, Effect, SubmitOutcome, Unprepared};

impl Reports<'_> {
    /// Applies the answer to a deployment. An execution that was started has to be in full reports from this step on.
    /// The region of an execution that was refused, or whose outcome is unknown, fails.
    pub(super) fn apply_submitted(
        &mut self,
        task_manager: &ResourceId,
        tasks: &[pb::ExecutionId],
        outcome: &SubmitOutcome,
    ) {
        for id in tasks {
            let Some(task) = self.graph.find(&id.vertex_id, id.subtask) else {
                continue;
            };
            let execution = self.graph.execution(task);
            let is_present =
                execution.generation.get() == id.generation && execution.is_on(task_manager);
            if !is_present || execution.known_since.is_some() || !execution.is_deployed() {
                continue;
            }
            // Neither a refusal nor silence proves that it does not run (an earlier copy of the message may
            // have been accepted), so it is cancelled and not assumed to be gone.
            let cause = match outcome {
                SubmitOutcome::Answered(refused) => {
                    let is_it = |refused: &&pb::TaskRefusal| {
                        refused.vertex_id == id.vertex_id && refused.subtask == id.subtask
                    };
                    let Some(refusal) = refused.iter().find(is_it) else {
                        self.graph.note_known(task, self.turn);
                        continue;
                    };
                    format!("the deployment was refused: {}", refusal.reason)
                }
                // Its next registration says what runs there, or its heartbeats that it is gone.
                SubmitOutcome::Outdated => continue,
                SubmitOutcome::Unknown(reason) => {
                    format!("the deployment has an unknown outcome: {reason}")
                }
            };
            self.fail_region_of(task, cause);
        }
    }

    /// Applies the answer to a cancellation. If it was confirmed for an execution that the TaskManager had never
    /// reported, a full report has to show whether the execution is gone.
    pub(super) fn apply_cancelled(
        &mut self,
        connection: &Connection,
        tasks: &[pb::TaskCancellation],
        is_confirmed: bool,
    ) {
        let answer = if is_confirmed {
            Cancellation::Confirmed
        } else {
            Cancellation::Failed
        };
        let mut is_unsure = false;
        for cancelled in tasks {
            let Some(task) = self.graph.find(&cancelled.vertex_id, cancelled.subtask) else {
                continue;
            };
            let execution = self.graph.execution(task);
            if execution.is_on(&connection.task_manager)
                && execution.generation.get() <= cancelled.up_to_generation
                && execution.cancellation == Cancellation::Sent
            {
                is_unsure |=
                    is_confirmed && execution.known_since.is_none() && !execution.is_ended();
                self.graph.answer_cancellation(task, answer);
                if is_confirmed {
                    self.graph.note_known(task, self.turn);
                }
            }
            let (id, up_to) = (&connection.task_manager, cancelled.up_to_generation);
            self.task_managers.note_cancelled(id, task, up_to, answer);
        }
        if is_unsure {
            self.out.push(Effect::AskReport(connection.clone()));
        }
    }

    /// Applies the result of a preparation of coordinators.
    pub(super) fn apply_prepared(
        &mut self,
        region: usize,
        generation: u64,
        outcome: Result<Vec<pb::CoordinatorState>, Unprepared>,
    ) {
        let coordinators = &mut self.coordinators;
        let failures = coordinators.apply_prepared(region, generation, outcome, self.graph);
        for failure in failures {
            self.failover.report(failure);
        }
    }
}
