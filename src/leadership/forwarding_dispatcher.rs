//! The leader's Dispatcher as a standby reaches it: a graph that is too large for a message is held here, and
//! the submission only names it to the leader, which fetches it.
//!
//! It is held until the leader has answered. If either side crashes before the answer, the client asks again,
//! with the same token.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use prost::Message as _;
use tanist_gateway::blobs::ServedBlobs;
use tanist_gateway::{DispatcherGateway, GatewayError, GatewayResult};
use tanist_proto::v1 as pb;

/// See the module.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "testing"),
    expect(unreachable_pub, reason = "tests of another crate use it")
)]
pub struct ForwardingDispatcher {
    /// The leader's Dispatcher.
    pub leader: Arc<dyn DispatcherGateway>,
    /// Holds large graphs.
    pub blobs: ServedBlobs,
    /// Graphs above this size (encoded, in bytes) are held here.
    pub threshold: usize,
}

impl ForwardingDispatcher {
    async fn submit(
        &self,
        mut request: pb::SubmitJobRequest,
    ) -> GatewayResult<pb::SubmitJobResponse> {
        let is_large = |graph: &mut pb::JobGraph| graph.encoded_len() > self.threshold;
        let Some(graph) = request.graph.take_if(is_large) else {
            return self.leader.submit_job(request).await;
        };
        let encoding = tokio::task::spawn_blocking(move || Bytes::from(graph.encode_to_vec()));
        let failed = |error| GatewayError::Internal(format!("encoding the graph failed: {error}"));
        let held = self.blobs.hold(encoding.await.map_err(failed)?).await?;
        request.graph_reference = Some(held.reference());
        // `held` must live until the answer is there.
        self.leader.submit_job(request).await
    }
}

/// Implements the gateway: each method is forwarded as it is, but a submission.
macro_rules! forward {
    (
        $(#[$submit_doc:meta])* SubmitJob submit_job(SubmitJobRequest) -> SubmitJobResponse;
        $($(#[$method_doc:meta])* $variant:ident $method:ident($request:ident) -> $answer:ident;)*
    ) => {
        #[async_trait]
        impl DispatcherGateway for ForwardingDispatcher {
            async fn submit_job(
                &self,
                request: pb::SubmitJobRequest,
            ) -> GatewayResult<pb::SubmitJobResponse> {
                self.submit(request).await
            }

            $(async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer> {
                self.leader.$method(request).await
            })*
        }
    };
}

tanist_proto::dispatcher_methods! { forward! {} }
