//! What people are told of workers: which are on their way, and why others are not. Decides nothing.

use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::core::{State, Workers};

impl Workers {
    /// The workers that have not registered, and what keeps more from being started; times count back from
    /// `wall_clock_ms`.
    pub fn overview(&self, now: Instant, wall_clock_ms: u64) -> pb::WorkersInfo {
        let at_ms = |since: Instant| {
            let ago = now.saturating_duration_since(since).as_millis();
            wall_clock_ms.saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX))
        };
        let pending = self
            .workers
            .iter()
            .filter(|(_, worker)| match worker.state {
                State::Requested { .. }
                | State::Recorded
                | State::Unseen { .. }
                | State::Pending { .. } => true,
                State::Registered { .. }
                | State::Releasing { .. }
                | State::RecordedReleasing { .. }
                | State::Leaving { .. }
                | State::Stopping => false,
            });
        let pending: Vec<pb::PendingWorker> = pending
            .map(|(id, worker)| pb::PendingWorker {
                resource_id: id.to_string(),
                slots: worker.record.slots,
                requested_at_ms: worker
                    .requested_at
                    .map_or(worker.record.requested_at_ms, at_ms),
            })
            .collect();
        pb::WorkersInfo {
            text: self.text(now, pending.len()),
            start_failures: self.failures,
            pending,
        }
    }

    fn text(&self, now: Instant, pending: usize) -> String {
        let mut said = Vec::new();
        if !self.is_recovered {
            said.push(
                "the TaskManagers that earlier leaders started are being looked for".to_owned(),
            );
        }
        match pending {
            0 => {}
            1 => said.push("1 TaskManager is being started".to_owned()),
            pending => said.push(format!("{pending} TaskManagers are being started")),
        }
        if let Some(trouble) = &self.trouble {
            said.push(format!("the last one could not be started: {trouble}"));
        }
        if let Some(until) = self.brake.until(now) {
            let left = until.saturating_duration_since(now);
            said.push(format!(
                "too many could not be started: the next is tried in {} s",
                left.as_secs() + 1
            ));
        }
        if !self.plan.capped.is_empty() {
            said.push(format!(
                "more are not started, as slotmanager.number-of-slots.max is {}",
                self.options.max_slots
            ));
        }
        if !self.plan.too_large.is_empty() {
            let most = match &self.options.largest {
                Some(largest) => format!("this host has: {largest}"),
                None => format!("one has: {}", self.options.spec),
            };
            said.push(format!("none is started for more than {most}"));
        }
        if said.is_empty() {
            said.push("TaskManagers are started as needed".to_owned());
        }
        said.join("; ")
    }
}
