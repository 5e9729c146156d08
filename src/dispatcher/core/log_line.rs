//! Lines about decisions of a Dispatcher, for an operator. The actor writes them to the log before it runs the effects.
//! Decides nothing; [`crate::log`] has levels and texts.

use tanist_gateway::persistence::PersistError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use crate::JobStoreError;

/// One line of the log.
#[derive(Debug)]
pub(crate) enum LogLine {
    /// A job is stored.
    JobSubmitted { job: JobId, name: String },
    /// The result of a job is stored.
    JobEnded { job: JobId, status: pb::JobStatus },
    /// The result of a job is not stored.
    ResultNotWritten { job: JobId, failure: JobStoreError },
    /// The cleanup of a job that an earlier term has not finished goes on.
    CleanupResumed { job: JobId },
    /// The result of a job stays dirty.
    NotMarkedClean { job: JobId, failure: JobStoreError },
    /// Expired results stay.
    ResultsNotDeleted { failure: JobStoreError },
    /// Descriptions beyond the limit stay.
    DescriptionsNotDropped { failure: JobStoreError },
    /// The retention count is not stored.
    RetentionNotNoted { job: JobId, failure: JobStoreError },
    /// A job is quarantined.
    Quarantined { job: JobId, reason: String },
    /// A job that can't be led was cancelled before, and ends.
    WasCancelled { job: JobId },
    /// A quarantined job ends, and it is unknown where its sinks have written.
    DirectoriesUnknown { job: JobId },
    /// The reason for a quarantine is not stored.
    QuarantineNotWritten { job: JobId, failure: PersistError },
    /// A quarantined job is retried.
    LedAgain { job: JobId },
    /// A job whose JobMaster broke was not read.
    JobNotReread { job: JobId, failure: JobStoreError },
    /// A job whose turn had come was not read.
    SuspectNotRead { job: JobId, failure: JobStoreError },
    /// A job ends before its turn to be recovered.
    SuspectCancelled { job: JobId },
    /// The records of a job can't be read for now.
    RecordsUnavailable { job: JobId, reason: String },
    /// The result of an ended job can't be read for now.
    ResultUnavailable { job: JobId, reason: String },
    /// The result of an ended job is read.
    ResultRead { job: JobId },
}
