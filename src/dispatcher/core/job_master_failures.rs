//! Broken JobMasters of a term: those that ended without a result. In memory only: the next term counts from zero.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_proto::id::JobId;

/// Number of JobMasters of one job that may break in a term before the job is quarantined.
pub(super) const TOLERATED: u32 = 3;
/// Doubled for each JobMaster of the job that broke: the pauses are 1, 2 and 4 seconds.
const PAUSE: Duration = Duration::from_millis(500);

/// Returns the pause before another JobMaster is started; `None` if none is.
pub(super) fn pause(broken: u32) -> Option<Duration> {
    (broken <= TOLERATED).then(|| PAUSE * 2u32.pow(broken))
}

/// Times at which JobMasters broke in this term, by job.
#[derive(Debug, Default)]
pub(crate) struct JobMasterFailures {
    times: BTreeMap<JobId, Vec<u64>>,
}

impl JobMasterFailures {
    /// Records a broken JobMaster. Returns how many of this job have broken.
    pub(crate) fn note(&mut self, job: JobId, now_ms: u64) -> u32 {
        let times = self.times.entry(job).or_default();
        times.push(now_ms);
        u32::try_from(times.len()).unwrap_or(u32::MAX)
    }

    /// Returns when they broke, in milliseconds since 1970.
    pub(crate) fn times(&self, job: JobId) -> &[u64] {
        self.times.get(&job).map_or(&[], Vec::as_slice)
    }

    /// Resets the count of a job.
    pub(crate) fn forget(&mut self, job: JobId) {
        self.times.remove(&job);
    }
}
