//! The parts of a JobManager that watch other JobManagers: the detector that watches the leader, and the
//! heartbeats that show that this process is running, with the answers to its peers.
//!
//! Both run on the election's thread. Data of the main runtime (progress, TaskManagers, how current a cache is)
//! reaches them through [`Reports`]. Not here: connections, which the process brings ([`PeersSetup`]).

mod false_alarms;
mod hand_over;
mod own_peer;
mod refused;
mod reports;
mod same_store_check;
mod scheduling_probe;
pub(super) mod takeover;
mod watchdog;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tanist_config::ClusterOptions;
use tanist_gateway::peers::{PeerConnector, PeerServer};
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::detector::{Detector, DetectorServices, Identity, PeerHeartbeat, TransferError};
use tanist_ha::election::{Epoch, LeaderElection, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_ha::store::CoordinationStore;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(super) use false_alarms::probe_deposed_leaders;
pub(super) use hand_over::{HandOverOptions, hand_over_when_cut_off};
pub(super) use refused::{RefusalInquiry, refusals};
pub(super) use reports::Reports;
pub(super) use same_store_check::Finding;
pub(super) use scheduling_probe::probe_actors;

use super::settings;
use super::view::CurrentTerm;

/// Maximum number of concurrent requests from peers that read the store.
const MAX_STORE_REQUESTS: usize = 8;

/// How a process and its peers reach each other.
#[derive(Debug, Clone)]
pub struct PeersSetup {
    /// Reaches the peers.
    pub connector: Arc<dyn PeerConnector>,
    /// Offers this process to its peers, under the address that it publishes for peers.
    pub server: Arc<dyn PeerServer>,
}

/// A process's part among its peers. Cheap to clone.
#[derive(Clone)]
pub(super) struct PeersHandle {
    detector: Detector,
    /// Whether the leader named in the store uses the same store.
    pub(super) belonging: watch::Receiver<Finding>,
    connector: Arc<dyn PeerConnector>,
    pub(super) reports: Arc<Reports>,
    transfer_timeout: Duration,
    /// Cancelled when this process is about to end: it then refuses invitations.
    closing: CancellationToken,
}

/// The tasks that keep the reports and the number of false alarms current; they end when it is dropped.
#[derive(Debug)]
pub(super) struct Upkeep {
    _tasks: JoinSet<()>,
}

/// Starts the detector and the server beside the election.
pub(super) fn start(
    setup: &PeersSetup,
    options: &ClusterOptions,
    identity: Identity,
    election: &LeaderElection,
    store: Arc<dyn CoordinationStore>,
    current: Arc<CurrentTerm>,
    leaders: watch::Receiver<LeaderView>,
) -> (PeersHandle, Upkeep) {
    let detection = settings::detector(options);
    let stall_timeout = options.ha.stall_timeout;
    let (false_alarms_out, false_alarms) = watch::channel(0);
    let detector = Detector::start(DetectorServices {
        identity: identity.clone(),
        election: election.clone(),
        peers: setup.connector.clone(),
        options: detection,
        false_alarms,
    });
    let (belonging, found) = watch::channel(Finding::Open);
    let handle = PeersHandle {
        belonging: found,
        detector,
        connector: setup.connector.clone(),
        reports: Arc::default(),
        transfer_timeout: options.ha.transfer_timeout,
        closing: CancellationToken::new(),
    };
    let own = Arc::new(own_peer::OwnPeer {
        identity,
        handle: handle.clone(),
        leadership: election.leadership(),
        election: election.detached(),
        store_requests: Arc::new(Semaphore::new(MAX_STORE_REQUESTS)),
        heartbeat_interval: detection.heartbeat_interval,
    });
    let server = setup.server.clone();
    election.runtime().spawn(async move {
        if let Err(error) = server.serve(own).await {
            warn!(%error, "the peer server of this process can't be started: others see only its lease");
        }
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(reports::report_witnesses(
        current,
        leaders.clone(),
        handle.reports.clone(),
    ));
    let changes = reports::note_changes(election.leadership(), handle.reports.clone());
    tasks.spawn_on(changes, election.runtime());
    tasks.spawn(scheduling_probe::probe_runtime(
        handle.reports.clone(),
        scheduling_probe::interval_for(stall_timeout),
    ));
    let watchdog = watchdog::Watchdog {
        election: election.detached(),
        reports: handle.reports.clone(),
        stall_timeout,
        // Time for the other processes to receive the reason.
        notice: detection.heartbeat_interval * 3,
    };
    tasks.spawn_on(watchdog.run(), election.runtime());
    let check = same_store_check::SameStoreCheck {
        election: election.detached(),
        connector: handle.connector.clone(),
        finding: belonging,
    };
    tasks.spawn_on(check.run(), election.runtime());
    tasks.spawn(false_alarms::count_false_alarms(
        store,
        leaders,
        false_alarms_out,
    ));
    (handle, Upkeep { _tasks: tasks })
}

impl PeersHandle {
    /// Hands the own term over: to the process named, else to the most current one. On an error the term goes
    /// on.
    pub(super) async fn transfer(&self, to: Option<&ProcessId>) -> Result<Epoch, TransferError> {
        self.detector.transfer(to, self.transfer_timeout).await
    }

    /// Prepares the end of this process: refuses invitations from now on, and hands its term over.
    pub(super) async fn leave(&self) -> bool {
        self.closing.cancel();
        match self.transfer(None).await {
            Ok(epoch) => {
                info!(%epoch, "handed over");
                true
            }
            Err(reason) => {
                info!(%reason, "resigning");
                false
            }
        }
    }

    /// This process is about to end: refuses invitations from now on.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// Asks the leader at `address` to hand over.
    pub(super) async fn request_transfer(
        &self,
        address: &str,
        to: Option<&ProcessId>,
    ) -> GatewayResult<Epoch> {
        let bound = self.transfer_timeout + Duration::from_secs(1);
        let asked = tokio::time::timeout(bound, self.connector.transfer(address, to)).await;
        asked.unwrap_or_else(|_| {
            Err(GatewayError::NoAnswer {
                target: format!("the leader at {address}"),
                reason: format!("none within {bound:?}"),
            })
        })
    }

    /// The last heartbeat of another process: the state of its term, as reported by itself.
    pub(super) fn leader_heartbeat(&self) -> Option<PeerHeartbeat> {
        self.detector.leader_heartbeat()
    }

    /// Requests one heartbeat of the process at `address`.
    pub(super) async fn probe(&self, address: &str) -> Option<PeerHeartbeat> {
        self.connector.probe(address).await.ok()
    }
}

impl fmt::Debug for PeersHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeersHandle").finish_non_exhaustive()
    }
}
