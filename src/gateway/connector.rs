//! How a component gets the gateway of another one from its address.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_proto::id::JobId;
use tokio::sync::broadcast;

use super::blobs::BlobGateway;
use super::{
    DispatcherGateway, JobMasterGateway, JobMastersGateway, ResourceManagerGateway,
    TaskExecutorGateway,
};

/// Number of ended connections that a receiver may be behind before it misses some.
pub const ENDED_CONNECTIONS: usize = 256;

/// Returns gateways by address. Over the wire, connections are opened lazily, so these calls neither wait nor
/// fail; a wrong address is noticed when the gateway is used.
#[async_trait]
pub trait Connector: Send + Sync + fmt::Debug + 'static {
    /// The Dispatcher of the JobManager at `address` (`host:port`).
    fn dispatcher(&self, address: &str) -> Arc<dyn DispatcherGateway>;
    /// The ResourceManager of the JobManager at `address`.
    fn resource_manager(&self, address: &str) -> Arc<dyn ResourceManagerGateway>;
    /// The JobMaster of `job` in the JobManager at `address`.
    fn job_master(&self, address: &str, job: JobId) -> Arc<dyn JobMasterGateway>;
    /// All JobMasters in the JobManager at `address`; `None` if each must be called separately.
    fn job_masters(&self, address: &str) -> Option<Arc<dyn JobMastersGateway>> {
        let _ = address;
        None
    }
    /// The TaskExecutor at `address`.
    fn task_executor(&self, address: &str) -> Arc<dyn TaskExecutorGateway>;
    /// Whether it is proven that no process listens at `address`. A host that does not answer, or that refuses
    /// from remote, as a firewall does, proves nothing.
    async fn is_abandoned(&self, address: &str) -> bool {
        let _it_is_not_known = address;
        false
    }
    /// Receives the address of each connection that ends from now on, by which a process that ends is noticed early.
    /// `None`: the end of a connection is not seen.
    fn ended_connections(&self) -> Option<broadcast::Receiver<Arc<str>>> {
        None
    }
    /// The blob server of the JobManager at `address`. This address differs from that of its components.
    fn blobs(&self, address: &str) -> Arc<dyn BlobGateway>;
}
