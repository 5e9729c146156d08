//! The timeouts of regions that wait for slots. A region that reaches its timeout fails. While the cluster has room for
//! it, it is only *starved*: it continues to wait, but slots that are too few for it are given back.

use super::failover::Failure;
use super::scheduling::Scheduler;

/// Time to wait for slots that no TaskManager could ever give. It keeps a restart strategy without delay from
/// looping.
pub(super) const NEVER_SERVED_MS: u64 = 1_000;

impl Scheduler<'_> {
    /// Fails or starves regions that have waited for too long. They are sorted by waiting time, longest first,
    /// so the loop ends at the first one that has not waited long enough. The cases of one region are in order: the
    /// first one that applies.
    pub(super) fn give_up_waiting(&mut self) {
        let now_ms = self.now_ms;
        let overdue =
            |since_ms: u64, timeout_ms: u64| now_ms >= since_ms.saturating_add(timeout_ms);
        let timeout_ms = self.slots.request_timeout_ms();
        let is_over = !self.needs().will_free_slots()
            && overdue(self.slots.wait().counts_from_ms(), timeout_ms);
        let fails_from_ms = self.needs().fails_from_ms();
        let fails = fails_from_ms.is_some_and(|from_ms| overdue(from_ms, timeout_ms));
        let is_any_preparing = self.coordinators.is_any_preparing();
        if !is_over && !is_any_preparing && self.slots.unfulfillable().is_none() {
            return;
        }
        let (mut without_slots, mut maybe_never) = (Vec::new(), Vec::new());
        let mut shortage = None;
        let waiting = self.graph.indexes().waiting_since.iter();
        let bound_ms = match self.slots.unfulfillable() {
            Some(_) => timeout_ms.min(NEVER_SERVED_MS),
            None => timeout_ms,
        };
        let waiting = waiting.take_while(|(since_ms, _)| overdue(*since_ms, bound_ms));
        for (since_ms, region) in waiting.copied() {
            if overdue(since_ms, timeout_ms) && self.needs().is_preparing(region) {
                let cause = format!("the files to read could not be listed within {timeout_ms} ms");
                without_slots.push((region, cause));
            } else if overdue(since_ms, timeout_ms) && is_over && !fails {
                // The cluster has room, or had it until recently: the region waits, but keeps no slots from other jobs.
                self.slots.starve(region);
            } else if overdue(since_ms, timeout_ms) && is_over {
                let shortage = shortage.get_or_insert_with(|| self.needs().shortage_with_advice());
                let cause = format!("not enough slots within {timeout_ms} ms: {shortage}");
                self.slots.starve(region);
                without_slots.push((region, cause));
            } else if overdue(since_ms, NEVER_SERVED_MS) {
                maybe_never.push(region);
            }
        }
        // Failures are reported in the order of regions.
        without_slots.sort_unstable_by_key(|(region, _)| *region);
        maybe_never.sort_unstable();
        let never_served = without_slots.len();
        for (region, verdict) in self.needs().never_served(&maybe_never) {
            let cause = format!("{verdict}; start a larger one or ask for less");
            without_slots.push((region, cause));
        }
        for (region, _) in &without_slots[never_served..] {
            self.slots.starve(*region);
        }
        for (region, cause) in without_slots {
            self.failover.report(Failure::of_region(region, cause));
        }
    }
}
