//! The checkpoints of a job, pure: (state, now, event) -> effects. It owns the record `checkpoints/<job>`.
//!
//! A number N goes through these states at each region of its round. Only the last one is durable:
//!
//! ```text
//!              round due, N reserved durably
//!  (no number) -----------------------------> Collecting --- each subtask acknowledged N or ended before --> Complete
//!       ^         adopted after a takeover       ^ |                                                            |
//!       |      (nothing is written for it) ------+ | a decline, a timeout, a lost link, the region fails,       |
//!       |                                          | the end of the job is decided                              |
//!       +------------------ Aborted <--------------+-------- the region fails before the write is sent ---------+
//!       |                   (in memory; all tasks are told)                                                     |
//!       |                                                                        manifest put if it is large    |
//!       +------------------------- Durable <----- one fenced write: manifest, removing, floor, next ------------+
//!                                     |
//!                                     +--> commit what the manifest lists -> remove what is garbage by now
//! ```
//!
//! The state is divided into owners with private fields (ADR 56, ADR 60):
//!
//! | owner | it alone says |
//! |---|---|
//! | `CheckpointRecord` | what is durable, and what is being written |
//! | `Numbers` | which number is given out next |
//! | `Regions` | phase, generation, ends and number in flight of each region |
//! | `Links` | which registration of a TaskExecutor counts |
//! | `Deadlines` | when a number in flight can exceed a timeout |
//! | `Rounds` | when the next round is due, which regions it waits for |
//! | `ManifestPut` | which manifest is being put |
//! | `Commits` | up to which number everything is committed |
//! | `Removal` | what may be removed, and what is gone |
//! | `Savepoints` | which requests, outcomes and copies of savepoints are not durable |
//!
//! Invariants: a number is given out once; a region has one number in flight; nothing acts on a manifest before it is
//! durable; from the event that a region has failed, no snapshot of its generation is written; `floor` is durable
//! before anything below it is removed. The caller keeps two rules: it does not place a region while
//! [`CheckpointCore::restored_from`] has no answer, and it writes no result before
//! [`CheckpointCore::is_all_committed`].
//!
//! The JobMaster's actor owns this core beside the JobMaster's core, and passes messages between them
//! (`checkpointing/`).

mod adoption;
mod attempt;
mod attempts;
mod commits;
mod completion;
mod deadlines;
mod decide;
mod effect;
mod event;
mod links;
mod numbers;
mod objects;
mod options;
mod output;
mod record;
mod regions;
mod removal;
mod requests;
mod rounds;
mod savepoint_rounds;
mod savepoints;
#[cfg(test)]
pub(super) mod tests;
mod unreadable;

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;

use self::attempts::{Attempts, Counts};
use self::commits::Commits;
use self::completion::{Completing, ManifestPut};
use self::deadlines::Deadlines;
pub use self::effect::{Barrier, Effect, Executions, RestoredFrom};
pub use self::event::{
    Event, JobStart, RegionStart, TaskEnd, TaskProgress, TaskReport, TriggerAnswer, take_batch,
};
use self::links::Links;
use self::numbers::Numbers;
pub use self::options::{Options, Task, Topology};
use self::output::Output;
use self::record::CheckpointRecord;
pub use self::record::{manifest_objects, newest_numbers};
use self::regions::{Phase, Regions};
use self::removal::Removal;
pub use self::requests::{stop_of, stop_request, stops_with};
use self::rounds::Rounds;
use self::savepoints::Savepoints;
pub use self::unreadable::Unreadable;
use super::{Connection, RestorePoints};
use crate::core::faults::{Fault, is_planted};

/// The checkpoints of one job at one JobMaster.
#[derive(Debug)]
pub struct CheckpointCore {
    job_id: String,
    options: Options,
    record: CheckpointRecord,
    numbers: Numbers,
    regions: Regions,
    links: Links,
    deadlines: Deadlines,
    rounds: Rounds,
    put: ManifestPut,
    commits: Commits,
    removal: Removal,
    savepoints: Savepoints,
    coordinators: Vec<pb::CoordinatorState>,
    /// It is decided that the job is canceled or fails.
    is_end_decided: bool,
    out: Output,
}

