//! The last checkpoints of a job, for people, and the texts of its events about them. Owned by `Checkpoints`; it
//! decides nothing and is not persisted. Counts begin with this JobMaster. Of the checkpoints that earlier JobMasters
//! took, only the newest complete one is known, from the record.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tanist_gateway::Detail;
use tanist_proto::v1 as pb;
use tanist_proto::v1::CheckpointOutcome;

use super::acknowledgements::Acknowledgements;
use super::failing_regions::{FailingRegions, part_of};
use crate::core::JobMasterCore;
use crate::core::checkpoints::{CheckpointCore, Effect, Event, TaskProgress};

/// Number of checkpoints that are shown.
const SHOWN: usize = 10;
/// Number of subtasks that are shown of all of these, so that a description stays small. The newest checkpoint has all
/// of its subtasks.
const MOST_SUBTASKS: usize = 20_000;

/// The last checkpoints; see the module.
#[derive(Debug)]
pub(super) struct History {
    last: VecDeque<Shown>,
    completed: u64,
    failed: u64,
    /// Numbers that are counted as failed, and still in flight somewhere.
    counted: BTreeSet<u64>,
    failing: FailingRegions,
    restored_from: u64,
    restored_at_ms: u64,
    /// The directory of the savepoint, if it was one.
    restored_directory: String,
    began_ms: u64,
    /// When the last snapshot of each region became durable.
    saved_ms: BTreeMap<usize, u64>,
    /// Texts for events of the job, until [`History::take_news`].
    news: Vec<String>,
}

#[derive(Debug, Default)]
struct Shown {
    summary: pb::CheckpointSummary,
    acknowledgements: Acknowledgements,
}

impl Shown {
    fn is_open(&self) -> bool {
        self.summary.outcome() == CheckpointOutcome::InProgress
    }

    fn is_complete(&self) -> bool {
        self.summary.outcome() == CheckpointOutcome::Completed
    }

    fn described(&self, core: &CheckpointCore) -> pb::CheckpointSummary {
        let mut summary = self.summary.clone();
        let (subtasks, acknowledged) = core.progress(summary.number);
        if self.is_open() && subtasks > 0 {
            summary.acknowledged_subtasks = acknowledged;
        }
        let vertices = self.acknowledgements.vertices(core);
        summary.vertices = vertices.collect();
        summary
    }

    /// A complete checkpoint, with one subtask of each vertex: the one that waited longest for barriers.
    fn in_brief(&self, core: &CheckpointCore) -> pb::CheckpointSummary {
        let waited = |it: &pb::SubtaskAcknowledgement| it.times.map(|times| times.alignment_us);
        let vertices = self.acknowledgements.vertices(core);
        let vertices = vertices.map(|mut vertex| {
            let longest = vertex.acknowledgements.drain(..).max_by_key(waited);
            vertex.acknowledgements.extend(longest);
            vertex
        });
        pb::CheckpointSummary {
            vertices: vertices.collect(),
            ..self.summary.clone()
        }
    }
}

impl History {
    /// The JobMaster begins. `newest`: the newest complete checkpoint of the record.
    pub(super) fn new(newest: Option<&pb::CompletedCheckpoint>, now_ms: u64) -> History {
        let newest = newest.map(|newest| Shown {
            summary: pb::CheckpointSummary {
                number: newest.number,
                outcome: CheckpointOutcome::Completed.into(),
                triggered_at_ms: newest.triggered_at_ms,
                size: newest.size,
                ..pb::CheckpointSummary::default()
            },
            ..Shown::default()
        });
        History {
            last: newest.into_iter().collect(),
            completed: 0,
            failed: 0,
            counted: BTreeSet::new(),
            failing: FailingRegions::default(),
            restored_from: 0,
            restored_at_ms: 0,
            restored_directory: String::new(),
            began_ms: now_ms,
            saved_ms: BTreeMap::new(),
            news: Vec::new(),
        }
    }

    /// Notes when a number was acknowledged, and when a region has finished.
    pub(super) fn note_event(&mut self, event: &Event, now_ms: u64) {
        if let Event::RegionFinished { region, .. } = event {
            self.failing.finish(*region);
        }
        if let Event::Acknowledged {
            number,
            task,
            snapshot,
            ..
        } = event
            && let Some(open) = self.open(*number)
        {
            open.summary.acknowledged_at_ms = now_ms;
            open.acknowledgements.add(*task, *number, snapshot, now_ms);
        }
    }

