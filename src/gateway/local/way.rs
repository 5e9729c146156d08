//! Delivery of a call within one process: applies its delays and faults, and finds its target.
//!
//! The target is looked up on each call, so a component that replaces another one at an address is also found
//! by callers that connected earlier. Faults are not decided here, but by [`LocalConnector::set_fault`] and
//! [`NetworkModel`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{Call, Delivery, Fault, Host, LocalConnector, NetworkModel};
use crate::blobs::{BlobGateway, BlobStream};
use crate::{
    Components, DispatcherGateway, GatewayError, GatewayResult, JobMasterGateway,
    JobMastersGateway, JobMastersOf, ResourceManagerGateway, TaskExecutorGateway,
};

/// The connection to an address.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) connector: LocalConnector,
    pub(super) address: String,
}

/// The connection to the JobMaster of one job.
#[derive(Debug)]
pub(super) struct WayToJob {
    pub(super) way: Arc<Way>,
    pub(super) job: JobId,
}

/// What a call found at its address.
enum Found<G: ?Sized> {
    Gateway(Arc<G>),
    /// The components of a JobManager, which return the gateway, as for a server's services.
    Components(Arc<dyn Components>),
}

impl Way {
    fn network_model(&self) -> Option<Arc<dyn NetworkModel>> {
        self.connector.network.lock().network_model.clone()
    }

    fn named(&self, method: &'static str) -> Call<'_> {
        Call {
            from: self.connector.host.as_deref(),
            to: &self.address,
            method,
        }
    }

    /// Starts a call: asks the network model for its delivery.
    fn leave(&self, method: &'static str) -> Delivery {
        let delivery = self
            .network_model()
            .map(|network_model| network_model.leave(&self.named(method)));
        delivery.unwrap_or_default()
    }

    /// Returns the connection for a duplicate, once that arrives. The sender may be gone by then.
    fn duplicate(
        &self,
        method: &'static str,
        delivery: &Delivery,
    ) -> Option<impl Future<Output = Option<Way>> + Send + 'static> {
        let late = delivery.duplicate?;
        let way = Way {
            connector: LocalConnector {
                network: self.connector.network.clone(),
                host: None,
            },
            address: self.address.clone(),
        };
        Some(async move {
            pass(late).await;
            let arrives = |network_model: Arc<dyn NetworkModel>| {
                network_model.delivers_late(&way.named(method))
            };
            way.network_model().is_none_or(arrives).then_some(way)
        })
    }

    async fn call<G: ?Sized, T, L, F>(
        &self,
        what: &str,
        method: &'static str,
        delivery: Delivery,
        find: impl FnOnce(&Host) -> GatewayResult<Found<G>>,
        look_up: impl FnOnce(Arc<dyn Components>) -> L,
        ask: impl FnOnce(Arc<G>) -> F,
    ) -> GatewayResult<T>
    where
        L: Future<Output = GatewayResult<Arc<G>>>,
        F: Future<Output = GatewayResult<T>>,
    {
        let target = format!("{what} at {}", self.address);
        let call = self.named(method);
        let network_model = self.network_model();
        pass(delivery.there).await;
        held_up(network_model.as_ref(), &call).await;
        let (fault, found) = match self.connector.network.lock().hosts.get(&self.address) {
            Some(host) => (host.fault, find(host)),
            None => (Fault::Unreachable, Err(GatewayError::gone(&target))),
        };
        let answer = match worse(fault, delivery.fault) {
            Fault::None => handle(found?, look_up, ask).await,
            Fault::Unreachable => Err(GatewayError::Unreachable {
                target,
                reason: "the way is cut".to_owned(),
            }),
            Fault::LoseReplies => {
                let _lost = handle(found?, look_up, ask).await;
                Err(GatewayError::NoAnswer {
                    target,
                    reason: "the answer was lost".to_owned(),
                })
            }
            Fault::Silent => std::future::pending().await,
        };
        pass(delivery.back).await;
        held_up(network_model.as_ref(), &call).await;
        if network_model.is_some_and(|network_model| !network_model.arrive(&call)) {
            return std::future::pending().await;
        }
        answer
    }
}