impl CheckpointCore {
    /// The core of a JobMaster that reads `record` in its own epoch, and `objects`, the contents of
    /// [`manifest_objects`] as far as they exist. Writes nothing and triggers nothing by itself.
    ///
    /// `start` is a parameter so that no manifest can be built without the ends and coordinators that it contains.
    pub fn new(
        (options, topology): (Options, Topology),
        record: Arc<pb::JobCheckpoints>,
        objects: &BTreeMap<String, Vec<u8>>,
        start: JobStart,
        epoch: Epoch,
        now_ms: u64,
    ) -> Result<CheckpointCore, Unreadable> {
        let job_id = record.job_id.clone();
        let record = CheckpointRecord::new(record, epoch.get(), objects, &topology)?;
        let committed = record.durable().retained.iter().rev();
        let is_forgotten = is_planted(Fault::CommitForgotten);
        let committed = committed.filter(|it| it.committed || is_forgotten);
        let mut committed = committed.map(|it| it.number);
        let retained = record.durable().retained.iter();
        let last_ms = retained.map(|it| it.triggered_at_ms).max();
        let last_ms = last_ms.unwrap_or_default().max(start.began_ms);
        let last_ms = if last_ms == 0 { now_ms } else { last_ms };
        let mut core = CheckpointCore {
            job_id,
            numbers: Numbers::new(record.durable().next),
            regions: Regions::new(topology, start.regions),
            links: Links::default(),
            deadlines: Deadlines::default(),
            rounds: Rounds::after(&options, last_ms, now_ms),
            put: ManifestPut::default(),
            commits: Commits::new(committed.next().unwrap_or_default()),
            removal: Removal::new(record.durable(), options.listing_interval_ms, now_ms),
            savepoints: Savepoints::new(&record.durable().requests, now_ms),
            coordinators: start.coordinators,
            is_end_decided: start.is_end_decided,
            out: Output::default(),
            record,
            options,
        };
        core.forget_recorded_ends();
        Ok(core)
    }

    /// Handles events in their order, and then decides once, about all of them: a decision examines many regions, and
    /// thousands of regions report at the same time. After a write of unknown outcome there are no effects any more.
    pub fn handle(&mut self, now_ms: u64, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
        for event in events {
            if !self.record.is_over() {
                self.take(now_ms, event);
            }
        }
        self.decide(now_ms);
        self.out.take()
    }

    /// What a region is restored from, if it is placed at present. None: a write is under way that may change it.
    pub fn restored_from(&self, region: usize) -> Option<RestoredFrom> {
        let is_known = !self.record.is_writing(region) && !self.record.is_over();
        let takes_part = self.regions.topology().not_checkpointed(region).is_none();
        is_known.then(|| match takes_part {
            true => self.record.restored_from(region),
            false => RestoredFrom::Start,
        })
    }

    /// Whether no write is under way, everything that completed checkpoints list is committed, each request for a
    /// savepoint has an outcome, and the ends of finished regions are recorded. The result of the job waits for it.
    pub fn is_all_committed(&self) -> bool {
        let newest = self.record.newest().map_or(0, |newest| newest.number);
        // Once the end is decided, a manifest that is being put is not written.
        let is_put = self.put.is_running() && !self.is_end_decided;
        let is_pending = self.record.writing().is_some() || is_put;
        let delays = self
            .savepoints
            .delay_result(&self.record.durable().requests);
        // No end is recorded after the checkpoint that the job stops with. Evaluated last: it examines each region.
        let has_unrecorded = || {
            !self.is_end_decided && !self.is_last_complete() && !self.unrecorded_ends().is_empty()
        };
        self.commits.done() >= newest && !is_pending && !delays && !has_unrecorded()
    }

    /// The record that is written with the job's result, for the Dispatcher's cleanup. `is_kept`: the newest completed
    /// checkpoint is retained.
    pub fn record_with_result(&self, is_kept: bool) -> pb::JobCheckpoints {
        self.record.with_result(is_kept, self.commits.done())
    }

    /// Whether a write of the record is under way. The result, which replaces or removes the record, must not be
    /// written at the same time: the write might reach the store after it, and bring the record back.
    pub fn is_writing(&self) -> bool {
        self.record.writing().is_some()
    }

    /// The durable record.
    pub fn durable(&self) -> &pb::JobCheckpoints {
        self.record.durable()
    }

