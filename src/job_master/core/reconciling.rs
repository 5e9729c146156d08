//! Adopts: a recovered region continues unchanged if its TaskManagers still have all of its executions; otherwise it is
//! restarted.
//!
//! An execution is *awaited* (RECONCILING) until the TaskManager on which the record places it has registered. It is
//! there if that TaskManager reports it with the same generation, running or ended. Terminal states in the record need
//! no report. A region whose executions are all there is adopted: nothing is written or sent. A region that misses one
//! gets the next generation. The restart strategy does not count that as a failure, because the execution was lost with
//! the former leader or while there was none. The reported executions of such a region are stopped first; the awaited
//! ones are stopped when they are reported, or given up after the timeout.
//!
//! Invariants: no generation that an earlier term wrote is ever deployed. While anything is awaited, no
//! requirements are declared, no slot is given back, and no region fails for lack of slots.

use std::collections::BTreeSet;

use tanist_gateway::Adoption;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::durable_record::DurableRecord;
use super::execution_graph::{ExecutionGraph, RegionPhase};
use super::region_failover::RegionFailover;
use super::reports::Reports;
use super::result_partitions::ResultPartition;
use super::{Failure, JobMasterCore, LogLine, checkpoints};

/// Progress of the adoption.
#[derive(Debug)]
pub(super) struct Reconciliation {
    /// Time to wait, after a recovery, for a TaskManager that the record names.
    timeout_ms: u64,
    /// Start of the wait: when the first write of this JobMaster became durable. An earlier start would let a
    /// slow store use up the timeout.
    since_ms: Option<u64>,
    /// Executions found missing since the last event.
    missing: Vec<Failure>,
    /// Nothing is awaited any more, and nothing will be.
    is_over: bool,
    /// Whether anything was awaited after the last event.
    was_under_way: bool,
    adoption: Adoption,
}

impl Reconciliation {
    /// Nothing is awaited.
    pub(super) fn new(timeout_ms: u64) -> Reconciliation {
        Reconciliation {
            timeout_ms,
            since_ms: None,
            missing: Vec::new(),
            is_over: false,
            was_under_way: false,
            adoption: Adoption::default(),
        }
    }

    /// Notes that an execution which the record places can't be adopted.
    pub(super) fn report_missing(&mut self, graph: &ExecutionGraph, task: usize, cause: &str) {
        let cause = format!("not there after a change of the leader: {cause}");
        self.missing.push(Failure::of_task(graph, task, cause));
    }

    /// Whether an execution or output that the record places is still awaited. False for a job that has to
    /// end: it awaits executions only to stop them.
    pub(super) fn is_under_way(&self, graph: &ExecutionGraph, record: &DurableRecord) -> bool {
        !self.is_over && !record.is_stopping() && (is_any_awaited(graph) || graph.awaits_outputs())
    }

    /// Removes and returns the executions found missing since the last call.
    pub(super) fn take_missing(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.missing)
    }

    /// Starts the wait. Later calls change nothing.
    pub(super) fn begin(&mut self, now_ms: u64) {
        self.since_ms.get_or_insert(now_ms);
    }

    /// Until when TaskManagers that the record names may register.
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        Some(self.since_ms?.saturating_add(self.timeout_ms))
    }

    /// When the next wait for executions or outputs is over, if anything is awaited.
    pub(super) fn next_deadline_ms(&self, graph: &ExecutionGraph) -> Option<u64> {
        let is_any = is_any_awaited(graph) || !self.is_over && graph.awaits_outputs();
        self.deadline_ms().filter(|_| is_any)
    }

    /// Moves the start of the wait by the duration for which this process stood still.
    pub(super) fn put_off(&mut self, by_ms: u64) {
        if let Some(since_ms) = &mut self.since_ms {
            *since_ms = since_ms.saturating_add(by_ms);
        }
    }

    /// Counts tasks that restart instead of being adopted.
    pub(super) fn count_restarted(&mut self, tasks: usize) {
        let tasks = u32::try_from(tasks).unwrap_or(u32::MAX);
        self.adoption.tasks_restarted += tasks;
    }
}

impl JobMasterCore {
    /// See [`Reconciliation::is_under_way`].
    pub(super) fn is_reconciling(&self) -> bool {
        self.reconciliation.is_under_way(&self.graph, &self.record)
    }

    /// The result of the adoption; `None` while anything is awaited.
    pub fn adoption(&self) -> Option<Adoption> {
        let is_open = !self.end.has_ended() && self.is_reconciling();
        (!is_open).then_some(self.reconciliation.adoption)
    }

    /// Logs the awaited TaskManagers.
    pub(super) fn announce_reconciliation(&mut self) {
        let awaited = self.graph.tasks().iter().filter(|task| {
            let is_awaited = task.execution.state == ExecutionState::Reconciling
                || task.execution.output == ResultPartition::Awaited;
            is_awaited && !self.record.is_stopping()
        });
        let places: Vec<_> = awaited
            .filter_map(|task| task.execution.place.as_ref())
            .collect();
        if places.is_empty() {
            return;
        }
        let ids: BTreeSet<&ResourceId> = places.iter().map(|place| &place.task_manager).collect();
        self.out.log(LogLine::TasksAwaited {
            tasks: places.len(),
            task_managers: ids.len(),
            first: ids.first().copied().cloned(),
        });
        self.reconciliation.was_under_way = true;
    }

