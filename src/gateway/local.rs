//! A [`Connector`] within one process: addresses lead to handles that were put there, with faults that can be switched on.
//!
//! For a whole cluster in one process and for tests. Nothing is encoded. The gateways look their target up at each call, so
//! that a component which takes another's place at an address is found by those who connected earlier.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{
    Connector, DispatcherGateway, GatewayError, GatewayResult, JobMasterGateway,
    ResourceManagerGateway, TaskExecutorGateway,
};

/// What is wrong with the way to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Calls are refused at once and not handled.
    Unreachable,
    /// Calls are handled, their answers are lost at once.
    LoseReplies,
    /// Calls are not handled and never answered: the caller's deadline has to end them.
    Silent,
}

/// Gateways by address within this process. Cheap to clone; all clones share the same addresses.
#[derive(Debug, Clone, Default)]
pub struct LocalConnector {
    hosts: Arc<Mutex<BTreeMap<String, Host>>>,
}

/// What listens at one address.
#[derive(Debug, Default)]
struct Host {
    fault: Fault,
    dispatcher: Option<Arc<dyn DispatcherGateway>>,
    resource_manager: Option<Arc<dyn ResourceManagerGateway>>,
    job_masters: BTreeMap<JobId, Arc<dyn JobMasterGateway>>,
    task_executor: Option<Arc<dyn TaskExecutorGateway>>,
}

impl LocalConnector {
    /// Puts a Dispatcher at `address`.
    pub fn put_dispatcher(&self, address: &str, gateway: Arc<dyn DispatcherGateway>) {
        self.host(address, |host| host.dispatcher = Some(gateway));
    }

    /// Puts a ResourceManager at `address`.
    pub fn put_resource_manager(&self, address: &str, gateway: Arc<dyn ResourceManagerGateway>) {
        self.host(address, |host| host.resource_manager = Some(gateway));
    }

    /// Puts the JobMaster of `job` at `address`.
    pub fn put_job_master(&self, address: &str, job: JobId, gateway: Arc<dyn JobMasterGateway>) {
        self.host(address, |host| host.job_masters.insert(job, gateway));
    }

    /// Takes the JobMaster of `job` away: who asks for it is told that there is no such job.
    pub fn remove_job_master(&self, address: &str, job: JobId) {
        self.host(address, |host| host.job_masters.remove(&job));
    }

    /// Puts a TaskExecutor at `address`.
    pub fn put_task_executor(&self, address: &str, gateway: Arc<dyn TaskExecutorGateway>) {
        self.host(address, |host| host.task_executor = Some(gateway));
    }

    /// Switches a fault on the way to `address` on or off.
    pub fn set_fault(&self, address: &str, fault: Fault) {
        self.host(address, |host| host.fault = fault);
    }

    /// Removes all that listens at `address`, as the end of its process does.
    pub fn remove(&self, address: &str) {
        self.lock().remove(address);
    }

