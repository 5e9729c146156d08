//! A plain model of how slots are cut out of TaskExecutors and given to jobs: all held slots are in one list, which
//! is summed up whenever a sum is needed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources, WorkerResourceSpec};

pub(super) const WORKERS: u8 = 3;
pub(super) const JOBS: u8 = 4;

/// Cores, gigabytes, gpus of the profiles that jobs request.
pub(super) const PROFILES: [(u32, u64, u64); 4] = [(1, 1, 0), (2, 1, 0), (1, 4, 0), (2, 2, 1)];
/// The same of whole TaskExecutors, and their number of default slots.
pub(super) const KINDS: [(u32, u64, u64, u32); 3] = [(4, 4, 0, 4), (4, 8, 1, 2), (8, 6, 2, 1)];

pub(super) fn resources((cores, gigabytes, gpus): (u32, u64, u64)) -> Resources {
    let resources = Resources {
        cpu: CpuCores::whole(cores),
        task_memory: gigabytes << 30,
        ..Resources::ZERO
    };
    match gpus {
        0 => resources,
        gpus => resources.with_extended("gpu", gpus),
    }
}

pub(super) fn spec(kind: usize) -> WorkerResourceSpec {
    let (cores, gigabytes, gpus, slots) = KINDS[kind];
    WorkerResourceSpec::new(resources((cores, gigabytes, gpus)), slots)
}

/// The profile with this index. `None`: none is stated.
pub(super) fn profile(number: Option<usize>) -> ResourceProfile {
    number.map_or(ResourceProfile::Unknown, |it| {
        resources(PROFILES[it]).into()
    })
}

pub(super) fn worker_id(number: u8) -> ResourceId {
    format!("tm-{number}").parse().expect("a resource id")
}

pub(super) fn job_id(number: u8) -> JobId {
    JobId::from_bits(u128::from(number) + 1)
}

/// Situations that must occur in some run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reached {
    pub(super) cut: u32,
    pub(super) plain: u32,
    /// A minimum was not given although a part of it was available.
    pub(super) none_instead_of_half: u32,
    /// A slot was given to a job although an earlier one could not use it.
    pub(super) passed: u32,
    /// There were free default slots but no resources left for them.
    pub(super) used_up: u32,
    /// A slot was given where another kind of TaskExecutor had no room for it.
    pub(super) other_kind: u32,
    /// A slot beyond the minimum was given.
    pub(super) more: u32,
    pub(super) resting: u32,
    /// A minimum did not fit in the usual way, and was packed.
    pub(super) packed: u32,
    /// A slot was given elsewhere although a drained TaskExecutor had room for it.
    pub(super) not_drained: u32,
}

impl Reached {
    pub(super) fn counts(&self) -> [u32; 10] {
        [
            self.cut,
            self.plain,
            self.none_instead_of_half,
            self.passed,
            self.used_up,
            self.other_kind,
            self.more,
            self.resting,
            self.packed,
            self.not_drained,
        ]
    }
}

#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) worker: u8,
    pub(super) slot: u32,
    /// `None`: it was refused and is not offered at present.
    pub(super) job: Option<u8>,
    pub(super) has: Resources,
}

#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) job: u8,
    /// Profile, minimum, maximum; the most demanding first.
    pub(super) wanted: Vec<(ResourceProfile, u32, u32)>,
}

/// Follows the rules directly.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// Their kinds, and the number of the next dynamic slot there.
    pub(super) workers: BTreeMap<u8, (usize, u32)>,
    /// Those that give no slots.
    pub(super) drained: BTreeSet<u8>,
    pub(super) held: Vec<Held>,
    /// In the order in which they first declared requirements.
    pub(super) jobs: Vec<Wish>,
}

impl Model {
    pub(super) fn left(&self, worker: u8) -> Resources {
        let total = spec(self.workers[&worker].0).total().clone();
        let there = self.held.iter().filter(|it| it.worker == worker);
        there.fold(total, |left, it| left.saturating_minus(&it.has))
    }

    /// The free default slots.
    pub(super) fn free(&self, worker: u8) -> Vec<u32> {
        let is_held = |slot: &u32| {
            let mut held = self.held.iter();
            held.any(|it| it.worker == worker && it.slot == *slot)
        };
        let all = 0..spec(self.workers[&worker].0).slots();
        all.filter(|slot| !is_held(slot)).collect()
    }

    /// Number of such slots that fit.
    fn room(&self, worker: u8, wanted: &ResourceProfile) -> u64 {
        let left = self.left(worker);
        match wanted.resources() {
            Some(wanted) => left.holds(wanted).unwrap_or(u64::MAX),
            None => {
                let free = self.free(worker).len() as u64;
                let share = spec(self.workers[&worker].0).default_slot();
                left.holds(&share).unwrap_or(u64::MAX).min(free)
            }
        }
    }

    pub(super) fn is_at(&self, job: u8, worker: u8) -> bool {
        let mut held = self.held.iter();
        held.any(|it| it.job == Some(job) && it.worker == worker)
    }

