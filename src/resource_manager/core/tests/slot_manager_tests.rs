//! The slot manager's rules, one at a time: which slots jobs get, what reports and answers change, and which of
//! them come too late. Whether the rules hold together when messages are lost is tested in
//! [`super::slot_manager_model_tests`].

use std::sync::Arc;

use tanist_compact::SmallMap;
use tanist_gateway::ResourceRequirements;
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources, WorkerResourceSpec};

use crate::core::placement::Balance;
use crate::core::slot_manager::{
    RequestOutcome, SlotHolder, SlotManager, SlotRequest, SlotsReport, SlotsVersion,
};
use crate::tests::scripted::{declared, id};

/// The version of TaskExecutors that do not report one.
const NONE: SlotsVersion = SlotsVersion(0);

pub(super) fn worker(number: usize) -> ResourceId {
    format!("tm-{number}").parse().expect("a resource id")
}

pub(super) fn job(number: u128) -> JobId {
    JobId::from_bits(number)
}

pub(super) fn needs(of: JobId, minimum: u32, maximum: u32) -> ResourceRequirements {
    declared(of, id(1), [(ResourceProfile::Unknown, minimum, maximum)])
}

pub(super) fn cores(number: u32) -> Resources {
    Resources {
        cpu: CpuCores::whole(number),
        ..Resources::ZERO
    }
}

/// This number of default slots of two cores each.
pub(super) fn spec(slots: u32) -> WorkerResourceSpec {
    WorkerResourceSpec::new(cores(2 * slots), slots)
}

pub(super) fn with_workers(free: &[u32]) -> SlotManager {
    let mut slots = SlotManager::new(1);
    for (number, &free) in free.iter().enumerate() {
        let report: Vec<_> = (0..free).map(|slot| (slot, None)).collect();
        let report = SlotsReport::of_default_slots(&report, NONE);
        slots.put_worker(&worker(number), spec(free), report);
    }
    slots
}

/// This number of slots of each profile.
pub(super) fn needs_of(of: JobId, profiles: &[(Resources, u32)]) -> ResourceRequirements {
    let profiles = profiles.iter().cloned();
    declared(
        of,
        id(1),
        profiles.map(|(profile, number)| (profile.into(), number, number)),
    )
}

fn chosen(requests: &[SlotRequest]) -> Vec<(String, u32)> {
    requests
        .iter()
        .map(|request| (request.worker.to_string(), request.slot))
        .collect()
}

#[test]
fn slots_are_taken_where_most_are_free_and_then_from_the_same_task_executor() {
    let mut slots = with_workers(&[1, 3, 2]);
    slots.declare(needs(job(1), 3, 3));
    let taken = chosen(&slots.match_slots(Uptime::START));
    assert_eq!(
        taken,
        [
            ("tm-1".to_owned(), 0),
            ("tm-1".to_owned(), 1),
            ("tm-1".to_owned(), 2)
        ]
    );
    slots.declare(needs(job(2), 1, 1));
    assert_eq!(
        chosen(&slots.match_slots(Uptime::START)),
        [("tm-2".to_owned(), 0)]
    );
}

#[test]
fn balanced_by_slots_all_task_executors_are_used_alike() {
    let mut slots = with_workers(&[2, 4, 2]).balanced_by(Balance::Slots);
    slots.declare(needs(job(1), 4, 4));
    let mut taken = chosen(&slots.match_slots(Uptime::START));
    taken.sort();
    let expected = [("tm-0", 0), ("tm-1", 0), ("tm-1", 1), ("tm-2", 0)];
    let expected = expected.map(|(worker, slot)| (worker.to_owned(), slot));
    assert_eq!(taken, expected);
    // Any job's use counts.
    slots.declare(needs(job(2), 1, 1));
    assert_eq!(
        chosen(&slots.match_slots(Uptime::START)),
        [("tm-1".to_owned(), 2)]
    );
}

#[test]
fn a_minimum_is_given_as_a_whole_or_not_at_all_and_lets_others_pass() {
    let mut slots = with_workers(&[2]);
    slots.declare(needs(job(1), 3, 3));
    slots.declare(needs(job(2), 1, 2));
    let requests = slots.match_slots(Uptime::START);
    assert!(requests[0].holder.job == job(2), "{requests:?}");
    let shortages = slots.shortages();
    assert_eq!(shortages.keys().collect::<Vec<_>>(), [&job(1)]);
    assert_eq!(shortages[&job(1)].missing, 3);
}

#[test]
fn who_could_use_more_takes_nothing_that_others_need() {
    let mut slots = with_workers(&[2]);
    slots.declare(needs(job(1), 1, 3));
    slots.declare(needs(job(2), 1, 3));
    let given: Vec<JobId> = slots
        .match_slots(Uptime::START)
        .iter()
        .map(|it| it.holder.job)
        .collect();
    assert_eq!(given, [job(1), job(2)]);
    let useful: Vec<(JobId, usize)> = slots
        .useful_by_job()
        .into_iter()
        .map(|(job, useful)| (job, useful.len()))
        .collect();
    assert_eq!(useful, [(job(1), 2), (job(2), 2)]);
    assert!(slots.shortages_by_job().is_empty());
}

#[test]
fn what_a_task_executor_reports_counts_for_the_job() {
    let mut slots = SlotManager::new(1);
    let holder = SlotHolder {
        job: job(1),
        allocation: AllocationId::from_bits(9),
    };
    let report = SlotsReport::of_default_slots(&[(0, Some(holder)), (1, None)], NONE);
    slots.put_worker(&worker(0), spec(2), report);
    slots.declare(needs(job(1), 2, 2));
    assert_eq!(
        chosen(&slots.match_slots(Uptime::START)),
        [("tm-0".to_owned(), 1)]
    );
    assert!(slots.match_slots(Uptime::START).is_empty());
}

