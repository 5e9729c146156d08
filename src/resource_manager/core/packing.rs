//! Free resources of a TaskExecutor, and the order in which TaskExecutors are filled when only the total room
//! matters. Pure.
//!
//! Worker planning uses this order, and slot matching if its first choice does not serve a job: profile by
//! profile, each TaskExecutor is filled as far as possible before the next one. Invariant: what planning
//! considers sufficient, matching finds; otherwise a job would wait forever for slots that exist.

use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};

use super::slots::Worker;

/// Free resources of a TaskManager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Number of free default slots.
    pub free: u32,
    /// Resources that no slot holds.
    pub left: Resources,
    /// Resources of one of its default slots.
    pub share: Resources,
}

impl Room {
    /// The room of an empty worker.
    pub fn of(spec: &WorkerResourceSpec) -> Room {
        Room {
            free: spec.slots(),
            left: spec.total().clone(),
            share: spec.default_slot(),
        }
    }

    /// The room of a registered worker.
    pub(super) fn left_of(worker: &Worker) -> Room {
        Room {
            free: u32::try_from(worker.free().len()).unwrap_or(u32::MAX),
            left: worker.left(),
            share: worker.spec().default_slot(),
        }
    }

    /// Number of slots of this profile that fit.
    pub(super) fn holds(&self, profile: &ResourceProfile) -> u32 {
        let holds = |part: &Resources| {
            let times = self.left.holds(part);
            times.map_or(u32::MAX, |times| u32::try_from(times).unwrap_or(u32::MAX))
        };
        match profile {
            ResourceProfile::Unknown => self.free.min(holds(&self.share)),
            ResourceProfile::Of(wanted) => holds(wanted),
            ResourceProfile::Any => 0,
        }
    }

    /// Takes up to `count` slots of this profile, as many as fit. Returns how many.
    pub(super) fn take(&mut self, profile: &ResourceProfile, count: u32) -> u32 {
        let taken = self.holds(profile).min(count);
        match profile {
            ResourceProfile::Unknown => {
                self.free -= taken;
                self.left = self.left.saturating_minus(&self.share.times(taken));
            }
            ResourceProfile::Of(wanted) => {
                self.left = self.left.saturating_minus(&wanted.times(taken));
            }
            ResourceProfile::Any => {}
        }
        taken
    }

    /// Number of default slots that fit.
    pub(super) fn spare(&self) -> u32 {
        self.holds(&ResourceProfile::Unknown)
    }
}

/// Sorts by room, least first, so that wholly free workers can be released. Stable.
pub(super) fn least_first<T>(all: &mut [T], room: impl Fn(&T) -> &Room) {
    all.sort_by_cached_key(|it| room(it).spare());
}
