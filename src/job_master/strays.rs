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
pub(super) struct Stray {
    pub(super) allocation: Option<AllocationId>,
    /// The step of the core in which it was last reported.
    pub(super) noted_in: u64,
    pub(super) cancellation: Cancellation,
    pub(super) canceling_since_ms: u64,
}

/// (index of the task, generation).
pub(super) type StrayKey = (usize, u64);

/// Orphan executions by TaskManager; see the module.
#[derive(Debug, Default)]
pub(super) struct Strays {
    by_task_manager: BTreeMap<ResourceId, BTreeMap<StrayKey, Stray>>,
}

impl Strays {
    /// Returns the orphan with this key. If it is not known, `new` makes it.
    pub(super) fn note(
        &mut self,
        task_manager: &ResourceId,
        key: StrayKey,
        new: impl FnOnce() -> Stray,
    ) -> &mut Stray {
        let there = self.by_task_manager.entry(task_manager.clone());
        there.or_default().entry(key).or_insert_with(new)
    }

    /// Keeps only those orphans of a TaskManager for which `is_such` is true.
    pub(super) fn retain(
        &mut self,
        task_manager: &ResourceId,
        is_such: impl Fn(&StrayKey, &Stray) -> bool,
    ) {
        if let Some(there) = self.by_task_manager.get_mut(task_manager) {
            there.retain(|key, stray| is_such(key, stray));
            if there.is_empty() {
                self.by_task_manager.remove(task_manager);
            }
        }
    }

    /// Removes an orphan that has ended.
    pub(super) fn remove(&mut self, task_manager: &ResourceId, key: StrayKey) {
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
    ) -> impl Iterator<Item = (StrayKey, &mut Stray)> {
        let there = self.by_task_manager.get_mut(task_manager);
        let there = there.into_iter().flatten();
        there.map(|(key, stray)| (*key, stray))
    }

    /// All orphans, sorted by TaskManager.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ResourceId, StrayKey, &Stray)> {
        let all = self.by_task_manager.iter();
        all.flat_map(|(task_manager, there)| {
            let there = there.iter();
            there.map(move |(key, stray)| (task_manager, *key, stray))
        })
    }

    /// All orphans, sorted by TaskManager.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&ResourceId, StrayKey, &mut Stray)> {
        let all = self.by_task_manager.iter_mut();
        all.flat_map(|(task_manager, there)| {
            let there = there.iter_mut();
            there.map(move |(key, stray)| (task_manager, *key, stray))
        })
    }
}
