//! The typed gateways through which components meet: what one may ask of another, whether it runs in this process (its
//! `Handle`) or in another one (its `Client` over the wire).
//!
//! Both implementations take the same message structs and make the same checks; in one process nothing is encoded.
//! Every message names its term ([`tanist_proto::v1::Sender`]); the receiver's [`fencing`] refuses outdated ones.

pub mod blobs;
mod components;
mod connector;
pub mod fencing;
mod job_control;
mod job_masters;
mod job_records;
pub mod local;
pub mod persistence;
pub mod refusals;
pub mod registration;
pub mod remote_files;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_proto::id::ResourceId;
use tanist_proto::resources::{ResourceProfile, Resources};
use tanist_proto::v1 as pb;

use crate::notice::Notice;
use crate::small_map::SmallMap;

pub use components::Components;
pub use connector::Connector;
pub use job_control::{Adoption, JobMasterControl, JobMasterLauncher};
pub use job_masters::{JobMastersGateway, JobMastersOf};
pub use job_records::{JobRecords, JobStanding, JobStandings, NoAnswer};
pub use local::LocalConnector;

/// Why a gateway gave no answer, or none that helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// The other side could not be reached, or its actor has ended; the message was not handled.
    #[error("{target} can't be reached: {reason}")]
    Unreachable {
        /// What was called.
        target: String,
        /// Why.
        reason: String,
    },
    /// The answer did not come in time or was lost; the message may have been handled.
    #[error("no answer from {target}: {reason}")]
    NoAnswer {
        /// What was called.
        target: String,
        /// Why.
        reason: String,
    },
    /// The other side belongs to a younger term or refuses this one: the epoch it named, if it did.
    #[error("outdated: {reason}")]
    Outdated {
        /// The epoch that the receiver has heard of.
        epoch: u64,
        /// What did not match.
        reason: String,
    },
    /// The other side does not lead, or its leader is still recovering: ask again later.
    #[error("not yet: {0}")]
    NotYet(String),
    /// The leader's store takes nothing at present: it has no space, or its blob store refuses. That may pass, but mostly by people.
    #[error("not yet: {0}")]
    StoreRefused(String),
    /// What was named does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It exists already, with other content, or is in a state that does not allow this.
    #[error("{0}")]
    Conflict(String),
    /// It exists already, and whether with this content can't be told: its record can't be read.
    #[error("{0}")]
    Incomparable(String),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// It is not known whether it took effect: try again with the same id.
    #[error("it is not known whether this took effect, try again with the same id: {0}")]
    Unknown(String),
    /// Anything else.
    #[error("{0}")]
    Internal(String),
}

impl GatewayError {
    /// The other side's actor has ended or was never there.
    pub fn gone(target: impl fmt::Display) -> GatewayError {
        GatewayError::Unreachable {
            target: target.to_string(),
            reason: "it has stopped".to_owned(),
        }
    }

    /// Whether the same request may simply be sent again, later or elsewhere.
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

/// The result of asking through a gateway.
pub type GatewayResult<T> = Result<T, GatewayError>;

/// What clients and REST ask of the leading JobManager.
#[async_trait]
pub trait DispatcherGateway: Send + Sync + fmt::Debug + 'static {
    /// Persists a job and starts it. Acknowledged is durable; repeated with the same id and token it takes effect once.
    async fn submit_job(
        &self,
        request: pb::SubmitJobRequest,
    ) -> GatewayResult<pb::SubmitJobResponse>;
    /// What the clock of the leader's term shows, by which deadlines of submissions are measured.
    async fn tell_term_time(&self, request: pb::TermTimeRequest) -> GatewayResult<pb::TermTime>;
    /// Persists that the job is to be canceled.
    async fn cancel_job(&self, request: pb::CancelJobRequest) -> GatewayResult<pb::Ack>;
    /// Persists that the job's sources are to end, so that it finishes. `Conflict`: it ends otherwise.
    async fn stop_job(&self, request: pb::StopJobRequest) -> GatewayResult<pb::Ack>;
    /// Every job, running and ended.
    async fn list_jobs(&self, request: pb::ListJobsRequest) -> GatewayResult<pb::ListJobsResponse>;
    /// One job in full.
    async fn describe_job(&self, request: pb::DescribeJobRequest) -> GatewayResult<pb::JobDetails>;
    /// Counts of TaskManagers, slots and jobs.
    async fn describe_cluster(
        &self,
        request: pb::DescribeClusterRequest,
    ) -> GatewayResult<pb::ClusterOverview>;
    /// The registered TaskManagers.
    async fn list_task_managers(
        &self,
        request: pb::ListTaskManagersRequest,
    ) -> GatewayResult<pb::ListTaskManagersResponse>;
    /// Gives no slots of a TaskManager away any more; it leaves when the last one is free.
    async fn drain_task_manager(
        &self,
        request: pb::DrainTaskManagerRequest,
    ) -> GatewayResult<pb::Ack>;
    /// Leads a quarantined job again, or ends it. `Conflict`: it is not quarantined, or not to be helped.
    async fn resolve_quarantine(
        &self,
        request: pb::ResolveQuarantineRequest,
    ) -> GatewayResult<pb::Ack>;
}

