//! The resources with which a TaskManager is started.

use std::fmt;

use super::amounts::Resources;
use super::profile::ResourceProfile;

/// One kind of TaskManager: two TaskManagers with the same specification offer the same resources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerResourceSpec {
    total: Resources,
    slots: u32,
}

impl WorkerResourceSpec {
    /// A TaskManager with these total resources, divided into this number of default slots; at least one.
    pub fn new(total: Resources, slots: u32) -> WorkerResourceSpec {
        let slots = slots.max(1);
        WorkerResourceSpec { total, slots }
    }

    /// The total of all its slots.
    pub fn total(&self) -> &Resources {
        &self.total
    }

    /// Number of default slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The resources of one default slot.
    pub fn default_slot(&self) -> Resources {
        self.total.divided_by(self.slots)
    }

    /// Whether it could serve such a slot if all of it were free.
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
