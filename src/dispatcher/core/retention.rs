//! How long results have been kept: a clock that the cluster's leaders count together, each with its monotonic clock.
//! Pure.
//!
//! A result contains the count at which it was written. It is forgotten when the count has advanced by the
//! retention time. No wall clock is used, so a wrong one forgets nothing. The count passes from leader to
//! leader in the results: a new term continues from the highest count that it finds. What a leader counted
//! after it last wrote the count is lost with the leader, and results are kept longer by that, as well as by
//! the time without a leader.
//!
//! If a term can't read all results, an unreadable one may contain the highest count, so the term counts from a
//! lower value. To a leader that reads all results, a result with this lower count would look too old. So such
//! a term writes 0, meaning *unknown*: it expires these results by its own count, and a later term starts their
//! time again.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_ha::clock::{Uptime, millis};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use crate::recovery::RecoveredJobs;

/// The count is written this many times per retention time while a result is kept, but not more often than
/// expired results are looked for.
const NOTES: u32 = 60;

/// The common retention clock; see the module.
#[derive(Debug)]
pub(crate) struct Retention {
    /// Count of earlier leaders, as far as known. Never 0, which means that a result has no count.
    before_ms: u64,
    /// When this term began to count.
    since: Uptime,
    /// The highest count that is known to be in the store.
    noted_ms: u64,
    /// Whether some results can't be read.
    is_partial: bool,
    /// For results without a count in their record: since when they are kept, by the count of this term.
    since_here: BTreeMap<JobId, u64>,
}

impl Retention {
    /// Continues from the counts in the readable results. A result without a count counts as written now: the term
    /// that wrote it could not read all results.
    pub(crate) fn resume(now: Uptime, recovered: &mut RecoveredJobs) -> Retention {
        let counts = recovered.results.iter();
        let counts = counts.map(|(_, result)| result.counted_ms.max(result.kept_since_ms));
        let before_ms = counts.max().unwrap_or(0).max(1);
        let is_partial =
            !recovered.unreadable_results.is_empty() || !recovered.unavailable_results.is_empty();
        let mut since_here = BTreeMap::new();
        for (job, result) in &mut recovered.results {
            match result.kept_since_ms {
                0 if is_partial => drop(since_here.insert(*job, before_ms)),
                0 => result.kept_since_ms = before_ms,
                _known => {}
            }
        }
        Retention {
            before_ms,
            since: now,
            noted_ms: before_ms,
            is_partial,
            since_here,
        }
    }

    /// Returns the current count.
    pub(crate) fn counted_ms(&self, now: Uptime) -> u64 {
        let passed = millis(now - self.since);
        self.before_ms.saturating_add(passed)
    }

    /// Returns the count since which a result is kept.
    pub(crate) fn kept_since_ms(&self, now: Uptime, job: JobId, result: &pb::JobResult) -> u64 {
        match result.kept_since_ms {
            0 => self
                .since_here
                .get(&job)
                .copied()
                .unwrap_or_else(|| self.counted_ms(now)),
            known => known,
        }
    }

    /// Writes into a result since when it is kept.
    pub(crate) fn stamp(&mut self, now: Uptime, job: JobId, result: &mut pb::JobResult) {
        let counted_ms = self.counted_ms(now);
        result.counted_ms = counted_ms;
        result.kept_since_ms = counted_ms;
        if self.is_partial {
            result.kept_since_ms = 0;
            self.since_here.insert(job, counted_ms);
        }
    }

    /// Adds a result of an earlier term that was unreadable when this one began. Its own count may be ahead of
    /// this term's. The term's count is not advanced to it, as that would make other results look too old.
    pub(crate) fn found(&mut self, now: Uptime, job: JobId, result: &pb::JobResult) {
        if result.kept_since_ms == 0 {
            self.since_here.insert(job, self.counted_ms(now));
        }
    }

    /// Forgets a job whose result was removed.
    pub(crate) fn forget(&mut self, job: JobId) {
        self.since_here.remove(&job);
    }

    /// Records that this count is in the store.
    pub(crate) fn noted(&mut self, counted_ms: u64) {
        self.noted_ms = self.noted_ms.max(counted_ms);
    }

    /// Returns the count if it must be written; `None`: it was written not long ago.
    pub(crate) fn due(&self, now: Uptime, retention: Duration) -> Option<u64> {
        let counted_ms = self.counted_ms(now);
        let unnoted = Duration::from_millis(counted_ms.saturating_sub(self.noted_ms));
        (unnoted >= retention / NOTES).then_some(counted_ms)
    }
}
