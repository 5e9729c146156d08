//! Information about TaskExecutors for display. Pure, a part of [`super`]; decides nothing.

use tanist_ha::clock::{Uptime, millis};
use tanist_proto::id::ResourceId;
use tanist_proto::resources::Resources;
use tanist_proto::v1 as pb;

use super::slot_manager::SlotHolder;
use super::{Contact, Core, Worker};

impl Core {
    /// The registered TaskExecutors. `last_heartbeat_ms` is computed back from `wall_ms`.
    pub fn overview(&self, now: Uptime, wall_ms: u64) -> Vec<pb::TaskManagerInfo> {
        let info = |(id, worker): (&ResourceId, &Worker)| {
            let (slots_number, free_slots) = self.slots.slot_counts(id);
            let ago = millis(now.saturating_duration_since(worker.last_heartbeat));
            let slot = |(holder, profile): (SlotHolder, &Resources)| pb::AllocatedSlot {
                job_id: holder.job.to_string(),
                profile: Some(profile.into()),
                tasks: worker.tasks.get(&holder.allocation).copied().unwrap_or(0),
            };
            pb::TaskManagerInfo {
                location: Some(worker.location.clone()),
                last_heartbeat_ms: wall_ms.saturating_sub(ago),
                slots_number,
                free_slots,
                hardware: worker.hardware,
                total_profile: Some(worker.spec.total().into()),
                memory_configuration: worker.memory_configuration,
                draining: worker.is_draining,
                drain: self.drain_info(now, id, worker),
                free_profile: Some((&self.slots.left(id)).into()),
                allocated_slots: self.slots.allocated(id).map(slot).collect(),
            }
        };
        self.workers.iter().map(info).collect()
    }

    /// How reachable each registered TaskExecutor is.
    pub fn contacts(&self, now: Uptime) -> Vec<Contact> {
        let contact = |worker: &Worker| Contact {
            address: worker.location.rpc_address.clone(),
            silent_for: now.saturating_duration_since(worker.last_heartbeat),
            refused: worker.refused.calls(),
        };
        self.workers.values().map(contact).collect()
    }
}
