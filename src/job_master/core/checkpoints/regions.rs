//! The regions as the checkpoints know them: phase, generation and places of each, the ends of its tasks, and its
//! number in flight. The JobMaster's core decides about regions; its news change the phases here.
//!
//! Invariants: a region has at most one number in flight, of its present generation; ends and reports belong to that
//! generation, and are dropped with it; the index agrees with the state of each region (all changes that concern it go
//! through `Regions::change`).

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::ResourceId;

use super::attempt::{Attempt, Work};
use super::event::{RegionStart, TaskEnd, TaskReport};
use super::options::{ANSWER_TIMEOUT_MS, Topology};
use crate::core::faults::{Fault, is_planted};

/// Number of subtasks that a reason names.
const NAMED: usize = 3;

/// The phase of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has failed, or was never placed.
    Down,
    /// An earlier JobMaster placed it, and not all of its executions are known.
    Awaited,
    /// It is placed, and not all of its tasks run.
    Starting,
    /// All of its tasks run or have ended.
    Running,
    /// It is durable that all of its tasks have finished.
    Finished,
}

/// The end of a task's input.
#[derive(Debug, Clone, Copy)]
struct InputEnd {
    since_ms: u64,
    /// The highest number that the task took up, declined or saw aborted.
    highest: u64,
}

/// A number that was aborted.
#[derive(Debug)]
struct Aborted {
    number: u64,
    at_ms: u64,
    reason: String,
}

/// One region; see the module.
#[derive(Debug)]
pub(super) struct Region {
    phase: Phase,
    generation: u64,
    /// Where its tasks are, or were before it failed. Empty: it was not placed yet, or had finished when this JobMaster
    /// began.
    places: BTreeMap<usize, ResourceId>,
    ends: BTreeMap<usize, TaskEnd>,
    /// Tasks whose input has ended, also if they have ended since.
    input_ends: BTreeMap<usize, InputEnd>,
    /// The last report of each task, while the region is awaited.
    reports: BTreeMap<usize, TaskReport>,
    /// Its number in flight.
    attempt: Option<Attempt>,
    /// Checkpoints that have failed in a row.
    failures: u32,
    /// The number behind which its sources pause, or are about to; `None`: they do not, or not all of them.
    paused_behind: Option<u64>,
    /// Its last number, if it was aborted. A complete one forgets it.
    aborted: Option<Aborted>,
    /// It has finished, and its end is in a manifest.
    is_end_recorded: bool,
}

impl Region {
    fn of(start: RegionStart) -> Region {
        let (phase, generation, places, ends) = match start {
            RegionStart::Waiting { generation } => (Phase::Down, generation, vec![], vec![]),
            RegionStart::Placed {
                generation,
                places,
                ends,
            } => (Phase::Awaited, generation, places, ends),
            RegionStart::Finished { generation, ends } => {
                (Phase::Finished, generation, vec![], ends)
            }
        };
        Region {
            phase,
            generation,
            places: places.into_iter().collect(),
            ends: ends.into_iter().collect(),
            input_ends: BTreeMap::new(),
            reports: BTreeMap::new(),
            attempt: None,
            failures: 0,
            paused_behind: None,
            aborted: None,
            is_end_recorded: false,
        }
    }

    /// Its phase.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Its generation.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Where a task is.
    pub(super) fn place(&self, task: usize) -> Option<&ResourceId> {
        self.places.get(&task)
    }

    /// The TaskExecutors with tasks, each with those that have not ended.
    pub(super) fn by_task_manager(&self) -> BTreeMap<&ResourceId, Vec<usize>> {
        let mut by_task_manager: BTreeMap<&ResourceId, Vec<usize>> = BTreeMap::new();
        let running = self
            .places
            .iter()
            .filter(|(task, _)| !self.ends.contains_key(task));
        for (task, place) in running {
            by_task_manager.entry(place).or_default().push(*task);
        }
        by_task_manager
    }

    /// The TaskExecutors without which a number in flight can't be completed: those with a task that runs, or that has
    /// ended after it took the number up and before its acknowledgement arrived.
    pub(super) fn places_that_owe(&self, attempt: &Attempt) -> BTreeSet<&ResourceId> {
        let places = self.places.iter().filter(|(task, _)| {
            let owes = attempt.snapshot(**task).is_none()
                && !self.has_ended_before(**task, attempt.number());
            !self.ends.contains_key(task) || owes
        });
        places.map(|(_, place)| place).collect()
    }

    /// The number in flight.
    pub(super) fn attempt(&self) -> Option<&Attempt> {
        self.attempt.as_ref()
    }

