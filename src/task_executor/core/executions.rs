//! The executions of one job on a TaskExecutor. Pure.
//!
//! - A (subtask, generation) is admitted at most once, and never after a cancellation of it or a younger one.
//! - A terminal state never changes. It is kept, and reported, until it is acknowledged or a younger generation of
//!   the subtask is admitted.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tanist_ha::clock::{Uptime, millis};
use tanist_proto::id::{AllocationId, Generation, JobVertexId};
use tanist_proto::v1 as pb;

use crate::launcher::{SinkOutput, TaskStatus};

/// Most bytes of the reason why state can't be read, and of a notice.
const MOST_OF_REASON: usize = 1024;

/// One execution of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExecutionKey {
    /// The vertex.
    pub vertex: JobVertexId,
    /// Its subtask.
    pub subtask: u32,
    /// The attempt.
    pub generation: Generation,
}

impl ExecutionKey {
    /// The key as a message.
    pub(crate) fn message(&self) -> pb::ExecutionId {
        pb::ExecutionId {
            vertex_id: self.vertex.to_string(),
            subtask: self.subtask,
            generation: self.generation.get(),
        }
    }

    /// The generation before this one, of the same subtask.
    pub(crate) fn previous(&self) -> ExecutionKey {
        let generation = Generation::new(self.generation.get().saturating_sub(1));
        ExecutionKey {
            generation,
            ..*self
        }
    }

    /// Whether the other one is of the same subtask and not younger.
    pub(crate) fn covers(&self, other: &ExecutionKey) -> bool {
        (other.vertex, other.subtask) == (self.vertex, self.subtask)
            && other.generation <= self.generation
    }
}

/// Returns the metrics of a running execution.
pub(super) type Metrics<'a> = &'a dyn Fn(&ExecutionKey) -> Option<pb::TaskMetrics>;

/// Timeouts for tasks that are cancelled.
#[derive(Debug, Clone, Copy)]
pub(super) struct CancellationTimeouts {
    /// When they were cancelled.
    pub from: Uptime,
    /// Time in which they must end.
    pub timeout: Duration,
    /// Interval at which the cancellation is repeated.
    pub interval: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Canceling {
    since: Uptime,
    /// `None`: it was reported as overdue.
    deadline: Option<Uptime>,
    repeat_at: Uptime,
    interval: Duration,
}

#[derive(Debug)]
struct Execution {
    allocation: AllocationId,
    status: TaskStatus,
    metrics: Option<pb::TaskMetrics>,
    /// Set once it was cancelled.
    canceling: Option<Canceling>,
    /// When it entered each state.
    entered: Vec<(pb::ExecutionState, Uptime)>,
    /// After its end: the highest checkpoint that it knew.
    highest_checkpoint: u64,
    /// Before its start: why the snapshot from which it is restored can't be read at present.
    unread_state: String,
    /// Its notices for users.
    notices: Vec<String>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Executions {
    executions: BTreeMap<ExecutionKey, Execution>,
    /// Number of running executions in each allocation that has any.
    running_in: BTreeMap<AllocationId, u32>,
    /// Highest generation that was started or cancelled, by subtask.
    highest: BTreeMap<(JobVertexId, u32), Generation>,
    changed: BTreeSet<ExecutionKey>,
    /// Vertices whose output is kept after their end.
    kept_vertices: BTreeSet<JobVertexId>,
    /// Finished executions whose output is kept.
    outputs: BTreeSet<ExecutionKey>,
}

impl Executions {
    /// Sets the vertices whose output is read after they have finished, and kept until they are cancelled.
    pub(super) fn keep_outputs_of(&mut self, vertices: BTreeSet<JobVertexId>) {
        self.kept_vertices = vertices;
    }

    /// The finished executions whose output is kept.
    pub(super) fn outputs(&self) -> Vec<pb::ExecutionId> {
        self.outputs.iter().map(ExecutionKey::message).collect()
    }

    /// Number of finished executions whose output is kept.
    pub(super) fn output_count(&self) -> usize {
        self.outputs.len()
    }

    fn release_outputs(&mut self, up_to: ExecutionKey) {
        self.outputs.retain(|key| !up_to.covers(key));
    }

