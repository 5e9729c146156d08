//! The TaskExecutors: which registration of each is present, and which can't be reached at present.
//!
//! Invariant: messages of another registration than the present one change nothing. A lost link aborts the numbers in
//! flight there only after a timeout: the TaskExecutor mostly registers again before.

use std::collections::BTreeMap;

use tanist_proto::id::ResourceId;

use super::options::ANSWER_TIMEOUT_MS;
use crate::core::{Connection, Registration};

#[derive(Debug)]
struct Link {
    registration: Registration,
    takes_checkpoints: bool,
    /// Since when it can't be reached; `None`: it can.
    lost_ms: Option<u64>,
}

/// All TaskExecutors that have registered; see the module.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<ResourceId, Link>);

impl Links {
    /// A TaskExecutor registers. False: it has a later registration.
    pub(super) fn register(&mut self, connection: &Connection, takes_checkpoints: bool) -> bool {
        let known = self.0.get(&connection.task_manager);
        if known.is_some_and(|known| known.registration > connection.registration) {
            return false;
        }
        let link = Link {
            registration: connection.registration,
            takes_checkpoints,
            lost_ms: None,
        };
        self.0.insert(connection.task_manager.clone(), link);
        true
    }

    /// Whether a connection is the present registration.
    pub(super) fn is_present(&self, connection: &Connection) -> bool {
        let link = self.0.get(&connection.task_manager);
        link.is_some_and(|link| link.registration == connection.registration)
    }

    /// A TaskExecutor can't be reached from now on. Returns when that aborts the numbers in flight there. None: the
    /// connection is of an earlier registration, and nothing changes.
    pub(super) fn lose(&mut self, connection: &Connection, now_ms: u64) -> Option<u64> {
        let link = self.0.get_mut(&connection.task_manager)?;
        if link.registration != connection.registration {
            return None;
        }
        link.lost_ms.get_or_insert(now_ms);
        self.loss_due_ms(&connection.task_manager)
    }

    /// The connection to a TaskExecutor that can be reached.
    pub(super) fn connection(&self, task_manager: &ResourceId) -> Option<Connection> {
        let link = self.0.get(task_manager)?;
        link.lost_ms.is_none().then(|| Connection {
            task_manager: task_manager.clone(),
            registration: link.registration,
        })
    }

    /// Whether a TaskExecutor can be reached and takes part in checkpoints.
    pub(super) fn takes_checkpoints(&self, task_manager: &ResourceId) -> bool {
        let link = self.0.get(task_manager);
        link.is_some_and(|link| link.lost_ms.is_none() && link.takes_checkpoints)
    }

    /// Whether a TaskExecutor can be reached and takes no part in checkpoints. Not the opposite of
    /// [`Links::takes_checkpoints`]: of one that can't be reached neither is true.
    pub(super) fn takes_none(&self, task_manager: &ResourceId) -> bool {
        let link = self.0.get(task_manager);
        link.is_some_and(|link| link.lost_ms.is_none() && !link.takes_checkpoints)
    }

    /// When the loss of a link aborts the numbers in flight there. None: it can be reached, or never registered.
    pub(super) fn loss_due_ms(&self, task_manager: &ResourceId) -> Option<u64> {
        let lost_ms = self.0.get(task_manager)?.lost_ms?;
        Some(lost_ms.saturating_add(ANSWER_TIMEOUT_MS))
    }
}
