//! Handles times in which the ResourceManager's own process stood still: it was stopped, or its host gave it no
//! CPU time. Pure, a part of [`super`].
//!
//! A process that stood still has received nothing meanwhile, and messages to it may lie unread: that does not
//! mean that others are silent. No TaskExecutor is given up before it was asked once more. An own periodic tick
//! detects it, also while nothing else is due.

use tanist_ha::clock::Uptime;

use super::{LogLine, ResourceManagerCore};

impl ResourceManagerCore {
    /// Extends all deadlines by the time for which this process stood still. To be called before any input is
    /// handled.
    pub(crate) fn credit_standstill(&mut self, now: Uptime) {
        let late = now.saturating_duration_since(self.next_tick);
        if late < self.options.heartbeat_interval {
            return;
        }
        self.log.push(LogLine::StoodStill { late });
        self.task_executors.put_off(now, late);
        self.job_masters.put_off(now, late);
        self.unfulfillable_jobs.put_off(late);
        if let Some(workers) = &mut self.workers_of_driver {
            workers.put_off(late);
        }
        self.next_tick = now + self.options.heartbeat_interval;
    }

    /// The same, and sets the next tick if this one has come in time.
    pub(super) fn note_tick(&mut self, now: Uptime) {
        self.credit_standstill(now);
        if self.next_tick <= now {
            self.next_tick = now + self.options.heartbeat_interval;
        }
    }
}
