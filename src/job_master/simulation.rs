//! The core against a simulated world: a store, TaskManagers and a network that delay, lose, repeat and reorder, and
//! terms that end at any point. Random faults first, then none: the job has to end, and no step may break an invariant.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tanist_ha::election::Epoch;
use tanist_proto::id::AllocationId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use super::core::{CoreOptions, JobMasterCore};
use super::event::{CancelAnswer, Connection, Effect, Event, SubmitOutcome};
use super::execution_graph::is_terminal;
use super::invariants::{all_finished, assert_persisted_placement, region_of};
use super::restart::RestartStrategy;
use super::simulated_task_manager::{Running, TaskKey, TaskManager, report};
use super::testing::{graph_of, submitted};

/// A request on its way to a TaskManager, from a term.
#[derive(Debug, Clone)]
struct Request {
    epoch: u64,
    connection: Connection,
    call: Call,
}

#[derive(Debug, Clone)]
enum Call {
    Submit(Vec<pb::TaskDeployment>),
    Cancel(Vec<pb::TaskCancellation>),
    Acknowledge(Vec<pb::ExecutionId>),
    Free(Vec<AllocationId>),
    Heartbeat(u64),
}

#[derive(Debug)]
struct World {
    graph: pb::JobGraph,
    strategy: RestartStrategy,
    now_ms: u64,
    epoch: u64,
    core: Option<JobMasterCore>,
    stored: pb::JobState,
    write: Option<(u64, pb::JobState)>,
    committing: bool,
    task_managers: Vec<TaskManager>,
    requests: Vec<Request>,
    events: Vec<(u64, Event)>,
    next_allocation: u128,
    deployed: BTreeSet<(TaskKey, u64)>,
    declared: u32,
    sinks_committed: bool,
    cancel_is_acknowledged: bool,
    result: Option<pb::JobResult>,
}

impl World {
    fn new(vertices: &[(&str, u32)], edges: &[(usize, usize)], strategy: RestartStrategy) -> World {
        let graph = graph_of(vertices, edges);
        let stored = submitted(&graph);
        let task_manager = |number: u64| TaskManager {
            id: format!("tm{number}").parse().expect("a resource id"),
            incarnation: 1,
            registration: 0,
            epoch: 0,
            slots: vec![None; 3],
            running: BTreeMap::new(),
            highest: BTreeMap::new(),
        };
        let mut world = World {
            graph,
            strategy,
            now_ms: 1_000,
            epoch: 0,
            core: None,
            stored,
            write: None,
            committing: false,
            task_managers: (0..3).map(task_manager).collect(),
            requests: Vec::new(),
            events: Vec::new(),
            next_allocation: 1,
            deployed: BTreeSet::new(),
            declared: 0,
            sinks_committed: false,
            cancel_is_acknowledged: false,
            result: None,
        };
        world.begin_term();
        world
    }

    /// The former term, if any, is forgotten; a new core recovers from what is stored.
    fn begin_term(&mut self) {
        let is_recovered = self.epoch > 0;
        self.epoch += 1;
        self.write = None;
        self.committing = false;
        self.declared = 0;
        self.core = None;
        if self.result.is_some() {
            return;
        }
        let options = CoreOptions {
            slot_request_timeout_ms: 20_000,
            slot_idle_timeout_ms: 3_000,
            task_cancellation_timeout_ms: 8_000,
            reconcile_timeout_ms: 5_000,
            restart_strategy: self.strategy.clone(),
            seed: 7,
        };
        let epoch = Epoch::new(self.epoch);
        let (graph, stored) = (self.graph.clone(), self.stored.clone());
        let core = JobMasterCore::build(graph, stored, is_recovered, epoch, options, self.now_ms);
        self.core = Some(core.expect("what is stored belongs to the graph"));
        self.hear(Event::Started);
    }

    fn hear(&mut self, event: Event) {
        let Some(core) = &mut self.core else {
            return;
        };
        if let Ok(effects) = core.handle(self.now_ms, event) {
            // What is due is done, or waits for something else than time: else the actor would turn without end.
            let next = core.next_deadline_ms();
            assert!(
                next.is_none_or(|at_ms| at_ms > self.now_ms),
                "{next:?} at {}",
                self.now_ms
            );
            self.run_all(effects);
        }
    }

