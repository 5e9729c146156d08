//! Committers of an application's own binary: each makes the output of a kind visible that custom sinks have prepared.
//!
//! As that of operators, the registry belongs to the process. JobManagers use it: they refuse graphs whose sinks
//! declare a kind without a committer, and commit with it what durable manifests list.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::RwLock;
use tanist_model::{CommitError, CustomSpec};
use tanist_proto::v1::CheckpointCommittable;

/// What a committer makes visible: all output of its kind that the durable manifest of a checkpoint lists.
#[derive(Debug, Clone)]
pub struct CommitRequest {
    checkpoint: u64,
    committables: Vec<CheckpointCommittable>,
}

impl CommitRequest {
    /// All of these have the kind of the committer.
    pub fn new(checkpoint: u64, committables: Vec<CheckpointCommittable>) -> CommitRequest {
        CommitRequest {
            checkpoint,
            committables,
        }
    }

    /// Number of the checkpoint, in its job.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// The uid or else the name of each sink, and what it says about its output.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let committables = self.committables.iter();
        committables.map(|it| (&*it.uid, &*it.content))
    }
}

type Committing = Pin<Box<dyn Future<Output = Result<(), CommitError>> + Send>>;
type Commit = dyn Fn(CommitRequest) -> Committing + Send + Sync;

/// Makes output of one kind visible.
#[derive(Clone)]
pub struct Committer(Arc<Commit>);

impl Committer {
    /// The one that calls this. It may be called again with what it has committed already, also beside another process
    /// that does the same.
    pub fn new<C, F>(commit: C) -> Committer
    where
        C: Fn(CommitRequest) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), CommitError>> + Send + 'static,
    {
        Committer(Arc::new(move |request| Box::pin(commit(request))))
    }

    /// Makes it visible.
    pub fn commit(
        &self,
        request: CommitRequest,
    ) -> impl Future<Output = Result<(), CommitError>> + Send {
        (self.0)(request)
    }
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Committer")
    }
}

static REGISTRY: RwLock<BTreeMap<String, Committer>> = RwLock::new(BTreeMap::new());

/// Registers the committer of a kind in this process, or replaces it.
pub fn register(kind: impl Into<String>, committer: Committer) {
    let mut registry = REGISTRY.write();
    registry.insert(kind.into(), committer);
}

/// The committer of a kind.
pub fn find(kind: &str) -> Option<Committer> {
    let registry = REGISTRY.read();
    registry.get(kind).cloned()
}

/// Why the output of a sink can't be committed by this process; `None` if it can.
pub(crate) fn missing(spec: &CustomSpec) -> Option<String> {
    let mut kinds = spec.commits.iter();
    let missing = kinds.find(|kind| find(kind).is_none())?;
    Some(format!(
        "this binary has no committer for output of kind `{missing}`: register it with `Application::committer`"
    ))
}
