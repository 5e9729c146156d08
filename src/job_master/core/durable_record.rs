//! The job's record: what is decided, what is being written, and what is durable.
//!
//! There are two copies. `decided` has all decisions; `durable` is what the store has. They share memory until a
//! decision changes the first one. Each change of `decided` that needs a write is a method here and makes the next
//! revision; a revision that is not durable yet is written as soon as no write is in flight.
//!
//! Invariants: one write is in flight; `durable` is always a state that was written, or that the term began with; a
//! refused record is not written again, except once, shortened, if the output of a finished job depends on it. A
//! refusal for good ends the job (`ending.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState, WantedStatus};

use super::coordinator::{self, Taken};
use super::execution_graph::ExecutionGraph;
use super::job_events::{enter, keep_newest};
use super::output::Output;
use super::{Effect, Milestone};

/// The write in flight.
#[derive(Debug, Clone)]
struct Write {
    number: u64,
    revision: u64,
    since_ms: u64,
    state: Arc<pb::JobState>,
}

/// Tasks whose durable end changed with a write.
#[derive(Debug, Default)]
pub(super) struct ChangedEnds {
    /// Their end became durable.
    pub(super) ended: Vec<usize>,
    /// Their end was of a generation that was given up.
    pub(super) given_up: Vec<usize>,
}

/// The record of one job; see the module.
#[derive(Debug)]
pub(super) struct DurableRecord {
    /// The term that decides and writes.
    epoch: Epoch,
    /// Number of failures that the record keeps.
    kept_failures: usize,
    /// Number of tasks of the job.
    tasks: usize,
    decided: Arc<pb::JobState>,
    revision: u64,
    durable: Arc<pb::JobState>,
    durable_revision: u64,
    /// Whether a write of this term is durable.
    is_durable: bool,
    /// Task -> its terminal state in `durable`, for the generation that `durable` has.
    ends: BTreeMap<usize, ExecutionState>,
    /// Number of FINISHED ones among `ends`.
    finished: usize,
    writing: Option<Write>,
    last_write: u64,
    refusal: Option<String>,
    /// Whether `decided` has placements that no write has.
    has_placed: bool,
    /// Whether `decided` may have terminal states of generations that were given up.
    has_stale_ends: bool,
    /// Whether the ends of all executions are recorded, as the job ends.
    has_all_ends: bool,
}

impl DurableRecord {
    /// The record that a term begins with.
    pub(super) fn new(
        state: Arc<pb::JobState>,
        epoch: Epoch,
        kept_failures: usize,
        graph: &ExecutionGraph,
    ) -> DurableRecord {
        let mut record = DurableRecord {
            epoch,
            kept_failures: kept_failures.max(1),
            tasks: graph.tasks().len(),
            decided: state.clone(),
            revision: 0,
            durable: state,
            durable_revision: 0,
            is_durable: false,
            ends: BTreeMap::new(),
            finished: 0,
            writing: None,
            last_write: 0,
            refusal: None,
            has_placed: false,
            has_stale_ends: false,
            has_all_ends: false,
        };
        record.update_ends(graph);
        record
    }

    /// The decided state.
    pub(super) fn decided(&self) -> &pb::JobState {
        &self.decided
    }

    /// The durable state.
    pub(super) fn durable(&self) -> &pb::JobState {
        &self.durable
    }

    /// The durable state, shared.
    pub(super) fn durable_state(&self) -> Arc<pb::JobState> {
        self.durable.clone()
    }

    /// The epoch of the term that writes it.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Whether a write of this term is durable, so that the record names this JobMaster.
    pub(super) fn is_durable(&self) -> bool {
        self.is_durable
    }

    /// Whether it is decided, durable or not, that the job ends without finishing.
    pub(super) fn is_stopping(&self) -> bool {
        is_to_end(&self.decided)
    }

    /// Whether it is durable that the job ends without finishing.
    pub(super) fn is_durably_stopping(&self) -> bool {
        is_to_end(&self.durable)
    }

    /// Whether this term has made it durable that sources have to end.
    pub(super) fn is_stop_durable(&self) -> bool {
        self.is_durable && self.durable.wanted() == WantedStatus::Stopped
    }

    /// Since when a write is in flight, in ms.
    pub(super) fn writing_since_ms(&self) -> Option<u64> {
        self.writing.as_ref().map(|write| write.since_ms)
    }

    /// Whether a write is in flight.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Why the store refused the last write for good.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Whether the end of a task's present generation is durable.
    pub(super) fn has_durable_end(&self, task: usize) -> bool {
        self.ends.contains_key(&task)
    }

    /// Whether it is durable that a task has finished in its present generation.
    pub(super) fn has_durably_finished(&self, task: usize) -> bool {
        self.ends.get(&task) == Some(&ExecutionState::Finished)
    }

