//! Reports of checkpoints on their way to the JobMaster. Pure.
//!
//! Calls belong to the present run of the connection: what an ended run has not delivered is due again. Calls have a
//! limited size, and up to [`MAX_CALLS`] are in flight. The reports of a failed call are sent again, with their content
//! at that time.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use tanist_ha::clock::Uptime;
use tanist_proto::v1 as pb;

use super::MOST_IN_MESSAGE;
use crate::core::effect::{Effect, JobMasterAddress};
use crate::core::executions::ExecutionKey;
use crate::core::outbox::{Route, scope};
use crate::core::output::Output;

/// Calls in flight, at most.
const MAX_CALLS: usize = 4;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Those that are not sent.
    due: BTreeSet<ExecutionKey>,
    /// Those in flight, by call.
    in_flight: BTreeMap<u64, Vec<ExecutionKey>>,
    last_call: u64,
    /// After a failed call: when the next one may be made.
    not_before: Option<Uptime>,
}

impl Reports {
    /// Adds a report.
    pub(super) fn add(&mut self, key: ExecutionKey) {
        self.due.insert(key);
    }

    /// Keeps the reports of these executions only.
    pub(super) fn retain(&mut self, is_known: impl Fn(&ExecutionKey) -> bool) {
        self.due.retain(is_known);
    }

    /// Nothing has to be sent.
    pub(super) fn clear(&mut self) {
        self.due.clear();
        self.in_flight.clear();
        self.not_before = None;
    }

    /// What is in flight counts as not sent.
    pub(super) fn reset(&mut self) {
        let lost = std::mem::take(&mut self.in_flight);
        self.due.extend(lost.into_values().flatten());
        self.not_before = None;
    }

    /// When failed reports are sent again.
    pub(super) fn retry_at(&self) -> Option<Uptime> {
        self.not_before.filter(|_| !self.due.is_empty())
    }

    /// Whether a report is not sent.
    #[cfg(test)]
    pub(super) fn is_due(&self, key: &ExecutionKey) -> bool {
        self.due.contains(key)
    }

    /// Whether a report is not known to have arrived.
    pub(super) fn holds(&self, key: &ExecutionKey) -> bool {
        self.due.contains(key) || self.in_flight.values().any(|keys| keys.contains(key))
    }

    /// Sends what is due, in calls of limited size.
    pub(super) fn send(
        &mut self,
        now: Uptime,
        route: Route<'_>,
        report: &dyn Fn(&ExecutionKey) -> Option<pb::CheckpointReport>,
        output: &mut Output,
    ) {
        if self.not_before.is_some_and(|at| at > now) || self.due.is_empty() {
            return;
        }
        self.not_before = None;
        while self.in_flight.len() < MAX_CALLS && !self.due.is_empty() {
            let (mut keys, mut reports, mut bytes) = (Vec::new(), Vec::new(), 0);
            while let Some(key) = self.due.pop_first() {
                if let Some(report) = report(&key) {
                    let size = report.encoded_len();
                    if bytes > 0 && bytes + size > MOST_IN_MESSAGE {
                        self.due.insert(key);
                        break;
                    }
                    bytes += size;
                    reports.push(report);
                }
                keys.push(key);
            }
            self.last_call += 1;
            self.in_flight.insert(self.last_call, keys);
            output.effect(self.call(route, reports));
        }
    }

    fn call(&self, route: Route<'_>, reports: Vec<pb::CheckpointReport>) -> Effect {
        let Route {
            job: (job, incarnation),
            connection,
            location,
        } = route;
        let request = pb::ReportCheckpointsRequest {
            sender: Some(connection.sender()),
            job: Some(scope(job, incarnation)),
            resource_id: location.resource_id.clone(),
            incarnation: location.incarnation.clone(),
            reports,
        };
        Effect::ReportCheckpoints {
            to: JobMasterAddress {
                job,
                address: connection.address().to_owned(),
                run: connection.run(),
            },
            call: self.last_call,
            request,
        }
    }

    /// Ends a call. With `retry_at` it failed, and its reports are sent again then.
    pub(super) fn finish(&mut self, call: u64, retry_at: Option<Uptime>) {
        let Some(keys) = self.in_flight.remove(&call) else {
            return;
        };
        if retry_at.is_some() {
            self.not_before = retry_at;
            self.due.extend(keys);
        }
    }
}
