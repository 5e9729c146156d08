//! The part of the actor that monitors TaskManagers: which ones are silent or refuse calls, and which are
//! lost for that. It owns [`Peers`], which follow the registrations of the core.
//!
//! A TaskManager is lost if it was silent for `heartbeat.timeout`, if it answered often enough that it does
//! not know this JobMaster, or if it refuses calls and is found to be gone ([`tanist_gateway::refusals`]).

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_compact::SmallMap;
use tanist_gateway::GatewayError;
use tanist_gateway::refusals::{CheckOutcome, RefusalCheck, RefusedCalls};
use tanist_ha::clock::millis;
use tanist_proto::id::ResourceId;
use tokio::time::Instant;

use super::actor::JobMasterActor;
use super::core::{Connection, Effect, Event, JobMasterCore, Registration, checkpoints};

/// The monitoring state of a TaskManager.
#[derive(Debug)]
struct Peer {
    registration: Registration,
    last_sign_of_life: Instant,
    refused: RefusedCalls,
    has_heartbeat_under_way: bool,
}

/// The TaskManagers that are monitored: those that the core knows, each with its registration.
#[derive(Debug)]
pub(super) struct Peers {
    known: SmallMap<ResourceId, Box<Peer>>,
    /// The version of the core's registrations that `known` reflects.
    version: u64,
    /// No TaskManager exceeds the heartbeat timeout before this. It is a lower bound: answers since then are
    /// not considered.
    silence_at: Option<Instant>,
    next_heartbeat: Instant,
}

impl Peers {
    /// No TaskManager is monitored.
    pub(super) fn new(first_heartbeat: Instant) -> Peers {
        Peers {
            known: SmallMap::new(),
            version: 0,
            silence_at: None,
            next_heartbeat: first_heartbeat,
        }
    }

    /// When a heartbeat is due, or a TaskManager may be silent for too long.
    pub(super) fn next_deadline(&self) -> Instant {
        let silence_at = self.silence_at.unwrap_or(self.next_heartbeat);
        silence_at.min(self.next_heartbeat)
    }

    /// Whether heartbeats are due. Sets the time of the next ones.
    pub(super) fn take_heartbeats_due(&mut self, now: Instant, interval: Duration) -> bool {
        let are_due = now >= self.next_heartbeat;
        if are_due {
            self.next_heartbeat = now + interval;
        }
        are_due
    }

    /// Begins a heartbeat, unless one is under way. Returns whether it is to be sent.
    pub(super) fn begin_heartbeat(&mut self, connection: &Connection) -> bool {
        let peer = self.connected(connection);
        peer.is_some_and(|peer| !std::mem::replace(&mut peer.has_heartbeat_under_way, true))
    }

    /// The registration of a TaskManager.
    pub(super) fn registration(&self, id: &ResourceId) -> Option<Registration> {
        Some(self.known.get(id)?.registration)
    }

    /// Notes that a message of a TaskManager has arrived.
    pub(super) fn heard(&mut self, connection: &Connection) {
        if let Some(peer) = self.connected(connection) {
            peer.last_sign_of_life = Instant::now();
            peer.refused.reached();
        }
    }

    fn connected(&mut self, connection: &Connection) -> Option<&mut Peer> {
        let peer = self.known.get_mut(&connection.task_manager)?;
        (peer.registration == connection.registration).then_some(&mut **peer)
    }

    /// The TaskManagers that have been silent for the timeout.
    fn silent(&mut self, timeout: Duration) -> Vec<Connection> {
        let now = Instant::now();
        if self.silence_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        let silent = self
            .known
            .iter()
            .filter(|(_, peer)| now - peer.last_sign_of_life >= timeout);
        silent.map(|(id, peer)| connection(id, peer)).collect()
    }

    /// Sets when the next TaskManager may be silent for too long.
    fn note_silence(&mut self, timeout: Duration) {
        if self.silence_at.is_some_and(|at| at <= Instant::now()) {
            let last = self.known.values().map(|peer| peer.last_sign_of_life);
            self.silence_at = last.min().map(|at| at + timeout);
        }
    }

    /// Takes over the registrations of the core. Returns the connections that are gone.
    fn follow(&mut self, core: &JobMasterCore, timeout: Duration) -> Vec<Connection> {
        let version = core.registrations_version();
        if std::mem::replace(&mut self.version, version) == version {
            return Vec::new();
        }
        let known: BTreeMap<&ResourceId, Registration> = core.registrations().collect();
        let gone = self.known.iter();
        let gone = gone.filter(|(id, peer)| known.get(id) != Some(&peer.registration));
        let gone: Vec<Connection> = gone.map(|(id, peer)| connection(id, peer)).collect();
        self.known
            .retain(|id, peer| known.get(id) == Some(&peer.registration));
        for (id, registration) in known {
            let new = || {
                Box::new(Peer {
                    registration,
                    last_sign_of_life: Instant::now(),
                    refused: RefusedCalls::default(),
                    has_heartbeat_under_way: false,
                })
            };
            self.known.get_or_insert_with(id.clone(), new);
        }
        self.silence_at.get_or_insert(Instant::now() + timeout);
        gone
    }

