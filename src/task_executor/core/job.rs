//! A job on a TaskExecutor: its executions, the connection to its JobMaster, and what is sent there. Pure.
//!
//! - A job that has ended here is not connected any more, and is forgotten when its tasks have ended.
//! - A job that is being stopped stays so: the sources of tasks that start later end, too.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tanist_dataflow::{CheckpointStatus, Requester};
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::{Uptime, millis};
use tanist_ha::election::ClusterIncarnation;
use tanist_proto::id::{AllocationId, Generation, JobId, JobVertexId};
use tanist_proto::v1 as pb;

use super::checkpoints::{Absence, Checkpoints, Step};
use super::connection::{Connection, Registration, SilenceTimeouts};
use super::effect::{Effect, TaskKey};
use super::executions::{CancellationTimeouts, ExecutionKey, Executions, Metrics};
use super::graphs::KnownGraph;
use super::log_line::LogLine;
use super::outbox::{Outbox, Route, scope};
use super::output::Output;
use super::regions::Regions;
use super::slot_table::SlotTable;
use crate::Fatal;
use crate::launcher::TaskStatus;

/// What an execution begins with.
#[derive(Debug)]
pub(super) struct Beginning {
    /// The cluster of its deployment.
    pub cluster: ClusterIncarnation,
    /// The checkpoint that it is restored from; 0: it begins from the start.
    pub restored_from: u64,
    /// Whether its region takes part in checkpoints. Under a later leader it may though it does not: then it is
    /// reported from the first number on that it hears of.
    pub takes_checkpoints: bool,
}

/// Whether the source of an execution can begin a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceState {
    /// Its task says so.
    Runs,
    /// It has finished.
    Ended,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Job {
    id: JobId,
    /// Highest known incarnation of the job's JobMaster.
    incarnation: u64,
    /// The connection to its JobMaster.
    connection: Connection,
    outbox: Outbox,
    executions: Executions,
    checkpoints: Checkpoints,
    /// The absence of its JobMaster.
    absence: Absence,
    /// The pipelined regions of its deployed tasks.
    regions: Regions,
    /// Its graph, if deployments only name it and it was fetched.
    graph: Option<KnownGraph>,
    /// Whether files may be kept for its next tasks: some tasks started since it last had no slot.
    has_files: bool,
    /// Whether its sources must end.
    is_stopped: bool,
    /// Whether it has ended and only waits for its tasks to end.
    is_ending: bool,
}

impl Job {
    /// Without slots and executions. The runs of its connection are above `run`.
    pub(super) fn new(id: JobId, run: u64) -> Job {
        Job {
            id,
            incarnation: 0,
            connection: Connection::idle(run),
            outbox: Outbox::new(),
            executions: Executions::default(),
            checkpoints: Checkpoints::default(),
            absence: Absence::default(),
            regions: Regions::default(),
            graph: None,
            has_files: false,
            is_stopped: false,
            is_ending: false,
        }
    }

    /// Its id.
    pub(super) fn id(&self) -> JobId {
        self.id
    }

    /// Highest known incarnation of its JobMaster.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The connection to its JobMaster.
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Its executions.
    pub(super) fn executions(&self) -> &Executions {
        &self.executions
    }

    /// Whether its sources must end.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether it has ended and only waits for its tasks to end.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// When something of it is due.
    pub(super) fn next_deadline(&self) -> Option<Uptime> {
        let is_sending = self.connection.is_registered();
        let retry_at = self.outbox.retry_at(&self.executions);
        let times = [
            self.connection.lost_at(),
            self.executions.next_deadline(),
            retry_at.filter(|_| is_sending),
            self.checkpoints.retry_at().filter(|_| is_sending),
            self.absence
                .deadline()
                .filter(|_| self.checkpoints.has_blocked()),
        ];
        times.into_iter().flatten().min()
    }

    /// Begins to connect to another JobMaster, or again to the same one. Returns the run of attempts.
    pub(super) fn connect(&mut self, address: &str) -> u64 {
        self.outbox.reset(&mut self.executions);
        self.checkpoints.reset();
        self.connection.begin(address)
    }

