//! When a round begins, and which of its regions still work on it.
//!
//! The times are lost with the JobMaster: the next one computes them from the record (`Rounds::after`). Invariant: no
//! round waits for a region after the next round is due; `decide.rs` ensures it.

use std::collections::BTreeSet;

use super::options::Options;

/// The rounds of one JobMaster; see the module.
#[derive(Debug)]
pub(super) struct Rounds {
    interval_ms: u64,
    min_pause_ms: u64,
    began_ms: u64,
    /// When something of a round was last completed durably, or aborted. Not known of an earlier JobMaster: then when
    /// its last round began.
    ended_ms: u64,
    /// Regions that work on a number and are neither complete nor aborted: those of the present round, those whose
    /// number was adopted from an earlier JobMaster, and those whose number a request forced between two rounds.
    open: BTreeSet<usize>,
}

impl Rounds {
    /// Continues the rounds of earlier JobMasters: the last round began at `last_ms`, or else the job did. So a leader
    /// takes checkpoints even if it lives for less than an interval. The time is of another host's clock: a time in the
    /// future counts as the present, so a round begins within an interval or the minimum pause, whichever is longer,
    /// whatever the clocks show.
    pub(super) fn after(options: &Options, last_ms: u64, now_ms: u64) -> Rounds {
        let began_ms = last_ms.min(now_ms);
        Rounds {
            interval_ms: options.interval_ms.max(1),
            min_pause_ms: options.min_pause_ms,
            began_ms,
            ended_ms: began_ms,
            open: BTreeSet::new(),
        }
    }

    /// When the next round is due.
    pub(super) fn due_ms(&self) -> u64 {
        let by_interval = self.began_ms.saturating_add(self.interval_ms);
        let by_pause = self.ended_ms.saturating_add(self.min_pause_ms);
        by_interval.max(by_pause)
    }

    /// Begins a round. Regions that still work on an earlier one are stragglers: no round waits for them.
    pub(super) fn begin(&mut self, regions: impl IntoIterator<Item = usize>, now_ms: u64) {
        self.began_ms = now_ms;
        self.open = regions.into_iter().collect();
    }

    /// A region works on an adopted number, or one that is forced between two rounds.
    pub(super) fn join(&mut self, region: usize) {
        self.open.insert(region);
    }

    /// A region is complete or aborted.
    pub(super) fn leave(&mut self, region: usize) {
        self.open.remove(&region);
    }

    /// Something of a round was completed durably, or aborted: the pause begins.
    pub(super) fn end(&mut self, now_ms: u64) {
        self.ended_ms = now_ms;
    }

    /// Whether a region works on a number that is neither complete nor aborted.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }
}
