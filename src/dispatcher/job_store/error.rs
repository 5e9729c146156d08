//! Why something about a job was not written, and which errors of the stores may pass.

use tanist_gateway::GatewayError;
use tanist_gateway::persistence::PersistError;
use tanist_ha::Error;
use tanist_ha::store::pipeline::CommitError;

/// Why something about a job was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JobStoreError {
    /// Not written, and it will not be: the term is over.
    #[error("not written: this JobManager does not lead any more")]
    NotWritten,
    /// The term is over; only the next term can find out whether it was written.
    #[error("this JobManager does not lead any more, and whether this was written is not known")]
    Unknown,
    /// Not written: the store has no space at present.
    #[error("not written: {0}; try again when there is space")]
    OutOfSpace(Error),
    /// The store does not accept it.
    #[error(transparent)]
    Refused(Error),
    /// Not written: an upload that the job needs is missing or about to be deleted.
    #[error("{0}")]
    NotUploaded(String),
    /// Not written: the job can't begin from what the submission names.
    #[error("{0}")]
    NotRestored(String),
}

impl JobStoreError {
    /// Whether the term is over. Otherwise nothing was written, which is definite.
    pub(super) fn is_term_over(&self) -> bool {
        match self {
            JobStoreError::NotWritten | JobStoreError::Unknown => true,
            JobStoreError::OutOfSpace(_)
            | JobStoreError::Refused(_)
            | JobStoreError::NotUploaded(_)
            | JobStoreError::NotRestored(_) => false,
        }
    }

    /// Whether a smaller write may succeed.
    pub(super) fn is_over_limit(&self) -> bool {
        matches!(self, JobStoreError::Refused(cause) if cause.is_over_limit())
    }
}

impl From<CommitError> for JobStoreError {
    fn from(error: CommitError) -> JobStoreError {
        match error {
            CommitError::TooLarge(error) => JobStoreError::Refused(error),
            CommitError::OutOfSpace(error) => JobStoreError::OutOfSpace(error),
            CommitError::NotApplied => JobStoreError::NotWritten,
            CommitError::Unknown => JobStoreError::Unknown,
        }
    }
}

impl From<JobStoreError> for GatewayError {
    fn from(error: JobStoreError) -> GatewayError {
        match &error {
            JobStoreError::NotWritten => GatewayError::NotYet(error.to_string()),
            JobStoreError::OutOfSpace(_) => GatewayError::StoreRefused(error.to_string()),
            JobStoreError::Unknown => GatewayError::Unknown(error.to_string()),
            JobStoreError::NotUploaded(_) | JobStoreError::NotRestored(_) => {
                GatewayError::Invalid(error.to_string())
            }
            JobStoreError::Refused(cause) if cause.is_over_limit() => {
                GatewayError::Invalid(error.to_string())
            }
            // The blob store did not answer or denied access for now: nothing was written.
            JobStoreError::Refused(cause) if cause.may_pass() => {
                GatewayError::StoreRefused(error.to_string())
            }
            JobStoreError::Refused(_) => GatewayError::Internal(error.to_string()),
        }
    }
}

impl From<JobStoreError> for PersistError {
    fn from(error: JobStoreError) -> PersistError {
        match error {
            JobStoreError::NotWritten | JobStoreError::Unknown => PersistError::TermOver,
            JobStoreError::Refused(Error::TooLarge { size, limit, .. }) => {
                PersistError::TooLarge { size, limit }
            }
            JobStoreError::OutOfSpace(error) | JobStoreError::Refused(error) => {
                PersistError::Refused(error.to_string())
            }
            JobStoreError::NotUploaded(reason) | JobStoreError::NotRestored(reason) => {
                PersistError::Refused(reason)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_blob_store_denies_is_tried_again_and_what_is_too_large_is_not() {
        let denied = Error::Denied {
            store: "the blob store",
            reason: "the token has expired".to_owned(),
        };
        assert!(denied.may_pass());
        let refusal = GatewayError::from(JobStoreError::Refused(denied));
        assert!(refusal.is_retryable(), "{refusal:?}");
        let too_large = Error::TooLarge {
            store: "etcd",
            what: "a record",
            size: 2,
            limit: 1,
        };
        assert!(!too_large.may_pass());
        let refusal = GatewayError::from(JobStoreError::Refused(too_large));
        assert!(!refusal.is_retryable(), "{refusal:?}");
    }
}
