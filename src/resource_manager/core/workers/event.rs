//! Events: the results of acts on workers. Decides nothing.

use tanist_ha::clock::Uptime;
use tanist_proto::id::ResourceId;

use super::Workers;
use crate::workers::{DriverError, Found};

/// The result of an act.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    /// See [`Workers::recovered`].
    Recovered(Result<Vec<(ResourceId, Found)>, DriverError>),
    /// See [`Workers::started`].
    Started(ResourceId, Result<(), DriverError>),
    /// See [`Workers::ended`].
    Ended(ResourceId, String),
    /// See [`Workers::release_recorded`].
    ReleaseRecorded(ResourceId, bool),
    /// See [`Workers::removed`].
    Removed(ResourceId),
    /// See [`Workers::stopped`].
    Stopped(ResourceId),
}

impl Workers {
    /// Handles the result of an act.
    pub(crate) fn take_in(&mut self, now: Uptime, event: WorkerEvent) {
        match event {
            WorkerEvent::Recovered(found) => self.recovered(now, found),
            WorkerEvent::Started(worker, answer) => self.started(now, &worker, answer),
            WorkerEvent::Ended(worker, how) => self.ended(now, &worker, &how),
            WorkerEvent::ReleaseRecorded(worker, is_durable) => {
                self.release_recorded(&worker, is_durable);
            }
            WorkerEvent::Removed(worker) => self.removed(&worker),
            WorkerEvent::Stopped(worker) => self.stopped(&worker),
        }
    }
}
