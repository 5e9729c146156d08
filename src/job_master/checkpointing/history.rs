//! The last checkpoints of a job, for people. Counts begin with this JobMaster.

use std::collections::{BTreeMap, VecDeque};

use tanist_proto::v1 as pb;

use crate::core::checkpoints::{CheckpointCore, Effect, Event};

/// Number of checkpoints that are shown.
const SHOWN: usize = 10;

/// The last checkpoints; see the module.
#[derive(Debug, Default)]
pub(super) struct History {
    last: VecDeque<pb::CheckpointSummary>,
    completed: u64,
    failed: u64,
    restored_from: u64,
    restored_at_ms: u64,
}

impl History {
    /// Notes when a number was acknowledged last.
    pub(super) fn note_event(&mut self, event: &Event, now_ms: u64) {
        if let Event::Acknowledged { number, .. } = event
            && let Some(open) = self.open(*number)
        {
            open.acknowledged_at_ms = now_ms;
        }
    }

    /// Notes what became of numbers.
    pub(super) fn note_effects(&mut self, effects: &[Effect], core: &CheckpointCore, now_ms: u64) {
        // A number has an effect for each region and TaskExecutor, and its progress is counted over all regions.
        let mut known = BTreeMap::new();
        let mut progress = |number| *known.entry(number).or_insert_with(|| core.progress(number));
        for effect in effects {
            self.note_effect(effect, core, &mut progress, now_ms);
        }
    }

    fn note_effect(
        &mut self,
        effect: &Effect,
        core: &CheckpointCore,
        progress: &mut impl FnMut(u64) -> (u32, u32),
        now_ms: u64,
    ) {
        match effect {
            Effect::Trigger { number, .. } => {
                let (subtasks, acknowledged) = progress(*number);
                let entry = self.entry(*number, now_ms);
                if entry.outcome() == pb::CheckpointOutcome::InProgress {
                    entry.subtasks = subtasks.max(entry.subtasks);
                    entry.acknowledged_subtasks = acknowledged;
                }
            }
            Effect::Completed { number, .. } => {
                let completed = core.durable().retained.last();
                let size = completed.map_or(0, |completed| completed.size);
                self.completed += 1;
                let entry = self.entry(*number, now_ms);
                entry.set_outcome(pb::CheckpointOutcome::Completed);
                entry.ended_at_ms = now_ms;
                entry.size = size;
                entry.acknowledged_subtasks = entry.subtasks;
            }
            Effect::Aborted { number, reason, .. } => {
                // Other regions may still work on it.
                let is_in_flight = progress(*number).0 > 0;
                if let Some(open) = self.open(*number).filter(|_| !is_in_flight) {
                    open.set_outcome(pb::CheckpointOutcome::Failed);
                    open.ended_at_ms = now_ms;
                    open.reason.clone_from(reason);
                    self.failed += 1;
                }
            }
            _ => {}
        }
    }

    /// A region is restored from its snapshot of this number.
    pub(super) fn restored(&mut self, number: u64, now_ms: u64) {
        self.restored_from = number;
        self.restored_at_ms = now_ms;
    }

    /// The entry of a number in progress.
    fn open(&mut self, number: u64) -> Option<&mut pb::CheckpointSummary> {
        let mut last = self.last.iter_mut().rev();
        last.find(|it| it.number == number && it.outcome() == pb::CheckpointOutcome::InProgress)
    }

    /// The entry of a number, which may be new.
    fn entry(&mut self, number: u64, now_ms: u64) -> &mut pb::CheckpointSummary {
        let at = self.last.iter().position(|it| it.number == number);
        let at = at.unwrap_or_else(|| {
            if self.last.len() == SHOWN {
                self.last.pop_front();
            }
            self.last.push_back(pb::CheckpointSummary {
                number,
                triggered_at_ms: now_ms,
                ..pb::CheckpointSummary::default()
            });
            self.last.len() - 1
        });
        &mut self.last[at]
    }

    /// The part of the description that is kept here.
    pub(super) fn details(&self, core: &CheckpointCore) -> pb::CheckpointDetails {
        let mut history: Vec<pb::CheckpointSummary> = self.last.iter().cloned().collect();
        for summary in &mut history {
            let (subtasks, acknowledged) = core.progress(summary.number);
            if summary.outcome() == pb::CheckpointOutcome::InProgress && subtasks > 0 {
                summary.acknowledged_subtasks = acknowledged;
            }
        }
        pb::CheckpointDetails {
            completed: self.completed,
            failed: self.failed,
            history,
            restored_from: self.restored_from,
            restored_at_ms: self.restored_at_ms,
            ..pb::CheckpointDetails::default()
        }
    }
}