    /// Whether it is durable that all tasks have finished.
    pub(super) fn all_have_durably_finished(&self) -> bool {
        self.finished == self.tasks
    }

    /// The durable generation of a region.
    pub(super) fn durable_generation(&self, region: usize) -> u64 {
        self.durable.regions[region].generation
    }

    /// Whether the decided generation of a region is durable.
    pub(super) fn is_generation_durable(&self, region: usize) -> bool {
        self.durable_generation(region) == self.decided.regions[region].generation
    }

    /// The durable placement of a region by this term, unless another one is decided.
    pub(super) fn placement_to_deploy(&self, region: usize) -> Option<&pb::RegionState> {
        let durable = &self.durable.regions[region];
        let is_current = *durable == self.decided.regions[region];
        let is_own = !durable.placements.is_empty() && durable.epoch == self.epoch();
        (is_current && is_own).then_some(durable)
    }

    /// Whether an earlier term decided the present generation of a region.
    pub(super) fn is_of_earlier_term(&self, region: usize) -> bool {
        self.decided.regions[region].epoch < self.epoch()
    }

    /// The counters of the restart strategy.
    pub(super) fn restart_counters(&self) -> pb::RestartCounters {
        self.decided.restarts.clone().unwrap_or_default()
    }

    /// Records that this JobMaster has the job. `wait_ms`: the least time that the next JobMaster of an isolated job
    /// waits before it replaces an attempt of unknown end; the record keeps the longest. `takes_checkpoints`: that of
    /// any JobMaster stays, since its tasks may still run.
    pub(super) fn take_over(&mut self, wait_ms: Option<u64>, takes_checkpoints: bool, now_ms: u64) {
        let record = self.change();
        record.takes_checkpoints |= takes_checkpoints;
        record.job_incarnation = record.job_incarnation.saturating_add(1);
        if let Some(wait_ms) = wait_ms {
            record.stop_first_wait_ms = record.stop_first_wait_ms.max(wait_ms);
        }
        let counters = record.restarts.iter_mut();
        // These failures are in the past, even if the clock of the leader that noted them was ahead.
        for at_ms in counters.flat_map(|it| &mut it.failures_ms) {
            *at_ms = (*at_ms).min(now_ms);
        }
    }

    /// Records the wanted status.
    pub(super) fn want(&mut self, wanted: WantedStatus) {
        let record = self.change();
        record.set_wanted(wanted);
        record.stopped_with.clear();
    }

    /// Records that the job has stopped with a savepoint: what runs is canceled, and the job is FINISHED.
    pub(super) fn stop_with(&mut self, savepoint: String) {
        let record = self.change();
        record.set_wanted(WantedStatus::Canceled);
        record.stopped_with = savepoint;
    }

    /// Records that the job fails for good. One that stopped with a savepoint fails instead.
    pub(super) fn fail(&mut self, cause: String) {
        let record = self.change();
        if !std::mem::take(&mut record.stopped_with).is_empty() {
            record.set_wanted(WantedStatus::Running);
        }
        record.fatal_cause = cause;
    }

    /// Records the counters after a failure.
    pub(super) fn count_failure(&mut self, counters: pb::RestartCounters) {
        self.change().restarts = Some(counters);
    }

    /// Records the placement of a region, with the states of its coordinators. Generation and epoch of `placement`
    /// are set here. A region that was never placed gets generation 1.
    pub(super) fn place(
        &mut self,
        region: usize,
        placement: pb::RegionState,
        coordinators: Vec<pb::CoordinatorState>,
    ) {
        let epoch = self.epoch();
        let record = self.change();
        record.coordinators.extend(coordinators);
        let state = &mut record.regions[region];
        *state = pb::RegionState {
            generation: state.generation.max(1),
            epoch,
            placed_before: state.placed_before,
            ..placement
        };
        self.has_placed = true;
    }

    /// Records the next generation of a region, neither placed nor deployed. The present one is given up once this is
    /// durable. A region that was never placed counts as generation 1. If `restart_at_ms` is in the future, it is
    /// recorded, so that a takeover does not shorten the backoff.
    pub(super) fn give_up(&mut self, region: usize, restart_at_ms: u64, now_ms: u64) {
        let epoch = self.epoch();
        let record = self.change();
        let has_ends = !record.terminal.is_empty();
        let state = &mut record.regions[region];
        let restart_delay_ms = restart_at_ms.saturating_sub(now_ms);
        let is_delayed = restart_delay_ms > 0;
        *state = pb::RegionState {
            generation: state.generation.max(1) + 1,
            epoch,
            placed_before: state.placed_before || !state.placements.is_empty(),
            restart_at_ms: if is_delayed { restart_at_ms } else { 0 },
            restart_delay_ms,
            ..pb::RegionState::default()
        };
        self.has_stale_ends |= has_ends;
    }

