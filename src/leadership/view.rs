//! One JobManager's view of the cluster, for REST. A standby shows the same leader, term and members as the leader, and
//! reaches the leader's Dispatcher over RPC; statistics of writes and storage problems are known to the leader only.
//!
//! The view reads what the contender (the part of the process that contends and leads) publishes ([`ViewInner`]).
//! [`CurrentTerm`] holds the components of the own term.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;
use tanist_dispatcher::DispatcherHandle;
use tanist_gateway::blobs::ServedBlobs;
use tanist_gateway::{
    Components, Connector, DispatcherGateway, GatewayError, GatewayResult, JobMasterGateway,
    ResourceManagerGateway,
};
use tanist_ha::blob::BlobStore;
use tanist_ha::detector::service::PEER;
use tanist_ha::detector::{self, PeerHeartbeat, Phase, TransferError};
use tanist_ha::election::{Claim, Epoch, LeaderElection, Leadership, Member, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_ha::store::CoordinationStore;
use tanist_ha::store::cache::CacheStatus;
use tanist_ha::store::health::StoreHealth;
use tanist_ha::store::pipeline::{CommitPipeline, PipelineStats};
use tanist_proto::id::JobId;
use tokio::sync::watch;

use super::forwarding_dispatcher::ForwardingDispatcher;
use super::history::{self, HistoryRecord};
use super::peers::PeersHandle;
use super::permissions::MissingPermissions;

/// The components of the term that this process leads.
#[derive(Debug, Clone)]
pub(super) struct TermComponents {
    /// The term's Dispatcher.
    pub dispatcher: DispatcherHandle,
    /// The term's ResourceManager.
    pub resource_manager: Arc<dyn ResourceManagerGateway>,
    /// The pipeline for the term's writes.
    pub pipeline: CommitPipeline,
    /// What is wrong with the storage of large objects.
    pub storage_problem: watch::Receiver<Option<String>>,
}

/// The current term of this process, if it leads.
#[derive(Debug, Default)]
pub(super) struct CurrentTerm {
    components: RwLock<Option<Arc<TermComponents>>>,
}

impl CurrentTerm {
    /// Sets the components of a term that begins.
    pub(super) fn begin(&self, components: TermComponents) {
        let former = self.components.write().replace(Arc::new(components));
        // Not dropped while the lock is held.
        drop(former);
    }

    /// Clears the components at the end of the term.
    pub(super) fn end(&self) {
        let former = self.components.write().take();
        // Not dropped while the lock is held.
        drop(former);
    }

    fn get(&self) -> GatewayResult<Arc<TermComponents>> {
        let not_yet = || GatewayError::NotYet("this JobManager does not lead".to_owned());
        self.components.read().clone().ok_or_else(not_yet)
    }
}

#[async_trait]
impl Components for CurrentTerm {
    fn dispatcher(&self) -> GatewayResult<Arc<dyn DispatcherGateway>> {
        Ok(Arc::new(self.get()?.dispatcher.clone()))
    }

    fn resource_manager(&self) -> GatewayResult<Arc<dyn ResourceManagerGateway>> {
        Ok(self.get()?.resource_manager.clone())
    }

    async fn job_master(&self, job: JobId) -> GatewayResult<Arc<dyn JobMasterGateway>> {
        self.get()?.dispatcher.job_master(job).await
    }

    async fn job_masters(
        &self,
        jobs: Vec<JobId>,
    ) -> GatewayResult<Vec<Option<Arc<dyn JobMasterGateway>>>> {
        self.get()?.dispatcher.job_masters(jobs).await
    }
}

/// The role of a JobManager, in one word for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Its store has not been reached yet.
    Connecting,
    /// Another process leads, or none does.
    Standby,
    /// It was granted leadership and recovers its jobs.
    Recovering,
    /// It leads.
    Leading,
    /// It may still lead, but the store does not confirm it.
    Suspended,
    /// The store is another incarnation of the cluster, an earlier state, or a copy.
    Refused,
}

