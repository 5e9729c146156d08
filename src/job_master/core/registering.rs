//! Applies registrations of TaskManagers and their slot offers. A handler: `task_managers.rs` and `slots.rs` own them.
//!
//! Invariant: slots that a TaskManager held and does not offer when it registers are lost.

use std::collections::BTreeSet;

use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;

use super::reports::Reports;
use super::slot_pool::OfferAnswer;
use super::{Connection, Effect, Refusal, parse};

impl Reports<'_> {
    /// Registers a TaskManager, with its executions and slots.
    pub(super) fn register(
        &mut self,
        connection: &Connection,
        location: pb::TaskManagerLocation,
        (executions, slots): (&[pb::ExecutionReport], &[pb::SlotOffer]),
    ) -> Result<(), Refusal> {
        if self.has_ended {
            return Err(Refusal::Ended);
        }
        self.task_managers.admit(connection)?;
        let task_manager = connection.task_manager.clone();
        let known = self.task_managers.location(&task_manager);
        if known.is_some_and(|known| known.incarnation != location.incarnation) {
            self.lose_task_manager(&task_manager, "it was restarted");
        }
        let location = self.graph.keep_once(&task_manager, location);
        self.task_managers.register(connection, location);
        self.reconcile_all(&task_manager, executions);
        // Late offers of the former registration are refused, so slots that were given back under it may be
        // accepted again.
        self.slots.forget_released(&task_manager);
        let offered: BTreeSet<&str> = slots
            .iter()
            .map(|slot| slot.allocation_id.as_str())
            .collect();
        for allocation in self.slots.pool().slots_of(&task_manager) {
            if !offered.contains(allocation.to_string().as_str()) {
                self.lose_slot(&allocation, "its TaskManager connected again without it");
            }
        }
        let (_, rejected) = self.offer(&task_manager, slots);
        if !rejected.is_empty() {
            let (connection, cause) = (connection.clone(), "the offer was rejected".to_owned());
            self.out.push(Effect::FreeSlots {
                connection,
                allocations: rejected,
                cause,
            });
        }
        Ok(())
    }

    /// Accepts or rejects offered slots. Returns (accepted, rejected).
    pub(super) fn offer(
        &mut self,
        task_manager: &ResourceId,
        offers: &[pb::SlotOffer],
    ) -> (Vec<AllocationId>, Vec<AllocationId>) {
        let (mut accepted, mut rejected) = (Vec::new(), Vec::new());
        for offer in offers {
            let Some(allocation) = parse::<AllocationId>(&offer.allocation_id) else {
                continue;
            };
            if self.has_ended {
                rejected.push(allocation);
                continue;
            }
            let profile = ResourceProfile::from_message(offer.profile.as_ref());
            match self
                .slots
                .offer(task_manager, allocation, offer.slot, profile, self.turn)
            {
                OfferAnswer::Accepted => accepted.push(allocation),
                OfferAnswer::AcceptedInsteadOf(before) => {
                    accepted.push(allocation);
                    self.fail_slot(task_manager, &before, "its slot was reallocated");
                }
                OfferAnswer::Rejected => rejected.push(allocation),
            }
        }
        (accepted, rejected)
    }
}