    /// The restore points of regions at present, and whether the result waits.
    pub fn points(&self) -> RestorePoints {
        let mut points = RestorePoints {
            has_uncommitted: !self.is_all_committed(),
            stops_with: stops_with(self.record.durable()).map(str::to_owned),
            stop_request: stop_request(self.record.durable()).map(str::to_owned),
            ..RestorePoints::default()
        };
        for region in 0..self.regions.topology().region_count() {
            points.numbers.push(match self.restored_from(region) {
                Some(RestoredFrom::Snapshot(number)) => number,
                Some(RestoredFrom::Origin) => self.record.restored_number(region),
                Some(RestoredFrom::Start) => 0,
                None => {
                    points.held.insert(region);
                    // A write can only raise it.
                    self.record.restored_number(region)
                }
            });
        }
        points
    }

    /// The origin, from which regions without a snapshot are restored, and its manifest. Its number is below all of
    /// this job's.
    pub fn origin(&self) -> Option<(&pb::CheckpointOrigin, &pb::CheckpointManifest)> {
        self.record.origin()
    }

    /// The manifest of a checkpoint that the durable record names.
    pub fn manifest(&self, number: u64) -> Option<&Arc<pb::CheckpointManifest>> {
        self.record.manifest(number)
    }

    /// The newest durable snapshot of a region.
    pub fn snapshot(&self, region: usize) -> Option<&pb::RegionSnapshot> {
        self.record.snapshot(region)
    }

    /// Number of subtasks of the regions at which a number is in flight, and of those among them that have saved it.
    pub fn progress(&self, number: u64) -> (u32, u32) {
        let (mut subtasks, mut saved) = (0, 0);
        for (region, attempt) in self.regions.attempts() {
            if attempt.number() == number {
                subtasks += self.regions.topology().tasks_of(region).len();
                saved += attempt.snapshots().count();
            }
        }
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        (count(subtasks), count(saved))
    }

    /// The subtasks of a region, and what each has saved for its number in flight.
    pub fn subtasks_of(
        &self,
        region: usize,
    ) -> impl Iterator<Item = (usize, &Task, Option<&pb::SubtaskSnapshot>)> {
        let attempt = self.regions.get(region).attempt();
        let tasks = self.regions.topology().tasks_of(region).iter();
        tasks.filter_map(move |number| {
            let task = self.regions.topology().task(*number)?;
            let snapshot = attempt.and_then(|attempt| attempt.snapshot(*number));
            Some((*number, task, snapshot.map(|it| &**it)))
        })
    }

    /// Regions that have not finished and that take part in checkpoints.
    pub fn unfinished(&self) -> impl Iterator<Item = usize> {
        let regions = self.regions.iter();
        let unfinished = regions.filter(|(number, region)| {
            let takes_part = self.regions.topology().not_checkpointed(*number).is_none();
            takes_part && region.phase() != Phase::Finished
        });
        unfinished.map(|(number, _)| number)
    }

    /// Regions that take no checkpoints at present, and why.
    pub fn skipped(&self) -> Vec<(usize, String)> {
        let regions = self.regions.iter();
        let skipped = regions.filter_map(|(number, region)| {
            if let Some(reason) = self.regions.topology().not_checkpointed(number) {
                return Some((number, reason.to_owned()));
            }
            let mut places = region.by_task_manager().into_keys();
            if let Some(without) = places.find(|place| self.links.takes_none(place)) {
                let reason = format!("TaskManager {without} takes no checkpoints");
                return Some((number, reason));
            }
            match region.phase() {
                Phase::Running | Phase::Finished => None,
                Phase::Down | Phase::Awaited | Phase::Starting => {
                    Some((number, "not all of its tasks run".to_owned()))
                }
            }
        });
        skipped.collect()
    }

    /// The number in flight at a region.
    pub fn in_flight(&self, region: usize) -> Option<u64> {
        Some(self.regions.get(region).attempt()?.number())
    }

