//! The client of an address within this process: delivers calls with their delays and faults, and finds their target.
//!
//! The target is looked up on each call, so a component that replaces another one at an address is also found
//! by callers that connected earlier. Faults are not decided here, but by [`LocalConnector::set_fault`] and
//! [`NetworkModel`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_proto::id::JobId;
use tanist_proto::{JobMessage, v1 as pb};

use super::{Call, Delivery, Fault, Host, LocalConnector, NetworkModel};
use crate::blobs::{BlobGateway, BlobStream};
use crate::{
    Components, DispatcherGateway, GatewayError, GatewayResult, JobMasterGateway,
    JobMastersGateway, JobMastersOf, ResourceManagerGateway, TaskExecutorGateway,
};

/// The client of one address; see the module.
#[derive(Debug, Clone)]
pub(super) struct LocalClient {
    connector: LocalConnector,
    address: String,
}

/// What a call found at its address.
enum Found<G: ?Sized> {
    Gateway(Arc<G>),
    /// The components of a JobManager, which return the gateway, as for a server's services.
    Components(Arc<dyn Components>),
}

impl LocalClient {
    pub(super) fn new(connector: LocalConnector, address: &str) -> LocalClient {
        LocalClient {
            connector,
            address: address.to_owned(),
        }
    }

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

    /// Returns the client for a duplicate, once that arrives. The sender may be gone by then.
    fn duplicate(
        &self,
        method: &'static str,
        delivery: &Delivery,
    ) -> Option<impl Future<Output = Option<LocalClient>> + Send + 'static> {
        let late = delivery.duplicate?;
        let client = LocalClient {
            connector: LocalConnector {
                network: self.connector.network.clone(),
                host: None,
            },
            address: self.address.clone(),
        };
        Some(async move {
            pass(late).await;
            let arrives = |network_model: Arc<dyn NetworkModel>| {
                network_model.delivers_late(&client.named(method))
            };
            client.network_model().is_none_or(arrives).then_some(client)
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
        hold(network_model.as_ref(), &call).await;
        let (fault, found) = match self.connector.network.lock().hosts.get(&self.address) {
            Some(host) => (host.fault, find(host)),
            None => (Fault::Unreachable, Err(GatewayError::gone(&target))),
        };
        let answer = match worse(fault, delivery.fault) {
            Fault::None => handle(found?, look_up, ask).await,
            Fault::Unreachable => Err(GatewayError::Unreachable {
                target,
                reason: "the connection is cut".to_owned(),
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
        hold(network_model.as_ref(), &call).await;
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

async fn hold(network_model: Option<&Arc<dyn NetworkModel>>, call: &Call<'_>) {
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

fn gone<G: ?Sized>(what: &str) -> GatewayResult<Found<G>> {
    Err(GatewayError::gone(what))
}

/// Lookup for gateways that are not looked up in components: they are registered or missing.
async fn none<G: ?Sized>(what: &str) -> GatewayResult<Arc<G>> {
    Err(GatewayError::gone(what))
}

impl Host {
    fn components<G: ?Sized>(&self, what: &str) -> GatewayResult<Found<G>> {
        match &self.components {
            Some(components) => Ok(Found::Components(components.clone())),
            None => gone(what),
        }
    }
}

/// Returns the job of a message.
fn job_of(message: &impl JobMessage) -> GatewayResult<JobId> {
    let job = message.job_id().parse();
    job.map_err(|error| GatewayError::Invalid(format!("{error}")))
}

/// Defines a gateway whose calls are delivered within this process. For a message, `$find` finds its target at the
/// address, and `$look_up` returns it from the components that were found there.
macro_rules! client {
    (
        $gateway:ident, $what:literal, |$message:ident| $find:expr, $look_up:expr;
        $($(#[$doc:meta])* $variant:ident $method:ident($request:ident) -> $answer:ident;)*
    ) => {
        #[async_trait]
        impl $gateway for LocalClient {
            $(async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer> {
                let method = stringify!($method);
                let call = move |client: LocalClient, delivery: Delivery, request: pb::$request| async move {
                    let $message = &request;
                    let (find, look_up) = ($find, $look_up);
                    let ask = |gateway: Arc<dyn $gateway>| async move { gateway.$method(request).await };
                    client.call($what, method, delivery, find, look_up, ask).await
                };
                let delivery = self.leave(method);
                if let Some(duplicate) = self.duplicate(method, &delivery) {
                    let copy = request.clone();
                    tokio::spawn(async move {
                        if let Some(client) = duplicate.await {
                            drop(call(client, Delivery::default(), copy).await);
                        }
                    });
                }
                call(self.clone(), delivery, request).await
            })*
        }
    };
}

tanist_proto::dispatcher_methods! { client! {
    DispatcherGateway, "Dispatcher",
    |_message| |host: &Host| host.components("Dispatcher"),
    |components: Arc<dyn Components>| async move { components.dispatcher() };
} }

tanist_proto::resource_manager_methods! { client! {
    ResourceManagerGateway, "ResourceManager",
    |_message| |host: &Host| match &host.resource_manager {
        Some(gateway) => Ok(Found::Gateway(gateway.clone())),
        None => host.components("ResourceManager"),
    },
    |components: Arc<dyn Components>| async move { components.resource_manager() };
} }

tanist_proto::job_master_methods! { client! {
    JobMasterGateway, "JobMaster",
    |message| {
        let job = job_of(message);
        |host: &Host| {
            let job = job?;
            match host.job_masters.get(&job) {
                Some(gateway) => Ok(Found::Gateway(gateway.clone())),
                None => host
                    .components("JobMaster")
                    .map_err(|_| GatewayError::NotFound(format!("no such job: {job}"))),
            }
        }
    },
    {
        let job = job_of(message);
        |components: Arc<dyn Components>| async move { components.job_master(job?).await }
    };
} }

tanist_proto::job_masters_methods! { client! {
    JobMastersGateway, "JobMasters",
    |_message| |host: &Host| host.components("JobMasters"),
    |components: Arc<dyn Components>| async move {
        Ok(Arc::new(JobMastersOf(components)) as Arc<dyn JobMastersGateway>)
    };
} }

tanist_proto::task_executor_methods! { client! {
    TaskExecutorGateway, "TaskExecutor",
    |_message| |host: &Host| match &host.task_executor {
        Some(gateway) => Ok(Found::Gateway(gateway.clone())),
        None => gone("TaskExecutor"),
    },
    |_| none("TaskExecutor");
} }

#[async_trait]
impl BlobGateway for LocalClient {
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
