//! A small simulated world of processes, a store, jobs and leaders around [`Workers`], with invariants checked
//! after every step.
//!
//! The world assumes only the protocol: a record before a process, no process for long without a record, slots
//! given to jobs as a whole. Leaders change between any two steps of an act, and a deposed leader may complete its
//! start. They lead at one of two places, and see no process of the other one.

mod acts;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tanist_ha::clock::Uptime;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::ResourceProfile;

use crate::core::packing::Room;
use crate::core::workers::planning::Shortages;
use crate::core::workers::{Admission, Effect, Starter, TaskExecutorView, Workers};
use crate::workers::{WorkerRecord, WorkersOptions};

pub(super) const EACH: u32 = 2;
pub(super) const RATE: usize = 3;
pub(super) const RETRY: Duration = Duration::from_secs(3);
const PLACES: [&str; 2] = ["here", "there"];

/// A job: the slots it needs and, once it runs, the workers it has them on.
#[derive(Debug)]
pub(super) struct Job {
    needs: u32,
    held: BTreeMap<ResourceId, u32>,
}

#[derive(Debug)]
pub(super) struct World {
    now: Uptime,
    pub(super) options: WorkersOptions,
    pub(super) workers: Workers,
    epoch: u64,
    /// The place of the leader.
    place: &'static str,
    /// The place where each worker was started.
    started_at: BTreeMap<ResourceId, &'static str>,
    /// The store.
    pub(super) records: BTreeMap<ResourceId, WorkerRecord>,
    pub(super) processes: BTreeSet<ResourceId>,
    /// Workers registered at the present leader, with the number of slots in use.
    pub(super) registered: BTreeMap<ResourceId, u32>,
    draining: BTreeSet<ResourceId>,
    watched: BTreeSet<ResourceId>,
    pub(super) acts: VecDeque<Effect>,
    /// Starts that a deposed leader may still carry out.
    late: Vec<ResourceId>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    next_job: u128,
    failures: VecDeque<Uptime>,
    /// Workers that must be stopped because of something that happened to them.
    excused: BTreeSet<ResourceId>,
}

impl World {
    pub(super) fn new(options: WorkersOptions) -> World {
        let workers = Workers::new(options.clone(), starter(1, PLACES[0]), Vec::new());
        let mut world = World {
            now: Uptime::START,
            options,
            workers,
            epoch: 1,
            place: PLACES[0],
            started_at: BTreeMap::new(),
            records: BTreeMap::new(),
            processes: BTreeSet::new(),
            registered: BTreeMap::new(),
            draining: BTreeSet::new(),
            watched: BTreeSet::new(),
            acts: VecDeque::new(),
            late: Vec::new(),
            jobs: BTreeMap::new(),
            next_job: 0,
            failures: VecDeque::new(),
            excused: BTreeSet::new(),
        };
        world.settle();
        world
    }

    /// What a ResourceManager does after every event.
    fn settle(&mut self) {
        self.match_slots();
        self.collect();
        let (needs, views) = (self.needs(), self.views());
        self.workers.review(self.now, needs, &views);
        self.collect();
        self.check();
    }

    fn collect(&mut self) {
        for effect in self.workers.take_effects() {
            match &effect {
                Effect::Start(id) => {
                    let earlier = self.started_at.insert(id.clone(), self.place);
                    assert!(earlier.is_none(), "{id} is started twice");
                    let recent = self
                        .failures
                        .iter()
                        .filter(|at| **at + Duration::from_secs(60) > self.now);
                    let is_paused = recent.count() >= RATE
                        && self
                            .failures
                            .back()
                            .is_some_and(|at| *at + RETRY > self.now);
                    assert!(!is_paused, "{id} is started though too many have failed");
                }
                Effect::RemoveRecord(id) => {
                    let used = self.registered.get(id).copied().unwrap_or_default();
                    let is_excused = self.excused.remove(id) || used == 0;
                    assert!(
                        is_excused,
                        "{id} is stopped while {used} of its slots are in use"
                    );
                    self.registered.remove(id);
                }
                Effect::Release(id) => {
                    assert_eq!(
                        self.registered[id], 0,
                        "{id} is released while it is in use"
                    );
                }
                Effect::AskToLeave(id) => {
                    self.draining.insert(id.clone());
                    continue;
                }
                Effect::Watch(id) => {
                    self.watched.insert(id.clone());
                    continue;
                }
                Effect::Recover(_) | Effect::Stop(_) => {}
            }
            self.acts.push_back(effect);
        }
    }

