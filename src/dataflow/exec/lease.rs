//! Until when programs of isolated jobs may run (`docs/adr/0020`): their supervisors are told, and kill them then, also if their
//! TaskManager is stopped and can tell nobody anything.
//!
//! A time is of `CLOCK_BOOTTIME`, which all processes of a host share. It only grows, and grows only when the store was heard.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tanist_ha::clock::{Clock, Moment};
use tanist_proto::id::JobId;
use tokio::sync::watch;

/// See the module; by job, in milliseconds. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProgramLeases {
    ends: Arc<Mutex<BTreeMap<JobId, watch::Sender<u64>>>>,
}

impl ProgramLeases {
    /// Programs of the job may run until then, those that run and those that are started later.
    pub(crate) fn extend(&self, job: JobId, ends: Moment) {
        let ends_ms = ends.as_millis();
        let mut all = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = all.entry(job).or_insert_with(|| watch::Sender::new(0));
        lease.send_if_modified(|known| {
            let is_longer = ends_ms > *known;
            *known = ends_ms.max(*known);
            is_longer
        });
    }

    /// Nothing of the job is here any more.
    pub(crate) fn forget(&self, job: JobId) {
        let mut all = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&job);
    }

    /// Follows until when a program of the job may run; none: for ever.
    pub(super) fn of(&self, job: JobId) -> Option<watch::Receiver<u64>> {
        let all = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&job).map(watch::Sender::subscribe)
    }
}

/// What it is by the clock that these times are of.
pub(super) fn now_ms() -> u64 {
    Clock::Boottime.now().as_millis()
}
