//! Failures of one job, and what restarts have to wait for: the restart strategy's backoff, and the isolation of
//! attempts (`isolation: stop-first`, `docs/adr/0020`).
//!
//! `region_failover.rs` decides which regions are given up, `region_restart.rs` when they run again. A given-up
//! generation of an isolated job counts as ended when the ends of all its executions were reported, or when enough
//! time has passed since the give-up was durable for every TaskManager to have stopped them by itself. Invariant:
//! before that, no execution of the next generation is placed. Reports to an earlier JobMaster are lost: after a
//! change of the leader the whole time passes.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tanist_proto::v1 as pb;

use super::durable_record::DurableRecord;
use super::execution_graph::ExecutionGraph;
use super::output::Output;
use super::restart::{RestartBackoff, RestartStrategy, Verdict};
use super::{CoreOptions, LogLine};

/// Which regions restart after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailoverStrategy {
    /// The region of the failed task, and the regions that read from it.
    #[default]
    Region,
    /// All that are placed and have not durably finished.
    Full,
}

/// A task failed, or could not be placed.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) region: usize,
    pub(super) cause: String,
    pub(super) task: String,
    pub(super) host: String,
    pub(super) resource_id: String,
    /// Whether the restart strategy counts it.
    pub(super) is_counted: bool,
    /// Whether a restart can't help.
    pub(super) is_unrecoverable: bool,
    /// Whether the task only lost another one: the cause is another failure, if there is one.
    pub(super) is_consequence: bool,
}

impl Failure {
    /// A failure of a region in which no task failed: it could not be placed.
    pub(super) fn of_region(region: usize, cause: String) -> Failure {
        let (task, host, resource_id) = Default::default();
        Failure {
            region,
            cause,
            task,
            host,
            resource_id,
            is_counted: true,
            is_unrecoverable: false,
            is_consequence: false,
        }
    }

    /// A failure of a task, with its TaskManager.
    pub(super) fn of_task(graph: &ExecutionGraph, task: usize, cause: String) -> Failure {
        let place = graph.execution(task).place.as_ref();
        let host = place.map(|place| place.location.rpc_address.clone());
        let resource_id = place.map(|place| place.task_manager.to_string());
        Failure {
            task: graph.task_name(task),
            host: host.unwrap_or_default(),
            resource_id: resource_id.unwrap_or_default(),
            ..Failure::of_region(graph.task(task).region, cause)
        }
    }
}

/// Failures and restarts of one job; see the module.
#[derive(Debug)]
pub(super) struct Failover {
    strategy: FailoverStrategy,
    /// Whether no two attempts of a subtask may run at the same time.
    is_stop_first: bool,
    /// Seed of the jitter.
    seed: u64,
    backoff: RestartBackoff,
    /// Failures that nothing was decided about yet.
    failures: Vec<Failure>,
    /// (until ms, region): a region that was given up is not placed before that time.
    held_until: BTreeSet<(u64, usize)>,
    /// The time up to which regions with an ended backoff were collected.
    collected_ms: u64,
    /// The version of the graph's reads at which outputs were checked for being lost.
    checked_reads: u64,
}

impl Failover {
    /// The state of a job without failures.
    pub(super) fn new(
        strategy: RestartStrategy,
        options: &CoreOptions,
        is_stop_first: bool,
    ) -> Failover {
        Failover {
            strategy: options.failover_strategy,
            is_stop_first,
            seed: options.seed,
            backoff: RestartBackoff::new(strategy),
            failures: Vec::new(),
            held_until: BTreeSet::new(),
            collected_ms: 0,
            checked_reads: 0,
        }
    }

    /// Whether restarting regions wait for each other.
    pub(super) fn restarts_together(&self) -> bool {
        self.strategy == FailoverStrategy::Full
    }

    /// Whether no two attempts of a subtask may run at the same time.
    pub(super) fn is_stop_first(&self) -> bool {
        self.is_stop_first
    }

