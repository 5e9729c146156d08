//! The target of a drain: a TaskManager or a host, with its path in REST.

use std::fmt;

use tanist_proto::id::ResourceId;
use tanist_rest_model::paths;

/// A TaskManager, or all TaskManagers of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drained {
    /// One TaskManager.
    TaskManager(ResourceId),
    /// All TaskManagers whose address has this host.
    Host(String),
}

impl Drained {
    pub(super) fn path(&self) -> String {
        match self {
            Drained::TaskManager(id) => paths::task_manager(id),
            Drained::Host(host) => paths::host(host),
        }
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Drained::TaskManager(id) => write!(f, "TaskManager {id}"),
            Drained::Host(host) => write!(f, "host {host}"),
        }
    }
}
