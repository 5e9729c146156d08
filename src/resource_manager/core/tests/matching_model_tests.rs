//! Slot matching compared with a plain model of its rules: which jobs are served in which order, with how many
//! slots, and from where. The model knows every slot, looks at all of them each time, and keeps no index.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};

use crate::core::slot_manager::{
    RequestOutcome, SlotHolder, SlotManager, SlotsReport, SlotsVersion,
};
use crate::tests::scripted::{declared, id};

const WORKERS: u8 = 4;
const SLOTS: u32 = 4;
const JOBS: u8 = 5;

/// What happens between two matches.
#[derive(Debug, Clone)]
enum Step {
    /// A TaskExecutor registers with this number of slots, all free.
    Register {
        worker: u8,
        slots: u32,
    },
    Lose {
        worker: u8,
    },
    Drain {
        worker: u8,
        is_draining: bool,
    },
    Declare {
        job: u8,
        minimum: u32,
        more: u32,
    },
    Withdraw {
        job: u8,
    },
    /// One of a job's slots is freed, and that is reported.
    GiveBack {
        job: u8,
        which: usize,
    },
    /// Free slots are assigned, and every TaskExecutor allocates the requested ones.
    Match,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0..WORKERS, 1..=SLOTS).prop_map(|(worker, slots)| Step::Register { worker, slots }),
        1 => (0..WORKERS).prop_map(|worker| Step::Lose { worker }),
        1 => (0..WORKERS, any::<bool>())
            .prop_map(|(worker, is_draining)| Step::Drain { worker, is_draining }),
        4 => (0..JOBS, 0u32..5, 0u32..4)
            .prop_map(|(job, minimum, more)| Step::Declare { job, minimum, more }),
        1 => (0..JOBS).prop_map(|job| Step::Withdraw { job }),
        3 => (0..JOBS, 0usize..8).prop_map(|(job, which)| Step::GiveBack { job, which }),
        6 => Just(Step::Match),
    ];
    proptest::collection::vec(step, 1..60)
}

fn worker_id(number: u8) -> ResourceId {
    format!("tm-{number}").parse().expect("a resource id")
}

fn job_id(number: u8) -> JobId {
    JobId::from_bits(u128::from(number) + 1)
}

/// Follows the rules directly.
#[derive(Debug, Default)]
struct Model {
    /// The job that has each slot.
    slots: BTreeMap<(u8, u32), Option<u8>>,
    draining: BTreeSet<u8>,
    /// Job, minimum, maximum, in the order of ids, since all were submitted at once.
    jobs: Vec<(u8, u32, u32)>,
}

impl Model {
    fn has(&self, job: u8) -> u32 {
        let of_it = self.slots.values().filter(|holder| **holder == Some(job));
        u32::try_from(of_it.count()).expect("few")
    }

    fn is_at(&self, job: u8, worker: u8) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|((at, _), holder)| *at == worker && *holder == Some(job))
    }

    fn free_at(&self, worker: u8) -> Vec<u32> {
        if self.draining.contains(&worker) {
            return Vec::new();
        }
        let slots = self.slots.iter();
        let free = slots.filter(|((at, _), holder)| *at == worker && holder.is_none());
        free.map(|((_, slot), _)| *slot).collect()
    }

    /// Where the job has slots already, then where most are free, then by name.
    fn next_for(&self, job: u8) -> Option<(u8, u32)> {
        let usable = (0..WORKERS).filter(|worker| !self.free_at(*worker).is_empty());
        let best = usable.min_by_key(|worker| {
            let free = self.free_at(*worker).len();
            (!self.is_at(job, *worker), usize::MAX - free, *worker)
        })?;
        Some((best, self.free_at(best)[0]))
    }

    fn give(&mut self, job: u8, count: u32, given: &mut Vec<(u8, u8, u32)>) {
        for _ in 0..count {
            let Some((worker, slot)) = self.next_for(job) else {
                return;
            };
            self.slots.insert((worker, slot), Some(job));
            given.push((job, worker, slot));
        }
    }

    /// First the minimum of each job, as a whole or not at all; then the remaining slots, up to the maximums.
    fn matched(&mut self) -> Vec<(u8, u8, u32)> {
        let mut given = Vec::new();
        for (job, minimum, _) in self.jobs.clone() {
            let missing = minimum.saturating_sub(self.has(job));
            let free = (0..WORKERS)
                .map(|worker| self.free_at(worker).len())
                .sum::<usize>();
            if free >= missing as usize {
                self.give(job, missing, &mut given);
            }
        }
        for (job, minimum, maximum) in self.jobs.clone() {
            if self.has(job) >= minimum {
                self.give(job, maximum.saturating_sub(self.has(job)), &mut given);
            }
        }
        given
    }
}

struct Compared {
    model: Model,
    manager: SlotManager,
    allocations: BTreeMap<(u8, u32), AllocationId>,
    version: u64,
}