    /// Notes a failure. The next decision is about all that were noted.
    pub(super) fn report(&mut self, failure: Failure) {
        self.failures.push(failure);
    }

    /// Removes and returns the noted failures, the worst first, and causes before consequences.
    pub(super) fn take_failures(&mut self) -> Vec<Failure> {
        let mut failures = std::mem::take(&mut self.failures);
        failures.sort_by_key(|failure| {
            let is_counted = failure.is_counted;
            (
                !failure.is_unrecoverable,
                !is_counted,
                failure.is_consequence,
            )
        });
        failures
    }

    /// Asks the restart strategy. `turn` makes the jitter differ between decisions.
    pub(super) fn count_failure(
        &mut self,
        record: &mut DurableRecord,
        turn: u64,
        now_ms: u64,
    ) -> Verdict {
        let random = StdRng::seed_from_u64(self.seed.wrapping_add(turn)).random::<f64>();
        let mut counters = record.restart_counters();
        let verdict = self.backoff.count_failure(&mut counters, now_ms, random);
        record.count_failure(counters);
        verdict
    }

    /// Takes over a restart that an earlier leader decided for this time.
    pub(super) fn resume(&mut self, restart_at_ms: u64) {
        self.backoff.resume(restart_at_ms);
    }

    /// Whether anything has changed for readers of outputs since the last call.
    pub(super) fn take_new_reads(&mut self, graph: &ExecutionGraph) -> bool {
        let reads = graph.reads();
        std::mem::replace(&mut self.checked_reads, reads) != reads
    }

    /// Until when a given-up region is not placed again because its executions may still run. None: none
    /// does, or the give-up is not durable yet.
    pub(super) fn held_until_ms(
        &self,
        region: usize,
        graph: &ExecutionGraph,
        record: &DurableRecord,
    ) -> Option<u64> {
        let since_ms = graph.region(region).given_up_at_ms?;
        let is_held = graph.region(region).is_end_unknown && self.is_stop_first;
        is_held.then(|| since_ms.saturating_add(record.decided().stop_first_wait_ms))
    }

    /// Notes that the give-up of a region is durable. Returns whether it can't be placed again yet.
    pub(super) fn hold(
        &mut self,
        region: usize,
        graph: &mut ExecutionGraph,
        record: &DurableRecord,
        now_ms: u64,
        out: &mut Output,
    ) -> bool {
        let is_first = graph.note_given_up(region, now_ms);
        let Some(until_ms) = self.held_until_ms(region, graph, record) else {
            return false;
        };
        if is_first {
            let wait_ms = until_ms.saturating_sub(now_ms);
            out.log(LogLine::RegionHeld { wait_ms });
        }
        let is_held = now_ms < until_ms;
        if is_held {
            self.held_until.insert((until_ms, region));
        }
        is_held
    }

    /// The next time at which a region is not held any more.
    pub(super) fn next_hold_ms(&self) -> Option<u64> {
        self.held_until.first().map(|(until_ms, _)| *until_ms)
    }

    /// The regions whose backoff or hold has ended since the last call.
    pub(super) fn take_due(&mut self, graph: &ExecutionGraph, now_ms: u64) -> Vec<usize> {
        let before_ms = std::mem::replace(&mut self.collected_ms, now_ms);
        let mut due = Vec::new();
        if before_ms < now_ms {
            due.extend(graph.restarts_due(before_ms, now_ms));
        }
        let held = self.held_until.split_off(&(now_ms.saturating_add(1), 0));
        let released = std::mem::replace(&mut self.held_until, held);
        due.extend(released.into_iter().map(|(_, region)| region));
        due
    }
}

/// Whether no two attempts of a subtask of this graph may run at the same time.
pub(super) fn is_stop_first(graph: &pb::JobGraph) -> bool {
    let options = graph.options.as_ref();
    options.is_some_and(|options| options.isolation() == pb::Isolation::StopFirst)
}
