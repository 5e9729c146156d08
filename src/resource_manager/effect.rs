//! What a ResourceManager's core has its actor do, and whom it concerns. Decides nothing.

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::election::Epoch;
use tanist_proto::id::{AllocationId, JobId, ResourceId};

use super::slot_manager::{SlotRequest, Turn};
use super::workers;
use crate::gateway::refusals::Question;
use crate::gateway::{Leaving, Unfulfillable};

/// A connection to a TaskExecutor: it ends when it registers again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Who.
    pub worker: ResourceId,
    /// Its registration.
    pub registration: u64,
    /// Where it is.
    pub address: String,
}

/// How a TaskExecutor is heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// Where it is.
    pub address: String,
    /// Since its last answer to a heartbeat.
    pub silent_for: Duration,
    /// So many calls in a row did not reach it.
    pub refused: u32,
}

/// Something to do. What comes of heartbeats and slot requests is told to the core.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask for a sign of life and the slots.
    Heartbeat {
        /// Whom.
        to: Connection,
        /// Tell it with the answer.
        asked_at: Turn,
        /// Whether it is to take no slots.
        is_draining: bool,
        /// Whether it is to leave in any case.
        is_releasing: bool,
    },
    /// Ask for a slot.
    RequestSlot {
        /// Whom.
        to: Connection,
        /// For what.
        request: SlotRequest,
    },
    /// Ask to free what is not in use.
    FreeSlots {
        /// Whom.
        to: Connection,
        /// What.
        allocations: Vec<AllocationId>,
        /// Why.
        cause: String,
    },
    /// Say that it is no longer registered.
    Disconnect {
        /// Whom.
        to: Connection,
        /// Why.
        cause: String,
    },
    /// Find out whether it is gone: it refuses calls.
    Judge {
        /// Whom.
        to: Connection,
        /// How it refused the last one.
        reason: String,
        /// By what.
        question: Question,
    },
    /// Start, release or stop a worker.
    Worker(workers::core::Effect),
    /// Tell a job's JobMaster what nobody could ever give to it, or that somebody could.
    Judged {
        /// Whose.
        job: JobId,
        /// What.
        verdict: Option<Unfulfillable>,
    },
    /// Tell a job's JobMaster whether the cluster has room for it.
    Room {
        /// Whose.
        job: JobId,
        /// Whether what it needs at least would fit in if others left.
        has_room: bool,
    },
    /// Tell a job's JobMaster which TaskManagers it is to leave.
    Leaving {
        /// Whose.
        job: JobId,
        /// All of them.
        leaving: Arc<Leaving>,
    },
    /// Somebody names a younger term.
    HigherEpoch {
        /// Which.
        epoch: Epoch,
        /// Who names it.
        teller: String,
    },
}
