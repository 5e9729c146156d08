//! The executions of one job on a TaskExecutor. Pure.
//!
//! - A (subtask, generation) is admitted at most once, and never after a cancellation that names it or a younger one.
//! - A final state never changes. It is kept, and reported, until it is acknowledged or a younger generation of the subtask
//!   is admitted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tanist_ha::clock::millis;
use tanist_proto::id::{AllocationId, Generation, JobVertexId};
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::launcher::TaskStatus;

/// One execution of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExecutionKey {
    /// The vertex.
    pub vertex: JobVertexId,
    /// Its subtask.
    pub subtask: u32,
    /// The attempt.
    pub generation: Generation,
}

/// The metrics of an execution that runs.
pub type Metrics<'a> = &'a dyn Fn(&ExecutionKey) -> Option<pb::TaskMetrics>;

/// How patient one is with tasks that are told to end.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Since when.
    pub from: Instant,
    /// Until when they have to have ended.
    pub deadline: Instant,
    /// How often they are told.
    pub interval: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Canceling {
    since: Instant,
    /// None: that it is overdue was said.
    deadline: Option<Instant>,
    told_next: Instant,
    interval: Duration,
}

#[derive(Debug)]
struct Execution {
    allocation: AllocationId,
    status: TaskStatus,
    metrics: Option<pb::TaskMetrics>,
    /// Once it was told to end.
    canceling: Option<Canceling>,
    /// When it entered each state.
    entered: Vec<(pb::ExecutionState, Instant)>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Executions {
    executions: BTreeMap<ExecutionKey, Execution>,
    /// The highest generation that was started or cancelled, by subtask.
    highest: BTreeMap<(JobVertexId, u32), Generation>,
    changed: BTreeSet<ExecutionKey>,
    /// The vertices whose output is kept after their end.
    kept_vertices: BTreeSet<JobVertexId>,
    /// The finished executions whose output is kept.
    outputs: BTreeSet<ExecutionKey>,
}

impl Executions {
    /// These vertices' outputs are read when they have finished, and kept until they are cancelled.
    pub fn keep_outputs_of(&mut self, vertices: BTreeSet<JobVertexId>) {
        self.kept_vertices = vertices;
    }

    /// The finished executions whose output is kept.
    pub fn outputs(&self) -> Vec<pb::ExecutionId> {
        let id = |key: &ExecutionKey| pb::ExecutionId {
            vertex_id: key.vertex.to_string(),
            subtask: key.subtask,
            generation: key.generation.get(),
        };
        self.outputs.iter().map(id).collect()
    }

    /// How many these are.
    pub fn output_count(&self) -> usize {
        self.outputs.len()
    }

    fn release_outputs(&mut self, up_to: ExecutionKey) {
        self.outputs.retain(|key| {
            (key.vertex, key.subtask) != (up_to.vertex, up_to.subtask)
                || key.generation > up_to.generation
        });
    }

    /// Lets a generation start, or says why not.
    pub fn admit(
        &mut self,
        key: ExecutionKey,
        allocation: AllocationId,
        now: Instant,
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
        // The job's record has a younger generation: nobody asks for the older ones' ends.
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
        };
        self.executions.insert(key, execution);
        self.changed.insert(key);
        Ok(())
    }

    /// Forbids all generations up to this one; gives those that have to be told to end.
    pub fn cancel_up_to(&mut self, up_to: ExecutionKey, patience: Patience) -> Vec<ExecutionKey> {
        let highest = self
            .highest
            .entry((up_to.vertex, up_to.subtask))
            .or_default();
        *highest = (*highest).max(up_to.generation);
        self.release_outputs(up_to);
        self.cancel_where(patience, |key, _| {
            (key.vertex, key.subtask) == (up_to.vertex, up_to.subtask)
                && key.generation <= up_to.generation
        })
    }

    /// Those in the allocation that have to be told to end.
    pub fn cancel_in(&mut self, of: AllocationId, patience: Patience) -> Vec<ExecutionKey> {
        self.cancel_where(patience, |_, allocation| allocation == of)
    }

