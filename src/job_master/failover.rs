//! The part of the core that decides what follows a failure: a restart, of which regions and when, or the end of the job.
//!
//! A failure is a region's: nobody takes what one of its tasks has sent once another one starts anew. What no restart mends fails the
//! job, whatever its restart strategy says (`docs/adr/0021`). All decisions go into `record`, with the failure.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tanist_proto::id::Generation;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::core::{Failure, JobMasterCore};
use super::execution::Execution;
use super::execution_graph::RegionPhase;
use super::restart::Verdict;

/// Which regions start anew after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailoverStrategy {
    /// That of the task that failed, and those that read from it.
    #[default]
    Region,
    /// All that are placed and have not durably finished.
    Full,
}

impl JobMasterCore {
    /// All that failed at one event is one failure for the restart strategy.
    pub(super) fn judge_failures(&mut self, now_ms: u64) {
        let (mut failures, mut others): (Vec<Failure>, Vec<Failure>) = Default::default();
        let mut all = std::mem::take(&mut self.failures);
        // Of a region that failed in several ways the worst counts.
        all.sort_by_key(|failure| (!failure.is_unrecoverable, !failure.is_counted));
        for failure in all {
            let phase = self.execution.regions[failure.region].phase;
            let is_stopping = matches!(phase, RegionPhase::Stopping { .. });
            let is_known = is_stopping && !failure.is_unrecoverable
                || failures.iter().any(|other| other.region == failure.region);
            match is_known {
                true => others.push(failure),
                false => failures.push(failure),
            }
        }
        if self.is_stopping() {
            others.append(&mut failures);
        }
        self.note_failures(&failures, others, now_ms);
        let (failures, uncounted): (Vec<Failure>, Vec<Failure>) =
            failures.into_iter().partition(|failure| failure.is_counted);
        for failure in uncounted {
            tracing::info!(
                job = self.record.job_id,
                task = failure.task,
                cause = failure.cause,
                "region starts anew"
            );
            self.restart_region(failure.region, now_ms);
        }
        let Some(first) = failures.first().cloned() else {
            return;
        };
        let verdict = if first.is_unrecoverable {
            Verdict::GiveUp {
                reason: "that would not help".to_owned(),
            }
        } else {
            let seed = self.options.seed.wrapping_add(self.turn);
            let random = StdRng::seed_from_u64(seed).random::<f64>();
            let counters = Arc::make_mut(&mut self.record)
                .restarts
                .get_or_insert_default();
            self.backoff.judge(counters, now_ms, random)
        };
        self.revision += 1;
        for failure in &failures {
            tracing::warn!(
                job = self.record.job_id,
                task = failure.task,
                task_manager = failure.resource_id,
                cause = failure.cause,
                "region failed"
            );
        }
        match verdict {
            Verdict::Restart { at_ms } => {
                for failure in failures {
                    self.restart_region(failure.region, at_ms);
                }
            }
            Verdict::GiveUp { reason } => {
                let of_task = if first.task.is_empty() {
                    String::new()
                } else {
                    format!("{}: ", first.task)
                };
                Arc::make_mut(&mut self.record).fatal_cause =
                    format!("{of_task}{} (not restarted: {reason})", first.cause);
            }
        }
    }

    /// The region gets the next generation, to be placed at a time when all of the present one has ended; and so does
    /// every one that reads from it, or by the strategy all that have not finished for good.
    pub(super) fn restart_region(&mut self, region: usize, at_ms: u64) {
        let mut next = vec![region];
        if self.options.failover_strategy == FailoverStrategy::Full {
            next.extend(self.unfinished().filter(|other| *other != region));
        }
        let (mut is_first, mut regions) = (true, 0);
        // The first one is the last that others are added to.
        next.reverse();
        while let Some(region) = next.pop() {
            let at = &self.execution.regions[region];
            let runs = match at.phase {
                RegionPhase::Reconciling | RegionPhase::Placed | RegionPhase::Deployed => true,
                RegionPhase::AwaitingInput
                | RegionPhase::Waiting { .. }
                | RegionPhase::Stopping { .. } => false,
            };
            if !runs && !is_first {
                continue;
            }
            is_first = false;
            if self.would_lose_input(region) {
                self.give_up_stopped();
                return;
            }
            // Nobody mixes the records of two runs, also not with what it made of the first.
            next.extend(&self.execution.regions[region].readers);
            self.give_up_generation(region, at_ms);
            regions += 1;
        }
        self.tell_restart(regions, at_ms);
    }

    fn give_up_generation(&mut self, region: usize, at_ms: u64) {
        let at = &mut self.execution.regions[region];
        if at.phase == RegionPhase::Reconciling {
            let tasks = u32::try_from(at.tasks.len()).unwrap_or(u32::MAX);
            self.reconciliation.adoption.tasks_restarted += tasks;
        }
        at.phase = RegionPhase::Stopping {
            restart_at_ms: Some(at_ms),
        };
        self.supersede(region);
    }

    /// The next generation of a region: neither placed nor deployed. The present one is given up once this is durable.
    pub(super) fn supersede(&mut self, region: usize) {
        self.forget_coordinators(region);
        let record = Arc::make_mut(&mut self.record);
        let state = &mut record.regions[region];
        *state = pb::RegionState {
            generation: state.generation + 1,
            epoch: self.epoch.get(),
            placements: Vec::new(),
            placed_at_ms: 0,
        };
        let execution = &self.execution;
        record.terminal.retain(|end| {
            execution
                .find(&end.vertex_id, end.subtask)
                .is_some_and(|task| execution.tasks[task].region != region)
        });
        self.revision += 1;
    }

    /// New executions of the generation that the record has.
    pub(super) fn renew_executions(&mut self, region: usize) {
        let generation = Generation::new(self.record.regions[region].generation);
        for task in self.execution.regions[region].tasks.clone() {
            let mut execution = Execution::created(generation);
            execution.note_entered(ExecutionState::Created, self.settled_at_ms);
            self.execution.replace(task, execution);
        }
        self.forget_given_up(region);
    }

    /// The regions that have not durably finished.
    fn unfinished(&self) -> impl Iterator<Item = usize> {
        let finished =
            |task: &usize| self.durable_ends.get(task) == Some(&ExecutionState::Finished);
        let regions = self.execution.regions.iter().enumerate();
        regions
            .filter(move |(_, at)| !at.tasks.iter().all(finished))
            .map(|(region, _)| region)
    }
}
