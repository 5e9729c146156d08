//! Graphs that deployments only name: each TaskExecutor fetches a job's graph once and keeps it with the job.
//!
//! The actor fetches graphs ([`crate::graph_fetches`]). Once one has arrived, each deployment that waited for it is
//! handled as if it had arrived at that moment: outdated ones are refused. Pure, a part of [`super`].

use std::sync::Arc;

use tanist_gateway::GatewayResult;
use tanist_ha::clock::Uptime;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::deployments::refusal;
use super::{Core, LogLine};

/// A graph of a job, by the SHA-256 of its encoded form and the endpoints that have it: a fetch from a leader that
/// is gone must not delay the deployments of the next leader, which has the same graph.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GraphKey {
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
    pub fn missing_graph(
        &mut self,
        now: Uptime,
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
    pub fn graph_fetched(&mut self, key: GraphKey, graph: Arc<pb::JobGraph>) {
        if let Some(known) = self.jobs.get_mut(&key.job) {
            let sha256 = key.sha256;
            known.graph = Some(KnownGraph { sha256, graph });
        }
    }

    /// Refuses all tasks of a deployment.
    pub fn refuse_tasks(
        &mut self,
        now: Uptime,
        request: &pb::SubmitTasksRequest,
        reason: &str,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let job = self.admit_job_master(now, request.sender.as_ref(), request.job.as_ref())?;
        self.output.log(LogLine::TasksRefused {
            job,
            tasks: request.tasks.len(),
            reason: reason.to_owned(),
        });
        let tasks = request.tasks.iter();
        let refused = tasks.map(|task| refusal(task, reason.to_owned()));
        Ok(pb::SubmitTasksResponse {
            refused: refused.collect(),
        })
    }
}
