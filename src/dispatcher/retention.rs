//! How long results have been kept: a clock that the leaders of a cluster count together, each by its monotonic clock.
//!
//! A result has the count at which it was written, and is forgotten when the retention time has been counted since. No wall clock
//! takes part, so that one that is wrong forgets nothing. The count goes from leader to leader in the results themselves: a new term
//! goes on from the highest that it finds. What a leader had counted since it last wrote one down is lost with it, and results are
//! kept so much longer; so is the time in which nobody led.
//!
//! Where a term can't read all results, the highest count may be in one of those: it counts from less. By its count a result would
//! look too old to whoever reads them all, so what it writes says 0, *not known*: it forgets by its own count, and a term after it
//! begins anew with these.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_ha::clock::millis;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::time::Instant;
use tracing::warn;

use super::actor::{DispatcherActor, Event};
use super::entry::Entry;
use super::job_store::JobStoreError;
use super::recovery::RecoveredJobs;

/// The count is written down so often while a result is kept, and at most as often as expired ones are looked for.
const NOTES: u32 = 60;

/// See the module.
#[derive(Debug)]
pub(super) struct Retention {
    /// What earlier leaders have counted, as far as it is known. Never 0, which stands for a result that has no count.
    before_ms: u64,
    since: Instant,
    noted_ms: u64,
    /// There are results that can't be read.
    is_partial: bool,
    /// Since when results are kept whose records don't say so, by the count of this term.
    since_here: BTreeMap<JobId, u64>,
}

impl Retention {
    /// Goes on from what the results tell that can be read. Those without a count count as written now: they are of a term that could not
    /// read all.
    pub(super) fn resume(recovered: &mut RecoveredJobs) -> Retention {
        let counts = recovered.results.iter();
        let counts = counts.map(|(_, result)| result.counted_ms.max(result.kept_since_ms));
        let before_ms = counts.max().unwrap_or(0).max(1);
        let is_partial =
            !recovered.unreadable_results.is_empty() || !recovered.results_out_of_reach.is_empty();
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
            since: Instant::now(),
            noted_ms: before_ms,
            is_partial,
            since_here,
        }
    }

    /// The count at present.
    pub(super) fn counted_ms(&self) -> u64 {
        let passed = millis(self.since.elapsed());
        self.before_ms.saturating_add(passed)
    }

    /// Since when a result is kept.
    pub(super) fn kept_since_ms(&self, job: JobId, result: &pb::JobResult) -> u64 {
        match result.kept_since_ms {
            0 => self
                .since_here
                .get(&job)
                .copied()
                .unwrap_or_else(|| self.counted_ms()),
            known => known,
        }
    }

    /// Writes into a result when it is kept from.
    pub(super) fn stamp(&mut self, job: JobId, result: &mut pb::JobResult) {
        let counted_ms = self.counted_ms();
        result.counted_ms = counted_ms;
        result.kept_since_ms = counted_ms;
        if self.is_partial {
            result.kept_since_ms = 0;
            self.since_here.insert(job, counted_ms);
        }
    }

    /// A result of a former term that could not be read when this one began. Its own count, if it has one, may be ahead of this
    /// term's, which doesn't move for it: others would look too old by that.
    pub(super) fn found(&mut self, job: JobId, result: &pb::JobResult) {
        if result.kept_since_ms == 0 {
            self.since_here.insert(job, self.counted_ms());
        }
    }

    /// The result of this job is gone.
    pub(super) fn forget(&mut self, job: JobId) {
        self.since_here.remove(&job);
    }

    /// This count is in the store.
    pub(super) fn noted(&mut self, counted_ms: u64) {
        self.noted_ms = self.noted_ms.max(counted_ms);
    }

    /// The count, if it is to be written down.
    fn due(&self, retention: Duration) -> Option<u64> {
        let counted_ms = self.counted_ms();
        let unnoted = Duration::from_millis(counted_ms.saturating_sub(self.noted_ms));
        (unnoted >= retention / NOTES).then_some(counted_ms)
    }
}

impl DispatcherActor {
    /// Writes the count down now and then, as long as there is a result to be forgotten: into the one that is kept longest.
    pub(super) fn note_retention(&mut self) {
        if self.unread.is_some() {
            return;
        }
        let Some(counted_ms) = self.retention.due(self.options.result_retention) else {
            return;
        };
        if self.is_expiring || self.is_suspended() {
            return;
        }
        let clean = self.jobs.iter().filter_map(|(job, entry)| match entry {
            Entry::Ended { result, .. } if !result.dirty => Some((*job, result)),
            Entry::Ended { .. }
            | Entry::Persisting { .. }
            | Entry::Running { .. }
            | Entry::Rebuilding { .. }
            | Entry::Quarantined { .. } => None,
        });
        let youngest = clean.max_by_key(|(job, result)| self.retention.kept_since_ms(*job, result));
        let Some((job, youngest)) = youngest else {
            return;
        };
        let noted = pb::JobResult {
            counted_ms,
            ..(**youngest).clone()
        };
        // Nobody else writes a clean result or removes it meanwhile. Tried once: a store without space gets some by that what has expired is
        // removed, which must not wait.
        self.is_expiring = true;
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let result = store.try_clean_result(&noted).await;
            Event::RetentionNoted {
                job,
                counted_ms,
                result,
            }
        });
    }

    pub(super) fn on_retention_noted(
        &mut self,
        job: JobId,
        counted_ms: u64,
        noted: Result<(), JobStoreError>,
    ) {
        self.is_expiring = false;
        match noted {
            Ok(()) => {
                self.retention.noted(counted_ms);
                if let Some(Entry::Ended { result, .. }) = self.jobs.get_mut(&job) {
                    result.counted_ms = counted_ms;
                }
            }
            Err(failure) => {
                warn!(%job, %failure, "how long results have been kept could not be written down");
            }
        }
    }
}
