//! Information about TaskExecutors for display. Pure, a part of [`super`]; decides nothing.

use tanist_ha::clock::{Uptime, millis};
use tanist_proto::id::ResourceId;
use tanist_proto::resources::Resources;
use tanist_proto::v1 as pb;

use super::slot_manager::SlotHolder;
use super::task_executors::TaskExecutor;
use super::{Contact, ResourceManagerCore};

impl ResourceManagerCore {
    /// The registered TaskExecutors. `last_heartbeat_ms` is computed back from `wall_ms`.
    pub(crate) fn overview(&self, now: Uptime, wall_ms: u64) -> Vec<pb::TaskManagerInfo> {
        let info = |(id, known): (&ResourceId, &TaskExecutor)| {
            let (slots_number, free_slots) = self.slots.slot_counts(id);
            let ago = millis(known.contact(now).silent_for);
            let slot = |(holder, profile): (SlotHolder, &Resources)| pb::AllocatedSlot {
                job_id: holder.job.to_string(),
                profile: Some(profile.into()),
                tasks: known.tasks_in(holder.allocation),
            };
            pb::TaskManagerInfo {
                last_heartbeat_ms: wall_ms.saturating_sub(ago),
                slots_number,
                free_slots,
                drain: self.drain_info(now, id, known),
                free_profile: Some((&self.slots.left(id)).into()),
                allocated_slots: self.slots.allocated(id).map(slot).collect(),
                ..known.info()
            }
        };
        self.task_executors.iter().map(info).collect()
    }

    /// How reachable each registered TaskExecutor is.
    pub(crate) fn contacts(&self, now: Uptime) -> Vec<Contact> {
        let all = self.task_executors.iter();
        all.map(|(_, known)| known.contact(now)).collect()
    }
}