    /// When [`Event::TimePassed`] is due.
    pub fn deadline_ms(&self, now_ms: u64) -> u64 {
        let round = (!self.is_end_decided).then(|| self.rounds.due_ms());
        let retry = Some(self.put.retry_at_ms());
        let dues = [
            self.deadlines.due_ms(),
            round,
            retry,
            self.commits.due_ms(),
            self.removal.due_ms(now_ms),
            self.savepoints_due_ms(now_ms),
        ];
        let all = dues.into_iter().flatten();
        // A moment that has passed without an effect needs no further look: another event decides.
        let later = all.filter(|due_ms| *due_ms > now_ms).min();
        later.unwrap_or(now_ms.saturating_add(self.options.interval_ms.max(1)))
    }

    fn take(&mut self, now_ms: u64, event: Event) {
        match event {
            Event::TimePassed => {}
            Event::Registered {
                connection,
                takes_checkpoints,
                reports,
            } => {
                if self.links.register(&connection, takes_checkpoints) {
                    self.apply_reports(now_ms, &connection, reports);
                    // A trigger may have been lost with the former registration.
                    for region in 0..self.regions.topology().region_count() {
                        let only = Some(&connection.task_manager);
                        self.attempts(now_ms).trigger(region, only);
                    }
                }
            }
            Event::Disconnected { connection } => {
                if let Some(due_ms) = self.links.lose(&connection, now_ms) {
                    self.deadlines.add(due_ms);
                }
            }
            Event::Reported {
                connection,
                reports,
            } => {
                if self.links.is_present(&connection) {
                    self.apply_reports(now_ms, &connection, reports);
                }
            }
            Event::RegionAdopted { region } => {
                if let Some(number) = self.attempts(now_ms).settle(region) {
                    self.numbers.put_in_flight(number);
                }
            }
            Event::RegionPlaced {
                region,
                generation,
                places,
            } => self.regions.place(region, generation, places),
            Event::RegionRunning { region, generation } => {
                if self.regions.get(region).generation() == generation {
                    self.regions
                        .enter(region, Phase::Running, &[Phase::Starting]);
                }
            }
            Event::RegionFailed { region } => {
                if !is_planted(Fault::SnapshotAfterFailure) {
                    let reason = "its region failed";
                    self.attempts(now_ms)
                        .abort(region, reason, Counts::NoFailure);
                }
                // A region that had finished may run again: its ends do not count any more.
                let from = [
                    Phase::Awaited,
                    Phase::Starting,
                    Phase::Running,
                    Phase::Finished,
                ];
                self.regions.enter(region, Phase::Down, &from);
            }
            Event::RegionFinished {
                region,
                generation,
                ends,
            } => {
                if self.regions.get(region).generation() == generation {
                    self.regions.record_ends(region, ends);
                    let reason = "all its tasks have finished";
                    self.attempts(now_ms)
                        .abort(region, reason, Counts::NoFailure);
                    let from = [Phase::Awaited, Phase::Starting, Phase::Running];
                    self.regions.enter(region, Phase::Finished, &from);
                }
            }
            Event::TriggerAnswered {
                connection,
                region,
                number,
                answers,
            } => {
                if self.links.is_present(&connection) {
                    let mut attempts = self.attempts(now_ms);
                    attempts.apply_answers(&connection, (region, number), answers);
                }
            }
            Event::Acknowledged {
                connection,
                task,
                generation,
                number,
                snapshot,
            } => {
                if !self.links.is_present(&connection) {
                    return;
                }
                let progress = TaskProgress::Acknowledged(snapshot);
                let id = (task, generation, number);
                if let Some(answer) = self.attempts(now_ms).answer(&connection, id, progress) {
                    self.out.push(Effect::AnswerAcknowledgement {
                        connection,
                        task,
                        generation,
                        number,
                        answer,
                    });
                }
            }
            Event::Declined {
                connection,
                task,
                generation,
                number,
                reason,
            } => {
                if !self.links.is_present(&connection) {
                    return;
                }
                let region = self.regions.region_of(task, generation);
                if region.is_some_and(|region| self.in_flight(region) == Some(number)) {
                    let region = region.unwrap_or_default();
                    self.attempts(now_ms)
                        .abort(region, &reason, Counts::Failure);
                } else {
                    let id = (task, generation, number);
                    let mut attempts = self.attempts(now_ms);
                    attempts.answer(&connection, id, TaskProgress::Declined);
                }
            }
            Event::InputEnded {
                connection,
                task,
                generation,
                highest,
            } => {
                let region = self.regions.region_of(task, generation);
                if let Some(region) = region.filter(|_| self.links.is_present(&connection)) {
                    let mut attempts = self.attempts(now_ms);
                    attempts.end_input(region, task, highest);
                }
            }
            Event::TaskEnded {
                connection,
                task,
                generation,
                end,
            } => {
                let region = self.regions.region_of(task, generation);
                if let Some(region) = region.filter(|_| self.links.is_present(&connection)) {
                    self.regions.end_task(region, task, end);
                    let mut attempts = self.attempts(now_ms);
                    attempts.complete_if_all(region);
                    attempts.abort_without_sources(region);
                }
            }
            Event::CoordinatorsChanged(coordinators) => self.coordinators = coordinators,
            Event::ManifestPut(object) => self.manifest_put(object),
            Event::ManifestNotPut(reason) => {
                if let Some(completion) = self.put.finish() {
                    let reason = format!("its manifest could not be put: {reason}");
                    self.give_up(now_ms, &completion.regions, &reason);
                }
            }
            Event::Written { write } => self.written(now_ms, write),
            Event::WriteRefused { write, reason } => {
                if let Some(write) = self.record.refuse(write) {
                    let requests = &write.record.requests;
                    let (is_end_decided, out) = (self.is_end_decided, &mut self.out);
                    let text = format!("the store refused the request: {reason}");
                    self.savepoints.refuse(requests, &text, is_end_decided, out);
                    if let Some(object) = write.manifest_object() {
                        self.removal
                            .leave_manifest(object.to_owned(), &mut self.out);
                    }
                    let regions = write.completion.map_or_else(Vec::new, |it| it.regions);
                    let reason = format!("the store refused it: {reason}");
                    self.give_up(now_ms, &regions, &reason);
                }
            }
            Event::WriteUnknown { write } => self.record.end_term(write),
            Event::Committed { number } => self.commits.finish(number),
            Event::CommitFailed { number } => self.commits.fail(number, now_ms),
            Event::Removed { removal } => self.removal.finish(removal),
            Event::RemovalFailed { removal } => self.removal.fail(removal, now_ms),
            Event::Listed(objects) => self.removal.listed(objects, &self.record),
            Event::NotListed => self.removal.not_listed(now_ms),
            Event::EndDecided => {
                self.is_end_decided = true;
            }
            Event::SavepointRequested { request, at_ms } => self.ask_savepoint(request, at_ms),
            Event::SavepointCopied {
                trigger_id,
                outcome,
            } => {
                let durable = &self.record.durable().requests;
                self.savepoints.finish_copy(durable, trigger_id, outcome);
            }
        }
    }

