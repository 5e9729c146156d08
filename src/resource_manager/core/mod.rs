//! Decisions of a ResourceManager: which TaskExecutors are lost, when slots are matched, which jobs lose their
//! requirements. Pure: time and input are arguments; output is collected as [`Effect`]s. Registration is
//! decided in [`registering`].
//!
//! - Of the registrations of one TaskExecutor only the highest counts; answers to messages of an earlier one
//!   are dropped.
//! - A message of a younger term ends this one; a message of an older term is refused.
//! - Of the JobMasters of a job only the youngest may declare its requirements. See [`job_masters`].

mod draining;
mod effect;
mod job_masters;
mod log_line;
mod overview;
mod packing;
mod placement;
mod queue;
mod registering;
mod report;
mod shortages;
pub mod slot_manager;
mod slots;
mod standstill;
#[cfg(test)]
mod tests;
mod unfulfillable;
mod worker_control;
pub mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tanist_gateway::refusals::{CheckOutcome, RefusedCalls};
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_ha::election::{ClusterIncarnation, Epoch, StoreIdentity, TermHolder};
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::WorkerResourceSpec;
use tanist_proto::v1 as pb;

use self::draining::Drains;
pub use self::effect::{Connection, Contact, Effect};
use self::job_masters::JobMasters;
pub use self::log_line::LogLine;
pub use self::placement::Balance;
use self::report::{TaskCounts, parse_report, slot_outcome, task_counts};
use self::slot_manager::{RequestOutcome, Shortage, SlotManager, SlotRequest, SlotsVersion, Turn};
use self::unfulfillable::UnfulfillableJobs;
use self::workers::Workers;
use crate::Options;

/// Delay of a check for each job that lacks slots: a few times as long as the check takes for one job.
const CHECK_DELAY_OF_A_JOB: Duration = Duration::from_micros(2);

/// The term that a ResourceManager belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// The cluster's name.
    pub cluster_id: String,
    /// The cluster's incarnation.
    pub incarnation: ClusterIncarnation,
    /// The term's epoch.
    pub epoch: Epoch,
    /// The process that holds the term.
    pub holder: TermHolder,
    /// The identity of the store in which the term was taken.
    pub store: Option<StoreIdentity>,
}

/// A registered TaskExecutor.
#[derive(Debug)]
struct Worker {
    location: pb::TaskManagerLocation,
    /// The incarnation that this one replaced, if any: its process had ended.
    replaced: Option<String>,
    registration: u64,
    hardware: Option<pb::HardwareDescription>,
    spec: WorkerResourceSpec,
    memory_configuration: Option<pb::MemoryConfiguration>,
    last_heartbeat: Uptime,
    next_heartbeat: Uptime,
    refused: RefusedCalls,
    /// It gets no slot requests: it is drained or being released.
    is_draining: bool,
    /// Whether it is a driver's worker that is being released, or the cluster is ending.
    is_releasing: bool,
    /// Number of its outputs that may still be read, and the version of its slots of that count; `None` until
    /// it has reported one. The count does not include outputs made in a slot that was freed since.
    kept_outputs: Option<(u32, SlotsVersion)>,
    /// Number of tasks in each of its slots, as last reported. For display only: no decision depends on it.
    tasks: TaskCounts,
}

/// See the module.
#[derive(Debug)]
pub struct Core {
    options: Options,
    term: Term,
    resource_id: String,
    workers: BTreeMap<ResourceId, Worker>,
    /// Highest registration numbers, also of TaskExecutors that are gone, as long as they may register again.
    highest_registrations: BTreeMap<ResourceId, u64>,
    slots: SlotManager,
    check_at: Option<Uptime>,
    retry_at: Option<Uptime>,
    /// Time of the next own heartbeat tick. A late tick shows that this process stood still.
    next_beat: Uptime,
    job_masters: JobMasters,
    unfulfillable_jobs: UnfulfillableJobs,
    /// The jobs that lack slots, as of the last match.
    shortages: BTreeMap<JobId, Shortage>,
    /// Changes to `shortages` that were not taken yet.
    changed_shortages: Vec<(JobId, Option<Shortage>)>,
    /// Workers that this ResourceManager starts itself, if a driver is configured.
    workers_of_driver: Option<Workers>,
    drains: Drains,
    effects: Vec<Effect>,
    log: Vec<LogLine>,
}

