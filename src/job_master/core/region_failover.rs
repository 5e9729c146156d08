//! Gives regions up: decides, after failures, which regions get their next generation and when, or that the job ends.
//!
//! A failure concerns a whole region: if one of its tasks restarts, the records that others have exchanged with it are
//! incomplete. A failure that no restart can fix fails the job under any restart strategy (`docs/adr/0021`). All
//! decisions go into the record, with the failure. A handler: `failover.rs` owns the open failures and the backoff.

use std::collections::BTreeSet;

use super::checkpointing::Checkpointing;
use super::coordinator::Coordinators;
use super::durable_record::DurableRecord;
use super::execution_graph::blocking::OfVertices;
use super::execution_graph::{ExecutionGraph, RegionPhase};
use super::failover::{Failover, Failure};
use super::job_events::JobEvents;
use super::output::Output;
use super::reconciling::Reconciliation;
use super::restart::Verdict;
use super::slots::Slots;
use super::stopped::{fail_stopped, would_lose_input};
use super::{LogLine, checkpoints};

/// Maximum number of failures of one event that are logged.
const LOGGED: usize = 16;

/// Borrows what the decisions about failures need.
pub(super) struct RegionFailover<'a> {
    pub(super) failover: &'a mut Failover,
    pub(super) graph: &'a mut ExecutionGraph,
    pub(super) record: &'a mut DurableRecord,
    pub(super) coordinators: &'a mut Coordinators,
    pub(super) checkpointing: &'a Checkpointing,
    pub(super) slots: &'a mut Slots,
    pub(super) reconciliation: &'a mut Reconciliation,
    pub(super) events: &'a mut JobEvents,
    pub(super) out: &'a mut Output,
    pub(super) turn: u64,
    pub(super) now_ms: u64,
}

