//! The detector of one process: its start, what it hears, and its answers to other processes. The actor does
//! the work.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::actor::DetectorActor;
use super::core::DetectorOptions;
use super::peer_heartbeat::{PeerHeartbeat, Question, Reply};
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
    /// The host that it runs on.
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

/// What this process currently hears of the leader.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Hearing {
    pub(super) leader: Option<(ProcessId, Epoch)>,
    pub(super) connected: bool,
    /// It has not been heard yet.
    pub(super) opening: bool,
    /// Number of heartbeats received on the stream.
    pub(super) heartbeats: u64,
    pub(super) last_heard: Moment,
    pub(super) unsure: bool,
}

/// A handle to a running detector. Cheap to clone; when the last one is dropped, it ends.
#[derive(Debug, Clone)]
pub struct Detector {
    pub(super) services: DetectorServices,
    hearing: watch::Receiver<Hearing>,
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
        let (hearing_out, hearing) = watch::channel(Hearing::default());
        let (last_heartbeat_out, last_heartbeat) = watch::channel(None);
        let actor = DetectorActor::new(
            services.clone(),
            hearing_out,
            last_heartbeat_out,
            stop.clone(),
        );
        services.election.runtime().spawn(actor.run());
        Detector {
            services,
            hearing,
            last_heartbeat,
            _stop: Arc::new(stop.drop_guard()),
        }
    }

    /// The last heartbeat of the watched term while it is heard: of a leading, recovering or suspended
    /// process.
    pub fn heard(&self) -> Option<PeerHeartbeat> {
        let hearing = self.hearing.borrow();
        let (process, epoch) = hearing.leader.as_ref().filter(|_| hearing.connected)?;
        let heartbeat = self.last_heartbeat.borrow().clone();
        heartbeat.filter(|heartbeat| {
            heartbeat.process == *process && heartbeat.role.epoch() == Some(*epoch)
        })
    }

    /// Answers another process that lost a leader, by what is heard of that leader from now on.
    pub async fn answer(&self, question: &Question) -> Reply {
        if question.leader == self.services.identity.process {
            return Reply::Hears;
        }
        let asked_about = Some((question.leader.clone(), question.epoch));
        let mut hearing = self.hearing.clone();
        let before = hearing.borrow_and_update().clone();
        if before.leader != asked_about {
            return Reply::Unsure;
        }
        let clock = self.services.election.clock();
        let since = |last: Moment| clock.now().since(last);
        // A process that has only begun to listen has lost nothing yet.
        let is_lost = |now: &Hearing| !now.connected && !now.opening;
        if is_lost(&before) {
            return Reply::Lost {
                since: since(before.last_heard),
            };
        }
        let news = hearing.wait_for(|now| {
            now.leader != asked_about || is_lost(now) || now.heartbeats != before.heartbeats
        });
        match timeout(question.timeout, news).await {
            Ok(Ok(now)) if now.leader == asked_about && now.heartbeats != before.heartbeats => {
                Reply::Hears
            }
            Ok(Ok(now)) if now.leader == asked_about => Reply::Lost {
                since: since(now.last_heard),
            },
            Ok(Ok(_) | Err(_)) => Reply::Unsure,
            // Not heard in time: that means little if this process did not run meanwhile.
            Err(_) if before.unsure || self.hearing.borrow().unsure => Reply::Unsure,
            Err(_) => Reply::Lost {
                since: since(before.last_heard),
            },
        }
    }
}
