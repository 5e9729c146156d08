//! The simulated world: a store, TaskManagers, and the core of the present term. Each of its effects is
//! checked.

use std::collections::{BTreeMap, BTreeSet};

use tanist_ha::election::Epoch;
use tanist_model::MAX_REGIONS;
use tanist_model::resources::slot_profile;
use tanist_proto::id::AllocationId;
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use super::checkpoints::Checkpoints;
use super::coordinators::{Asking, assert_decisions_stay, assert_prepared, coordinate_first};
use super::drains::{Drains, RegionsBefore};
use super::invariants::{
    all_finished, assert_persisted_placement, finished_regions, has_been_read, is_recorded,
    region_of,
};
use super::model::{States, states_of};
use super::stops::Stopping;
use super::task_manager::{TaskKey, TaskManager, complete_inputs};
use crate::core::checkpoints as saved;
use crate::core::execution_graph::ExecutionGraph;
use crate::core::failover::FailoverStrategy;
use crate::core::restart::RestartStrategy;
use crate::core::tests::testing::{graph_of, submitted};
use crate::core::{CancelAnswer, Connection, CoreOptions, Effect, Event, JobMasterCore};

/// Number of times that each wanted situation occurred in a case.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reached {
    /// Refused deployments, cancellations and other requests of a former term or registration.
    pub(super) stale_refused: u32,
    /// Regions that ran completely when their leader died.
    pub(super) healthy: u32,
    pub(super) adopted: u32,
    pub(super) restarted: u32,
    /// Reports of attempts before the present one.
    pub(super) older_heard: u32,
    /// Requests to coordinators that were answered, repeated ones that were answered, and refused ones.
    pub(super) given: u32,
    pub(super) given_again: u32,
    pub(super) not_served: u32,
    /// Failures that no restart can fix, received by a job that was not about to end.
    pub(super) failed_for_good: u32,
    /// Stopped jobs that have finished, and those that have failed.
    pub(super) stopped_finished: u32,
    pub(super) stopped_failed: u32,
    /// Regions that restarted to leave drained TaskManagers.
    pub(super) moved: u32,
}

impl Reached {
    pub(super) fn add(&mut self, other: &Reached) {
        self.stale_refused += other.stale_refused;
        self.healthy += other.healthy;
        self.adopted += other.adopted;
        self.restarted += other.restarted;
        self.older_heard += other.older_heard;
        self.given += other.given;
        self.given_again += other.given_again;
        self.not_served += other.not_served;
        self.failed_for_good += other.failed_for_good;
        self.stopped_finished += other.stopped_finished;
        self.stopped_failed += other.stopped_failed;
        self.moved += other.moved;
    }
}

/// Timeout for TaskManagers of the record after a recovery.
pub(super) const RECONCILE_TIMEOUT_MS: u64 = 5_000;

/// A request in flight to a TaskManager, sent by a term.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) epoch: u64,
    pub(super) connection: Connection,
    pub(super) call: Call,
}

