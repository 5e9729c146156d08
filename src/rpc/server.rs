//! The RPC server of a process: tonic services that forward each message to the component that is responsible
//! at this moment.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_gateway::{
    Components, GatewayError, GatewayResult, JobMasterGateway, JobMastersGateway as _,
    JobMastersOf, TaskExecutorGateway,
};
use tanist_net::http::{self, Protocol};
use tanist_net::{BodyShare, Listener};
use tanist_proto::v1 as pb;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::client::RpcOptions;
use super::peers::witness::ProbingWitness;
use super::status::to_status;

/// The services of a process.
#[derive(Debug, Clone)]
pub enum Services {
    /// Services of a JobManager.
    JobManager(Arc<dyn Components>),
    /// Services of a TaskManager, including the witness for processes that lost the leader.
    TaskManager(Arc<dyn TaskExecutorGateway>),
}

/// Number of concurrent calls on one connection. A leader calls each TaskManager for all its jobs over one connection.
const CONCURRENT_CALLS: u32 = 4096;
/// Number of calls that may be cancelled by their caller before they are handled, as by a leader that was
/// frozen. With more, the connection ends, and all other calls on it fail.
const GIVEN_UP: usize = 1024;

/// An RPC server with a bound port.
#[derive(Debug)]
pub struct RpcServer {
    listener: Listener,
    options: RpcOptions,
    bodies: BodyShare,
}

impl RpcServer {
    /// Takes a bound listener, so that its address can be published before anything is served.
    pub fn new(listener: Listener, options: RpcOptions) -> RpcServer {
        let bodies = BodyShare::of_process(listener.port(), options.max_message_size);
        RpcServer {
            listener,
            options,
            bodies,
        }
    }

    /// Uses a body memory limit of its own, as in a separate process.
    #[cfg(feature = "simulation")]
    pub fn with_own_memory(mut self) -> RpcServer {
        self.bodies =
            BodyShare::of_another_process(self.listener.port(), self.options.max_message_size);
        self
    }

    /// Returns the address that was actually bound.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, which drops calls in progress: their callers see a broken connection at once.
    pub async fn serve(self, services: Services, stop: CancellationToken) {
        let limit = self.options.max_message_size;
        let protocol = Protocol::Http2 {
            streams: CONCURRENT_CALLS,
            resets: GIVEN_UP,
        };
        let never = CancellationToken::new();
        let routes = services.routes(limit);
        let serving = http::serve(self.listener, routes, protocol, self.bodies, never);
        stop.run_until_cancelled(serving).await;
    }
}

impl Services {
    fn routes(self, limit: usize) -> Routes {
        use pb::dispatcher_server::DispatcherServer;
        use pb::job_master_server::JobMasterServer;
        use pb::resource_manager_server::ResourceManagerServer;
        use pb::task_executor_server::TaskExecutorServer;
        match self {
            Services::JobManager(components) => {
                let service = Arc::new(Forward(components));
                Routes::new(
                    DispatcherServer::from_arc(service.clone())
                        .max_decoding_message_size(limit)
                        .max_encoding_message_size(limit),
                )
                .add_service(
                    ResourceManagerServer::from_arc(service.clone())
                        .max_decoding_message_size(limit)
                        .max_encoding_message_size(limit),
                )
                .add_service(
                    JobMasterServer::from_arc(service)
                        .max_decoding_message_size(limit)
                        .max_encoding_message_size(limit),
                )
            }
            Services::TaskManager(gateway) => Routes::new(
                TaskExecutorServer::new(Forward(gateway))
                    .max_decoding_message_size(limit)
                    .max_encoding_message_size(limit),
            )
            .add_service(pb::witness_server::WitnessServer::new(ProbingWitness)),
        }
    }
}

/// Forwards messages.
struct Forward<T>(T);

/// Returns the JobMaster of the job that a message names.
async fn job_master_of(
    components: &Arc<dyn Components>,
    job_id: &str,
) -> GatewayResult<Arc<dyn JobMasterGateway>> {
    let job = job_id
        .parse()
        .map_err(|error| GatewayError::Invalid(format!("{error}")))?;
    components.job_master(job).await
}

/// Returns the id of a message's job; empty if it names none.
fn job_in(scope: Option<&pb::JobScope>) -> &str {
    scope.map_or("", |scope| scope.job_id.as_str())
}

