//! Total resources of a TaskManager, and the reservations of its allocations. Pure.
//!
//! Extended resources are not only counted: each reservation holds some of them by index, from 0 up to the total
//! amount, and no index is held twice.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::AllocationId;
use tanist_proto::resources::{Resources, WorkerResourceSpec};

/// The indices of extended resources, by name.
pub(super) type Indices = BTreeMap<String, Vec<u64>>;

/// More was requested than is left.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("wanted: {wanted}; left: {left}; in total: {total}")]
pub(super) struct Exceeded {
    /// The request.
    pub wanted: Box<Resources>,
    /// Resources that are not reserved.
    pub left: Box<Resources>,
    /// All resources of the TaskManager.
    pub total: Box<Resources>,
}

/// The resources of an allocation.
#[derive(Debug, Clone, Default)]
struct Reservation {
    resources: Resources,
    indices: Indices,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Budget {
    total: Resources,
    /// Reserved if a request states no resources.
    share: Resources,
    reserved: BTreeMap<AllocationId, Reservation>,
    left: Resources,
}

impl Budget {
    /// Without reservations.
    pub(super) fn new(worker: &WorkerResourceSpec) -> Budget {
        Budget {
            total: worker.total().clone(),
            share: worker.default_slot(),
            reserved: BTreeMap::new(),
            left: worker.total().clone(),
        }
    }

    /// Reserves the requested resources, or a share if there are none.
    pub(super) fn reserve(
        &mut self,
        allocation: AllocationId,
        wanted: Option<&Resources>,
    ) -> Result<(), Exceeded> {
        let wanted = wanted.unwrap_or(&self.share).clone();
        let Some(left) = self.left.minus(&wanted) else {
            return Err(Exceeded {
                wanted: Box::new(wanted),
                left: Box::new(self.left.clone()),
                total: Box::new(self.total.clone()),
            });
        };
        let indices = wanted
            .all_extended()
            .map(|(name, amount)| (name.to_owned(), self.free_indices(name, amount)));
        let reservation = Reservation {
            indices: indices.collect(),
            resources: wanted,
        };
        self.left = left;
        self.reserved.insert(allocation, reservation);
        Ok(())
    }

    /// Ends a reservation.
    pub(super) fn give_back(&mut self, allocation: AllocationId) {
        if let Some(reservation) = self.reserved.remove(&allocation) {
            self.left = self.left.plus(&reservation.resources);
        }
    }

    /// The resources of an allocation.
    pub(super) fn reserved(&self, allocation: AllocationId) -> &Resources {
        let reservation = self.reserved.get(&allocation);
        reservation.map_or(&self.share, |it| &it.resources)
    }

    /// The extended resources of an allocation, by index.
    pub(super) fn indices(&self, allocation: AllocationId) -> Indices {
        let reservation = self.reserved.get(&allocation);
        reservation.map(|it| it.indices.clone()).unwrap_or_default()
    }

    /// The lowest free indexes. The caller has checked that enough are left.
    fn free_indices(&self, name: &str, amount: u64) -> Vec<u64> {
        let held = self.reserved.values().filter_map(|it| it.indices.get(name));
        let held: BTreeSet<u64> = held.flatten().copied().collect();
        let all = 0..self.total.extended(name);
        let wanted = usize::try_from(amount).unwrap_or(usize::MAX);
        all.filter(|index| !held.contains(index))
            .take(wanted)
            .collect()
    }
}
