//! Declares the slots that the job needs, and gives back slots that it does not need. `slot_needs.rs` computes both,
//! `slots.rs` owns the last declaration.
//!
//! Invariant: while anything is awaited after a recovery, nothing is declared or given back, because the slots of the
//! job are not known yet.

use std::collections::BTreeMap;

use tanist_gateway::SubmissionNumber;
use tanist_proto::id::{AllocationId, ResourceId};

use super::scheduling::Scheduler;
use super::{Effect, Needs};

impl Scheduler<'_> {
    /// Computes the needed slots, after all decisions of an event.
    pub(super) fn update_needed(&mut self) {
        let needs = self.needs();
        let needed = needs.with_replacements(self.graph.profiles_needed());
        self.slots.set_needed(needed);
    }

    /// Gives back unused slots on TaskManagers to leave, without a wait: a drained TaskManager may have to stay only
    /// because of them.
    pub(super) fn free_left_slots(&mut self, is_reconciling: bool) {
        let is_open = self.record.is_durable() && !self.record.is_stopping() && !is_reconciling;
        if self.moves.leaving().is_empty() || !is_open {
            return;
        }
        let blocked = self.needs().blocked_slots();
        for id in self.moves.leaving().keys() {
            let Some(connection) = self.task_managers.connection(id) else {
                continue;
            };
            let pool = self.slots.pool();
            let mut allocations = pool.slots_of(id);
            allocations.retain(|it| pool.is_unused(it) && !blocked.contains(it));
            for allocation in &allocations {
                self.slots.remove(allocation);
            }
            if !allocations.is_empty() {
                let cause = "the TaskManager is drained".to_owned();
                self.out.push(Effect::FreeSlots {
                    connection,
                    allocations,
                    cause,
                });
            }
        }
    }

    /// Gives back idle slots that the job does not need. The terminal states of a slot's tasks are durable by
    /// then.
    pub(super) fn free_idle_slots(&mut self, is_reconciling: bool) {
        let now_ms = self.now_ms;
        let worth_keeping = self.needs().worth_keeping();
        let may_idle = !self.record.is_stopping()
            && !is_reconciling
            && self.record.is_durable()
            && self.slots.collecting_until_ms().is_none()
            && self.slots.pool().has_surplus(&worth_keeping);
        if !may_idle || self.slots.has_more() {
            self.slots.note_idle(false, now_ms);
        }
        if !may_idle {
            return;
        }
        let mut idle = self.slots.note_idle(true, now_ms);
        if idle.is_empty() {
            return;
        }
        let blocked = self.needs().blocked_slots();
        idle.retain(|slot| !blocked.contains(slot));
        let idle = self.slots.pool().surplus(idle, &worth_keeping);
        let mut freed: BTreeMap<ResourceId, Vec<AllocationId>> = BTreeMap::new();
        for allocation in idle {
            if let Some(slot) = self.slots.remove(&allocation) {
                freed.entry(slot.task_manager).or_default().push(allocation);
            }
        }
        for (task_manager, allocations) in freed {
            if let Some(connection) = self.task_managers.connection(&task_manager) {
                let cause = "the job doesn't need it".to_owned();
                self.out.push(Effect::FreeSlots {
                    connection,
                    allocations,
                    cause,
                });
            }
        }
    }

    /// Declares the needed slots if they changed. A job that is stopping keeps its slots until its result is
    /// written. A job that reconciles does not know its slots yet and declares nothing.
    pub(super) fn declare(&mut self, is_reconciling: bool) {
        if is_reconciling {
            return;
        }
        let (slots, at_once) = if self.record.is_stopping() {
            let mut slots = self.slots.declared().to_vec();
            for (profile, number) in &mut slots {
                *number = self.slots.pool().count_for(profile).min(*number);
            }
            slots.retain(|(_, number)| *number > 0);
            (slots.clone(), slots)
        } else {
            (self.slots.needed().to_vec(), self.needs().needed_at_once())
        };
        let submission = self.record.decided().submission.as_ref();
        let needs = Needs {
            slots,
            at_once,
            held: self.slots.adopted(self.graph, self.record),
            submission: submission.map(SubmissionNumber::from).unwrap_or_default(),
            is_bounded: self.graph.is_bounded() || self.record.is_stop_durable(),
        };
        if let Some(needs) = self.slots.declare(needs) {
            self.out.push(Effect::Declare(needs));
        }
    }
}
