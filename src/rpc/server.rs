//! The RPC server of a process: tonic services that forward each message to the component that is responsible
//! at this moment. The process owns the server, which outlives terms. While no component is responsible, the error of
//! [`Components`] is the answer.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_gateway::{
    Components, GatewayError, GatewayResult, JobMasterGateway, JobMastersGateway as _,
    JobMastersOf, TaskExecutorGateway,
};
use tanist_net::http::{self, Protocol};
use tanist_net::{BodyShare, Listener};
use tanist_proto::{JobMessage, v1 as pb};
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
const MAX_CANCELLED_CALLS: usize = 1024;

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
            resets: MAX_CANCELLED_CALLS,
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
        use pb::job_masters_server::JobMastersServer;
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
                    JobMasterServer::from_arc(service.clone())
                        .max_decoding_message_size(limit)
                        .max_encoding_message_size(limit),
                )
                .add_service(
                    JobMastersServer::from_arc(service)
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
    message: &impl JobMessage,
) -> GatewayResult<Arc<dyn JobMasterGateway>> {
    let job = message
        .job_id()
        .parse()
        .map_err(|error| GatewayError::Invalid(format!("{error}")))?;
    components.job_master(job).await
}

/// Defines a tonic service whose methods forward to the gateway that `$find` returns for the message.
macro_rules! forward {
    (
        $service:path, $own:ty, |$components:ident, $message:ident| $find:expr;
        $($(#[$doc:meta])* $variant:ident $method:ident($request:ident) -> $answer:ident;)*
    ) => {
        #[async_trait]
        impl $service for Forward<$own> {
            $(
                async fn $method(
                    &self,
                    request: Request<pb::$request>,
                ) -> Result<Response<pb::$answer>, Status> {
                    let message = request.into_inner();
                    let ($components, $message) = (&self.0, &message);
                    let gateway = $find.map_err(to_status)?;
                    gateway.$method(message).await.map(Response::new).map_err(to_status)
                }
            )*
        }
    };
}

type Shared = Arc<dyn Components>;

tanist_proto::dispatcher_methods! { forward! {
    pb::dispatcher_server::Dispatcher, Shared, |components, _message| components.dispatcher();
} }
tanist_proto::resource_manager_methods! { forward! {
    pb::resource_manager_server::ResourceManager, Shared,
    |components, _message| components.resource_manager();
} }
tanist_proto::job_master_methods! { forward! {
    pb::job_master_server::JobMaster, Shared,
    |components, message| job_master_of(components, message).await;
} }
tanist_proto::job_masters_methods! { forward! {
    pb::job_masters_server::JobMasters, Shared,
    |components, _message| GatewayResult::Ok(JobMastersOf(components.clone()));
} }
tanist_proto::task_executor_methods! { forward! {
    pb::task_executor_server::TaskExecutor, Arc<dyn TaskExecutorGateway>,
    |gateway, _message| GatewayResult::Ok(gateway);
} }
