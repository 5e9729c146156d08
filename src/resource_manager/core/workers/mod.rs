//! Decisions about workers: which to start, release and stop. Pure: time, state and input are arguments; output is
//! collected as [`Effect`]s. The result of each effect comes back through one of the methods here.
//!
//! - A worker is started only after the driver has reported which workers of earlier terms exist: those that have
//!   not registered yet are expected, and not started a second time.
//! - The number of slots, including possible ones, never exceeds the maximum: a worker that is being stopped counts
//!   until it is gone.
//! - Every worker ends the same way: STOPPING removes the record, then the process. Nothing else forgets a worker.

mod effect;
mod event;
mod overview;
mod planning;
mod start_rate_limit;
#[cfg(test)]
mod tests;
mod worker_events;

use std::collections::BTreeMap;

use tanist_ha::clock::Uptime;
use tanist_proto::id::ResourceId;
use tanist_proto::resources::WorkerResourceSpec;

pub(crate) use self::effect::Effect;
pub(crate) use self::event::WorkerEvent;
pub(crate) use self::planning::{Bounds, Shortages, Startable, places};
use self::planning::{Plan, Situation};
use self::start_rate_limit::StartRateLimit;
use super::LogLine;
use super::packing::Room;
use crate::workers::{RecordedWorker, WorkerRecord, WorkersOptions};

/// The state of a worker. The state diagram is in [`crate::workers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerState {
    /// Its record is being written, or its process is being started. Has a deadline, since a driver may hang.
    Requested { deadline: Uptime },
    /// Recorded by an earlier term; the driver has not reported its state.
    Recorded,
    /// Recorded by an earlier term for a place that the driver can't see.
    Unseen { deadline: Uptime },
    /// It was started but has not registered.
    Pending { deadline: Uptime },
    /// It has registered. `idle_since`: since when it is idle.
    Registered { idle_since: Option<Uptime> },
    /// It leaves as soon as nothing of it is in use.
    Releasing { is_recorded: bool },
    /// The same, recorded by an earlier term; it has not registered. No deadline: the driver has not reported its
    /// state.
    RecordedReleasing { deadline: Option<Uptime> },
    /// It said goodbye.
    Leaving { deadline: Uptime },
    /// Its record is being removed; once that is durable, its process is being ended.
    Stopping { is_removed: bool },
}

impl WorkerState {
    /// When the state times out.
    fn deadline(mut self) -> Option<Uptime> {
        self.deadline_mut().copied()
    }

    fn deadline_mut(&mut self) -> Option<&mut Uptime> {
        match self {
            WorkerState::Requested { deadline }
            | WorkerState::Pending { deadline }
            | WorkerState::Unseen { deadline }
            | WorkerState::Leaving { deadline } => Some(deadline),
            WorkerState::RecordedReleasing { deadline } => deadline.as_mut(),
            WorkerState::Recorded
            | WorkerState::Registered { .. }
            | WorkerState::Releasing { .. }
            | WorkerState::Stopping { .. } => None,
        }
    }
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Worker {
    state: WorkerState,
    record: WorkerRecord,
    /// When this term requested it. `None`: an earlier term did.
    requested_at: Option<Uptime>,
}

/// A registered TaskExecutor, started by the driver or by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskExecutorView {
    /// Number of its default slots.
    pub slots: u32,
    /// Its free room. `None`: it is about to leave.
    pub room: Option<Room>,
    /// Whether no slot is in use, and it has reported since the last one was freed that it keeps no output that may
    /// still be read.
    pub is_unused: bool,
    /// Whether it is an unused worker whose host is drained: a replacement would be drained, too.
    pub is_useless: bool,
}

/// The answer to a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may register.
    Welcome {
        /// Whether it must leave as soon as nothing of it is in use.
        is_releasing: bool,
    },
    /// Removal of its record is decided but not durable: the next leader may want it.
    Undecided,
    /// The store has no record of it.
    Unknown,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Workers {
    options: WorkersOptions,
    driver: &'static str,
    place: String,
    epoch: u64,
    seed: u64,
    /// Makes the next worker's id different from those of this term's other workers.
    next: u64,
    workers: BTreeMap<ResourceId, Worker>,
    /// The driver has reported which workers of earlier terms exist. Before that none is started, and no idle one is
    /// released.
    is_recovered: bool,
    /// When the driver is asked again, after it failed.
    recover_at: Option<Uptime>,
    start_rate_limit: StartRateLimit,
    /// Why workers are missing, until one registers.
    trouble: Option<String>,
    /// Number of failed starts in this term, for display.
    failures: u64,
    /// Of the last review.
    plan: Plan,
    /// Computed in the last review.
    startable: Option<Startable>,
    /// When a review may release or start a worker because time has passed.
    review_at: Option<Uptime>,
    /// The cluster ends: all workers are released.
    is_dismissed: bool,
    /// The host on which the driver starts workers, if it is drained: new workers would be drained, too.
    drained_host: Option<String>,
    effects: Vec<Effect>,
    log: Vec<LogLine>,
}

