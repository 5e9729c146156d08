//! What a TaskExecutor has left, and in which order several are filled where it only counts that all of it fits. Pure.
//!
//! The planning of workers goes by this order, and slot matching where its first choice does not serve a job: profile by profile, each
//! TaskExecutor as far as it goes before the next one. Invariant: what the one takes for enough the other one finds; else a job waits for
//! ever for what is there.

use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};

use super::slots::Worker;

/// What a TaskManager has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Default slots that may be had.
    pub free: u32,
    /// What no slot has.
    pub left: Resources,
    /// What a default slot of it has.
    pub share: Resources,
}

impl Room {
    /// Of a worker of which nobody has anything.
    pub fn of(spec: &WorkerResourceSpec) -> Room {
        Room {
            free: spec.slots(),
            left: spec.total().clone(),
            share: spec.default_slot(),
        }
    }

    /// Of one that has registered.
    pub(super) fn left_of(worker: &Worker) -> Room {
        Room {
            free: u32::try_from(worker.free().len()).unwrap_or(u32::MAX),
            left: worker.left(),
            share: worker.spec.default_slot(),
        }
    }

    /// How many such slots may be had.
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

    /// Takes as many of `count` such slots as there are. Gives how many.
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

    /// How many default slots may be had.
    pub(super) fn spare(&self) -> u32 {
        self.holds(&ResourceProfile::Unknown)
    }
}

/// Those that have the least left first: what is wholly free may be released then. Of equals the order stays.
pub(super) fn least_first<T>(all: &mut [T], room: impl Fn(&T) -> &Room) {
    all.sort_by_cached_key(|it| room(it).spare());
}
