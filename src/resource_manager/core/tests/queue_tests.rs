//! Order of service, and that no job waits forever behind others: one rule at a time, and then jobs of any size
//! that come and end in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use tanist_gateway::{ResourceRequirements, SubmissionNumber};
use tanist_ha::clock::Uptime;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, WorkerResourceSpec};

use super::slot_manager_tests::{cores, job, needs, needs_of, spec, with_workers, worker};
use crate::core::slot_manager::{
    ReportedSlot, RequestOutcome, SlotManager, SlotRequest, SlotsReport, SlotsVersion,
};
use crate::core::workers::{Bounds, Startable};
use crate::tests::scripted::{declared, id};

const DELAY: Duration = Duration::from_secs(10);

fn keeping(free: &[u32]) -> SlotManager {
    with_workers(free).reserving_after(DELAY)
}

fn submitted(number: u64, requirements: ResourceRequirements) -> ResourceRequirements {
    let submission = SubmissionNumber { epoch: 1, number };
    ResourceRequirements {
        submission,
        ..requirements
    }
}

fn endless(requirements: ResourceRequirements) -> ResourceRequirements {
    ResourceRequirements {
        is_bounded: false,
        ..requirements
    }
}

/// Every TaskExecutor allocates the requested slots.
fn matched(slots: &mut SlotManager, now: Uptime) -> Vec<SlotRequest> {
    let requests = slots.match_slots(now);
    for request in &requests {
        let (worker, version) = (&request.worker, SlotsVersion(0));
        let allocated = RequestOutcome::Allocated;
        slots.answered(worker, request.slot, request.holder, &allocated, version);
    }
    requests
}

fn served(slots: &mut SlotManager, now: Uptime) -> BTreeSet<JobId> {
    let requests = matched(slots, now);
    requests.iter().map(|it| it.holder.job).collect()
}

/// The jobs that lack slots and that there is room for, including TaskExecutors that may come back.
fn with_room(slots: &mut SlotManager, departed: &[WorkerResourceSpec]) -> BTreeSet<JobId> {
    let short = slots.short().into_iter();
    let capacity = slots.capacity(departed.to_vec());
    slots.with_room(short, &capacity)
}

/// A job frees all its slots.
fn end(slots: &mut SlotManager, ended: JobId) {
    slots.withdraw(ended);
    let all = slots.slots();
    let held = all.filter(|(.., state)| state.holder().is_some_and(|it| it.job == ended));
    let held: Vec<(ResourceId, u32)> = held.map(|(id, slot, _)| (id.clone(), slot)).collect();
    for (id, number) in held {
        let report = SlotsReport {
            slots: vec![ReportedSlot {
                number,
                holder: None,
                profile: ResourceProfile::Unknown,
            }],
            version: SlotsVersion(0),
            are_all: false,
        };
        slots.report(&id, &report, slots.turn());
    }
}

#[test]
fn jobs_are_served_in_the_order_of_submission_whoever_speaks_first() {
    let mut slots = keeping(&[1]);
    slots.declare(submitted(2, needs(job(1), 1, 1)));
    slots.declare(submitted(1, needs(job(9), 1, 1)));
    let of_another_term = SubmissionNumber {
        epoch: 2,
        number: 1,
    };
    slots.declare(ResourceRequirements {
        submission: of_another_term,
        ..needs(job(0), 1, 1)
    });
    let now = Uptime::START;
    assert_eq!(served(&mut slots, now), [job(9)].into());
    end(&mut slots, job(9));
    assert_eq!(served(&mut slots, now), [job(1)].into());
    end(&mut slots, job(1));
    assert_eq!(served(&mut slots, now), [job(0)].into());
}

#[test]
fn who_has_waited_long_enough_is_no_longer_passed_by_smaller_ones() {
    let mut slots = keeping(&[2, 2]);
    let start = Uptime::START;
    slots.declare(submitted(1, needs(job(1), 3, 3)));
    assert_eq!(served(&mut slots, start), [job(1)].into());
    slots.declare(submitted(2, needs(job(2), 4, 4)));
    slots.declare(submitted(3, needs(job(3), 1, 1)));
    assert_eq!(served(&mut slots, start), [job(3)].into(), "it passes");
    end(&mut slots, job(3));
    let later = start + DELAY;
    slots.declare(submitted(4, needs(job(4), 1, 1)));
    assert!(served(&mut slots, later).is_empty(), "it waits");
    assert_eq!(slots.kept().map(|(of, _)| of), Some(job(2)));
    end(&mut slots, job(1));
    assert_eq!(served(&mut slots, later), [job(2)].into());
    end(&mut slots, job(2));
    assert_eq!(served(&mut slots, later), [job(4)].into());
    assert_eq!(slots.kept(), None);
}