    /// Forbids all generations below the stored ones of their regions; gives those that have to be told to end.
    pub fn supersede(
        &mut self,
        stored: &dyn Fn(&ExecutionKey) -> Option<Generation>,
        patience: Patience,
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
        self.cancel_where(patience, |key, _| is_older(key).is_some())
    }

    /// Whether something runs of a generation below the stored one of its region.
    pub fn runs_superseded(&self, stored: &dyn Fn(&ExecutionKey) -> Option<Generation>) -> bool {
        let is_older = |key: &ExecutionKey| stored(key).is_some_and(|of| key.generation < of);
        self.live().any(|(key, _)| is_older(key))
    }

    /// All that have to be told to end.
    pub fn cancel_all(&mut self, patience: Patience) -> Vec<ExecutionKey> {
        self.cancel_where(patience, |_, _| true)
    }

    /// Takes the state of a task. Whether it is another one.
    pub fn update(
        &mut self,
        key: &ExecutionKey,
        status: TaskStatus,
        metrics: Option<pb::TaskMetrics>,
        now: Instant,
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
        self.changed.insert(*key);
        true
    }

    /// This final state is in the job's record.
    pub fn acknowledge(&mut self, key: &ExecutionKey) {
        if self
            .executions
            .get(key)
            .is_some_and(|execution| execution.status.is_terminal())
        {
            self.executions.remove(key);
            self.changed.remove(key);
        }
    }

    /// Whether this one was cancelled, however it ended.
    pub fn was_told_to_end(&self, key: &ExecutionKey) -> bool {
        self.executions
            .get(key)
            .is_some_and(|execution| execution.canceling.is_some())
    }

    /// Whether a generation of the subtask up to this one runs.
    pub fn is_running_up_to(&self, up_to: ExecutionKey) -> bool {
        self.live().any(|(key, _)| {
            (key.vertex, key.subtask) == (up_to.vertex, up_to.subtask)
                && key.generation <= up_to.generation
        })
    }

    /// Whether something runs in the allocation.
    pub fn is_in_use(&self, allocation: AllocationId) -> bool {
        self.live()
            .any(|(_, execution)| execution.allocation == allocation)
    }

    /// Whether something runs in the allocation that was not told to end.
    pub fn goes_on_in(&self, allocation: AllocationId) -> bool {
        let mut live = self.live();
        live.any(|(_, execution)| {
            execution.allocation == allocation && execution.canceling.is_none()
        })
    }

    /// The allocation of each execution that runs.
    pub fn in_use(&self) -> impl Iterator<Item = AllocationId> {
        self.live().map(|(_, execution)| execution.allocation)
    }

    /// Whether nothing runs, every end is acknowledged, and no output is kept.
    pub fn is_empty(&self) -> bool {
        self.executions.is_empty() && self.outputs.is_empty()
    }

    /// Those that run.
    pub fn running(&self) -> Vec<ExecutionKey> {
        self.live().map(|(key, _)| *key).collect()
    }

    /// Whether anything runs.
    pub fn is_running(&self) -> bool {
        self.live().next().is_some()
    }

    /// One that did not end in the time that it had after being told to. Named once.
    pub fn take_overdue(&mut self, now: Instant) -> Option<ExecutionKey> {
        let live = self.executions.iter_mut();
        let mut live = live.filter(|(_, execution)| !execution.status.is_terminal());
        live.find_map(|(key, execution)| {
            let deadline = &mut execution.canceling.as_mut()?.deadline;
            deadline.take_if(|deadline| *deadline <= now)?;
            Some(*key)
        })
    }

    /// Nothing could end for so long, as this process stood still: whoever was told to has as much more time.
    pub fn put_off(&mut self, by: Duration) {
        let told = self.executions.values_mut();
        for canceling in told.filter_map(|execution| execution.canceling.as_mut()) {
            canceling.told_next += by;
            canceling.deadline = canceling.deadline.map(|deadline| deadline + by);
        }
    }