    /// Admits a generation, or returns why it may not start.
    pub(super) fn admit(
        &mut self,
        key: ExecutionKey,
        allocation: AllocationId,
        now: Uptime,
    ) -> Result<(), String> {
        let subtask = (key.vertex, key.subtask);
        let highest = self.highest.get(&subtask).copied().unwrap_or_default();
        if key.generation <= highest {
            return Err(format!(
                "generation {} is not above {highest}, which was started or cancelled",
                key.generation
            ));
        }
        self.highest.insert(subtask, key.generation);
        self.release_outputs(key);
        // The job's record has a younger generation: the terminal states of older ones are not needed.
        let is_obsolete = |other: &ExecutionKey, execution: &Execution| {
            (other.vertex, other.subtask) == subtask && execution.status.is_terminal()
        };
        self.executions
            .retain(|other, execution| !is_obsolete(other, execution));
        let executions = &self.executions;
        self.changed.retain(|key| executions.contains_key(key));
        let status = TaskStatus::Deploying;
        let execution = Execution {
            allocation,
            status,
            metrics: None,
            canceling: None,
            entered: vec![(pb::ExecutionState::Deploying, now)],
            highest_checkpoint: 0,
            unread_state: String::new(),
            notices: Vec::new(),
        };
        self.executions.insert(key, execution);
        *self.running_in.entry(allocation).or_default() += 1;
        self.changed.insert(key);
        Ok(())
    }

    /// Forbids all generations up to this one. Returns the executions to cancel.
    pub(super) fn cancel_up_to(
        &mut self,
        up_to: ExecutionKey,
        timeouts: CancellationTimeouts,
    ) -> Vec<ExecutionKey> {
        let highest = self
            .highest
            .entry((up_to.vertex, up_to.subtask))
            .or_default();
        *highest = (*highest).max(up_to.generation);
        self.release_outputs(up_to);
        self.cancel_where(timeouts, |key, _| up_to.covers(key))
    }

    /// Marks the executions in an allocation as cancelled. Returns those to cancel.
    pub(super) fn cancel_in(
        &mut self,
        of: AllocationId,
        timeouts: CancellationTimeouts,
    ) -> Vec<ExecutionKey> {
        self.cancel_where(timeouts, |_, allocation| allocation == of)
    }

    /// Forbids all generations below the stored ones of their regions. Returns the executions to cancel.
    pub(super) fn supersede(
        &mut self,
        stored: &dyn Fn(&ExecutionKey) -> Option<Generation>,
        timeouts: CancellationTimeouts,
    ) -> Vec<ExecutionKey> {
        let is_older = |key: &ExecutionKey| {
            let stored = stored(key)?;
            let below = Generation::new(stored.get().checked_sub(1)?);
            (key.generation <= below).then_some(below)
        };
        for key in self.executions.keys() {
            if let Some(below) = is_older(key) {
                let highest = self.highest.entry((key.vertex, key.subtask)).or_default();
                *highest = (*highest).max(below);
            }
        }
        self.cancel_where(timeouts, |key, _| is_older(key).is_some())
    }

    /// Whether an execution runs with a generation below the stored one of its region.
    pub(super) fn runs_superseded(
        &self,
        stored: &dyn Fn(&ExecutionKey) -> Option<Generation>,
    ) -> bool {
        let is_older = |key: &ExecutionKey| stored(key).is_some_and(|of| key.generation < of);
        self.live().any(|(key, _)| is_older(key))
    }

    /// Marks all executions as cancelled. Returns those to cancel.
    pub(super) fn cancel_all(&mut self, timeouts: CancellationTimeouts) -> Vec<ExecutionKey> {
        self.cancel_where(timeouts, |_, _| true)
    }

    /// Sets the highest checkpoint that an execution knew. To be called before its end is recorded.
    pub(super) fn set_highest_checkpoint(&mut self, key: &ExecutionKey, number: u64) {
        if let Some(execution) = self.executions.get_mut(key) {
            execution.highest_checkpoint = number;
        }
    }

    /// Sets why the snapshot from which an execution is restored can't be read at present. The start or end of the
    /// execution clears it.
    pub(super) fn note_unread_state(&mut self, key: &ExecutionKey, mut reason: String) {
        reason.truncate(reason.floor_char_boundary(MOST_OF_REASON));
        if let Some(execution) = self.executions.get_mut(key)
            && execution.status == TaskStatus::Deploying
        {
            let is_new = execution.unread_state.is_empty();
            execution.unread_state = reason;
            // The text differs with each attempt. Reports of all executions have the newest one.
            if is_new {
                self.changed.insert(*key);
            }
        }
    }

    /// Sets all notices of an execution for users. Each report of the execution has them.
    pub(super) fn set_notices(&mut self, key: &ExecutionKey, mut notices: Vec<String>) {
        for notice in &mut notices {
            notice.truncate(notice.floor_char_boundary(MOST_OF_REASON));
        }
        if let Some(execution) = self.executions.get_mut(key) {
            execution.notices = notices;
            self.changed.insert(*key);
        }
    }

    /// Whether an execution runs.
    pub(super) fn runs(&self, key: &ExecutionKey) -> bool {
        let execution = self.executions.get(key);
        execution.is_some_and(|execution| !execution.status.is_terminal())
    }

