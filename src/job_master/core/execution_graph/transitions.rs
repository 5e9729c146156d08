//! Changes of an ExecutionGraph: an execution gets a place or another state or is replaced by the next one; a
//! region gets another phase. Each change updates the [`Indexes`] and adds to the [`Changes`]. Pure.
//!
//! The cost of a change depends on its region, on the regions that share slots with it and on those that read
//! from it; not on the number of regions.

use tanist_compact::SmallSet;
use tanist_proto::id::{Generation, ResourceId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::execution::{Cancellation, Execution, Place};
use super::indexes::{Changes, Indexes, Share};
use super::slot_uses::KeyUse;
use super::{ExecutionGraph, RegionPhase, as_index, number_of};
use crate::core::output::Output;
use crate::core::result_partitions::ResultPartition;
use crate::core::slot_pool::SlotKey;
use crate::core::status::illegal;

impl ExecutionGraph {
    /// Computes all indexes again, after a recovery has restored executions and phases.
    pub(crate) fn recount(&mut self) {
        self.indexes = Indexes::of(self);
        self.changes = Changes::of(self);
    }

    /// Replaces a task's execution. Returns the former one.
    pub(crate) fn replace(&mut self, task: usize, execution: Execution) -> Execution {
        self.note_place(task, execution.place.as_ref());
        self.change(task, |at| std::mem::replace(at, execution))
    }

    /// Sets place and generation of a task's execution.
    pub(crate) fn place(&mut self, task: usize, generation: Generation, place: Place) {
        self.note_place(task, Some(&place));
        self.change(task, |execution| {
            execution.generation = generation;
            execution.place = Some(place);
        });
    }

    fn note_place(&mut self, task: usize, next: Option<&Place>) {
        let places = &mut self.indexes.places;
        if let Some(before) = &self.tasks[task].execution.place {
            places.remove(&(before.task_manager.clone(), task));
        }
        places.extend(next.map(|next| (next.task_manager.clone(), task)));
    }

    /// Moves a task's execution to a state. Returns false if there is no such edge (a late or repeated
    /// report).
    pub(crate) fn advance(&mut self, task: usize, to: ExecutionState, now_ms: u64) -> bool {
        self.change(task, |execution| execution.enter(to, now_ms))
    }

    /// Sets a task's execution, during a recovery. [`ExecutionGraph::recount`] follows.
    pub(crate) fn restore(&mut self, task: usize, execution: Execution) {
        self.tasks[task].execution = execution;
    }

    /// Sets the phase of a region, during a recovery. [`ExecutionGraph::recount`] follows.
    pub(crate) fn restore_phase(
        &mut self,
        region: usize,
        phase: RegionPhase,
        is_end_unknown: bool,
    ) {
        self.regions[region].phase = phase;
        self.regions[region].is_end_unknown |= is_end_unknown;
    }

    /// Sets the coordinators that have to be prepared before a region is placed. [`ExecutionGraph::recount`] follows.
    pub(crate) fn set_coordinator_group(&mut self, region: usize, group: usize) {
        self.regions[region].coordinator_group = Some(group);
    }

    /// Notes what a TaskManager reports of a task's execution besides its state. Returns whether its cancellation
    /// has to be sent again.
    pub(crate) fn note_report(
        &mut self,
        task: usize,
        report: &pb::ExecutionReport,
        turn: u64,
        now_ms: u64,
    ) -> bool {
        let execution = &mut self.tasks[task].execution;
        execution.known_since.get_or_insert(turn);
        execution.note_ages(&report.ages, now_ms);
        if report.metrics.is_some() {
            execution.metrics = report.metrics;
        }
        if execution.unread_state != report.unread_state {
            execution.unread_state = report.unread_state.as_str().into();
        }
        self.retry_cancellation(task)
    }

    /// Notes that full reports which are requested from this step on contain a task's execution.
    pub(crate) fn note_known(&mut self, task: usize, turn: u64) {
        let known_since = &mut self.tasks[task].execution.known_since;
        known_since.get_or_insert(turn);
    }

    /// Notes that a task has finished, as its TaskManager reports. Returns false if there is no such edge.
    pub(crate) fn finish(
        &mut self,
        task: usize,
        report: &pb::ExecutionReport,
        now_ms: u64,
    ) -> bool {
        let execution = &mut self.tasks[task].execution;
        execution.committables.clone_from(&report.committables);
        let committables = &report.checkpoint_committables;
        execution.checkpoint_committables.clone_from(committables);
        execution.highest_checkpoint = report.highest_checkpoint;
        self.advance(task, ExecutionState::Finished, now_ms)
    }

    /// Notes that a task's execution has failed. Returns false if there is no such edge.
    pub(crate) fn fail(&mut self, task: usize, cause: &str, now_ms: u64) -> bool {
        let has_failed = self.advance(task, ExecutionState::Failed, now_ms);
        if has_failed {
            cause.clone_into(&mut self.tasks[task].execution.cause);
        }
        has_failed
    }

    /// Notes that a task's execution was never started.
    pub(crate) fn forget_start(&mut self, task: usize) {
        self.tasks[task].execution.started_at_ms = 0;
    }

    /// Notes that a task's execution is deployed, at the time of its placement.
    pub(crate) fn deploy(&mut self, task: usize, placed_at_ms: u64, out: &mut Output) {
        self.decide(task, ExecutionState::Deploying, placed_at_ms, out);
        self.tasks[task].execution.started_at_ms = placed_at_ms;
    }

    /// Notes that the cancellation of a task's execution is sent.
    pub(crate) fn cancel(&mut self, task: usize, now_ms: u64, out: &mut Output) {
        if self.tasks[task].execution.state != ExecutionState::Canceling {
            self.decide(task, ExecutionState::Canceling, now_ms, out);
        }
        self.tasks[task].execution.cancellation = Cancellation::Sent;
    }

    /// Notes the answer to a cancellation.
    pub(crate) fn answer_cancellation(&mut self, task: usize, answer: Cancellation) {
        self.tasks[task].execution.cancellation = answer;
    }

    /// Marks a cancellation that had no answer to be sent again. Returns whether there is one.
    pub(crate) fn retry_cancellation(&mut self, task: usize) -> bool {
        let cancellation = &mut self.tasks[task].execution.cancellation;
        let has_failed = *cancellation == Cancellation::Failed;
        if has_failed {
            *cancellation = Cancellation::NotSent;
        }
        has_failed
    }

    /// Marks a cancellation that was not confirmed to be sent again: it may have been refused. Returns whether there is
    /// one.
    pub(crate) fn resend_cancellation(&mut self, task: usize) -> bool {
        let cancellation = &mut self.tasks[task].execution.cancellation;
        let is_open = *cancellation != Cancellation::Confirmed;
        if is_open {
            *cancellation = Cancellation::NotSent;
        }
        is_open
    }

    /// Notes that the record has the terminal state of a task's execution.
    pub(crate) fn set_recorded(&mut self, task: usize) {
        self.tasks[task].execution.is_recorded = true;
    }

    /// Moves a task's execution to a state that the core decided. A missing edge is a bug.
    pub(crate) fn decide(
        &mut self,
        task: usize,
        to: ExecutionState,
        now_ms: u64,
        out: &mut Output,
    ) {
        let from = self.tasks[task].execution.state;
        if !self.advance(task, to, now_ms) {
            out.log(illegal(&self.task_name(task), &from, &to));
        }
    }

    /// Sets the state of a task's output.
    pub(crate) fn set_output(&mut self, task: usize, output: ResultPartition) {
        let was_awaited = self.tasks[task].execution.output == ResultPartition::Awaited;
        let is_new = matches!(output, ResultPartition::Kept { .. }) && !was_awaited;
        // A complete output counts once it is durable that its task has finished.
        self.changes.reads += u64::from(!is_new);
        self.change(task, |execution| execution.output = output);
    }

    /// Moves the start of all waits forward by `by_ms`.
    pub(crate) fn put_off(&mut self, by_ms: u64) {
        let waiting: Vec<(u64, usize)> = self.indexes.waiting_since.iter().copied().collect();
        for (since_ms, region) in waiting {
            let since_ms = since_ms.saturating_add(by_ms);
            self.set_phase(region, RegionPhase::Waiting { since_ms });
        }
        let canceling: Vec<(u64, usize)> = self.indexes.canceling_since.iter().copied().collect();
        for (since_ms, task) in canceling {
            let since_ms = since_ms.saturating_add(by_ms);
            self.change(task, |execution| execution.canceling_since_ms = since_ms);
        }
    }

    /// Moves a region to a phase.
    pub(crate) fn set_phase(&mut self, region: usize, phase: RegionPhase) {
        let before = self.regions[region].phase;
        if before == phase {
            return;
        }
        let was_running = self.is_running(region);
        // Out of its waiting list before anything that its need depends on changes, and into the other one at the end.
        self.indexes.unlist(region, before);
        self.indexes.leave(region, before);
        self.regions[region].phase = phase;
        self.indexes.enter(region, phase);
        self.count_running(region, was_running);
        if before.is_placed() != phase.is_placed() {
            self.count_placed_slots(region);
        }
        let could_run = phase != RegionPhase::AwaitingInput || self.inputs_have_finished(region);
        self.let_run(region, could_run);
        self.indexes.list(region, phase);
        self.changes.reads += 1;
        match phase {
            RegionPhase::Waiting { .. } => {
                self.changes.waiting.insert(region);
            }
            RegionPhase::Stopping { .. } => {
                self.changes.stopping.insert(region);
                self.changes.stopped.insert(region);
            }
            RegionPhase::AwaitingInput
            | RegionPhase::Reconciling
            | RegionPhase::Placed
            | RegionPhase::Deployed => {}
        }
    }

    /// Notes that an execution is assumed to be gone without a report of its end.
    pub(crate) fn doubt_end(&mut self, task: usize) {
        let at = &self.tasks[task];
        if at.execution.is_deployed() {
            self.regions[at.region].is_end_unknown = true;
        }
    }

    /// Notes that the give-up of a region is durable. Returns whether that is new.
    pub(crate) fn note_given_up(&mut self, region: usize, now_ms: u64) -> bool {
        let given_up_at_ms = &mut self.regions[region].given_up_at_ms;
        let is_new = given_up_at_ms.is_none();
        given_up_at_ms.get_or_insert(now_ms);
        is_new
    }

    /// Resets a region that has executions of the next generation.
    pub(crate) fn forget_given_up(&mut self, region: usize) {
        let at = &mut self.regions[region];
        at.given_up_at_ms = None;
        at.is_end_unknown = false;
    }

    /// The tasks whose execution has ended since the last call.
    pub(crate) fn take_newly_ended(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.changes.ended)
    }

    /// The regions that have no awaited execution any more, since the last call.
    pub(crate) fn take_newly_reconciled(&mut self) -> SmallSet<usize> {
        std::mem::take(&mut self.changes.reconciled)
    }

    /// The regions whose executions all run or have ended, since the last call.
    pub(crate) fn take_newly_running(&mut self) -> SmallSet<usize> {
        std::mem::take(&mut self.changes.running)
    }

    /// The regions whose executions have to end, since the last call.
    pub(crate) fn take_newly_stopping(&mut self) -> SmallSet<usize> {
        std::mem::take(&mut self.changes.stopping)
    }

    /// The stopping regions that may have ended since the last call.
    pub(crate) fn take_newly_stopped(&mut self) -> SmallSet<usize> {
        std::mem::take(&mut self.changes.stopped)
    }

    /// The regions that wait for slots, since the last call.
    pub(crate) fn take_newly_waiting(&mut self) -> SmallSet<usize> {
        std::mem::take(&mut self.changes.waiting)
    }

    /// The regions whose backoff ended after `after_ms` and until `until_ms`.
    pub(crate) fn restarts_due(&self, after_ms: u64, until_ms: u64) -> impl Iterator<Item = usize> {
        let (after, until) = ((after_ms, usize::MAX), (until_ms, usize::MAX));
        let due = self.indexes.restarting_at.range(after..=until);
        due.map(|(_, region)| *region)
    }

    /// Whether a region is placed and has not ended.
    fn is_running(&self, region: usize) -> bool {
        self.regions[region].phase.is_placed() && self.indexes.regions[region].live > 0
    }

    fn count_running(&mut self, region: usize, was_running: bool) {
        let is_running = self.is_running(region);
        let is_bounded = usize::from(self.regions[region].is_bounded);
        if is_running && !was_running {
            self.indexes.running += 1;
            self.indexes.running_bounded += is_bounded;
        } else if was_running && !is_running {
            self.indexes.running -= 1;
            self.indexes.running_bounded -= is_bounded;
        }
    }

    /// Counts a region's slots as placed or as unplaced.
    fn count_placed_slots(&mut self, region: usize) {
        let at = &self.regions[region];
        let (is_placed, is_endless) = (at.phase.is_placed(), !at.is_bounded);
        for key in &at.slots {
            self.indexes.slots.change(&self.kinds, *key, |key| {
                count(&mut key.unplaced, !is_placed);
                if is_endless {
                    count(&mut key.endless, is_placed);
                }
            });
        }
    }

    /// Sets whether a region could run. It must not be in a waiting list: the list is keyed by its need, which changes.
    fn let_run(&mut self, region: usize, could_run: bool) {
        let tally = &mut self.indexes.regions[region];
        if std::mem::replace(&mut tally.could_run, could_run) == could_run {
            return;
        }
        for index in 0..self.regions[region].tasks.len() {
            let task = self.regions[region].tasks[index];
            if !self.has_finished(task) {
                let key = self.slot_key(task);
                self.change_key(key, |key| count(&mut key.unfinished, could_run));
            }
        }
    }

    /// Changes an execution and updates all indexes.
    fn change<T>(&mut self, task: usize, change: impl FnOnce(&mut Execution) -> T) -> T {
        let execution = &mut self.tasks[task].execution;
        let before = Share::of(execution);
        let returned = change(execution);
        let after = Share::of(execution);
        if before != after {
            self.account(task, before, after);
        }
        returned
    }

    fn account(&mut self, task: usize, before: Share, after: Share) {
        let region = self.tasks[task].region;
        let (phase, was_running) = (self.regions[region].phase, self.is_running(region));
        let indexes = &mut self.indexes;
        indexes.states[number_of(before.state)] -= 1;
        indexes.states[number_of(after.state)] += 1;
        if let Some(since_ms) = before.canceling_since_ms {
            indexes.canceling_since.remove(&(since_ms, task));
        }
        let since_ms = after.canceling_since_ms;
        let canceling = since_ms.map(|since_ms| (since_ms, task));
        indexes.canceling_since.extend(canceling);
        indexes.outputs_awaited -= usize::from(before.is_output_awaited);
        indexes.outputs_awaited += usize::from(after.is_output_awaited);
        let tally = &mut indexes.regions[region];
        tally.awaited -= usize::from(before.is_awaited());
        tally.awaited += usize::from(after.is_awaited());
        tally.live -= usize::from(before.is_live);
        tally.live += usize::from(after.is_live);
        tally.running -= usize::from(before.is_running());
        tally.running += usize::from(after.is_running());
        if tally.running > 0 && tally.running == tally.live {
            self.changes.running.insert(region);
        }
        if tally.awaited == 0 && phase == RegionPhase::Reconciling {
            self.changes.reconciled.insert(region);
        }
        if tally.live == 0 && matches!(phase, RegionPhase::Stopping { .. }) {
            self.changes.stopped.insert(region);
        }
        if before.is_live && !after.is_live {
            self.changes.ended.push(task);
        }
        self.count_running(region, was_running);
        if before.is_in_slot != after.is_in_slot {
            let key = self.slot_key(task);
            self.change_key(key, |key| count(&mut key.live, after.is_in_slot));
        }
        if before.has_finished() != after.has_finished() {
            self.account_finished(task, after.has_finished());
        }
    }

    /// Counts a task as finished or as unfinished again.
    fn account_finished(&mut self, task: usize, has_finished: bool) {
        let (region, vertex) = (self.tasks[task].region, self.tasks[task].vertex);
        if self.indexes.regions[region].could_run {
            let key = self.slot_key(task);
            self.change_key(key, |key| count(&mut key.unfinished, !has_finished));
        }
        let finished = &mut self.indexes.finished[vertex];
        *finished -= usize::from(!has_finished);
        *finished += usize::from(has_finished);
        // Regions that read the whole vertex are updated only when its last task has finished, or when the first one is
        // unfinished again.
        let unfinished = as_index(self.vertices[vertex].parallelism) - *finished;
        let with_whole_vertex = unfinished == usize::from(!has_finished);
        for reader in self.readers_of(task, with_whole_vertex) {
            let phase = self.regions[reader].phase;
            if phase == RegionPhase::AwaitingInput {
                let could_run = self.inputs_have_finished(reader);
                self.indexes.unlist(reader, phase);
                self.let_run(reader, could_run);
                self.indexes.list(reader, phase);
            }
        }
    }

    /// Changes the counts of a key, and the needs of the regions that have it.
    fn change_key(&mut self, key: SlotKey, change: impl FnOnce(&mut KeyUse)) {
        if !self.indexes.slots.change(&self.kinds, key, change) {
            return;
        }
        let kind = self.kinds.of(key);
        let is_open = !self.indexes.slots.is_taken(&self.kinds, key);
        for region in self.regions_with(key) {
            let phase = self.regions[region].phase;
            self.indexes.unlist(region, phase);
            self.indexes.regions[region].need.change(kind, is_open);
            self.indexes.list(region, phase);
        }
    }

    /// The regions that need the slot of a key.
    fn regions_with(&self, key: SlotKey) -> Vec<usize> {
        let vertices = self.vertices.iter();
        let sharing =
            vertices.filter(|vertex| vertex.group == key.group && key.index < vertex.parallelism);
        let tasks = sharing.map(|vertex| vertex.first + as_index(key.index));
        let mut regions: Vec<usize> = tasks.map(|task| self.tasks[task].region).collect();
        regions.sort_unstable();
        regions.dedup();
        regions
    }

    /// The tasks that are placed on a TaskManager, including ended ones.
    pub(crate) fn tasks_on(&self, task_manager: &ResourceId) -> Vec<usize> {
        let first = (task_manager.clone(), 0);
        let tasks = self.indexes.places.range(first..);
        let tasks = tasks.take_while(|(at, _)| at == task_manager);
        tasks.map(|(_, task)| *task).collect()
    }

    /// Indices of the tasks whose present execution is on a TaskManager and has not ended.
    pub(crate) fn live_on(&self, task_manager: &ResourceId) -> Vec<usize> {
        let mut tasks = self.tasks_on(task_manager);
        tasks.retain(|task| !self.tasks[*task].execution.is_ended());
        tasks
    }
}

/// Adds or subtracts one.
fn count(number: &mut u32, is_more: bool) {
    match is_more {
        true => *number += 1,
        false => *number -= 1,
    }
}
