//! Graphs that deployments only name: each TaskExecutor fetches a job's graph once and keeps it with the job.
//!
//! The actor fetches graphs ([`crate::actor`]). Once one has arrived, each deployment that waited for it is
//! handled as if it had arrived at that moment: outdated ones are refused. Pure.

use std::sync::Arc;

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

/// A graph of a job, by the SHA-256 of its encoded form and the endpoints that have it: a fetch from a leader that
/// is gone must not delay the deployments of the next leader, which has the same graph.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GraphKey {
    job: JobId,
    sha256: Vec<u8>,
    endpoints: Vec<String>,
}

impl GraphKey {
    /// The key of the referenced graph.
    pub(crate) fn new(job: JobId, reference: &pb::BlobReference) -> GraphKey {
        GraphKey {
            job,
            sha256: reference.sha256.clone(),
            endpoints: reference.endpoints.clone(),
        }
    }

    /// The job.
    pub(crate) fn job(&self) -> JobId {
        self.job
    }
}

/// A graph that was fetched.
#[derive(Debug)]
pub(super) struct KnownGraph {
    sha256: Vec<u8>,
    graph: Arc<pb::JobGraph>,
}

impl KnownGraph {
    /// The graph that was fetched for this key.
    pub(super) fn new(key: GraphKey, graph: Arc<pb::JobGraph>) -> KnownGraph {
        let sha256 = key.sha256;
        KnownGraph { sha256, graph }
    }

    /// The graph, if it is the referenced one.
    pub(super) fn if_is(&self, reference: &pb::BlobReference) -> Option<Arc<pb::JobGraph>> {
        (self.sha256 == reference.sha256).then(|| self.graph.clone())
    }
}
