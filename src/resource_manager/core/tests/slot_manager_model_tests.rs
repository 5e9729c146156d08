//! The slot manager against TaskExecutors whose messages are lost, delayed and repeated: compares its view with the
//! true slots. No slot is given twice, no job gets more than its maximum, late messages do not undo what is true
//! and known, and when everything arrives at last, the view is true and every job has its slots.
//!
//! The rules of choice are tested in [`super::slot_manager_tests`], and compared with a model in
//! [`super::matching_model_tests`].

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources};

use super::slot_manager_tests::{cores, job, needs, needs_of, spec, with_workers, worker};
use crate::core::slot_manager::{
    ReportedSlot, RequestOutcome, SlotHolder, SlotManager, SlotRequest, SlotState, SlotsReport,
    SlotsVersion, Turn,
};

const SLOTS: u32 = 3;

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
    /// A request that was given up arrives after all.
    Late {
        which: usize,
    },
    AskReport {
        worker: usize,
    },
    DeliverReport {
        which: usize,
    },
    /// A TaskExecutor frees a slot; the next report shows it.
    Free {
        worker: usize,
        slot: u32,
    },
    /// A TaskExecutor registers again.
    Register {
        worker: usize,
    },
    /// It notifies about a slot without being asked.
    Notify {
        worker: usize,
        slot: u32,
    },
    /// The notification arrives, possibly twice, and at any delay.
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

/// The holder of each slot, and the resources reserved for it.
type Truth = BTreeMap<(ResourceId, u32), (SlotHolder, Resources)>;

/// The manager, the true slots, and the messages between them.
struct World {
    slots: SlotManager,
    truth: Truth,
    /// An allocation is never reused: TaskExecutors refuse one that they freed.
    freed: BTreeSet<AllocationId>,
    in_flight: Vec<(u64, SlotRequest)>,
    given_up: Vec<(u64, SlotRequest)>,
    reports: Vec<(u64, ResourceId, Turn, SlotsReport)>,
    notices: Vec<(u64, ResourceId, SlotsReport)>,
    /// Number of slot changes of each TaskExecutor.
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

    /// How a TaskExecutor handles a request: it refuses it if it has registered again since the request was sent.
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
                let requests = self.slots.match_slots(Uptime::START);
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
                        // No late message undoes what is true and known.
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
        // All messages arrive: the view matches the truth, and every job has its slots.
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
