//! The rules of the slot pool, one by one.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources};

use crate::core::slot_pool::*;

const ANY: ResourceProfile = ResourceProfile::Unknown;

/// The profile of a slot with this number of cores.
fn cores(number: u32) -> ResourceProfile {
    let resources = Resources {
        cpu: CpuCores::whole(number),
        ..Resources::ZERO
    };
    resources.into()
}

fn tm(name: &str) -> ResourceId {
    name.parse().expect("a resource id")
}

fn slot(number: u128) -> AllocationId {
    AllocationId::from_bits(number)
}

fn keys(count: u32) -> Vec<SlotKey> {
    (0..count)
        .map(|index| SlotKey { group: 0, index })
        .collect()
}

fn pool(offers: &[(&str, u128, u32)]) -> SlotPool {
    let mut pool = SlotPool::default();
    for (task_manager, allocation, index) in offers {
        pool.offer(&tm(task_manager), slot(*allocation), *index, cores(1), 0);
    }
    pool
}

#[test]
fn the_same_offer_again_is_accepted() {
    let mut pool = pool(&[("a", 1, 0)]);
    assert_eq!(
        pool.offer(&tm("a"), slot(1), 0, cores(1), 1),
        OfferAnswer::Accepted
    );
    assert_eq!(pool.len(), 1);
}

#[test]
fn another_slot_for_an_allocation_that_is_filled_is_rejected() {
    let mut pool = pool(&[("a", 1, 0)]);
    assert_eq!(
        pool.offer(&tm("a"), slot(1), 1, cores(1), 1),
        OfferAnswer::Rejected
    );
    assert_eq!(
        pool.offer(&tm("b"), slot(1), 0, cores(1), 1),
        OfferAnswer::Rejected
    );
}

#[test]
fn a_slot_with_a_new_allocation_has_lost_the_old_one() {
    let mut pool = pool(&[("a", 1, 0)]);
    let answer = pool.offer(&tm("a"), slot(2), 0, cores(1), 1);
    assert_eq!(answer, OfferAnswer::AcceptedInsteadOf(slot(1)));
    assert_eq!(pool.get(&slot(1)), None);
}

#[test]
fn a_slot_that_was_never_requested_is_kept_and_given_back_when_it_has_idled() {
    let mut pool = pool(&[("a", 1, 0), ("a", 2, 1)]);
    pool.begin_use(slot(1));
    assert!(pool.note_idle(true, 1_000, 500).is_empty());
    assert!(pool.note_idle(true, 1_499, 500).is_empty());
    assert_eq!(pool.note_idle(true, 1_500, 500), [slot(2)]);
}

#[test]
fn slots_idle_from_when_there_are_more_than_what_is_needed() {
    let mut pool = pool(&[("a", 1, 0), ("a", 2, 1)]);
    pool.begin_use(slot(1));
    assert!(pool.note_idle(false, 1_000, 500).is_empty());
    assert!(pool.note_idle(true, 1_600, 500).is_empty());
    pool.end_use(slot(1));
    assert_eq!(pool.note_idle(true, 2_100, 500), [slot(2)]);
    assert_eq!(pool.note_idle(true, 2_600, 500), [slot(1), slot(2)]);
    assert!(pool.note_idle(false, 2_700, 500).is_empty());
    assert_eq!(pool.idle_since_ms(), None);
}

#[test]
fn an_idle_slot_serves_a_need_that_comes_later() {
    let mut pool = pool(&[("a", 1, 0)]);
    pool.note_idle(true, 0, 500);
    let assigned = pool.assign(&keys(1), &[ANY, ANY], &BTreeMap::new(), &BTreeSet::new());
    assert_eq!(assigned.expect("enough").len(), 1);
}

#[test]
fn slots_are_spread_evenly_over_the_task_managers() {
    let pool = pool(&[("a", 1, 0), ("a", 2, 1), ("b", 3, 0), ("b", 4, 1)]);
    let assigned = pool
        .assign(&keys(2), &[ANY, ANY], &BTreeMap::new(), &BTreeSet::new())
        .expect("enough");
    let used: Vec<AllocationId> = assigned.into_values().collect();
    assert_eq!(used, [slot(1), slot(3)]);
}