    /// The slots that the job lacks up to a bound: a slot serves a request for exactly its resources, and any slot
    /// serves one without profile.
    pub(super) fn lacking(&self, wish: &Wish, is_maximum: bool) -> Vec<ResourceProfile> {
        let mut own: Vec<&Resources> = self
            .held
            .iter()
            .filter(|it| it.job == Some(wish.job))
            .map(|it| &it.has)
            .collect();
        let mut lacking = Vec::new();
        for (profile, minimum, maximum) in &wish.wanted {
            for _ in 0..if is_maximum { *maximum } else { *minimum } {
                let serves = |has: &&Resources| profile.resources().is_none_or(|it| it == *has);
                match own.iter().position(serves) {
                    Some(at) => drop(own.remove(at)),
                    None => lacking.push(profile.clone()),
                }
            }
        }
        lacking
    }

    /// Where the job has slots already, then where most of them fit, then by name.
    fn give(&mut self, job: u8, wanted: &ResourceProfile, reached: &mut Reached) -> Option<Given> {
        let workers = self.workers.keys().copied();
        let (drained, with_room): (Vec<_>, Vec<_>) = workers
            .map(|worker| (worker, self.room(worker, wanted)))
            .filter(|(_, room)| *room > 0)
            .partition(|(worker, _)| self.drained.contains(worker));
        let best = with_room
            .iter()
            .max_by_key(|(worker, room)| (self.is_at(job, *worker), *room, Reverse(*worker)));
        let worker = best?.0;
        reached.not_drained += u32::from(!drained.is_empty());
        let others = self.workers.values().map(|(kind, _)| *kind);
        let kind = self.workers[&worker].0;
        if with_room.len() < self.workers.len() && others.into_iter().any(|it| it != kind) {
            reached.other_kind += 1;
        }
        match wanted.resources() {
            Some(_) => reached.cut += 1,
            None => reached.plain += 1,
        }
        self.give_at(worker, job, wanted)
    }

    fn give_at(&mut self, worker: u8, job: u8, wanted: &ResourceProfile) -> Option<Given> {
        let (kind, next) = self.workers.get_mut(&worker)?;
        let (slot, has) = match wanted.resources() {
            Some(has) => {
                *next += 1;
                (*next - 1, has.clone())
            }
            None => {
                let has = spec(*kind).default_slot();
                (self.free(worker)[0], has)
            }
        };
        self.held.push(Held {
            worker,
            slot,
            job: Some(job),
            has,
        });
        Some((job, worker, slot, wanted.clone()))
    }

    /// All of it, each slot where it fits first: where the fewest default slots fit, then by name.
    fn pack(&mut self, job: u8, lacking: &[ResourceProfile]) -> Option<Vec<Given>> {
        let mut order: Vec<u8> = self.workers.keys().copied().collect();
        order.retain(|worker| !self.drained.contains(worker));
        order.sort_by_key(|worker| (self.room(*worker, &ResourceProfile::Unknown), *worker));
        let mut given = Vec::new();
        for wanted in lacking {
            let mut fitting = order.iter().filter(|it| self.room(**it, wanted) > 0);
            let worker = *fitting.next()?;
            given.extend(self.give_at(worker, job, wanted));
        }
        Some(given)
    }

    /// First the minimum of each job, as a whole or not at all; then the remaining slots, up to the maximums.
    pub(super) fn matched(&mut self, reached: &mut Reached) -> Vec<Given> {
        let mut given = Vec::new();
        let mut is_somebody_waiting = false;
        for wish in self.jobs.clone() {
            let lacking = self.lacking(&wish, false);
            let before = (self.held.clone(), self.workers.clone());
            let all = lacking.iter();
            let got: Vec<Given> = all
                .filter_map(|it| self.give(wish.job, it, reached))
                .collect();
            if got.len() == lacking.len() {
                reached.passed += u32::from(is_somebody_waiting && !got.is_empty());
                given.extend(got);
                continue;
            }
            (self.held, self.workers) = before.clone();
            if let Some(packed) = self.pack(wish.job, &lacking) {
                reached.packed += 1;
                given.extend(packed);
            } else {
                reached.none_instead_of_half += u32::from(!got.is_empty());
                (self.held, self.workers) = before;
                is_somebody_waiting = true;
            }
        }
        for wish in self.jobs.clone() {
            if self.lacking(&wish, false).is_empty() {
                for wanted in self.lacking(&wish, true) {
                    let got = self.give(wish.job, &wanted, reached);
                    reached.more += u32::from(got.is_some());
                    given.extend(got);
                }
            }
        }
        for worker in self.workers.keys() {
            let is_any_free = !self.free(*worker).is_empty();
            let is_left = self.room(*worker, &ResourceProfile::Unknown) > 0;
            reached.used_up += u32::from(is_any_free && !is_left);
        }
        given
    }
}

/// Job, TaskExecutor, slot number, profile.
pub(super) type Given = (u8, u8, u32, ResourceProfile);