/// The driver and the term that start workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Starter {
    /// The driver's configured name.
    pub driver: &'static str,
    /// Where it starts them.
    pub place: String,
    /// The term's epoch.
    pub epoch: u64,
    /// Makes the ids of workers unique.
    pub seed: u64,
}

impl Workers {
    /// Knows the workers that earlier terms recorded in the store.
    pub(crate) fn new(
        options: WorkersOptions,
        starter: Starter,
        recorded: Vec<(ResourceId, WorkerRecord)>,
    ) -> Workers {
        let workers = recorded.into_iter().map(|(id, record)| {
            let state = match record.releasing {
                true => WorkerState::RecordedReleasing { deadline: None },
                false => WorkerState::Recorded,
            };
            let worker = Worker {
                state,
                record,
                requested_at: None,
            };
            (id, worker)
        });
        let mut known = Workers {
            start_rate_limit: StartRateLimit::new(options.max_failure_rate, options.retry_interval),
            options,
            driver: starter.driver,
            place: starter.place,
            epoch: starter.epoch,
            seed: starter.seed,
            next: 0,
            workers: workers.collect(),
            is_recovered: false,
            recover_at: None,
            trouble: None,
            failures: 0,
            plan: Plan::default(),
            startable: None,
            review_at: None,
            is_dismissed: false,
            drained_host: None,
            effects: Vec::new(),
            log: Vec::new(),
        };
        known.recover();
        known
    }

