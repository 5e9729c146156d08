//! The client of a cluster: finds the leader, sends it requests over REST, and continues over a failover.
//!
//! A request is tried at one JobManager after the other until one answers or the timeout is over; every
//! JobManager will do, because standbys forward to the leader. Requests are safe to repeat: a submission is
//! repeated with the same job id and token.
//!
//! The crate `tanist`, which exports this one as `client`, has an example.

mod cluster_client;
mod deadline;
mod drains;
mod error;
mod finder;
mod ha;
mod job_client;
mod job_execution;
mod rest_client;
mod restore;
mod savepoints;
mod upload;

#[cfg(test)]
mod tests;

pub use cluster_client::{ClusterClient, Job};
pub use drains::Drained;
pub use error::ClientError;
pub use finder::{LeaderFinder, StaticAddresses};
pub use job_client::JobClient;
pub use job_execution::{ExecuteError, JobExecution, JobExecutionResult};
pub use rest_client::{RestClient, RetryOptions};
pub use restore::Restore;
pub use savepoints::{SavepointFailure, SavepointStatus};
/// What a job begins from.
pub use tanist_config::RestoreFrom;
/// Types that these calls use.
pub use tanist_proto::{id::JobId, v1::JobStatus};
/// Bodies of the REST API.
pub use tanist_rest_model::{
    BlockedReason, CacheInfo, CheckpointInProgress, CheckpointInfo, CheckpointStatistics,
    ClaimInfo, DrainOptions, DrainSummary, DurationText, Evidence, FailingRegions, HaStatusInfo,
    IoMetrics, JobCheckpoints, JobEventInfo, JobExceptionInfo, JobInfo, JobSummary, LeaderInfo,
    MemberInfo, Quarantine, QuarantinedJob, SavepointInfo, SkippedRegion, StateCounts,
    StorageProblem, StoreInfo, StoreServerInfo, Submitted, SubtaskInfo, TaskCounts,
    TaskManagerList, TaskManagerSummary, TermHistory, TermInfo, VertexInfo, VertexSubtasks,
};
