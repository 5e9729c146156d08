//! Effects: what the decisions about workers have the actor do. Decides nothing.

use tanist_proto::id::ResourceId;

#[cfg(doc)]
use super::Workers;
use crate::workers::RecordedWorker;

/// Something to do. If it creates or ends a worker, the store decides first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Ask the driver for the state of these workers, and for others that exist: [`Workers::recovered`].
    Recover(Vec<RecordedWorker>),
    /// Record it, then start it: [`Workers::started`].
    Start(ResourceId),
    /// Report when it has ended: [`Workers::ended`].
    Watch(ResourceId),
    /// Record that it is being released: [`Workers::release_recorded`].
    Release(ResourceId),
    /// Ask it to leave. The core does that itself, by a heartbeat.
    AskToLeave(ResourceId),
    /// Remove its record: [`Workers::removed`].
    RemoveRecord(ResourceId),
    /// End its process, since it has no record any more: [`Workers::stopped`].
    Stop(ResourceId),
}
