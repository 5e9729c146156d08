//! How long a job has had no JobMaster here. After a second its tasks decline the checkpoint for which they block
//! inputs, so that a leader that dies between two triggers does not stop the data path. Pure.

use std::time::Duration;

use tanist_ha::clock::Uptime;

/// Time without JobMaster after which tasks decline.
const DECLINE_AFTER: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DeclineTimer {
    since: Option<Uptime>,
}

impl DeclineTimer {
    /// Updates the state. Returns whether there has been no JobMaster for long enough.
    pub(crate) fn review(&mut self, now: Uptime, is_present: bool) -> bool {
        if is_present {
            self.since = None;
            return false;
        }
        now >= *self.since.get_or_insert(now) + DECLINE_AFTER
    }

    /// When tasks that block inputs decline.
    pub(crate) fn deadline(&self) -> Option<Uptime> {
        self.since.map(|since| since + DECLINE_AFTER)
    }
}