    fn run_all(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.run(effect);
        }
    }

    fn run(&mut self, effect: Effect) {
        let epoch = self.epoch;
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
                self.write = Some((number, *state));
            }
            Effect::Declare { needed, .. } => self.declared = needed,
            Effect::Deploy { connection, tasks } => {
                for task in &tasks {
                    assert_persisted_placement(&self.stored, epoch, &connection, task);
                    let key = (task.vertex_id.clone(), task.subtask);
                    let is_first = self.deployed.insert((key, task.generation));
                    assert!(is_first, "deployed twice: {task:?}");
                }
                assert_eq!(self.stored.wanted(), pb::WantedStatus::Running, "canceled");
                send(connection, Call::Submit(tasks));
            }
            Effect::Cancel { connection, tasks } => {
                for task in &tasks {
                    let region = region_of(&self.graph, &self.stored, &task.vertex_id);
                    let is_over = self.stored.wanted() == pb::WantedStatus::Canceled
                        || !self.stored.fatal_cause.is_empty();
                    let is_decided = is_over || region.generation > task.up_to_generation;
                    assert!(is_decided, "cancelled before that was decided: {task:?}");
                }
                send(connection, Call::Cancel(tasks));
            }
            Effect::Acknowledge {
                connection,
                executions,
            } => {
                for id in &executions {
                    let region = region_of(&self.graph, &self.stored, &id.vertex_id);
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
                let turn = self.core.as_ref().map_or(0, JobMasterCore::turn);
                send(connection, Call::Heartbeat(turn));
            }
            Effect::CommitSinks(_) => {
                assert_eq!(self.stored.wanted(), pb::WantedStatus::Running, "canceled");
                assert!(
                    all_finished(&self.graph, &self.stored),
                    "commits what has not finished"
                );
                self.committing = true;
            }
            Effect::AnswerCancels(CancelAnswer::Decided) => {
                assert_eq!(self.stored.wanted(), pb::WantedStatus::Canceled);
                self.cancel_is_acknowledged = true;
            }
            Effect::AnswerCancels(_) => assert!(!self.cancel_is_acknowledged),
            Effect::AnswerOffer { rejected, .. } => {
                assert!(rejected.is_empty() || self.result.is_some());
            }
            Effect::Disconnect { .. } => {}
            Effect::End(result) => {
                assert!(self.write.is_none(), "it ends with a write in flight");
                let is_canceled = self.stored.wanted() == pb::WantedStatus::Canceled;
                assert_eq!(is_canceled, result.status() == pb::JobStatus::Canceled);
                if result.status() == pb::JobStatus::Finished {
                    assert!(self.sinks_committed);
                }
                self.result = Some(*result);
            }
        }
    }

    fn apply_write(&mut self) {
        let Some((number, state)) = self.write.take() else {
            return;
        };
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
        assert!(self.stored.job_incarnation <= state.job_incarnation);
        let was_finished = all_finished(&self.graph, &self.stored)
            && self.stored.wanted() == pb::WantedStatus::Running;
        assert!(
            !(was_finished && state.wanted() == pb::WantedStatus::Canceled),
            "cancel too late"
        );
        self.stored = state;
        self.events.push((self.epoch, Event::Persisted(number)));
    }

    fn register(&mut self, index: usize) {
        let (core_epoch, has_leader) = (self.epoch, self.core.is_some());
        let task_manager = &mut self.task_managers[index];
        if !has_leader {
            return;
        }
        task_manager.epoch = core_epoch;
        task_manager.registration += 1;
        let event = Event::Registered {
            connection: task_manager.connection(),
            location: task_manager.location(),
            executions: task_manager.report(),
            slots: task_manager.offers(),
        };
        self.events.push((core_epoch, event));
    }

    /// Allocates a slot if the job needs more than it has.
    fn allocate(&mut self, pick: usize) {
        let held: usize = self
            .task_managers
            .iter()
            .map(|it| it.slots.iter().flatten().count())
            .sum();
        if held >= usize::try_from(self.declared).expect("small") {
            return;
        }
        let count = self.task_managers.len();
        for offset in 0..count {
            let task_manager = &mut self.task_managers[(pick + offset) % count];
            if let Some(slot) = task_manager.slots.iter_mut().find(|slot| slot.is_none()) {
                *slot = Some(AllocationId::from_bits(self.next_allocation));
                self.next_allocation += 1;
                let (connection, slots) = (task_manager.connection(), task_manager.offers());
                self.events
                    .push((self.epoch, Event::SlotsOffered { connection, slots }));
                return;
            }
        }
    }

    /// A request arrives, or doesn't, and is answered, or its answer is lost.
    fn deliver(&mut self, request: Request, arrives: bool, is_answered: bool) {
        let Request {
            epoch,
            connection,
            call,
        } = request;
        let index = self
            .task_managers
            .iter()
            .position(|it| it.id == connection.task_manager);
        let task_manager = &mut self.task_managers[index.expect("they stay")];
        let is_current = arrives
            && epoch >= task_manager.epoch
            && connection.registration.get() == task_manager.registration;
        let lost = "the answer was lost".to_owned();
        let event = match call {
            Call::Submit(tasks) => {
                let ids = tasks.iter().map(|task| pb::ExecutionId {
                    vertex_id: task.vertex_id.clone(),
                    subtask: task.subtask,
                    generation: task.generation,
                });
                let ids = ids.collect();
                let refused = if is_current {
                    task_manager.submit(&tasks)
                } else {
                    Vec::new()
                };
                let outcome = if is_current && is_answered {
                    SubmitOutcome::Answered(refused)
                } else {
                    SubmitOutcome::Unknown(lost)
                };
                Event::TasksSubmitted {
                    connection,
                    tasks: ids,
                    outcome,
                }
            }
            Call::Cancel(tasks) => {
                if is_current {
                    task_manager.cancel(&tasks);
                }
                let is_confirmed = is_current && is_answered;
                Event::TasksCancelled {
                    connection,
                    tasks,
                    is_confirmed,
                }
            }
            Call::Acknowledge(executions) => {
                if is_current {
                    for id in executions {
                        let key = (id.vertex_id, id.subtask);
                        if let Some(running) = task_manager.running.get_mut(&key) {
                            running.retain(|it| {
                                it.generation != id.generation || !is_terminal(it.state)
                            });
                        }
                    }
                }
                return;
            }
            Call::Free(allocations) => {
                if is_current {
                    task_manager.free(&allocations);
                }
                return;
            }
            Call::Heartbeat(asked_in) => {
                if !is_current || !is_answered {
                    return;
                }
                Event::HeartbeatAnswered {
                    connection,
                    asked_in,
                    executions: task_manager.report(),
                    allocations: task_manager.slots.iter().flatten().copied().collect(),
                }
            }
        };
        self.events.push((epoch, event));
    }

    fn heartbeats(&mut self) {
        let Some(core) = &self.core else {
            return;
        };
        for (connection, _, _) in core.connections() {
            let call = Call::Heartbeat(core.turn());
            self.requests.push(Request {
                epoch: self.epoch,
                connection,
                call,
            });
        }
    }

    /// An execution moves on.
    fn progress(&mut self, index: usize, pick: usize, fails: bool) {
        let epoch = self.epoch;
        let task_manager = &mut self.task_managers[index];
        let mut live: Vec<(TaskKey, &mut Running)> = Vec::new();
        for (key, running) in &mut task_manager.running {
            let alive = running.iter_mut().filter(|it| !is_terminal(it.state));
            live.extend(alive.map(|it| (key.clone(), it)));
        }
        if live.is_empty() {
            return;
        }
        let pick = pick % live.len();
        let (key, running) = &mut live[pick];
        running.state = match running.state {
            S::Canceling => S::Canceled,
            _ if fails => S::Failed,
            S::Deploying => S::Running,
            _ => S::Finished,
        };
        let executions = vec![report(key, running)];
        let connection = task_manager.connection();
        self.events.push((
            epoch,
            Event::ExecutionsReported {
                connection,
                executions,
            },
        ));
    }

    /// Delivers an event to the core, unless its term is over.
    fn deliver_event(&mut self, pick: usize) {
        if self.events.is_empty() {
            return;
        }
        let (epoch, event) = self.events.remove(pick % self.events.len());
        if epoch == self.epoch {
            self.hear(event);
        }
    }

    fn commit(&mut self, succeeds: bool) {
        if std::mem::take(&mut self.committing) {
            self.sinks_committed |= succeeds;
            self.hear(if succeeds {
                Event::SinksCommitted
            } else {
                Event::SinksFailed("no space".to_owned())
            });
        }
    }

    fn step(&mut self, kind: u8, pick: usize) {
        let index = pick % self.task_managers.len();
        match kind {
            0..20 => self.deliver_event(pick),
            20..40 if !self.requests.is_empty() => {
                let request = self.requests.remove(pick % self.requests.len());
                self.deliver(request, true, true);
            }
            40..50 => self.apply_write(),
            50..60 => self.allocate(pick),
            60..72 => self.progress(index, pick / 3, false),
            72..76 => self.register(index),
            76..80 => self.heartbeats(),
            80..84 => {
                self.now_ms += 400;
                self.hear(Event::TimePassed);
            }
            84 => self.progress(index, pick / 3, true),
            85 if !self.requests.is_empty() => {
                // Repeated by the network.
                let request = self.requests[pick % self.requests.len()].clone();
                self.deliver(request, true, false);
            }
            86 if !self.requests.is_empty() => {
                // Lost by the network, which the sender learns.
                let request = self.requests.remove(pick % self.requests.len());
                self.deliver(request, false, false);
            }
            87 if !self.requests.is_empty() => {
                let request = self.requests.remove(pick % self.requests.len());
                self.deliver(request, true, false);
            }
            88 if !self.events.is_empty() => {
                let pick = pick % self.events.len();
                let is_from_afar = matches!(
                    self.events[pick].1,
                    Event::Registered { .. }
                        | Event::SlotsOffered { .. }
                        | Event::ExecutionsReported { .. }
                        | Event::HeartbeatAnswered { .. }
                );
                if is_from_afar {
                    self.events.remove(pick);
                }
            }
            89 if !self.events.is_empty() => {
                let event = self.events[pick % self.events.len()].clone();
                self.events.push(event);
            }
            90 => self.task_managers[index].crash(),
            91 => {
                let connection = self.task_managers[index].connection();
                let cause = "no heartbeat".to_owned();
                self.hear(Event::TaskManagerLost { connection, cause });
            }
            92 => {
                if pick.is_multiple_of(2) {
                    self.apply_write();
                }
                self.begin_term();
            }
            93 if pick.is_multiple_of(4) => self.hear(Event::CancelRequested),
            94 => self.commit(!pick.is_multiple_of(3)),
            _ => {}
        }
    }

    /// Without faults, until the job has ended; somebody may want to cancel it in one of the rounds.
    fn come_to_an_end(&mut self, canceled_in: Option<usize>) {
        for round in 0..400 {
            if self.result.is_some() {
                return;
            }
            self.apply_write();
            self.commit(true);
            for index in 0..self.task_managers.len() {
                let id = &self.task_managers[index].id;
                let core = self.core.as_ref().expect("it has not ended");
                let known = core
                    .connections()
                    .into_iter()
                    .find(|it| it.0.task_manager == *id);
                let known = known.map(|it| it.0.registration.get());
                if known != Some(self.task_managers[index].registration) {
                    self.register(index);
                }
                self.progress(index, 0, false);
                let task_manager = &self.task_managers[index];
                let (connection, slots) = (task_manager.connection(), task_manager.offers());
                self.events
                    .push((self.epoch, Event::SlotsOffered { connection, slots }));
            }
            self.allocate(0);
            self.heartbeats();
            for request in std::mem::take(&mut self.requests) {
                self.deliver(request, true, true);
            }
            while !self.events.is_empty() {
                self.deliver_event(0);
            }
            if canceled_in == Some(round) {
                self.hear(Event::CancelRequested);
            }
            self.now_ms += 500;
            self.hear(Event::TimePassed);
        }
        panic!("the job does not end: {:#?}", self.core);
    }
}

