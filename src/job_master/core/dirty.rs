//! The things to examine in the present step of the core, besides [`super::execution_graph::indexes::News`] of the
//! ExecutionGraph. Data only.
//!
//! Decisions that depend on the durable record alone are examined when a write became durable; everything
//! else only for what the event touched. So an event costs in proportion to what it touches. A write costs in
//! proportion to the job, as it contains the whole job anyway.

use tanist_compact::SmallSet;
use tanist_proto::id::ResourceId;

/// The things to examine. Empty when a step ends.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    /// A write has become durable in this step.
    pub(super) has_written: bool,
    /// Tasks whose cancellation may have to be sent without a write: the last attempt failed, or their
    /// TaskManager registered.
    pub(super) to_cancel: SmallSet<usize>,
    /// Terminal states that were reported: (TaskManager, task, generation).
    pub(super) reported_ends: SmallSet<(ResourceId, usize, u64)>,
    /// TaskManagers that reported which outputs they keep, or that keep one more.
    pub(super) outputs_of: SmallSet<ResourceId>,
}

/// Versions as of the last examination, for checks that look at many things and repeat that only after a
/// change.
#[derive(Debug, Default)]
pub(super) struct LookedAt {
    /// The version of the registrations as of which all TaskManagers received the request that sources end.
    pub(super) stop_sent: Option<u64>,
    /// Whether the terminal states of all executions are recorded, as the job ends.
    pub(super) all_ends: bool,
}
