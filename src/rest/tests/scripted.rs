//! A scripted cluster, a server over it, and a client.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde_json::Value;
use tanist_gateway::{DispatcherGateway, GatewayError, GatewayResult};
use tanist_ha::blob::BlobStore;
use tanist_ha::election::{Claim, Detection, Epoch, LeaderInformation, Member, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_ha::store::cache::CacheStatus;
use tanist_ha::store::health::StoreHealth;
use tanist_ha::store::pipeline::PipelineStats;
use tanist_leadership::history::{HistoryRecord, Phases, TakeoverRecord};
use tanist_leadership::{HaStatus, Role, TermStatus};
use tanist_net::{Listener, Port};
use tanist_proto::v1 as pb;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::{ClusterView, RestServerOptions, serve};
use super::submitting::term_time;

/// A Dispatcher that first returns the errors of its script, then answers.
#[derive(Debug, Default)]
pub(super) struct ScriptedDispatcher {
    pub(super) errors: Mutex<VecDeque<GatewayError>>,
    pub(super) jobs: Mutex<Vec<pb::JobDetails>>,
    pub(super) task_managers: Vec<pb::TaskManagerInfo>,
    pub(super) submissions: Mutex<Vec<pb::SubmitJobRequest>>,
    pub(super) canceled: Mutex<Vec<String>>,
    pub(super) stopped: Mutex<Vec<String>>,
    /// The requests for savepoints. Those of a running job are in its description, too.
    pub(super) savepoints: Mutex<Vec<pb::TriggerSavepointRequest>>,
    /// Paths of removed savepoints.
    pub(super) disposed: Mutex<Vec<String>>,
    /// The drain requests for known TaskManagers.
    pub(super) drains: Mutex<Vec<pb::DrainTaskManagerRequest>>,
    /// Never answers, like a process stopped by SIGSTOP.
    pub(super) is_frozen: bool,
    /// The store does not confirm its term.
    pub(super) is_suspended: bool,
    /// Number of requested consistent reads.
    pub(super) consistent_reads: AtomicUsize,
}

impl ScriptedDispatcher {
    pub(super) fn failing(errors: impl IntoIterator<Item = GatewayError>) -> ScriptedDispatcher {
        ScriptedDispatcher {
            errors: Mutex::new(errors.into_iter().collect()),
            ..ScriptedDispatcher::default()
        }
    }

    fn read(&self, consistent: bool) -> GatewayResult<()> {
        let reads = usize::from(consistent);
        self.consistent_reads.fetch_add(reads, Ordering::Relaxed);
        self.script()
    }

    fn script(&self) -> GatewayResult<()> {
        let mut errors = self.errors.lock();
        errors.pop_front().map_or(Ok(()), Err)
    }

    fn as_of(&self) -> Option<pb::ReadPosition> {
        Some(pb::ReadPosition {
            epoch: 7,
            change: 42,
            suspended: self.is_suspended,
        })
    }
}

#[async_trait]
impl DispatcherGateway for ScriptedDispatcher {
    async fn submit_job(
        &self,
        request: pb::SubmitJobRequest,
    ) -> GatewayResult<pb::SubmitJobResponse> {
        let mut submissions = self.submissions.lock();
        let key = |request: &pb::SubmitJobRequest| {
            let job_id = request.graph.as_ref().map(|graph| graph.job_id.clone());
            (job_id.unwrap_or_default(), request.submission_token.clone())
        };
        let submitted = key(&request);
        let repeated = submissions.iter().any(|earlier| key(earlier) == submitted);
        let (job_id, _) = submitted;
        submissions.push(request);
        self.script()?;
        Ok(pb::SubmitJobResponse { job_id, repeated })
    }

    async fn tell_term_time(&self, _: pb::TermTimeRequest) -> GatewayResult<pb::TermTime> {
        Ok(term_time())
    }

    async fn cancel_job(&self, request: pb::CancelJobRequest) -> GatewayResult<pb::Ack> {
        self.script()?;
        let mut canceled = self.canceled.lock();
        canceled.push(request.job_id);
        Ok(pb::Ack {})
    }

    async fn stop_job(&self, request: pb::StopJobRequest) -> GatewayResult<pb::Ack> {
        self.script()?;
        let mut stopped = self.stopped.lock();
        stopped.push(request.job_id);
        Ok(pb::Ack {})
    }

    async fn list_jobs(&self, request: pb::ListJobsRequest) -> GatewayResult<pb::ListJobsResponse> {
        if self.is_frozen {
            std::future::pending::<()>().await;
        }
        self.read(request.consistent)?;
        Ok(pb::ListJobsResponse {
            jobs: self.jobs.lock().clone(),
            as_of: self.as_of(),
        })
    }

    async fn describe_job(&self, request: pb::DescribeJobRequest) -> GatewayResult<pb::JobDetails> {
        self.read(request.consistent)?;
        let jobs = self.jobs.lock();
        let found = jobs.iter().find(|job| job.job_id == request.job_id);
        let missing = || GatewayError::NotFound(format!("job {} is not known", request.job_id));
        Ok(pb::JobDetails {
            as_of: self.as_of(),
            ..found.cloned().ok_or_else(missing)?
        })
    }

    async fn describe_cluster(
        &self,
        request: pb::DescribeClusterRequest,
    ) -> GatewayResult<pb::ClusterOverview> {
        self.read(request.consistent)?;
        Ok(pb::ClusterOverview {
            task_managers: 2,
            slots_total: 8,
            slots_available: 3,
            jobs_running: 1,
            as_of: self.as_of(),
            ..pb::ClusterOverview::default()
        })
    }

    async fn list_task_managers(
        &self,
        request: pb::ListTaskManagersRequest,
    ) -> GatewayResult<pb::ListTaskManagersResponse> {
        self.read(request.consistent)?;
        Ok(pb::ListTaskManagersResponse {
            task_managers: self.task_managers.clone(),
            as_of: self.as_of(),
            ..pb::ListTaskManagersResponse::default()
        })
    }

    async fn trigger_savepoint(
        &self,
        request: pb::TriggerSavepointRequest,
    ) -> GatewayResult<pb::Ack> {
        self.script()?;
        self.savepoints.lock().push(request.clone());
        let mut jobs = self.jobs.lock();
        let found = jobs.iter_mut().find(|job| job.job_id == request.job_id);
        let Some(job) = found else {
            return Err(GatewayError::NotFound("no such job".to_owned()));
        };
        if job.status().end().is_some() {
            return Err(GatewayError::Conflict("the job has ended".to_owned()));
        }
        let checkpoints = job.checkpoints.get_or_insert_default();
        let mut known = checkpoints.savepoints.iter();
        if !known.any(|it| it.trigger_id == request.trigger_id) {
            checkpoints.savepoints.push(pb::SavepointSummary {
                trigger_id: request.trigger_id,
                stops: request.stop,
                requested_at_ms: 1000,
                ..pb::SavepointSummary::default()
            });
        }
        Ok(pb::Ack {})
    }

    async fn dispose_savepoint(
        &self,
        request: pb::DisposeSavepointRequest,
    ) -> GatewayResult<pb::Ack> {
        self.script()?;
        match request.path.as_str() {
            "/missing" => Err(GatewayError::NotFound("there is no savepoint".to_owned())),
            "/needed" => Err(GatewayError::Conflict("job 7 needs it".to_owned())),
            _ => {
                self.disposed.lock().push(request.path);
                Ok(pb::Ack {})
            }
        }
    }

    async fn drain_task_manager(
        &self,
        request: pb::DrainTaskManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        self.script()?;
        let mut locations = self.task_managers.iter().flat_map(|info| &info.location);
        let is_there = |location: &pb::TaskManagerLocation| {
            let host = location.rpc_address.split(':').next();
            location.resource_id == request.resource_id || host == Some(&request.host)
        };
        if locations.any(is_there) {
            self.drains.lock().push(request);
            return Ok(pb::Ack {});
        }
        Err(GatewayError::NotFound("no TaskManager".to_owned()))
    }

    async fn resolve_quarantine(
        &self,
        request: pb::ResolveQuarantineRequest,
    ) -> GatewayResult<pb::Ack> {
        self.script()?;
        let mut jobs = self.jobs.lock();
        let found = jobs.iter_mut().find(|job| job.job_id == request.job_id);
        match found {
            None => Err(GatewayError::NotFound("no such job".to_owned())),
            Some(job) if job.quarantine.is_empty() => {
                Err(GatewayError::Conflict("not quarantined".to_owned()))
            }
            Some(job) => {
                job.quarantine.clear();
                job.set_status(match request.action() {
                    pb::QuarantineAction::Delete => pb::JobStatus::Canceled,
                    pb::QuarantineAction::Retry | pb::QuarantineAction::Unspecified => {
                        pb::JobStatus::Running
                    }
                });
                Ok(pb::Ack {})
            }
        }
    }
}

type Leader = Option<Arc<ScriptedDispatcher>>;

/// A cluster whose leader the test chooses.
#[derive(Debug, Clone)]
struct ScriptedView {
    leader: watch::Receiver<Leader>,
    known: watch::Sender<LeaderView>,
    role: Arc<Mutex<Role>>,
    uploads: Option<BlobStore>,
}

/// The process's view of a leader in this epoch.
fn known(leader: &Leader, epoch: u64) -> LeaderView {
    let process = leader.is_some().then(|| ProcessId::new("jm-1"));
    known_of(process.as_ref(), epoch)
}

fn known_of(process: Option<&ProcessId>, epoch: u64) -> LeaderView {
    let epoch = Epoch::new(epoch);
    let information = |process: &ProcessId| LeaderInformation {
        epoch,
        process: process.clone(),
        addresses: BTreeMap::from([("rest".to_owned(), "jm:10".to_owned())]),
        since_ms: 1000,
    };
    LeaderView {
        incarnation: None,
        epoch,
        holder: None,
        store: None,
        leader: process.map(information),
    }
}

#[async_trait]
impl ClusterView for ScriptedView {
    async fn dispatcher(&self, timeout: Duration) -> GatewayResult<Arc<dyn DispatcherGateway>> {
        let mut leader = self.leader.clone();
        let found = tokio::time::timeout(timeout, leader.wait_for(Option::is_some)).await;
        match found {
            Ok(Ok(leader)) => Ok(leader.clone().expect("waited for")),
            _ => Err(GatewayError::NotYet("leader election".to_owned())),
        }
    }

    async fn ha_status(&self, _: Duration) -> HaStatus {
        let addresses = |port: u16| {
            BTreeMap::from([
                ("rest".to_owned(), format!("jm:{port}")),
                ("rpc".to_owned(), format!("jm:{}", port + 1)),
            ])
        };
        let member = |name: &str, port| Member {
            process: ProcessId::new(name),
            incarnation: "first".to_owned(),
            addresses: addresses(port),
            reads_format: 1,
            version: "0.1.0".to_owned(),
            cache: None,
            host: None,
        };
        HaStatus {
            store: "etcd",
            process: ProcessId::new("jm-2"),
            role: self.role(),
            leader: self.leader(),
            term: TermStatus::of_view(&self.leader()),
            members: Ok(vec![member("jm-1", 10), member("jm-2", 20)]),
            cache: CacheStatus::default(),
            health: Ok(StoreHealth::default()),
            unreadable: None,
        }
    }

    async fn history(&self, _: Duration) -> Result<Vec<HistoryRecord>, String> {
        let first = HistoryRecord {
            epoch: 6,
            process: "jm-2".to_owned(),
            since_ms: 400,
            ..HistoryRecord::default()
        };
        let second = HistoryRecord {
            epoch: 7,
            process: "jm-1".to_owned(),
            since_ms: 1000,
            jobs: 3,
            phases: Phases {
                confirmed_ms: 9.5,
                ..Phases::default()
            },
            takeover: Some(TakeoverRecord {
                former_epoch: 6,
                former: Some("jm-2".to_owned()),
                former_incarnation: None,
                former_address: None,
                detection: Detection::ProcessGone,
                detected_at_ms: 990,
                noticed_after_ms: None,
                deposed_after_ms: 2.0,
                false_alarm: true,
            }),
            tasks_adopted: Some(12),
            tasks_restarted: Some(0),
            ..HistoryRecord::default()
        };
        Ok(vec![first, second])
    }

    fn process(&self) -> ProcessId {
        ProcessId::new("jm-2")
    }

    fn pipeline_stats(&self) -> Option<PipelineStats> {
        let leads = self.role() == Role::Leading;
        leads.then_some(PipelineStats {
            commits: 5,
            transactions: 4,
            busy: Duration::from_millis(500),
        })
    }

    async fn transfer(&self, to: Option<&ProcessId>) -> GatewayResult<Epoch> {
        // This one dies when it has taken over.
        let leader = match to.is_some_and(|to| to.as_str() == "jm-dies") {
            true => known_of(Some(&ProcessId::new("jm-3")), 9),
            false => known_of(to, 8),
        };
        self.known.send_replace(leader);
        Ok(Epoch::new(8))
    }

    fn uploads(&self) -> GatewayResult<BlobStore> {
        let uploads = self.uploads.clone();
        uploads.ok_or_else(|| GatewayError::Conflict("it takes no uploads".to_owned()))
    }

    fn cache(&self) -> CacheStatus {
        CacheStatus::default()
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim {
            sender: "TaskManager tm-9 at worker:5000".to_owned(),
            epoch: Epoch::new(1007),
            found: Epoch::new(7),
            at_ms: 1234,
        }]
    }

    fn missing_permissions(&self) -> Option<Vec<String>> {
        Some(vec!["to write members".to_owned()])
    }

    fn role(&self) -> Role {
        *self.role.lock()
    }

    fn leader(&self) -> LeaderView {
        self.known.borrow().clone()
    }

    fn leaders(&self) -> watch::Receiver<LeaderView> {
        self.known.subscribe()
    }
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

/// A server; stops when dropped.
pub(super) struct Served {
    pub(super) address: String,
    leader: watch::Sender<Leader>,
    known: watch::Sender<LeaderView>,
    role: Arc<Mutex<Role>>,
    pub(super) stop: CancellationToken,
    pub(super) serving: tokio::task::JoinHandle<()>,
    _stop: DropGuard,
}

impl Served {
    pub(super) async fn over(leader: Leader, options: RestServerOptions) -> Served {
        Served::with_uploads(leader, options, None).await
    }

    /// A server over a cluster that stores uploads there.
    pub(super) async fn with_uploads(
        leader: Leader,
        options: RestServerOptions,
        uploads: Option<BlobStore>,
    ) -> Served {
        let known = watch::Sender::new(known(&leader, 7));
        let (sender, receiver) = watch::channel(leader);
        let role = Arc::new(Mutex::new(Role::Standby));
        let view = ScriptedView {
            leader: receiver,
            known: known.clone(),
            role: role.clone(),
            uploads,
        };
        let listener = Listener::bind("127.0.0.1:0", Port::Rest).await;
        let listener = listener.expect("loopback has free ports");
        let address = listener.local_addr().expect("it is bound").to_string();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, view, options, stop.clone()));
        Served {
            address,
            leader: sender,
            known,
            role,
            stop: stop.clone(),
            serving,
            _stop: stop.drop_guard(),
        }
    }

    /// A server over a leader, with default options.
    pub(super) async fn leading(leader: ScriptedDispatcher) -> (Served, Arc<ScriptedDispatcher>) {
        let leader = Arc::new(leader);
        let served = Served::over(Some(leader.clone()), RestServerOptions::default()).await;
        (served, leader)
    }

    pub(super) fn set_leader(&self, leader: Leader) {
        self.known.send_replace(known(&leader, 7));
        self.leader.send_replace(leader);
    }

    /// Confirms a leader of a younger epoch.
    pub(super) fn set_successor(&self, leader: Arc<ScriptedDispatcher>) {
        let leader = Some(leader);
        let view = known(&leader, 8);
        self.leader.send_replace(leader);
        self.known.send_replace(view);
    }

    /// Waits until a request waits for a leader: it holds another receiver besides the server's own.
    pub(super) async fn until_a_request_waits(&self) {
        let waiting = async {
            while self.leader.receiver_count() < 2 {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
        waited.expect("a request waits for a leader");
    }

    /// Waits until a request has reached this leader.
    pub(super) async fn until_called(&self, leader: &Arc<ScriptedDispatcher>) {
        // References of the test, of the server's view, and of the request.
        let asked = async {
            while Arc::strong_count(leader) < 3 {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(10), asked).await;
        waited.expect("a request reaches the leader");
    }

    /// Makes this process the known leader.
    pub(super) fn lead(&self) {
        self.set_role(Role::Leading);
        self.known
            .send_replace(known_of(Some(&ProcessId::new("jm-2")), 7));
    }

    pub(super) fn set_role(&self, role: Role) {
        *self.role.lock() = role;
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[], Bytes::new()).await
    }

    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("a request");
        let response = client.request(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            // Metrics are not JSON.
            body: serde_json::from_slice(&body)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned())),
        }
    }
}

/// Options of a server with short timeouts.
pub(super) fn short_timeouts() -> RestServerOptions {
    RestServerOptions {
        await_leader_timeout: Duration::from_millis(100),
        ..RestServerOptions::default()
    }
}
