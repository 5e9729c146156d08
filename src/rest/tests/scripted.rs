//! A cluster that answers as it is told, a server over it, and a client.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tanist_ha::election::{Epoch, LeaderInformation, Member, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_ha::store::cache::CacheStatus;
use tanist_ha::store::health::StoreHealth;
use tanist_proto::v1 as pb;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::{ClusterView, RestServerOptions, serve};
use crate::gateway::{DispatcherGateway, GatewayError, GatewayResult};
use crate::process::{HaStatus, Role};

/// A Dispatcher that first gives the errors of its script, then answers.
#[derive(Debug, Default)]
pub(super) struct ScriptedDispatcher {
    pub(super) errors: Mutex<VecDeque<GatewayError>>,
    pub(super) jobs: Mutex<Vec<pb::JobDetails>>,
    pub(super) task_managers: Vec<pb::TaskManagerInfo>,
    pub(super) submissions: Mutex<Vec<pb::SubmitJobRequest>>,
    pub(super) canceled: Mutex<Vec<String>>,
}

impl ScriptedDispatcher {
    pub(super) fn failing(errors: impl IntoIterator<Item = GatewayError>) -> ScriptedDispatcher {
        ScriptedDispatcher {
            errors: Mutex::new(errors.into_iter().collect()),
            ..ScriptedDispatcher::default()
        }
    }

    fn script(&self) -> GatewayResult<()> {
        let mut errors = self.errors.lock().expect("nothing panics holding it");
        errors.pop_front().map_or(Ok(()), Err)
    }
}

const AS_OF: pb::ReadPosition = pb::ReadPosition {
    epoch: 7,
    change: 42,
};

#[async_trait]
impl DispatcherGateway for ScriptedDispatcher {
    async fn submit_job(
        &self,
        request: pb::SubmitJobRequest,
    ) -> GatewayResult<pb::SubmitJobResponse> {
        let mut submissions = self.submissions.lock().expect("nothing panics holding it");
        let token = request.submission_token.clone();
        let repeated = submissions
            .iter()
            .any(|earlier| earlier.submission_token == token);
        let job_id = request.graph.clone().unwrap_or_default().job_id;
        submissions.push(request);
        self.script()?;
        Ok(pb::SubmitJobResponse { job_id, repeated })
    }

    async fn cancel_job(&self, request: pb::CancelJobRequest) -> GatewayResult<pb::Ack> {
        self.script()?;
        let mut canceled = self.canceled.lock().expect("nothing panics holding it");
        canceled.push(request.job_id);
        Ok(pb::Ack {})
    }

    async fn list_jobs(&self, _: pb::ListJobsRequest) -> GatewayResult<pb::ListJobsResponse> {
        self.script()?;
        Ok(pb::ListJobsResponse {
            jobs: self.jobs.lock().expect("nothing panics holding it").clone(),
            as_of: Some(AS_OF),
        })
    }

    async fn describe_job(&self, request: pb::DescribeJobRequest) -> GatewayResult<pb::JobDetails> {
        self.script()?;
        let jobs = self.jobs.lock().expect("nothing panics holding it");
        let found = jobs.iter().find(|job| job.job_id == request.job_id);
        let missing = || GatewayError::NotFound(format!("job {} is not known", request.job_id));
        found.cloned().ok_or_else(missing)
    }

    async fn describe_cluster(
        &self,
        _: pb::DescribeClusterRequest,
    ) -> GatewayResult<pb::ClusterOverview> {
        self.script()?;
        Ok(pb::ClusterOverview {
            task_managers: 2,
            slots_total: 8,
            slots_available: 3,
            jobs_running: 1,
            as_of: Some(AS_OF),
            ..pb::ClusterOverview::default()
        })
    }

    async fn list_task_managers(
        &self,
        _: pb::ListTaskManagersRequest,
    ) -> GatewayResult<pb::ListTaskManagersResponse> {
        self.script()?;
        Ok(pb::ListTaskManagersResponse {
            task_managers: self.task_managers.clone(),
        })
    }

    async fn drain_task_manager(
        &self,
        request: pb::DrainTaskManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        self.script()?;
        let mut locations = self.task_managers.iter().flat_map(|info| &info.location);
        if locations.any(|location| location.resource_id == request.resource_id) {
            return Ok(pb::Ack {});
        }
        Err(GatewayError::NotFound("no TaskManager".to_owned()))
    }
}

type Leader = Option<Arc<ScriptedDispatcher>>;

/// A cluster whose leader the test chooses.
#[derive(Debug, Clone)]
struct ScriptedView {
    leader: watch::Receiver<Leader>,
    role: Arc<Mutex<Role>>,
}

#[async_trait]
impl ClusterView for ScriptedView {
    async fn dispatcher(&self, patience: Duration) -> GatewayResult<Arc<dyn DispatcherGateway>> {
        let mut leader = self.leader.clone();
        let found = tokio::time::timeout(patience, leader.wait_for(Option::is_some)).await;
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
            members: Ok(vec![member("jm-1", 10), member("jm-2", 20)]),
            cache: CacheStatus::default(),
            health: Ok(StoreHealth::default()),
        }
    }

    fn role(&self) -> Role {
        *self.role.lock().expect("nothing panics holding it")
    }

    fn leader(&self) -> LeaderView {
        let leader = LeaderInformation {
            epoch: Epoch::new(7),
            process: ProcessId::new("jm-1"),
            addresses: BTreeMap::from([("rest".to_owned(), "jm:10".to_owned())]),
            since_ms: 1000,
        };
        LeaderView {
            incarnation: None,
            epoch: Epoch::new(7),
            leader: self.leader.borrow().is_some().then_some(leader),
        }
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

/// A server; stops when dropped.
pub(super) struct Served {
    address: String,
    leader: watch::Sender<Leader>,
    role: Arc<Mutex<Role>>,
    pub(super) stop: CancellationToken,
    pub(super) serving: tokio::task::JoinHandle<()>,
    _stop: DropGuard,
}

impl Served {
    pub(super) async fn over(leader: Leader, options: RestServerOptions) -> Served {
        let (sender, receiver) = watch::channel(leader);
        let role = Arc::new(Mutex::new(Role::Standby));
        let view = ScriptedView {
            leader: receiver,
            role: role.clone(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("loopback has free ports");
        let address = listener.local_addr().expect("it is bound").to_string();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, view, options, stop.clone()));
        Served {
            address,
            leader: sender,
            role,
            stop: stop.clone(),
            serving,
            _stop: stop.drop_guard(),
        }
    }

    /// Over a leader, with default options.
    pub(super) async fn leading(leader: ScriptedDispatcher) -> (Served, Arc<ScriptedDispatcher>) {
        let leader = Arc::new(leader);
        let served = Served::over(Some(leader.clone()), RestServerOptions::default()).await;
        (served, leader)
    }

    pub(super) fn set_leader(&self, leader: Leader) {
        self.leader.send_replace(leader);
    }

    /// Until a request waits for a leader, holding a receiver besides the server's own.
    pub(super) async fn until_somebody_waits(&self) {
        let waiting = async {
            while self.leader.receiver_count() < 2 {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
        waited.expect("a request waits for a leader");
    }

    pub(super) fn set_role(&self, role: Role) {
        *self.role.lock().expect("nothing panics holding it") = role;
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
            body: serde_json::from_slice(&body).expect("JSON"),
        }
    }
}

/// Options of a server that gives up soon.
pub(super) fn impatient() -> RestServerOptions {
    RestServerOptions {
        await_leader_timeout: Duration::from_millis(100),
        ..RestServerOptions::default()
    }
}