impl Core {
    /// Without registrations. `seed` distinguishes this ResourceManager from all others.
    pub fn new(now: Uptime, options: Options, term: Term, seed: u64) -> Core {
        let job_masters = JobMasters::new(options.heartbeat_timeout, options.job_timeout);
        let slots = SlotManager::new(seed)
            .balanced_by(options.balance)
            .reserving_after(options.reservation_delay);
        Core {
            unfulfillable_jobs: UnfulfillableJobs::new(now, options.start_up_time),
            next_beat: now + options.heartbeat_interval,
            options,
            resource_id: format!("rm-{}-{seed:016x}", term.epoch),
            term,
            workers: BTreeMap::new(),
            highest_registrations: BTreeMap::new(),
            slots,
            check_at: None,
            retry_at: None,
            job_masters,
            shortages: BTreeMap::new(),
            changed_shortages: Vec::new(),
            workers_of_driver: None,
            drains: Drains::default(),
            effects: Vec::new(),
            log: Vec::new(),
        }
    }

    /// The term.
    pub fn term(&self) -> &Term {
        &self.term
    }

    /// The current turn of its view of the slots.
    #[cfg(test)]
    pub fn turn(&self) -> Turn {
        self.slots.turn()
    }

    /// Takes the collected effects.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Takes the collected lines for the log, which precede the effects.
    pub fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.log)
    }

    /// Takes the shortages that changed since the last call, as of the last match. `None`: the job no longer
    /// lacks slots.
    pub fn take_changed_shortages(&mut self) -> Vec<(JobId, Option<Shortage>)> {
        std::mem::take(&mut self.changed_shortages)
    }

    /// Handles the answer to a heartbeat.
    pub fn heartbeat_answered(
        &mut self,
        now: Uptime,
        to: &Connection,
        asked_at: Turn,
        answer: GatewayResult<pb::HeartbeatFromResourceManagerResponse>,
    ) {
        let threshold = self.options.rpc_failure_threshold;
        let Some(worker) = self.connected(to) else {
            return;
        };
        let report = match answer {
            Ok(answer) => {
                let report = answer.slot_report.unwrap_or_default();
                let version = SlotsVersion(report.version);
                let is_late = |(_, known): (u32, SlotsVersion)| version.is_before(known);
                if !worker.kept_outputs.is_some_and(is_late) {
                    worker.kept_outputs = Some((answer.kept_outputs, version));
                }
                report
            }
            Err(GatewayError::Unreachable { reason, .. }) => {
                // Finds out whether it is gone, one question at a time.
                let question = threshold.and_then(|threshold| worker.refused.refused(threshold));
                self.effects.extend(question.map(|question| Effect::Judge {
                    to: to.clone(),
                    reason,
                    question,
                }));
                return;
            }
            Err(error) => return self.call_failed(to, &error),
        };
        worker.last_heartbeat = now;
        worker.refused.reached();
        worker.tasks = task_counts(&report);
        match parse_report(report, true) {
            Ok(report) => self.slots.report(&to.worker, &report, asked_at),
            Err(error) => self.log.push(LogLine::BadSlotReport {
                task_manager: to.worker.clone(),
                error,
            }),
        }
        self.changed(now);
    }

    /// Handles the verdict on a TaskExecutor that refused calls.
    pub fn judged(&mut self, now: Uptime, to: &Connection, reason: String, is_lost: bool) {
        let threshold = self.options.rpc_failure_threshold.unwrap_or(u32::MAX);
        let Some(worker) = self.connected(to) else {
            return;
        };
        let calls = worker.refused.calls();
        match worker.refused.finish_check(is_lost, threshold) {
            CheckOutcome::Lost => {
                let cause = format!("{calls} calls in a row did not reach it: {reason}");
                self.lose(now, to, &cause);
            }
            CheckOutcome::Repeat(question) => self.effects.push(Effect::Judge {
                to: to.clone(),
                reason,
                question,
            }),
            CheckOutcome::Undecided => {}
        }
    }

    /// Handles the answer to a slot request.
    pub fn slot_answered(
        &mut self,
        now: Uptime,
        to: &Connection,
        request: &SlotRequest,
        answer: GatewayResult<pb::RequestSlotResponse>,
    ) {
        if self.connected(to).is_none() {
            return;
        }
        let version = answer.as_ref().map(|answer| answer.slots_version);
        let version = SlotsVersion(version.unwrap_or_default());
        let outcome = match answer {
            Ok(answer) => slot_outcome(&to.worker, answer, &mut self.log),
            Err(GatewayError::Unreachable { .. }) => RequestOutcome::Refused,
            Err(error) => {
                self.call_failed(to, &error);
                if error.is_retryable() {
                    RequestOutcome::Unknown
                } else {
                    RequestOutcome::Refused
                }
            }
        };
        let (slot, holder) = (request.slot, request.holder);
        let is_open = self
            .slots
            .answered(&to.worker, slot, holder, &outcome, version);
        if is_open {
            let retry_at = now + self.options.slot_request_retry_delay;
            self.retry_at = Some(self.retry_at.map_or(retry_at, |at| at.min(retry_at)));
        }
        self.changed(now);
    }

    /// When [`Core::on_time`] must be called next.
    pub fn next_deadline(&self) -> Option<Uptime> {
        let workers = self.workers.values().flat_map(|worker| {
            [
                worker.next_heartbeat,
                worker.last_heartbeat + self.options.heartbeat_timeout,
            ]
        });
        workers
            .chain(self.job_masters.next_deadline())
            .chain(self.unfulfillable_jobs.next_deadline())
            .chain([self.next_beat])
            .chain(self.drains.next_deadline())
            .chain(self.check_at)
            .chain(self.retry_at)
            .chain(
                self.workers_of_driver
                    .as_ref()
                    .and_then(Workers::next_deadline),
            )
            .min()
    }

    /// Handles everything that is due.
    pub fn on_time(&mut self, now: Uptime) {
        self.note_beat(now);
        self.beat(now);
        self.attend_workers(now);
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            for request in self.slots.retry() {
                self.request_slot(request);
            }
            self.changed(now);
        }
        if self.unfulfillable_jobs.is_due(now) || self.is_drain_due(now) {
            self.changed(now);
        }
        if self.check_at.is_some_and(|at| at <= now) {
            self.check_at = None;
            let driver = self.workers_of_driver.as_ref();
            self.slots.set_startable(driver.map(Workers::startable));
            let requests = self.slots.match_slots(now);
            self.log.append(self.slots.log());
            for request in requests {
                self.log.push(LogLine::SlotRequested {
                    job: request.holder.job,
                    task_manager: request.worker.clone(),
                    slot: request.slot,
                    allocation: request.holder.allocation,
                });
                self.request_slot(request);
            }
            let changed = self.slots.take_changed_jobs();
            self.note_shortages(&changed);
            self.judge_room(&changed);
            self.judge_leaving(now);
            self.judge_requirements(now);
            self.review_workers(now);
            // Starts the job timeout of jobs that hold slots but have no JobMaster.
            let holding = changed
                .into_iter()
                .map(|job| (job, self.slots.is_holder(job)));
            self.job_masters.follow(now, holding);
        }
        self.let_go_of_jobs(now);
    }

    fn beat(&mut self, now: Uptime) {
        let mut lost = Vec::new();
        for (id, worker) in &mut self.workers {
            let to = connection(id, worker);
            if worker.last_heartbeat + self.options.heartbeat_timeout <= now {
                lost.push(to);
            } else if worker.next_heartbeat <= now {
                worker.next_heartbeat = now + self.options.heartbeat_interval;
                self.effects.push(Effect::Heartbeat {
                    to,
                    asked_at: self.slots.turn(),
                    is_draining: worker.is_draining,
                    is_releasing: worker.is_releasing,
                });
            }
        }
        for to in lost {
            let timeout = self.options.heartbeat_timeout;
            self.lose(
                now,
                &to,
                &format!("no heartbeat was answered for {timeout:?}"),
            );
        }
    }

    fn lose(&mut self, now: Uptime, to: &Connection, cause: &str) {
        self.log.push(LogLine::Lost {
            task_manager: to.worker.clone(),
            address: to.address.clone(),
            cause: cause.to_owned(),
        });
        self.depart(now, &to.worker);
        self.worker_gone(now, &to.worker, false);
        self.effects.push(Effect::Disconnect {
            to: to.clone(),
            cause: cause.to_owned(),
        });
        self.changed(now);
    }

    fn request_slot(&mut self, request: SlotRequest) {
        let Some(worker) = self.workers.get(&request.worker) else {
            return;
        };
        let to = connection(&request.worker, worker);
        self.effects.push(Effect::RequestSlot { to, request });
    }

    /// Schedules a check, since the input of slot matching may have changed. A burst of changes causes one
    /// check.
    fn changed(&mut self, now: Uptime) {
        // A check looks at every job that lacks slots: with very many of them, checks must not take all the
        // time.
        let jobs = u32::try_from(self.slots.short_count()).unwrap_or(u32::MAX);
        let delay = self.options.requirement_check_delay + CHECK_DELAY_OF_A_JOB * jobs;
        self.check_at.get_or_insert(now + delay);
    }

    /// Records the shortages of these jobs.
    fn note_shortages(&mut self, changed: &BTreeSet<JobId>) {
        for &job in changed {
            let shortage = self.slots.shortage(job);
            if self.shortages.get(&job) == shortage.as_ref() {
                continue;
            }
            match shortage {
                Some(shortage) => {
                    let Shortage { acquired, missing } = shortage;
                    self.log.push(LogLine::SlotsLacking {
                        job,
                        acquired,
                        missing,
                    });
                    self.shortages.insert(job, shortage);
                }
                None => {
                    self.log.push(LogLine::SlotsSuffice { job });
                    self.shortages.remove(&job);
                }
            }
            self.changed_shortages.push((job, shortage));
        }
    }

    /// Withdraws the requirements of jobs without JobMaster whose timeout has passed, and asks TaskExecutors to
    /// free their unused slots. Slots in use stay with their TaskExecutor.
    fn let_go_of_jobs(&mut self, now: Uptime) {
        let timeout = self.options.job_timeout;
        let mut freed: BTreeMap<ResourceId, Vec<AllocationId>> = BTreeMap::new();
        let overdue = self.job_masters.take_overdue(now);
        self.log.append(self.job_masters.log());
        for job in overdue {
            let had_requirements = self.slots.withdraw(job);
            let before = freed.values().map(Vec::len).sum::<usize>();
            for (worker, allocation) in self.slots.allocations_of(job) {
                freed.entry(worker.clone()).or_default().push(allocation);
            }
            let slots = freed.values().map(Vec::len).sum::<usize>() - before;
            if slots == 0 {
                self.job_masters.forget(job);
            }
            if had_requirements || slots > 0 {
                self.log.push(LogLine::JobAbandoned {
                    job,
                    slots,
                    had_requirements,
                    timeout,
                });
                self.changed(now);
            }
        }
        for (id, allocations) in freed {
            let Some(worker) = self.workers.get(&id) else {
                continue;
            };
            let to = connection(&id, worker);
            let cause = format!("the job had no JobMaster for {timeout:?}");
            self.effects.push(Effect::FreeSlots {
                to,
                allocations,
                cause,
            });
        }
    }

    fn connected(&mut self, to: &Connection) -> Option<&mut Worker> {
        let worker = self.workers.get_mut(&to.worker)?;
        (worker.registration == to.registration).then_some(worker)
    }

    fn call_failed(&mut self, to: &Connection, error: &GatewayError) {
        if let GatewayError::Outdated { epoch, .. } = error
            && *epoch > self.term.epoch.get()
        {
            self.effects.push(Effect::HigherEpoch {
                epoch: Epoch::new(*epoch),
                teller: format!("TaskManager {}", to.worker),
            });
        }
    }

    fn outdated(&self, reason: String) -> GatewayError {
        GatewayError::Outdated {
            epoch: self.term.epoch.get(),
            reason,
        }
    }
}

fn connection(id: &ResourceId, worker: &Worker) -> Connection {
    Connection {
        worker: id.clone(),
        registration: worker.registration,
        address: worker.location.rpc_address.clone(),
    }
}