/// The state of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TermState {
    /// No process is known to lead, or to be about to lead.
    #[default]
    None,
    /// It was granted, and is being recovered.
    Recovering,
    /// It leads.
    Leading,
    /// Its process lives, but the store does not confirm it: nothing is decided.
    Suspended,
}

/// The youngest term: as reported by its own process if its heartbeats arrive, else as recorded in the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TermStatus {
    /// State of the term.
    pub state: TermState,
    /// The process that leads it.
    pub process: Option<ProcessId>,
    /// Since when it is in that state, in milliseconds since 1970.
    pub since_ms: Option<u64>,
}

impl TermStatus {
    fn of_heartbeat(heartbeat: PeerHeartbeat) -> TermStatus {
        let state = match (heartbeat.role, heartbeat.progress.phase) {
            (detector::Role::Standby, _) => TermState::None,
            (detector::Role::Suspended(_), _) => TermState::Suspended,
            (detector::Role::Leading(_), Phase::Leading) => TermState::Leading,
            (detector::Role::Leading(_), Phase::Standby | Phase::Recovering) => {
                TermState::Recovering
            }
        };
        TermStatus {
            state,
            process: Some(heartbeat.process),
            since_ms: heartbeat.since_ms,
        }
    }

    /// The term according to the store: a leader that is confirmed there leads.
    pub fn of_view(view: &LeaderView) -> TermStatus {
        view.leader
            .as_ref()
            .map_or_else(TermStatus::default, |leader| TermStatus {
                state: TermState::Leading,
                process: Some(leader.process.clone()),
                since_ms: Some(leader.since_ms),
            })
    }
}

/// The content of `/v1/ha/status`.
#[derive(Debug, Clone)]
pub struct HaStatus {
    /// The name of its [`tanist_ha::backend::Backend`].
    pub store: &'static str,
    /// The process that was asked.
    pub process: ProcessId,
    /// Its role.
    pub role: Role,
    /// What it knows of the leader.
    pub leader: LeaderView,
    /// The youngest term.
    pub term: TermStatus,
    /// Every JobManager, as the store lists them; the error if the store can't be asked.
    pub members: Result<Vec<Member>, String>,
    /// How current this process's cache of the jobs' records is.
    pub cache: CacheStatus,
    /// The health of the store; the reason if it is not known.
    pub health: Result<StoreHealth, String>,
    /// Why no process can lead, while the key that fences every write can't be read.
    pub unreadable: Option<String>,
}

/// One JobManager's view of the cluster. Cheap to clone.
#[derive(Clone)]
pub struct JobManagerView {
    pub(super) inner: Arc<ViewInner>,
}

pub(super) struct ViewInner {
    pub(super) process: ProcessId,
    pub(super) store: &'static str,
    pub(super) current: Arc<CurrentTerm>,
    pub(super) connector: Arc<dyn Connector>,
    pub(super) blobs: ServedBlobs,
    /// The largest graph (encoded, in bytes) that is forwarded within a message.
    pub(super) inline_threshold: usize,
    /// `None` until the store was reached.
    pub(super) election: watch::Receiver<Option<LeaderElection>>,
    pub(super) leaders: watch::Receiver<LeaderView>,
    /// `None` until the store was reached.
    pub(super) records: watch::Receiver<Option<Arc<dyn CoordinationStore>>>,
    pub(super) cache: watch::Receiver<CacheStatus>,
    pub(super) peers: watch::Receiver<Option<PeersHandle>>,
    pub(super) missing_permissions: watch::Receiver<MissingPermissions>,
}

/// Why there is no storage for uploads, and what to do.
const NO_UPLOADS: &str = "this cluster takes no uploads, as it has no blob store that survives the loss of a host: set \
     high-availability.storageDir, and high-availability.storage-shared if it is a shared directory";

