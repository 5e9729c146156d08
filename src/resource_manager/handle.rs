//! Handle to the ResourceManager of this process; cheap to clone. No logic.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tanist_gateway::{
    Departure, GatewayError, GatewayResult, JobMasterRegistration, ResourceManagerGateway,
    ResourceOverview, ResourceRequirements, ResourceRequirementsGateway,
};
use tanist_ha::ask::ask;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::{mpsc, watch};

use super::Shortage;
use super::actor::{Message, Reply, Request};
use super::core::Contact;

/// See the module.
#[derive(Debug, Clone)]
pub struct ResourceManagerHandle {
    mailbox: mpsc::Sender<Message>,
    shortages: watch::Receiver<BTreeMap<JobId, Shortage>>,
}

impl ResourceManagerHandle {
    pub(super) fn new(
        mailbox: mpsc::Sender<Message>,
        shortages: watch::Receiver<BTreeMap<JobId, Shortage>>,
    ) -> ResourceManagerHandle {
        ResourceManagerHandle { mailbox, shortages }
    }

    /// Watches which jobs lack slots.
    pub fn shortages(&self) -> watch::Receiver<BTreeMap<JobId, Shortage>> {
        self.shortages.clone()
    }

    /// How reachable each registered TaskExecutor is.
    pub async fn contacts(&self) -> GatewayResult<Vec<Contact>> {
        self.ask(Message::Contacts).await
    }

    /// The cluster ends: starts no more workers and releases the existing ones.
    pub async fn dismiss_workers(&self) -> GatewayResult<()> {
        self.ask(Message::DismissWorkers).await
    }

    /// Completes when the ResourceManager has ended. If its term still leads, the term must give up.
    pub async fn ended(&self) {
        self.mailbox.closed().await;
    }

    async fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> GatewayResult<T> {
        let gone = || GatewayError::gone("ResourceManager");
        ask(&self.mailbox, message).await.map_err(|_| gone())?
    }
}

tanist_proto::resource_manager_methods! { tanist_gateway::ask_actor! {
    ResourceManagerGateway for ResourceManagerHandle, Message, Request;
} }

#[async_trait]
impl ResourceRequirementsGateway for ResourceManagerHandle {
    async fn register_job_master(&self, registration: JobMasterRegistration) -> GatewayResult<()> {
        self.ask(|reply| Message::RegisterJobMaster(registration, reply))
            .await
    }

    async fn disconnect_job_master(&self, job: JobId, departure: Departure) -> GatewayResult<()> {
        self.ask(|reply| Message::DisconnectJobMaster(job, departure, reply))
            .await
    }

    async fn declare_required_resources(
        &self,
        requirements: ResourceRequirements,
    ) -> GatewayResult<()> {
        self.ask(|reply| Message::Declare(requirements, reply))
            .await
    }

    async fn drain_task_manager(&self, request: pb::DrainTaskManagerRequest) -> GatewayResult<()> {
        self.ask(|reply| Message::Drain(Box::new(request), reply))
            .await
    }

    async fn resource_overview(&self) -> GatewayResult<ResourceOverview> {
        self.ask(Message::Overview).await
    }
}
