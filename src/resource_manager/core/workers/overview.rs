//! Information about workers for display: which are being started, and why others are not. Decides nothing.

use tanist_ha::clock::Uptime;
use tanist_proto::v1 as pb;

use super::{WorkerState, Workers};

impl Workers {
    /// Workers that have not registered, and why more are not started. Times are computed back from
    /// `wall_ms`.
    pub(crate) fn overview(&self, now: Uptime, wall_ms: u64) -> pb::WorkersInfo {
        let at_ms = |since: Uptime| {
            let ago = now.saturating_duration_since(since).as_millis();
            wall_ms.saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX))
        };
        let pending = self
            .workers
            .iter()
            .filter(|(_, worker)| match worker.state {
                WorkerState::Requested { .. }
                | WorkerState::Recorded
                | WorkerState::Unseen { .. }
                | WorkerState::Pending { .. } => true,
                WorkerState::Registered { .. }
                | WorkerState::Releasing { .. }
                | WorkerState::RecordedReleasing { .. }
                | WorkerState::Leaving { .. }
                | WorkerState::Stopping { .. } => false,
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
        let paused_until = self.start_rate_limit.until(now);
        let retry_at_ms = paused_until.map_or(0, |until| {
            let left = until.saturating_duration_since(now).as_millis();
            wall_ms.saturating_add(u64::try_from(left).unwrap_or(u64::MAX))
        });
        pb::WorkersInfo {
            text: self.text(paused_until.is_some(), pending.len()),
            retry_at_ms,
            start_failures: self.failures,
            pending,
        }
    }

    fn text(&self, is_paused: bool, pending: usize) -> String {
        let mut said = Vec::new();
        if !self.is_recovered {
            said.push("looking for the TaskManagers that earlier leaders started".to_owned());
        }
        match pending {
            0 => {}
            1 => said.push("1 TaskManager is being started".to_owned()),
            pending => said.push(format!("{pending} TaskManagers are being started")),
        }
        if let Some(trouble) = &self.trouble {
            said.push(format!("the last one could not be started: {trouble}"));
        }
        if is_paused {
            said.push("too many could not be started: the next is tried after a pause".to_owned());
        }
        if let Some(host) = &self.drained_host {
            said.push(format!("none is started, as host {host} is drained"));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tanist_proto::resources::{Resources, WorkerResourceSpec};

    use super::super::Starter;
    use super::*;
    use crate::workers::WorkersOptions;

    #[test]
    fn until_when_starting_is_held_up_is_a_time_and_not_part_of_the_words() {
        let retry_interval = Duration::from_secs(3);
        let options = WorkersOptions {
            max_failure_rate: 1.0,
            retry_interval,
            ..WorkersOptions::of(WorkerResourceSpec::new(Resources::ZERO, 1))
        };
        let starter = Starter {
            driver: "test",
            place: "here".to_owned(),
            epoch: 1,
            seed: 1,
        };
        let mut workers = Workers::new(options, starter, Vec::new());
        let now = Uptime::START;
        workers.recovered(now, Ok(Vec::new()));
        assert_eq!(workers.overview(now, 10_000).retry_at_ms, 0);
        workers.fail(now, &"w".parse().expect("an id"), "no such program");
        let first = workers.overview(now, 10_000);
        let second = workers.overview(now + Duration::from_secs(1), 11_000);
        assert_eq!((first.retry_at_ms, second.retry_at_ms), (13_000, 13_000));
        assert!(first.text.contains("after a pause"), "{}", first.text);
        assert_eq!(first.text, second.text);
        let over = workers.overview(now + retry_interval, 13_000);
        assert_eq!(over.retry_at_ms, 0);
    }
}