/// What TaskExecutors ask of the leading ResourceManager.
#[async_trait]
pub trait ResourceManagerGateway: Send + Sync + fmt::Debug + 'static {
    /// Registers a TaskExecutor with its slots, or answers why not.
    async fn register_task_executor(
        &self,
        request: pb::RegisterTaskExecutorRequest,
    ) -> GatewayResult<pb::RegistrationResponse>;
    /// Slots became free or changed hands.
    async fn notify_slots_available(
        &self,
        request: pb::NotifySlotsAvailableRequest,
    ) -> GatewayResult<pb::Ack>;
    /// A TaskExecutor says goodbye.
    async fn disconnect_task_executor(
        &self,
        request: pb::DisconnectTaskExecutorRequest,
    ) -> GatewayResult<pb::Ack>;
}

/// What JobMasters ask of the ResourceManager. Both live in the leading JobManager, in one term.
#[async_trait]
pub trait ResourceRequirementsGateway: Send + Sync + fmt::Debug + 'static {
    /// Registers the JobMaster of a job, which then has to state all that the job needs. The same again is a success; an
    /// older one than the present is `Outdated`.
    async fn register_job_master(&self, registration: JobMasterRegistration) -> GatewayResult<()>;
    /// States all that a job needs, replacing what was stated before. Empty: nothing. `NotFound`: register first, or again.
    /// `Outdated`: another JobMaster speaks for the job.
    async fn declare_required_resources(
        &self,
        requirements: ResourceRequirements,
    ) -> GatewayResult<()>;
    /// The JobMaster of a job is gone: the job needs nothing, or nothing until there is another one.
    async fn disconnect_job_master(
        &self,
        job: tanist_proto::id::JobId,
        departure: Departure,
    ) -> GatewayResult<()>;
    /// Drains a TaskManager or all of a host, or takes that back. That is durable.
    async fn drain_task_manager(&self, request: pb::DrainTaskManagerRequest) -> GatewayResult<()> {
        let id = request.resource_id;
        let text = format!("no TaskManager {id} is registered");
        Err(GatewayError::NotFound(text))
    }
    /// Registered TaskManagers and their slots.
    async fn resource_overview(&self) -> GatewayResult<ResourceOverview>;
}

/// Tells the JobMasters of one job apart; a younger one is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobMasterId {
    /// The term that it is part of.
    pub epoch: tanist_ha::election::Epoch,
    /// Which one of that term, and of the job.
    pub incarnation: u64,
}

impl fmt::Display for JobMasterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of epoch {}", self.incarnation, self.epoch)
    }
}

/// Why a JobMaster speaks for its job no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The job has a durable result, says its JobMaster.
    JobEnded(JobMasterId),
    /// It broke, whichever it was; the job goes on with another one.
    Broke,
}

/// A JobMaster that speaks for a job.
#[derive(Debug, Clone)]
pub struct JobMasterRegistration {
    /// For which one.
    pub job: tanist_proto::id::JobId,
    /// Who.
    pub job_master: JobMasterId,
    /// Where it is told what becomes of it.
    pub verdict: Notice<Verdict>,
}

/// What the ResourceManager tells a JobMaster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// A younger one has taken its place.
    pub is_superseded: bool,
    /// The job needs what it will never get.
    pub unfulfillable: Option<Box<Unfulfillable>>,
    /// What the job needs at least would fit into the TaskManagers that there are, or that may be started, if others left it: it waits
    /// for its turn.
    pub has_room: bool,
    /// The TaskManagers that the job has slots of and is to leave.
    pub leaving: Arc<Leaving>,
}

/// The TaskManagers that a job is to leave, and how.
pub type Leaving = std::collections::BTreeMap<ResourceId, Leave>;

/// How a job is to leave a TaskManager that is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leave {
    /// It begins nothing there; what runs there ends by itself.
    ByItself,
    /// What runs there is moved once there are slots for it elsewhere.
    Moved,
    /// What runs there is stopped, and starts elsewhere when there are slots.
    AtOnce,
}

/// A slot that no TaskManager could give, if nothing of it were taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no TaskManager can ever give a slot of {profile}: the largest there is has {largest}")]
pub struct Unfulfillable {
    /// What it was to have.
    pub profile: ResourceProfile,
    /// The most that one of them has.
    pub largest: Resources,
}

/// All that a job needs.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceRequirements {
    /// Whose.
    pub job: tanist_proto::id::JobId,
    /// Who states it: the registered JobMaster.
    pub job_master: JobMasterId,
    /// Where its JobMaster is reached: `host:port`.
    pub job_master_address: String,
    /// What it needs, by profile.
    pub resources: Vec<ResourceRequirement>,
    /// The slots that it has held since before this term on each of these TaskManagers. One that has not registered at
    /// the ResourceManager yet has them all the same.
    pub held: Arc<SmallMap<ResourceId, Vec<ResourceProfile>>>,
    /// Its place among the jobs that lack slots.
    pub submission: SubmissionNumber,
    /// Whether it ends by itself: what it holds comes free some day.
    pub is_bounded: bool,
}

