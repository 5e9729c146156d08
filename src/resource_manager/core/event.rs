//! Events: the inputs of the core that need no answer. Data only. Requests, which need one, are methods of the core.

use std::sync::Arc;

use tanist_gateway::GatewayResult;
use tanist_proto::v1 as pb;

use super::Connection;
use super::slot_manager::{SlotRequest, Turn};
use super::workers::WorkerEvent;
use crate::drains::DrainChange;

/// What has happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// Time has passed: something may be due.
    TimePassed,
    /// A heartbeat was answered, or has failed.
    HeartbeatAnswered {
        /// Its recipient.
        to: Connection,
        /// The turn of its effect.
        asked_at: Turn,
        /// The answer.
        answer: GatewayResult<pb::HeartbeatFromResourceManagerResponse>,
    },
    /// A slot request was answered, or has failed.
    SlotAnswered {
        /// Its recipient.
        to: Connection,
        /// The request.
        request: SlotRequest,
        /// The answer.
        answer: GatewayResult<pb::RequestSlotResponse>,
    },
    /// It was found out whether a TaskExecutor that refuses calls is gone.
    LossChecked {
        /// The TaskExecutor.
        to: Connection,
        /// The error of the refused call.
        reason: String,
        /// Whether it is gone.
        is_lost: bool,
    },
    /// A connection to an address has ended. `None`: ends were missed, so each connection may have ended.
    ConnectionEnded(Option<Arc<str>>),
    /// An action on a worker has had this result.
    Worker(WorkerEvent),
    /// A decision about drains is durable.
    DrainDecided {
        /// The decision.
        change: DrainChange,
        /// Milliseconds since 1970, for display.
        wall_ms: u64,
    },
    /// The cluster ends.
    ClusterEnds,
}
