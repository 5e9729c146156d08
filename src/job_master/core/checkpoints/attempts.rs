//! Numbers in flight: begins, triggers, acknowledges and aborts them. A handler: it has no state itself.
//!
//! - A number is triggered at all tasks of its region that have sources; barriers bring it to the others.
//! - An acknowledgement counts for the number in flight alone, from an execution of the present generation at its
//!   place, over the present registration, and if it names only objects that cannot be garbage.
//! - An abort happens in memory, and is sent to all tasks of the region. It may be lost: a task that reports the number
//!   later is sent the abort again (`apply_report`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::attempt::{Attempt, Work};
use super::deadlines::Deadlines;
use super::event::{TaskProgress, TaskReport, TriggerAnswer};
use super::links::Links;
use super::objects::{named_by_subtask, number_of};
use super::options::{ANSWER_TIMEOUT_MS, Options, TIMEOUT_KEY};
use super::output::Output;
use super::record::CheckpointRecord;
use super::regions::{Phase, Regions};
use super::removal::Removal;
use super::requests::{flags_of, stop_of};
use super::rounds::Rounds;
use super::{Barrier, Effect, Executions};
use crate::core::Connection;

/// Whether an abort is a failed checkpoint, which is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    Failure,
    NoFailure,
}

/// Borrows what decisions about numbers in flight need.
pub(super) struct Attempts<'a> {
    pub(super) options: &'a Options,
    pub(super) regions: &'a mut Regions,
    pub(super) links: &'a Links,
    pub(super) deadlines: &'a mut Deadlines,
    pub(super) record: &'a CheckpointRecord,
    pub(super) rounds: &'a mut Rounds,
    pub(super) removal: &'a mut Removal,
    pub(super) out: &'a mut Output,
    pub(super) now_ms: u64,
}

