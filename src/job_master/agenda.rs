//! What is to be looked at in the present turn of the core, besides what [`super::overview::News`] says of the ExecutionGraph. Data only.
//!
//! What follows from the durable record alone is looked at when a write has become durable; else only what the event was about. So an
//! event costs what it touches, and a write, which says all of the job again anyhow, what the job has.

use tanist_proto::id::ResourceId;

use crate::small_set::SmallSet;

/// See the module. Empty when a turn ends.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// A write has become durable.
    pub(super) has_written: bool,
    /// Tasks whose cancellation may have to be sent, though nothing was written: again, or as their TaskManager can be told.
    pub(super) to_cancel: SmallSet<usize>,
    /// Ends that were reported: by whom, of which task and generation.
    pub(super) reported_ends: SmallSet<(ResourceId, usize, u64)>,
    /// TaskManagers that have said which outputs they keep, or keep one more.
    pub(super) outputs_of: SmallSet<ResourceId>,
}

/// What those have seen that look at many things, and look again only if something has changed since.
#[derive(Debug, Default)]
pub(super) struct LookedAt {
    /// As of which number of [`super::overview::News::reads`] it was looked for inputs that are there,
    pub(super) inputs: u64,
    /// and for outputs that are lost.
    pub(super) outputs: u64,
    /// Until when regions were looked for whose backoff is over.
    pub(super) restarts_ms: u64,
    /// As of which registrations all TaskManagers have been told that sources are to end.
    pub(super) told_to_stop: Option<u64>,
    /// Whether ends are recorded of all executions, as the job is to end.
    pub(super) all_ends: bool,
}
