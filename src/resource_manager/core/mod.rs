//! Decisions of a ResourceManager: which TaskExecutors are lost, when slots are matched, which jobs lose their
//! requirements. Pure: time and input are arguments; output is collected as [`Effect`]s. Registration is
//! decided in [`registering`].
//!
//! The core owns the parts of the state, each an object with a file: [`task_executors`], [`slot_manager`],
//! [`job_masters`], [`unfulfillable`], [`draining`], [`workers`]. None of it is persisted, except drains and workers.
//!
//! - Of the registrations of one TaskExecutor only the highest counts. See [`task_executors`].
//! - A message of another term is refused. If its term is younger, the election also asks its store, which alone can
//!   end this term.
//! - Of the JobMasters of a job only the youngest may declare its requirements. See [`job_masters`].

mod capacity;
mod draining;
mod effect;
mod event;
mod job_masters;
mod log_line;
mod overview;
mod packing;
mod placement;
mod queue;
mod registering;
mod report;
mod requirements;
mod shortages;
mod slot;
pub(crate) mod slot_manager;
mod slots;
mod standstill;
mod task_executors;
#[cfg(test)]
mod tests;
mod unfulfillable;
mod worker_control;
pub(crate) mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tanist_gateway::refusals::CheckOutcome;
use tanist_gateway::{GatewayError, GatewayResult, GoneTaskManager};
use tanist_ha::clock::Uptime;
use tanist_ha::election::{ClusterIncarnation, Epoch, StoreIdentity, TermHolder};
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::v1 as pb;

use self::draining::Drains;
pub use self::effect::Contact;
pub(crate) use self::effect::{Connection, Effect};
pub(crate) use self::event::Event;
use self::job_masters::JobMasters;
pub(crate) use self::log_line::LogLine;
pub use self::placement::Balance;
use self::report::{parse_report, slot_outcome, task_counts};
use self::shortages::KnownShortages;
use self::slot_manager::{RequestOutcome, Shortage, SlotManager, SlotRequest, SlotsVersion, Turn};
use self::task_executors::{Availability, Suspicion, TaskExecutors};
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

/// See the module.
#[derive(Debug)]
pub(crate) struct ResourceManagerCore {
    options: Options,
    term: Term,
    resource_id: String,
    task_executors: TaskExecutors,
    slots: SlotManager,
    /// When slots are matched next. `None`: nothing has changed since the last match.
    check_at: Option<Uptime>,
    /// When refused and unanswered slot requests are repeated. `None`: there is none.
    retry_at: Option<Uptime>,
    /// Time of the next own tick. A late tick shows that this process stood still.
    next_tick: Uptime,
    job_masters: JobMasters,
    unfulfillable_jobs: UnfulfillableJobs,
    shortages: KnownShortages,
    /// Workers that this ResourceManager starts itself, if a driver is configured.
    workers_of_driver: Option<Workers>,
    drains: Drains,
    effects: Vec<Effect>,
    log: Vec<LogLine>,
}

impl ResourceManagerCore {
    /// Without registrations. `seed` distinguishes this ResourceManager from all others.
    pub(crate) fn new(now: Uptime, options: Options, term: Term, seed: u64) -> ResourceManagerCore {
        let job_masters = JobMasters::new(options.heartbeat_timeout, options.job_timeout);
        let slots = SlotManager::new(seed)
            .balanced_by(options.balance)
            .reserving_after(options.reservation_delay);
        ResourceManagerCore {
            unfulfillable_jobs: UnfulfillableJobs::new(now, options.start_up_time),
            next_tick: now + options.heartbeat_interval,
            options,
            resource_id: format!("rm-{}-{seed:016x}", term.epoch),
            term,
            task_executors: TaskExecutors::default(),
            slots,
            check_at: None,
            retry_at: None,
            job_masters,
            shortages: KnownShortages::default(),
            workers_of_driver: None,
            drains: Drains::default(),
            effects: Vec::new(),
            log: Vec::new(),
        }
    }

    /// The term.
    pub(crate) fn term(&self) -> &Term {
        &self.term
    }

    /// The current turn of its view of the slots.
    #[cfg(test)]
    pub(crate) fn turn(&self) -> Turn {
        self.slots.turn()
    }

