//! A [`Connector`] within one process: addresses lead to handles that were put there, with faults that can be switched on.
//!
//! For a whole cluster in one process and for tests. Nothing is encoded. How a call finds its target is in `way.rs`.

mod way;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tanist_proto::id::JobId;

use self::way::{Way, WayToJob};
use super::blobs::BlobGateway;
use super::{
    Components, Connector, DispatcherGateway, JobMasterGateway, JobMastersGateway,
    ResourceManagerGateway, TaskExecutorGateway,
};

/// What is wrong with the way to an address, or with one call.
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

/// A call from one host to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// Who calls; `None` if the connector is nobody's.
    pub from: Option<&'a str>,
    /// Who is called.
    pub to: &'a str,
    /// Which method of a gateway.
    pub method: &'static str,
}

/// What becomes of one call on its way, on top of what is wrong with its target's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Journey {
    /// How long the message takes.
    pub there: Duration,
    /// What goes wrong.
    pub fault: Fault,
    /// How long the answer takes.
    pub back: Duration,
    /// After how long another copy of the message arrives, whatever became of this one. Nobody waits for its answer.
    pub twin: Option<Duration>,
}

/// Decides about each call; asked twice: when it is sent, and when its answer arrives.
pub trait Roads: Send + Sync + fmt::Debug + 'static {
    /// A call is sent.
    fn leave(&self, call: &Call<'_>) -> Journey;
    /// For how long the message, and then its answer, is held up besides; asked again afterwards, until it is zero.
    fn hold(&self, _call: &Call<'_>) -> Duration {
        Duration::ZERO
    }
    /// Whether the late copy of a message arrives.
    fn delivers_late(&self, _call: &Call<'_>) -> bool {
        true
    }
    /// It was handled. False: the answer reaches nobody.
    fn arrive(&self, call: &Call<'_>) -> bool;
}

/// Gateways by address within this process. Cheap to clone; all clones share the same addresses.
#[derive(Debug, Clone, Default)]
pub struct LocalConnector {
    network: Arc<Mutex<Network>>,
    /// Whose calls these are.
    host: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct Network {
    hosts: BTreeMap<String, Host>,
    roads: Option<Arc<dyn Roads>>,
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
    /// The same network, used by the process at `host`.
    pub fn from_host(&self, host: &str) -> LocalConnector {
        LocalConnector {
            network: self.network.clone(),
            host: Some(Arc::from(host)),
        }
    }

    /// Lets `roads` decide about every call.
    pub fn set_roads(&self, roads: Arc<dyn Roads>) {
        self.lock().roads = Some(roads);
    }

    /// Puts the components of a JobManager at `address`: whichever it has when it is called.
    pub fn put_job_manager(&self, address: &str, components: Arc<dyn Components>) {
        self.host(address, |host| host.components = Some(components));
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

    /// Puts a blob server at `address`.
    pub fn put_blobs(&self, address: &str, gateway: Arc<dyn BlobGateway>) {
        self.host(address, |host| host.blobs = Some(gateway));
    }

    /// Switches a fault on the way to `address` on or off.
    pub fn set_fault(&self, address: &str, fault: Fault) {
        self.host(address, |host| host.fault = fault);
    }

    /// Removes all that listens at `address`, as the end of its process does.
    pub fn remove(&self, address: &str) {
        self.lock().hosts.remove(address);
    }

    fn host<T>(&self, address: &str, change: impl FnOnce(&mut Host) -> T) -> T {
        change(self.lock().hosts.entry(address.to_owned()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn way(&self, address: &str) -> Arc<Way> {
        Arc::new(Way {
            connector: self.clone(),
            address: address.to_owned(),
        })
    }
}

#[async_trait]
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

    fn job_masters(&self, address: &str) -> Option<Arc<dyn JobMastersGateway>> {
        let is_there = |host: &Host| host.components.is_some();
        let is_there = self.lock().hosts.get(address).is_some_and(is_there);
        is_there.then(|| self.way(address) as Arc<dyn JobMastersGateway>)
    }

    fn task_executor(&self, address: &str) -> Arc<dyn TaskExecutorGateway> {
        self.way(address)
    }

    /// Nobody listens at an address from which everything was removed. A way that is cut proves nothing.
    async fn is_abandoned(&self, address: &str) -> bool {
        !self.lock().hosts.contains_key(address)
    }

    fn blobs(&self, address: &str) -> Arc<dyn BlobGateway> {
        self.way(address)
    }
}