async fn handle<G: ?Sized, T, L, F>(
    found: Found<G>,
    look_up: impl FnOnce(Arc<dyn Components>) -> L,
    ask: impl FnOnce(Arc<G>) -> F,
) -> GatewayResult<T>
where
    L: Future<Output = GatewayResult<Arc<G>>>,
    F: Future<Output = GatewayResult<T>>,
{
    let gateway = match found {
        Found::Gateway(gateway) => gateway,
        Found::Components(components) => look_up(components).await?,
    };
    ask(gateway).await
}

/// Returns the more severe of two faults.
fn worse(one: Fault, other: Fault) -> Fault {
    let rank = |fault: Fault| match fault {
        Fault::None => 0,
        Fault::LoseReplies => 1,
        Fault::Unreachable => 2,
        Fault::Silent => 3,
    };
    if rank(one) >= rank(other) { one } else { other }
}

async fn pass(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

async fn held_up(network_model: Option<&Arc<dyn NetworkModel>>, call: &Call<'_>) {
    let Some(network_model) = network_model else {
        return;
    };
    loop {
        let time = network_model.hold(call);
        if time.is_zero() {
            return;
        }
        pass(time).await;
    }
}

macro_rules! forward_all {
    ($trait:ident, $what:literal, $find:expr, $look_up:expr; $($method:ident($request:ident) -> $answer:ident;)*) => {
        #[async_trait]
        impl $trait for Way {
            $(async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer> {
                let method = stringify!($method);
                let call = move |way: Way, delivery: Delivery, request: pb::$request| async move {
                    let ask = |gateway: Arc<dyn $trait>| async move { gateway.$method(request).await };
                    way.call($what, method, delivery, $find, $look_up, ask).await
                };
                let delivery = self.leave(method);
                if let Some(duplicate) = self.duplicate(method, &delivery) {
                    let copy = request.clone();
                    tokio::spawn(async move {
                        if let Some(way) = duplicate.await {
                            drop(call(way, Delivery::default(), copy).await);
                        }
                    });
                }
                call(self.clone(), delivery, request).await
            })*
        }
    };
}

fn gone<G: ?Sized>(what: &str) -> GatewayResult<Found<G>> {
    Err(GatewayError::gone(what))
}

/// Lookup for gateways that are not looked up in components: they are registered or missing.
async fn none<G: ?Sized>(what: &str) -> GatewayResult<Arc<G>> {
    Err(GatewayError::gone(what))
}

forward_all! { DispatcherGateway, "Dispatcher",
    |host: &Host| match &host.components {
        Some(components) => Ok(Found::Components(components.clone())),
        None => gone("Dispatcher"),
    },
    |components| async move { components.dispatcher() };
    submit_job(SubmitJobRequest) -> SubmitJobResponse;
    tell_term_time(TermTimeRequest) -> TermTime;
    cancel_job(CancelJobRequest) -> Ack;
    stop_job(StopJobRequest) -> Ack;
    list_jobs(ListJobsRequest) -> ListJobsResponse;
    describe_job(DescribeJobRequest) -> JobDetails;
    describe_cluster(DescribeClusterRequest) -> ClusterOverview;
    list_task_managers(ListTaskManagersRequest) -> ListTaskManagersResponse;
    drain_task_manager(DrainTaskManagerRequest) -> Ack;
    resolve_quarantine(ResolveQuarantineRequest) -> Ack;
}

forward_all! { ResourceManagerGateway, "ResourceManager",
    |host: &Host| match (&host.resource_manager, &host.components) {
        (Some(gateway), _) => Ok(Found::Gateway(gateway.clone())),
        (None, Some(components)) => Ok(Found::Components(components.clone())),
        (None, None) => gone("ResourceManager"),
    },
    |components| async move { components.resource_manager() };
    register_task_executor(RegisterTaskExecutorRequest) -> RegistrationResponse;
    notify_slots_available(NotifySlotsAvailableRequest) -> Ack;
    disconnect_task_executor(DisconnectTaskExecutorRequest) -> Ack;
}

forward_all! { JobMastersGateway, "JobMasters",
    |host: &Host| match &host.components {
        Some(components) => Ok(Found::Components(components.clone())),
        None => gone("JobMasters"),
    },
    |components| async move { Ok(Arc::new(JobMastersOf(components)) as Arc<dyn JobMastersGateway>) };
    register_task_managers(RegisterTaskManagersRequest) -> RegisterTaskManagersResponse;
}

forward_all! { TaskExecutorGateway, "TaskExecutor",
    |host: &Host| match &host.task_executor {
        Some(gateway) => Ok(Found::Gateway(gateway.clone())),
        None => gone("TaskExecutor"),
    },
    |_| none("TaskExecutor");
    request_slot(RequestSlotRequest) -> RequestSlotResponse;
    free_slots(FreeSlotsRequest) -> Ack;
    submit_tasks(SubmitTasksRequest) -> SubmitTasksResponse;
    cancel_tasks(CancelTasksRequest) -> Ack;
    acknowledge_executions(AcknowledgeExecutionsRequest) -> Ack;
    heartbeat_from_resource_manager(HeartbeatFromResourceManagerRequest) -> HeartbeatFromResourceManagerResponse;
    heartbeat_from_job_master(HeartbeatFromJobMasterRequest) -> HeartbeatFromJobMasterResponse;
    disconnect_job_master(DisconnectJobMasterRequest) -> Ack;
    disconnect_resource_manager(DisconnectResourceManagerRequest) -> Ack;
    announce_leader(AnnounceLeaderRequest) -> AnnounceLeaderResponse;
}

#[async_trait]
impl BlobGateway for Way {
    async fn fetch(&self, request: pb::FetchBlobRequest) -> GatewayResult<BlobStream> {
        let find = |host: &Host| match &host.blobs {
            Some(gateway) => Ok(Found::Gateway(gateway.clone())),
            None => gone("blob server"),
        };
        let look_up = |_| none("blob server");
        let ask = |gateway: Arc<dyn BlobGateway>| async move { gateway.fetch(request).await };
        let delivery = self.leave("fetch");
        self.call("blob server", "fetch", delivery, find, look_up, ask)
            .await
    }
}

macro_rules! forward_to_job {
    ($($method:ident($request:ident) -> $answer:ident;)*) => {
        #[async_trait]
        impl JobMasterGateway for WayToJob {
            $(async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer> {
                let (job, method) = (self.job, stringify!($method));
                let call = move |way: Way, delivery: Delivery, request: pb::$request| async move {
                    let find = |host: &Host| match (host.job_masters.get(&job), &host.components) {
                        (Some(gateway), _) => Ok(Found::Gateway(gateway.clone())),
                        (None, Some(components)) => Ok(Found::Components(components.clone())),
                        (None, None) => Err(GatewayError::NotFound(format!("no such job: {job}"))),
                    };
                    let look_up = |components: Arc<dyn Components>| async move { components.job_master(job).await };
                    let ask = |gateway: Arc<dyn JobMasterGateway>| async move { gateway.$method(request).await };
                    way.call("JobMaster", method, delivery, find, look_up, ask).await
                };
                let delivery = self.way.leave(method);
                if let Some(duplicate) = self.way.duplicate(method, &delivery) {
                    let copy = request.clone();
                    tokio::spawn(async move {
                        if let Some(way) = duplicate.await {
                            drop(call(way, Delivery::default(), copy).await);
                        }
                    });
                }
                call((*self.way).clone(), delivery, request).await
            })*
        }
    };
}

forward_to_job! {
    register_task_manager(RegisterTaskManagerRequest) -> RegisterTaskManagerResponse;
    offer_slots(OfferSlotsRequest) -> OfferSlotsResponse;
    update_task_execution_states(UpdateTaskExecutionStatesRequest) -> UpdateTaskExecutionStatesResponse;
    fail_slot(FailSlotRequest) -> Ack;
    ask_coordinator(AskCoordinatorRequest) -> AskCoordinatorResponse;
    disconnect_task_manager(DisconnectTaskManagerRequest) -> Ack;
}