    /// Records the end of an execution.
    pub(super) fn record_end(&mut self, end: pb::TerminalExecution) {
        self.change().terminal.push(end);
    }

    /// Whether the ends of all executions still have to be recorded, as the job ends. True once.
    pub(super) fn take_all_ends(&mut self) -> bool {
        !std::mem::replace(&mut self.has_all_ends, true)
    }

    /// Keeps only those coordinators for which `is_kept` is true.
    pub(super) fn retain_coordinators(&mut self, is_kept: impl Fn(&pb::CoordinatorState) -> bool) {
        if !self.decided.coordinators.iter().all(&is_kept) {
            self.change().coordinators.retain(is_kept);
        }
    }

    /// Moves the coordinators for which `is_meant` is true to another generation.
    pub(super) fn renew_coordinators(
        &mut self,
        is_meant: impl Fn(&pb::CoordinatorState) -> bool,
        generation: u64,
    ) {
        let is_outdated = |it: &pb::CoordinatorState| is_meant(it) && it.generation != generation;
        if self.decided.coordinators.iter().any(is_outdated) {
            let coordinators = self.change().coordinators.iter_mut();
            let meant = coordinators.filter(|it| is_meant(it));
            meant.for_each(|it| it.generation = generation);
        }
    }

    /// Decides on a request to a coordinator, by its index in the record. None: it has no state.
    pub(super) fn take_request(
        &mut self,
        coordinator: usize,
        subtask: u32,
        number: u64,
    ) -> Option<Taken> {
        let record = Arc::make_mut(&mut self.decided);
        let state = record.coordinators[coordinator].state.as_mut()?;
        let taken = coordinator::take(state, subtask, number);
        self.revision += u64::from(taken == Taken::Decided);
        Some(taken)
    }

    /// Adds a failure. It becomes durable with the next write: a decision follows from it.
    pub(super) fn add_failure(&mut self, failure: pb::FailureRecord) {
        let kept = self.kept_failures;
        let failures = &mut Arc::make_mut(&mut self.decided).failures;
        failures.push(failure);
        let surplus = failures.len().saturating_sub(kept);
        failures.drain(..surplus);
    }

    /// Adds a failure that is concurrent to the last one. It becomes durable with the next write.
    pub(super) fn add_concurrent_failure(&mut self, failure: pb::FailureRecord) {
        let failures = &mut Arc::make_mut(&mut self.decided).failures;
        if let Some(root) = failures.last_mut() {
            root.concurrent.push(failure);
        }
    }

    /// Puts a failure in the place of the last one, which it has caused. It becomes durable with the next write.
    pub(super) fn replace_failure(
        &mut self,
        cause: impl FnOnce(pb::FailureRecord) -> pb::FailureRecord,
    ) {
        let failures = &mut Arc::make_mut(&mut self.decided).failures;
        if let Some(last) = failures.pop() {
            failures.push(cause(last));
        }
    }

    /// Adds events and entered statuses. They become durable with the next write; none is made for them.
    pub(super) fn add_events(
        &mut self,
        mut events: Vec<pb::JobEvent>,
        entered: Vec<pb::StatusTimestamp>,
    ) {
        let record = Arc::make_mut(&mut self.decided);
        record.events.reserve_exact(events.len());
        record.events.append(&mut events);
        keep_newest(&mut record.events);
        for it in entered {
            enter(&mut record.statuses, it.status(), it.at_ms);
        }
    }

    /// Whether there are decisions to write, and they can be written.
    pub(super) fn is_to_write(&self) -> bool {
        let is_written = self.revision == self.durable_revision;
        !is_written && self.writing.is_none() && self.refusal.is_none()
    }

    /// Removes the terminal states of given-up generations from the decided state. They are not needed any more, and
    /// the next write is the occasion.
    pub(super) fn forget_stale_ends(&mut self, graph: &ExecutionGraph) {
        if !std::mem::take(&mut self.has_stale_ends) {
            return;
        }
        let pb::JobState {
            terminal, regions, ..
        } = Arc::make_mut(&mut self.decided);
        terminal.retain(|end| {
            let task = graph.find(&end.vertex_id, end.subtask);
            let region = task.map(|task| &regions[graph.task(task).region]);
            region.is_some_and(|region| region.generation == end.generation)
        });
    }

