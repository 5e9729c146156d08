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

#[async_trait]
impl DispatcherGateway for ForwardingDispatcher {
    async fn submit_job(
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

    async fn tell_term_time(&self, request: pb::TermTimeRequest) -> GatewayResult<pb::TermTime> {
        self.leader.tell_term_time(request).await
    }

    async fn cancel_job(&self, request: pb::CancelJobRequest) -> GatewayResult<pb::Ack> {
        self.leader.cancel_job(request).await
    }

    async fn stop_job(&self, request: pb::StopJobRequest) -> GatewayResult<pb::Ack> {
        self.leader.stop_job(request).await
    }

    async fn list_jobs(&self, request: pb::ListJobsRequest) -> GatewayResult<pb::ListJobsResponse> {
        self.leader.list_jobs(request).await
    }

    async fn trigger_savepoint(
        &self,
        request: pb::TriggerSavepointRequest,
    ) -> GatewayResult<pb::Ack> {
        self.leader.trigger_savepoint(request).await
    }

    async fn dispose_savepoint(
        &self,
        request: pb::DisposeSavepointRequest,
    ) -> GatewayResult<pb::Ack> {
        self.leader.dispose_savepoint(request).await
    }

    async fn describe_job(&self, request: pb::DescribeJobRequest) -> GatewayResult<pb::JobDetails> {
        self.leader.describe_job(request).await
    }

    async fn describe_cluster(
        &self,
        request: pb::DescribeClusterRequest,
    ) -> GatewayResult<pb::ClusterOverview> {
        self.leader.describe_cluster(request).await
    }

    async fn list_task_managers(
        &self,
        request: pb::ListTaskManagersRequest,
    ) -> GatewayResult<pb::ListTaskManagersResponse> {
        self.leader.list_task_managers(request).await
    }

    async fn drain_task_manager(
        &self,
        request: pb::DrainTaskManagerRequest,
    ) -> GatewayResult<pb::Ack> {
        self.leader.drain_task_manager(request).await
    }

    async fn resolve_quarantine(
        &self,
        request: pb::ResolveQuarantineRequest,
    ) -> GatewayResult<pb::Ack> {
        self.leader.resolve_quarantine(request).await
    }
}
