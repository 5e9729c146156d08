//! Measures how long a TaskExecutor has been without ResourceManager. The actor owns it, and logs what it returns;
//! nothing else depends on it.

use std::time::Duration;

use tanist_ha::clock::Uptime;

/// See the module.
#[derive(Debug)]
pub(crate) struct LeaderlessTimer {
    /// Interval of the report.
    timeout: Duration,
    /// Since when there is none, and when that is reported next. `None`: there is one.
    lasts: Option<(Uptime, Uptime)>,
}

impl LeaderlessTimer {
    /// Starts without ResourceManager.
    pub(crate) fn new(timeout: Duration, now: Uptime) -> LeaderlessTimer {
        LeaderlessTimer {
            timeout,
            lasts: Some((now, now + timeout)),
        }
    }

    /// Updates the state. Returns how long there has been no ResourceManager, if that must be reported.
    pub(crate) fn review(&mut self, now: Uptime, is_registered: bool) -> Option<Duration> {
        if is_registered {
            self.lasts = None;
            return None;
        }
        let timeout = self.timeout;
        let (since, due) = self.lasts.get_or_insert((now, now + timeout));
        if now < *due {
            return None;
        }
        *due = now + timeout;
        Some(now - *since)
    }

    /// When it must be reviewed again at the latest.
    pub(crate) fn deadline(&self) -> Option<Uptime> {
        self.lasts.map(|(_, due)| due)
    }
}