    /// The number behind which its sources pause, or are about to. None: they do not, or not all of them.
    pub(super) fn paused_behind(&self) -> Option<u64> {
        self.paused_behind
    }

    /// When its last number was aborted, and why. None: it was not, or there is a complete one since.
    pub(super) fn aborted(&self) -> Option<(u64, &str)> {
        let aborted = self.aborted.as_ref()?;
        Some((aborted.at_ms, &aborted.reason))
    }

    /// Its last number, if it was aborted.
    pub(super) fn aborted_number(&self) -> Option<u64> {
        Some(self.aborted.as_ref()?.number)
    }

    /// The end of a task.
    pub(super) fn end(&self, task: usize) -> Option<&TaskEnd> {
        self.ends.get(&task)
    }

    /// The ends of its tasks.
    pub(super) fn ends(&self) -> impl Iterator<Item = (usize, &TaskEnd)> {
        self.ends.iter().map(|(task, end)| (*task, end))
    }

    /// The report of a task, while its region is awaited.
    pub(super) fn report(&self, task: usize) -> Option<&TaskReport> {
        self.reports.get(&task)
    }

    /// Whether a task counts as ended for a number.
    pub(super) fn has_ended_before(&self, task: usize, number: u64) -> bool {
        if is_planted(Fault::EndedTaskNotCounted) {
            return false;
        }
        self.ends
            .get(&task)
            .is_some_and(|end| end.highest < number || is_planted(Fault::EndWithoutLastSnapshot))
    }

    /// The first task whose input has ended and that, after its timeout, still runs and has not taken `number` up.
    pub(super) fn overdue_input_end(&self, number: u64, now_ms: u64) -> Option<usize> {
        let is_overdue = |(task, end): &(&usize, &InputEnd)| {
            end.highest < number
                && end.since_ms.saturating_add(ANSWER_TIMEOUT_MS) <= now_ms
                && !self.ends.contains_key(task)
        };
        let mut input_ends = self.input_ends.iter();
        input_ends.find(is_overdue).map(|(task, _)| *task)
    }

    /// When each task is overdue whose input has ended, and that still runs.
    pub(super) fn input_ends_due_ms(&self) -> impl Iterator<Item = u64> {
        let running = self
            .input_ends
            .iter()
            .filter(|(task, _)| !self.ends.contains_key(task));
        running.map(|(_, end)| end.since_ms.saturating_add(ANSWER_TIMEOUT_MS))
    }
}

/// The regions by state, so that no decision has to examine all of them.
#[derive(Debug, Default)]
struct Index {
    /// An earlier JobMaster placed them, and not all of their executions are known.
    awaited: BTreeSet<usize>,
    /// They run, and no number is in flight there.
    idle: BTreeSet<usize>,
    /// A number is in flight there, and complete.
    complete: BTreeSet<usize>,
    /// Their sources pause.
    paused: BTreeSet<usize>,
    /// Their last number was aborted.
    aborted: BTreeSet<usize>,
    /// They have not durably finished.
    unfinished: BTreeSet<usize>,
    /// They have finished, and no manifest is known to say so.
    unrecorded: BTreeSet<usize>,
}

impl Index {
    /// A region has changed.
    fn update(&mut self, region: usize, at: &Region) {
        let is_running = at.phase == Phase::Running;
        let is_complete = at.attempt.as_ref().is_some_and(Attempt::is_complete);
        let has_finished = at.phase == Phase::Finished;
        let of_region = [
            (&mut self.awaited, at.phase == Phase::Awaited),
            (&mut self.idle, is_running && at.attempt.is_none()),
            (&mut self.complete, is_complete),
            (&mut self.paused, at.paused_behind.is_some()),
            (&mut self.aborted, at.aborted.is_some()),
            (&mut self.unfinished, !has_finished),
            (&mut self.unrecorded, has_finished && !at.is_end_recorded),
        ];
        for (regions, is_in) in of_region {
            match is_in {
                true => regions.insert(region),
                false => regions.remove(&region),
            };
        }
    }
}

/// All regions of a job; see the module.
#[derive(Debug)]
pub(super) struct Regions {
    topology: Topology,
    regions: Vec<Region>,
    index: Index,
}

impl Regions {
    /// The regions as the record `states/<job>` says.
    pub(super) fn new(topology: Topology, starts: Vec<RegionStart>) -> Regions {
        let mut regions: Vec<Region> = starts.into_iter().map(Region::of).collect();
        regions.truncate(topology.region_count());
        let waiting = || Region::of(RegionStart::Waiting { generation: 0 });
        regions.resize_with(topology.region_count(), waiting);
        let mut index = Index::default();
        for (region, at) in regions.iter().enumerate() {
            index.update(region, at);
        }
        Regions {
            topology,
            regions,
            index,
        }
    }

