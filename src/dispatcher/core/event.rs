//! Events: the inputs of the core. Data only.

use tanist_gateway::persistence::PersistError;
use tanist_ha::clock::Uptime;
use tanist_ha::election::NotLeading;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{Command, JobToRetry, Listing, ReadNumber, Replies, Submission, Times};
use crate::{JobStoreError, RecoveredJob, RecoveredJobs};

/// What the actor reads right before each event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Time since the Dispatcher started.
    pub uptime: Uptime,
    /// The wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The term's clock, for deadlines of submissions.
    pub times: Times,
    /// Whether the term may decide.
    pub standing: Result<(), NotLeading>,
}

/// The outcome of reading a job again. An error means that the term is ending.
pub(crate) type Reread = Result<RecoveredJob, JobStoreError>;

/// A time that the core waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Timeout of the requests that wait for unread results.
    UnreadResults,
    /// Timeout of the submissions that wait for the cleanup of a job.
    Cleanup(JobId),
}

/// An input of the core.
#[derive(Debug)]
pub(crate) enum Event<R: Replies> {
    /// A request.
    Asked(Command<R>),
    /// The store was asked whether this term is the latest; the error is the reason.
    TermConfirmed(Result<(), String>),
    /// A submission was written, or writing it failed.
    SubmissionWritten {
        submission: Box<Submission>,
        state: Box<pb::JobState>,
        written: Result<(), JobStoreError>,
    },
    /// The job is globally terminal.
    JobEnded {
        job: JobId,
        result: Box<pb::JobResult>,
    },
    /// A JobMaster ended without a result.
    JobMasterBroke {
        job: JobId,
        /// Why no JobMaster can be created from the job's records; `None`: it broke for another reason.
        unfit: Option<String>,
    },
    /// The rest of a broken JobMaster is removed, and its job was read again.
    JobMasterRemoved {
        job: JobId,
        /// As in [`super::Effect::RemoveJobMaster`].
        broken: u32,
        /// As in [`super::Effect::RemoveJobMaster`].
        unfit: Option<String>,
        found: Reread,
    },
    /// The result of a job was written, or writing it failed.
    ResultWritten {
        job: JobId,
        /// The result, as the store has it.
        written: Result<Box<pb::JobResult>, JobStoreError>,
        /// As in [`super::Effect::WriteResult`].
        reply: Option<R::To<pb::Ack>>,
    },
    /// What an ended job left is removed.
    CleanedUp { job: JobId },
    /// The cleanup failed as often as is allowed in one term.
    CleanupGivenUp { job: JobId, reason: String },
    /// The result of a job that was cleaned up was written as clean, or writing it failed.
    MarkedClean {
        job: JobId,
        marked: Result<(), JobStoreError>,
    },
    /// Expired results were removed, or that failed.
    ResultsDeleted {
        jobs: Vec<JobId>,
        deleted: Result<(), JobStoreError>,
    },
    /// Some or all surplus descriptions were dropped.
    DescriptionsDropped {
        /// The results without them.
        results: Vec<pb::JobResult>,
        /// The error before all were dropped; `None`: all were.
        failure: Option<JobStoreError>,
    },
    /// The retention count was written, or writing it failed.
    RetentionNoted {
        job: JobId,
        counted_ms: u64,
        noted: Result<(), JobStoreError>,
    },
    /// The reason for a quarantine was written, or writing it failed.
    QuarantineWritten {
        job: JobId,
        written: Result<(), PersistError>,
    },
    /// Jobs that wait were read: suspects whose turn has come, or a job whose records could not be read.
    WaitingJobsRead {
        found: Vec<(JobId, Reread)>,
        /// Number of the read.
        number: ReadNumber,
        /// The command to start crash suspects; `None`: no command asked for the read.
        reply: Option<R::To<()>>,
    },
    /// The result of an ended job, unreadable when the term began, was read; or it is certain that it can't be read.
    ResultRead {
        job: JobId,
        found: Result<Box<pb::JobResult>, (pb::QuarantineKind, String)>,
    },
    /// The results that existed when the term began were read.
    ResultsRead(Box<RecoveredJobs>),
    /// A quarantined job was read again, to retry it.
    QuarantinedRead {
        job: JobId,
        found: Reread,
        /// As in [`super::Effect::ReadQuarantined`].
        from_checkpoint: Option<u64>,
        reply: R::To<pb::Ack>,
    },
    /// A job's record was written without its quarantine, or writing it failed.
    QuarantineRemoved {
        job: JobId,
        to_retry: JobToRetry,
        /// Whether it was to go back to an older checkpoint.
        goes_back: bool,
        written: Result<(), PersistError>,
        reply: R::To<pb::Ack>,
    },
    /// An unreadable result was removed, or that failed.
    UnreadableResultDeleted {
        job: JobId,
        deleted: Result<(), JobStoreError>,
        reply: R::To<pb::Ack>,
    },
    /// All jobs were described for a list.
    Listed {
        listing: Listing,
        reply: R::To<pb::ListJobsResponse>,
    },
    /// A timer has run out.
    TimedOut(Timer),
    /// It is time to look for expired results.
    ExpirationDue,
}