#[test]
fn others_pass_where_that_delays_nobody() {
    let mut slots = keeping(&[2, 2, 2]);
    let start = Uptime::START;
    let running = [job(1), job(2), job(3)];
    for (number, of) in (1..).zip(running) {
        slots.declare(submitted(number, needs(of, 2, 2)));
    }
    served(&mut slots, start);
    slots.declare(submitted(4, needs(job(4), 3, 3)));
    served(&mut slots, start);
    let later = start + DELAY;
    served(&mut slots, later);
    let (_, kept) = slots.kept().expect("the fourth waits");
    assert_eq!(kept.len(), 2, "{kept:?}");
    let is_kept = |slots: &SlotManager, of: JobId| {
        let mut all = slots.slots();
        all.any(|(id, _, state)| kept.contains(id) && state.holder().is_some_and(|it| it.job == of))
    };
    let (there, elsewhere): (Vec<JobId>, Vec<JobId>) =
        running.into_iter().partition(|of| is_kept(&slots, *of));
    slots.declare(submitted(5, needs(job(5), 1, 1)));
    end(&mut slots, elsewhere[0]);
    assert_eq!(served(&mut slots, later), [job(5)].into());
    slots.declare(submitted(6, needs(job(6), 2, 2)));
    end(&mut slots, there[0]);
    assert_eq!(served(&mut slots, later), [job(4)].into());
}

#[test]
fn nothing_is_kept_for_what_would_not_fit_when_others_have_ended() {
    let mut slots = keeping(&[4]);
    let start = Uptime::START;
    slots.declare(submitted(1, endless(needs(job(1), 1, 1))));
    served(&mut slots, start);
    slots.declare(submitted(2, needs(job(2), 4, 4)));
    slots.declare(submitted(3, needs(job(3), 5, 5)));
    served(&mut slots, start);
    slots.declare(submitted(4, needs(job(4), 2, 2)));
    assert_eq!(served(&mut slots, start + DELAY), [job(4)].into());
    assert_eq!(slots.kept(), None);
    // The cluster has room for the first of them, if the endless one is cancelled.
    assert_eq!(with_room(&mut slots, &[]), [job(2)].into());
    assert_eq!(with_room(&mut slots, &[spec(1)]), [job(2), job(3)].into());
}

#[test]
fn slots_of_a_profile_are_kept_where_they_fit() {
    let mut slots = SlotManager::new(1).reserving_after(DELAY);
    for number in 0..2 {
        let report = SlotsReport::of_default_slots(&[], SlotsVersion(0));
        slots.put_worker(
            &worker(number),
            WorkerResourceSpec::new(cores(4), 0),
            report,
        );
    }
    let start = Uptime::START;
    let small = |number: u64| submitted(number, needs_of(job(number.into()), &[(cores(2), 1)]));
    for number in 1..=4 {
        slots.declare(small(number));
    }
    assert_eq!(matched(&mut slots, start).len(), 4);
    slots.declare(submitted(5, needs_of(job(5), &[(cores(4), 1)])));
    served(&mut slots, start);
    let later = start + DELAY;
    // However often small jobs come and others end, the TaskExecutors kept for it become free.
    for (next, ending) in (6..).zip(1..=4) {
        slots.declare(small(next));
        end(&mut slots, job(ending));
        if served(&mut slots, later).contains(&job(5)) {
            return;
        }
    }
    panic!("all jobs that ran before it have ended: {:?}", slots.kept());
}

#[test]
fn what_a_driver_could_start_is_room() {
    let mut slots = keeping(&[2]);
    let startable = |slots_left| Startable {
        bounds: Bounds {
            spec: spec(2),
            largest: None,
            min: 0,
            max: 2 + slots_left,
            redundant: 0,
        },
        expected: Vec::new(),
        slots_left,
    };
    slots.set_startable(Some(startable(2)));
    let start = Uptime::START;
    slots.declare(submitted(1, needs(job(1), 1, 1)));
    served(&mut slots, start);
    slots.declare(submitted(2, needs(job(2), 4, 4)));
    slots.declare(submitted(3, needs(job(3), 5, 5)));
    served(&mut slots, start);
    slots.declare(submitted(4, needs(job(4), 1, 1)));
    assert!(served(&mut slots, start + DELAY).is_empty());
    let (of, kept) = slots
        .kept()
        .expect("two here and two of one that is to come");
    assert_eq!((of, kept.len()), (job(2), 1));
    assert_eq!(with_room(&mut slots, &[]), [job(2), job(4)].into());
}