    /// Writes the decided state. `has_answers`: it has answers of coordinators that no write has.
    /// `have_all_finished`: it has the FINISHED ends of all tasks.
    pub(super) fn write(
        &mut self,
        has_answers: bool,
        have_all_finished: bool,
        now_ms: u64,
        out: &mut Output,
    ) {
        let (decided, durable) = (&self.decided, &self.durable);
        let is_newly = |wanted| decided.wanted() == wanted && durable.wanted() != wanted;
        let stops = !decided.stopped_with.is_empty() && durable.stopped_with.is_empty();
        let cancels = is_newly(WantedStatus::Canceled) && !stops;
        let is_canceled = decided.wanted() == WantedStatus::Canceled;
        let fails = !decided.fatal_cause.is_empty() && durable.fatal_cause.is_empty();
        let finishes = have_all_finished && !is_canceled && !self.all_have_durably_finished();
        let milestones = [
            (cancels, Milestone::CancelDecided),
            (stops, Milestone::StoppedWithSavepoint),
            (is_newly(WantedStatus::Stopped), Milestone::StopDecided),
            (fails, Milestone::FailureDecided),
            (self.has_placed, Milestone::GenerationPlaced),
            (has_answers, Milestone::CoordinatorDecided),
            (finishes, Milestone::AllFinished),
        ];
        let milestones = milestones.into_iter().filter(|(is_reached, _)| *is_reached);
        let milestones = milestones.map(|(_, milestone)| milestone).collect();
        self.has_placed = false;
        self.last_write += 1;
        let write = Write {
            number: self.last_write,
            revision: self.revision,
            since_ms: now_ms,
            state: self.decided.clone(),
        };
        out.push(Effect::Persist {
            number: write.number,
            state: write.state.clone(),
            milestones,
        });
        self.writing = Some(write);
    }

    /// Notes that a write is durable. None: it is not the one in flight.
    pub(super) fn confirm(&mut self, number: u64, graph: &ExecutionGraph) -> Option<ChangedEnds> {
        let write = self.writing.take_if(|write| write.number == number)?;
        self.durable = write.state;
        self.durable_revision = write.revision;
        self.is_durable = true;
        Some(self.update_ends(graph))
    }

    /// Notes that the store refused a write for good.
    pub(super) fn refuse(&mut self, number: u64, reason: String) {
        let refused = self.writing.take_if(|write| write.number == number);
        if refused.is_some() {
            self.refusal = Some(reason);
        }
    }

    /// Drops content from the record so that it can be written once more, if the store refused the first write of
    /// this term and all tasks have finished according to the durable record. Otherwise their output would be lost.
    /// Returns whether it does.
    pub(super) fn shorten(&mut self) -> bool {
        let has_finished = self.all_have_durably_finished() && self.durable.fatal_cause.is_empty();
        if self.is_durable || self.last_write > 1 || !has_finished {
            return false;
        }
        let job_incarnation = self.decided.job_incarnation;
        let takes_checkpoints = self.decided.takes_checkpoints;
        self.decided = self.durable.clone();
        self.refusal = None;
        let record = self.change();
        record.job_incarnation = job_incarnation;
        record.takes_checkpoints = takes_checkpoints;
        // The takeover event needs less room than the one dropped here.
        record.events.drain(..record.events.len().min(1));
        true
    }

    /// The decided state, for a change that needs a write.
    fn change(&mut self) -> &mut pb::JobState {
        self.revision += 1;
        Arc::make_mut(&mut self.decided)
    }

    /// Computes the ends of the present generations from the durable state.
    fn update_ends(&mut self, graph: &ExecutionGraph) -> ChangedEnds {
        let mut ends = BTreeMap::new();
        for end in &self.durable.terminal {
            let Some(task) = graph.find(&end.vertex_id, end.subtask) else {
                continue;
            };
            if self.durable_generation(graph.task(task).region) == end.generation {
                ends.insert(task, end.state());
            }
        }
        let before = std::mem::replace(&mut self.ends, ends);
        let finished = |end: &&ExecutionState| **end == ExecutionState::Finished;
        self.finished = self.ends.values().filter(finished).count();
        let ended = self.ends.keys().filter(|task| !before.contains_key(task));
        let given_up = before.keys().filter(|task| !self.ends.contains_key(task));
        ChangedEnds {
            ended: ended.copied().collect(),
            given_up: given_up.copied().collect(),
        }
    }

    /// Number of tasks that have durably finished, as counted.
    #[cfg(test)]
    pub(super) fn durably_finished(&self) -> (usize, usize) {
        let ends = self.ends.values();
        let finished = ends.filter(|end| **end == ExecutionState::Finished);
        (self.finished, finished.count())
    }
}

/// Whether a state says that the job ends without finishing.
fn is_to_end(record: &pb::JobState) -> bool {
    record.wanted() == WantedStatus::Canceled || !record.fatal_cause.is_empty()
}
