//! What the decisions of a TaskExecutor have to say to an operator: lines that the actor writes to the log before it
//! runs the effects. Decides nothing; [`crate::log`] has levels and texts.

use std::time::Duration;

use tanist_gateway::NoAnswer;
use tanist_ha::election::{ClusterIncarnation, Epoch, ProcessId};
use tanist_proto::id::{AllocationId, Generation, JobId, JobVertexId};
use tanist_proto::resources::ResourceProfile;

/// One line of the log.
#[derive(Debug)]
pub enum LogLine {
    /// A new leader is followed.
    LeaderFollowed {
        /// Its epoch.
        epoch: Epoch,
        /// Its RPC address.
        address: String,
    },
    /// A leader called before the store showed it.
    LeaderAnnounced {
        /// Its epoch.
        epoch: Epoch,
        /// Its process.
        process: String,
    },
    /// The store names a leader that can't be followed.
    LeaderRefused {
        /// The reason.
        refusal: String,
    },
    /// The store names a leader without address.
    LeaderWithoutAddress {
        /// Its process.
        leader: ProcessId,
    },
    /// The followed leader is not one that the store knows.
    LeaderDropped {
        /// Its epoch.
        epoch: Epoch,
        /// Its RPC address.
        address: String,
    },
    /// Registered at the ResourceManager.
    AtResourceManager {
        /// Its id.
        resource_manager: String,
        /// Its epoch.
        epoch: u64,
        /// Its RPC address.
        address: String,
    },
    /// Registered at a JobMaster.
    AtJobMaster {
        /// The job.
        job: JobId,
        /// Its epoch.
        epoch: u64,
    },
    /// A JobMaster rejected the registration.
    JobMasterRejected {
        /// The job.
        job: JobId,
        /// The reason.
        reason: String,
    },
    /// The ResourceManager does not know the registration.
    RegistrationUnknown {
        /// Its answer.
        error: String,
    },
    /// The ResourceManager sent nothing for too long.
    ResourceManagerSilent,
    /// The ResourceManager disconnected.
    ResourceManagerDisconnected {
        /// The reason.
        cause: String,
    },
    /// A JobMaster sent nothing for too long.
    JobMasterSilent {
        /// The job.
        job: JobId,
    },
    /// A JobMaster disconnected, but its job continues.
    JobMasterDisconnected {
        /// The job.
        job: JobId,
        /// The reason.
        cause: String,
    },
    /// Another JobMaster leads the job.
    JobTakenOver {
        /// The job.
        job: JobId,
    },
    /// A call to a JobMaster failed.
    CallFailed {
        /// The job.
        job: JobId,
        /// The error.
        error: String,
    },
    /// A slot is allocated.
    SlotAllocated {
        /// The job.
        job: JobId,
        /// The allocation.
        allocation: AllocationId,
        /// The slot.
        slot: u32,
        /// The requested resources.
        profile: ResourceProfile,
    },
    /// A slot is freed on request.
    SlotFreed {
        /// The job.
        job: JobId,
        /// The allocation.
        allocation: AllocationId,
        /// The reason.
        cause: String,
    },
    /// A slot is not freed although that was requested.
    SlotKept {
        /// The job.
        job: JobId,
        /// The allocation.
        allocation: AllocationId,
    },
    /// A JobMaster did not accept a slot.
    SlotRejected {
        /// The job.
        job: JobId,
        /// The allocation.
        allocation: AllocationId,
    },
    /// No JobMaster accepted a slot in time.
    SlotNotAccepted {
        /// The job.
        job: JobId,
        /// The allocation.
        allocation: AllocationId,
    },
    /// A task failed.
    TaskFailed {
        /// The job.
        job: JobId,
        /// The vertex.
        vertex: JobVertexId,
        /// The subtask.
        subtask: u32,
        /// The attempt.
        generation: Generation,
        /// The reason.
        cause: String,
    },
    /// A task is not started.
    TaskRefused {
        /// The job.
        job: JobId,
        /// The vertex, as the deployment names it.
        vertex: String,
        /// The subtask.
        subtask: u32,
        /// The attempt.
        generation: u64,
        /// The reason.
        reason: String,
    },
    /// No task of a deployment is started.
    TasksRefused {
        /// The job.
        job: JobId,
        /// Number of tasks.
        tasks: usize,
        /// The reason.
        reason: String,
    },
    /// A cancelled task still runs.
    TaskStillRuns {
        /// The job.
        job: JobId,
        /// The vertex.
        vertex: JobVertexId,
        /// The subtask.
        subtask: u32,
        /// Milliseconds since it was cancelled.
        ms: u64,
    },
    /// Tasks are cancelled since the store has a younger generation.
    TasksSuperseded {
        /// The job.
        job: JobId,
        /// Number of tasks.
        tasks: usize,
    },
    /// Tasks of an isolated job are cancelled.
    IsolationLapsed {
        /// The job.
        job: JobId,
        /// Number of tasks.
        tasks: usize,
        /// Time since the store last confirmed their generation.
        since: Duration,
    },
    /// This process stood still.
    StoodStill {
        /// For how long.
        late: Duration,
    },
    /// A job is being stopped.
    JobStopped {
        /// The job.
        job: JobId,
    },
    /// What is left of a job here ends.
    JobEnds {
        /// The job.
        job: JobId,
        /// The reason.
        cause: String,
    },
    /// No more slots are accepted.
    Draining,
    /// Slots are accepted again.
    DrainingEnded,
    /// The store did not answer a read of generations.
    StoreSilent {
        /// The reason.
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
    StateUnreadable {
        /// The job.
        job: JobId,
        /// The reason.
        reason: String,
    },
}
