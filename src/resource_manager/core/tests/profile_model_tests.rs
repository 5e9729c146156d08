//! Slots with profiles compared with a plain model of the rules: TaskExecutors of several kinds, each with a budget
//! that slots are cut out of, jobs with profiles and jobs without, minimums given as a whole or not at all.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use proptest::prelude::*;
use tanist_ha::clock::Uptime;
use tanist_property_tests::run_cases;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources};

use super::profile_model::{
    Given, JOBS, KINDS, Model, PROFILES, Reached, WORKERS, Wish, job_id, profile, spec, worker_id,
};
use crate::core::placement::Balance;
use crate::core::slot_manager::{
    ReportedSlot, RequestOutcome, SlotManager, SlotRequest, SlotsReport, SlotsVersion,
};
use crate::tests::scripted::{declared, id};

/// What happens between two matches.
#[derive(Debug, Clone)]
enum Step {
    Register {
        worker: u8,
        kind: usize,
    },
    Lose {
        worker: u8,
    },
    /// Starts or ends draining: no slots are given there meanwhile.
    Drain {
        worker: u8,
        is_draining: bool,
    },
    /// By the indexes of profiles: minimum, and number beyond it.
    Declare {
        job: u8,
        wanted: Vec<(usize, u32, u32)>,
    },
    /// The job states no profiles.
    DeclarePlain {
        job: u8,
        minimum: u32,
        more: u32,
    },
    Withdraw {
        job: u8,
    },
    /// A TaskExecutor reports that one of a job's slots is free.
    GiveBack {
        job: u8,
        which: usize,
    },
    /// Free slots are assigned; one of every `refused + 1` requests is refused.
    Match {
        refused: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = (0..PROFILES.len(), 0u32..4, 0u32..3);
    let step = prop_oneof![
        3 => (0..WORKERS, 0..KINDS.len()).prop_map(|(worker, kind)| Step::Register { worker, kind }),
        1 => (0..WORKERS).prop_map(|worker| Step::Lose { worker }),
        1 => (0..WORKERS, any::<bool>())
            .prop_map(|(worker, is_draining)| Step::Drain { worker, is_draining }),
        5 => (0..JOBS, prop::collection::vec(one, 1..3))
            .prop_map(|(job, wanted)| Step::Declare { job, wanted }),
        2 => (0..JOBS, 0u32..4, 0u32..3)
            .prop_map(|(job, minimum, more)| Step::DeclarePlain { job, minimum, more }),
        1 => (0..JOBS).prop_map(|job| Step::Withdraw { job }),
        3 => (0..JOBS, 0usize..8).prop_map(|(job, which)| Step::GiveBack { job, which }),
        6 => (0usize..4).prop_map(|refused| Step::Match { refused }),
    ];
    prop::collection::vec(step, 1..50)
}

struct Compared {
    model: Model,
    manager: SlotManager,
    /// The requests that TaskExecutors have granted.
    allocated: Vec<(u8, SlotRequest)>,
    version: u64,
    reached: Reached,
}

impl Compared {
    fn new() -> Compared {
        Compared {
            model: Model::default(),
            manager: SlotManager::new(1).balanced_by(Balance::None),
            allocated: Vec::new(),
            version: 0,
            reached: Reached::default(),
        }
    }

    fn lose(&mut self, worker: u8) {
        self.model.workers.remove(&worker);
        self.model.drained.remove(&worker);
        self.model.held.retain(|it| it.worker != worker);
        self.allocated.retain(|(at, _)| *at != worker);
    }

    /// The full report of a TaskExecutor.
    fn report(&mut self, worker: u8) -> SlotsReport {
        self.version += 1;
        let (kind, _) = self.model.workers[&worker];
        let held = self.allocated.iter().filter(|(at, _)| *at == worker);
        let mut slots: BTreeMap<u32, ReportedSlot> = (0..spec(kind).slots())
            .map(|number| {
                let free = ReportedSlot {
                    number,
                    holder: None,
                    profile: ResourceProfile::Unknown,
                };
                (number, free)
            })
            .collect();
        for (_, request) in held {
            let slot = ReportedSlot {
                number: request.slot,
                holder: Some(request.holder),
                profile: request.profile.clone(),
            };
            slots.insert(request.slot, slot);
        }
        SlotsReport {
            slots: slots.into_values().collect(),
            version: SlotsVersion(self.version),
            are_all: true,
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Register { worker, kind } => {
                self.lose(*worker);
                let first_cut = spec(*kind).slots();
                self.model.workers.insert(*worker, (*kind, first_cut));
                let report = self.report(*worker);
                let id = worker_id(*worker);
                self.manager.put_worker(&id, spec(*kind), report);
            }
            Step::Lose { worker } => {
                self.lose(*worker);
                self.manager.remove_worker(&worker_id(*worker));
            }
            Step::Drain {
                worker,
                is_draining,
            } => {
                self.manager.set_draining(&worker_id(*worker), *is_draining);
                self.model.drained.remove(worker);
                if *is_draining && self.model.workers.contains_key(worker) {
                    self.model.drained.insert(*worker);
                }
            }
            Step::Declare { job, wanted } => {
                let wanted: BTreeMap<usize, (u32, u32)> = wanted
                    .iter()
                    .map(|(of, minimum, more)| (*of, (*minimum, minimum + more)))
                    .collect();
                let wanted = wanted.into_iter();
                let wanted = wanted.map(|(of, (min, max))| (profile(Some(of)), min, max));
                self.declare(*job, wanted.collect());
            }
            Step::DeclarePlain { job, minimum, more } => {
                let all = vec![(profile(None), *minimum, minimum + more)];
                self.declare(*job, all);
            }
            Step::Withdraw { job } => {
                self.model.jobs.retain(|wish| wish.job != *job);
                self.manager.withdraw(job_id(*job));
            }
            Step::GiveBack { job, which } => self.give_back(*job, *which),
            Step::Match { refused } => self.compare(*refused)?,
        }
        self.compare_what_is_left()
    }