#[derive(Debug, Clone)]
pub(super) enum Call {
    /// The tasks, and whether the job is being stopped.
    Submit(Vec<pb::TaskDeployment>, bool),
    Cancel(Vec<pb::TaskCancellation>),
    Acknowledge(Vec<pb::ExecutionId>),
    Free(Vec<AllocationId>),
    /// The step of the core in which it was sent, and whether the job is being stopped.
    Heartbeat(u64, bool),
    /// What the checkpoints ask of executions.
    Checkpoint(saved::Effect),
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) graph: pb::JobGraph,
    /// Its vertices and regions.
    pub(super) built: ExecutionGraph,
    /// The numbers of the blocking edges.
    pub(super) blocking: BTreeSet<u32>,
    /// Whether all subtasks of a vertex are in one region, because there would be too many regions otherwise.
    pub(super) is_whole: bool,
    pub(super) strategy: RestartStrategy,
    pub(super) failover: FailoverStrategy,
    pub(super) now_ms: u64,
    pub(super) epoch: u64,
    pub(super) core: Option<JobMasterCore>,
    pub(super) stored: pb::JobState,
    pub(super) write: Option<(u64, pb::JobState)>,
    pub(super) committing_since_ms: Option<u64>,
    pub(super) task_managers: Vec<TaskManager>,
    pub(super) requests: Vec<Request>,
    /// All requests that were sent, whether they arrived or not.
    pub(super) sent: Vec<Request>,
    pub(super) events: Vec<(u64, Event)>,
    pub(super) next_allocation: u128,
    pub(super) deployed: BTreeSet<(TaskKey, u64)>,
    /// The declared maximum by profile.
    pub(super) declared: Vec<(ResourceProfile, u32)>,
    /// The declared minimum by profile.
    pub(super) at_once: Vec<(ResourceProfile, u32)>,
    pub(super) sinks_committed: bool,
    /// A commit has exceeded its timeout, so the job may be cancelled during it.
    pub(super) sinks_hung: bool,
    /// A commit has failed: from then on the job may be cancelled until one succeeds.
    pub(super) sinks_failed: bool,
    pub(super) cancel_is_acknowledged: bool,
    pub(super) result: Option<pb::JobResult>,
    /// Regions that ran completely at the start of the term and have lost nothing since, with their
    /// generations.
    pub(super) healthy: BTreeMap<usize, u64>,
    pub(super) term_began_ms: u64,
    pub(super) asking: Asking,
    pub(super) stopping: Stopping,
    pub(super) drains: Drains,
    /// None: the job takes no checkpoints.
    pub(super) checkpoints: Option<Box<Checkpoints>>,
    pub(super) reached: Reached,
}

impl World {
    pub(super) fn new(
        vertices: &[(&str, u32)],
        edges: &[(usize, usize)],
        blocking: &[usize],
        strategy: RestartStrategy,
    ) -> World {
        let mut graph = graph_of(vertices, edges);
        for edge in blocking {
            graph.edges[*edge].set_exchange(pb::Exchange::Blocking);
        }
        World::of_graph(graph, strategy)
    }

    pub(super) fn of_graph(graph: pb::JobGraph, strategy: RestartStrategy) -> World {
        let state = submitted(&graph);
        World::with_slots(graph, state, strategy, [3, 3, 3])
    }

    /// It is allowed no more regions than sets of vertices.
    pub(super) fn of_whole_vertices(graph: pb::JobGraph, strategy: RestartStrategy) -> World {
        let state = submitted(&graph);
        World::with_regions(graph, state, strategy, [3, 3, 3], true)
    }

    /// A world whose TaskManagers together have exactly the slots that the largest region needs.
    pub(super) fn with_few_slots(graph: pb::JobGraph, strategy: RestartStrategy) -> World {
        let built = ExecutionGraph::build(&graph, MAX_REGIONS).expect("valid");
        let largest = built
            .regions()
            .iter()
            .map(|region| region.slots.len())
            .max();
        let largest = largest.expect("a graph has a region");
        let state = submitted(&graph);
        let slots = [0, 1, 2].map(|it| (largest + it) / 3);
        World::with_slots(graph, state, strategy, slots)
    }

    fn with_slots(
        graph: pb::JobGraph,
        stored: pb::JobState,
        strategy: RestartStrategy,
        slots: [usize; 3],
    ) -> World {
        World::with_regions(graph, stored, strategy, slots, false)
    }

    fn with_regions(
        mut graph: pb::JobGraph,
        stored: pb::JobState,
        strategy: RestartStrategy,
        slots: [usize; 3],
        is_whole: bool,
    ) -> World {
        coordinate_first(&mut graph);
        let max_regions = if is_whole { 1 } else { MAX_REGIONS };
        let built = ExecutionGraph::build(&graph, max_regions).expect("valid");
        let edges = (0..).zip(&graph.edges);
        let blocking = edges.filter(|(_, edge)| edge.exchange() == pb::Exchange::Blocking);
        let blocking = blocking.map(|(number, _)| number).collect();
        let task_manager = |(number, slots): (usize, usize)| TaskManager {
            id: format!("tm{number}").parse().expect("a resource id"),
            incarnation: 1,
            registration: 0,
            epoch: 0,
            slots: vec![None; slots],
            profiles: BTreeMap::new(),
            running: BTreeMap::new(),
            highest: BTreeMap::new(),
            is_told_to_stop: false,
            outputs: BTreeSet::new(),
        };
        let mut world = World {
            graph,
            built,
            blocking,
            is_whole,
            strategy,
            failover: FailoverStrategy::Region,
            now_ms: 1_000,
            epoch: 0,
            core: None,
            stored,
            write: None,
            committing_since_ms: None,
            task_managers: slots.into_iter().enumerate().map(task_manager).collect(),
            requests: Vec::new(),
            sent: Vec::new(),
            events: Vec::new(),
            next_allocation: 1,
            deployed: BTreeSet::new(),
            declared: Vec::new(),
            at_once: Vec::new(),
            sinks_committed: false,
            sinks_hung: false,
            sinks_failed: false,
            cancel_is_acknowledged: false,
            result: None,
            healthy: BTreeMap::new(),
            term_began_ms: 0,
            asking: Asking::default(),
            stopping: Stopping::default(),
            drains: Drains::default(),
            checkpoints: None,
            reached: Reached::default(),
        };
        world.begin_term();
        world
    }

