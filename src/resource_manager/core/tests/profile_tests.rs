//! Dynamic slots: how they are cut out of the free resources of TaskExecutors, and what is known about them
//! afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_gateway::ResourceRequirements;
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources, WorkerResourceSpec};

use crate::core::slot_manager::{
    ReportedSlot, RequestOutcome, SlotHolder, SlotManager, SlotRequest, SlotsReport, SlotsVersion,
};
use crate::tests::scripted::{declared, id};

fn worker(number: usize) -> ResourceId {
    format!("tm-{number}").parse().expect("a resource id")
}

fn job(number: u128) -> JobId {
    JobId::from_bits(number)
}

fn resources(cores: u32, gpus: u64) -> Resources {
    let resources = Resources {
        cpu: CpuCores::whole(cores),
        ..Resources::ZERO
    };
    resources.with_extended("gpu", gpus)
}

/// Two default slots of half of this each.
fn spec(cores: u32, gpus: u64) -> WorkerResourceSpec {
    WorkerResourceSpec::new(resources(cores, gpus), 2)
}

fn needs(of: JobId, profiles: &[(ResourceProfile, u32)]) -> ResourceRequirements {
    let profiles = profiles.iter().cloned();
    declared(
        of,
        id(1),
        profiles.map(|(profile, number)| (profile, number, number)),
    )
}

fn report(slots: &[(u32, Option<(SlotHolder, Resources)>)], version: u64) -> SlotsReport {
    let reported = slots.iter().map(|(number, held)| ReportedSlot {
        number: *number,
        holder: held.as_ref().map(|(holder, _)| *holder),
        profile: held
            .as_ref()
            .map_or(ResourceProfile::Unknown, |(_, has)| has.clone().into()),
    });
    SlotsReport {
        slots: reported.collect(),
        version: SlotsVersion(version),
        are_all: true,
    }
}

fn free(version: u64) -> SlotsReport {
    report(&[(0, None), (1, None)], version)
}

fn one_worker(cores: u32, gpus: u64) -> SlotManager {
    let mut slots = SlotManager::new(1);
    slots.put_worker(&worker(0), spec(cores, gpus), free(1));
    slots
}

fn numbers(requests: &[SlotRequest]) -> Vec<u32> {
    requests.iter().map(|request| request.slot).collect()
}

fn allocate(slots: &mut SlotManager, requests: &[SlotRequest], version: u64) {
    for request in requests {
        let (to, holder) = (&request.worker, request.holder);
        let allocated = RequestOutcome::Allocated;
        slots.answered(to, request.slot, holder, &allocated, SlotsVersion(version));
    }
}

#[test]
fn a_slot_with_a_profile_is_cut_out_of_what_is_left_and_default_slots_get_the_rest() {
    let mut slots = one_worker(4, 0);
    slots.declare(needs(job(1), &[(resources(1, 0).into(), 3)]));
    let requests = slots.match_slots(Uptime::START);
    assert_eq!(numbers(&requests), [2, 3, 4]);
    assert!(
        requests
            .iter()
            .all(|it| it.profile == resources(1, 0).into())
    );
    assert_eq!(slots.left(&worker(0)), resources(1, 0));
    // Both default slots are free, but the resources do not suffice for one.
    slots.declare(needs(job(2), &[(ResourceProfile::Unknown, 1)]));
    assert!(slots.match_slots(Uptime::START).is_empty());
    assert_eq!(slots.slot_counts(&worker(0)), (5, 0));
    allocate(&mut slots, &requests, 2);
    slots.report(&worker(0), &free(3), slots.turn());
    assert_eq!(slots.left(&worker(0)), resources(4, 0), "all were freed");
    let requests = slots.match_slots(Uptime::START);
    assert_eq!(requests.len(), 3, "first come, first served: {requests:?}");
    assert!(
        requests.iter().all(|it| it.slot > 4),
        "no number comes again: {requests:?}"
    );
}

#[test]
fn slots_that_take_all_of_it_are_not_asked_for_twice_while_their_requests_are_open() {
    let mut slots = one_worker(4, 2);
    slots.declare(needs(job(1), &[(resources(2, 2).into(), 1)]));
    let requests = slots.match_slots(Uptime::START);
    assert_eq!(requests.len(), 1);
    slots.declare(needs(job(2), &[(resources(1, 1).into(), 1)]));
    assert!(
        slots.match_slots(Uptime::START).is_empty(),
        "no gpu is left"
    );
    let (request, unknown) = (&requests[0], RequestOutcome::Unknown);
    slots.answered(
        &worker(0),
        request.slot,
        request.holder,
        &unknown,
        SlotsVersion(0),
    );
    assert!(
        slots.match_slots(Uptime::START).is_empty(),
        "it may have been given"
    );
    assert_eq!(slots.retry(), requests, "asked again, unchanged");
}