#[test]
fn slots_that_a_job_has_held_since_before_the_term_are_not_given_to_it_twice() {
    let mut slots = with_workers(&[3]);
    let held: SmallMap<_, _> = [(worker(1), vec![ResourceProfile::Unknown; 2])].into();
    let held = Arc::new(held);
    slots.declare(ResourceRequirements {
        held: held.clone(),
        ..needs(job(1), 3, 3)
    });
    assert_eq!(
        slots.match_slots(Uptime::START).len(),
        1,
        "two are where nobody has reported yet"
    );
    assert!(slots.shortages().is_empty());
    let holder = |bits| SlotHolder {
        job: job(1),
        allocation: AllocationId::from_bits(bits),
    };
    let report = [(0, Some(holder(8))), (1, Some(holder(9)))];
    slots.put_worker(
        &worker(1),
        spec(2),
        SlotsReport::of_default_slots(&report, NONE),
    );
    assert!(slots.match_slots(Uptime::START).is_empty());
    // Once a TaskExecutor has reported, only its report counts.
    slots.remove_worker(&worker(1));
    assert_eq!(slots.match_slots(Uptime::START).len(), 2);
}

#[test]
fn a_slot_that_is_occupied_is_taken_elsewhere() {
    let mut slots = with_workers(&[1, 1]);
    slots.declare(needs(job(1), 1, 1));
    let request = slots.match_slots(Uptime::START).remove(0);
    let other = SlotHolder {
        job: job(2),
        allocation: AllocationId::from_bits(9),
    };
    let occupied = RequestOutcome::Occupied(other);
    slots.answered(
        &request.worker,
        request.slot,
        request.holder,
        &occupied,
        NONE,
    );
    assert_eq!(
        chosen(&slots.match_slots(Uptime::START)),
        [("tm-1".to_owned(), 0)]
    );
    let held: Vec<_> = slots.allocations_of(job(2)).collect();
    assert_eq!(held, [(&worker(0), other.allocation)]);
}

#[test]
fn a_report_from_before_an_allocation_does_not_undo_it() {
    let mut slots = with_workers(&[2]);
    slots.declare(needs(job(1), 1, 1));
    let asked_at = slots.turn();
    let request = slots.match_slots(Uptime::START).remove(0);
    let allocated = RequestOutcome::Allocated;
    slots.answered(
        &request.worker,
        request.slot,
        request.holder,
        &allocated,
        NONE,
    );
    slots.report(
        &worker(0),
        &SlotsReport::of_default_slots(&[(0, None), (1, None)], NONE),
        asked_at,
    );
    assert_eq!(slots.slot_counts(&worker(0)), (2, 1));
    assert!(slots.match_slots(Uptime::START).is_empty());
    // A report that was requested afterwards does.
    slots.report(
        &worker(0),
        &SlotsReport::of_default_slots(&[(0, None), (1, None)], NONE),
        slots.turn(),
    );
    assert_eq!(slots.slot_counts(&worker(0)), (2, 2));
}

#[test]
fn a_late_notice_of_a_free_slot_does_not_undo_its_next_allocation() {
    let mut slots = SlotManager::new(1);
    slots.put_worker(
        &worker(0),
        spec(1),
        SlotsReport::of_default_slots(&[(0, None)], SlotsVersion(1)),
    );
    slots.declare(needs(job(1), 1, 1));
    let first = slots.match_slots(Uptime::START).remove(0);
    let allocated = RequestOutcome::Allocated;
    let (slot, holder) = (first.slot, first.holder);
    slots.answered(&first.worker, slot, holder, &allocated, SlotsVersion(2));
    // It is freed; that is sent twice, since the first message seems lost, and the slot is given away again.
    let freed = SlotsVersion(3);
    slots.report(
        &worker(0),
        &SlotsReport::of_default_slots(&[(0, None)], freed),
        slots.turn(),
    );
    let second = slots.match_slots(Uptime::START).remove(0);
    assert_ne!(second.holder, first.holder);
    slots.answered(
        &second.worker,
        second.slot,
        second.holder,
        &allocated,
        SlotsVersion(4),
    );
    slots.report(
        &worker(0),
        &SlotsReport::of_default_slots(&[(0, None)], freed),
        slots.turn(),
    );
    assert_eq!(slots.slot_counts(&worker(0)), (1, 0));
    assert!(slots.match_slots(Uptime::START).is_empty());
}

#[test]
fn an_answer_from_before_a_report_that_was_heard_first_is_asked_for_again() {
    let mut slots = SlotManager::new(1);
    slots.put_worker(
        &worker(0),
        spec(1),
        SlotsReport::of_default_slots(&[(0, None)], SlotsVersion(1)),
    );
    slots.declare(needs(job(1), 1, 1));
    let request = slots.match_slots(Uptime::START).remove(0);
    // Allocated as of 2, freed as of 3.
    slots.report(
        &worker(0),
        &SlotsReport::of_default_slots(&[(0, None)], SlotsVersion(3)),
        slots.turn(),
    );
    let allocated = RequestOutcome::Allocated;
    let (slot, holder) = (request.slot, request.holder);
    assert!(slots.answered(&request.worker, slot, holder, &allocated, SlotsVersion(2)));
    assert_eq!(slots.retry(), [request]);
}