    /// Ends the connection.
    pub(super) fn disconnect(&mut self) {
        self.outbox.reset(&mut self.executions);
        self.checkpoints.reset();
        self.connection.end();
    }

    /// The message of an attempt to register, with all that the job has here.
    pub(super) fn registration_request(
        &mut self,
        now: Uptime,
        registration: Registration,
        location: &pb::TaskManagerLocation,
        slots: &SlotTable,
        metrics: Metrics<'_>,
    ) -> pb::RegisterTaskManagerRequest {
        pb::RegisterTaskManagerRequest {
            sender: Some(self.connection.send(registration)),
            job_id: self.id.to_string(),
            location: Some(location.clone()),
            executions: self.executions.full_report(metrics, now),
            slots: slots.offers(self.id),
            outputs: self.executions.outputs(),
            checkpoints: self.checkpoints.full_report(),
            takes_checkpoints: true,
        }
    }

    /// Records that the registration succeeded. Active slots were part of it: the JobMaster frees those it does not
    /// need, and those missing in its heartbeats are offered again.
    pub(super) fn registered(
        &mut self,
        now: Uptime,
        silence: SilenceTimeouts,
        incarnation: u64,
        slots: &SlotTable,
    ) {
        self.connection.succeed(now, silence);
        self.raise_incarnation(incarnation);
        self.outbox
            .replace_offers(slots.not_accepted(self.id).collect());
    }

    /// Records a message of the JobMaster.
    pub(super) fn record_contact(&mut self, now: Uptime) {
        self.connection.record_contact(now);
    }

    /// Records an incarnation of the JobMaster.
    pub(super) fn raise_incarnation(&mut self, incarnation: u64) {
        self.incarnation = self.incarnation.max(incarnation);
    }

    /// The answer to a heartbeat: everything of the job, including unacknowledged terminal states. A slot that the
    /// JobMaster does not know is offered again: it accepts or rejects it.
    pub(super) fn heartbeat(
        &mut self,
        request: &pb::HeartbeatFromJobMasterRequest,
        slots: &SlotTable,
        metrics: Metrics<'_>,
        output: &mut Output,
    ) -> pb::HeartbeatFromJobMasterResponse {
        for allocation in slots.active(self.id) {
            if !request.allocation_ids.contains(&allocation.to_string()) {
                self.outbox.offer(allocation);
            }
        }
        if request.stopping {
            self.stop_sources(output);
        }
        let held = slots.held_by(self.id).map(|it| it.to_string());
        pb::HeartbeatFromJobMasterResponse {
            executions: self.executions.report(metrics),
            outputs: self.executions.outputs(),
            allocation_ids: held.collect(),
            checkpoints: self.checkpoints.reports(),
        }
    }

    /// The address of its JobMaster, and the message with which a stopping TaskManager disconnects.
    pub(super) fn disconnect_message(
        &self,
        location: &pb::TaskManagerLocation,
        cause: &str,
    ) -> (String, pb::DisconnectTaskManagerRequest) {
        let request = pb::DisconnectTaskManagerRequest {
            sender: Some(self.connection.sender()),
            job: Some(scope(self.id, self.incarnation)),
            resource_id: location.resource_id.clone(),
            incarnation: location.incarnation.clone(),
            cause: cause.to_owned(),
            nothing_runs: !self.executions.is_running(),
        };
        (self.connection.address().to_owned(), request)
    }

    /// Sends what the JobMaster does not know yet, if there is a registration.
    pub(super) fn send(
        &mut self,
        now: Uptime,
        location: &pb::TaskManagerLocation,
        slots: &SlotTable,
        output: &mut Output,
    ) {
        if !self.connection.is_registered() {
            return;
        }
        let route = Route {
            job: (self.id, self.incarnation),
            connection: &self.connection,
            location,
        };
        let executions = &mut self.executions;
        self.outbox.send(now, route, executions, slots, output);
        self.checkpoints.send(now, route, output);
    }

    /// Offers a slot to the JobMaster.
    pub(super) fn offer(&mut self, allocation: AllocationId) {
        self.outbox.offer(allocation);
    }

