//! Gateways of components in other processes. A process has one [`TonicConnector`], which owns its connections; the
//! clients share them, one for each address.
//!
//! Every call has a deadline. Errors: `Unreachable` (refused, so not delivered), `NoAnswer` (it may have been handled),
//! or the error of the other side. The connector also reports connections that end.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_gateway::blobs::BlobGateway;
use tanist_gateway::{
    Connector, DispatcherGateway, ENDED_CONNECTIONS, GatewayError, GatewayResult, JobMasterGateway,
    JobMastersGateway, ResourceManagerGateway, TaskExecutorGateway,
};
use tanist_net::reporting_connector;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::broadcast;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use super::blobs::BlobClient;
use super::status::from_status;

/// Options of RPC, for both sides.
#[derive(Debug, Clone)]
pub struct RpcOptions {
    /// Deadline of every call (`rpc.ask.timeout`).
    pub ask_timeout: Duration,
    /// Maximum size of a message, in bytes; both sides refuse larger ones (`rpc.max-message-size`).
    pub max_message_size: usize,
    /// Timeout for connecting; the result is `NoAnswer`, as nothing has refused the connection.
    pub connect_timeout: Duration,
    /// Time without an acknowledgement from the other end after which a connection is broken. The next call
    /// opens another one.
    pub silence_timeout: Duration,
}

impl Default for RpcOptions {
    fn default() -> RpcOptions {
        RpcOptions {
            ask_timeout: Duration::from_secs(10),
            max_message_size: 16 << 20,
            connect_timeout: Duration::from_secs(3),
            silence_timeout: Duration::from_secs(12),
        }
    }
}

/// Number of connections from which unused ones are removed. Below it they are kept, so that repeated calls to
/// an address need not connect again.
const KEPT_CHANNELS: usize = 512;

/// Connections by address: opened on first use and again after they broke. The number of unused ones is limited
/// to that of used ones, or to a few hundred, because TaskManagers come and go for months with new
/// addresses.
#[derive(Debug)]
pub struct TonicConnector {
    options: RpcOptions,
    channels: Mutex<Channels>,
    ended: broadcast::Sender<Arc<str>>,
}

#[derive(Debug)]
struct Channels {
    by_address: HashMap<String, Known>,
    /// Number of connections at which unused ones are removed next. Twice the number that was left, so that the
    /// cost of a scan is spread over the connections added since.
    prune_at: usize,
}

/// A connection that may be opened again.
#[derive(Debug)]
struct Known {
    /// Ends with this entry: the end of a connection that is not needed any more says nothing about its other side.
    _is_needed: Arc<()>,
    channel: Arc<Channel>,
}

impl Default for Channels {
    fn default() -> Channels {
        Channels {
            by_address: HashMap::new(),
            prune_at: KEPT_CHANNELS,
        }
    }
}

impl Channels {
    fn insert(&mut self, address: &str, known: Known) {
        if self.by_address.len() >= self.prune_at {
            self.by_address
                .retain(|_, known| Arc::strong_count(&known.channel) > 1);
            self.prune_at = KEPT_CHANNELS.max(2 * self.by_address.len());
        }
        self.by_address.insert(address.to_owned(), known);
    }
}

impl TonicConnector {
    /// Creates a connector without connections.
    pub fn new(options: RpcOptions) -> TonicConnector {
        TonicConnector {
            options,
            channels: Mutex::default(),
            ended: broadcast::Sender::new(ENDED_CONNECTIONS),
        }
    }

    fn component(&self, kind: &str, address: &str) -> Component {
        Component {
            name: format!("{kind} at {address}"),
            channel: self.channel(address),
            options: self.options.clone(),
        }
    }

    fn channel(&self, address: &str) -> Result<Arc<Channel>, GatewayError> {
        let mut channels = self.channels.lock();
        if let Some(known) = channels.by_address.get(address) {
            return Ok(known.channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| {
                GatewayError::Invalid(format!("{address:?} is not an address: {error}"))
            })?
            // The connector has no connect timeout of its own: it would be reported as a refusal.
            .connect_timeout(self.options.connect_timeout);
        let (ended, to): (_, Arc<str>) = (self.ended.clone(), Arc::from(address));
        let is_needed = Arc::new(());
        let needed = Arc::downgrade(&is_needed);
        let connector = reporting_connector(Some(self.options.silence_timeout), move || {
            if needed.strong_count() > 0 {
                // An error means that no component listens.
                let _ = ended.send(to.clone());
            }
        });
        let channel = Arc::new(endpoint.connect_with_connector_lazy(connector));
        let known = Known {
            _is_needed: is_needed,
            channel: channel.clone(),
        };
        channels.insert(address, known);
        Ok(channel)
    }
}

#[async_trait]
impl Connector for TonicConnector {
    fn dispatcher(&self, address: &str) -> Arc<dyn DispatcherGateway> {
        Arc::new(DispatcherClient(self.component("the Dispatcher", address)))
    }

    fn resource_manager(&self, address: &str) -> Arc<dyn ResourceManagerGateway> {
        Arc::new(ResourceManagerClient(
            self.component("the ResourceManager", address),
        ))
    }

    fn job_master(&self, address: &str, job: JobId) -> Arc<dyn JobMasterGateway> {
        Arc::new(JobMasterClient(
            self.component(&format!("the JobMaster of {job}"), address),
        ))
    }

    fn job_masters(&self, address: &str) -> Option<Arc<dyn JobMastersGateway>> {
        let component = self.component("the JobMasters", address);
        Some(Arc::new(JobMastersClient(component)))
    }