#[test]
fn a_key_goes_back_to_its_former_slot_or_else_to_its_former_task_manager() {
    let mut pool = pool(&[("a", 1, 0), ("b", 2, 0), ("b", 3, 1)]);
    pool.remember(SlotKey { group: 0, index: 0 }, tm("b"), slot(9));
    pool.remember(SlotKey { group: 0, index: 1 }, tm("b"), slot(2));
    let assigned = pool
        .assign(&keys(2), &[ANY, ANY], &BTreeMap::new(), &BTreeSet::new())
        .expect("enough");
    let used: Vec<AllocationId> = assigned.into_values().collect();
    assert_eq!(used, [slot(3), slot(2)]);
}

#[test]
fn a_taken_or_blocked_slot_is_assigned_to_no_other_key() {
    let pool = pool(&[("a", 1, 0), ("a", 2, 1), ("a", 3, 2)]);
    let taken = BTreeMap::from([(SlotKey { group: 1, index: 0 }, slot(1))]);
    let blocked = BTreeSet::from([slot(2)]);
    let assigned = pool
        .assign(&keys(1), &[ANY, ANY], &taken, &blocked)
        .expect("enough");
    assert_eq!(assigned.into_values().collect::<Vec<_>>(), [slot(3)]);
    assert_eq!(pool.assign(&keys(2), &[ANY, ANY], &taken, &blocked), None);
}

#[test]
fn a_released_allocation_is_not_accepted_before_its_task_manager_registers_again() {
    let mut pool = pool(&[("a", 1, 0), ("b", 2, 0)]);
    pool.remove(&slot(1));
    assert_eq!(
        pool.offer(&tm("a"), slot(1), 0, cores(1), 2),
        OfferAnswer::Rejected
    );
    pool.forget_released(&tm("b"));
    assert_eq!(
        pool.offer(&tm("a"), slot(1), 0, cores(1), 2),
        OfferAnswer::Rejected
    );
    pool.forget_released(&tm("a"));
    assert_eq!(
        pool.offer(&tm("a"), slot(1), 0, cores(1), 2),
        OfferAnswer::Accepted
    );
    // An allocation whose slot was allocated again is not accepted either.
    let instead = OfferAnswer::AcceptedInsteadOf(slot(1));
    assert_eq!(pool.offer(&tm("a"), slot(3), 0, cores(1), 3), instead);
    assert_eq!(
        pool.offer(&tm("a"), slot(1), 0, cores(1), 4),
        OfferAnswer::Rejected
    );
}

#[test]
fn a_slot_serves_only_a_need_of_exactly_its_profile() {
    let mut pool = SlotPool::default();
    for (number, has) in [(1, 2), (2, 1), (3, 2)] {
        let index = u32::try_from(number).expect("small");
        pool.offer(&tm("a"), slot(number), index, cores(has), 0);
    }
    let profiles = [cores(1), cores(2)];
    let key = |group, index| SlotKey { group, index };
    let mut wanted = vec![key(0, 0), key(1, 0)];
    let (taken, blocked) = (BTreeMap::new(), BTreeSet::new());
    let assigned = pool.assign(&wanted, &profiles, &taken, &blocked);
    let used: Vec<AllocationId> = assigned.expect("enough").into_values().collect();
    assert_eq!(used, [slot(2), slot(1)]);
    wanted.push(key(0, 1));
    let assigned = pool.assign(&wanted, &profiles, &taken, &blocked);
    assert_eq!(assigned, None, "the large one that is left is not cut");
    assert_eq!((pool.count_for(&cores(1)), pool.count_for(&ANY)), (1, 3));
}

#[test]
fn the_surplus_is_counted_by_profile() {
    let mut pool = SlotPool::default();
    for (number, has) in [(1, 2), (2, 1), (3, 2), (4, 3)] {
        let index = u32::try_from(number).expect("small");
        pool.offer(&tm("a"), slot(number), index, cores(has), 0);
    }
    let all: Vec<AllocationId> = (1..=4).map(slot).collect();
    let needed = vec![(cores(1), 1), (cores(2), 1)];
    assert_eq!(pool.surplus(all.clone(), &needed), [slot(1), slot(4)]);
    assert!(pool.has_surplus(&needed));
    let alike = vec![(ANY, 3)];
    assert_eq!(pool.surplus(all.clone(), &alike).len(), 1);
    assert!(!pool.has_surplus(&[(ANY, 4)]));
    assert_eq!(pool.surplus(all, &[]).len(), 4);
}