    /// Handles the answer to an offer: `accepted` and `rejected` slots. Others are offered again at `retry_at`, and
    /// rejected ones in which a task continues, until the task is cancelled or the slot accepted. Returns the slots
    /// that the job loses.
    pub(super) fn offer_answered(
        &mut self,
        accepted: &BTreeSet<AllocationId>,
        rejected: &BTreeSet<AllocationId>,
        retry_at: Uptime,
        output: &mut Output,
    ) -> Vec<AllocationId> {
        let offered = self.outbox.finish_offer();
        let mut unanswered = &offered - accepted;
        let mut lost = Vec::new();
        for &allocation in rejected {
            if !self.continues_in(allocation, output) && unanswered.remove(&allocation) {
                let job = self.id;
                output.log(LogLine::SlotRejected { job, allocation });
                lost.push(allocation);
            }
        }
        if !unanswered.is_empty() {
            self.outbox.retry_offer(unanswered, retry_at);
        }
        lost
    }

    /// Handles the failure of an offer, which is sent again at `retry_at`.
    pub(super) fn offer_failed(&mut self, retry_at: Uptime) {
        let offered = self.outbox.finish_offer();
        self.outbox.retry_offer(offered, retry_at);
    }

    /// Whether a task of the job continues in a slot. Logs that, since the caller believes that the slot is idle.
    pub(super) fn continues_in(&self, allocation: AllocationId, output: &mut Output) -> bool {
        let continues = self.executions.continues_in(allocation);
        if continues {
            let job = self.id;
            output.log(LogLine::SlotKept { job, allocation });
        }
        continues
    }

    /// Ends the report in flight. With `retry_at` it failed, and is sent again then.
    pub(super) fn finish_report(&mut self, retry_at: Option<Uptime>) {
        self.outbox.finish_report(retry_at, &mut self.executions);
    }

    /// Adds a request of an operator to its coordinator.
    pub(super) fn ask_coordinator(&mut self, request_id: u64, requester: Requester, number: u64) {
        self.outbox.ask_coordinator(request_id, requester, number);
    }

    /// Handles the answer to a request of an operator, or sends it again at `retry_at` if the call failed. Returns
    /// that error.
    pub(super) fn coordinator_answered(
        &mut self,
        request_id: u64,
        answer: GatewayResult<pb::AskCoordinatorResponse>,
        retry_at: Uptime,
        output: &mut Output,
    ) -> Option<GatewayError> {
        self.outbox
            .coordinator_answered(request_id, answer, retry_at, output)
    }

    /// Keeps a fetched graph.
    pub(super) fn keep_graph(&mut self, graph: KnownGraph) {
        self.graph = Some(graph);
    }

    /// The referenced graph, if it was fetched.
    pub(super) fn graph(&self, reference: &pb::BlobReference) -> Option<Arc<pb::JobGraph>> {
        self.graph.as_ref()?.if_is(reference)
    }

    /// Records the regions of deployed tasks, and the vertices whose outputs are kept after their end.
    pub(super) fn record_deployment(
        &mut self,
        tasks: &[pb::TaskDeployment],
        kept_vertices: BTreeSet<JobVertexId>,
    ) {
        self.regions.record(tasks);
        self.executions.keep_outputs_of(kept_vertices);
    }

    /// The generation of an execution's region, out of those of all regions.
    pub(super) fn stored_generation(
        &self,
        execution: &ExecutionKey,
        regions: &[Generation],
    ) -> Option<Generation> {
        self.regions.generation(execution, regions)
    }

