//! The typed gateways between components: the requests that one component sends to another, in this process
//! (its `Handle`) or in another one (its `Client` over the wire).
//!
//! Both implementations take the same message structs and make the same checks; within one process nothing is
//! encoded. Every message names its term ([`tanist_proto::v1::Sender`]); the receiver's [`fencing`] refuses
//! outdated ones.

pub mod blobs;
mod components;
mod connector;
pub mod fencing;
mod gateways;
mod job_control;
mod job_masters;
mod job_records;
pub mod kinds;
pub mod local;
pub mod manifests;
pub mod peers;
pub mod persistence;
pub mod refusals;
pub mod registration;
pub mod remote_files;
pub mod savepoints;
mod texts;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_compact::{SmallMap, WatchCell};
use tanist_proto::id::ResourceId;
use tanist_proto::resources::{ResourceProfile, Resources};
use tanist_proto::v1 as pb;

pub use components::Components;
pub use connector::{Connector, ENDED_CONNECTIONS};
pub use gateways::{
    DispatcherGateway, JobMasterGateway, JobMastersGateway, ResourceManagerGateway,
    TaskExecutorGateway,
};
pub use job_control::{Adoption, Detail, JobMasterControl, JobMasterLauncher};
pub use job_masters::JobMastersOf;
pub use job_records::{JobRecords, NoAnswer, StoredGenerations, StoredJobs};
pub use local::LocalConnector;
pub use texts::shorten;

/// Why a gateway call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// The other side could not be reached, or its actor has ended; the message was not handled.
    #[error("{target} can't be reached: {reason}")]
    Unreachable {
        /// Target of the call.
        target: String,
        /// Reason.
        reason: String,
    },
    /// The answer was late or lost; the message may have been handled.
    #[error("no answer from {target}: {reason}")]
    NoAnswer {
        /// Target of the call.
        target: String,
        /// Reason.
        reason: String,
    },
    /// The other side belongs to a newer term, or refuses this one.
    #[error("outdated: {reason}")]
    Outdated {
        /// Epoch that the receiver knows; 0 if it named none.
        epoch: u64,
        /// Reason for the refusal.
        reason: String,
    },
    /// The other side does not lead, or its leader is still recovering: retry later.
    #[error("not yet: {0}")]
    NotYet(String),
    /// The leader's store accepts nothing at present: it has no space, or its blob store refuses. Mostly an
    /// operator must fix it.
    #[error("not yet: {0}")]
    StoreRefused(String),
    /// The named object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It exists already with other content, or its state does not allow this.
    #[error("{0}")]
    Conflict(String),
    /// It exists already, and its record can't be read, so its content can't be compared.
    #[error("{0}")]
    Incomparable(String),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Unknown whether it took effect: retry with the same id.
    #[error("it is not known whether this took effect, try again with the same id: {0}")]
    Unknown(String),
    /// Any other error.
    #[error("{0}")]
    Internal(String),
}

impl GatewayError {
    /// Error for an actor that has ended or never existed.
    pub fn gone(target: impl fmt::Display) -> GatewayError {
        GatewayError::Unreachable {
            target: target.to_string(),
            reason: "it has stopped".to_owned(),
        }
    }

    /// Whether the same request may be sent again, later or elsewhere.
    pub fn is_retryable(&self) -> bool {
        match self {
            GatewayError::Unreachable { .. }
            | GatewayError::NoAnswer { .. }
            | GatewayError::Outdated { .. }
            | GatewayError::NotYet(_)
            | GatewayError::StoreRefused(_)
            | GatewayError::Unknown(_) => true,
            GatewayError::NotFound(_)
            | GatewayError::Conflict(_)
            | GatewayError::Incomparable(_)
            | GatewayError::Invalid(_)
            | GatewayError::Internal(_) => false,
        }
    }
}

/// Result of a gateway call.
pub type GatewayResult<T> = Result<T, GatewayError>;

/// Requests of JobMasters to the ResourceManager. Both live in the leading JobManager, in one term.
#[async_trait]
pub trait ResourceRequirementsGateway: Send + Sync + fmt::Debug + 'static {
    /// Registers the JobMaster of a job, which must then declare all that the job needs. Repeating it succeeds;
    /// an older JobMaster than the registered one is `Outdated`.
    async fn register_job_master(&self, registration: JobMasterRegistration) -> GatewayResult<()>;
    /// Declares all that a job needs, replacing its earlier declaration. Empty: nothing. `NotFound`: register
    /// first, or again. `Outdated`: another JobMaster is registered for the job.
    async fn declare_required_resources(
        &self,
        requirements: ResourceRequirements,
    ) -> GatewayResult<()>;
    /// The JobMaster of a job is gone: the job needs nothing, either permanently or until another JobMaster registers.
    async fn disconnect_job_master(
        &self,
        job: tanist_proto::id::JobId,
        departure: Departure,
    ) -> GatewayResult<()>;
    /// Drains a TaskManager or all of a host, or ends a drain. Durable.
    async fn drain_task_manager(&self, request: pb::DrainTaskManagerRequest) -> GatewayResult<()> {
        let id = request.resource_id;
        let text = format!("no TaskManager {id} is registered");
        Err(GatewayError::NotFound(text))
    }
    /// Returns the registered TaskManagers and their slots.
    async fn resource_overview(&self) -> GatewayResult<ResourceOverview>;
}