    /// Sets the failover strategy, which starts a new term.
    pub(super) fn fail_over_by(&mut self, failover: FailoverStrategy) {
        if std::mem::replace(&mut self.failover, failover) != failover {
            self.begin_term();
        }
    }

    /// Ends the present term, if any; a new core recovers from the stored record.
    pub(super) fn begin_term(&mut self) {
        let is_recovered = self.epoch > 0;
        if let Some(adoption) = self.core.as_ref().and_then(JobMasterCore::adoption) {
            self.reached.adopted += adoption.tasks_adopted;
            self.reached.restarted += adoption.tasks_restarted;
        }
        self.epoch += 1;
        self.term_began_ms = self.now_ms;
        self.note_healthy();
        self.write = None;
        self.committing_since_ms = None;
        self.declared.clear();
        self.at_once.clear();
        self.core = None;
        self.drains.forget_told();
        if self.result.is_some() {
            return;
        }
        let points = self.recover_points();
        let options = CoreOptions {
            slot_request_timeout_ms: 20_000,
            max_slots: None,
            slot_idle_timeout_ms: 3_000,
            task_cancellation_timeout_ms: 8_000,
            reconcile_timeout_ms: RECONCILE_TIMEOUT_MS,
            restart_strategy: self.strategy.clone(),
            failover_strategy: self.failover,
            exception_history_size: 16,
            max_regions: if self.is_whole { 1 } else { MAX_REGIONS },
            seed: 7,
        };
        let epoch = Epoch::new(self.epoch);
        let (graph, stored) = (self.graph.clone(), self.stored.clone());
        let from = (graph, stored, points);
        let at = (epoch, self.now_ms);
        let core = JobMasterCore::build_from(from, is_recovered, options, at);
        self.core = Some(core.expect("what is stored belongs to the graph"));
        self.begin_checkpoints();
        self.hear(Event::Started);
    }

    pub(super) fn hear(&mut self, event: Event) {
        let Some(core) = &mut self.core else {
            return;
        };
        let before = states_of(core);
        let regions_before = RegionsBefore::of(core);
        let dooms = dooms(&event, &before);
        let heard = event.clone();
        if let Ok(effects) = core.handle(self.now_ms, event) {
            core.assert_consistent();
            self.reached.moved +=
                regions_before.assert_moves(core, self.drains.is_all_that_happens);
            let has_adopted = core.adoption().is_some();
            assert!(
                has_adopted || self.declared.is_empty(),
                "it asks for slots while it reconciles"
            );
            assert!(!dooms || core.is_to_end(), "it is to go on");
            self.reached.failed_for_good += u32::from(dooms);
            // A deadline that has passed was handled, or waits for an event; otherwise the actor would loop
            // without end.
            let next = core.next_deadline_ms();
            assert!(
                next.is_none_or(|at_ms| at_ms > self.now_ms),
                "{next:?} at {}",
                self.now_ms
            );
            let deployed = effects.iter().filter_map(|effect| match effect {
                Effect::Deploy { tasks, .. } => Some(tasks.clone()),
                _ => None,
            });
            let deployed: Vec<pb::TaskDeployment> = deployed.flatten().collect();
            let states = states_of(core);
            self.note_begun(&states);
            self.take_news(&heard);
            self.run_all(effects);
            self.assert_may_start(&deployed, &before);
            self.settle_checkpoints();
        }
    }

