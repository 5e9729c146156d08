//! The indexes over the slots compared with the slots themselves.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tanist_compact::SmallMap;
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};

use crate::core::slot::{ReportedSlot, SlotHolder, SlotState, SlotsReport, SlotsVersion, Turn};
use crate::core::slots::*;

fn state() -> impl Strategy<Value = SlotState> {
    let holder = (0..3_u128, 0..4_u128).prop_map(|(job, allocation)| SlotHolder {
        job: JobId::from_bits(job),
        allocation: AllocationId::from_bits(allocation),
    });
    prop_oneof![
        Just(SlotState::Free),
        Just(SlotState::Resting),
        (holder.clone(), any::<bool>()).prop_map(|(holder, is_in_flight)| {
            SlotState::Pending {
                holder,
                is_in_flight,
            }
        }),
        holder.prop_map(SlotState::Allocated),
    ]
}

fn profile(memory: u64) -> ResourceProfile {
    let task_memory = memory;
    let resources = Resources {
        task_memory,
        ..Resources::ZERO
    };
    resources.into()
}

/// Computes the indexes from the states and compares.
fn check(slots: &Slots) {
    let mut held: BTreeMap<JobId, SmallMap<ResourceId, u32>> = BTreeMap::new();
    for (id, worker) in slots.workers() {
        let (mut free, mut taken) = (Vec::new(), Resources::ZERO);
        for (number, slot) in worker.slots() {
            assert!(
                number < 4 || slot.state != SlotState::Free,
                "{number} is gone"
            );
            if slot.state != SlotState::Free {
                let has = worker.profile_of(slot).resources();
                taken = taken.plus(has.expect("amounts"));
            }
            if let Some(holder) = slot.state.holder() {
                let at = held.entry(holder.job).or_default();
                *at.get_or_insert_with(id.clone(), || 0) += 1;
            }
            if slot.state == SlotState::Free {
                free.push(number);
            }
        }
        assert_eq!(worker.free().collect::<Vec<_>>(), free);
        assert_eq!(
            worker.left(),
            worker.spec().total().saturating_minus(&taken)
        );
    }
    assert_eq!(*slots.held(), held);
}

proptest! {
    #[test]
    fn the_indices_are_those_of_the_states_after_any_changes(
        changes in proptest::collection::vec((0..3_u8, 0..6_u32, proptest::option::of((state(), 0..3_u64))), 1..60),
    ) {
        let mut slots = Slots::default();
        for (turn, (worker, number, state)) in changes.into_iter().enumerate() {
            let id: ResourceId = format!("tm-{worker}").parse().expect("a name");
            let changed = Turn::of(turn as u64);
            match state {
                Some((state, memory)) if slots.worker(&id).is_some() => {
                    let is_there = slots.get(&id, number).is_some();
                    if is_there {
                        slots.set(&id, number, state, changed);
                    } else {
                        slots.ask(&id, number, profile(memory), state, changed);
                    }
                }
                None if number == 0 => slots.remove_worker(&id),
                Some(_) | None => {
                    let holder = SlotHolder {
                        job: JobId::from_bits(u128::from(number)),
                        allocation: AllocationId::from_bits(1),
                    };
                    let slots_of_it = [(0, None), (1, Some(holder)), (2, None), (3, Some(holder)), (5, Some(holder))];
                    let reported = slots_of_it.map(|(number, holder)| ReportedSlot {
                        number,
                        holder,
                        profile: if number > 3 { profile(2) } else { ResourceProfile::Unknown },
                    });
                    let report = SlotsReport {
                        slots: reported.to_vec(),
                        version: SlotsVersion::default(),
                        are_all: true,
                    };
                    let ResourceProfile::Of(total) = profile(40) else {
                        unreachable!("amounts");
                    };
                    slots.put_worker(&id, WorkerResourceSpec::new(total, 4), report, changed);
                }
            }
            check(&slots);
        }
    }
}
