//! The part of the actor that monitors TaskManagers: which ones are silent or refuse calls, and which are
//! lost for that.
//!
//! A TaskManager is lost if it was silent for `heartbeat.timeout`, if it answered often enough that it does
//! not know this JobMaster, or if it refuses calls and is found to be gone ([`tanist_gateway::refusals`]).

use std::collections::BTreeMap;

use tanist_gateway::GatewayError;
use tanist_gateway::refusals::{CheckOutcome, RefusalCheck, RefusedCalls};
use tanist_ha::clock::millis;
use tanist_proto::id::ResourceId;
use tokio::time::Instant;

use super::actor::JobMasterActor;
use super::core::{Connection, Effect, Event, Registration, checkpoints};

/// The monitoring state of a TaskManager.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) registration: Registration,
    pub(super) last_sign_of_life: Instant,
    pub(super) refused: RefusedCalls,
    pub(super) has_heartbeat_under_way: bool,
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
        let peer = self.peers.get_mut(&connection.task_manager)?;
        if peer.registration != connection.registration {
            return None;
        }
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
        let Some(peer) = self.peers.get_mut(&connection.task_manager) else {
            return;
        };
        if peer.registration != connection.registration {
            return;
        }
        match peer.refused.finish_check(is_lost, threshold) {
            CheckOutcome::Lost => self.lose(connection, cause),
            CheckOutcome::Repeat(check) => self.check_lost(connection, cause, check),
            CheckOutcome::Undecided => {}
        }
    }

    /// Gives up TaskManagers that exceeded the heartbeat timeout.
    pub(super) fn lose_silent(&mut self) {
        let now = Instant::now();
        let timeout = self.options.heartbeat_timeout;
        if self.silence_at.is_none_or(|at| now < at) {
            return;
        }
        let silent = self
            .peers
            .iter()
            .filter(|(_, peer)| now - peer.last_sign_of_life >= timeout);
        let silent: Vec<Connection> = silent
            .map(|(id, peer)| Connection {
                task_manager: id.clone(),
                registration: peer.registration,
            })
            .collect();
        for connection in silent {
            let cause = format!("no heartbeat for {} ms", millis(timeout));
            self.lose(connection, cause);
        }
        let last = self.peers.values().map(|peer| peer.last_sign_of_life);
        self.silence_at = last.min().map(|at| at + timeout);
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
        let version = self.core.registrations_version();
        if std::mem::replace(&mut self.followed, version) == version {
            return;
        }
        let known: BTreeMap<&ResourceId, Registration> = self.core.registrations().collect();
        let gone = self.peers.iter();
        let gone = gone.filter(|(id, peer)| known.get(id) != Some(&peer.registration));
        let gone = gone.map(|(id, peer)| Connection {
            task_manager: id.clone(),
            registration: peer.registration,
        });
        let gone: Vec<Connection> = gone.collect();
        self.peers
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
            self.peers.get_or_insert_with(id.clone(), new);
        }
        let silence_at = Instant::now() + self.options.heartbeat_timeout;
        self.silence_at.get_or_insert(silence_at);
        for connection in gone {
            self.tell_checkpoints(checkpoints::Event::Disconnected { connection });
        }
    }

    /// Handles a standstill of this process (it was stopped, or its host was overloaded). It received no
    /// messages meanwhile, which does not count as silence of others. All waits are extended by its duration,
    /// and heartbeats are sent immediately.
    pub(super) fn credit_standstill(&mut self) {
        let now = Instant::now();
        let late = now.saturating_duration_since(self.next_heartbeat);
        if late < self.options.heartbeat_interval {
            return;
        }
        let job = &self.calls.job.job_id;
        tracing::warn!(
            job,
            ?late,
            "this process stood still; TaskManagers get as much more time"
        );
        for peer in self.peers.values_mut() {
            peer.last_sign_of_life = (peer.last_sign_of_life + late).min(now);
        }
        self.core.put_off_deadlines(millis(late));
        self.next_heartbeat = now;
    }
}
