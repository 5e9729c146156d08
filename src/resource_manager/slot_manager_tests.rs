//! Properties of the slot manager against TaskExecutors that lose, delay and repeat messages, and its rules of choice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use tanist_ha::election::Epoch;
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources, WorkerResourceSpec};

use super::choosing::Balance;
use super::slot_manager::{
    ReportedSlot, RequestOutcome, SlotHolder, SlotManager, SlotRequest, SlotState, SlotsReport,
    SlotsVersion, Turn,
};
use crate::gateway::{JobMasterId, ResourceRequirement, ResourceRequirements};
use crate::small_map::SmallMap;

const SLOTS: u32 = 3;
/// Of TaskExecutors that tell none.
const NONE: SlotsVersion = SlotsVersion(0);

fn worker(number: usize) -> ResourceId {
    format!("tm-{number}").parse().expect("a resource id")
}

fn job(number: u128) -> JobId {
    JobId::from_bits(number)
}

fn needs(of: JobId, minimum: u32, maximum: u32) -> ResourceRequirements {
    ResourceRequirements {
        job: of,
        job_master: JobMasterId {
            epoch: Epoch::new(5),
            incarnation: 1,
        },
        job_master_address: "jm:1".to_owned(),
        resources: vec![ResourceRequirement {
            profile: ResourceProfile::Unknown,
            minimum,
            maximum,
        }],
        held: Arc::default(),
    }
}

fn cores(number: u32) -> Resources {
    Resources {
        cpu: CpuCores::whole(number),
        ..Resources::ZERO
    }
}

/// So many default slots of two cores each.
fn spec(slots: u32) -> WorkerResourceSpec {
    WorkerResourceSpec::new(cores(2 * slots), slots)
}

fn with_workers(free: &[u32]) -> SlotManager {
    let mut slots = SlotManager::new(1);
    for (number, &free) in free.iter().enumerate() {
        let report: Vec<_> = (0..free).map(|slot| (slot, None)).collect();
        let report = SlotsReport::of_default_slots(&report, NONE);
        slots.put_worker(&worker(number), spec(free), report);
    }
    slots
}

/// So many slots of each of these profiles.
fn needs_of(of: JobId, profiles: &[(Resources, u32)]) -> ResourceRequirements {
    let resources = profiles
        .iter()
        .map(|(profile, number)| ResourceRequirement {
            profile: profile.clone().into(),
            minimum: *number,
            maximum: *number,
        });
    ResourceRequirements {
        resources: resources.collect(),
        ..needs(of, 0, 0)
    }
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
    let taken = chosen(&slots.match_slots());
    assert_eq!(
        taken,
        [
            ("tm-1".to_owned(), 0),
            ("tm-1".to_owned(), 1),
            ("tm-1".to_owned(), 2)
        ]
    );
    slots.declare(needs(job(2), 1, 1));
    assert_eq!(chosen(&slots.match_slots()), [("tm-2".to_owned(), 0)]);
}

#[test]
fn balanced_by_slots_all_task_executors_are_used_alike() {
    let mut slots = with_workers(&[2, 4, 2]).balanced_by(Balance::Slots);
    slots.declare(needs(job(1), 4, 4));
    let mut taken = chosen(&slots.match_slots());
    taken.sort();
    let expected = [("tm-0", 0), ("tm-1", 0), ("tm-1", 1), ("tm-2", 0)];
    let expected = expected.map(|(worker, slot)| (worker.to_owned(), slot));
    assert_eq!(taken, expected);
    // Whoever uses it.
    slots.declare(needs(job(2), 1, 1));
    assert_eq!(chosen(&slots.match_slots()), [("tm-1".to_owned(), 2)]);
}

#[test]
fn a_minimum_is_given_as_a_whole_or_not_at_all_and_lets_others_pass() {
    let mut slots = with_workers(&[2]);
    slots.declare(needs(job(1), 3, 3));
    slots.declare(needs(job(2), 1, 2));
    let requests = slots.match_slots();
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
    let given: Vec<JobId> = slots.match_slots().iter().map(|it| it.holder.job).collect();
    assert_eq!(given, [job(1), job(2)]);
    let useful: Vec<(JobId, usize)> = slots
        .useful_by_job()
        .into_iter()
        .map(|(job, useful)| (job, useful.len()))
        .collect();
    assert_eq!(useful, [(job(1), 2), (job(2), 2)]);
    assert!(slots.lacking_by_job().is_empty());
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
    assert_eq!(chosen(&slots.match_slots()), [("tm-0".to_owned(), 1)]);
    assert!(slots.match_slots().is_empty());
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
        slots.match_slots().len(),
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
    assert!(slots.match_slots().is_empty());
    // What has reported once counts as it is reported.
    slots.remove_worker(&worker(1));
    assert_eq!(slots.match_slots().len(), 2);
}

