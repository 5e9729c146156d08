//! The regions that wait for slots, by need. Pure.
//!
//! Very many regions have the same need: a result for one of them is valid for all. Invariants: no list is
//! empty; a region is listed under its present need, so it leaves the list before its need changes.

use tanist_compact::{SmallMap, SmallSet};

/// The slots that a region still needs. Ordered by size, the smallest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Need {
    /// The number of needed slots that no task of the job is in.
    pub slots: usize,
    /// The needed slots by kind.
    pub of_kinds: Vec<u32>,
    /// The group of coordinators that has to be prepared before it is placed.
    pub coordinator_group: Option<usize>,
}

impl Need {
    /// Adds or subtracts one slot.
    pub(crate) fn change(&mut self, kind: usize, is_more: bool) {
        let of_kind = &mut self.of_kinds[kind];
        if is_more {
            *of_kind += 1;
            self.slots += 1;
        } else {
            *of_kind -= 1;
            self.slots -= 1;
        }
    }

    /// Number of regions with this need that fit into the slots `there`, given by kind. None if it needs no
    /// slots.
    pub(crate) fn fits(&self, there: &[u32]) -> Option<usize> {
        let wanted = self.of_kinds.iter().zip(there);
        let wanted = wanted.filter(|(wanted, _)| **wanted > 0);
        let times = wanted.map(|(wanted, there)| there / wanted).min()?;
        Some(usize::try_from(times).unwrap_or(usize::MAX))
    }

    /// Whether there are fewer slots of a kind than it needs.
    pub(crate) fn exceeds(&self, there: &[u32]) -> bool {
        self.fits(there) == Some(0)
    }
}

/// Waiting regions by need; see the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WaitingList {
    by_need: SmallMap<Need, SmallSet<usize>>,
}

impl WaitingList {
    pub(crate) fn add(&mut self, region: usize, need: &Need) {
        match self.by_need.get_mut(need) {
            Some(regions) => {
                regions.insert(region);
            }
            None => {
                self.by_need.insert(need.clone(), SmallSet::from([region]));
            }
        }
    }

    pub(crate) fn remove(&mut self, region: usize, need: &Need) {
        if let Some(regions) = self.by_need.get_mut(need) {
            regions.remove(&region);
            if regions.is_empty() {
                self.by_need.remove(need);
            }
        }
    }

    /// All needs with their regions, the smallest need first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Need, &SmallSet<usize>)> {
        self.by_need.iter()
    }

    /// The first region for whose need `is_such` is true.
    pub(crate) fn first(&self, is_such: impl Fn(&Need) -> bool) -> Option<usize> {
        let such = self.by_need.iter().filter(|(need, _)| is_such(need));
        such.filter_map(|(_, regions)| regions.first().copied())
            .min()
    }
}