impl Attempts<'_> {
    /// Puts a number in flight at a region and triggers it.
    pub(super) fn begin(&mut self, region: usize, number: u64) {
        // Objects of the number before, if that was aborted, can be used once more. Nothing older: a region whose
        // numbers are aborted again and again would hold the floor of all regions.
        let usable = self.regions.get(region).aborted_number();
        self.put_in_flight(region, number, usable.unwrap_or(number));
        self.trigger(region, None);
    }

    /// Puts a number in flight at a region. Its tasks may use what is numbered from `floor` on.
    pub(super) fn put_in_flight(&mut self, region: usize, number: u64, floor: u64) {
        let durable = self.record.durable();
        let flags = flags_of(&durable.requests, number);
        let floor = floor.max(durable.floor);
        let attempt = Attempt::new(number, floor, flags, self.now_ms);
        self.regions.begin_attempt(region, attempt);
        if let Some(due_ms) = self.due_at(region) {
            self.deadlines.add(due_ms);
        }
    }

    /// Triggers the number in flight at the sources of a region that have not acknowledged it, on one TaskExecutor or
    /// all.
    pub(super) fn trigger(&mut self, region: usize, only: Option<&ResourceId>) {
        let at = self.regions.get(region);
        let Some(attempt) = at.attempt().filter(|attempt| !attempt.is_complete()) else {
            return;
        };
        let (flags, generation) = (attempt.flags(), at.generation());
        let barrier = Barrier {
            number: attempt.number(),
            newest: self.record.newest_number(region),
            floor: attempt.floor(),
            is_savepoint: flags.is_savepoint,
            pauses: flags.pauses,
        };
        let mut by_task_manager = self.open_sources(region);
        by_task_manager.retain(|place, _| only.is_none_or(|only| only == place));
        let until_ms = self.now_ms.saturating_add(ANSWER_TIMEOUT_MS);
        for (place, tasks) in by_task_manager {
            if let Some(attempt) = self.regions.attempt_mut(region) {
                attempt.await_answer(place.clone(), until_ms);
                self.deadlines.add(until_ms);
            }
            if let Some(connection) = self.links.connection(&place) {
                self.out.push(Effect::Trigger {
                    connection,
                    sources: Executions {
                        region,
                        generation,
                        tasks,
                    },
                    barrier,
                });
            }
        }
    }

    /// The sources of a region that have not ended and have not acknowledged the number in flight, by TaskExecutor.
    pub(super) fn open_sources(&self, region: usize) -> BTreeMap<ResourceId, Vec<usize>> {
        let at = self.regions.get(region);
        let mut by_task_manager: BTreeMap<ResourceId, Vec<usize>> = BTreeMap::new();
        for task in self.regions.topology().sources_of(region) {
            let has_saved = at.attempt().is_some_and(|it| it.snapshot(task).is_some());
            let is_open = at.end(task).is_none() && !has_saved;
            if let Some(place) = at.place(task).filter(|_| is_open) {
                by_task_manager.entry(place.clone()).or_default().push(task);
            }
        }
        by_task_manager
    }

    /// Notes the answer to a trigger.
    pub(super) fn apply_answers(
        &mut self,
        connection: &Connection,
        (region, number): (usize, u64),
        answers: Vec<(usize, TriggerAnswer)>,
    ) {
        let attempt = self.regions.attempt_mut(region);
        let Some(attempt) = attempt.filter(|attempt| attempt.number() == number) else {
            return;
        };
        attempt.answered(&connection.task_manager);
        let mut refusal = None;
        for (task, answer) in answers {
            match answer {
                TriggerAnswer::Injected => {}
                TriggerAnswer::SourceEnded => attempt.source_ended(task),
                TriggerAnswer::Refused(reason) => refusal = Some(reason),
            }
        }
        if attempt.is_complete() {
            return;
        }
        if let Some(reason) = refusal {
            return self.abort(region, &reason, Counts::Failure);
        }
        self.abort_without_sources(region);
    }

    /// Aborts the number in flight if no source is left that could send its barrier to the other tasks.
    pub(super) fn abort_without_sources(&mut self, region: usize) {
        let at = self.regions.get(region);
        let Some(attempt) = at.attempt().filter(|attempt| !attempt.is_complete()) else {
            return;
        };
        let has_none = self.regions.topology().sources_of(region).all(|task| {
            attempt.has_ended_source(task) || at.has_ended_before(task, attempt.number())
        });
        if has_none {
            self.abort(region, "all sources have ended", Counts::NoFailure);
        }
    }

    /// Takes an acknowledgement or a decline. Of an awaited region it is kept as a report, and there is no answer yet.
    /// Otherwise returns the answer to an acknowledgement.
    pub(super) fn answer(
        &mut self,
        connection: &Connection,
        (task, generation, number): (usize, u64, u64),
        progress: TaskProgress,
    ) -> Option<Result<(), String>> {
        let region = self.regions.region_of(task, generation);
        let awaited = region.filter(|it| self.regions.get(*it).phase() == Phase::Awaited);
        let Some(region) = awaited else {
            let TaskProgress::Acknowledged(snapshot) = progress else {
                return None;
            };
            return Some(self.acknowledge(connection, (task, generation, number), &snapshot));
        };
        let known = self.regions.get(region).report(task);
        if known.is_none_or(|known| known.highest <= number) {
            // An answer would be final, and whether the number is adopted is not decided.
            self.regions.keep_report(
                region,
                TaskReport {
                    task,
                    generation,
                    highest: number,
                    progress,
                    is_paused: known.is_some_and(|known| known.is_paused),
                    has_input_ended: known.is_some_and(|known| known.has_input_ended),
                },
            );
        }
        None
    }

    /// Takes an acknowledgement. The error says why it does not count.
    fn acknowledge(
        &mut self,
        connection: &Connection,
        (task, generation, number): (usize, u64, u64),
        snapshot: &Arc<pb::SubtaskSnapshot>,
    ) -> Result<(), String> {
        let region = self.regions.region_of(task, generation);
        let region = region.ok_or("its execution is not the present one")?;
        let at = self.regions.get(region);
        if at.place(task) != Some(&connection.task_manager) {
            return Err("its execution is at another place".to_owned());
        }
        if self.record.newest_number(region) == number {
            return Ok(());
        }
        let attempt = at.attempt().filter(|attempt| attempt.number() == number);
        let attempt = attempt.ok_or("the number is not in flight")?;
        if attempt.snapshot(task).is_some() {
            return Ok(());
        }
        if let Some(object) = self.garbage_named_by(region, attempt.floor(), snapshot) {
            let reason = format!("its state names {object:?}, which may have been removed");
            self.removal.leave(std::iter::once(&**snapshot));
            self.abort(region, &reason, Counts::Failure);
            return Err(reason);
        }
        if let Some(attempt) = self.regions.attempt_mut(region) {
            attempt.acknowledge(task, snapshot.clone());
        }
        if !self
            .open_sources(region)
            .contains_key(&connection.task_manager)
            && let Some(attempt) = self.regions.attempt_mut(region)
        {
            // Its sources have taken the number up, so the trigger arrived, even if the answer is lost.
            attempt.answered(&connection.task_manager);
        }
        self.complete_if_all(region);
        Ok(())
    }

    /// An object that a snapshot must not name, because it may be garbage: it is numbered below the floor, and the
    /// region's newest snapshot does not name it.
    fn garbage_named_by(
        &self,
        region: usize,
        floor: u64,
        snapshot: &pb::SubtaskSnapshot,
    ) -> Option<String> {
        let may_be_garbage = |object: &&str| {
            let is_new = number_of(object).is_some_and(|number| number >= floor);
            !is_new && !self.record.names(region, object)
        };
        let mut named = named_by_subtask(snapshot);
        named.find(may_be_garbage).map(str::to_owned)
    }

    /// Notes that the number in flight is complete, if nothing is missing.
    pub(super) fn complete_if_all(&mut self, region: usize) {
        if !self.regions.has_all(region) {
            return;
        }
        if self.regions.set_complete(region) {
            self.rounds.leave(region);
        }
    }

    /// Applies what a TaskExecutor reports about an execution whose region is settled.
    pub(super) fn apply_report(&mut self, connection: &Connection, report: &TaskReport) {
        let Some(region) = self.regions.region_of(report.task, report.generation) else {
            return;
        };
        if report.is_paused && stop_of(&self.record.durable().requests).is_none() {
            // The abort that resumes it was lost, or was never sent by an earlier leader.
            self.regions.pause(region, report.highest);
        }
        let attempt = self.regions.get(region).attempt();
        let in_flight = attempt.map(Attempt::number);
        let (number, is_in_flight) = (report.highest, in_flight == Some(report.highest));
        // In this order: first reports of the number in flight, then those of other numbers.
        match &report.progress {
            TaskProgress::Acknowledged(snapshot) if is_in_flight => {
                let id = (report.task, report.generation, number);
                // The answer is dropped: reports are not repeated for lack of one. An error has aborted the number.
                let _ = self.acknowledge(connection, id, snapshot);
            }
            TaskProgress::Declined if is_in_flight => {
                self.abort(region, "a task declined it", Counts::Failure);
            }
            TaskProgress::Aborted if is_in_flight => {
                self.abort(region, "an earlier leader aborted it", Counts::NoFailure);
            }
            TaskProgress::Blocked if is_in_flight => {
                self.note_work(region, report.task, Work::Aligning);
            }
            TaskProgress::Writing if is_in_flight => {
                self.note_work(region, report.task, Work::Writing);
            }
            // A report that was sent before the number was complete may arrive after it is durable.
            TaskProgress::Blocked | TaskProgress::Writing
                if number != self.record.newest_number(region) =>
            {
                // A late trigger of a former leader: the other sources will send no barrier of it.
                self.tell_abort(region, number);
            }
            TaskProgress::Acknowledged(_) if number > self.record.newest_number(region) => {
                self.tell_abort(region, number);
            }
            TaskProgress::Unheard
            | TaskProgress::Blocked
            | TaskProgress::Writing
            | TaskProgress::Acknowledged(_)
            | TaskProgress::Declined
            | TaskProgress::Aborted => {}
        }
    }

    fn note_work(&mut self, region: usize, task: usize, work: Work) {
        if let Some(attempt) = self.regions.attempt_mut(region) {
            attempt.note_work(task, work);
        }
    }

    /// The input of a task has ended. If the task neither ends within its timeout nor takes the number in flight up,
    /// that number is aborted.
    pub(super) fn end_input(&mut self, region: usize, task: usize, highest: u64) {
        self.regions.end_input(region, task, highest, self.now_ms);
        let due_ms = self.due_at(region);
        due_ms.into_iter().for_each(|it| self.deadlines.add(it));
    }

    /// Aborts numbers in flight that have exceeded a timeout.
    pub(super) fn abort_overdue(&mut self) {
        if !self.deadlines.is_due(self.now_ms) {
            if cfg!(test) {
                let missed = self.overdue().next();
                assert!(missed.is_none(), "a timeout was not added: {missed:?}");
            }
            return;
        }
        for (region, (reason, counts)) in self.overdue().collect::<Vec<_>>() {
            self.abort(region, &reason, counts);
        }
        // A moment that has passed without a number being overdue needs no further look: another event decides.
        let due = self.regions.attempts();
        let due = due.filter_map(|(region, _)| self.due_after(region, self.now_ms));
        let due_ms = due.min();
        self.deadlines.looked(due_ms);
    }

    fn overdue(&self) -> impl Iterator<Item = (usize, (String, Counts))> {
        self.regions.attempts().filter_map(|(region, attempt)| {
            let reason = self.overdue_reason(region, attempt)?;
            Some((region, reason))
        })
    }

    fn overdue_reason(&self, region: usize, attempt: &Attempt) -> Option<(String, Counts)> {
        // A complete number waits for the store alone, which has no timeout.
        if attempt.is_complete() {
            return None;
        }
        let now_ms = self.now_ms;
        let timeout_ms = self.options.timeout_ms;
        if attempt.began_ms().saturating_add(timeout_ms) <= now_ms {
            let missing = self.regions.missing(region);
            let missing = missing.map_or_else(String::new, |it| format!(": {it}"));
            let reason =
                format!("it was not complete within {timeout_ms} ms ({TIMEOUT_KEY}){missing}");
            return Some((reason, Counts::Failure));
        }
        if let Some((place, until_ms)) = attempt.first_unanswered()
            && until_ms <= now_ms
        {
            let reason = format!("TaskManager {place} did not answer the trigger");
            return Some((reason, Counts::Failure));
        }
        let at = self.regions.get(region);
        for place in at.places_that_owe(attempt) {
            let due_ms = self.links.loss_due_ms(place);
            if due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
                let reason = format!("TaskManager {place} can't be reached");
                return Some((reason, Counts::Failure));
            }
        }
        let task = at.overdue_input_end(attempt.number(), now_ms)?;
        let is_open = attempt.snapshot(task).is_none();
        let reason = "a task did not end within its timeout after its input had ended".to_owned();
        is_open.then_some((reason, Counts::NoFailure))
    }

    /// Aborts the number in flight at a region.
    pub(super) fn abort(&mut self, region: usize, reason: &str, counts: Counts) {
        let Some(attempt) = self.regions.take_attempt(region) else {
            return;
        };
        self.removal.leave(attempt.snapshots());
        self.rounds.leave(region);
        if !attempt.flags().is_savepoint {
            // The abort of a savepoint's number does not delay the next round: such numbers are forced again and again.
            self.rounds.end(self.now_ms);
        }
        let number = attempt.number();
        self.regions.note_abort(region, number, self.now_ms, reason);
        self.tell_abort(region, attempt.number());
        self.out.push(Effect::Aborted {
            region,
            number: attempt.number(),
            reason: reason.to_owned(),
            is_failure: counts == Counts::Failure,
        });
        if counts == Counts::NoFailure {
            return;
        }
        let failures = self.regions.count_failure(region);
        if self
            .options
            .tolerable_failures
            .is_some_and(|limit| failures > limit)
        {
            self.regions.reset_failures(region);
            self.out.push(Effect::FailRegion {
                region,
                cause: format!("{failures} checkpoints in a row have failed; the last: {reason}"),
            });
        }
    }

    /// Sends the abort of a number to all tasks of a region. It resumes sources that pause behind it, or behind a lower
    /// one.
    pub(super) fn tell_abort(&mut self, region: usize, number: u64) {
        self.regions.resume(region, number);
        let at = self.regions.get(region);
        let generation = at.generation();
        for (place, tasks) in at.by_task_manager() {
            if let Some(connection) = self.links.connection(place) {
                self.out.push(Effect::Abort {
                    connection,
                    executions: Executions {
                        region,
                        generation,
                        tasks,
                    },
                    number,
                });
            }
        }
    }

    /// The first moment at which the number in flight at a region can be overdue.
    fn due_at(&self, region: usize) -> Option<u64> {
        self.due_after(region, 0)
    }

    /// The first moment after `after_ms` at which the number in flight at a region can be overdue.
    fn due_after(&self, region: usize, after_ms: u64) -> Option<u64> {
        let at = self.regions.get(region);
        let attempt = at.attempt().filter(|attempt| !attempt.is_complete())?;
        let places = at.places_that_owe(attempt).into_iter();
        let losses = places.filter_map(|place| self.links.loss_due_ms(place));
        let timeout = attempt.began_ms().saturating_add(self.options.timeout_ms);
        let unanswered = attempt.first_unanswered().map(|(_, until_ms)| until_ms);
        let due = losses.chain([timeout]).chain(unanswered);
        let due = due.chain(at.input_ends_due_ms());
        due.filter(|due_ms| *due_ms > after_ms).min()
    }
}