    /// Updates the status of an execution. Returns whether it changed.
    pub(super) fn update(
        &mut self,
        key: &ExecutionKey,
        status: TaskStatus,
        metrics: Option<pb::TaskMetrics>,
        now: Uptime,
    ) -> bool {
        let Some(execution) = self.executions.get_mut(key) else {
            return false;
        };
        if execution.status.is_terminal() || execution.status == status {
            return false;
        }
        let is_kept = matches!(status, TaskStatus::Finished { .. })
            && execution.canceling.is_none()
            && self.kept_vertices.contains(&key.vertex);
        if is_kept {
            self.outputs.insert(*key);
        }
        execution.entered.push((status.execution_state(), now));
        execution.status = status;
        execution.metrics = metrics;
        execution.unread_state = String::new();
        if execution.status.is_terminal() {
            let allocation = execution.allocation;
            self.count_end_in(allocation);
        }
        self.changed.insert(*key);
        true
    }

    fn count_end_in(&mut self, allocation: AllocationId) {
        if let Entry::Occupied(mut running) = self.running_in.entry(allocation) {
            *running.get_mut() -= 1;
            if *running.get() == 0 {
                running.remove();
            }
        }
    }

    /// Forgets an execution whose terminal state is in the job's record.
    pub(super) fn acknowledge(&mut self, key: &ExecutionKey) {
        if self
            .executions
            .get(key)
            .is_some_and(|execution| execution.status.is_terminal())
        {
            self.executions.remove(key);
            self.changed.remove(key);
        }
    }

    /// Whether this one was cancelled, in whichever state it ended.
    pub(super) fn is_cancelled(&self, key: &ExecutionKey) -> bool {
        self.executions
            .get(key)
            .is_some_and(|execution| execution.canceling.is_some())
    }

    /// Whether a generation of the subtask up to this one runs.
    pub(super) fn is_running_up_to(&self, up_to: ExecutionKey) -> bool {
        self.live().any(|(key, _)| up_to.covers(key))
    }

    /// Whether an execution runs in the allocation.
    pub(super) fn is_in_use(&self, allocation: AllocationId) -> bool {
        self.running_in.contains_key(&allocation)
    }

    /// Whether an execution runs in the allocation that was not cancelled.
    pub(super) fn continues_in(&self, allocation: AllocationId) -> bool {
        let mut live = self.live();
        live.any(|(_, execution)| {
            execution.allocation == allocation && execution.canceling.is_none()
        })
    }

    /// The allocations in which executions run, each with their number.
    pub(super) fn in_use(&self) -> impl Iterator<Item = (AllocationId, u32)> {
        self.running_in
            .iter()
            .map(|(&allocation, &count)| (allocation, count))
    }

    /// Whether nothing runs, every terminal state is acknowledged, and no output is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.executions.is_empty() && self.outputs.is_empty()
    }

    /// The running executions.
    pub(super) fn running(&self) -> Vec<ExecutionKey> {
        self.live().map(|(key, _)| *key).collect()
    }

    /// Whether any execution runs.
    pub(super) fn is_running(&self) -> bool {
        !self.running_in.is_empty()
    }

    /// Takes the executions that did not end within their cancellation timeout. Each is returned once.
    pub(super) fn take_overdue(&mut self, now: Uptime) -> Vec<ExecutionKey> {
        let live = self.executions.iter_mut();
        let live = live.filter(|(_, execution)| !execution.status.is_terminal());
        let overdue = live.filter_map(|(key, execution)| {
            let deadline = &mut execution.canceling.as_mut()?.deadline;
            deadline.take_if(|deadline| *deadline <= now)?;
            Some(*key)
        });
        overdue.collect()
    }

    /// Extends the deadlines of cancelled executions: this process stood still, and they could not end.
    pub(super) fn extend_deadlines(&mut self, by: Duration) {
        let executions = self.executions.values_mut();
        for canceling in executions.filter_map(|execution| execution.canceling.as_mut()) {
            canceling.repeat_at += by;
            canceling.deadline = canceling.deadline.map(|deadline| deadline + by);
        }
    }

    /// Takes the executions whose cancellation must be repeated, each with the time of its first cancellation.
    pub(super) fn take_due_cancellations(&mut self, now: Uptime) -> Vec<(ExecutionKey, Uptime)> {
        let mut due = Vec::new();
        for (key, execution) in &mut self.executions {
            if let Some(canceling) = &mut execution.canceling
                && canceling.repeat_at <= now
                && !execution.status.is_terminal()
            {
                canceling.repeat_at = now + canceling.interval;
                due.push((*key, canceling.since));
            }
        }
        due
    }