    /// Takes the collected effects.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Takes the collected lines for the log, which precede the effects.
    pub(crate) fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.log)
    }

    /// Takes the shortages that changed since the last call, as of the last match. `None`: the job no longer
    /// lacks slots.
    pub(crate) fn take_changed_shortages(&mut self) -> Vec<(JobId, Option<Shortage>)> {
        self.shortages.take_changed()
    }

    /// Handles an event. Its effects are collected.
    pub(crate) fn handle(&mut self, now: Uptime, event: Event) {
        // First, so that no deadline passes because this process stood still.
        self.credit_standstill(now);
        match event {
            Event::TimePassed => self.on_time(now),
            Event::HeartbeatAnswered {
                to,
                asked_at,
                answer,
            } => self.heartbeat_answered(now, &to, asked_at, answer),
            Event::SlotAnswered {
                to,
                request,
                answer,
            } => self.slot_answered(now, &to, &request, answer),
            Event::LossChecked {
                to,
                reason,
                is_lost,
            } => self.loss_checked(now, &to, reason, is_lost),
            Event::ConnectionEnded(address) => self.connection_ended(address.as_deref()),
            Event::Worker(event) => self.worker_event(now, event),
            Event::DrainDecided { change, wall_ms } => self.drain_decided(now, wall_ms, change),
            Event::ClusterEnds => self.dismiss_workers(now),
        }
    }

    /// Handles the answer to a heartbeat.
    pub(super) fn heartbeat_answered(
        &mut self,
        now: Uptime,
        to: &Connection,
        asked_at: Turn,
        answer: GatewayResult<pb::HeartbeatFromResourceManagerResponse>,
    ) {
        if !self.task_executors.is_connected(to) {
            return;
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(GatewayError::Unreachable { reason, .. }) => {
                // Finds out whether it is gone, one check at a time.
                let threshold = self.options.rpc_failure_threshold;
                let check =
                    threshold.and_then(|threshold| self.task_executors.refused(to, threshold));
                self.effects.extend(check.map(|check| Effect::CheckLost {
                    to: to.clone(),
                    reason,
                    check,
                }));
                return;
            }
            // The connection broke with the call: only the next one shows whether it is gone.
            Err(GatewayError::NoAnswer { .. }) => {
                return self.task_executors.probe(to, Suspicion::Ended);
            }
            Err(error) => return self.call_failed(to, &error),
        };
        let report = answer.slot_report.unwrap_or_default();
        let kept_outputs = (answer.kept_outputs, SlotsVersion(report.version));
        self.task_executors
            .answered(now, to, kept_outputs, task_counts(&report));
        match parse_report(report, true) {
            Ok(report) => self.slots.report(&to.worker, &report, asked_at),
            Err(error) => self.log.push(LogLine::BadSlotReport {
                task_manager: to.worker.clone(),
                error,
            }),
        }
        self.changed(now);
    }

    /// Handles the result of a check whether a TaskExecutor that refuses calls is gone.
    fn loss_checked(&mut self, now: Uptime, to: &Connection, reason: String, is_lost: bool) {
        let threshold = self.options.rpc_failure_threshold.unwrap_or(u32::MAX);
        let Some((outcome, calls)) = self.task_executors.finish_check(to, is_lost, threshold)
        else {
            return;
        };
        match outcome {
            CheckOutcome::Lost => {
                let cause = format!("{calls} calls in a row did not reach it: {reason}");
                self.tell_gone(&to.worker, &cause);
                self.lose(now, to, &cause);
            }
            CheckOutcome::Repeat(check) => self.effects.push(Effect::CheckLost {
                to: to.clone(),
                reason,
                check,
            }),
            // The next heartbeat is sent early, so that it is soon known whether the TaskExecutor is gone.
            CheckOutcome::Undecided if calls > 0 && calls < threshold => {
                self.task_executors.probe(to, Suspicion::Refused);
            }
            CheckOutcome::Undecided => {}
        }
    }

    /// Handles the end of a connection to an address: what had that address may be gone, which a heartbeat shows.
    /// `None`: ends of connections were missed, so every TaskExecutor may be gone.
    fn connection_ended(&mut self, address: Option<&str>) {
        let connections = match address {
            Some(address) => self.task_executors.at_address(address),
            None => self.task_executors.connections(),
        };
        for to in connections {
            self.task_executors.probe(&to, Suspicion::Ended);
        }
    }

    /// Handles the answer to a slot request.
    fn slot_answered(
        &mut self,
        now: Uptime,
        to: &Connection,
        request: &SlotRequest,
        answer: GatewayResult<pb::RequestSlotResponse>,
    ) {
        if !self.task_executors.is_connected(to) {
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

    /// When [`Event::TimePassed`] is due next.
    pub(crate) fn next_deadline(&self) -> Option<Uptime> {
        let heartbeats = self
            .task_executors
            .next_deadline(self.options.heartbeat_timeout);
        heartbeats
            .into_iter()
            .chain(self.job_masters.next_deadline())
            .chain(self.unfulfillable_jobs.next_deadline())
            .chain([self.next_tick])
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
    fn on_time(&mut self, now: Uptime) {
        // First, so that no deadline passes because this process stood still.
        self.note_tick(now);
        // Before slots are matched: a TaskExecutor that is lost gets no slot requests.
        self.send_due_heartbeats(now);
        self.on_time_for_workers(now);
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
            // First: to keep slots for a job, matching also counts on workers that could be started.
            let driver = self.workers_of_driver.as_ref();
            self.slots.set_startable(driver.map(Workers::startable));
            let requests = self.slots.match_slots(now);
            self.log.extend(self.slots.take_log());
            for request in requests {
                self.log.push(LogLine::SlotRequested {
                    job: request.holder.job,
                    task_manager: request.worker.clone(),
                    slot: request.slot,
                    allocation: request.holder.allocation,
                });
                self.request_slot(request);
            }
            // After matching, which changes what jobs lack. All that follows judges by this count.
            let changed = self.slots.take_changed_jobs();
            self.note_shortages(&changed);
            self.judge_room(&changed);
            self.judge_leaving(now);
            self.judge_requirements(now);
            // Workers are started only for slots that matching did not find.
            self.review_workers(now);
            // Starts the job timeout of jobs that hold slots but have no JobMaster.
            let holding = changed
                .into_iter()
                .map(|job| (job, self.slots.is_holder(job)));
            self.job_masters.follow(now, holding);
        }
        self.abandon_jobs(now);
    }

    /// Sends the heartbeats that are due, and gives up TaskExecutors that have answered none within the timeout.
    fn send_due_heartbeats(&mut self, now: Uptime) {
        let (interval, timeout) = (
            self.options.heartbeat_interval,
            self.options.heartbeat_timeout,
        );
        let lost = self.task_executors.lost(now, timeout);
        for id in self.task_executors.take_due(now, interval, timeout) {
            self.send_heartbeat(&id);
        }
        for to in lost {
            self.lose(
                now,
                &to,
                &format!("no heartbeat was answered for {timeout:?}"),
            );
        }
    }

    /// Notifies the JobMasters of all jobs that hold slots of a TaskExecutor that its process is gone.
    ///
    /// One that is only silent is not named: each JobMaster judges silence by the answers that it got itself. To be
    /// called before its slots are removed or replaced: they show which jobs these are.
    fn tell_gone(&mut self, id: &ResourceId, cause: &str) {
        let Some(known) = self.task_executors.get(id) else {
            return;
        };
        let gone = GoneTaskManager {
            id: id.clone(),
            incarnation: known.location().incarnation.clone(),
            cause: cause.to_owned(),
        };
        let holders = self.slots.allocated(id);
        let jobs: BTreeSet<JobId> = holders.map(|(holder, _)| holder.job).collect();
        self.effects
            .extend(jobs.into_iter().map(|job| Effect::Gone {
                job,
                gone: gone.clone(),
            }));
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

    /// Sends a heartbeat, which also says to a TaskExecutor whether it is drained.
    fn send_heartbeat(&mut self, id: &ResourceId) {
        let Some(known) = self.task_executors.get(id) else {
            return;
        };
        let Availability {
            is_draining,
            is_releasing,
        } = known.availability();
        let to = self.task_executors.connection(id);
        self.effects.extend(to.map(|to| Effect::Heartbeat {
            to,
            asked_at: self.slots.turn(),
            is_draining,
            is_releasing,
        }));
    }

    fn request_slot(&mut self, request: SlotRequest) {
        if let Some(to) = self.task_executors.connection(&request.worker) {
            self.effects.push(Effect::RequestSlot { to, request });
        }
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
            if self.shortages.note(job, shortage) {
                self.log.push(match shortage {
                    Some(Shortage { acquired, missing }) => LogLine::SlotsLacking {
                        job,
                        acquired,
                        missing,
                    },
                    None => LogLine::SlotsSuffice { job },
                });
            }
        }
    }

    /// Withdraws the requirements of jobs without JobMaster whose timeout has passed, and asks TaskExecutors to
    /// free their unused slots. Slots in use stay with their TaskExecutor.
    fn abandon_jobs(&mut self, now: Uptime) {
        let timeout = self.options.job_timeout;
        let mut freed: BTreeMap<ResourceId, Vec<AllocationId>> = BTreeMap::new();
        let overdue = self.job_masters.take_overdue(now);
        self.log.extend(self.job_masters.take_log());
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
            let Some(to) = self.task_executors.connection(&id) else {
                continue;
            };
            let cause = format!("the job had no JobMaster for {timeout:?}");
            self.effects.push(Effect::FreeSlots {
                to,
                allocations,
                cause,
            });
        }
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
