//! Orphan executions: TaskManagers run them, but they are no task's present execution. They are cancelled once the
//! durable record says that they are not wanted.
//!
//! Most TaskManagers have none. Invariant: only TaskManagers with orphans have an entry, so that a loop visits no
//! others.

use std::collections::BTreeMap;

use tanist_proto::id::{AllocationId, ResourceId};

use super::execution_graph::execution::Cancellation;

/// An orphan execution.
#[derive(Debug, Clone)]
struct OrphanExecution {
    allocation: Option<AllocationId>,
    /// The step of the core in which it was last reported.
    reported_in: u64,
    cancellation: Cancellation,
    /// When its cancellation was sent last, or when it was first reported.
    since_ms: u64,
}

/// (index of the task, generation).
pub(super) type OrphanKey = (usize, u64);

/// Orphan executions by TaskManager; see the module.
#[derive(Debug, Default)]
pub(super) struct OrphanExecutions {
    by_task_manager: BTreeMap<ResourceId, BTreeMap<OrphanKey, OrphanExecution>>,
}

impl OrphanExecutions {
    /// Notes that a TaskManager reported an orphan in this step. A cancellation that had no answer is sent again.
    pub(super) fn report(
        &mut self,
        task_manager: &ResourceId,
        key: OrphanKey,
        allocation: Option<AllocationId>,
        turn: u64,
        now_ms: u64,
    ) {
        let there = self.by_task_manager.entry(task_manager.clone());
        let orphan = there.or_default().entry(key);
        let orphan = orphan.or_insert_with(|| OrphanExecution {
            allocation,
            reported_in: turn,
            cancellation: Cancellation::NotSent,
            since_ms: now_ms,
        });
        orphan.reported_in = turn;
        if orphan.cancellation == Cancellation::Failed {
            orphan.cancellation = Cancellation::NotSent;
        }
    }

    /// Keeps only those orphans of a TaskManager for which `is_there` is true. Its arguments are the orphan and the
    /// step in which it was last reported.
    pub(super) fn retain(
        &mut self,
        task_manager: &ResourceId,
        is_there: impl Fn(&OrphanKey, u64) -> bool,
    ) {
        if let Some(there) = self.by_task_manager.get_mut(task_manager) {
            there.retain(|key, orphan| is_there(key, orphan.reported_in));
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

    /// Marks the cancellations that a TaskManager has not confirmed to be sent again.
    pub(super) fn send_again(&mut self, task_manager: &ResourceId) {
        let there = self.by_task_manager.get_mut(task_manager);
        for orphan in there.into_iter().flat_map(BTreeMap::values_mut) {
            if orphan.cancellation != Cancellation::Confirmed {
                orphan.cancellation = Cancellation::NotSent;
            }
        }
    }

    /// Notes the answer to the cancellation of a task's orphans up to a generation.
    pub(super) fn answer(
        &mut self,
        task_manager: &ResourceId,
        task: usize,
        up_to_generation: u64,
        answer: Cancellation,
    ) {
        let there = self.by_task_manager.get_mut(task_manager);
        for ((of, generation), orphan) in there.into_iter().flatten() {
            let is_meant = *of == task && *generation <= up_to_generation;
            if is_meant && orphan.cancellation == Cancellation::Sent {
                orphan.cancellation = answer;
            }
        }
    }

    /// Marks cancellations as sent, where they were not and `is_unwanted` is true. Returns those orphans.
    pub(super) fn cancel(
        &mut self,
        is_unwanted: impl Fn(&ResourceId, OrphanKey) -> bool,
        now_ms: u64,
    ) -> Vec<(ResourceId, OrphanKey)> {
        let mut cancelled = Vec::new();
        for (task_manager, there) in &mut self.by_task_manager {
            for (key, orphan) in there {
                if orphan.cancellation == Cancellation::NotSent && is_unwanted(task_manager, *key) {
                    orphan.cancellation = Cancellation::Sent;
                    orphan.since_ms = now_ms;
                    cancelled.push((task_manager.clone(), *key));
                }
            }
        }
        cancelled
    }

    /// All orphans, sorted by TaskManager.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ResourceId, OrphanKey)> {
        self.all().map(|(task_manager, key, _)| (task_manager, key))
    }

    /// The slots in which orphans are.
    pub(super) fn slots(&self) -> impl Iterator<Item = AllocationId> {
        self.all().filter_map(|(.., orphan)| orphan.allocation)
    }

    /// The orphans whose cancellation was sent, and when, in ms.
    pub(super) fn canceling(&self) -> impl Iterator<Item = (&ResourceId, usize, u64)> {
        let sent = self.all();
        let sent = sent.filter(|(.., orphan)| orphan.cancellation != Cancellation::NotSent);
        sent.map(|(task_manager, (task, _), orphan)| (task_manager, task, orphan.since_ms))
    }

    /// Moves all times by the duration for which this process stood still.
    pub(super) fn put_off(&mut self, by_ms: u64) {
        let all = self.by_task_manager.values_mut();
        for orphan in all.flat_map(BTreeMap::values_mut) {
            orphan.since_ms = orphan.since_ms.saturating_add(by_ms);
        }
    }

    fn all(&self) -> impl Iterator<Item = (&ResourceId, OrphanKey, &OrphanExecution)> {
        let all = self.by_task_manager.iter();
        all.flat_map(|(task_manager, there)| {
            let there = there.iter();
            there.map(move |(key, orphan)| (task_manager, *key, orphan))
        })
    }
}
