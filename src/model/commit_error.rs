//! Why the output of a sink was not committed: what committers answer, and what a JobMaster does about it.

/// Why output was not committed. The texts are shown to users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// May succeed later: it is retried and listed among the job's exceptions.
    #[error("{0}")]
    Failed(String),
    /// Can never succeed: the job fails.
    #[error("{0}")]
    Refused(String),
}