    /// Takes the collected effects.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Takes the collected lines for the log.
    pub(crate) fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.log)
    }

    /// Resources of a worker, unless a slot needs more.
    pub(crate) fn spec(&self) -> &WorkerResourceSpec {
        &self.options.spec
    }

    /// A worker with the largest possible resources, if there are several kinds.
    pub(crate) fn largest(&self) -> Option<WorkerResourceSpec> {
        let largest = self.options.largest.clone()?;
        Some(WorkerResourceSpec::new(largest, 1))
    }

    /// The resources of a worker.
    fn spec_of(&self, record: &WorkerRecord) -> WorkerResourceSpec {
        record.kind().unwrap_or_else(|| self.options.spec.clone())
    }

    /// The record of a worker to store.
    pub(crate) fn record_of(&self, id: &ResourceId) -> Option<&WorkerRecord> {
        self.workers.get(id).map(|worker| &worker.record)
    }

    /// Whether a worker is, or was to be, in the place where this driver starts workers. All workers of a place are
    /// on one host.
    pub(crate) fn is_of_place(&self, id: &ResourceId) -> bool {
        let worker = self.workers.get(id);
        worker.is_some_and(|worker| worker.record.place == self.place)
    }

    /// Sets the host on which the driver starts workers, if it is known and drained.
    pub(crate) fn set_drained_host(&mut self, host: Option<String>) {
        self.drained_host = host;
    }

    /// The cluster ends: starts no more workers and releases every worker.
    pub(crate) fn dismiss(&mut self) {
        self.is_dismissed = true;
    }

    /// When [`Workers::on_time`] must be called next.
    pub(crate) fn next_deadline(&self) -> Option<Uptime> {
        let deadlines = self.workers.values();
        let deadlines = deadlines.filter_map(|worker| worker.state.deadline());
        deadlines.chain(self.recover_at).chain(self.review_at).min()
    }

    /// Gives up workers whose deadline has passed. Returns whether [`Workers::review`] is due.
    pub(crate) fn on_time(&mut self, now: Uptime) -> bool {
        if self.recover_at.is_some_and(|at| at <= now) {
            self.recover_at = None;
            self.recover();
        }
        let due = self.workers.iter().filter(|(_, worker)| {
            let deadline = worker.state.deadline();
            deadline.is_some_and(|deadline| deadline <= now)
        });
        let due: Vec<(ResourceId, WorkerState)> =
            due.map(|(id, it)| (id.clone(), it.state)).collect();
        let timeout = self.options.registration_timeout;
        for (id, state) in due {
            match state {
                WorkerState::Requested { .. } => {
                    self.fail(now, &id, &format!("it was not started within {timeout:?}"));
                }
                WorkerState::Pending { .. } => {
                    self.fail(
                        now,
                        &id,
                        &format!("it has not registered within {timeout:?}"),
                    );
                }
                WorkerState::Unseen { .. }
                | WorkerState::RecordedReleasing { .. }
                | WorkerState::Leaving { .. } => self.stop(&id),
                WorkerState::Recorded
                | WorkerState::Registered { .. }
                | WorkerState::Releasing { .. }
                | WorkerState::Stopping { .. } => {}
            }
        }
        let is_review_due = self.review_at.is_some_and(|at| at <= now);
        if is_review_due {
            self.review_at = None;
        }
        is_review_due
    }

    /// Compares existing workers with the need, then starts what is missing and releases what is idle. To be called
    /// after every change of its
    /// input, and when [`Workers::on_time`] says so.
    pub(crate) fn review(
        &mut self,
        now: Uptime,
        shortages: Shortages,
        registered: &BTreeMap<ResourceId, TaskExecutorView>,
    ) {
        let bounds = self.bounds();
        let situation = self.situation(shortages, registered);
        let is_useless =
            self.drained_host.is_some() || registered.values().any(|view| view.is_useless);
        self.note_startable(&situation, is_useless);
        self.plan = planning::plan(&situation, &bounds);
        // The host of workers is drained, so that new ones would be drained, too.
        if is_useless {
            self.plan.start = 0;
            self.plan.kinds.clear();
        }
        let mut review_at = None;
        if self.is_dismissed {
            self.dismiss_all();
        } else if self.is_recovered {
            match self.start_rate_limit.until(now) {
                Some(until) if self.plan.start > 0 || !self.plan.kinds.is_empty() => {
                    review_at = Some(until);
                }
                Some(_) | None => {
                    for _ in 0..self.plan.start {
                        self.start(now, None);
                    }
                    for kind in self.plan.kinds.clone() {
                        self.start(now, Some(&kind));
                    }
                }
            }
        }
        let due = self.note_idle(now, registered);
        let idle = due.iter().filter(|(_, at)| *at <= now);
        let (useless, idle): (Vec<_>, Vec<_>) = idle
            .map(|(id, _)| (id.clone(), registered[id].slots))
            .partition(|(id, _)| registered[id].is_useless);
        if self.is_recovered {
            // They are useless, so they count neither towards the minimum nor as spare.
            for (id, _) in &useless {
                self.release(id);
            }
        }
        if self.is_recovered && !idle.is_empty() {
            for id in planning::releasable(&idle, situation.total, &self.plan, &bounds) {
                self.release(&id);
            }
        }
        let next_idle = due.into_iter().map(|(_, at)| at).filter(|at| *at > now);
        self.review_at = next_idle.chain(review_at).min();
    }

    fn note_startable(&mut self, situation: &Situation, is_useless: bool) {
        let bounds = self.bounds();
        let pending = (0..situation.pending).map(|_| &bounds.spec);
        let expected = pending.chain(&situation.pending_kinds).map(Room::of);
        let (expected, slots_left) = match is_useless {
            true => (Vec::new(), 0),
            false => (
                expected.collect(),
                bounds.max.saturating_sub(situation.total),
            ),
        };
        self.startable = Some(Startable {
            expected,
            slots_left,
            bounds,
        });
    }

    /// Workers that the driver could start, as of the last review.
    pub(crate) fn startable(&self) -> Startable {
        let none_yet = || {
            let bounds = self.bounds();
            Startable {
                expected: Vec::new(),
                slots_left: bounds.max,
                bounds,
            }
        };
        self.startable.clone().unwrap_or_else(none_yet)
    }

    fn bounds(&self) -> Bounds {
        let slots = self.options.spec.slots();
        Bounds {
            spec: self.options.spec.clone(),
            largest: self.options.largest.clone(),
            min: self.options.min_slots,
            max: self.options.max_slots,
            redundant: self.options.redundant_workers.saturating_mul(slots),
        }
    }

    fn situation(
        &self,
        shortages: Shortages,
        registered: &BTreeMap<ResourceId, TaskExecutorView>,
    ) -> Situation {
        let mut situation = Situation {
            shortages,
            ..Situation::default()
        };
        for (id, view) in registered {
            situation.total = situation.total.saturating_add(view.slots);
            let room = view.room.clone().map(|room| (id.clone(), room));
            situation.registered.extend(room);
        }
        let others = self.workers.iter();
        for (_, worker) in others.filter(|(id, _)| !registered.contains_key(*id)) {
            let slots = match worker.record.slots {
                0 => self.options.spec.slots(),
                slots => slots,
            };
            situation.total = situation.total.saturating_add(slots);
            match worker.state {
                WorkerState::Requested { .. }
                | WorkerState::Recorded
                | WorkerState::Pending { .. } => match worker.record.kind() {
                    None => situation.pending += 1,
                    Some(kind) => situation.pending_kinds.push(kind),
                },
                WorkerState::Unseen { .. }
                | WorkerState::Registered { .. }
                | WorkerState::Releasing { .. }
                | WorkerState::RecordedReleasing { .. }
                | WorkerState::Leaving { .. }
                | WorkerState::Stopping { .. } => {}
            }
        }
        situation
    }

    /// Records which registered workers are idle. Returns when each may be released.
    fn note_idle(
        &mut self,
        now: Uptime,
        registered: &BTreeMap<ResourceId, TaskExecutorView>,
    ) -> Vec<(ResourceId, Uptime)> {
        let timeout = self.options.idle_timeout;
        let mut due = Vec::new();
        for (id, worker) in &mut self.workers {
            let WorkerState::Registered { idle_since } = &mut worker.state else {
                continue;
            };
            if registered.get(id).is_some_and(|view| view.is_unused) {
                let since = *idle_since.get_or_insert(now);
                due.push((id.clone(), since + timeout));
            } else {
                *idle_since = None;
            }
        }
        // The longest idle one comes first.
        due.sort_by_key(|(_, at)| *at);
        due
    }

    fn recover(&mut self) {
        let recorded = self.workers.iter().map(|(id, worker)| RecordedWorker {
            worker: id.clone(),
            place: worker.record.place.clone(),
        });
        self.effects.push(Effect::Recover(recorded.collect()));
    }

    fn new_record(&self) -> WorkerRecord {
        WorkerRecord {
            driver: self.driver.to_owned(),
            place: self.place.clone(),
            epoch: self.epoch,
            // Set when the record is written.
            requested_at_ms: 0,
            slots: self.options.spec.slots(),
            resources: None,
            releasing: false,
        }
    }

    fn start(&mut self, now: Uptime, kind: Option<&WorkerResourceSpec>) {
        let id = format!("worker-{}-{:016x}-{}", self.epoch, self.seed, self.next);
        self.next += 1;
        let id: ResourceId = id.parse().expect("letters, digits and hyphens are an id");
        let deadline = now + self.options.registration_timeout;
        let mut record = self.new_record();
        if let Some(kind) = kind {
            record.set_kind(kind);
        }
        let spec = self.spec_of(&record);
        let worker = Worker {
            state: WorkerState::Requested { deadline },
            record,
            requested_at: Some(now),
        };
        self.workers.insert(id.clone(), worker);
        self.log.push(LogLine::WorkerStarting {
            worker: id.clone(),
            spec: Box::new(spec),
        });
        self.effects.push(Effect::Start(id));
    }

    fn release(&mut self, id: &ResourceId) {
        if let Some(worker) = self.workers.get_mut(id) {
            let idle_timeout = self.options.idle_timeout;
            self.log.push(LogLine::WorkerReleased {
                worker: id.clone(),
                idle_timeout,
            });
            worker.record.releasing = true;
            worker.state = WorkerState::Releasing { is_recorded: false };
            self.effects.push(Effect::Release(id.clone()));
        }
    }

    fn fail(&mut self, now: Uptime, id: &ResourceId, cause: &str) {
        self.log.push(LogLine::WorkerFailed {
            worker: id.clone(),
            cause: cause.to_owned(),
        });
        self.start_rate_limit.failed(now);
        self.failures += 1;
        self.trouble = Some(format!("{id}: {cause}"));
        self.stop(id);
    }

    fn stop(&mut self, id: &ResourceId) {
        if let Some(worker) = self.workers.get_mut(id)
            && !matches!(worker.state, WorkerState::Stopping { .. })
        {
            worker.state = WorkerState::Stopping { is_removed: false };
            self.effects.push(Effect::RemoveRecord(id.clone()));
        }
    }

    fn dismiss_all(&mut self) {
        let ids: Vec<ResourceId> = self.workers.keys().cloned().collect();
        for id in ids {
            match self.workers[&id].state {
                WorkerState::Registered { .. } => self.release(&id),
                WorkerState::Recorded
                | WorkerState::Pending { .. }
                | WorkerState::Unseen { .. }
                | WorkerState::RecordedReleasing { .. } => self.stop(&id),
                // Stopped when the result of the act arrives.
                WorkerState::Requested { .. }
                | WorkerState::Releasing { .. }
                | WorkerState::Leaving { .. }
                | WorkerState::Stopping { .. } => {}
            }
        }
    }
}
