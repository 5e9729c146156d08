//! A job on a TaskExecutor: the connection to its JobMaster, offers and reports to it, and its executions.

use std::collections::{BTreeMap, BTreeSet};

use tanist_ha::clock::Uptime;
use tanist_proto::id::AllocationId;

use super::connection::Connection;
use super::coordinator_requests::Waiting;
use super::executions::{ExecutionKey, Executions};
use super::graphs::KnownGraph;
use super::isolation::Isolation;
use super::regions::Regions;

/// A message of which one at a time is in flight, and that is repeated until it arrives.
#[derive(Debug)]
pub enum Delivery<T> {
    /// Nothing is in flight. The next message may be sent from that moment on.
    Ready(Option<Uptime>),
    /// This is in flight.
    InFlight(T),
}

impl<T> Delivery<T> {
    /// Whether a message may be sent.
    pub fn is_ready(&self, now: Uptime) -> bool {
        match self {
            Delivery::Ready(not_before) => not_before.is_none_or(|at| at <= now),
            Delivery::InFlight(_) => false,
        }
    }

    /// Takes what is in flight. The next message may be sent from `not_before` on.
    pub fn finish(&mut self, not_before: Option<Uptime>) -> Option<T> {
        match std::mem::replace(self, Delivery::Ready(not_before)) {
            Delivery::Ready(_) => None,
            Delivery::InFlight(sent) => Some(sent),
        }
    }

    /// When a failed message may be sent again.
    pub fn retry_at(&self) -> Option<Uptime> {
        match self {
            Delivery::Ready(not_before) => *not_before,
            Delivery::InFlight(_) => None,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Job {
    /// Highest known incarnation of the job's JobMaster.
    pub incarnation: u64,
    /// The connection to its JobMaster.
    pub connection: Connection,
    /// Its deployed executions.
    pub executions: Executions,
    /// The pipelined regions of its deployed tasks.
    pub regions: Regions,
    /// Isolation state, if it is an isolated job.
    pub(super) isolation: Option<Isolation>,
    /// Its graph, if deployments only name it and it was fetched.
    pub(super) graph: Option<KnownGraph>,
    /// Whether files may be kept for its next tasks: some tasks started since it last had no slot.
    pub(super) has_files: bool,
    /// Allocations to offer.
    pub to_offer: BTreeSet<AllocationId>,
    /// The offer in flight.
    pub offer: Delivery<BTreeSet<AllocationId>>,
    /// The report in flight.
    pub update: Delivery<Vec<ExecutionKey>>,
    /// Requests of its operators to their coordinators, by number.
    pub coordinator_requests: BTreeMap<u64, Waiting>,
    /// Whether its sources must end.
    pub is_stopped: bool,
    /// Whether it has ended and only waits for its tasks to end.
    pub is_ending: bool,
}

impl Job {
    /// Without slots and executions.
    pub fn new() -> Job {
        Job {
            incarnation: 0,
            connection: Connection::idle(),
            executions: Executions::default(),
            regions: Regions::default(),
            isolation: None,
            graph: None,
            has_files: false,
            to_offer: BTreeSet::new(),
            offer: Delivery::Ready(None),
            update: Delivery::Ready(None),
            coordinator_requests: BTreeMap::new(),
            is_stopped: false,
            is_ending: false,
        }
    }

    /// Begins to connect to another JobMaster, or again to the same one: messages in flight to the old one do not
    /// count. Returns the run of attempts.
    pub fn connect(&mut self, address: &str) -> u64 {
        let run = self.connection.begin(address);
        self.forget_deliveries();
        run
    }

    /// Ends the connection.
    pub fn disconnect(&mut self) {
        self.connection.end();
        self.forget_deliveries();
    }

    fn forget_deliveries(&mut self) {
        self.offer = Delivery::Ready(None);
        if let Some(keys) = self.update.finish(None) {
            self.executions.put_back(keys);
        }
        self.coordinator_requests
            .values_mut()
            .for_each(Waiting::forget_delivery);
    }

    /// When something of the job is due.
    pub fn next_deadline(&self) -> Option<Uptime> {
        let is_offering = self.connection.is_registered() && !self.to_offer.is_empty();
        let is_reporting = self.connection.is_registered() && self.executions.has_changed();
        let offer = self.offer.retry_at().filter(|_| is_offering);
        let update = self.update.retry_at().filter(|_| is_reporting);
        let coordinator_requests = self
            .coordinator_requests
            .values()
            .filter_map(Waiting::retry_at)
            .min();
        let times = [
            self.connection.lost_at(),
            self.executions.next_deadline(),
            offer,
            update,
            coordinator_requests.filter(|_| self.connection.is_registered()),
        ];
        times.into_iter().flatten().min()
    }
}