    /// Changes a region.
    fn change<T>(&mut self, region: usize, change: impl FnOnce(&mut Region) -> T) -> T {
        let at = &mut self.regions[region];
        let changed = change(at);
        self.index.update(region, at);
        changed
    }

    /// The shape of the job.
    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// A region.
    pub(super) fn get(&self, region: usize) -> &Region {
        &self.regions[region]
    }

    /// All regions, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Region)> {
        self.regions.iter().enumerate()
    }

    /// All numbers in flight, with their regions.
    pub(super) fn attempts(&self) -> impl Iterator<Item = (usize, &Attempt)> {
        self.iter()
            .filter_map(|(number, region)| Some((number, region.attempt()?)))
    }

    /// Whether no region is awaited.
    pub(super) fn are_all_settled(&self) -> bool {
        self.index.awaited.is_empty()
    }

    /// Whether all regions have durably finished.
    pub(super) fn have_all_finished(&self) -> bool {
        self.index.unfinished.is_empty()
    }

    /// Regions whose number in flight is complete.
    pub(super) fn complete(&self) -> impl Iterator<Item = usize> {
        self.index.complete.iter().copied()
    }

    /// Regions whose sources pause, or are about to.
    pub(super) fn paused(&self) -> impl Iterator<Item = usize> {
        self.index.paused.iter().copied()
    }

    /// Regions whose last number was aborted, with when.
    pub(super) fn aborted(&self) -> impl Iterator<Item = (usize, u64)> {
        let aborted = self.index.aborted.iter();
        aborted.filter_map(|region| Some((*region, self.regions[*region].aborted()?.0)))
    }

    /// Regions that have durably finished, and whose end is not known to be in a manifest.
    pub(super) fn unrecorded(&self) -> impl Iterator<Item = usize> {
        self.index.unrecorded.iter().copied()
    }

    /// Regions that run, and at which no number is in flight.
    pub(super) fn idle(&self) -> impl Iterator<Item = usize> {
        self.index.idle.iter().copied()
    }

    /// Whether a region could take a number: its tasks run or have ended, and no number is in flight there.
    pub(super) fn is_ready(&self, region: usize, now_ms: u64) -> bool {
        let at = &self.regions[region];
        let mut sources = self.topology.sources_of(region);
        at.phase == Phase::Running
            && at.attempt.is_none()
            && self.topology.not_checkpointed(region).is_none()
            && sources.any(|task| !at.ends.contains_key(&task))
            && at.overdue_input_end(u64::MAX, now_ms).is_none()
    }

    /// Whether each subtask has acknowledged the number in flight, or had ended before.
    pub(super) fn has_all(&self, region: usize) -> bool {
        let at = &self.regions[region];
        at.attempt.as_ref().is_some_and(|attempt| {
            let is_there = |task: &usize| {
                attempt.snapshot(*task).is_some() || at.has_ended_before(*task, attempt.number())
            };
            self.topology.tasks_of(region).iter().all(is_there)
        })
    }

    /// For display: what the first subtasks without a snapshot of the number in flight are doing. None: there are none.
    pub(super) fn missing(&self, region: usize) -> Option<String> {
        let at = &self.regions[region];
        let attempt = at.attempt.as_ref()?;
        let tasks = self.topology.tasks_of(region).iter().copied();
        let missing: Vec<usize> = tasks
            .filter(|task| {
                let has_ended = at.has_ended_before(*task, attempt.number());
                attempt.snapshot(*task).is_none() && !has_ended
            })
            .collect();
        let described = missing.iter().take(NAMED).map(|task| {
            let name = self.topology.task_name(*task);
            let place = at.place(*task);
            let place = place.map_or_else(String::new, |it| format!(" on TaskManager {it}"));
            let is_source = self.topology.task(*task).is_some_and(|it| it.is_source);
            match attempt.work(*task) {
                Some(Work::Writing) => format!("the state of {name} is being written{place}"),
                None if is_source => format!("{name}{place} has not taken it up"),
                Some(Work::Aligning) | None => format!("{name}{place} waits for barriers"),
            }
        });
        let described: Vec<String> = described.collect();
        let others = match missing.len().saturating_sub(NAMED) {
            0 => String::new(),
            others => format!(", and {others} others have not saved it"),
        };
        (!described.is_empty()).then(|| format!("{}{others}", described.join(", ")))
    }

    /// The region of an execution, if it is of the present generation.
    pub(super) fn region_of(&self, task: usize, generation: u64) -> Option<usize> {
        let region = self.topology.task(task)?.region;
        let at = &self.regions[region];
        let is_present = at.generation == generation || is_planted(Fault::OlderGenerationCounted);
        (is_present && at.phase != Phase::Down).then_some(region)
    }

    /// A region is placed with a generation.
    pub(super) fn place(
        &mut self,
        region: usize,
        generation: u64,
        places: Vec<(usize, ResourceId)>,
    ) {
        self.change(region, |at| {
            *at = Region {
                failures: at.failures,
                phase: Phase::Starting,
                ..Region::of(RegionStart::Placed {
                    generation,
                    places,
                    ends: vec![],
                })
            };
        });
    }

    /// A region changes its phase. `from` are the phases in which it may.
    pub(super) fn enter(&mut self, region: usize, phase: Phase, from: &[Phase]) -> bool {
        let may = from.contains(&self.regions[region].phase);
        if may {
            self.change(region, |at| {
                at.phase = phase;
                at.is_end_recorded = false;
                at.reports.clear();
            });
        }
        may
    }

    /// A manifest says that a region has durably finished.
    pub(super) fn record_end(&mut self, region: usize) {
        self.change(region, |at| at.is_end_recorded = true);
    }

    /// A number is in flight.
    pub(super) fn begin_attempt(&mut self, region: usize, attempt: Attempt) {
        if attempt.flags().pauses {
            self.pause(region, attempt.number());
        }
        self.change(region, |at| at.attempt = Some(attempt));
    }

    /// Sources pause behind a number, or are about to.
    pub(super) fn pause(&mut self, region: usize, number: u64) {
        self.change(region, |at| {
            at.paused_behind = Some(at.paused_behind.map_or(number, |it| it.max(number)));
        });
    }

    /// Sources that pause behind a number, or behind a lower one, are resumed.
    pub(super) fn resume(&mut self, region: usize, number: u64) {
        self.change(region, |at| {
            at.paused_behind.take_if(|paused| *paused <= number);
        });
    }

    /// A number was aborted.
    pub(super) fn note_abort(&mut self, region: usize, number: u64, at_ms: u64, reason: &str) {
        let aborted = Aborted {
            number,
            at_ms,
            reason: reason.to_owned(),
        };
        self.change(region, |at| at.aborted = Some(aborted));
    }

    /// The number in flight, to add what is known about it.
    pub(super) fn attempt_mut(&mut self, region: usize) -> Option<&mut Attempt> {
        self.regions[region].attempt.as_mut()
    }

    /// Notes that all subtasks have saved the number in flight. False: no number is in flight.
    pub(super) fn set_complete(&mut self, region: usize) -> bool {
        self.change(region, |at| {
            let attempt = at.attempt.as_mut();
            attempt.map(Attempt::set_complete).is_some()
        })
    }

    /// Removes and returns the number in flight: it is durable or aborted.
    pub(super) fn take_attempt(&mut self, region: usize) -> Option<Attempt> {
        self.change(region, |at| at.attempt.take())
    }

    /// A task of the present generation has ended.
    pub(super) fn end_task(&mut self, region: usize, task: usize, end: TaskEnd) {
        self.regions[region].ends.entry(task).or_insert(end);
    }

    /// The ends of all tasks of the present generation are durable. Reports of some may not have arrived.
    pub(super) fn record_ends(&mut self, region: usize, ends: Vec<(usize, TaskEnd)>) {
        self.regions[region].ends.extend(ends);
    }

    /// The input of a task of the present generation has ended.
    pub(super) fn end_input(&mut self, region: usize, task: usize, highest: u64, now_ms: u64) {
        let input_end = InputEnd {
            since_ms: now_ms,
            highest,
        };
        let known = self.regions[region]
            .input_ends
            .entry(task)
            .or_insert(input_end);
        known.highest = known.highest.max(highest);
    }

    /// Keeps a report of an awaited region, unless a later one is kept: messages overtake each other.
    pub(super) fn keep_report(&mut self, region: usize, report: TaskReport) {
        let reports = &mut self.regions[region].reports;
        let kept = reports.get(&report.task);
        if !kept.is_some_and(|kept| report.is_before(kept)) {
            reports.insert(report.task, report);
        }
    }

    /// A checkpoint of a region failed. Returns the number of failures in a row.
    pub(super) fn count_failure(&mut self, region: usize) -> u32 {
        let failures = &mut self.regions[region].failures;
        *failures = failures.saturating_add(1);
        *failures
    }

    /// A checkpoint of a region is complete, or the region begins again.
    pub(super) fn reset_failures(&mut self, region: usize) {
        self.change(region, |at| {
            at.failures = 0;
            at.aborted = None;
        });
    }
}
