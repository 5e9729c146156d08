//! Computes the next deadline, until which the actor sleeps. Decides nothing.
//!
//! Invariant: everything that `decide.rs` does by time has its moment here. Otherwise it would happen only with the
//! next event, which may never come.
//!
//! A deadline that had passed at the last event and is still open waits for another event, not for time.

use tanist_compact::SmallSet;

use super::JobMasterCore;
use super::slot_timeouts::NEVER_SERVED_MS;

impl JobMasterCore {
    /// When [`super::Event::TimePassed`] may have something to change, in milliseconds since 1970.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        if self.end.has_ended() {
            return None;
        }
        let indexes = self.graph.indexes();
        let options = &self.options;
        let is_reconciling = self.is_reconciling();
        let needs = self.slot_needs();
        let mut deadlines: Vec<Option<u64>> = Vec::new();
        if !is_reconciling {
            let timeout_ms = options.slot_request_timeout_ms;
            if !needs.will_free_slots() {
                let from_ms = self.slots.wait().counts_from_ms();
                deadlines.push(self.next_since(&indexes.waiting_since, from_ms, timeout_ms));
            }
            if let Some(from_ms) = needs.fails_from_ms() {
                deadlines.push(self.next_since(&indexes.waiting_since, from_ms, timeout_ms));
            }
            if self.slots.unfulfillable().is_some() {
                deadlines.push(self.next_since(&indexes.waiting_since, 0, NEVER_SERVED_MS));
            }
            deadlines.push(needs.next_round_ms());
        }
        deadlines.push(self.next_since(&indexes.restarting_at, 0, 0));
        deadlines.push(self.failover.next_hold_ms());
        let timeout_ms = options.task_cancellation_timeout_ms;
        deadlines.push(self.next_since(&indexes.canceling_since, 0, timeout_ms));
        deadlines.push(self.reconciliation.next_deadline_ms(&self.graph));
        let orphans = self.task_managers.orphans().canceling();
        deadlines.extend(orphans.map(|(.., since_ms)| Some(since_ms.saturating_add(timeout_ms))));
        deadlines.push(self.slots.collecting_until_ms());
        deadlines.push(self.write_is_long_at_ms());
        deadlines.push(self.end.commit_due_ms());
        deadlines.push(self.checkpoint_commit.timeout_at_ms());
        if !self.record.is_stopping() && !is_reconciling {
            deadlines.push(self.slots.idle_until_ms());
        }
        let open = deadlines.into_iter().flatten();
        open.filter(|at_ms| *at_ms > self.decided_at_ms).min()
    }

    /// When the next of these waits reaches `timeout_ms`, counted from `from_ms` at the earliest. Waits that
    /// already reached it do not count.
    fn next_since(
        &self,
        since: &SmallSet<(u64, usize)>,
        from_ms: u64,
        timeout_ms: u64,
    ) -> Option<u64> {
        let is_open = from_ms.saturating_add(timeout_ms) > self.decided_at_ms;
        let first = match is_open {
            true => since.first(),
            false => {
                let over_ms = self.decided_at_ms.saturating_sub(timeout_ms);
                since.range((over_ms.saturating_add(1), 0)..).next()
            }
        };
        first.map(|(since_ms, _)| (*since_ms).max(from_ms).saturating_add(timeout_ms))
    }
}