    fn run_all(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.run(effect);
        }
    }

    fn run(&mut self, mut effect: Effect) {
        let epoch = self.epoch;
        if let Effect::Deploy { tasks, .. } = &mut effect {
            self.fill_restores(tasks);
        }
        let core = self.core.as_ref();
        let asked = core.map_or((0, false), |core| (core.turn(), core.tells_to_stop()));
        let mut send = |connection: Connection, call: Call| {
            self.requests.push(Request {
                epoch,
                connection,
                call,
            });
        };
        match effect {
            Effect::Persist { number, state, .. } => {
                assert!(self.result.is_none(), "nothing is written after the end");
                assert!(self.write.is_none(), "one write is in flight");
                self.write = Some((number, (*state).clone()));
            }
            Effect::Prepare {
                region,
                generation,
                operators,
                ..
            } => self.look(region, generation, &operators),
            Effect::AnswerCoordinator { token, answer } => self.hear_answer(token, answer),
            Effect::Declare(needs) => {
                self.declared = needs.slots.clone();
                self.at_once = needs.at_once.clone();
            }
            Effect::Deploy { connection, tasks } => {
                for task in &tasks {
                    assert_persisted_placement(&self.stored, epoch, &connection, task);
                    assert_prepared(&self.graph, &self.stored, task, self.is_whole);
                    for (key, generation, _) in complete_inputs(task, &self.blocking) {
                        let region = region_of(&self.built, &self.stored, (&key.0, key.1));
                        assert_eq!(region.generation, generation, "it reads another run");
                        let has_finished = is_recorded(&self.stored, &key, generation);
                        assert!(has_finished, "it reads what is not complete: {task:?}");
                    }
                    assert_serves(&self.graph, &self.task_managers, &connection, task);
                    let key = (task.vertex_id.clone(), task.subtask);
                    let is_first = self.deployed.insert((key, task.generation));
                    assert!(is_first, "deployed twice: {task:?}");
                }
                assert_ne!(self.stored.wanted(), pb::WantedStatus::Canceled);
                send(connection, Call::Submit(tasks, asked.1));
            }
            Effect::Cancel { connection, tasks } => {
                for task in &tasks {
                    let key = (task.vertex_id.as_str(), task.subtask);
                    let region = region_of(&self.built, &self.stored, key);
                    let is_over = self.stored.wanted() == pb::WantedStatus::Canceled
                        || !self.stored.fatal_cause.is_empty();
                    let is_decided = is_over
                        || region.generation > task.up_to_generation
                        || has_been_read(&self.graph, &self.built, &self.stored, key);
                    assert!(is_decided, "cancelled before that was decided: {task:?}");
                }
                send(connection, Call::Cancel(tasks));
            }
            Effect::Acknowledge {
                connection,
                executions,
            } => {
                for id in &executions {
                    let key = (id.vertex_id.as_str(), id.subtask);
                    let region = region_of(&self.built, &self.stored, key);
                    let is_recorded = self.stored.terminal.iter().any(|end| {
                        end.vertex_id == id.vertex_id
                            && end.subtask == id.subtask
                            && end.generation == id.generation
                    });
                    assert!(
                        is_recorded || region.generation > id.generation,
                        "{id:?} is not stored"
                    );
                }
                send(connection, Call::Acknowledge(executions));
            }
            Effect::FreeSlots {
                connection,
                allocations,
                ..
            } => {
                send(connection, Call::Free(allocations));
            }
            Effect::AskReport(connection) => {
                send(connection, Call::Heartbeat(asked.0, asked.1));
            }
            Effect::CommitSinks(_) => {
                assert_ne!(self.stored.wanted(), pb::WantedStatus::Canceled);
                assert!(
                    all_finished(&self.built, &self.stored),
                    "commits what has not finished"
                );
                self.committing_since_ms = Some(self.now_ms);
            }
            Effect::AnswerCancels(CancelAnswer::Decided) => {
                assert_eq!(self.stored.wanted(), pb::WantedStatus::Canceled);
                self.cancel_is_acknowledged = true;
            }
            Effect::AnswerCancels(_) => assert!(!self.cancel_is_acknowledged),
            Effect::AnswerStops(answer) => self.hear_stop_answer(&answer),
            Effect::AnswerOffer { rejected, .. } => {
                // A TaskManager frees rejected slots: they were given back before, and it had not received
                // that.
                for task_manager in &mut self.task_managers {
                    task_manager.free(&rejected);
                }
            }
            Effect::Disconnect { connection, .. } => self.disconnect_checkpoints(connection),
            Effect::Quarantine(_) => {}
            Effect::End(result) => {
                assert!(self.write.is_none(), "it ends with a write in flight");
                let is_canceled = self.stored.wanted() == pb::WantedStatus::Canceled
                    && self.stored.stopped_with.is_empty();
                assert_eq!(is_canceled, result.status() == pb::JobStatus::Canceled);
                if result.status() == pb::JobStatus::Finished && self.stored.stopped_with.is_empty()
                {
                    assert!(self.sinks_committed);
                }
                self.assert_stopped_as_stored(&result);
                self.assert_ended(&result);
                self.result = Some(*result);
            }
        }
    }

    pub(super) fn finished_regions(&self) -> BTreeMap<usize, u64> {
        finished_regions(&self.built, &self.stored)
    }

    pub(super) fn apply_write(&mut self) {
        let Some((number, state)) = self.write.take() else {
            return;
        };
        self.forget_unhealthy();
        for (region, generation) in &self.healthy {
            let after = state.regions[*region].generation;
            assert_eq!(after, *generation, "a healthy region {region} was given up");
        }
        let (before, after) = (self.stored.regions.len(), state.regions.len());
        assert!(before == 0 || before == after, "regions stay");
        for (before, after) in self.stored.regions.iter().zip(&state.regions) {
            assert!(
                before.generation <= after.generation,
                "generations only grow"
            );
            let is_placed_again = before.generation == after.generation
                && !before.placements.is_empty()
                && before != after;
            assert!(!is_placed_again, "a generation is placed once");
        }
        self.assert_restarts_together(&state);
        self.assert_restores_newest(&state);
        assert!(self.stored.job_incarnation <= state.job_incarnation);
        self.note_hung_commit();
        let is_given_up = self.sinks_hung
            || self.sinks_failed && !self.sinks_committed
            || self.has_failed_to_commit_checkpoint();
        let was_finished = all_finished(&self.built, &self.stored)
            && self.stored.wanted() != pb::WantedStatus::Canceled;
        assert!(
            is_given_up || !(was_finished && state.wanted() == pb::WantedStatus::Canceled),
            "cancel too late"
        );
        self.assert_stop_stays(&state);
        assert_decisions_stay(&self.stored, &state);
        self.stored = state;
        self.events.push((self.epoch, Event::Persisted(number)));
    }
}