fn strategies() -> impl Strategy<Value = RestartStrategy> {
    prop_oneof![
        Just(RestartStrategy::None),
        Just(RestartStrategy::FixedDelay {
            attempts: 3,
            delay_ms: 700
        }),
        Just(RestartStrategy::default()),
    ]
}

/// Vertices (name, parallelism) and edges between their indices.
type Shape = (Vec<(&'static str, u32)>, Vec<(usize, usize)>);

fn shapes() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just((vec![("a", 2), ("b", 2)], vec![(0, 1)])),
        Just((
            vec![("a", 1), ("b", 3), ("c", 2), ("d", 1)],
            vec![(0, 1), (2, 3)]
        )),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_and_faults_breaks_an_invariant_and_every_job_ends(
        strategy in strategies(),
        (vertices, edges) in shapes(),
        canceled_in in prop::option::of(0usize..20),
        steps in prop::collection::vec((0u8..95, any::<u16>()), 0..500),
    ) {
        let mut world = World::new(&vertices, &edges, strategy);
        for (kind, pick) in steps {
            world.step(kind, usize::from(pick));
        }
        world.come_to_an_end(canceled_in);
    }
}

#[test]
fn without_faults_a_job_finishes_in_its_first_generation() {
    let mut world = World::new(&[("a", 2), ("b", 2)], &[(0, 1)], RestartStrategy::None);
    world.come_to_an_end(None);
    let result = world.result.expect("it has ended");
    assert_eq!(result.status(), pb::JobStatus::Finished, "{}", result.cause);
    assert!(
        world
            .deployed
            .iter()
            .all(|(_, generation)| *generation == 1)
    );
}
