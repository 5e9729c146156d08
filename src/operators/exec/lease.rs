//! Until when programs of isolated jobs may run (`docs/adr/0020`). Supervisors receive the end of the lease and
//! kill the program then, even if the TaskManager is stopped and can't send a message.
//!
//! Times are of `CLOCK_BOOTTIME`, which all processes of a host share. A lease is never shortened, and is
//! extended only after the store was read.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tanist_ha::clock::{Clock, Moment};
use tanist_proto::id::JobId;
use tokio::sync::watch;

/// End of the lease by job, in milliseconds; see the module. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProgramLeases {
    ends: Arc<Mutex<BTreeMap<JobId, watch::Sender<u64>>>>,
}

impl ProgramLeases {
    /// Extends the lease of the job's programs to `ends`, for those that run and those that are started later.
    pub(crate) fn extend(&self, job: JobId, ends: Moment) {
        let ends_ms = ends.as_millis();
        let mut all = self.ends.lock();
        let lease = all.entry(job).or_insert_with(|| watch::Sender::new(0));
        lease.send_if_modified(|known| {
            let is_longer = ends_ms > *known;
            *known = ends_ms.max(*known);
            is_longer
        });
    }

    /// Removes the lease of a job that has nothing here any more.
    pub(crate) fn forget(&self, job: JobId) {
        let mut all = self.ends.lock();
        all.remove(&job);
    }

    /// Follows the end of the lease of a job's programs; `None`: no limit.
    pub(super) fn of(&self, job: JobId) -> Option<watch::Receiver<u64>> {
        let all = self.ends.lock();
        all.get(&job).map(watch::Sender::subscribe)
    }
}

/// The current time by the clock of the leases, in milliseconds.
pub(super) fn now_ms() -> u64 {
    Clock::Boottime.now().as_millis()
}