    /// Those that are to be told again to end, each with since when they have been told.
    pub fn take_reminders(&mut self, now: Instant) -> Vec<(ExecutionKey, Instant)> {
        let mut due = Vec::new();
        for (key, execution) in &mut self.executions {
            if let Some(canceling) = &mut execution.canceling
                && canceling.told_next <= now
                && !execution.status.is_terminal()
            {
                canceling.told_next = now + canceling.interval;
                due.push((*key, canceling.since));
            }
        }
        due
    }

    /// When the next one is overdue, or to be told again.
    pub fn next_deadline(&self) -> Option<Instant> {
        let canceling = self.live().filter_map(|(_, execution)| execution.canceling);
        let times = canceling.flat_map(|it| it.deadline.into_iter().chain([it.told_next]));
        times.min()
    }

    /// Everything there is.
    pub fn report(&self, metrics: Metrics<'_>) -> Vec<pb::ExecutionReport> {
        self.executions
            .iter()
            .map(|(key, of)| message(key, of, metrics(key)))
            .collect()
    }

    /// Everything there is, with how long ago it came to that; nothing counts as changed any more.
    pub fn full_report(&mut self, metrics: Metrics<'_>, now: Instant) -> Vec<pb::ExecutionReport> {
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

    /// Whether there is something to report.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// What changed since it was last taken.
    pub fn take_changed(&mut self) -> (Vec<ExecutionKey>, Vec<pb::ExecutionReport>) {
        let keys: Vec<ExecutionKey> = std::mem::take(&mut self.changed).into_iter().collect();
        let find = |key| self.executions.get(key).map(|of| message(key, of, None));
        let reports = keys.iter().filter_map(find).collect();
        (keys, reports)
    }

    /// What was taken did not arrive.
    pub fn put_back(&mut self, keys: Vec<ExecutionKey>) {
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
        patience: Patience,
        applies: impl Fn(&ExecutionKey, AllocationId) -> bool,
    ) -> Vec<ExecutionKey> {
        let mut told = Vec::new();
        for (key, execution) in &mut self.executions {
            if !applies(key, execution.allocation) || execution.status.is_terminal() {
                continue;
            }
            match &mut execution.canceling {
                Some(earlier) => {
                    let of_both = |it: &mut Instant| *it = patience.deadline.min(*it);
                    earlier.deadline.iter_mut().for_each(of_both);
                }
                none @ None => {
                    *none = Some(Canceling {
                        since: patience.from,
                        deadline: Some(patience.deadline),
                        told_next: patience.from + patience.interval,
                        interval: patience.interval,
                    });
                    told.push(*key);
                }
            }
        }
        told
    }
}

fn message(
    key: &ExecutionKey,
    execution: &Execution,
    metrics: Option<pb::TaskMetrics>,
) -> pb::ExecutionReport {
    let (mut unreadable, mut unrecoverable) = (None, false);
    let (cause, committables) = match &execution.status {
        TaskStatus::Finished { committables } => (String::new(), committables.clone()),
        TaskStatus::Failed {
            cause,
            unreadable: input,
            unrecoverable: is_unrecoverable,
        } => {
            unreadable.clone_from(input);
            unrecoverable = *is_unrecoverable;
            (cause.clone(), Vec::new())
        }
        TaskStatus::Deploying
        | TaskStatus::Initializing
        | TaskStatus::Running
        | TaskStatus::Canceling
        | TaskStatus::Canceled => (String::new(), Vec::new()),
    };
    pb::ExecutionReport {
        vertex_id: key.vertex.to_string(),
        subtask: key.subtask,
        generation: key.generation.get(),
        state: execution.status.execution_state().into(),
        cause,
        committables,
        metrics: metrics.or(execution.metrics),
        allocation_id: execution.allocation.to_string(),
        unreadable,
        unrecoverable,
        ages: Vec::new(),
    }
}