    /// Extends all waits by the time for which this process stood still, which it returns.
    fn credit_standstill(&mut self, interval: Duration) -> Option<Duration> {
        let now = Instant::now();
        let late = now.saturating_duration_since(self.next_heartbeat);
        if late < interval {
            return None;
        }
        for peer in self.known.values_mut() {
            peer.last_sign_of_life = (peer.last_sign_of_life + late).min(now);
        }
        self.next_heartbeat = now;
        Some(late)
    }
}

fn connection(id: &ResourceId, peer: &Peer) -> Connection {
    Connection {
        task_manager: id.clone(),
        registration: peer.registration,
    }
}

impl JobMasterActor {
    /// Notes that a call was answered or failed. Returns the cause if the TaskManager is lost for that.
    pub(super) fn note_called(
        &mut self,
        connection: &Connection,
        error: Option<&GatewayError>,
        is_heartbeat: bool,
    ) -> Option<String> {
        let threshold = self.options.rpc_failure_threshold;
        let own_epoch = self.calls.sender.epoch;
        let peer = self.peers.connected(connection)?;
        peer.has_heartbeat_under_way &= !is_heartbeat;
        let Some(error) = error else {
            peer.last_sign_of_life = Instant::now();
            peer.refused.reached();
            return None;
        };
        if threshold == 0 {
            return None;
        }
        match error {
            GatewayError::Unreachable { .. } => {
                let check = peer.refused.refused(threshold)?;
                self.check_lost(connection.clone(), error.to_string(), check);
                None
            }
            // It was restarted or connects again. In the latter case it registers before the next heartbeat.
            GatewayError::NotFound(_) if is_heartbeat => {
                peer.refused.failed(threshold).then(|| error.to_string())
            }
            GatewayError::Outdated { epoch, .. } if is_heartbeat && *epoch <= own_epoch => {
                peer.refused.failed(threshold).then(|| error.to_string())
            }
            // It is alive, holds something of the job and is about to register again: only silence counts
            // against it.
            GatewayError::NotYet(_) if is_heartbeat => {
                peer.refused.reached();
                None
            }
            _ => None,
        }
    }

    fn check_lost(&mut self, connection: Connection, cause: String, check: RefusalCheck) {
        if let Some(location) = self.core.location(&connection.task_manager) {
            let address = location.rpc_address.clone();
            self.calls
                .check_lost(&mut self.io, connection, address, cause, check);
        }
    }

    /// Applies the decision whether a TaskManager that refused calls is gone.
    pub(super) fn apply_check(&mut self, connection: Connection, cause: String, is_lost: bool) {
        let threshold = self.options.rpc_failure_threshold;
        let Some(peer) = self.peers.connected(&connection) else {
            return;
        };
        match peer.refused.finish_check(is_lost, threshold) {
            CheckOutcome::Lost => self.lose(connection, cause),
            CheckOutcome::Repeat(check) => self.check_lost(connection, cause, check),
            CheckOutcome::Undecided => {}
        }
    }

    /// Gives up TaskManagers that exceeded the heartbeat timeout.
    pub(super) fn lose_silent(&mut self) {
        let timeout = self.options.heartbeat_timeout;
        for connection in self.peers.silent(timeout) {
            let cause = format!("no heartbeat for {} ms", millis(timeout));
            self.lose(connection, cause);
        }
        self.peers.note_silence(timeout);
    }

    /// Gives a TaskManager up. If it is alive, it receives that it has to register again, and refuses late
    /// messages under the registration that is over.
    pub(super) fn lose(&mut self, connection: Connection, cause: String) {
        if let Some(location) = self.core.location(&connection.task_manager).cloned() {
            let goodbye = Effect::Disconnect {
                connection: connection.clone(),
                location,
                cause: cause.clone(),
            };
            self.calls.start(&mut self.io, &self.core, goodbye);
        }
        self.note(Event::TaskManagerLost { connection, cause });
    }

    /// Monitors exactly the TaskManagers that the core knows.
    pub(super) fn follow_peers(&mut self) {
        let gone = self
            .peers
            .follow(&self.core, self.options.heartbeat_timeout);
        for connection in gone {
            self.tell_checkpoints(checkpoints::Event::Disconnected { connection });
        }
    }

    /// Handles a standstill of this process (it was stopped, or its host was overloaded). It received no
    /// messages meanwhile, which does not count as silence of others. All waits are extended by its duration,
    /// and heartbeats are sent immediately.
    pub(super) fn credit_standstill(&mut self) {
        let interval = self.options.heartbeat_interval;
        let Some(late) = self.peers.credit_standstill(interval) else {
            return;
        };
        let job = &self.calls.job.job_id;
        tracing::warn!(
            job,
            ?late,
            "this process was not scheduled: the heartbeat timeouts of TaskManagers are extended by that time"
        );
        self.core.put_off_deadlines(millis(late));
    }
}
