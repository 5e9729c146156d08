//! The part of the core that decides about failures: which regions restart and when, or that the job ends.
//!
//! A failure concerns a region: once one of its tasks restarts, the records that another one has sent are of
//! no use. A failure that no restart can fix fails the job under any restart strategy (`docs/adr/0021`). All
//! decisions go into `record`, with the failure.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tanist_proto::id::{Generation, ResourceId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::blocking::OfVertices;
use super::deployment::execution_id;
use super::durable_effects::cancellation;
use super::execution::Execution;
use super::execution_graph::RegionPhase;
use super::restart::Verdict;
use super::stopped::{fail_stopped, would_lose_input};
use super::{Effect, Failure, JobMasterCore, LogLine};

/// Which regions restart after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailoverStrategy {
    /// The region of the failed task, and the regions that read from it.
    #[default]
    Region,
    /// All that are placed and have not durably finished.
    Full,
}

/// Maximum number of failures of one event that are logged.
const LOGGED: usize = 16;

impl JobMasterCore {
    /// Whether restarting regions wait for each other.
    pub(super) fn begins_together(&self) -> bool {
        self.options.failover_strategy == FailoverStrategy::Full
    }

    /// Decides about all failures of one event. They count as one failure for the restart strategy.
    pub(super) fn judge_failures(&mut self, now_ms: u64) {
        let (mut failures, mut others): (Vec<Failure>, Vec<Failure>) = Default::default();
        let mut all = std::mem::take(&mut self.failures);
        // If a region failed in several ways, the worst counts.
        all.sort_by_key(|failure| (!failure.is_unrecoverable, !failure.is_counted));
        let mut known = BTreeSet::new();
        for failure in all {
            let phase = self.execution.regions[failure.region].phase;
            let is_stopping = matches!(phase, RegionPhase::Stopping { .. });
            let is_known = is_stopping && !failure.is_unrecoverable;
            match is_known || !known.insert(failure.region) {
                true => others.push(failure),
                false => failures.push(failure),
            }
        }
        if self.record.is_stopping() {
            others.append(&mut failures);
        }
        self.record.note_failures(&failures, others, now_ms);
        let (failures, uncounted): (Vec<Failure>, Vec<Failure>) =
            failures.into_iter().partition(|failure| failure.is_counted);
        let regions: Vec<usize> = uncounted.iter().map(|failure| failure.region).collect();
        self.log_failures(&uncounted, "region restarts");
        let Some(first) = failures.first().cloned() else {
            return self.restart_all(&regions, now_ms);
        };
        let (at_once, together) = match self.options.failover_strategy {
            FailoverStrategy::Region => (regions, Vec::new()),
            // They restart together with the others.
            FailoverStrategy::Full => (Vec::new(), regions),
        };
        self.restart_all(&at_once, now_ms);
        let verdict = if first.is_unrecoverable {
            Verdict::GiveUp {
                reason: "that would not help".to_owned(),
            }
        } else {
            let seed = self.options.seed.wrapping_add(self.turn);
            let random = StdRng::seed_from_u64(seed).random::<f64>();
            let mut counters = self.record.restart_counters();
            let verdict = self.backoff.judge(&mut counters, now_ms, random);
            self.record.count_failure(counters);
            verdict
        };
        let failed = failures.iter().map(|failure| failure.region);
        let regions: Vec<usize> = failed.chain(together).collect();
        self.log_failures(&failures, "region failed");
        match verdict {
            Verdict::Restart { at_ms } => self.restart_all(&regions, at_ms),
            Verdict::GiveUp { reason } => {
                let of_task = if first.task.is_empty() {
                    String::new()
                } else {
                    format!("{}: ", first.task)
                };
                let cause = format!("{of_task}{} (not restarted: {reason})", first.cause);
                self.record.fail(cause);
            }
        }
    }

    /// Logs what happens to regions, one line for each failure.
    pub(super) fn log_failures(&mut self, failures: &[Failure], what: &'static str) {
        for failure in failures.iter().take(LOGGED) {
            self.out.log(LogLine::RegionFailed {
                what,
                task: failure.task.clone(),
                task_manager: failure.resource_id.clone(),
                cause: failure.cause.clone(),
                of: failures.len(),
            });
        }
    }

