//! The part of the core that decides and acts, after each event and whenever time has passed: a function of the state
//! alone, so that nothing depends on which event came in which order.
//!
//! Decisions (restart, give up, cancel, place, record an end) go into `record`; acts follow from `written`.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng as _;
use tanist_proto::id::{AllocationId, Generation, ResourceId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::core::{Commit, Failure, JobMasterCore, Write};
use super::deployment::{execution_id, task_deployment};
use super::event::{CancelAnswer, Connection, Effect, Milestone};
use super::execution_graph::{Cancellation, Place, RegionPhase};
use super::restart::Verdict;
use super::slot_pool::SlotKey;

/// The record keeps so many failures.
const KEPT_FAILURES: usize = 16;
/// The first delay after a failed commit of the sinks.
const COMMIT_RETRY_MS: u64 = 100;

impl JobMasterCore {
    pub(super) fn settle(&mut self, now_ms: u64) {
        self.settled_at_ms = now_ms;
        if self.result.is_none() {
            self.judge_failures(now_ms);
            self.give_up_overdue(now_ms);
            self.judge_failures(now_ms);
        }
        self.decide_cancel();
        if self.result.is_some() {
            return;
        }
        self.stop_regions(now_ms);
        self.restart_regions(now_ms);
        self.schedule(now_ms);
        self.finish(now_ms);
        if self.result.is_none() {
            self.record_ends();
            self.write();
            self.deploy(now_ms);
            self.cancel_tasks(now_ms);
            self.acknowledge();
            self.free_idle_slots(now_ms);
            self.declare();
        }
        self.note_status(now_ms);
    }

    /// All that failed at one event is one failure for the restart strategy.
    fn judge_failures(&mut self, now_ms: u64) {
        let mut failures: Vec<Failure> = Vec::new();
        for failure in std::mem::take(&mut self.failures) {
            let phase = self.execution.regions[failure.region].phase;
            let is_known = matches!(phase, RegionPhase::Stopping { .. })
                || failures.iter().any(|other| other.region == failure.region);
            if !is_known {
                failures.push(failure);
            }
        }
        let Some(first) = failures.first().cloned() else {
            return;
        };
        if self.is_stopping() {
            return;
        }
        let random = self.random.random::<f64>();
        let counters = self.record.restarts.get_or_insert_default();
        let verdict = self.backoff.judge(counters, now_ms, random);
        self.revision += 1;
        for failure in &failures {
            self.record.failures.push(pb::FailureRecord {
                at_ms: now_ms,
                cause: failure.cause.clone(),
                task: failure.task.clone(),
                host: failure.host.clone(),
                resource_id: failure.resource_id.clone(),
            });
        }
        let surplus = self.record.failures.len().saturating_sub(KEPT_FAILURES);
        self.record.failures.drain(..surplus);
        match verdict {
            Verdict::Restart { at_ms } => {
                for failure in failures {
                    self.supersede(failure.region);
                    let phase = RegionPhase::Stopping {
                        restart_at_ms: Some(at_ms),
                    };
                    self.execution.regions[failure.region].phase = phase;
                }
            }
            Verdict::GiveUp { reason } => {
                let of_task = if first.task.is_empty() {
                    String::new()
                } else {
                    format!("{}: ", first.task)
                };
                self.record.fatal_cause =
                    format!("{of_task}{} (not restarted: {reason})", first.cause);
            }
        }
    }

    /// Gives up what took too long: tasks that don't stop, TaskManagers that don't come back, slots that don't come.
    fn give_up_overdue(&mut self, now_ms: u64) {
        let overdue =
            |since_ms: u64, timeout_ms: u64| now_ms >= since_ms.saturating_add(timeout_ms);
        let timeout_ms = self.options.task_cancellation_timeout_ms;
        let mut stuck: BTreeMap<ResourceId, String> = BTreeMap::new();
        for (task, at) in self.execution.tasks.iter().enumerate() {
            let execution = &at.execution;
            if execution.state == ExecutionState::Canceling
                && overdue(execution.canceling_since_ms, timeout_ms)
                && let Some(place) = &execution.place
            {
                stuck.insert(place.task_manager.clone(), self.execution.task_name(task));
            }
        }
        for (id, known) in &self.task_managers {
            for ((task, _), stray) in &known.strays {
                let is_asked = stray.cancellation != Cancellation::NotAsked;
                if is_asked && overdue(stray.canceling_since_ms, timeout_ms) {
                    stuck.insert(id.clone(), self.execution.task_name(*task));
                }
            }
        }
        for (task_manager, task) in stuck {
            let cause = format!("{task} did not stop within {timeout_ms} ms");
            if let Some(known) = self.task_managers.get(&task_manager) {
                self.effects.push(Effect::Disconnect {
                    connection: Connection {
                        task_manager: task_manager.clone(),
                        registration: known.registration,
                    },
                    location: known.location.clone(),
                    cause: cause.clone(),
                });
            }
            self.lose_task_manager(&task_manager, &cause, now_ms);
            for task in self.execution.live_on(&task_manager) {
                self.note_gone(task, &cause, now_ms);
            }
        }
        if overdue(self.started_at_ms, self.options.reconcile_timeout_ms) {
            for task in 0..self.execution.tasks.len() {
                if self.execution.tasks[task].execution.state == ExecutionState::Reconciling {
                    self.note_gone(task, "its TaskManager was not heard of", now_ms);
                }
            }
        }
        let timeout_ms = self.options.slot_request_timeout_ms;
        let (needed, there) = (self.execution.slots_needed().len(), self.pool.len());
        for (region, at) in self.execution.regions.iter().enumerate() {
            let RegionPhase::Waiting { since_ms } = at.phase else {
                continue;
            };
            if overdue(since_ms, timeout_ms) {
                let cause = format!(
                    "not enough slots within {timeout_ms} ms: the job needs {needed}, {there} are there; \
                     start TaskManagers or lower the parallelism"
                );
                let (task, host, resource_id) = Default::default();
                self.failures.push(Failure {
                    region,
                    cause,
                    task,
                    host,
                    resource_id,
                });
            }
        }
    }

    /// A cancel is decided unless the job has durably finished. While a write is on its way, that is open.
    fn decide_cancel(&mut self) {
        if !self.cancel_is_requested {
            return;
        }
        let answer = if let Some(result) = &self.result {
            match result.status() {
                pb::JobStatus::Canceled => CancelAnswer::Decided,
                status => CancelAnswer::TooLate(format!("the job is {}", status_name(status))),
            }
        } else if self.written.wanted() == pb::WantedStatus::Canceled {
            CancelAnswer::Decided
        } else if self.writing.is_some() {
            return;
        } else if self.is_durable && self.all_have_durably_finished() {
            CancelAnswer::TooLate("all tasks of the job have finished".to_owned())
        } else if let Some(reason) = &self.refusal {
            CancelAnswer::Refused(reason.clone())
        } else {
            if self.record.wanted() != pb::WantedStatus::Canceled {
                self.record.set_wanted(pb::WantedStatus::Canceled);
                self.revision += 1;
            }
            return;
        };
        self.cancel_is_requested = false;
        self.effects.push(Effect::AnswerCancels(answer));
    }

    /// Where executions are to end, those that no TaskManager has heard of have ended.
    fn stop_regions(&mut self, now_ms: u64) {
        let is_stopping = self.is_stopping();
        for region in 0..self.execution.regions.len() {
            if is_stopping {
                let phase = RegionPhase::Stopping {
                    restart_at_ms: None,
                };
                self.execution.regions[region].phase = phase;
            }
            if !matches!(
                self.execution.regions[region].phase,
                RegionPhase::Stopping { .. }
            ) {
                continue;
            }
            for task in self.execution.regions[region].tasks.clone() {
                let execution = &self.execution.tasks[task].execution;
                if !execution.is_deployed() && !execution.is_ended() {
                    self.execution
                        .advance(task, ExecutionState::Canceled, now_ms);
                }
            }
        }
    }

    fn restart_regions(&mut self, now_ms: u64) {
        for region in 0..self.execution.regions.len() {
            let RegionPhase::Stopping {
                restart_at_ms: Some(at_ms),
            } = self.execution.regions[region].phase
            else {
                continue;
            };
            let is_durable =
                self.written.regions[region].generation == self.record.regions[region].generation;
            if now_ms < at_ms || !is_durable || !self.execution.region_is_ended(region) {
                continue;
            }
            for task in self.execution.regions[region].tasks.clone() {
                let key = self.execution.slot_key(task);
                if let Some(place) = self.execution.tasks[task].execution.place.take() {
                    self.pool
                        .remember(key, place.task_manager, place.allocation);
                }
            }
            self.renew_executions(region);
            self.execution.regions[region].phase = RegionPhase::Waiting { since_ms: now_ms };
        }
    }

    /// Chooses slots for regions that wait, in the graph's order. All inputs are within a region, so each may start.
    fn schedule(&mut self, now_ms: u64) {
        if !self.is_durable || self.is_stopping() || self.refusal.is_some() {
            return;
        }
        for region in 0..self.execution.regions.len() {
            if !matches!(
                self.execution.regions[region].phase,
                RegionPhase::Waiting { .. }
            ) {
                continue;
            }
            let tasks = self.execution.regions[region].tasks.clone();
            for task in &tasks {
                self.execution
                    .advance(*task, ExecutionState::Scheduled, now_ms);
            }
            let wanted: BTreeSet<SlotKey> = tasks
                .iter()
                .map(|task| self.execution.slot_key(*task))
                .collect();
            if let Some(assigned) =
                self.pool
                    .assign(&wanted, &self.taken_slots(), &self.blocked_slots())
            {
                self.place(region, &assigned);
            }
        }
    }

    fn place(&mut self, region: usize, assigned: &BTreeMap<SlotKey, AllocationId>) {
        let generation = self.record.regions[region].generation.max(1);
        let mut placements = Vec::new();
        let tasks = self.execution.regions[region].tasks.clone();
        for task in tasks {
            let allocation = assigned[&self.execution.slot_key(task)];
            let slot = self.pool.get(&allocation);
            let Some((slot, known)) = slot.and_then(|slot| {
                self.task_managers
                    .get(&slot.task_manager)
                    .map(|known| (slot, known))
            }) else {
                // Slots go with their TaskManager, so this can't be; an unplaced region just goes on waiting.
                return;
            };
            placements.push(pb::Placement {
                vertex_id: self.execution.vertex_of(task).id.to_string(),
                subtask: self.execution.tasks[task].subtask,
                allocation_id: allocation.to_string(),
                location: Some(known.location.clone()),
            });
            let place = Place {
                task_manager: slot.task_manager.clone(),
                allocation,
                location: known.location.clone(),
            };
            let execution = &mut self.execution.tasks[task].execution;
            execution.generation = Generation::new(generation);
            execution.place = Some(place);
        }
        let epoch = self.epoch.get();
        self.record.regions[region] = pb::RegionState {
            generation,
            epoch,
            placements,
        };
        self.revision += 1;
        self.execution.regions[region].phase = RegionPhase::Placed;
    }

    /// The slots in which something of the job is, or will be.
    fn taken_slots(&self) -> BTreeMap<SlotKey, AllocationId> {
        let mut taken = BTreeMap::new();
        for (task, at) in self.execution.tasks.iter().enumerate() {
            if let Some(place) = at
                .execution
                .place
                .as_ref()
                .filter(|_| !at.execution.is_ended())
            {
                taken.insert(self.execution.slot_key(task), place.allocation);
            }
        }
        taken
    }

    /// The slots in which a stray is.
    fn blocked_slots(&self) -> BTreeSet<AllocationId> {
        let strays = self
            .task_managers
            .values()
            .flat_map(|known| known.strays.values());
        strays.filter_map(|stray| stray.allocation).collect()
    }

    pub(super) fn all_have_durably_finished(&self) -> bool {
        let finished =
            |task| self.durable_ends.get(&task).copied() == Some(ExecutionState::Finished);
        (0..self.execution.tasks.len()).all(finished)
    }

    /// Ends the job, or makes visible what it wrote, where the durable record says so.
    fn finish(&mut self, now_ms: u64) {
        if self.writing.is_some() {
            return;
        }
        let is_canceled = self.written.wanted() == pb::WantedStatus::Canceled;
        let is_to_cancel = self.record.wanted() == pb::WantedStatus::Canceled;
        let all_have_ended = self
            .execution
            .tasks
            .iter()
            .all(|task| task.execution.is_ended());
        if self.is_durable && is_canceled {
            if all_have_ended || self.refusal.is_some() {
                self.end(pb::JobStatus::Canceled, String::new(), now_ms);
            }
        } else if self.is_durable && self.all_have_durably_finished() {
            self.commit_sinks(now_ms);
        } else if let Some(reason) = self.refusal.clone() {
            let cause = format!("the job's state can't be persisted: {reason}");
            self.end(pb::JobStatus::Failed, cause, now_ms);
        } else if self.is_durable
            && !is_to_cancel
            && !self.written.fatal_cause.is_empty()
            && all_have_ended
        {
            let cause = self.written.fatal_cause.clone();
            self.end(pb::JobStatus::Failed, cause, now_ms);
        }
    }

    fn commit_sinks(&mut self, now_ms: u64) {
        let retry_delay_ms = match self.commit {
            Commit::NotYet => COMMIT_RETRY_MS,
            Commit::RetryAt {
                at_ms,
                retry_delay_ms,
            } if at_ms <= now_ms => retry_delay_ms,
            Commit::Running { .. } | Commit::RetryAt { .. } => return,
            Commit::Done => return self.end(pb::JobStatus::Finished, String::new(), now_ms),
        };
        self.commit = Commit::Running { retry_delay_ms };
        let ends = self.written.terminal.iter();
        let committables = ends
            .flat_map(|end| end.committables.iter().cloned())
            .collect();
        self.effects.push(Effect::CommitSinks(committables));
    }

    fn end(&mut self, status: pb::JobStatus, cause: String, now_ms: u64) {
        let result = self.result_of(status, cause, now_ms);
        self.effects.push(Effect::End(result.clone()));
        self.result = Some(result);
        self.decide_cancel();
    }

    /// Ends of executions that the record does not have. Where only a restart follows, it never gets them.
    fn record_ends(&mut self) {
        let is_stopping = self.is_stopping();
        for task in 0..self.execution.tasks.len() {
            let at = &self.execution.tasks[task];
            let execution = &at.execution;
            let is_of_record =
                self.record.regions[at.region].generation == execution.generation.get();
            let counts = is_stopping || execution.state == ExecutionState::Finished;
            if !execution.is_ended() || execution.is_recorded || !is_of_record || !counts {
                continue;
            }
            let end = pb::TerminalExecution {
                vertex_id: self.execution.vertex_of(task).id.to_string(),
                subtask: at.subtask,
                generation: execution.generation.get(),
                state: execution.state.into(),
                cause: execution.cause.clone(),
                committables: execution.committables.clone(),
                ended_at_ms: execution.ended_at_ms,
            };
            self.record.terminal.push(end);
            self.execution.tasks[task].execution.is_recorded = true;
            self.revision += 1;
        }
    }

    fn write(&mut self) {
        let is_written = self.revision == self.written_revision;
        if self.writing.is_some() || is_written || self.refusal.is_some() {
            return;
        }
        let mut milestones = Vec::new();
        let is_to_cancel = self.record.wanted() == pb::WantedStatus::Canceled;
        if is_to_cancel && self.written.wanted() != pb::WantedStatus::Canceled {
            milestones.push(Milestone::CancelDecided);
        }
        let mut regions = self.record.regions.iter().zip(&self.written.regions);
        if regions.any(|(region, before)| !region.placements.is_empty() && region != before) {
            milestones.push(Milestone::GenerationPlaced);
        }
        let has_finished = |task: &super::execution_graph::Task| {
            task.execution.state == ExecutionState::Finished && task.execution.is_recorded
        };
        if !is_to_cancel
            && self.execution.tasks.iter().all(has_finished)
            && !self.all_have_durably_finished()
        {
            milestones.push(Milestone::AllFinished);
        }
        self.last_write += 1;
        let (number, revision, state) = (self.last_write, self.revision, self.record.clone());
        self.effects.push(Effect::Persist {
            number,
            state: Box::new(state.clone()),
            milestones,
        });
        self.writing = Some(Write {
            number,
            revision,
            state,
        });
    }

    /// Deploys regions whose placement is durable and of this term.
    fn deploy(&mut self, now_ms: u64) {
        for region in 0..self.execution.regions.len() {
            let durable = &self.written.regions[region];
            if self.execution.regions[region].phase != RegionPhase::Placed
                || *durable != self.record.regions[region]
                || durable.placements.is_empty()
                || durable.epoch != self.epoch.get()
            {
                continue;
            }
            let mut by_task_manager: BTreeMap<ResourceId, Vec<usize>> = BTreeMap::new();
            for task in self.execution.regions[region].tasks.clone() {
                self.execution
                    .advance(task, ExecutionState::Deploying, now_ms);
                let execution = &mut self.execution.tasks[task].execution;
                execution.started_at_ms = now_ms;
                if let Some(place) = &execution.place {
                    by_task_manager
                        .entry(place.task_manager.clone())
                        .or_default()
                        .push(task);
                }
            }
            self.execution.regions[region].phase = RegionPhase::Deployed;
            for (task_manager, tasks) in by_task_manager {
                let tasks = tasks
                    .iter()
                    .map(|task| task_deployment(&self.execution, *task));
                let tasks = tasks.collect();
                if let Some(connection) = self.connection(&task_manager) {
                    self.effects.push(Effect::Deploy { connection, tasks });
                }
            }
        }
    }

    /// Cancels what the durable record does not want, wherever it is.
    fn cancel_tasks(&mut self, now_ms: u64) {
        if !self.is_durable {
            return;
        }
        let is_over = self.written.wanted() == pb::WantedStatus::Canceled
            || !self.written.fatal_cause.is_empty();
        let mut cancellations: BTreeMap<ResourceId, Vec<pb::TaskCancellation>> = BTreeMap::new();
        for task in 0..self.execution.tasks.len() {
            let at = &self.execution.tasks[task];
            let durable = self.written.regions[at.region].generation;
            let generation = at.execution.generation.get();
            let Some(place) = at.execution.place.clone() else {
                continue;
            };
            let is_unwanted = is_over || durable > generation;
            if !at.execution.is_deployed() || !is_unwanted {
                continue;
            }
            let can_be_told = self.task_managers.contains_key(&place.task_manager);
            if !can_be_told || at.execution.cancellation != Cancellation::NotAsked {
                continue;
            }
            let id = execution_id(&self.execution, task, generation);
            cancellations
                .entry(place.task_manager)
                .or_default()
                .push(cancellation(id));
            self.execution
                .advance(task, ExecutionState::Canceling, now_ms);
            self.execution.tasks[task].execution.cancellation = Cancellation::Asked;
        }
        for (task_manager, known) in &mut self.task_managers {
            for ((task, generation), stray) in &mut known.strays {
                let region = &self.written.regions[self.execution.tasks[*task].region];
                let id = execution_id(&self.execution, *task, *generation);
                // A generation above the durable one is unheard of; nothing says that it is unwanted.
                let is_unwanted = *generation < region.generation
                    || *generation == region.generation
                        && (is_over || !is_placed_on(region, &id, &known.location));
                if stray.cancellation != Cancellation::NotAsked || !is_unwanted {
                    continue;
                }
                cancellations
                    .entry(task_manager.clone())
                    .or_default()
                    .push(cancellation(id));
                stray.cancellation = Cancellation::Asked;
                stray.canceling_since_ms = now_ms;
            }
        }
        for (task_manager, tasks) in cancellations {
            if let Some(connection) = self.connection(&task_manager) {
                self.effects.push(Effect::Cancel { connection, tasks });
            }
        }
    }

    /// Acknowledges ends that the durable record has, or whose generation it has replaced.
    fn acknowledge(&mut self) {
        if !self.is_durable {
            return;
        }
        let mut acknowledged = Vec::new();
        for (task_manager, known) in &mut self.task_managers {
            let mut executions = Vec::new();
            known.unacknowledged.retain(|(task, generation)| {
                let durable = self.written.regions[self.execution.tasks[*task].region].generation;
                let is_recorded = durable == *generation && self.durable_ends.contains_key(task);
                let is_replaced = durable > *generation;
                if is_recorded || is_replaced {
                    executions.push(execution_id(&self.execution, *task, *generation));
                }
                !(is_recorded || is_replaced)
            });
            if !executions.is_empty() {
                let task_manager = task_manager.clone();
                let connection = Connection {
                    task_manager,
                    registration: known.registration,
                };
                acknowledged.push(Effect::Acknowledge {
                    connection,
                    executions,
                });
            }
        }
        self.effects.append(&mut acknowledged);
    }

    /// Gives back what idles and is more than the job needs. What a slot's tasks ended with is durable by then.
    fn free_idle_slots(&mut self, now_ms: u64) {
        let needed = self.execution.slots_needed().len();
        let surplus = self.pool.len().saturating_sub(needed);
        if surplus == 0 || self.is_stopping() || !self.is_durable {
            return;
        }
        let mut used: BTreeSet<AllocationId> = self.taken_slots().into_values().collect();
        used.append(&mut self.blocked_slots());
        for (task, at) in self.execution.tasks.iter().enumerate() {
            if let Some(place) = &at.execution.place
                && !self.durable_ends.contains_key(&task)
            {
                used.insert(place.allocation);
            }
        }
        let mut idle = self
            .pool
            .note_idle(&used, now_ms, self.options.slot_idle_timeout_ms);
        idle.truncate(surplus);
        let mut freed: BTreeMap<ResourceId, Vec<AllocationId>> = BTreeMap::new();
        for allocation in idle {
            if let Some(slot) = self.pool.remove(&allocation) {
                freed.entry(slot.task_manager).or_default().push(allocation);
            }
        }
        for (task_manager, allocations) in freed {
            if let Some(connection) = self.connection(&task_manager) {
                let cause = "the job doesn't need it".to_owned();
                self.effects.push(Effect::FreeSlots {
                    connection,
                    allocations,
                    cause,
                });
            }
        }
    }

    /// States what is needed when that has changed. A job that stops keeps what it has until its result is written.
    fn declare(&mut self) {
        let needed = if self.is_stopping() {
            let held = u32::try_from(self.pool.len()).unwrap_or(u32::MAX);
            self.declared.unwrap_or_default().min(held)
        } else {
            u32::try_from(self.execution.slots_needed().len()).unwrap_or(u32::MAX)
        };
        if self.declared != Some(needed) {
            self.declared = Some(needed);
            self.effects.push(Effect::Declare(needed));
        }
    }

    fn connection(&self, task_manager: &ResourceId) -> Option<Connection> {
        let registration = self.task_managers.get(task_manager)?.registration;
        Some(Connection {
            task_manager: task_manager.clone(),
            registration,
        })
    }

    /// When [`super::event::Event::TimePassed`] has something to change, in milliseconds since 1970. What was due at the
    /// last event is done or waits for another one (a write, an end of a task), so time alone does not help it.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        if self.result.is_some() {
            return None;
        }
        let options = &self.options;
        let mut deadlines = Vec::new();
        for region in &self.execution.regions {
            match region.phase {
                RegionPhase::Waiting { since_ms } => {
                    deadlines.push(since_ms.saturating_add(options.slot_request_timeout_ms));
                }
                RegionPhase::Stopping { restart_at_ms } => deadlines.extend(restart_at_ms),
                RegionPhase::Placed | RegionPhase::Deployed => {}
            }
        }
        for task in &self.execution.tasks {
            let execution = &task.execution;
            if execution.state == ExecutionState::Canceling {
                let since_ms = execution.canceling_since_ms;
                deadlines.push(since_ms.saturating_add(options.task_cancellation_timeout_ms));
            } else if execution.state == ExecutionState::Reconciling {
                deadlines.push(
                    self.started_at_ms
                        .saturating_add(options.reconcile_timeout_ms),
                );
            }
        }
        for stray in self
            .task_managers
            .values()
            .flat_map(|known| known.strays.values())
        {
            if stray.cancellation != Cancellation::NotAsked {
                let since_ms = stray.canceling_since_ms;
                deadlines.push(since_ms.saturating_add(options.task_cancellation_timeout_ms));
            }
        }
        if let Commit::RetryAt { at_ms, .. } = self.commit {
            deadlines.push(at_ms);
        }
        if self.pool.len() > self.execution.slots_needed().len() && !self.is_stopping() {
            let idle = self.pool.idle_since_ms();
            deadlines.extend(idle.map(|since| since.saturating_add(options.slot_idle_timeout_ms)));
        }
        deadlines.retain(|at_ms| *at_ms > self.settled_at_ms);
        deadlines.into_iter().min()
    }
}

fn is_placed_on(
    region: &pb::RegionState,
    id: &pb::ExecutionId,
    location: &pb::TaskManagerLocation,
) -> bool {
    region.placements.iter().any(|placement| {
        placement.vertex_id == id.vertex_id
            && placement.subtask == id.subtask
            && placement.location.as_ref().is_some_and(|placed| {
                placed.resource_id == location.resource_id
                    && placed.incarnation == location.incarnation
            })
    })
}

fn cancellation(id: pb::ExecutionId) -> pb::TaskCancellation {
    pb::TaskCancellation {
        vertex_id: id.vertex_id,
        subtask: id.subtask,
        up_to_generation: id.generation,
    }
}

fn status_name(status: pb::JobStatus) -> &'static str {
    status.as_str_name().trim_start_matches("JOB_STATUS_")
}
