//! Which free slots a job is given. Pure, a part of [`super::slot_manager`], which says by what rule.

use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::v1 as pb;

use super::slots::Slots;

/// Free slots for as many of the profiles as there are.
pub fn choose(
    slots: &Slots,
    job: JobId,
    profiles: &[Option<pb::ResourceProfile>],
) -> Vec<(ResourceId, u32)> {
    if profiles.is_empty() {
        return Vec::new();
    }
    let workers = slots.workers();
    let usable = workers.filter(|(_, worker)| !worker.is_draining && worker.free().len() > 0);
    let candidates = usable.map(|(id, worker)| Candidate {
        id,
        profile: &worker.slot_profile,
        is_used_by_job: slots.is_held_at(job, id),
        free: worker.free(),
    });
    let mut candidates: Vec<_> = candidates.collect();
    let mut chosen = Vec::new();
    for profile in profiles {
        let best = candidates
            .iter_mut()
            .filter(|candidate| {
                candidate.free.len() > 0 && fits(profile.as_ref(), candidate.profile)
            })
            // Of equals the one with the lowest id.
            .max_by_key(|candidate| {
                let free = candidate.free.len();
                (
                    candidate.is_used_by_job,
                    free,
                    std::cmp::Reverse(candidate.id),
                )
            });
        let Some(best) = best else { continue };
        let Some(slot) = best.free.next() else {
            continue;
        };
        best.is_used_by_job = true;
        chosen.push((best.id.clone(), slot));
    }
    chosen
}

#[derive(Debug)]
struct Candidate<'a, Free> {
    id: &'a ResourceId,
    profile: &'a pb::ResourceProfile,
    is_used_by_job: bool,
    /// The lowest number first.
    free: Free,
}

/// Whether a slot is large enough. No profile, and no amount, is anything.
pub fn fits(wanted: Option<&pb::ResourceProfile>, slot: &pb::ResourceProfile) -> bool {
    wanted.is_none_or(|wanted| {
        wanted.cpu_cores <= slot.cpu_cores && wanted.memory_bytes <= slot.memory_bytes
    })
}