    /// Gives these regions their next generation, to be placed at `at_ms` or when the present one has ended,
    /// if that is later. So do all regions that read from them, or, with the `Full` strategy, all that have
    /// not durably finished.
    pub(super) fn restart_all(&mut self, regions: &[usize], at_ms: u64) {
        let first: BTreeSet<usize> = regions.iter().copied().collect();
        if first.is_empty() {
            return;
        }
        let mut next = regions.to_vec();
        if self.begins_together() {
            next.extend(self.unfinished());
        }
        // `next` is a stack: the first region is handled first.
        next.reverse();
        let (mut given_up, mut added) = (BTreeSet::new(), OfVertices::default());
        while let Some(region) = next.pop() {
            let runs = match self.execution.regions[region].phase {
                RegionPhase::Reconciling | RegionPhase::Placed | RegionPhase::Deployed => true,
                RegionPhase::AwaitingInput
                | RegionPhase::Waiting { .. }
                | RegionPhase::Stopping { .. } => first.contains(&region),
            };
            if !runs || !given_up.insert(region) {
                continue;
            }
            if would_lose_input(&self.record, &self.execution, region) {
                fail_stopped(&mut self.record);
                return;
            }
            // A reader must not mix records of two runs, nor output that it made of the first one.
            self.execution.add_readers(region, &mut added, &mut next);
            self.coordinators
                .add_doubted(region, &self.execution, &mut next);
            self.give_up(region, at_ms);
        }
        let number = u32::try_from(given_up.len()).unwrap_or(u32::MAX);
        self.tell_restart(number, at_ms);
    }

    /// Gives a region up, to be placed again at `at_ms` as the next generation.
    fn give_up(&mut self, region: usize, at_ms: u64) {
        let at = &self.execution.regions[region];
        if at.phase == RegionPhase::Reconciling {
            let tasks = u32::try_from(at.tasks.len()).unwrap_or(u32::MAX);
            self.reconciliation.adoption.tasks_restarted += tasks;
        }
        let phase = RegionPhase::Stopping {
            restart_at_ms: Some(at_ms),
        };
        self.execution.set_phase(region, phase);
        self.give_up_generation(region, at_ms);
    }

    /// Records the next generation of a region, and has everything examined that rests on the present one.
    pub(super) fn give_up_generation(&mut self, region: usize, at_ms: u64) {
        self.record.give_up(region, at_ms, self.decided_at_ms);
        self.coordinators
            .forget(region, &mut self.record, &self.execution);
        for task in self.execution.regions[region].tasks.clone() {
            self.coordinators.recheck_requests(task);
            self.doubt_adopted_slot(task);
        }
    }

    /// Creates executions of the generation in the record. They prefer the slots of the former ones. Former
    /// executions that ended by themselves may have left records on their TaskManager that no task will take;
    /// those are released.
    pub(super) fn renew_executions(&mut self, region: usize) {
        let generation = Generation::new(self.record.decided().regions[region].generation);
        let at_ms = self.created_at_ms(generation);
        let mut left: BTreeMap<ResourceId, Vec<pb::TaskCancellation>> = BTreeMap::new();
        for task in self.execution.regions[region].tasks.clone() {
            let mut execution = Execution::created(generation);
            execution.note_entered(ExecutionState::Created, at_ms);
            let former = self.execution.replace(task, execution);
            if let Some(place) = former.place {
                if matches!(
                    former.state,
                    ExecutionState::Finished | ExecutionState::Failed
                ) {
                    let id = execution_id(&self.execution, task, former.generation.get());
                    let there = left.entry(place.task_manager.clone()).or_default();
                    there.push(cancellation(id));
                }
                if !self.record.has_durable_end(task) {
                    self.pool.end_use(place.allocation);
                }
                let key = self.execution.slot_key(task);
                self.pool
                    .remember(key, place.task_manager, place.allocation);
            }
        }
        self.forget_given_up(region);
        for (task_manager, tasks) in left {
            if let Some(connection) = self.task_managers.connection(&task_manager) {
                self.out.push(Effect::Cancel { connection, tasks });
            }
        }
    }

    /// When executions of a generation that are made at present were CREATED. Those of a region that was
    /// never placed exist since the job's submission, under any leader.
    fn created_at_ms(&self, generation: Generation) -> u64 {
        let mut entered = self.record.decided().statuses.iter();
        let created = entered.find(|it| it.status() == pb::JobStatus::Created);
        match created {
            Some(created) if generation.get() == 0 => created.at_ms,
            Some(_) | None => self.decided_at_ms,
        }
    }

    /// The regions that have not durably finished.
    fn unfinished(&self) -> impl Iterator<Item = usize> {
        let finished = |task: &usize| self.record.has_durably_finished(*task);
        let regions = self.execution.regions.iter().enumerate();
        regions
            .filter(move |(_, at)| !at.tasks.iter().all(finished))
            .map(|(region, _)| region)
    }
}
