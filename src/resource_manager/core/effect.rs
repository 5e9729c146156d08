//! Effects: what the core of a ResourceManager has its actor do. Decides nothing.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::refusals::RefusalCheck;
use tanist_gateway::{GoneTaskManager, Leaving, Unfulfillable};
use tanist_ha::election::Epoch;
use tanist_proto::id::{AllocationId, JobId, ResourceId};

use super::slot_manager::{SlotRequest, Turn};
use super::workers;

/// A connection to a TaskExecutor. It ends when the TaskExecutor registers again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Connection {
    /// The TaskExecutor.
    pub worker: ResourceId,
    /// Its registration number.
    pub registration: u64,
    /// Its RPC address.
    pub address: String,
}

/// How reachable a TaskExecutor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// Its RPC address.
    pub address: String,
    /// Time since its last answer to a heartbeat.
    pub silent_for: Duration,
    /// Number of calls in a row that did not reach it.
    pub refused: u32,
}

/// Something to do. The results of heartbeats and slot requests go back to the core.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    /// Send a heartbeat, which also asks for a slot report.
    Heartbeat {
        /// Its recipient.
        to: Connection,
        /// To be passed to the core with the answer.
        asked_at: Turn,
        /// Whether the TaskExecutor must take no slots.
        is_draining: bool,
        /// Whether it must leave in any case.
        is_releasing: bool,
    },
    /// Request a slot.
    RequestSlot {
        /// Its recipient.
        to: Connection,
        /// The request.
        request: SlotRequest,
    },
    /// Ask a TaskExecutor to free allocations that are not in use.
    FreeSlots {
        /// Its recipient.
        to: Connection,
        /// The allocations.
        allocations: Vec<AllocationId>,
        /// The reason.
        cause: String,
    },
    /// Notify a TaskExecutor that it is no longer registered.
    Disconnect {
        /// Its recipient.
        to: Connection,
        /// The reason.
        cause: String,
    },
    /// Find out whether a TaskExecutor that refuses calls is gone.
    CheckLost {
        /// The TaskExecutor.
        to: Connection,
        /// The error of the last refused call.
        reason: String,
        /// The check that decides it.
        check: RefusalCheck,
    },
    /// Start, release or stop a worker.
    Worker(workers::Effect),
    /// Notify a JobMaster of the requirement that no TaskExecutor could ever fulfil, or that there is none.
    Unfulfillable {
        /// The job.
        job: JobId,
        /// The requirement. `None`: all can be fulfilled.
        verdict: Option<Unfulfillable>,
    },
    /// Notify a JobMaster whether the cluster has room for its job.
    Room {
        /// The job.
        job: JobId,
        /// Whether its minimum would fit if other jobs left.
        has_room: bool,
    },
    /// Notify a JobMaster of the TaskManagers that its job must leave.
    Leaving {
        /// The job.
        job: JobId,
        /// All of these TaskManagers.
        leaving: Arc<Leaving>,
    },
    /// Notify a JobMaster of a TaskManager that is gone.
    Gone {
        /// The job.
        job: JobId,
        /// The TaskManager.
        gone: GoneTaskManager,
    },
    /// A message names a younger term.
    HigherEpoch {
        /// The term's epoch.
        epoch: Epoch,
        /// The sender of the message.
        teller: String,
    },
}
