//! Why a client has no answer.

use std::time::Duration;

/// A request that did not come to a good end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// Nobody gave an answer in time; what was asked for may still take effect.
    #[error("no JobManager answered within {waited:?}: {last}")]
    Unreachable {
        /// How long it was tried.
        waited: Duration,
        /// What went wrong last, and where.
        last: String,
    },
    /// The embedded store that is to name the leader was never made.
    #[error("no cluster has been started here ({place})")]
    NoCluster {
        /// The store's directory, and what is wrong with it.
        place: String,
    },
    /// The cluster says no.
    #[error("{}", .errors.join("\n"))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Why, at least one text.
        errors: Vec<String>,
    },
    /// What is to be sent can't be read.
    #[error("{reason}")]
    Unsendable {
        /// What, and why.
        reason: String,
    },
    /// Somebody answered, but not as a JobManager does.
    #[error("the answer of {address} to {path} makes no sense: {reason}")]
    BadAnswer {
        /// Who answered.
        address: String,
        /// What was asked for.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl ClientError {
    /// What people can do about it, at a terminal.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            ClientError::NoCluster { .. } => {
                Some("`tanist jobmanager` starts one; --address asks another")
            }
            ClientError::Unreachable { .. }
            | ClientError::Refused { .. }
            | ClientError::Unsendable { .. }
            | ClientError::BadAnswer { .. } => None,
        }
    }

    /// Whether the cluster says that there is nothing of that name.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ClientError::Refused { status: 404, .. })
    }
}