#[test]
fn a_slot_that_is_occupied_is_taken_elsewhere() {
    let mut slots = with_workers(&[1, 1]);
    slots.declare(needs(job(1), 1, 1));
    let request = slots.match_slots().remove(0);
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
    assert_eq!(chosen(&slots.match_slots()), [("tm-1".to_owned(), 0)]);
    let held: Vec<_> = slots.allocations_of(job(2)).collect();
    assert_eq!(held, [(&worker(0), other.allocation)]);
}

#[test]
fn a_report_from_before_an_allocation_does_not_undo_it() {
    let mut slots = with_workers(&[2]);
    slots.declare(needs(job(1), 1, 1));
    let asked_at = slots.turn();
    let request = slots.match_slots().remove(0);
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
    assert!(slots.match_slots().is_empty());
    // One that was asked for afterwards does.
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
    let first = slots.match_slots().remove(0);
    let allocated = RequestOutcome::Allocated;
    let (slot, holder) = (first.slot, first.holder);
    slots.answered(&first.worker, slot, holder, &allocated, SlotsVersion(2));
    // It is freed; that is told twice, as the first message seems lost, and the slot is given away anew.
    let freed = SlotsVersion(3);
    slots.report(
        &worker(0),
        &SlotsReport::of_default_slots(&[(0, None)], freed),
        slots.turn(),
    );
    let second = slots.match_slots().remove(0);
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
    assert!(slots.match_slots().is_empty());
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
    let request = slots.match_slots().remove(0);
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

/// What happens to the manager and to the messages between it and its TaskExecutors.
#[derive(Debug, Clone)]
enum Step {
    Match,
    Retry,
    /// A request arrives; its answer too, unless it is lost.
    Deliver {
        which: usize,
        is_answer_lost: bool,
    },
    /// A request never arrives.
    Drop {
        which: usize,
    },
    /// A given-up request arrives after all.
    Late {
        which: usize,
    },
    AskReport {
        worker: usize,
    },
    DeliverReport {
        which: usize,
    },
    /// A TaskExecutor frees a slot; the next report tells.
    Free {
        worker: usize,
        slot: u32,
    },
    /// A TaskExecutor registers again.
    Register {
        worker: usize,
    },
    /// It tells of a slot of its own accord.
    Notify {
        worker: usize,
        slot: u32,
    },
    /// That arrives, perhaps once more, and however late.
    DeliverNotice {
        which: usize,
        comes_again: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 0usize..8;
    let step = prop_oneof![
        4 => Just(Step::Match),
        1 => Just(Step::Retry),
        4 => (which.clone(), any::<bool>())
            .prop_map(|(which, is_answer_lost)| Step::Deliver { which, is_answer_lost }),
        1 => which.clone().prop_map(|which| Step::Drop { which }),
        1 => which.clone().prop_map(|which| Step::Late { which }),
        2 => (0usize..2).prop_map(|worker| Step::AskReport { worker }),
        2 => which.clone().prop_map(|which| Step::DeliverReport { which }),
        2 => (0usize..2, 0..SLOTS + 4).prop_map(|(worker, slot)| Step::Free { worker, slot }),
        1 => (0usize..2).prop_map(|worker| Step::Register { worker }),
        2 => (0usize..2, 0..SLOTS + 4).prop_map(|(worker, slot)| Step::Notify { worker, slot }),
        2 => (0usize..8, any::<bool>())
            .prop_map(|(which, comes_again)| Step::DeliverNotice { which, comes_again }),
    ];
    proptest::collection::vec(step, 0..80)
}

/// Who holds a slot, and what is reserved for it.
type Truth = BTreeMap<(ResourceId, u32), (SlotHolder, Resources)>;

/// The manager, the true slots, and what is under way between them.
struct World {
    slots: SlotManager,
    truth: Truth,
    /// An allocation is never reused: TaskExecutors refuse one that they freed.
    freed: BTreeSet<AllocationId>,
    in_flight: Vec<(u64, SlotRequest)>,
    given_up: Vec<(u64, SlotRequest)>,
    reports: Vec<(u64, ResourceId, Turn, SlotsReport)>,
    notices: Vec<(u64, ResourceId, SlotsReport)>,
    /// How often the slots of each have changed.
    versions: BTreeMap<ResourceId, SlotsVersion>,
    /// Registrations so far, by worker.
    registrations: BTreeMap<ResourceId, u64>,
}

impl World {
    fn new() -> World {
        let registrations = [(worker(0), 0), (worker(1), 0)].into();
        let mut slots = with_workers(&[SLOTS, SLOTS]);
        slots.declare(needs(job(1), 2, 3));
        slots.declare(needs(job(2), 1, 2));
        slots.declare(needs_of(job(3), &[(cores(1), 2)]));
        World {
            slots,
            truth: BTreeMap::new(),
            freed: BTreeSet::new(),
            in_flight: Vec::new(),
            given_up: Vec::new(),
            reports: Vec::new(),
            notices: Vec::new(),
            versions: [worker(0), worker(1)]
                .map(|id| (id, SlotsVersion(1)))
                .into(),
            registrations,
        }
    }

    fn reported(&self, worker: &ResourceId, number: u32) -> ReportedSlot {
        let held = self.truth.get(&(worker.clone(), number));
        ReportedSlot {
            number,
            holder: held.map(|(holder, _)| *holder),
            profile: held.map_or(ResourceProfile::Unknown, |(_, has)| has.clone().into()),
        }
    }

    fn report_of(&self, worker: &ResourceId) -> SlotsReport {
        let held = self.truth.keys().filter(|(id, _)| id == worker);
        let dynamic = held.map(|(_, number)| *number).filter(|it| *it >= SLOTS);
        let numbers = (0..SLOTS).chain(dynamic);
        SlotsReport {
            slots: numbers
                .map(|number| self.reported(worker, number))
                .collect(),
            version: self.versions[worker],
            are_all: true,
        }
    }

    fn taken_of(&self, worker: &ResourceId) -> Resources {
        let held = self.truth.iter().filter(|((id, _), _)| id == worker);
        held.fold(Resources::ZERO, |sum, (_, (_, has))| sum.plus(has))
    }

    fn allocated_of(&self, worker: &ResourceId) -> Vec<(u32, SlotHolder)> {
        let slots = self.slots.slots();
        let of_it = slots.filter(|(id, ..)| *id == worker);
        of_it
            .filter_map(|(_, number, state)| match state {
                SlotState::Allocated(holder) => Some((number, holder)),
                SlotState::Free | SlotState::Resting | SlotState::Pending { .. } => None,
            })
            .collect()
    }

    fn send(&mut self, requests: Vec<SlotRequest>) {
        for request in requests {
            self.in_flight
                .push((self.registrations[&request.worker], request));
        }
    }

    fn change(&mut self, of: &ResourceId) {
        self.versions.entry(of.clone()).or_default().0 += 1;
    }

    /// What the TaskExecutor does with a request: refuses it if it registered again since it was sent.
    fn handle(&mut self, registration: u64, request: &SlotRequest) -> RequestOutcome {
        if self.registrations[&request.worker] != registration {
            return RequestOutcome::Unknown;
        }
        if self.freed.contains(&request.holder.allocation) {
            return RequestOutcome::Refused;
        }
        let slot = (request.worker.clone(), request.slot);
        if !self.truth.contains_key(&slot) {
            let wanted = request.profile.resources().cloned().unwrap_or(cores(2));
            let taken = self.taken_of(&request.worker).plus(&wanted);
            if !spec(SLOTS).total().covers(&taken) {
                self.freed.insert(request.holder.allocation);
                return RequestOutcome::Refused;
            }
            self.truth.insert(slot.clone(), (request.holder, wanted));
            self.change(&request.worker);
        }
        let (holder, _) = self.truth[&slot];
        if holder == request.holder {
            RequestOutcome::Allocated
        } else {
            RequestOutcome::Occupied(holder)
        }
    }

    fn answer(&mut self, registration: u64, request: &SlotRequest, outcome: &RequestOutcome) {
        if self.registrations[&request.worker] == registration {
            let version = self.versions[&request.worker];
            let (slot, holder) = (request.slot, request.holder);
            self.slots
                .answered(&request.worker, slot, holder, outcome, version);
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Match => {
                let pending: BTreeSet<_> = self
                    .in_flight
                    .iter()
                    .filter(|(registration, request)| {
                        self.registrations[&request.worker] == *registration
                            && !self.freed.contains(&request.holder.allocation)
                    })
                    .map(|(_, request)| (request.worker.clone(), request.slot))
                    .collect();
                let requests = self.slots.match_slots();
                for request in &requests {
                    let slot = (request.worker.clone(), request.slot);
                    prop_assert!(
                        !pending.contains(&slot),
                        "{slot:?} is given away while pending"
                    );
                }
                self.send(requests);
            }
            Step::Retry => {
                let again = self.slots.retry();
                self.send(again);
            }
            Step::Deliver {
                which,
                is_answer_lost,
            } if which < self.in_flight.len() => {
                let (registration, request) = self.in_flight.remove(which);
                let outcome = self.handle(registration, &request);
                let heard = if is_answer_lost {
                    RequestOutcome::Unknown
                } else {
                    outcome
                };
                self.answer(registration, &request, &heard);
            }
            Step::Drop { which } if which < self.in_flight.len() => {
                let (registration, request) = self.in_flight.remove(which);
                self.answer(registration, &request, &RequestOutcome::Unknown);
                self.given_up.push((registration, request));
            }
            Step::Late { which } if which < self.given_up.len() => {
                let (registration, request) = self.given_up.remove(which);
                let _late = self.handle(registration, &request);
            }
            Step::AskReport { worker: number } => {
                let id = worker(number);
                let (report, turn) = (self.report_of(&id), self.slots.turn());
                self.reports
                    .push((self.registrations[&id], id, turn, report));
            }
            Step::DeliverReport { which } if which < self.reports.len() => {
                let (registration, id, turn, report) = self.reports.remove(which);
                if self.registrations[&id] == registration {
                    self.slots.report(&id, &report, turn);
                }
            }
            Step::Free {
                worker: number,
                slot,
            } => {
                let freed = self.truth.remove(&(worker(number), slot));
                if let Some((holder, _)) = freed {
                    self.freed.insert(holder.allocation);
                    self.change(&worker(number));
                }
            }
            Step::Notify {
                worker: number,
                slot,
            } => {
                let id = worker(number);
                let told = SlotsReport {
                    slots: vec![self.reported(&id, slot)],
                    version: self.versions[&id],
                    are_all: false,
                };
                self.notices.push((self.registrations[&id], id, told));
            }
            Step::DeliverNotice { which, comes_again } if which < self.notices.len() => {
                let notice = self.notices.remove(which);
                let (registration, id, told) = &notice;
                if self.registrations[id] == *registration {
                    let allocated = self.allocated_of(id);
                    self.slots.report(id, told, self.slots.turn());
                    for (slot, holder) in allocated {
                        // What is true, and known, no late message undoes.
                        let held = self.truth.get(&(id.clone(), slot));
                        let is_true = held.is_some_and(|(it, _)| *it == holder);
                        let known = self.allocated_of(id);
                        prop_assert!(
                            !is_true || known.contains(&(slot, holder)),
                            "{slot} is undone"
                        );
                    }
                }
                if comes_again {
                    self.notices.push(notice);
                }
            }
            Step::Register { worker: number } => {
                let id = worker(number);
                *self.registrations.entry(id.clone()).or_default() += 1;
                let report = self.report_of(&id);
                self.slots.put_worker(&id, spec(SLOTS), report);
            }
            Step::Deliver { .. } | Step::Drop { .. } | Step::Late { .. } => {}
            Step::DeliverReport { .. } | Step::DeliverNotice { .. } => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut seen = BTreeSet::new();
        for (holder, _) in self.truth.values() {
            prop_assert!(
                seen.insert(holder.allocation),
                "an allocation holds two slots"
            );
        }
        for (id, maximum) in [(job(1), 3), (job(2), 2), (job(3), 2)] {
            let held = self.held_by(id);
            prop_assert!(held <= maximum, "{id} holds {held} slots, wanted {maximum}");
        }
        Ok(())
    }

    fn held_by(&self, job: JobId) -> usize {
        let holders = self.truth.values();
        holders.filter(|(holder, _)| holder.job == job).count()
    }
}

proptest! {
    #[test]
    fn whatever_is_lost_no_slot_is_given_twice_and_no_job_gets_more_than_it_wants(
        steps in steps(),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step)?;
            world.check()?;
        }
        // Everything that is under way arrives: the view becomes the truth, and everybody has what they want.
        for _ in 0..4 {
            for (registration, request) in std::mem::take(&mut world.in_flight) {
                let outcome = world.handle(registration, &request);
                world.answer(registration, &request, &outcome);
            }
            for number in 0..2 {
                let report = world.report_of(&worker(number));
                let turn = world.slots.turn();
                world.slots.report(&worker(number), &report, turn);
            }
            let again = world.slots.retry();
            world.send(again);
            world.step(&Step::Match)?;
            world.check()?;
        }
        prop_assert!(world.in_flight.is_empty());
        for (id, slot, state) in world.slots.slots() {
            let held = world.truth.get(&(id.clone(), slot)).map(|(holder, _)| *holder);
            prop_assert_eq!(state, held.map_or(SlotState::Free, SlotState::Allocated));
        }
        prop_assert_eq!(world.slots.slots().filter(|(.., state)| state.holder().is_some()).count(), world.truth.len());
        for number in 0..2 {
            let left = spec(SLOTS).total().minus(&world.taken_of(&worker(number)));
            prop_assert_eq!(Some(world.slots.left(&worker(number))), left);
        }
        for (id, minimum) in [(job(1), 2), (job(2), 1), (job(3), 2)] {
            let held = world.held_by(id);
            prop_assert!(held >= minimum, "{id} holds {held} slots, needs {minimum}");
        }
    }
}
