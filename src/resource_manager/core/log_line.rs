//! Lines about decisions of a ResourceManager, for an operator. The actor writes them to the log before it runs the
//! effects. Decides nothing; [`crate::log`] has levels and texts.

use std::time::Duration;

use tanist_gateway::{Departure, GatewayError, JobMasterId, ResourceRequirement, Unfulfillable};
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::WorkerResourceSpec;

use crate::drains::DrainTarget;
use crate::workers::DriverError;

/// One line of the log. Small, since a match may have one for each of ten thousand slots.
#[derive(Debug)]
pub enum LogLine {
    /// A TaskExecutor registered.
    Registered {
        /// Its id.
        task_manager: ResourceId,
        /// Its RPC address.
        address: String,
        /// Number of slots in its report.
        slots: usize,
        /// Its registration number.
        registration: u64,
    },
    /// A TaskExecutor registered in place of an earlier process of the same id.
    IncarnationReplaced {
        /// Its id.
        task_manager: ResourceId,
        /// The earlier incarnation.
        old: String,
        /// The present one.
        new: String,
    },
    /// A TaskExecutor said goodbye.
    Left {
        /// Its id.
        task_manager: ResourceId,
        /// The reason that it gave.
        cause: String,
    },
    /// A TaskExecutor is given up.
    Lost {
        /// Its id.
        task_manager: ResourceId,
        /// Its RPC address.
        address: String,
        /// The reason.
        cause: String,
    },
    /// This process stood still.
    StoodStill {
        /// For how long.
        late: Duration,
    },
    /// A report has slots that can't be read.
    BadSlotReport {
        /// The TaskExecutor that sent it.
        task_manager: ResourceId,
        /// The error.
        error: GatewayError,
    },
    /// An answer names a holder that can't be read.
    BadSlotAnswer {
        /// The TaskExecutor that sent it.
        task_manager: ResourceId,
        /// The error.
        error: GatewayError,
    },
    /// A TaskExecutor refused a slot.
    SlotRefused {
        /// Its id.
        task_manager: ResourceId,
        /// The reason that it gave.
        reason: String,
    },
    /// A slot is requested for the first time.
    SlotRequested {
        /// The job.
        job: JobId,
        /// The TaskExecutor.
        task_manager: ResourceId,
        /// The slot.
        slot: u32,
        /// The allocation.
        allocation: AllocationId,
    },
    /// Slots are kept for the first job of the queue.
    SlotsKept {
        /// The job.
        job: JobId,
        /// Number of slots that it lacks.
        missing: u32,
        /// Number of TaskExecutors whose slots are kept.
        on: usize,
    },
    /// A job lacks slots.
    SlotsLacking {
        /// The job.
        job: JobId,
        /// Slots that it has.
        acquired: u32,
        /// Slots that it lacks.
        missing: u32,
    },
    /// A job has the slots that it lacked.
    SlotsSuffice {
        /// The job.
        job: JobId,
    },
    /// No TaskExecutor could ever fulfil a requirement.
    Unfulfillable {
        /// The job.
        job: JobId,
        /// The requirement.
        verdict: Box<Unfulfillable>,
    },
    /// A JobMaster declared requirements.
    Declared {
        /// The job.
        job: JobId,
        /// All its requirements.
        resources: Vec<ResourceRequirement>,
    },
    /// A JobMaster registered in place of an older one.
    JobMasterReplaced {
        /// The job.
        job: JobId,
        /// The older one.
        old: JobMasterId,
        /// The present one.
        new: JobMasterId,
    },
    /// A JobMaster left.
    JobMasterLeft {
        /// The job.
        job: JobId,
        /// Why it left.
        departure: Departure,
    },
    /// A JobMaster sends no messages any more.
    JobMasterSilent {
        /// The job.
        job: JobId,
        /// The JobMaster.
        job_master: JobMasterId,
    },
    /// A job had no JobMaster for too long.
    JobAbandoned {
        /// The job.
        job: JobId,
        /// Number of slots that it held.
        slots: usize,
        /// Whether requirements of it were known.
        had_requirements: bool,
        /// For how long it had no JobMaster.
        timeout: Duration,
    },
    /// A drain is in effect.
    Draining {
        /// Its target.
        target: DrainTarget,
        /// Whether running work is moved away.
        evict: bool,
        /// Who requested it.
        by: String,
        /// The reason.
        reason: String,
    },
    /// A drain is undone.
    Undrained {
        /// Its target.
        target: DrainTarget,
    },
    /// A worker is started.
    WorkerStarting {
        /// The worker.
        worker: ResourceId,
        /// Its resources.
        spec: Box<WorkerResourceSpec>,
    },
    /// A worker could not be started.
    WorkerFailed {
        /// The worker.
        worker: ResourceId,
        /// The reason.
        cause: String,
    },
    /// A worker is released.
    WorkerReleased {
        /// The worker.
        worker: ResourceId,
        /// For how long it was idle.
        idle_timeout: Duration,
    },
    /// A worker that was being released has ended.
    WorkerEnded {
        /// The worker.
        worker: ResourceId,
        /// How it ended.
        how: String,
    },
    /// A worker has ended that should have gone on.
    WorkerDied {
        /// The worker.
        worker: ResourceId,
        /// How it ended.
        how: String,
    },
    /// The driver does not know a worker of an earlier term.
    WorkerGone {
        /// The worker.
        worker: ResourceId,
    },
    /// A worker runs that has no record.
    WorkerUnrecorded {
        /// The worker.
        worker: ResourceId,
    },
    /// The driver can't list the workers.
    WorkersUnknown {
        /// The error.
        error: DriverError,
    },
    /// A worker registered with another number of slots than it was started with.
    WorkerSlotsDiffer {
        /// The worker.
        worker: ResourceId,
        /// The number that it has.
        slots: u32,
        /// The number that was wanted.
        wanted: u32,
    },
}
