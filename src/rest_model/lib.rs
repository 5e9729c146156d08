//! What the REST API says: paths, headers and bodies, each described once for its server and for its clients.
//!
//! The server (`tanist-rest`) fills the bodies in from the messages of the Dispatcher and serializes them. The client
//! (`tanist-client`), the command line and the other JobManagers deserialize them. A body that only Flink's clients
//! read is described where it is written, in `tanist-rest`. There is no transport here and no conversion.
//!
//! The order of the fields is their order in the JSON. A client ignores fields that it does not know; a field that it
//! can do without has a default. Names are Flink's where Flink has the same field. All times are in milliseconds since
//! 1970; -1 is a time that has not come, and the duration of something that has not begun.

mod blocked_reason;
mod checkpoints;
mod counts;
mod drain;
mod events;
mod exceptions;
mod ha;
pub mod headers;
mod job;
pub mod paths;
mod plan;
mod savepoints;
mod states;
mod submission;
mod task_managers;
mod vertex;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

pub use blocked_reason::{BlockedReason, Evidence, Quarantine, QuarantineList, QuarantinedJob};
pub use checkpoints::{
    CheckpointAlignment, CheckpointCounts, CheckpointDurations, CheckpointInProgress,
    CheckpointInfo, CheckpointStatistics, CheckpointSummaries, CheckpointSummary, FailingRegions,
    JobCheckpoints, LatestCheckpoints, RestoredCheckpoint, SkippedRegion, SlowestSubtask,
    StorageProblem, SubtaskAcknowledgement, SubtaskCheckpoint, SubtaskSummaries, VertexCheckpoint,
    VertexCheckpointInfo,
};
pub use counts::{StateCounts, TaskCounts};
pub use drain::{DrainOptions, DrainSummary, DurationText};
pub use events::{JobEventInfo, JobEvents};
pub use exceptions::{ExceptionHistory, JobExceptionInfo, JobExceptions};
pub use ha::{
    CacheInfo, ClaimInfo, HaStatusInfo, LeaderInfo, MemberInfo, OwnStatus, RecoveryInfo, StoreInfo,
    StoreServerInfo, TermHistory, TermInfo, TermList, TransferRequest,
};
pub use job::{JobInfo, JobList, JobStatusBody, JobSummary};
pub use plan::{Plan, PlanInput, PlanNode};
pub use savepoints::{
    DisposalRequest, FailureCause, OperationEnd, OperationStatus, QueueStatus, SavepointInfo,
    SavepointRequest, StopRequest, Triggered,
};
pub use states::{execution_state_name, job_status_name};
pub use submission::{Submitted, TermTime, Uploaded};
pub use task_managers::{
    Hardware, MemoryConfiguration, PendingTaskManager, Resource, Starting, TaskManagerList,
    TaskManagerSummary,
};
pub use vertex::{Aggregated, IoMetrics, Statistics, SubtaskInfo, VertexInfo, VertexSubtasks};

/// A word that the API defines, such as `RUNNING`. The server borrows its constants and copies nothing.
pub type Word = Cow<'static, str>;

/// The body of every error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors {
    /// One text for each problem.
    pub errors: Vec<String>,
}

/// A body without content, as Flink's empty answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {}