impl Compared {
    fn new() -> Compared {
        Compared {
            model: Model::default(),
            manager: SlotManager::new(1),
            allocations: BTreeMap::new(),
            version: 0,
        }
    }

    fn next_version(&mut self) -> SlotsVersion {
        self.version += 1;
        SlotsVersion(self.version)
    }

    fn lose(&mut self, worker: u8) {
        self.model.slots.retain(|(at, _), _| *at != worker);
        self.model.draining.remove(&worker);
        self.allocations.retain(|(at, _), _| *at != worker);
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Register { worker, slots } => {
                self.lose(worker);
                let free: Vec<(u32, Option<SlotHolder>)> =
                    (0..slots).map(|at| (at, None)).collect();
                self.model
                    .slots
                    .extend((0..slots).map(|at| ((worker, at), None)));
                let (id, version) = (worker_id(worker), self.next_version());
                let spec = WorkerResourceSpec::new(Resources::ZERO, slots);
                let report = SlotsReport::of_default_slots(&free, version);
                self.manager.put_worker(&id, spec, report);
            }
            Step::Lose { worker } => {
                self.lose(worker);
                self.manager.remove_worker(&worker_id(worker));
            }
            Step::Drain {
                worker,
                is_draining,
            } => {
                if self.model.slots.keys().any(|(at, _)| *at == worker) {
                    match is_draining {
                        true => self.model.draining.insert(worker),
                        false => self.model.draining.remove(&worker),
                    };
                }
                self.manager.set_draining(&worker_id(worker), is_draining);
            }
            Step::Declare { job, minimum, more } => self.declare(job, minimum, minimum + more),
            Step::Withdraw { job } => {
                self.model.jobs.retain(|(of, ..)| *of != job);
                self.manager.withdraw(job_id(job));
            }
            Step::GiveBack { job, which } => self.give_back(job, which),
            Step::Match => self.compare()?,
        }
        Ok(())
    }

    fn declare(&mut self, job: u8, minimum: u32, maximum: u32) {
        let known = self.model.jobs.iter_mut().find(|(of, ..)| *of == job);
        match known {
            _ if maximum == 0 => self.model.jobs.retain(|(of, ..)| *of != job),
            Some(known) => *known = (job, minimum, maximum),
            None => self.model.jobs.push((job, minimum, maximum)),
        }
        self.model.jobs.sort_unstable();
        let profile = (ResourceProfile::Unknown, minimum, maximum);
        self.manager
            .declare(declared(job_id(job), id(1), [profile]));
    }

    fn give_back(&mut self, job: u8, which: usize) {
        let slots = self.model.slots.iter();
        let held: Vec<(u8, u32)> = slots
            .filter(|(_, holder)| **holder == Some(job))
            .map(|(slot, _)| *slot)
            .collect();
        let Some(&(worker, slot)) = held.get(which) else {
            return;
        };
        self.model.slots.insert((worker, slot), None);
        self.allocations.remove(&(worker, slot));
        let (turn, version) = (self.manager.turn(), self.next_version());
        let id = worker_id(worker);
        let freed = SlotsReport::of_default_slots(&[(slot, None)], version);
        self.manager.report(&id, &freed, turn);
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        let expected = self.model.matched();
        let requests = self.manager.match_slots(Uptime::START);
        let given: Vec<(JobId, ResourceId, u32)> = requests
            .iter()
            .map(|it| (it.holder.job, it.worker.clone(), it.slot))
            .collect();
        let expected: Vec<(JobId, ResourceId, u32)> = expected
            .into_iter()
            .map(|(job, worker, slot)| (job_id(job), worker_id(worker), slot))
            .collect();
        prop_assert_eq!(given, expected);
        for request in requests {
            let version = self.next_version();
            let allocated = RequestOutcome::Allocated;
            let (worker, slot) = (&request.worker, request.slot);
            let holder = request.holder;
            self.manager
                .answered(worker, slot, holder, &allocated, version);
            let number = (0..WORKERS).find(|number| worker_id(*number) == *worker);
            let place = (number.expect("one of them"), slot);
            prop_assert!(self.allocations.values().all(|it| *it != holder.allocation));
            self.allocations.insert(place, holder.allocation);
        }
        self.compare_shortages()
    }

    fn compare_shortages(&mut self) -> Result<(), TestCaseError> {
        let missing = self.manager.shortages();
        for (job, minimum, _) in &self.model.jobs {
            let has = self.model.has(*job);
            let expected = (*minimum > has).then(|| (has, minimum - has));
            let told = missing.get(&job_id(*job));
            prop_assert_eq!(told.map(|it| (it.acquired, it.missing)), expected);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn slots_are_given_as_a_plain_model_gives_them(steps in steps()) {
        let mut compared = Compared::new();
        for step in &steps {
            compared.step(step)?;
        }
        compared.step(&Step::Match)?;
    }
}