/// Identifies a JobMaster among those of its job; a newer one is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobMasterId {
    /// Epoch of its term.
    pub epoch: tanist_ha::election::Epoch,
    /// Its number among the job's JobMasters in that term.
    pub incarnation: u64,
}

impl fmt::Display for JobMasterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of epoch {}", self.incarnation, self.epoch)
    }
}

/// Why a JobMaster no longer represents its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The JobMaster reports that the job has a durable result.
    JobEnded(JobMasterId),
    /// The job's present JobMaster broke. The job continues with another one.
    Broke,
}

/// Registration of a JobMaster for a job.
#[derive(Debug, Clone)]
pub struct JobMasterRegistration {
    /// Id of the job.
    pub job: tanist_proto::id::JobId,
    /// Id of the JobMaster.
    pub job_master: JobMasterId,
    /// Cell through which the ResourceManager informs this JobMaster.
    pub verdict: WatchCell<Verdict>,
}

/// The ResourceManager's message to a JobMaster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// A newer JobMaster has replaced it.
    pub is_superseded: bool,
    /// A need of the job that can never be fulfilled.
    pub unfulfillable: Option<Box<Unfulfillable>>,
    /// The job's minimum would fit into the existing TaskManagers, or those that may be started, if other jobs
    /// left them: the job waits for its turn.
    pub has_room: bool,
    /// How many times `has_room` has changed: a change that was undone shows by it.
    pub room_changes: u64,
    /// TaskManagers where the job has slots and that it must leave.
    pub leaving: Arc<Leaving>,
    /// TaskManagers where the job had slots and that are gone. The JobMaster takes them.
    pub gone: Vec<GoneTaskManager>,
}

/// A TaskManager whose process is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoneTaskManager {
    /// Its resource id.
    pub id: ResourceId,
    /// The incarnation of its process: another process may have its resource id by now.
    pub incarnation: String,
    /// How it is known.
    pub cause: String,
}

/// The TaskManagers that a job must leave, and how.
pub type Leaving = std::collections::BTreeMap<ResourceId, Leave>;

/// How a job leaves a TaskManager that is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leave {
    /// It starts nothing there; running tasks end on their own.
    ByItself,
    /// Running tasks are moved once slots for them are free elsewhere.
    Moved,
    /// Running tasks are stopped, and start elsewhere when slots are free.
    AtOnce,
}

/// A slot that no TaskManager could provide even if it were empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no TaskManager can ever give a slot of {profile}: the largest there is has {largest}")]
pub struct Unfulfillable {
    /// Requested resources of the slot.
    pub profile: ResourceProfile,
    /// Largest resources of one TaskManager.
    pub largest: Resources,
}

/// All that a job needs.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceRequirements {
    /// Id of the job.
    pub job: tanist_proto::id::JobId,
    /// The registered JobMaster, which declares this.
    pub job_master: JobMasterId,
    /// Address of the JobMaster: `host:port`.
    pub job_master_address: String,
    /// Needed slots, by profile.
    pub resources: Vec<ResourceRequirement>,
    /// Slots that the job has held on each TaskManager since before this term. They count even if the
    /// TaskManager has not registered at the ResourceManager yet.
    pub held: Arc<SmallMap<ResourceId, Vec<ResourceProfile>>>,
    /// Position among the jobs that lack slots.
    pub submission: SubmissionNumber,
    /// Whether the job ends on its own, so that its slots become free at some time.
    pub is_bounded: bool,
}

/// Order in which jobs were submitted: by the term that accepted each, and its number in that term. Persisted
/// with the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct SubmissionNumber {
    /// Epoch of the term.
    pub epoch: u64,
    /// Number of submissions that the term had accepted, including this one.
    pub number: u64,
}

impl From<&tanist_proto::v1::SubmissionNumber> for SubmissionNumber {
    fn from(persisted: &tanist_proto::v1::SubmissionNumber) -> SubmissionNumber {
        SubmissionNumber {
            epoch: persisted.epoch,
            number: persisted.number,
        }
    }
}

/// A number of slots of one profile.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceRequirement {
    /// Profile of the slots; unknown: the TaskManagers' default slot.
    pub profile: ResourceProfile,
    /// Minimum number with which the job can run.
    pub minimum: u32,
    /// Maximum number that the job can use.
    pub maximum: u32,
}

/// End of the text about missing slots where no driver starts TaskManagers.
pub const START_BY_HAND: &str = ": start TaskManagers or lower the parallelism";

/// The ResourceManager's TaskManagers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResourceOverview {
    /// The registered TaskManagers with their slots.
    pub task_managers: Vec<pb::TaskManagerInfo>,
    /// Drains that match no registered TaskManager, oldest first.
    pub unmatched_drains: Vec<pb::DrainInfo>,
    /// TaskManagers that a driver is starting and that have not registered; `None` without a driver.
    pub workers: Option<pb::WorkersInfo>,
}
