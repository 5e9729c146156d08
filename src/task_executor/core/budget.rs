//! Total resources of a TaskManager, and the reservations of its allocations. Pure.
//!
//! Extended resources are not only counted: each reservation holds some of them by index, from 0 up to the total
//! amount, and no index is held twice.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::AllocationId;
use tanist_proto::resources::{Resources, WorkerResourceSpec};

/// The indices of extended resources, by name.
pub type Indices = BTreeMap<String, Vec<u64>>;

/// More was requested than is left.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("wanted: {wanted}; left: {left}; in total: {total}")]
pub struct Exceeded {
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
pub struct Budget {
    total: Resources,
    /// Reserved if a request states no resources.
    share: Resources,
    reserved: BTreeMap<AllocationId, Reservation>,
    left: Resources,
}

impl Budget {
    /// Without reservations.
    pub fn new(worker: &WorkerResourceSpec) -> Budget {
        Budget {
            total: worker.total().clone(),
            share: worker.default_slot(),
            reserved: BTreeMap::new(),
            left: worker.total().clone(),
        }
    }

    /// Reserves the requested resources, or a share if there are none.
    pub fn reserve(
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
    pub fn give_back(&mut self, allocation: AllocationId) {
        if let Some(reservation) = self.reserved.remove(&allocation) {
            self.left = self.left.plus(&reservation.resources);
        }
    }

    /// The resources of an allocation.
    pub fn reserved(&self, allocation: AllocationId) -> &Resources {
        let reservation = self.reserved.get(&allocation);
        reservation.map_or(&self.share, |it| &it.resources)
    }

    /// The extended resources of an allocation, by index.
    pub fn indices(&self, allocation: AllocationId) -> Indices {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tanist_proto::resources::CpuCores;

    use super::*;

    fn resources(cpu: u32, task_memory: u64, gpus: u64) -> Resources {
        let resources = Resources {
            cpu: CpuCores::whole(cpu),
            task_memory,
            ..Resources::ZERO
        };
        resources.with_extended("gpu", gpus)
    }

    fn budget(total: Resources, slots: u32) -> Budget {
        Budget::new(&WorkerResourceSpec::new(total, slots))
    }

    fn allocation(number: u32) -> AllocationId {
        AllocationId::from_bits(number.into())
    }

    #[test]
    fn a_refusal_names_what_is_wanted_left_and_there_in_total() {
        let mut budget = budget(resources(4, 40, 0), 4);
        let one = allocation(1);
        budget
            .reserve(one, Some(&resources(3, 10, 0)))
            .expect("fits");
        let refusal = budget.reserve(allocation(2), Some(&resources(2, 5, 0)));
        assert_eq!(
            refusal.expect_err("does not fit").to_string(),
            "wanted: 2 cores, 5 bytes of task memory; left: 1 cores, 30 bytes of task memory; in total: 4 cores, 40 bytes of \
             task memory"
        );
        budget.give_back(one);
        budget
            .reserve(allocation(2), Some(&resources(4, 40, 0)))
            .expect("all is left again");
    }

    #[test]
    fn equal_shares_of_any_total_fit_as_often_as_there_are_slots() {
        for slots in 1..=64 {
            let mut budget = budget(resources(4, 1_000_003, 2), slots);
            for slot in 0..slots {
                assert_eq!(
                    budget.reserve(allocation(slot), None),
                    Ok(()),
                    "{slot} of {slots}"
                );
            }
        }
    }

    #[test]
    fn extended_resources_are_given_out_by_index_and_taken_back() {
        let mut budget = budget(resources(4, 40, 3), 4);
        let gpus = |number| Some(resources(0, 0, number));
        budget
            .reserve(allocation(1), gpus(1).as_ref())
            .expect("fits");
        budget
            .reserve(allocation(2), gpus(1).as_ref())
            .expect("fits");
        assert!(budget.reserve(allocation(3), gpus(2).as_ref()).is_err());
        assert_eq!(budget.indices(allocation(2))["gpu"], [1]);
        budget.give_back(allocation(1));
        budget
            .reserve(allocation(3), gpus(2).as_ref())
            .expect("fits");
        assert_eq!(budget.indices(allocation(3))["gpu"], [0, 2]);
        assert!(budget.indices(allocation(1)).is_empty());
    }

    proptest! {
        #[test]
        fn whatever_is_reserved_and_given_back_no_more_is_held_than_there_is_and_no_index_twice(
            steps in proptest::collection::vec((0..8_u32, any::<bool>(), 0..3_u32, 0..20_u64, 0..3_u64), 1..60),
        ) {
            let total = resources(4, 40, 3);
            let mut budget = budget(total.clone(), 4);
            let mut model = BTreeMap::new();
            for (number, is_reserved, cpu, memory, gpus) in steps {
                let id = allocation(number);
                let wanted = resources(cpu, memory, gpus);
                if !is_reserved {
                    budget.give_back(id);
                    model.remove(&id);
                } else if !model.contains_key(&id) {
                    let held = model.values().fold(Resources::ZERO, |sum, it| sum.plus(it));
                    let fits = total.covers(&held.plus(&wanted));
                    prop_assert_eq!(budget.reserve(id, Some(&wanted)).is_ok(), fits);
                    if fits {
                        model.insert(id, wanted);
                    }
                }
                let mut seen = BTreeSet::new();
                for (id, held) in &model {
                    prop_assert_eq!(budget.reserved(*id), held);
                    let indices = budget.indices(*id).remove("gpu").unwrap_or_default();
                    prop_assert_eq!(indices.len() as u64, held.extended("gpu"));
                    prop_assert!(indices.into_iter().all(|index| index < 3 && seen.insert(index)));
                }
            }
        }
    }
}