    /// Notes how long a subtask took for a number, as it reports with its acknowledgement.
    pub(super) fn note_times(
        &mut self,
        task: usize,
        (number, progress): (u64, &TaskProgress),
        times: Option<pb::CheckpointTimes>,
    ) {
        if let (TaskProgress::Acknowledged(_), Some(times)) = (progress, times)
            && let Some(open) = self.open(number)
        {
            open.acknowledgements.note_times(task, times);
        }
    }

    /// Notes which numbers were triggered, completed and aborted.
    pub(super) fn note_effects(
        &mut self,
        effects: &[Effect],
        (core, job): (&CheckpointCore, &JobMasterCore),
        now_ms: u64,
    ) {
        // A number has an effect for each region and TaskExecutor, and its progress is counted over all regions.
        let mut known = BTreeMap::new();
        let mut progress = |number| *known.entry(number).or_insert_with(|| core.progress(number));
        // By number and reason: the groups of regions for which this number is the first one that failed.
        let mut first: BTreeMap<(u64, &str), BTreeSet<Vec<String>>> = BTreeMap::new();
        for effect in effects {
            match effect {
                Effect::Trigger {
                    barrier, sources, ..
                } => {
                    let (number, region) = (barrier.number, sources.region);
                    let progress = progress(number);
                    self.note_trigger((number, region), progress, core, now_ms);
                }
                Effect::Completed { number, regions } => {
                    self.note_completion(*number, regions, (core, job), now_ms);
                }
                Effect::Aborted {
                    number,
                    reason,
                    region,
                    is_failure,
                } => {
                    // Other regions may still work on it, or have completed it.
                    let is_in_flight = progress(*number).0 > 0;
                    self.note_abort((*number, reason), is_in_flight, *is_failure, now_ms);
                    if *is_failure {
                        let vertices = job.vertices_of(*region);
                        let failure = (*number, reason.as_str());
                        let region = (*region, &vertices);
                        if self.failing.fail(region, failure, now_ms) {
                            first.entry(failure).or_default().insert(vertices);
                        }
                    }
                }
                _ => {}
            }
        }
        if effects
            .iter()
            .any(|it| matches!(it, Effect::Completed { .. }))
        {
            // A number in progress that is in flight nowhere leaves the list: its snapshots became durable with a later
            // number, which is shown.
            let is_shown = |it: &Shown| !it.is_open() || progress(it.summary.number).0 > 0;
            self.last.retain(is_shown);
        }
        self.counted.retain(|number| progress(*number).0 > 0);
        for ((number, reason), groups) in first {
            let part = part_of(&groups, core, job);
            self.news
                .push(format!("checkpoint {number}{part} failed: {reason}"));
        }
    }

    fn note_trigger(
        &mut self,
        (number, region): (u64, usize),
        (subtasks, acknowledged): (u32, u32),
        core: &CheckpointCore,
        now_ms: u64,
    ) {
        let entry = self.entry(number, now_ms);
        if entry.is_open() {
            let summary = &mut entry.summary;
            summary.subtasks = subtasks.max(summary.subtasks);
            summary.acknowledged_subtasks = acknowledged;
            let acknowledgements = &mut entry.acknowledgements;
            acknowledgements.add_region(region, number, core, now_ms);
        }
    }

    fn note_completion(
        &mut self,
        number: u64,
        regions: &[usize],
        (core, job): (&CheckpointCore, &JobMasterCore),
        now_ms: u64,
    ) {
        let completed = core.durable().retained.last();
        let size = completed.map_or(0, |completed| completed.size);
        self.completed += 1;
        let recovered = self.failing.complete(regions);
        if let Some(failed) = recovered.iter().map(|it| it.1).max() {
            let groups = recovered.into_iter().map(|it| it.0).collect();
            let part = part_of(&groups, core, job);
            let text = format!("checkpoint {number}{part} is complete, after {failed} that failed");
            self.news.push(text);
        }
        self.saved_ms
            .extend(regions.iter().map(|region| (*region, now_ms)));
        let entry = self.entry(number, now_ms);
        entry.acknowledgements.complete(regions, core);
        let summary = &mut entry.summary;
        summary.set_outcome(CheckpointOutcome::Completed);
        summary.ended_at_ms = now_ms;
        summary.size = size;
        summary.written = entry.acknowledgements.written();
        (summary.subtasks, summary.acknowledged_subtasks) = entry.acknowledgements.counts(core);
    }

    fn note_abort(
        &mut self,
        (number, reason): (u64, &str),
        is_in_flight: bool,
        is_failure: bool,
        now_ms: u64,
    ) {
        let open = self.open(number).filter(|_| !is_in_flight);
        let has_ended = open.is_some();
        if let Some(open) = open {
            // Counts the subtasks of regions that gave it up before, too.
            let acknowledged = u32::try_from(open.acknowledgements.len());
            let summary = &mut open.summary;
            summary.set_outcome(CheckpointOutcome::Failed);
            summary.ended_at_ms = now_ms;
            summary.acknowledged_subtasks = acknowledged.unwrap_or(u32::MAX);
            reason.clone_into(&mut summary.reason);
        }
        if (has_ended || is_failure) && self.counted.insert(number) {
            self.failed += 1;
        }
    }