    pub(super) fn views(&self) -> BTreeMap<ResourceId, TaskExecutorView> {
        let view = |(id, used): (&ResourceId, &u32)| {
            let is_open = !self.draining.contains(id) && !self.is_releasing(id);
            let room = || Room {
                free: EACH - used,
                ..Room::of(&self.options.spec)
            };
            let view = TaskExecutorView {
                slots: EACH,
                room: is_open.then(room),
                is_unused: is_open && *used == 0,
                is_useless: false,
            };
            (id.clone(), view)
        };
        self.registered.iter().map(view).collect()
    }

    fn is_releasing(&self, id: &ResourceId) -> bool {
        self.workers
            .record_of(id)
            .is_some_and(|record| record.releasing)
    }

    fn needs(&self) -> Shortages {
        let slots = |needs: u32| vec![ResourceProfile::Unknown; needs as usize];
        let lacking = self.lacking().into_iter();
        Shortages {
            needed: lacking.map(|(id, needs)| (id, slots(needs))).collect(),
            ..Shortages::default()
        }
    }

    pub(super) fn lacking(&self) -> Vec<(JobId, u32)> {
        let waiting = self.jobs.iter().filter(|(_, job)| job.held.is_empty());
        waiting.map(|(id, job)| (*id, job.needs)).collect()
    }

    fn match_slots(&mut self) {
        for (id, needs) in self.lacking() {
            let views = self.views();
            let free_of = |view: &TaskExecutorView| view.room.as_ref().map_or(0, |room| room.free);
            let free: u32 = views.values().map(free_of).sum();
            if free < needs {
                continue;
            }
            let mut left = needs;
            for (worker, view) in views {
                let taken = free_of(&view).min(left);
                if taken > 0 {
                    left -= taken;
                    *self.registered.get_mut(&worker).expect("it is there") += taken;
                    let job = self.jobs.get_mut(&id).expect("it is there");
                    job.held.insert(worker, taken);
                }
            }
        }
    }

    /// Checks the invariants.
    fn check(&self) {
        // Nothing can prevent a worker started by a deposed leader from existing, but it is ended.
        let wanted = self
            .workers
            .workers
            .iter()
            .filter(|(id, worker)| !is_stopping(worker) || self.records.contains_key(*id));
        let slots = u32::try_from(wanted.count()).expect("few") * EACH;
        assert!(
            slots <= self.options.max_slots,
            "{slots} slots: {:#?}",
            self.workers
        );
        for id in self.records.keys() {
            assert!(
                self.workers.record_of(id).is_some(),
                "{id} is recorded and forgotten"
            );
        }
        for id in self.registered.keys() {
            assert!(
                self.workers.record_of(id).is_some(),
                "{id} is registered and forgotten"
            );
        }
    }

    fn note_failure(&mut self) {
        self.failures.push_back(self.now);
    }

    fn end_process(&mut self, id: &ResourceId) {
        self.processes.remove(id);
        self.registered.remove(id);
        self.draining.remove(id);
        self.restart_jobs_on(id);
    }

    /// Jobs that ran there are restarted elsewhere.
    fn restart_jobs_on(&mut self, id: &ResourceId) {
        for job in self.jobs.values_mut() {
            if job.held.contains_key(id) {
                for (worker, slots) in std::mem::take(&mut job.held) {
                    if let Some(used) = self.registered.get_mut(&worker) {
                        *used -= slots;
                    }
                }
            }
        }
    }

