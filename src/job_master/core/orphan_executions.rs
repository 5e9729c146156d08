//! Orphan executions: TaskManagers run them, but they are no task's present execution. Pure; the core decides
//! what happens to them.
//!
//! Most TaskManagers have none. Invariant: only TaskManagers with orphans have an entry, so that a loop
//! visits no others.

use std::collections::BTreeMap;

use tanist_proto::id::{AllocationId, ResourceId};

use super::execution::Cancellation;

/// An orphan execution.
#[derive(Debug, Clone)]
pub(super) struct OrphanExecution {
    pub(super) allocation: Option<AllocationId>,
    /// The step of the core in which it was last reported.
    pub(super) noted_in: u64,
    pub(super) cancellation: Cancellation,
    pub(super) canceling_since_ms: u64,
}

/// (index of the task, generation).
pub(super) type OrphanKey = (usize, u64);

/// Orphan executions by TaskManager; see the module.
#[derive(Debug, Default)]
pub(super) struct OrphanExecutions {
    by_task_manager: BTreeMap<ResourceId, BTreeMap<OrphanKey, OrphanExecution>>,
}

impl OrphanExecutions {
    /// Returns the orphan with this key. If it is not known, `new` makes it.
    pub(super) fn note(
        &mut self,
        task_manager: &ResourceId,
        key: OrphanKey,
        new: impl FnOnce() -> OrphanExecution,
    ) -> &mut OrphanExecution {
        let there = self.by_task_manager.entry(task_manager.clone());
        there.or_default().entry(key).or_insert_with(new)
    }

    /// Keeps only those orphans of a TaskManager for which `is_such` is true.
    pub(super) fn retain(
        &mut self,
        task_manager: &ResourceId,
        is_such: impl Fn(&OrphanKey, &OrphanExecution) -> bool,
    ) {
        if let Some(there) = self.by_task_manager.get_mut(task_manager) {
            there.retain(|key, orphan| is_such(key, orphan));
            if there.is_empty() {
                self.by_task_manager.remove(task_manager);
            }
        }
    }

    /// Removes an orphan that has ended.
    pub(super) fn remove(&mut self, task_manager: &ResourceId, key: OrphanKey) {
        if let Some(there) = self.by_task_manager.get_mut(task_manager) {
            there.remove(&key);
            if there.is_empty() {
                self.by_task_manager.remove(task_manager);
            }
        }
    }

    /// Removes the orphans of a TaskManager that is gone.
    pub(super) fn remove_all_of(&mut self, task_manager: &ResourceId) {
        self.by_task_manager.remove(task_manager);
    }

    /// The orphans of a TaskManager.
    pub(super) fn of_mut(
        &mut self,
        task_manager: &ResourceId,
    ) -> impl Iterator<Item = (OrphanKey, &mut OrphanExecution)> {
        let there = self.by_task_manager.get_mut(task_manager);
        let there = there.into_iter().flatten();
        there.map(|(key, orphan)| (*key, orphan))
    }

    /// All orphans, sorted by TaskManager.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ResourceId, OrphanKey, &OrphanExecution)> {
        let all = self.by_task_manager.iter();
        all.flat_map(|(task_manager, there)| {
            let there = there.iter();
            there.map(move |(key, orphan)| (task_manager, *key, orphan))
        })
    }

    /// All orphans, sorted by TaskManager.
    pub(super) fn iter_mut(
        &mut self,
    ) -> impl Iterator<Item = (&ResourceId, OrphanKey, &mut OrphanExecution)> {
        let all = self.by_task_manager.iter_mut();
        all.flat_map(|(task_manager, there)| {
            let there = there.iter_mut();
            there.map(move |(key, orphan)| (task_manager, *key, orphan))
        })
    }
}