    fn task_executor(&self, address: &str) -> Arc<dyn TaskExecutorGateway> {
        Arc::new(TaskExecutorClient(
            self.component("the TaskExecutor", address),
        ))
    }

    async fn is_abandoned(&self, address: &str) -> bool {
        super::abandoned::is_abandoned(address).await
    }

    fn ended_connections(&self) -> Option<broadcast::Receiver<Arc<str>>> {
        Some(self.ended.subscribe())
    }

    fn blobs(&self, address: &str) -> Arc<dyn BlobGateway> {
        // No other server has this address, so no call shares this connection.
        Arc::new(BlobClient {
            name: format!("the blob server at {address}"),
            channel: self.channel(address),
        })
    }
}

/// A component in another process.
struct Component {
    name: String,
    /// Held so that other clients of this address share it.
    channel: Result<Arc<Channel>, GatewayError>,
    options: RpcOptions,
}

impl Component {
    /// Calls with the deadline that every call has.
    async fn call<M, A, F>(
        &self,
        message: M,
        call: impl FnOnce(Channel, usize, Request<M>) -> F,
    ) -> GatewayResult<A>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let channel = self.channel.clone()?;
        let deadline = self.options.ask_timeout;
        let mut request = Request::new(message);
        request.set_timeout(deadline);
        let answer = call((*channel).clone(), self.options.max_message_size, request);
        match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(from_status(&self.name, status)),
            Err(_) => Err(GatewayError::NoAnswer {
                target: self.name.clone(),
                reason: format!("none within {deadline:?} (rpc.ask.timeout)"),
            }),
        }
    }
}

impl fmt::Debug for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Defines a client whose methods are the unary calls of a tonic client.
macro_rules! client {
    (
        $name:ident, $gateway:ident, $client:path;
        $($(#[$doc:meta])* $variant:ident $method:ident($request:ident) -> $answer:ident;)*
    ) => {
        #[derive(Debug)]
        struct $name(Component);

        #[async_trait]
        impl $gateway for $name {
            $(
                async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer> {
                    use $client as Client;
                    self.0
                        .call(request, |channel, limit, request| async move {
                            Client::new(channel)
                                .max_decoding_message_size(limit)
                                .max_encoding_message_size(limit)
                                .$method(request)
                                .await
                        })
                        .await
                }
            )*
        }
    };
}

tanist_proto::dispatcher_methods! { client! {
    DispatcherClient, DispatcherGateway, pb::dispatcher_client::DispatcherClient;
} }
tanist_proto::resource_manager_methods! { client! {
    ResourceManagerClient, ResourceManagerGateway, pb::resource_manager_client::ResourceManagerClient;
} }
tanist_proto::job_master_methods! { client! {
    JobMasterClient, JobMasterGateway, pb::job_master_client::JobMasterClient;
} }
tanist_proto::job_masters_methods! { client! {
    JobMastersClient, JobMastersGateway, pb::job_masters_client::JobMastersClient;
} }
tanist_proto::task_executor_methods! { client! {
    TaskExecutorClient, TaskExecutorGateway, pb::task_executor_client::TaskExecutorClient;
} }

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_does_not_take_a_connection_is_silent_and_who_refuses_it_is_unreachable() {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        let any = "127.0.0.1:0".parse().expect("an address");
        socket.bind(any).expect("a free port");
        let listener = socket.listen(1).expect("it listens");
        let address = listener.local_addr().expect("bound");
        // The accept queue becomes full. Then, as for a host that is cut off, nothing is answered.
        let mut waiting = Vec::new();
        let timeout = Duration::from_millis(300);
        while let Ok(connected) =
            tokio::time::timeout(timeout, tokio::net::TcpStream::connect(address)).await
        {
            waiting.push(connected.expect("there is room"));
        }
        let connector = TonicConnector::new(RpcOptions {
            connect_timeout: timeout,
            ..RpcOptions::default()
        });
        let silent = connector.task_executor(&address.to_string());
        let call = || silent.free_slots(pb::FreeSlotsRequest::default());
        let answer = call().await;
        assert!(
            matches!(answer, Err(GatewayError::NoAnswer { .. })),
            "{answer:?}"
        );
        drop((listener, waiting));
        let answer = call().await;
        assert!(
            matches!(answer, Err(GatewayError::Unreachable { .. })),
            "{answer:?}"
        );
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_reported_though_no_call_is_under_way() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let connector = TonicConnector::new(RpcOptions::default());
        let mut ended = connector.ended_connections().expect("it sees them");
        let peer = connector.task_executor(&address);
        let call =
            tokio::spawn(async move { peer.free_slots(pb::FreeSlotsRequest::default()).await });
        let (accepted, _) = listener.accept().await.expect("it connects");
        call.abort();
        assert!(call.await.is_err_and(|error| error.is_cancelled()));
        assert!(ended.try_recv().is_err(), "it is open");
        drop(accepted);
        let report = tokio::time::timeout(Duration::from_secs(60), ended.recv()).await;
        let report = report.expect("in time").expect("the connector lives");
        assert_eq!(*report, *address);
    }

    #[tokio::test]
    async fn of_addresses_that_come_and_go_those_in_use_stay_known() {
        let connector = TonicConnector::new(RpcOptions::default());
        let held = connector.channel("127.0.0.1:1").expect("an address");
        for port in 2..10_000 {
            let gone = connector.task_executor(&format!("127.0.0.1:{port}"));
            drop(gone);
        }
        let again = connector.channel("127.0.0.1:1").expect("an address");
        assert!(Arc::ptr_eq(&held, &again), "it is shared");
        let known = connector.channels.lock();
        assert!(known.by_address.len() <= KEPT_CHANNELS);
    }
}