#[test]
fn what_a_job_has_where_it_is_to_leave_needs_no_room_elsewhere() {
    let mut slots = keeping(&[2, 2]);
    let now = Uptime::START;
    slots.declare(submitted(1, needs(job(1), 2, 2)));
    let given = matched(&mut slots, now);
    assert_eq!(given.len(), 2);
    assert_eq!(given[0].worker, given[1].worker);
    slots.declare(submitted(2, endless(needs(job(2), 2, 2))));
    assert_eq!(served(&mut slots, now), [job(2)].into());
    slots.set_draining(&given[0].worker, true);
    // As many as it must leave, in addition to these.
    slots.declare(submitted(1, needs(job(1), 4, 4)));
    assert_eq!(with_room(&mut slots, &[]), [job(1)].into());
    slots.declare(submitted(1, needs(job(1), 5, 5)));
    assert_eq!(with_room(&mut slots, &[]), BTreeSet::new());
}

/// One event.
#[derive(Debug, Clone)]
enum Step {
    /// A job comes that needs this number of slots, of this number of cores each if stated.
    Come { slots: u32, cores: Option<u32> },
    /// One of the jobs that have their slots ends.
    End(usize),
    /// A TaskExecutor starts or ends draining.
    Drain(usize, bool),
    /// Time passes.
    Wait,
}

const WORKERS: usize = 3;
const SLOTS: u32 = 4;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..=SLOTS * 3).prop_map(|slots| Step::Come { slots, cores: None }),
        2 => (1u32..=6, 1..=2 * SLOTS).prop_map(|(slots, cores)| Step::Come { slots, cores: Some(cores) }),
        6 => (0usize..16).prop_map(Step::End),
        1 => (0..WORKERS, any::<bool>()).prop_map(|(which, is_draining)| Step::Drain(which, is_draining)),
        2 => Just(Step::Wait),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    /// Once slots are kept for a job, only the ends of jobs that hold slots then are waited for, even if others
    /// come, as long as nothing more is drained.
    #[test]
    fn the_first_in_the_queue_waits_only_for_those_that_ran_before(steps in steps()) {
        let mut slots = keeping(&[SLOTS; WORKERS]);
        let mut now = Uptime::START;
        let mut running: BTreeSet<JobId> = BTreeSet::new();
        let mut waiting: BTreeSet<JobId> = BTreeSet::new();
        // The jobs that slots are kept for, and the jobs that held slots when that began.
        let mut before: BTreeMap<JobId, BTreeSet<JobId>> = BTreeMap::new();
        let mut number = 0_u64;
        for step in &steps {
            match step {
                Step::Come { slots: count, cores: each } => {
                    number += 1;
                    let of = job(number.into());
                    let profile = each.map_or(ResourceProfile::Unknown, |it| cores(it).into());
                    let requirements = declared(of, id(1), [(profile, *count, *count)]);
                    slots.declare(submitted(number, requirements));
                    waiting.insert(of);
                }
                Step::End(which) => {
                    let ending = running.iter().nth(which % running.len().max(1)).copied();
                    if let Some(ending) = ending {
                        running.remove(&ending);
                        end(&mut slots, ending);
                    }
                }
                Step::Drain(which, is_draining) => {
                    slots.set_draining(&worker(*which), *is_draining);
                    // The reservation has moved, and other jobs are waited for.
                    before.clear();
                }
                Step::Wait => now += DELAY,
            }
            for of in served(&mut slots, now) {
                waiting.remove(&of);
                running.insert(of);
                before.remove(&of);
            }
            if let Some((of, _)) = slots.kept() {
                let there = before.entry(of).or_insert_with(|| running.clone());
                there.retain(|it| running.contains(it));
                prop_assert!(!there.is_empty(), "{of} waits for nobody: {:?}", slots.kept());
            }
            // A job that has waited long enough and fits has slots kept for it, or is behind one that has.
            let has_room = with_room(&mut slots, &[]);
            let first = waiting.iter().find(|it| has_room.contains(it));
            if let (Some(first), Some((kept, _))) = (first, slots.kept()) {
                prop_assert!(kept == *first || !before.contains_key(first), "{first} {kept}");
            }
        }
        // From now on only jobs end that ran before, and small ones come all the time.
        now += DELAY;
        let mut ends = running.len();
        served(&mut slots, now).into_iter().for_each(|of| { running.insert(of); waiting.remove(&of); });
        if let Some((of, _)) = slots.kept() {
            ends = ends.max(running.len());
            for ending in running.clone() {
                number += 1;
                slots.declare(submitted(number, needs(job(number.into()), 1, 1)));
                end(&mut slots, ending);
                ends -= 1;
                if served(&mut slots, now).contains(&of) {
                    return Ok(());
                }
            }
            prop_assert!(false, "{of} is not served, and {ends} are left to end");
        }
    }
}