/// The order in which jobs were submitted: by the term that took each, and by its number there. Persisted with the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct SubmissionNumber {
    /// The term.
    pub epoch: u64,
    /// How many it had taken with this one.
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
    /// Unknown: the TaskManagers' default slot.
    pub profile: ResourceProfile,
    /// With fewer the job can't run.
    pub minimum: u32,
    /// More are of no use.
    pub maximum: u32,
}

/// How the text about missing slots ends where nobody but people starts TaskManagers.
pub const START_BY_HAND: &str = ": start TaskManagers or lower the parallelism";

/// The ResourceManager's TaskManagers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResourceOverview {
    /// Each with its slots.
    pub task_managers: Vec<pb::TaskManagerInfo>,
    /// The drains that hold for none of them, the oldest first.
    pub unmatched_drains: Vec<pb::DrainInfo>,
    /// Those that a driver starts and that have not registered; nothing where none does.
    pub workers: Option<pb::WorkersInfo>,
}

/// What TaskExecutors ask of the JobMaster of one job.
#[async_trait]
pub trait JobMasterGateway: Send + Sync + fmt::Debug + 'static {
    /// Registers a TaskManager with what it runs and holds for the job. Idempotent by incarnation.
    async fn register_task_manager(
        &self,
        request: pb::RegisterTaskManagerRequest,
    ) -> GatewayResult<pb::RegisterTaskManagerResponse>;
    /// Offers slots that the ResourceManager allocated to the job.
    async fn offer_slots(
        &self,
        request: pb::OfferSlotsRequest,
    ) -> GatewayResult<pb::OfferSlotsResponse>;
    /// Reports changed executions.
    async fn update_task_execution_states(
        &self,
        request: pb::UpdateTaskExecutionStatesRequest,
    ) -> GatewayResult<pb::UpdateTaskExecutionStatesResponse>;
    /// A slot is lost.
    async fn fail_slot(&self, request: pb::FailSlotRequest) -> GatewayResult<pb::Ack>;
    /// A task asks the JobMaster's half of one of its operators; answered when the answer is durable. The same number has the
    /// same answer. `Conflict`: the execution is not, or not yet, one that is served; `Invalid`: this is never answered.
    async fn ask_coordinator(
        &self,
        request: pb::AskCoordinatorRequest,
    ) -> GatewayResult<pb::AskCoordinatorResponse>;
    /// A TaskManager says goodbye.
    async fn disconnect_task_manager(
        &self,
        request: pb::DisconnectTaskManagerRequest,
    ) -> GatewayResult<pb::Ack>;
}

/// What the leading JobManager asks of a TaskExecutor.
#[async_trait]
pub trait TaskExecutorGateway: Send + Sync + fmt::Debug + 'static {
    /// Allocates a slot to a job. Idempotent for the same slot, job and allocation.
    async fn request_slot(
        &self,
        request: pb::RequestSlotRequest,
    ) -> GatewayResult<pb::RequestSlotResponse>;
    /// Frees allocations, cancelling what runs in them.
    async fn free_slots(&self, request: pb::FreeSlotsRequest) -> GatewayResult<pb::Ack>;
    /// Deploys tasks. Each (subtask, generation) starts at most once.
    async fn submit_tasks(
        &self,
        request: pb::SubmitTasksRequest,
    ) -> GatewayResult<pb::SubmitTasksResponse>;
    /// Cancels tasks up to a generation; they are never started afterwards.
    async fn cancel_tasks(&self, request: pb::CancelTasksRequest) -> GatewayResult<pb::Ack>;
    /// These terminal executions are persisted: they need not be reported again.
    async fn acknowledge_executions(
        &self,
        request: pb::AcknowledgeExecutionsRequest,
    ) -> GatewayResult<pb::Ack>;
    /// The ResourceManager's heartbeat.
    async fn heartbeat_from_resource_manager(
        &self,
        request: pb::HeartbeatFromResourceManagerRequest,
    ) -> GatewayResult<pb::HeartbeatFromResourceManagerResponse>;
    /// A JobMaster's heartbeat.
    async fn heartbeat_from_job_master(
        &self,
        request: pb::HeartbeatFromJobMasterRequest,
    ) -> GatewayResult<pb::HeartbeatFromJobMasterResponse>;
    /// The JobMaster lets go: the job ended, or this TaskExecutor is given up.
    async fn disconnect_job_master(
        &self,
        request: pb::DisconnectJobMasterRequest,
    ) -> GatewayResult<pb::Ack>;
    /// The ResourceManager lets go: register again.
    async fn disconnect_resource_manager(
        &self,
        request: pb::DisconnectResourceManagerRequest,
    ) -> GatewayResult<pb::Ack>;
    /// A process that took leadership says so: its epoch counts from here on, and it is registered at.
    async fn announce_leader(
        &self,
        request: pb::AnnounceLeaderRequest,
    ) -> GatewayResult<pb::AnnounceLeaderResponse>;
}
