//! Lines of the log: the actor writes them before it runs the effects. Data only; [`crate::log`] has levels and texts.

use std::time::Duration;

use tanist_gateway::NoAnswer;
use tanist_ha::election::{ClusterIncarnation, Epoch, ProcessId};
use tanist_proto::id::{AllocationId, Generation, JobId, JobVertexId};
use tanist_proto::resources::ResourceProfile;

/// One line of the log.
#[derive(Debug)]
pub(crate) enum LogLine {
    /// A new leader is followed.
    LeaderFollowed { epoch: Epoch, address: String },
    /// A leader called before the store showed it.
    LeaderAnnounced { epoch: Epoch, process: String },
    /// The store names a leader that can't be followed.
    LeaderRefused { refusal: String },
    /// The store names a leader without address.
    LeaderWithoutAddress { leader: ProcessId },
    /// The followed leader is not one that the store knows.
    LeaderDropped { epoch: Epoch, address: String },
    /// Registered at the ResourceManager.
    AtResourceManager {
        resource_manager: String,
        epoch: u64,
        address: String,
    },
    /// Registered at a JobMaster.
    AtJobMaster { job: JobId, epoch: u64 },
    /// A JobMaster rejected the registration.
    JobMasterRejected { job: JobId, reason: String },
    /// The ResourceManager does not know the registration.
    RegistrationUnknown { error: String },
    /// The ResourceManager was silent for the heartbeat timeout.
    ResourceManagerSilent,
    /// The ResourceManager disconnected.
    ResourceManagerDisconnected { cause: String },
    /// A JobMaster was silent for the heartbeat timeout.
    JobMasterSilent { job: JobId },
    /// A JobMaster disconnected, but its job continues.
    JobMasterDisconnected { job: JobId, cause: String },
    /// Another JobMaster leads the job.
    JobTakenOver { job: JobId },
    /// A call to a JobMaster failed.
    CallFailed { job: JobId, error: String },
    /// A slot is allocated.
    SlotAllocated {
        job: JobId,
        allocation: AllocationId,
        slot: u32,
        /// The requested resources.
        profile: ResourceProfile,
    },
    /// A slot is freed on request.
    SlotFreed {
        job: JobId,
        allocation: AllocationId,
        cause: String,
    },
    /// A slot is not freed although that was requested.
    SlotKept {
        job: JobId,
        allocation: AllocationId,
    },
    /// A JobMaster did not accept a slot.
    SlotRejected {
        job: JobId,
        allocation: AllocationId,
    },
    /// No JobMaster accepted a slot in time.
    SlotNotAccepted {
        job: JobId,
        allocation: AllocationId,
    },
    /// A task failed.
    TaskFailed {
        job: JobId,
        vertex: JobVertexId,
        subtask: u32,
        generation: Generation,
        cause: String,
    },
    /// A task is not started.
    TaskRefused {
        job: JobId,
        /// The vertex, as the deployment names it.
        vertex: String,
        subtask: u32,
        generation: u64,
        reason: String,
    },
    /// No task of a deployment is started.
    TasksRefused {
        job: JobId,
        /// Number of tasks.
        tasks: usize,
        reason: String,
    },
    /// A cancelled task still runs.
    TaskStillRuns {
        job: JobId,
        vertex: JobVertexId,
        subtask: u32,
        /// Milliseconds since it was cancelled.
        ms: u64,
    },
    /// Tasks are cancelled since the store has a younger generation.
    TasksSuperseded {
        job: JobId,
        /// Number of tasks.
        tasks: usize,
    },
    /// Tasks of an isolated job are cancelled.
    IsolationLapsed {
        job: JobId,
        /// Number of tasks.
        tasks: usize,
        /// Time since the store last confirmed their generation.
        since: Duration,
    },
    /// This process stood still.
    StoodStill { late: Duration },
    /// A job is being stopped.
    JobStopped { job: JobId },
    /// A job ends on this TaskExecutor.
    JobEnds { job: JobId, cause: String },
    /// No more slots are accepted.
    Draining,
    /// Slots are accepted again.
    DrainingEnded,
    /// The store did not answer a read of generations.
    StoreSilent {
        reason: NoAnswer,
        /// Number of jobs in the read.
        jobs: usize,
    },
    /// The store's answer about jobs is ignored.
    StoreNotBelieved {
        /// The cluster that it names.
        incarnation: ClusterIncarnation,
        /// The epoch that it names.
        epoch: Epoch,
    },
    /// The store has a state of a job that this process can't read.
    StateUnreadable { job: JobId, reason: String },
}
