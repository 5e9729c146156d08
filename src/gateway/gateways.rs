//! The gateways whose requests cross processes. Their methods are those of the services in
//! `proto/tanist/v1/rpc.proto`, and nothing else lists them: a method that is added there is in the gateway, in the
//! client and the server over the wire, and in the connection within one process.

use std::fmt;

use async_trait::async_trait;
use tanist_proto::v1 as pb;

use super::GatewayResult;

/// Defines a gateway with the methods of a service.
macro_rules! gateway {
    (
        $(#[$doc:meta])* $gateway:ident;
        $($(#[$method_doc:meta])* $variant:ident $method:ident($request:ident) -> $answer:ident;)*
    ) => {
        $(#[$doc])*
        #[async_trait]
        pub trait $gateway: Send + Sync + fmt::Debug + 'static {
            $(
                $(#[$method_doc])*
                async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer>;
            )*
        }
    };
}

/// Defines the requests of a gateway as messages to an actor, each with the channel that takes its answer.
#[macro_export]
macro_rules! requests {
    (
        $(#[$doc:meta])* $request:ident, $reply:ident;
        $($(#[$method_doc:meta])* $variant:ident $method:ident($message:ident) -> $answer:ident;)*
    ) => {
        $(#[$doc])*
        #[allow(clippy::enum_variant_names, reason = "the protocol names them")]
        #[derive(Debug)]
        pub(super) enum $request {
            $($(#[$method_doc])* $variant(Box<pb::$message>, $reply<pb::$answer>),)*
        }
    };
}

/// Implements a gateway for the handle of an actor: each method asks the actor, whose message has the request.
#[macro_export]
macro_rules! ask_actor {
    (
        $gateway:ident for $handle:ident, $actor_message:ident, $request:ident;
        $($(#[$method_doc:meta])* $variant:ident $method:ident($message:ident) -> $answer:ident;)*
    ) => {
        #[async_trait]
        impl $gateway for $handle {
            $(async fn $method(&self, message: pb::$message) -> GatewayResult<pb::$answer> {
                let message = Box::new(message);
                self.ask(|reply| $actor_message::Request($request::$variant(message, reply))).await
            })*
        }
    };
}

tanist_proto::dispatcher_methods! { gateway! {
    /// Requests of clients and REST to the leading JobManager.
    DispatcherGateway;
} }

tanist_proto::resource_manager_methods! { gateway! {
    /// Requests of TaskExecutors to the leading ResourceManager.
    ResourceManagerGateway;
} }

tanist_proto::job_master_methods! { gateway! {
    /// Requests of TaskExecutors to the JobMaster of one job.
    JobMasterGateway;
} }

tanist_proto::job_masters_methods! { gateway! {
    /// Requests of TaskExecutors to several JobMasters of one process at once.
    JobMastersGateway;
} }

tanist_proto::task_executor_methods! { gateway! {
    /// Requests of the leading JobManager to a TaskExecutor.
    TaskExecutorGateway;
} }
