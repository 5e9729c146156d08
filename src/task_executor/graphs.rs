//! Graphs that deployments only name: each TaskExecutor fetches a job's graph once and keeps it with the job.
//!
//! The actor continues while a graph is fetched, and deployments that need it wait in [`GraphFetches`]. Once it has
//! arrived, each deployment is handled as if it had arrived at that moment: outdated ones are refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::actor::{Actor, Called, Reply, answer};
use super::core::Core;
use super::deployments::refusal;
use crate::gateway::blobs::BlobFetcher;
use crate::gateway::{GatewayError, GatewayResult};

/// A graph of a job, by the SHA-256 of its encoded form and the endpoints that have it: a fetch from a leader that
/// is gone must not delay the deployments of the next leader, which has the same graph.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GraphKey {
    pub(super) job: JobId,
    pub(super) sha256: Vec<u8>,
    pub(super) endpoints: Vec<String>,
}

/// A graph that was fetched.
#[derive(Debug)]
pub(super) struct KnownGraph {
    sha256: Vec<u8>,
    graph: Arc<pb::JobGraph>,
}

impl KnownGraph {
    /// The graph, if it is the referenced one.
    pub(super) fn if_is(&self, reference: &pb::BlobReference) -> Option<Arc<pb::JobGraph>> {
        (self.sha256 == reference.sha256).then(|| self.graph.clone())
    }
}

impl Core {
    /// The graph to fetch before [`Core::submit_tasks`] can be called. On an error the deployment is refused with
    /// any graph.
    pub(super) fn missing_graph(
        &mut self,
        now: Instant,
        request: &pb::SubmitTasksRequest,
    ) -> GatewayResult<Option<GraphKey>> {
        let reference = match (&request.graph, &request.graph_reference) {
            (None, Some(reference)) => reference,
            (Some(_), _) | (None, None) => return Ok(None),
        };
        let job = self.admit_job_master(now, request.sender.as_ref(), request.job.as_ref())?;
        let known = self.jobs.get(&job).and_then(|known| known.graph.as_ref());
        if known.is_some_and(|known| known.if_is(reference).is_some()) {
            return Ok(None);
        }
        Ok(Some(GraphKey {
            job,
            sha256: reference.sha256.clone(),
            endpoints: reference.endpoints.clone(),
        }))
    }

    /// Keeps a fetched graph as long as its job.
    pub(super) fn graph_fetched(&mut self, key: GraphKey, graph: Arc<pb::JobGraph>) {
        if let Some(known) = self.jobs.get_mut(&key.job) {
            let sha256 = key.sha256;
            known.graph = Some(KnownGraph { sha256, graph });
        }
    }

    /// Refuses all tasks of a deployment.
    pub(super) fn refuse_tasks(
        &mut self,
        now: Instant,
        request: &pb::SubmitTasksRequest,
        reason: &str,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let job = self.admit_job_master(now, request.sender.as_ref(), request.job.as_ref())?;
        tracing::warn!(%job, tasks = request.tasks.len(), reason, "refused tasks");
        let tasks = request.tasks.iter();
        let refused = tasks.map(|task| refusal(task, reason.to_owned()));
        Ok(pb::SubmitTasksResponse {
            refused: refused.collect(),
        })
    }
}

/// A deployment, and the channel for its answer.
type Waiting = (pb::SubmitTasksRequest, Reply<pb::SubmitTasksResponse>);

/// Graphs that are being fetched, and the deployments that wait for them.
#[derive(Debug, Default)]
pub(super) struct GraphFetches {
    waiting: BTreeMap<GraphKey, Vec<Waiting>>,
}

impl GraphFetches {
    /// Adds a waiting deployment. Returns whether its graph must be fetched.
    pub(super) fn wait(
        &mut self,
        key: GraphKey,
        request: pb::SubmitTasksRequest,
        reply: Reply<pb::SubmitTasksResponse>,
    ) -> bool {
        let waiting = self.waiting.entry(key).or_default();
        waiting.push((request, reply));
        waiting.len() == 1
    }

    /// Takes the deployments that waited for a graph.
    pub(super) fn take(&mut self, key: &GraphKey) -> Vec<Waiting> {
        self.waiting.remove(key).unwrap_or_default()
    }
}

impl Actor {
    /// Handles a deployment.
    pub(super) fn submit_tasks(
        &mut self,
        now: Instant,
        request: pb::SubmitTasksRequest,
        reply: Reply<pb::SubmitTasksResponse>,
    ) {
        let key = match self.core.missing_graph(now, &request) {
            Ok(Some(key)) => key,
            Ok(None) => return self.start_deployed(now, request, reply),
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let reference = request.graph_reference.clone().unwrap_or_default();
        if self.fetches.wait(key.clone(), request, reply) {
            // Below the JobMaster's RPC timeout, so that it receives the reason if there is no graph.
            let timeout = self.options.rpc_timeout * 3 / 4;
            let fetching = fetch(self.fetcher.clone(), reference, timeout);
            self.calls
                .spawn(async move { Called::Fetched(key, fetching.await) });
        }
    }

    /// Handles deployments that waited for a graph, as if they arrived now.
    pub(super) fn graph_fetched(
        &mut self,
        now: Instant,
        key: GraphKey,
        graph: GatewayResult<Arc<pb::JobGraph>>,
    ) {
        let waiting = self.fetches.take(&key);
        let failure = match graph {
            Ok(graph) => {
                self.core.graph_fetched(key, graph);
                None
            }
            Err(error) => Some(format!("the job's graph can't be fetched: {error}")),
        };
        for (request, reply) in waiting {
            match &failure {
                None => self.start_deployed(now, request, reply),
                Some(reason) => answer(reply, self.core.refuse_tasks(now, &request, reason)),
            }
        }
    }
}

/// Fetches and decodes a graph.
async fn fetch(
    fetcher: BlobFetcher,
    reference: pb::BlobReference,
    timeout: Duration,
) -> GatewayResult<Arc<pb::JobGraph>> {
    let encoded = fetcher.fetch_with_retries(&reference, timeout).await?;
    let decoded = tokio::task::spawn_blocking(move || pb::JobGraph::decode(encoded)).await;
    let no_graph = |error: String| GatewayError::Invalid(format!("it is no job graph: {error}"));
    let decoded = decoded.map_err(|error| no_graph(error.to_string()))?;
    decoded
        .map(Arc::new)
        .map_err(|error| no_graph(error.to_string()))
}
