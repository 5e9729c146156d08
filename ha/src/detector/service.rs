//! The detector of one process as callers use it: [`Detector`], a handle to the `actor` that runs it, and the
//! answers to other processes that ask about the leader.
//!
//! The actor owns the state and publishes the state of its connection here. An answer is a claim: the asker counts
//! it, and never takes it for proof.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::actor::DetectorActor;
use super::core::DetectorOptions;
use super::peer_heartbeat::{LivenessQuery, PeerHeartbeat, Reply};
use super::peers::Peers;
use crate::clock::Moment;
use crate::election::{Epoch, HostIdentity, LeaderElection, ProcessId};

/// The interface name under which the address of a process's heartbeats is published.
pub const PEER: &str = "peer";

/// The identity of this process to its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its stable id.
    pub process: ProcessId,
    /// The id of this start.
    pub incarnation: String,
    /// The host that it runs on; `None`: unknown.
    pub host: Option<HostIdentity>,
}

/// Dependencies of a detector.
#[derive(Debug, Clone)]
pub struct DetectorServices {
    /// This process.
    pub identity: Identity,
    /// Its election.
    pub election: LeaderElection,
    /// The other processes.
    pub peers: Arc<dyn Peers>,
    /// Timeouts and intervals.
    pub options: DetectorOptions,
    /// Number of false alarms in the cluster's recent history.
    pub false_alarms: watch::Receiver<u32>,
}

/// State of the connection to the leader.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LinkStatus {
    /// The leader that is watched, and its term; `None`: this process leads, or no process does.
    pub(super) leader: Option<(ProcessId, Epoch)>,
    pub(super) connected: bool,
    /// Whether no heartbeat has arrived from its address yet.
    pub(super) opening: bool,
    /// Number of heartbeats received on the stream.
    pub(super) heartbeats: u64,
    /// Time of the last heartbeat; without one, the time at which watching began.
    pub(super) last_contact: Moment,
    /// Whether this process itself was recently delayed.
    pub(super) unsure: bool,
}

/// A handle to a running detector. Cheap to clone; when the last one is dropped, it ends.
#[derive(Debug, Clone)]
pub struct Detector {
    pub(super) services: DetectorServices,
    link_status: watch::Receiver<LinkStatus>,
    last_heartbeat: watch::Receiver<Option<PeerHeartbeat>>,
    _stop: Arc<DropGuard>,
}

impl Detector {
    /// Starts the detector on the runtime of the election.
    pub fn start(services: DetectorServices) -> Detector {
        let services = DetectorServices {
            election: services.election.detached(),
            ..services
        };
        let stop = CancellationToken::new();
        let (link_status_out, link_status) = watch::channel(LinkStatus::default());
        let (last_heartbeat_out, last_heartbeat) = watch::channel(None);
        let actor = DetectorActor::new(
            services.clone(),
            link_status_out,
            last_heartbeat_out,
            stop.clone(),
        );
        services.election.runtime().spawn(actor.run());
        Detector {
            services,
            link_status,
            last_heartbeat,
            _stop: Arc::new(stop.drop_guard()),
        }
    }

    /// The last heartbeat of the watched term, of a leading, recovering or suspended process. `None`: its heartbeats do
    /// not arrive, or this process watches no term.
    pub fn leader_heartbeat(&self) -> Option<PeerHeartbeat> {
        let link_status = self.link_status.borrow();
        let (process, epoch) = link_status
            .leader
            .as_ref()
            .filter(|_| link_status.connected)?;
        let heartbeat = self.last_heartbeat.borrow().clone();
        heartbeat.filter(|heartbeat| {
            heartbeat.process == *process && heartbeat.role.epoch() == Some(*epoch)
        })
    }

    /// Answers another process that lost a leader, by the heartbeats that arrive from now on.
    pub async fn answer(&self, query: &LivenessQuery) -> Reply {
        if query.leader == self.services.identity.process {
            return Reply::Reachable;
        }
        let asked_about = Some((query.leader.clone(), query.epoch));
        let mut link_status = self.link_status.clone();
        let before = link_status.borrow_and_update().clone();
        if before.leader != asked_about {
            return Reply::Unsure;
        }
        let clock = self.services.election.clock();
        let since = |last: Moment| clock.now().since(last);
        // A process that has only begun to listen has lost nothing yet.
        let is_lost = |now: &LinkStatus| !now.connected && !now.opening;
        if is_lost(&before) {
            return Reply::Lost {
                since: since(before.last_contact),
            };
        }
        let news = link_status.wait_for(|now| {
            now.leader != asked_about || is_lost(now) || now.heartbeats != before.heartbeats
        });
        // The first case that fits counts: a heartbeat that arrived outweighs a connection that broke after it.
        match timeout(query.timeout, news).await {
            Ok(Ok(now)) if now.leader == asked_about && now.heartbeats != before.heartbeats => {
                Reply::Reachable
            }
            Ok(Ok(now)) if now.leader == asked_about => Reply::Lost {
                since: since(now.last_contact),
            },
            Ok(Ok(_) | Err(_)) => Reply::Unsure,
            // No heartbeat in time: that means little if this process did not run meanwhile.
            Err(_) if before.unsure || self.link_status.borrow().unsure => Reply::Unsure,
            Err(_) => Reply::Lost {
                since: since(before.last_contact),
            },
        }
    }
}
