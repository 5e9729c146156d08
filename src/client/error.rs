//! Errors of the client. After [`ClientError::Unreachable`] and [`ClientError::BadAnswer`] it is not known whether the
//! request took effect.

use std::time::Duration;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No JobManager answered in time; the request may still take effect.
    #[error("no JobManager answered within {waited:?}: {last}")]
    Unreachable {
        /// Time for which it was tried.
        waited: Duration,
        /// The last problem, and where it occurred.
        last: String,
    },
    /// The embedded store that would name the leader was never created.
    #[error("no cluster has been started here ({place})")]
    NoCluster {
        /// Directory of the store, and the problem.
        place: String,
    },
    /// The cluster refused the request.
    #[error("{}", .errors.join("\n"))]
    Refused {
        /// HTTP status.
        status: u16,
        /// Reasons, at least one.
        errors: Vec<String>,
    },
    /// The content to send can't be read.
    #[error("{reason}")]
    Unsendable {
        /// The content, and the reason.
        reason: String,
    },
    /// The answer does not have the form of a JobManager's answer.
    #[error("the answer of {address} to {path} can't be read: {reason}")]
    BadAnswer {
        /// Address of the server.
        address: String,
        /// Path of the request.
        path: String,
        /// Problem of the answer.
        reason: String,
    },
}

impl ClientError {
    /// Returns what a user at a terminal can do about it.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            ClientError::NoCluster { .. } => {
                Some("`tanist jobmanager` starts one; --address names another")
            }
            ClientError::Unreachable { .. }
            | ClientError::Refused { .. }
            | ClientError::Unsendable { .. }
            | ClientError::BadAnswer { .. } => None,
        }
    }

    /// Whether the cluster answered that no such object exists.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ClientError::Refused { status: 404, .. })
    }
}