    /// Adds the text of an event.
    pub(super) fn announce(&mut self, text: String) {
        self.news.push(text);
    }

    /// Takes the texts of events: the first failure in a row, the first completion after failures, and those that were
    /// announced.
    pub(super) fn take_news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// Notes that a region is restored from its snapshot of this number, or from a savepoint in a directory.
    pub(super) fn restored(&mut self, restore: &pb::TaskRestore, now_ms: u64) {
        self.restored_from = restore.number;
        self.restored_at_ms = now_ms;
        self.restored_directory.clone_from(&restore.directory);
    }

    /// The entry of a number in progress.
    fn open(&mut self, number: u64) -> Option<&mut Shown> {
        let mut last = self.last.iter_mut().rev();
        last.find(|it| it.summary.number == number && it.is_open())
    }

    /// The entry of a number, which may be new.
    fn entry(&mut self, number: u64, now_ms: u64) -> &mut Shown {
        let at = self.last.iter().position(|it| it.summary.number == number);
        let at = at.unwrap_or_else(|| {
            if self.last.len() == SHOWN {
                // The newest complete one stays, however many have failed since.
                let newest = self.last.iter().rposition(Shown::is_complete);
                self.last.remove(usize::from(newest == Some(0)));
            }
            self.forget_subtasks();
            let summary = pb::CheckpointSummary {
                number,
                triggered_at_ms: now_ms,
                ..pb::CheckpointSummary::default()
            };
            self.last.push_back(Shown {
                summary,
                ..Shown::default()
            });
            self.last.len() - 1
        });
        &mut self.last[at]
    }

    /// Forgets subtasks of the oldest checkpoints, if there are too many.
    fn forget_subtasks(&mut self) {
        let mut kept = 0;
        for shown in self.last.iter_mut().rev() {
            kept += shown.acknowledgements.len();
            if kept > MOST_SUBTASKS {
                shown.acknowledgements.forget_subtasks();
            }
        }
    }

    /// The part of the description that is kept here.
    pub(super) fn details(
        &self,
        core: &CheckpointCore,
        job: &JobMasterCore,
        detail: Detail,
    ) -> pb::CheckpointDetails {
        let history = match detail {
            Detail::Full => self.last.iter().map(|it| it.described(core)).collect(),
            Detail::Brief => {
                let mut newest_first = self.last.iter().rev();
                let last = newest_first.find(|it| it.is_complete());
                last.map(|it| it.in_brief(core)).into_iter().collect()
            }
        };
        pb::CheckpointDetails {
            completed: self.completed,
            failed: self.failed,
            history,
            restored_from: self.restored_from,
            restored_at_ms: self.restored_at_ms,
            restored_directory: self.restored_directory.clone(),
            saved: self.saved(core, job),
            failing: self.failing.described(),
            ..pb::CheckpointDetails::default()
        }
    }

    fn saved(&self, core: &CheckpointCore, job: &JobMasterCore) -> Vec<pb::RegionsSaved> {
        let mut by_vertices: BTreeMap<Vec<String>, (u32, u64)> = BTreeMap::new();
        for region in core.unfinished() {
            let since_ms = self.saved_ms.get(&region).copied();
            let since_ms = since_ms.unwrap_or(self.began_ms);
            let of_vertices = by_vertices.entry(job.vertices_of(region));
            let (regions, oldest_ms) = of_vertices.or_insert((0, since_ms));
            *regions += 1;
            *oldest_ms = since_ms.min(*oldest_ms);
        }
        let saved = by_vertices.into_iter();
        let saved = saved.map(|(vertices, (regions, since_ms))| pb::RegionsSaved {
            vertices,
            regions,
            since_ms,
        });
        saved.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_complete_checkpoint_is_shown_however_many_have_failed_since() {
        let mut history = History::new(None, 0);
        for number in 1..=3 * SHOWN as u64 {
            let outcome = match number {
                2 | 3 => CheckpointOutcome::Completed,
                _ => CheckpointOutcome::Failed,
            };
            history.entry(number, number).summary.set_outcome(outcome);
        }
        let shown = history.last.iter().map(|it| it.summary.number);
        let newest = 3 * SHOWN as u64 + 2 - SHOWN as u64..=3 * SHOWN as u64;
        assert!(shown.eq(std::iter::once(3).chain(newest)));
    }
}