/// Whether an event reports a failure of a present execution that no restart can fix.
fn dooms(event: &Event, before: &States) -> bool {
    let (Event::Registered { executions, .. }
    | Event::ExecutionsReported { executions, .. }
    | Event::HeartbeatAnswered { executions, .. }) = event
    else {
        return false;
    };
    executions.iter().any(|report| {
        let (state, attempt) = before[&(report.vertex_id.clone(), report.subtask)];
        let is_there = matches!(
            state,
            S::Deploying | S::Initializing | S::Running | S::Canceling | S::Reconciling
        );
        report.unrecoverable && is_there && attempt == report.generation
    })
}

/// Asserts that the slot of a task has what its group needs.
fn assert_serves(
    graph: &pb::JobGraph,
    task_managers: &[TaskManager],
    connection: &Connection,
    task: &pb::TaskDeployment,
) {
    let mut vertices = graph.vertices.iter();
    let vertex = vertices.find(|it| it.id == task.vertex_id);
    let group = &vertex.expect("it is the graph's").slot_sharing_group;
    let wanted = slot_profile(graph, group);
    let mut known = task_managers.iter();
    let known = known.find(|it| it.id == connection.task_manager);
    let allocation = task.allocation_id.parse().expect("an id");
    let has = &known.expect("it is there").profiles[&allocation];
    assert!(has.is_matching(&wanted), "{has}, not {wanted}");
}
