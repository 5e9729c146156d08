//! A [`Connector`] within one process: addresses lead to handles registered here, with faults that can be switched on.
//!
//! Used for a whole cluster in one process and for tests. Nothing is encoded. `client.rs` has the delivery of a call.

mod client;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_proto::id::JobId;
use tokio::sync::broadcast;

use self::client::LocalClient;
use super::blobs::BlobGateway;
use super::{
    Components, Connector, DispatcherGateway, ENDED_CONNECTIONS, JobMasterGateway,
    JobMastersGateway, ResourceManagerGateway, TaskExecutorGateway,
};

/// Fault of the connection to an address, or of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// Calls fail at once and are not handled.
    Unreachable,
    /// Calls are handled, but their answers are lost at once.
    LoseReplies,
    /// Calls are neither handled nor answered: the caller's deadline ends them.
    Silent,
}

/// A call from one host to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// Address of the caller; `None` if the connector belongs to no host.
    pub from: Option<&'a str>,
    /// Address of the target.
    pub to: &'a str,
    /// Name of the gateway's method.
    pub method: &'static str,
}

/// Delivery of one call, in addition to the fault of its target's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivery {
    /// Delay of the message.
    pub there: Duration,
    /// Fault of this call.
    pub fault: Fault,
    /// Delay of the answer.
    pub back: Duration,
    /// Delay after which a duplicate of the message arrives, independent of the original. Its answer is discarded.
    pub duplicate: Option<Duration>,
}

/// Network model: decides about each call, when it is sent and when its answer arrives.
pub trait NetworkModel: Send + Sync + fmt::Debug + 'static {
    /// Returns the delivery of a call that is being sent.
    fn leave(&self, call: &Call<'_>) -> Delivery;
    /// Returns an additional delay of the message, and later of its answer; called again after it until the
    /// result is zero.
    fn hold(&self, _call: &Call<'_>) -> Duration {
        Duration::ZERO
    }
    /// Whether the duplicate of a message is delivered.
    fn delivers_late(&self, _call: &Call<'_>) -> bool {
        true
    }
    /// The call was handled. Returns false if the answer is lost.
    fn arrive(&self, call: &Call<'_>) -> bool;
}

/// Gateways by address within this process. Cheap to clone; all clones share the same addresses.
#[derive(Debug, Clone, Default)]
pub struct LocalConnector {
    network: Arc<Mutex<Network>>,
    /// Address of the calling process.
    host: Option<Arc<str>>,
}

#[derive(Debug)]
struct Network {
    hosts: BTreeMap<String, Host>,
    network_model: Option<Arc<dyn NetworkModel>>,
    /// The addresses that everything was removed from.
    ended: broadcast::Sender<Arc<str>>,
}

impl Default for Network {
    fn default() -> Network {
        Network {
            hosts: BTreeMap::new(),
            network_model: None,
            ended: broadcast::Sender::new(ENDED_CONNECTIONS),
        }
    }
}

/// What listens at one address.
#[derive(Debug, Default)]
struct Host {
    fault: Fault,
    components: Option<Arc<dyn Components>>,
    resource_manager: Option<Arc<dyn ResourceManagerGateway>>,
    job_masters: BTreeMap<JobId, Arc<dyn JobMasterGateway>>,
    task_executor: Option<Arc<dyn TaskExecutorGateway>>,
    blobs: Option<Arc<dyn BlobGateway>>,
}

impl LocalConnector {
    /// Returns the same network as used by the process at `host`.
    pub fn from_host(&self, host: &str) -> LocalConnector {
        LocalConnector {
            network: self.network.clone(),
            host: Some(Arc::from(host)),
        }
    }

    /// Makes `network_model` decide about every call.
    pub fn set_network_model(&self, network_model: Arc<dyn NetworkModel>) {
        self.network.lock().network_model = Some(network_model);
    }

    /// Registers the components of a JobManager at `address`. A call uses the components of that moment.
    pub fn put_job_manager(&self, address: &str, components: Arc<dyn Components>) {
        self.host(address, |host| host.components = Some(components));
    }

    /// Registers a ResourceManager at `address`.
    pub fn put_resource_manager(&self, address: &str, gateway: Arc<dyn ResourceManagerGateway>) {
        self.host(address, |host| host.resource_manager = Some(gateway));
    }

    /// Registers the JobMaster of `job` at `address`.
    pub fn put_job_master(&self, address: &str, job: JobId, gateway: Arc<dyn JobMasterGateway>) {
        self.host(address, |host| host.job_masters.insert(job, gateway));
    }

    /// Removes the JobMaster of `job`: calls to it fail with "no such job".
    pub fn remove_job_master(&self, address: &str, job: JobId) {
        self.host(address, |host| host.job_masters.remove(&job));
    }

    /// Registers a TaskExecutor at `address`.
    pub fn put_task_executor(&self, address: &str, gateway: Arc<dyn TaskExecutorGateway>) {
        self.host(address, |host| host.task_executor = Some(gateway));
    }

    /// Registers a blob server at `address`.
    pub fn put_blobs(&self, address: &str, gateway: Arc<dyn BlobGateway>) {
        self.host(address, |host| host.blobs = Some(gateway));
    }

    /// Sets the fault of connections to `address`.
    pub fn set_fault(&self, address: &str, fault: Fault) {
        self.host(address, |host| host.fault = fault);
        if fault == Fault::Unreachable {
            self.end_connections(address);
        }
    }

    fn end_connections(&self, address: &str) {
        // An error means that no component looks for it.
        let _ = self.network.lock().ended.send(Arc::from(address));
    }

    /// Removes everything that listens at `address`, as the end of its process does.
    pub fn remove(&self, address: &str) {
        self.network.lock().hosts.remove(address);
        self.end_connections(address);
    }

    fn host<T>(&self, address: &str, change: impl FnOnce(&mut Host) -> T) -> T {
        change(
            self.network
                .lock()
                .hosts
                .entry(address.to_owned())
                .or_default(),
        )
    }

    fn client(&self, address: &str) -> Arc<LocalClient> {
        Arc::new(LocalClient::new(self.clone(), address))
    }
}

#[async_trait]
impl Connector for LocalConnector {
    fn dispatcher(&self, address: &str) -> Arc<dyn DispatcherGateway> {
        self.client(address)
    }

    fn resource_manager(&self, address: &str) -> Arc<dyn ResourceManagerGateway> {
        self.client(address)
    }

    fn job_master(&self, address: &str, _job: JobId) -> Arc<dyn JobMasterGateway> {
        // Each message names its job.
        self.client(address)
    }

    fn job_masters(&self, address: &str) -> Option<Arc<dyn JobMastersGateway>> {
        let is_there = |host: &Host| host.components.is_some();
        let is_there = self.network.lock().hosts.get(address).is_some_and(is_there);
        is_there.then(|| self.client(address) as Arc<dyn JobMastersGateway>)
    }

    fn task_executor(&self, address: &str) -> Arc<dyn TaskExecutorGateway> {
        self.client(address)
    }

    fn ended_connections(&self) -> Option<broadcast::Receiver<Arc<str>>> {
        Some(self.network.lock().ended.subscribe())
    }

    /// An address is abandoned once everything at it was removed. A connection that is cut proves nothing.
    async fn is_abandoned(&self, address: &str) -> bool {
        !self.network.lock().hosts.contains_key(address)
    }

    fn blobs(&self, address: &str) -> Arc<dyn BlobGateway> {
        self.client(address)
    }
}
