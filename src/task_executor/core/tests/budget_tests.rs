//! The reservations of a TaskManager's resources.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tanist_proto::id::AllocationId;
use tanist_proto::resources::{CpuCores, Resources, WorkerResourceSpec};

use crate::core::budget::*;

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