    /// A process registers that has not registered yet.
    pub(super) fn register(&mut self, pick: usize) {
        let waiting = self
            .processes
            .iter()
            .filter(|id| !self.registered.contains_key(*id));
        let waiting: Vec<_> = waiting.cloned().collect();
        let Some(id) = waiting.get(pick % waiting.len().max(1)).cloned() else {
            return;
        };
        match self.workers.register(&id, EACH) {
            Admission::Welcome { is_releasing } => {
                let held = self.jobs.values().filter_map(|job| job.held.get(&id));
                self.registered.insert(id.clone(), held.sum());
                if is_releasing {
                    self.draining.insert(id);
                }
            }
            // It will register again.
            Admission::Undecided => {}
            Admission::Unknown => {
                assert!(
                    !self.records.contains_key(&id),
                    "{id} is refused and recorded"
                );
                self.end_process(&id);
            }
        }
        self.settle();
    }

    /// A worker that must leave and is not in use leaves.
    pub(super) fn leave(&mut self) {
        let unused = |id: &&ResourceId| self.registered.get(*id) == Some(&0);
        let Some(id) = self.draining.iter().find(unused).cloned() else {
            return;
        };
        self.workers.left(self.now, &id);
        self.registered.remove(&id);
        self.draining.remove(&id);
        self.processes.remove(&id);
        self.tell_end(&id);
        self.settle();
    }

    fn tell_end(&mut self, id: &ResourceId) {
        if self.watched.remove(id) {
            self.workers.ended(self.now, id, "it is gone");
        }
    }

    /// A process dies.
    fn kill(&mut self, pick: usize) {
        let Some(id) = self
            .processes
            .iter()
            .nth(pick % self.processes.len().max(1))
            .cloned()
        else {
            return;
        };
        let was_registered = self.registered.contains_key(&id);
        let was_known = self.workers.workers.get(&id).map(|worker| worker.state);
        self.end_process(&id);
        if was_registered {
            self.workers.lost(&id);
        } else if self.watched.contains(&id)
            && matches!(
                was_known,
                Some(crate::core::workers::WorkerState::Pending { .. })
            )
        {
            self.note_failure();
        }
        self.tell_end(&id);
        self.settle();
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.now += by;
        let before = self.workers.failures;
        self.workers.on_time(self.now);
        for _ in before..self.workers.failures {
            self.note_failure();
        }
        // Longer than the timeout for the tasks of a worker that does not come back.
        let all = self.workers.workers.iter();
        let given_up = all.filter(|(_, worker)| is_stopping(worker));
        for id in given_up.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.restart_jobs_on(&id);
        }
        self.settle();
    }

    fn submit(&mut self, needs: u32) {
        self.next_job += 1;
        let job = Job {
            needs,
            held: BTreeMap::new(),
        };
        self.jobs.insert(JobId::from_bits(self.next_job), job);
        self.settle();
    }

    pub(super) fn end_job(&mut self, pick: usize) {
        let Some(id) = self.jobs.keys().nth(pick % self.jobs.len().max(1)).copied() else {
            return;
        };
        let job = self.jobs.remove(&id).expect("it is there");
        for (worker, slots) in job.held {
            if let Some(used) = self.registered.get_mut(&worker) {
                *used -= slots;
            }
        }
        self.settle();
    }

    pub(super) fn step(&mut self, kind: u8, pick: usize) {
        match kind {
            0..5 => self.act(false),
            5 => self.act(true),
            6..10 => self.register(pick),
            10 => self.kill(pick),
            11..13 => self.advance(Duration::from_secs(pick as u64 % 40)),
            13 => self.change_leader(pick),
            14 => self.go_on_late(),
            15 => self.look_for_records(),
            16..18 => self.leave(),
            18..21 => self.submit(1 + pick as u32 % 7),
            _ => self.end_job(pick),
        }
    }
}

fn is_stopping(worker: &crate::core::workers::Worker) -> bool {
    matches!(
        worker.state,
        crate::core::workers::WorkerState::Stopping { .. }
    )
}

fn starter(epoch: u64, place: &str) -> Starter {
    Starter {
        driver: "model",
        place: place.to_owned(),
        epoch,
        seed: 1,
    }
}
