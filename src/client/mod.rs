//! The client of a cluster: finds the leader, asks it over REST, and goes on over a failover.
//!
//! A request is tried at one JobManager after the other until one answers or the time is up; any of them will do, since
//! standbys ask the leader. What takes effect carries what makes a second try harmless: a submission is repeated with the
//! same job id and token.

mod error;
mod finder;
mod ha;
mod job_client;
mod model;
mod rest_client;

#[cfg(test)]
mod tests;

pub use error::ClientError;
pub use finder::{FollowedLeader, LeaderFinder, StaticAddresses};
pub use ha::{
    CacheInfo, HaStatusInfo, LeaderInfo, MemberInfo, StoreInfo, StoreServerInfo, TermHistory,
    TermInfo,
};
pub use job_client::{JobClient, Submitted};
pub use model::{
    Evidence, Hindrance, JobInfo, JobSummary, QuarantinedJob, TaskManagerSummary, VertexInfo,
};
pub use rest_client::{Answer, Request, RestClient, RetryOptions};