    fn declare(&mut self, job: u8, mut wanted: Vec<(ResourceProfile, u32, u32)>) {
        let profiles = wanted.iter().cloned();
        self.manager.declare(declared(job_id(job), id(1), profiles));
        wanted.retain(|(_, _, maximum)| *maximum > 0);
        wanted.sort_by_key(|(profile, ..)| {
            let size = profile.resources();
            Reverse(size.map(|it| (it.cpu, it.total_memory(), it.extended("gpu"))))
        });
        let jobs = &mut self.model.jobs;
        match jobs.iter_mut().find(|wish| wish.job == job) {
            _ if wanted.is_empty() => jobs.retain(|wish| wish.job != job),
            Some(wish) => wish.wanted = wanted,
            None => jobs.push(Wish { job, wanted }),
        }
        // All were submitted at once.
        jobs.sort_by_key(|wish| wish.job);
    }

    fn give_back(&mut self, job: u8, which: usize) {
        let of_job = self.allocated.iter().enumerate();
        let mut of_job = of_job.filter(|(_, (_, it))| it.holder.job == job_id(job));
        let Some((at, _)) = of_job.nth(which) else {
            return;
        };
        let (worker, request) = self.allocated.remove(at);
        let held = &mut self.model.held;
        held.retain(|it| (it.worker, it.slot) != (worker, request.slot));
        // A slot that it reports as free may be requested again.
        let default_slots = spec(self.model.workers[&worker].0).slots();
        held.retain(|it| it.worker != worker || it.job.is_some() || it.slot >= default_slots);
        let report = self.report(worker);
        let turn = self.manager.turn();
        self.manager.report(&worker_id(worker), &report, turn);
    }

    fn compare(&mut self, refused: usize) -> Result<(), TestCaseError> {
        // The retry delay of refused slots is over.
        self.model.held.retain(|it| it.job.is_some());
        let again = self.manager.retry();
        prop_assert!(again.is_empty(), "every answer was definite: {again:?}");
        let expected = self.model.matched(&mut self.reached);
        let requests = self.manager.match_slots(Uptime::START);
        let workers = |id: &ResourceId| (0..WORKERS).find(|it| worker_id(*it) == *id);
        let jobs = |id: JobId| (0..JOBS).find(|it| job_id(*it) == id);
        let given: Vec<Option<Given>> = requests
            .iter()
            .map(|it| {
                let (job, worker) = (jobs(it.holder.job)?, workers(&it.worker)?);
                Some((job, worker, it.slot, it.profile.clone()))
            })
            .collect();
        let expected: Vec<Option<Given>> = expected.into_iter().map(Some).collect();
        prop_assert_eq!(given, expected);
        for (number, request) in requests.into_iter().enumerate() {
            let worker = workers(&request.worker).expect("one of them");
            let is_refused = refused > 0 && (number + 1).is_multiple_of(refused + 1);
            self.version += 1;
            let version = SlotsVersion(self.version);
            let outcome = match is_refused {
                true => RequestOutcome::Refused,
                false => RequestOutcome::Allocated,
            };
            let (slot, holder) = (request.slot, request.holder);
            let id = &request.worker;
            self.manager.answered(id, slot, holder, &outcome, version);
            if is_refused {
                self.reached.resting += 1;
                let mut held = self.model.held.iter_mut();
                let it = held.find(|it| (it.worker, it.slot) == (worker, slot));
                it.expect("it was given").job = None;
            } else {
                self.allocated.push((worker, request));
            }
        }
        self.compare_shortages()
    }

    fn compare_shortages(&mut self) -> Result<(), TestCaseError> {
        let told = self.manager.shortages();
        for wish in &self.model.jobs {
            let missing = self.model.lacking(wish, false).len();
            let held = self.model.held.iter();
            let has = held.filter(|it| it.job == Some(wish.job)).count();
            let told = told.get(&job_id(wish.job));
            let told = told.map(|it| (it.acquired as usize, it.missing as usize));
            prop_assert_eq!(told, (missing > 0).then_some((has, missing)));
        }
        Ok(())
    }

    /// The free resources are those that no slot has: no budget is ever exceeded.
    fn compare_what_is_left(&self) -> Result<(), TestCaseError> {
        for (worker, (kind, _)) in &self.model.workers {
            let id = worker_id(*worker);
            prop_assert_eq!(self.manager.left(&id), self.model.left(*worker));
            let there = self.model.held.iter().filter(|it| it.worker == *worker);
            let taken = there.fold(Resources::ZERO, |sum, it| sum.plus(&it.has));
            prop_assert!(spec(*kind).total().covers(&taken), "{taken} of {worker}");
        }
        Ok(())
    }
}

#[test]
fn slots_are_cut_and_given_as_a_plain_model_does_it() {
    run_cases(512, file!(), steps(), |steps, reached: &mut [u32; 10]| {
        let mut compared = Compared::new();
        for step in &steps {
            compared.step(step)?;
        }
        compared.step(&Step::Match { refused: 0 })?;
        let counts = compared.reached.counts();
        for (sum, count) in reached.iter_mut().zip(counts) {
            *sum += count;
        }
        Ok(())
    });
}