/// Defines a tonic service whose methods forward to the gateway that `$find` returns for the message.
macro_rules! forward {
    ($service:path, $own:ty, |$components:ident, $message:ident| { $($method:ident: $request:ident => $answer:ident, $find:expr;)* }) => {
        #[async_trait]
        impl $service for Forward<$own> {
            $(
                async fn $method(
                    &self,
                    request: Request<pb::$request>,
                ) -> Result<Response<pb::$answer>, Status> {
                    let $message = request.into_inner();
                    let $components = &self.0;
                    let gateway = $find.map_err(to_status)?;
                    gateway.$method($message).await.map(Response::new).map_err(to_status)
                }
            )*
        }
    };
}

type Shared = Arc<dyn Components>;

forward!(pb::dispatcher_server::Dispatcher, Shared, |components, message| {
    submit_job: SubmitJobRequest => SubmitJobResponse, components.dispatcher();
    tell_term_time: TermTimeRequest => TermTime, components.dispatcher();
    cancel_job: CancelJobRequest => Ack, components.dispatcher();
    stop_job: StopJobRequest => Ack, components.dispatcher();
    list_jobs: ListJobsRequest => ListJobsResponse, components.dispatcher();
    describe_job: DescribeJobRequest => JobDetails, components.dispatcher();
    describe_cluster: DescribeClusterRequest => ClusterOverview, components.dispatcher();
    list_task_managers: ListTaskManagersRequest => ListTaskManagersResponse, components.dispatcher();
    drain_task_manager: DrainTaskManagerRequest => Ack, components.dispatcher();
    resolve_quarantine: ResolveQuarantineRequest => Ack, components.dispatcher();
});

forward!(pb::resource_manager_server::ResourceManager, Shared, |components, message| {
    register_task_executor: RegisterTaskExecutorRequest => RegistrationResponse, components.resource_manager();
    notify_slots_available: NotifySlotsAvailableRequest => Ack, components.resource_manager();
    disconnect_task_executor: DisconnectTaskExecutorRequest => Ack, components.resource_manager();
});

forward!(pb::job_master_server::JobMaster, Shared, |components, message| {
    register_task_manager: RegisterTaskManagerRequest => RegisterTaskManagerResponse,
        job_master_of(components, &message.job_id).await;
    register_task_managers: RegisterTaskManagersRequest => RegisterTaskManagersResponse,
        Ok::<_, GatewayError>(JobMastersOf(components.clone()));
    offer_slots: OfferSlotsRequest => OfferSlotsResponse,
        job_master_of(components, job_in(message.job.as_ref())).await;
    update_task_execution_states: UpdateTaskExecutionStatesRequest => UpdateTaskExecutionStatesResponse,
        job_master_of(components, job_in(message.job.as_ref())).await;
    fail_slot: FailSlotRequest => Ack,
        job_master_of(components, job_in(message.job.as_ref())).await;
    ask_coordinator: AskCoordinatorRequest => AskCoordinatorResponse,
        job_master_of(components, job_in(message.job.as_ref())).await;
    disconnect_task_manager: DisconnectTaskManagerRequest => Ack,
        job_master_of(components, job_in(message.job.as_ref())).await;
});

forward!(pb::task_executor_server::TaskExecutor, Arc<dyn TaskExecutorGateway>, |gateway, message| {
    request_slot: RequestSlotRequest => RequestSlotResponse, GatewayResult::Ok(gateway);
    free_slots: FreeSlotsRequest => Ack, GatewayResult::Ok(gateway);
    submit_tasks: SubmitTasksRequest => SubmitTasksResponse, GatewayResult::Ok(gateway);
    cancel_tasks: CancelTasksRequest => Ack, GatewayResult::Ok(gateway);
    acknowledge_executions: AcknowledgeExecutionsRequest => Ack, GatewayResult::Ok(gateway);
    heartbeat_from_resource_manager: HeartbeatFromResourceManagerRequest => HeartbeatFromResourceManagerResponse,
        GatewayResult::Ok(gateway);
    heartbeat_from_job_master: HeartbeatFromJobMasterRequest => HeartbeatFromJobMasterResponse,
        GatewayResult::Ok(gateway);
    disconnect_job_master: DisconnectJobMasterRequest => Ack, GatewayResult::Ok(gateway);
    disconnect_resource_manager: DisconnectResourceManagerRequest => Ack, GatewayResult::Ok(gateway);
    announce_leader: AnnounceLeaderRequest => AnnounceLeaderResponse, GatewayResult::Ok(gateway);
});
