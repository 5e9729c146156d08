//! Executions that TaskManagers run and that are no task's present one. Pure; what becomes of them the core decides.
//!
//! Most TaskManagers have none. Invariant: only those that have some are kept, so that nobody else is looked at.

use std::collections::BTreeMap;

use tanist_proto::id::{AllocationId, ResourceId};

use super::execution::Cancellation;

/// One of them.
#[derive(Debug, Clone)]
pub(super) struct Stray {
    pub(super) allocation: Option<AllocationId>,
    /// The turn in which it was last heard of.
    pub(super) noted_in: u64,
    pub(super) cancellation: Cancellation,
    pub(super) canceling_since_ms: u64,
}

/// The index of a stray's task, and its generation.
pub(super) type StrayKey = (usize, u64);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Strays {
    by_task_manager: BTreeMap<ResourceId, BTreeMap<StrayKey, Stray>>,
}

impl Strays {
    /// The one with this key, which `new` makes if it was not known.
    pub(super) fn note(
        &mut self,
        task_manager: &ResourceId,
        key: StrayKey,
        new: impl FnOnce() -> Stray,
    ) -> &mut Stray {
        let there = self.by_task_manager.entry(task_manager.clone());
        there.or_default().entry(key).or_insert_with(new)
    }

    /// Those of a TaskManager that are such stay.
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

    /// This one has ended.
    pub(super) fn remove(&mut self, task_manager: &ResourceId, key: StrayKey) {
        if let Some(there) = self.by_task_manager.get_mut(task_manager) {
            there.remove(&key);
            if there.is_empty() {
                self.by_task_manager.remove(task_manager);
            }
        }
    }

    /// A TaskManager has gone.
    pub(super) fn remove_all_of(&mut self, task_manager: &ResourceId) {
        self.by_task_manager.remove(task_manager);
    }

    /// Those of a TaskManager.
    pub(super) fn of_mut(
        &mut self,
        task_manager: &ResourceId,
    ) -> impl Iterator<Item = (StrayKey, &mut Stray)> {
        let there = self.by_task_manager.get_mut(task_manager);
        let there = there.into_iter().flatten();
        there.map(|(key, stray)| (*key, stray))
    }

    /// All, by TaskManager.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ResourceId, StrayKey, &Stray)> {
        let all = self.by_task_manager.iter();
        all.flat_map(|(task_manager, there)| {
            let there = there.iter();
            there.map(move |(key, stray)| (task_manager, *key, stray))
        })
    }

    /// All, by TaskManager.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&ResourceId, StrayKey, &mut Stray)> {
        let all = self.by_task_manager.iter_mut();
        all.flat_map(|(task_manager, there)| {
            let there = there.iter_mut();
            there.map(move |(key, stray)| (task_manager, *key, stray))
        })
    }
}