    fn apply_reports(&mut self, now_ms: u64, connection: &Connection, reports: Vec<TaskReport>) {
        for report in reports {
            let region = self.regions.region_of(report.task, report.generation);
            let Some(region) = region else { continue };
            let at = self.regions.get(region);
            if at.place(report.task) != Some(&connection.task_manager) {
                continue;
            }
            if report.has_input_ended {
                // The message about it may have been lost, or received by an earlier leader only.
                let mut attempts = self.attempts(now_ms);
                attempts.end_input(region, report.task, report.highest);
            }
            let at = self.regions.get(region);
            match at.phase() {
                Phase::Awaited => self.regions.keep_report(region, report),
                Phase::Down | Phase::Starting | Phase::Running | Phase::Finished => {
                    self.attempts(now_ms).apply_report(connection, &report);
                }
            }
        }
    }

    fn attempts(&mut self, now_ms: u64) -> Attempts<'_> {
        Attempts {
            options: &self.options,
            regions: &mut self.regions,
            links: &self.links,
            deadlines: &mut self.deadlines,
            record: &self.record,
            rounds: &mut self.rounds,
            removal: &mut self.removal,
            out: &mut self.out,
            now_ms,
        }
    }

    fn completing(&mut self) -> Completing<'_> {
        Completing {
            job_id: &self.job_id,
            options: &self.options,
            regions: &self.regions,
            record: &mut self.record,
            numbers: &mut self.numbers,
            commits: &self.commits,
            removal: &self.removal,
            savepoints: &self.savepoints,
            put: &mut self.put,
            coordinators: &self.coordinators,
            out: &mut self.out,
        }
    }
}
