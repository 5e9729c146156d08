//! What a TaskManager is started with.

use std::fmt;

use super::amounts::Resources;
use super::profile::ResourceProfile;

/// One kind of TaskManager: two that are started with the same have the same to give.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerResourceSpec {
    total: Resources,
    slots: u32,
}

impl WorkerResourceSpec {
    /// A TaskManager with this in total, in so many default slots; at least one.
    pub fn new(total: Resources, slots: u32) -> WorkerResourceSpec {
        let slots = slots.max(1);
        WorkerResourceSpec { total, slots }
    }

    /// All that its slots have together.
    pub fn total(&self) -> &Resources {
        &self.total
    }

    /// How many default slots it has.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// What a default slot of it has.
    pub fn default_slot(&self) -> Resources {
        self.total.divided_by(self.slots)
    }

    /// Whether it could serve such a slot if nothing of it were taken.
    pub fn can_serve(&self, required: &ResourceProfile) -> bool {
        match required {
            ResourceProfile::Unknown => true,
            ResourceProfile::Any => false,
            ResourceProfile::Of(resources) => self.total.covers(resources),
        }
    }
}

impl fmt::Display for WorkerResourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots of {}", self.slots, self.total)
    }
}