    /// Admits an execution, or returns why it may not start. The job's record has its generation: older ones have no
    /// effect any more, and are cancelled.
    pub(super) fn admit(
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
    pub(super) fn task_changed(
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

    /// Notes why what an execution is restored from can't be read at present.
    pub(super) fn note_unread_state(&mut self, execution: ExecutionKey, reason: String) {
        self.executions.note_unread_state(&execution, reason);
    }

    /// Notes all that an execution has said to people.
    pub(super) fn note_said(&mut self, execution: ExecutionKey, notices: Vec<String>) {
        self.executions.note_said(&execution, notices);
    }

    /// Handles a change of what a task has done for checkpoints. `has_storage`: objects can be written.
    pub(super) fn checkpoint_changed(
        &mut self,
        execution: ExecutionKey,
        status: CheckpointStatus,
        has_storage: bool,
        output: &mut Output,
    ) {
        let step = self.checkpoints.update(&execution, status, has_storage);
        self.take_step(execution, step, output);
    }

    /// Notes how long writing what a task has saved takes.
    pub(super) fn note_writing(&mut self, execution: ExecutionKey, number: u64, took: Duration) {
        self.checkpoints.note_writing(&execution, number, took);
    }

    /// Handles the end of writing what a task has saved.
    pub(super) fn snapshot_written(
        &mut self,
        execution: ExecutionKey,
        number: u64,
        written: Result<pb::SubtaskSnapshot, String>,
        output: &mut Output,
    ) {
        let written = written.map(Arc::new);
        let objects = written.as_ref().ok().map(Arc::clone);
        self.checkpoints.written(&execution, number, written);
        let task = self.task(execution);
        output.effect(Effect::ReleaseSnapshot(task, number, objects));
    }

    /// Tells an execution that a checkpoint is aborted.
    pub(super) fn abort_checkpoint(
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
                cluster,
                snapshot,
            } => output.effect(Effect::WriteSnapshot {
                task,
                number,
                cluster,
                snapshot,
            }),
        }
    }

    /// Whether an execution runs, or its source has ended, or why neither is so.
    pub(super) fn source(&self, execution: &ExecutionKey) -> Result<SourceState, String> {
        if self.executions.runs(execution) {
            Ok(SourceState::Runs)
        } else if self.checkpoints.has_finished(execution) {
            Ok(SourceState::Ended)
        } else {
            Err("it does not run on this TaskManager".to_owned())
        }
    }

    /// Ends a call with reports of checkpoints. With `retry_at` it failed, and they are sent again then.
    pub(super) fn finish_checkpoint_report(&mut self, call: u64, retry_at: Option<Uptime>) {
        self.checkpoints.finish_report(call, retry_at);
    }

    /// Has tasks decline what they block inputs for, once there has been no JobMaster for a while.
    pub(super) fn review_absence(&mut self, now: Uptime, is_led: bool, output: &mut Output) {
        let is_silent = self.connection.doubted_at().is_none_or(|at| at <= now);
        if self.absence.review(now, is_led && !is_silent) {
            for execution in self.checkpoints.take_blocked() {
                output.effect(Effect::DeclineBlocked(self.task(execution)));
            }
        }
    }

    /// What its executions have done for checkpoints.
    #[cfg(test)]
    pub(super) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Forgets an execution whose terminal state is in the job's record.
    pub(super) fn acknowledge(&mut self, execution: &ExecutionKey) {
        self.executions.acknowledge(execution);
    }

    /// Cancels a subtask up to this generation, and forbids these generations.
    pub(super) fn cancel_up_to(
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
    pub(super) fn lose_slot(
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
    pub(super) fn cancel_all(
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
    pub(super) fn cancel_superseded(
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
    pub(super) fn review_cancellations(
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
    pub(super) fn extend_deadlines(&mut self, by: Duration) {
        self.executions.extend_deadlines(by);
    }

    /// Ends the sources of the running tasks, and of those that start later.
    pub(super) fn stop_sources(&mut self, output: &mut Output) {
        if !std::mem::replace(&mut self.is_stopped, true) {
            output.log(LogLine::JobStopped { job: self.id });
        }
        for execution in self.executions.running() {
            output.effect(Effect::Stop(self.task(execution)));
        }
    }

    /// Begins its end here: disconnects, and cancels all tasks.
    pub(super) fn end(&mut self, timeouts: CancellationTimeouts, output: &mut Output) {
        self.is_ending = true;
        self.disconnect();
        self.outbox.replace_offers(BTreeSet::new());
        self.cancel_all(timeouts, output);
    }

    /// Releases the files kept for its next tasks: it has no slot any more.
    pub(super) fn release_files(&mut self, output: &mut Output) {
        if std::mem::take(&mut self.has_files) {
            output.effect(Effect::ReleaseFiles(self.id));
        }
    }

    fn task(&self, execution: ExecutionKey) -> TaskKey {
        TaskKey {
            job: self.id,
            execution,
        }
    }
}