impl RegionFailover<'_> {
    /// Decides about all failures of one event. They count as one failure for the restart strategy.
    pub(super) fn decide_failures(&mut self) {
        let (mut failures, mut others): (Vec<Failure>, Vec<Failure>) = Default::default();
        let mut known = BTreeSet::new();
        // If a region failed in several ways, the worst counts; it comes first.
        for failure in self.failover.take_failures() {
            let phase = self.graph.region(failure.region).phase;
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
        self.record.note_failures(&failures, others, self.now_ms);
        let (failures, uncounted): (Vec<Failure>, Vec<Failure>) =
            failures.into_iter().partition(|failure| failure.is_counted);
        let regions: Vec<usize> = uncounted.iter().map(|failure| failure.region).collect();
        self.log_failures(&uncounted, "region restarts");
        let Some(first) = failures.first() else {
            return self.restart(&regions, self.now_ms);
        };
        let (at_once, together) = match self.failover.restarts_together() {
            false => (regions, Vec::new()),
            // They restart together with the others.
            true => (Vec::new(), regions),
        };
        self.restart(&at_once, self.now_ms);
        let verdict = if first.is_unrecoverable {
            Verdict::GiveUp {
                reason: "that would not help".to_owned(),
            }
        } else {
            self.failover
                .count_failure(self.record, self.turn, self.now_ms)
        };
        let failed = failures.iter().map(|failure| failure.region);
        let regions: Vec<usize> = failed.chain(together).collect();
        self.log_failures(&failures, "region failed");
        match verdict {
            Verdict::Restart { at_ms } => self.restart(&regions, at_ms),
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

    /// Restarts regions that miss an execution after a change of the leader.
    pub(super) fn restart_missing(&mut self) {
        let mut missing = self.reconciliation.take_missing();
        missing.retain(|failure| {
            let phase = self.graph.region(failure.region).phase;
            phase == RegionPhase::Reconciling && !self.record.is_stopping()
        });
        self.record.note_failures(&missing, Vec::new(), self.now_ms);
        let mut regions = BTreeSet::new();
        missing.retain(|failure| regions.insert(failure.region));
        self.log_failures(&missing, "region can't be adopted");
        let regions: Vec<usize> = regions.into_iter().collect();
        self.restart(&regions, self.now_ms);
    }

    /// Restarts regions whose output is lost and which another region waits to read.
    pub(super) fn restart_lost(&mut self) {
        let has_changed = self.failover.take_new_reads(self.graph);
        if !self.graph.has_blocking_edges() || !has_changed {
            return;
        }
        // A restarted region may need outputs of others that were lost too. If the job was being stopped it
        // may fail instead, which ends the loop.
        while !self.record.is_stopping() {
            let mut lost: Vec<Failure> = Vec::new();
            for (task, cause) in self.graph.lost_and_needed() {
                let failure = Failure::of_task(self.graph, task, cause);
                if lost.last().is_none_or(|last| last.region != failure.region) {
                    lost.push(failure);
                }
            }
            if lost.is_empty() {
                return;
            }
            self.log_failures(&lost, "region runs again");
            let regions: Vec<usize> = lost.iter().map(|lost| lost.region).collect();
            self.note_lost(lost);
            self.restart(&regions, self.now_ms);
        }
    }

    /// Records lost outputs as failures of their own, or as consequences of a failure at the same moment: the
    /// loss of their TaskManager, or a restart that needs them again.
    fn note_lost(&mut self, lost: Vec<Failure>) {
        let root = self.record.decided().failures.last();
        match root.is_some_and(|root| root.at_ms == self.now_ms) {
            true => self.record.note_failures(&[], lost, self.now_ms),
            false => self.record.note_failures(&lost, Vec::new(), self.now_ms),
        }
    }

    /// Logs what happens to regions, one line for each failure.
    fn log_failures(&mut self, failures: &[Failure], what: &'static str) {
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
    pub(super) fn restart(&mut self, regions: &[usize], at_ms: u64) {
        let first: BTreeSet<usize> = regions.iter().copied().collect();
        if first.is_empty() {
            return;
        }
        let mut next = regions.to_vec();
        if self.failover.restarts_together() {
            next.extend(self.unfinished());
        }
        // `next` is a stack: the first region is handled first.
        next.reverse();
        let (mut given_up, mut added) = (BTreeSet::new(), OfVertices::default());
        while let Some(region) = next.pop() {
            let runs = match self.graph.region(region).phase {
                RegionPhase::Reconciling | RegionPhase::Placed | RegionPhase::Deployed => true,
                RegionPhase::AwaitingInput
                | RegionPhase::Waiting { .. }
                | RegionPhase::Stopping { .. } => first.contains(&region),
            };
            if !runs || !given_up.insert(region) {
                continue;
            }
            let goes_on = self.checkpointing.goes_on(region);
            if !goes_on && would_lose_input(self.record, self.graph, region) {
                fail_stopped(self.record);
                return;
            }
            // A reader must not mix the records of two runs of this region, nor keep output that it made of the first
            // run.
            self.graph.add_readers(region, &mut added, &mut next);
            if !self.checkpointing.may_go_on(region) {
                self.coordinators.add_doubted(region, self.graph, &mut next);
            }
            self.give_up(region, at_ms);
        }
        let number = u32::try_from(given_up.len()).unwrap_or(u32::MAX);
        let failure = self.record.decided().failures.last();
        let failure = failure.cloned().unwrap_or_default();
        self.events
            .add_restart(number, at_ms, &failure, self.now_ms);
    }

    /// Gives a region up, to be placed again at `at_ms` as the next generation.
    fn give_up(&mut self, region: usize, at_ms: u64) {
        let at = self.graph.region(region);
        if at.phase == RegionPhase::Reconciling {
            self.reconciliation.count_restarted(at.tasks.len());
        }
        let phase = RegionPhase::Stopping {
            restart_at_ms: Some(at_ms),
        };
        self.graph.set_phase(region, phase);
        self.give_up_generation(region, at_ms);
    }

    /// Records the next generation of a region, and marks everything to be examined that depends on the present one.
    pub(super) fn give_up_generation(&mut self, region: usize, at_ms: u64) {
        self.out.tell(checkpoints::Event::RegionFailed { region });
        self.record.give_up(region, at_ms, self.now_ms);
        let (coordinators, checkpointing) = (&mut self.coordinators, self.checkpointing);
        coordinators.forget(region, checkpointing, self.record, self.graph);
        for task in &self.graph.region(region).tasks {
            self.coordinators.recheck_requests(*task);
            self.slots.recheck_adopted(self.graph, *task);
        }
    }

    /// The regions that have not durably finished.
    fn unfinished(&self) -> impl Iterator<Item = usize> {
        let finished = |task: &usize| self.record.has_durably_finished(*task);
        let regions = self.graph.regions().iter().enumerate();
        regions
            .filter(move |(_, at)| !at.tasks.iter().all(finished))
            .map(|(region, _)| region)
    }
}