    fn host<T>(&self, address: &str, change: impl FnOnce(&mut Host) -> T) -> T {
        change(self.lock().entry(address.to_owned()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Host>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn way(&self, address: &str) -> Arc<Way> {
        Arc::new(Way {
            connector: self.clone(),
            address: address.to_owned(),
        })
    }
}

impl Connector for LocalConnector {
    fn dispatcher(&self, address: &str) -> Arc<dyn DispatcherGateway> {
        self.way(address)
    }

    fn resource_manager(&self, address: &str) -> Arc<dyn ResourceManagerGateway> {
        self.way(address)
    }

    fn job_master(&self, address: &str, job: JobId) -> Arc<dyn JobMasterGateway> {
        Arc::new(WayToJob {
            way: self.way(address),
            job,
        })
    }

    fn task_executor(&self, address: &str) -> Arc<dyn TaskExecutorGateway> {
        self.way(address)
    }
}

/// The way to an address.
#[derive(Debug)]
struct Way {
    connector: LocalConnector,
    address: String,
}

/// The way to the JobMaster of one job.
#[derive(Debug)]
struct WayToJob {
    way: Arc<Way>,
    job: JobId,
}

impl Way {
    async fn call<G: ?Sized, T, F>(
        &self,
        what: &str,
        find: impl FnOnce(&Host) -> Result<Arc<G>, GatewayError>,
        ask: impl FnOnce(Arc<G>) -> F,
    ) -> GatewayResult<T>
    where
        F: Future<Output = GatewayResult<T>>,
    {
        let target = format!("{what} at {}", self.address);
        let (fault, gateway) = match self.connector.lock().get(&self.address) {
            Some(host) => (host.fault, find(host)),
            None => (Fault::Unreachable, Err(GatewayError::gone(&target))),
        };
        match fault {
            Fault::None => ask(gateway?).await,
            Fault::Unreachable => Err(GatewayError::Unreachable {
                target,
                reason: "the way is cut".to_owned(),
            }),
            Fault::LoseReplies => {
                let _lost = ask(gateway?).await;
                Err(GatewayError::NoAnswer {
                    target,
                    reason: "the answer was lost".to_owned(),
                })
            }
            Fault::Silent => std::future::pending().await,
        }
    }
}

/// Forwards each named method of a gateway's trait.
macro_rules! forward {
    ($way:expr, $what:literal, $find:expr, $method:ident, $request:ident) => {
        $way.call($what, $find, |gateway| async move {
            gateway.$method($request).await
        })
        .await
    };
}

macro_rules! forward_all {
    ($trait:ident, $what:literal, $field:ident: $($method:ident($request:ident) -> $answer:ident;)*) => {
        #[async_trait]
        impl $trait for Way {
            $(async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer> {
                let find = |host: &Host| host.$field.clone().ok_or_else(|| GatewayError::gone($what));
                forward!(self, $what, find, $method, request)
            })*
        }
    };
}

forward_all! { DispatcherGateway, "Dispatcher", dispatcher:
    submit_job(SubmitJobRequest) -> SubmitJobResponse;
    cancel_job(CancelJobRequest) -> Ack;
    list_jobs(ListJobsRequest) -> ListJobsResponse;
    describe_job(DescribeJobRequest) -> JobDetails;
    describe_cluster(DescribeClusterRequest) -> ClusterOverview;
    list_task_managers(ListTaskManagersRequest) -> ListTaskManagersResponse;
}

forward_all! { ResourceManagerGateway, "ResourceManager", resource_manager:
    register_task_executor(RegisterTaskExecutorRequest) -> RegistrationResponse;
    notify_slots_available(NotifySlotsAvailableRequest) -> Ack;
    disconnect_task_executor(DisconnectTaskExecutorRequest) -> Ack;
}

forward_all! { TaskExecutorGateway, "TaskExecutor", task_executor:
    request_slot(RequestSlotRequest) -> RequestSlotResponse;
    free_slots(FreeSlotsRequest) -> Ack;
    submit_tasks(SubmitTasksRequest) -> SubmitTasksResponse;
    cancel_tasks(CancelTasksRequest) -> Ack;
    acknowledge_executions(AcknowledgeExecutionsRequest) -> Ack;
    heartbeat_from_resource_manager(HeartbeatFromResourceManagerRequest) -> HeartbeatFromResourceManagerResponse;
    heartbeat_from_job_master(HeartbeatFromJobMasterRequest) -> HeartbeatFromJobMasterResponse;
    disconnect_job_master(DisconnectJobMasterRequest) -> Ack;
    disconnect_resource_manager(DisconnectResourceManagerRequest) -> Ack;
}

macro_rules! forward_to_job {
    ($($method:ident($request:ident) -> $answer:ident;)*) => {
        #[async_trait]
        impl JobMasterGateway for WayToJob {
            $(async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer> {
                let unknown = || GatewayError::NotFound(format!("no such job: {}", self.job));
                let find = |host: &Host| host.job_masters.get(&self.job).cloned().ok_or_else(unknown);
                forward!(self.way, "JobMaster", find, $method, request)
            })*
        }
    };
}

forward_to_job! {
    register_task_manager(RegisterTaskManagerRequest) -> RegisterTaskManagerResponse;
    offer_slots(OfferSlotsRequest) -> OfferSlotsResponse;
    update_task_execution_states(UpdateTaskExecutionStatesRequest) -> UpdateTaskExecutionStatesResponse;
    fail_slot(FailSlotRequest) -> Ack;
    disconnect_task_manager(DisconnectTaskManagerRequest) -> Ack;
}