    /// When the next execution is overdue, or its cancellation must be repeated.
    pub(super) fn next_deadline(&self) -> Option<Uptime> {
        let canceling = self.live().filter_map(|(_, execution)| execution.canceling);
        let times = canceling.flat_map(|it| it.deadline.into_iter().chain([it.repeat_at]));
        times.min()
    }

    /// Reports of all executions.
    pub(super) fn report(&self, metrics: Metrics<'_>) -> Vec<pb::ExecutionReport> {
        self.executions
            .iter()
            .map(|(key, of)| message(key, of, metrics(key)))
            .collect()
    }

    /// Reports of all executions, with the age of each state. Clears the set of changed executions.
    pub(super) fn full_report(
        &mut self,
        metrics: Metrics<'_>,
        now: Uptime,
    ) -> Vec<pb::ExecutionReport> {
        self.changed.clear();
        let mut reports = self.report(metrics);
        for (report, execution) in reports.iter_mut().zip(self.executions.values()) {
            let entered = execution.entered.iter();
            let ages = entered.map(|(state, at)| pb::ExecutionAge {
                state: (*state).into(),
                ms_ago: millis(now.saturating_duration_since(*at)),
            });
            report.ages = ages.collect();
        }
        reports
    }

    /// Whether there are changes to report.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Takes the executions that changed since the last call, with their reports.
    pub(super) fn take_changed(&mut self) -> (Vec<ExecutionKey>, Vec<pb::ExecutionReport>) {
        let keys: Vec<ExecutionKey> = std::mem::take(&mut self.changed).into_iter().collect();
        let find = |key| self.executions.get(key).map(|of| message(key, of, None));
        let reports = keys.iter().filter_map(find).collect();
        (keys, reports)
    }

    /// Marks executions as changed again, as their report did not arrive.
    pub(super) fn put_back(&mut self, keys: Vec<ExecutionKey>) {
        let executions = &self.executions;
        self.changed
            .extend(keys.into_iter().filter(|key| executions.contains_key(key)));
    }

    fn live(&self) -> impl Iterator<Item = (&ExecutionKey, &Execution)> {
        self.executions
            .iter()
            .filter(|(_, execution)| !execution.status.is_terminal())
    }

    fn cancel_where(
        &mut self,
        timeouts: CancellationTimeouts,
        applies: impl Fn(&ExecutionKey, AllocationId) -> bool,
    ) -> Vec<ExecutionKey> {
        let mut cancelled = Vec::new();
        let deadline = timeouts.from + timeouts.timeout;
        for (key, execution) in &mut self.executions {
            if !applies(key, execution.allocation) || execution.status.is_terminal() {
                continue;
            }
            match &mut execution.canceling {
                Some(earlier) => {
                    earlier.deadline = earlier.deadline.map(|it| it.min(deadline));
                }
                none @ None => {
                    *none = Some(Canceling {
                        since: timeouts.from,
                        deadline: Some(deadline),
                        repeat_at: timeouts.from + timeouts.interval,
                        interval: timeouts.interval,
                    });
                    cancelled.push(*key);
                }
            }
        }
        cancelled
    }
}

fn message(
    key: &ExecutionKey,
    execution: &Execution,
    metrics: Option<pb::TaskMetrics>,
) -> pb::ExecutionReport {
    let (mut unreadable, mut unrecoverable) = (None, false);
    let mut damaged_state = String::new();
    let mut lost_peer = false;
    let (cause, output) = match &execution.status {
        TaskStatus::Finished { output } => (String::new(), output.clone()),
        TaskStatus::Failed {
            cause,
            unreadable: input,
            unrecoverable: is_unrecoverable,
            has_damaged_state,
            lost_peer: has_lost_peer,
        } => {
            lost_peer = *has_lost_peer;
            unreadable.clone_from(input);
            unrecoverable = *is_unrecoverable;
            if *has_damaged_state {
                damaged_state.clone_from(cause);
            }
            (cause.clone(), SinkOutput::default())
        }
        TaskStatus::Deploying
        | TaskStatus::Initializing
        | TaskStatus::Running
        | TaskStatus::Canceling
        | TaskStatus::Canceled => (String::new(), SinkOutput::default()),
    };
    pb::ExecutionReport {
        vertex_id: key.vertex.to_string(),
        subtask: key.subtask,
        generation: key.generation.get(),
        state: execution.status.execution_state().into(),
        cause,
        committables: output.committables,
        metrics: metrics.or(execution.metrics),
        allocation_id: execution.allocation.to_string(),
        unreadable,
        lost_peer,
        unrecoverable,
        ages: Vec::new(),
        highest_checkpoint: execution.highest_checkpoint,
        checkpoint_committables: output.checkpoint_committables,
        damaged_state,
        unread_state: execution.unread_state.clone(),
        notices: execution.notices.clone(),
    }
}