#[test]
fn a_dynamic_slot_that_is_refused_is_left_alone_for_a_moment_and_then_asked_for_again() {
    let mut slots = one_worker(4, 0);
    slots.declare(needs(job(1), &[(resources(4, 0).into(), 1)]));
    let first = slots.match_slots(Uptime::START).remove(0);
    let refused = RequestOutcome::Refused;
    assert!(slots.answered(
        &worker(0),
        first.slot,
        first.holder,
        &refused,
        SlotsVersion(1)
    ));
    assert!(slots.match_slots(Uptime::START).is_empty());
    assert!(slots.retry().is_empty());
    let second = slots.match_slots(Uptime::START).remove(0);
    assert!(second.slot > first.slot && second.holder != first.holder);
}

#[test]
fn a_new_leader_knows_dynamic_slots_exactly_from_the_report() {
    let holder = |job, allocation| SlotHolder {
        job,
        allocation: AllocationId::from_bits(allocation),
    };
    let mut slots = SlotManager::new(9);
    let held = [
        (0, None),
        (1, Some((holder(job(2), 8), resources(2, 1)))),
        (7, Some((holder(job(1), 9), resources(1, 1)))),
    ];
    slots.put_worker(&worker(0), spec(4, 2), report(&held, 5));
    assert_eq!(slots.left(&worker(0)), resources(1, 0));
    slots.declare(needs(job(1), &[(resources(1, 1).into(), 1)]));
    slots.declare(needs(job(2), &[(ResourceProfile::Unknown, 1)]));
    assert!(
        slots.match_slots(Uptime::START).is_empty(),
        "both have what they need"
    );
    assert!(slots.shortages().is_empty());
    slots.declare(needs(job(1), &[(resources(1, 0).into(), 1)]));
    let requests = slots.match_slots(Uptime::START);
    assert_eq!(numbers(&requests), [8], "what it holds has another profile");
    assert!(slots.left(&worker(0)).is_zero());
}

#[test]
fn what_is_held_where_nobody_has_reported_yet_counts_by_its_profile() {
    let mut slots = one_worker(4, 0);
    let held = Arc::new([(worker(1), vec![ResourceProfile::from(resources(1, 0))])].into());
    let wanted = [(resources(2, 0).into(), 1), (resources(1, 0).into(), 1)];
    slots.declare(ResourceRequirements {
        held,
        ..needs(job(1), &wanted)
    });
    let requests = slots.match_slots(Uptime::START);
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(requests[0].profile, resources(2, 0).into());
}

#[test]
fn a_report_from_before_a_dynamic_slot_was_freed_does_not_bring_it_back() {
    let mut slots = one_worker(4, 0);
    slots.declare(needs(job(1), &[(resources(2, 0).into(), 1)]));
    let requests = slots.match_slots(Uptime::START);
    allocate(&mut slots, &requests, 2);
    let held = (requests[0].holder, resources(2, 0));
    let late = report(&[(0, None), (1, None), (2, Some(held))], 2);
    slots.withdraw(job(1));
    slots.report(&worker(0), &free(3), slots.turn());
    slots.report(&worker(0), &late, slots.turn());
    assert_eq!(slots.left(&worker(0)), resources(4, 0));
    assert!(!slots.is_holder(job(1)));
}

#[test]
fn the_largest_profiles_are_placed_first_and_what_nobody_could_ever_give_is_named() {
    let mut slots = SlotManager::new(1);
    slots.put_worker(&worker(0), spec(2, 0), free(1));
    slots.put_worker(&worker(1), spec(4, 0), free(1));
    let wanted = [(resources(1, 0).into(), 2), (resources(4, 0).into(), 1)];
    slots.declare(needs(job(1), &wanted));
    assert_eq!(
        slots.match_slots(Uptime::START).len(),
        3,
        "the small ones leave room for the large one"
    );
    slots.declare(needs(job(2), &[(resources(4, 0).into(), 1)]));
    slots.declare(needs(
        job(3),
        &[(resources(5, 0).into(), 1), (resources(1, 0).into(), 1)],
    ));
    slots.declare(needs(job(4), &[(ResourceProfile::Unknown, 99)]));
    assert!(slots.match_slots(Uptime::START).is_empty());
    let unfulfillable = slots.unfulfillable(&[spec(2, 0), spec(4, 0)]);
    let expected = BTreeMap::from([(job(3), resources(5, 0).into())]);
    assert_eq!(
        unfulfillable, expected,
        "the others may be served when something is free"
    );
}