impl JobManagerView {
    /// The storage for content that is uploaded for a submission. `Conflict`: there is none; says what to
    /// configure.
    pub fn uploads(&self) -> GatewayResult<BlobStore> {
        let store = self.inner.blobs.store();
        let store = store.filter(|store| store.survives_host());
        let store = store.ok_or_else(|| GatewayError::Conflict(NO_UPLOADS.to_owned()))?;
        let incarnation = self.leader().incarnation;
        let unknown = || GatewayError::NotYet("the store has not answered yet".to_owned());
        let of_cluster = store.of_cluster(&incarnation.ok_or_else(unknown)?);
        Ok(of_cluster.guarded_by_presence())
    }

    /// The Dispatcher of the leader: this process's own, or a client of another one's. Waits for a leader up to
    /// `timeout`; `NotYet` if there is none by then.
    pub async fn dispatcher(&self, timeout: Duration) -> GatewayResult<Arc<dyn DispatcherGateway>> {
        let found = tokio::time::timeout(timeout, self.find_dispatcher()).await;
        found.map_err(|_| {
            GatewayError::NotYet(format!(
                "no JobManager leads at present: waited {timeout:?} for a leader election"
            ))
        })
    }

    async fn find_dispatcher(&self) -> Arc<dyn DispatcherGateway> {
        let mut leaders = self.inner.leaders.clone();
        loop {
            let known = leaders.borrow_and_update().clone();
            if let Some(leader) = known.leader {
                if leader.process != self.inner.process {
                    if let Some(address) = leader.addresses.get("rpc") {
                        return Arc::new(ForwardingDispatcher {
                            leader: self.inner.connector.dispatcher(address),
                            blobs: self.inner.blobs.clone(),
                            threshold: self.inner.inline_threshold,
                        });
                    }
                } else if let Ok(own) = self.inner.current.dispatcher() {
                    return own;
                }
            }
            // A change of leader, or the components of the own term, which are set before it is confirmed.
            if leaders.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// This process.
    pub fn process(&self) -> &ProcessId {
        &self.inner.process
    }

    /// Has the current leader hand over: to the process named, else to the standby whose copy of the records
    /// is most current. Returns the successor's epoch. `Conflict`: no process took over, and the leader leads
    /// on.
    pub async fn transfer(&self, to: Option<&ProcessId>) -> GatewayResult<Epoch> {
        let Some(peers) = self.inner.peers.borrow().clone() else {
            let text = "the store has not been reached yet";
            return Err(GatewayError::NotYet(text.to_owned()));
        };
        match peers.transfer(to).await {
            Err(TransferError::NotLeading) => {}
            Ok(epoch) => return Ok(epoch),
            Err(error) => return Err(GatewayError::Conflict(error.to_string())),
        }
        let leader = self.leader().leader;
        let address = leader.and_then(|leader| leader.addresses.get(PEER).cloned());
        let address = address
            .ok_or_else(|| GatewayError::NotYet("no JobManager leads at present".to_owned()))?;
        peers.request_transfer(&address, to).await
    }

    /// The role of this process.
    pub fn role(&self) -> Role {
        let Some(election) = self.inner.election.borrow().clone() else {
            return Role::Connecting;
        };
        match &*election.leadership().borrow() {
            Leadership::Standby | Leadership::Over(_) => Role::Standby,
            Leadership::Granted(_) if self.inner.current.get().is_ok() => Role::Leading,
            Leadership::Granted(_) => Role::Recovering,
            Leadership::Suspended(_) => Role::Suspended,
            Leadership::Refused(_) => Role::Refused,
        }
    }

    /// The youngest term: this process's own, or that of the process whose heartbeats it receives.
    pub fn term(&self) -> TermStatus {
        let view = self.leader();
        let peers = self.inner.peers.borrow().clone();
        let state = match self.role() {
            Role::Connecting | Role::Refused => return TermStatus::default(),
            Role::Standby => {
                let heartbeat = peers.and_then(|peers| peers.leader_heartbeat());
                let heartbeat =
                    heartbeat.filter(|heartbeat| heartbeat.role.epoch() >= Some(view.epoch));
                return heartbeat
                    .map_or_else(|| TermStatus::of_view(&view), TermStatus::of_heartbeat);
            }
            Role::Leading if view.leader.is_some() => TermState::Leading,
            Role::Leading | Role::Recovering => TermState::Recovering,
            Role::Suspended => TermState::Suspended,
        };
        let election = self.inner.election.borrow().clone();
        let status = peers.zip(election).map(|(peers, election)| {
            let leadership = election.leadership();
            peers.reports.status(&leadership.borrow())
        });
        TermStatus {
            state,
            process: Some(self.inner.process.clone()),
            since_ms: status.map(|status| status.since_ms),
        }
    }

    /// What is known of the leader.
    pub fn leader(&self) -> LeaderView {
        self.inner.leaders.borrow().clone()
    }

    /// The statistics of the pipeline of this process's term; `None` while it does not lead.
    pub fn pipeline_stats(&self) -> Option<PipelineStats> {
        Some(self.inner.current.get().ok()?.pipeline.stats())
    }

    /// Follows what is known of the leader.
    pub fn leaders(&self) -> watch::Receiver<LeaderView> {
        self.inner.leaders.clone()
    }

    /// The rights in the store that a leader needs and this process lacks, as of the last check.
    pub fn missing_permissions(&self) -> MissingPermissions {
        self.inner.missing_permissions.borrow().clone()
    }

    /// The epochs that messages named to this process, and that its store does not have.
    pub fn claims(&self) -> Vec<Claim> {
        let election = self.inner.election.borrow();
        let claims = election
            .as_ref()
            .map(|election| election.claims().borrow().clone());
        claims.unwrap_or_default()
    }

    /// What is wrong with the storage of large objects, while this process leads.
    pub fn storage_problem(&self) -> Option<String> {
        let current = self.inner.current.get().ok()?;
        current.storage_problem.borrow().clone()
    }

    /// How current this process's cache of the jobs' records is, at each moment. Cold while it leads.
    pub fn cache_status(&self) -> watch::Receiver<CacheStatus> {
        self.inner.cache.clone()
    }

    /// The cluster's leadership status; without its members and the store's health if the store does not return
    /// them within `timeout`.
    pub async fn ha_status(&self, timeout: Duration) -> HaStatus {
        let election = self.inner.election.borrow().clone();
        let members = async { in_time(timeout, election?.members()).await };
        let records = self.inner.records.borrow().clone();
        let health = async { in_time(timeout, records?.health()).await };
        let (members, health) = tokio::join!(members, health);
        let election = self.inner.election.borrow().clone();
        let unreadable = election.and_then(|election| election.unreadable().borrow().clone());
        HaStatus {
            store: self.inner.store,
            process: self.inner.process.clone(),
            role: self.role(),
            leader: self.leader(),
            term: self.term(),
            members: members.unwrap_or_else(not_reached),
            cache: *self.inner.cache.borrow(),
            health: health.unwrap_or_else(not_reached),
            unreadable,
        }
    }

    /// The terms that are kept, oldest first; the reason if the store does not return them within `timeout`.
    pub async fn history(&self, timeout: Duration) -> Result<Vec<HistoryRecord>, String> {
        let records = self.inner.records.borrow().clone();
        let reading = async {
            let records = records?;
            in_time(timeout, history::read_all(&*records)).await
        };
        reading.await.unwrap_or_else(not_reached)
    }
}

async fn in_time<T>(
    timeout: Duration,
    answer: impl Future<Output = tanist_ha::Result<T>>,
) -> Option<Result<T, String>> {
    Some(match tokio::time::timeout(timeout, answer).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the store gave no answer within {timeout:?}")),
    })
}

fn not_reached<T>() -> Result<T, String> {
    Err("the store has not been reached yet".to_owned())
}

impl fmt::Debug for JobManagerView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobManagerView")
            .field("process", &self.inner.process)
            .finish_non_exhaustive()
    }
}