    /// Moves all deadlines by the duration for which this process stood still.
    pub fn put_off_deadlines(&mut self, by_ms: u64) {
        self.reconciliation.put_off(by_ms);
        self.graph.put_off(by_ms);
        self.slots.put_off(by_ms);
        self.task_managers.put_off(by_ms);
    }
}

impl RegionFailover<'_> {
    /// Adopts regions whose executions were all reported. With the last one the timeout of the wait for slots
    /// begins.
    pub(super) fn adopt_regions(&mut self) {
        if self.record.is_stopping() {
            return self.note_under_way();
        }
        for region in self.graph.take_newly_reconciled() {
            let is_awaited = self.graph.indexes().regions[region].awaited > 0;
            if is_awaited || self.graph.region(region).phase != RegionPhase::Reconciling {
                continue;
            }
            let executions = self
                .graph
                .region(region)
                .tasks
                .iter()
                .map(|task| self.graph.execution(*task));
            // Executions whose terminal state was in the record were not reported.
            let adopted = executions.filter(|execution| execution.known_since.is_some());
            let adopted = u32::try_from(adopted.count()).unwrap_or(u32::MAX);
            self.slots.forget_former(&self.graph.region(region).slots);
            self.graph.set_phase(region, RegionPhase::Deployed);
            self.out.tell(checkpoints::Event::RegionAdopted { region });
            let adoption = &mut self.reconciliation.adoption;
            adoption.tasks_adopted += adopted;
            adoption.first_adopted_at_ms.get_or_insert(self.now_ms);
            adoption.last_adopted_at_ms = Some(self.now_ms);
        }
        self.note_under_way();
    }

    /// Notes whether anything is still awaited.
    fn note_under_way(&mut self) {
        let is_under_way = self.reconciliation.is_under_way(self.graph, self.record);
        // Only a recovery awaits anything.
        self.reconciliation.is_over |= !is_under_way && !self.record.is_stopping();
        if std::mem::replace(&mut self.reconciliation.was_under_way, is_under_way) && !is_under_way
        {
            let Adoption {
                tasks_adopted,
                tasks_restarted,
                ..
            } = self.reconciliation.adoption;
            self.out.log(LogLine::Reconciled {
                tasks_adopted,
                tasks_restarted,
            });
            let text = format!("{tasks_adopted} tasks go on, {tasks_restarted} restart");
            let kind = pb::JobEventKind::Adoption;
            self.events.add(kind, text, self.now_ms);
            for region in self.graph.waiting().clone() {
                let phase = RegionPhase::Waiting {
                    since_ms: self.now_ms,
                };
                self.graph.set_phase(region, phase);
            }
        }
    }
}

impl Reports<'_> {
    /// Gives up awaited executions and outputs after the timeout.
    pub(super) fn give_up_awaited_overdue(&mut self) {
        let is_any = is_any_awaited(self.graph) || self.graph.awaits_outputs();
        let deadline_ms = self.reconciliation.deadline_ms().filter(|_| is_any);
        if deadline_ms.is_none_or(|at_ms| self.now_ms < at_ms) {
            return;
        }
        let timeout_ms = self.options.reconcile_timeout_ms;
        let cause = format!("its TaskManager did not come back within {timeout_ms} ms");
        let all = (0..self.graph.tasks().len()).collect::<Vec<_>>();
        self.give_up_awaited(&all, &cause);
        self.graph
            .lose_outputs(all, |output| *output == ResultPartition::Awaited, &cause);
    }

    /// Gives up the awaited executions of a TaskManager incarnation that is known to be gone. If it has
    /// registered, its heartbeats decide.
    pub(super) fn give_up_awaited_on(&mut self, gone: &ResourceId, incarnation: &str) {
        if self.task_managers.is_registered(gone) {
            return;
        }
        let is_there = |task: &usize| {
            let place = self.graph.execution(*task).place.as_ref();
            place.is_some_and(|place| place.location.incarnation == incarnation)
        };
        let mut there = self.graph.tasks_on(gone);
        there.retain(is_there);
        let cause = "its TaskManager is gone";
        self.give_up_awaited(&there, cause);
        self.graph.lose_outputs(there, |_| true, cause);
    }

    /// Marks the awaited ones of these tasks as missing.
    fn give_up_awaited(&mut self, tasks: &[usize], cause: &str) {
        for task in tasks.iter().copied() {
            let execution = self.graph.execution(task);
            if execution.state == ExecutionState::Reconciling && execution.place.is_some() {
                self.graph.doubt_end(task);
                self.note_gone(task, cause);
            }
        }
    }
}

/// Whether an execution is awaited, even if only to be stopped.
fn is_any_awaited(graph: &ExecutionGraph) -> bool {
    graph.count(ExecutionState::Reconciling) > 0
}
