//! Fetches the graphs that deployments only name. The actor continues meanwhile, and deployments that need the graph
//! wait in [`GraphFetches`]. Decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tanist_gateway::blobs::BlobFetcher;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_proto::v1 as pb;

use super::{Actor, Called, Reply};
use crate::core::{Event, GraphKey};

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
        now: Uptime,
        request: pb::SubmitTasksRequest,
        reply: Reply<pb::SubmitTasksResponse>,
    ) {
        let key = match self.core.missing_graph(now, &request) {
            Ok(Some(key)) => key,
            Ok(None) => return self.start_deployed(now, request, reply),
            Err(refusal) => return self.answer(reply, Err(refusal)),
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
        now: Uptime,
        key: GraphKey,
        graph: GatewayResult<Arc<pb::JobGraph>>,
    ) {
        let waiting = self.fetches.take(&key);
        let failure = match graph {
            Ok(graph) => {
                self.core.handle(now, Event::GraphFetched(key, graph));
                None
            }
            Err(error) => Some(format!("the job's graph can't be fetched: {error}")),
        };
        for (request, reply) in waiting {
            match &failure {
                None => self.start_deployed(now, request, reply),
                Some(reason) => {
                    let answer = self.core.refuse_tasks(now, &request, reason);
                    self.answer(reply, answer);
                }
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
