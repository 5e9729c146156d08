//! A job of very many regions, event by event: the cost of an event of one region does not depend on the
//! number of regions.
//!
//! TaskManagers offer slots and report one by one. A write takes as long as many events, so that there are
//! fewer writes than events.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tanist_ha::election::Epoch;
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;
use tokio::time::Instant;

use super::recovered::{id, location, options};
use super::testing::{graph_of, submitted};
use crate::core::restart::RestartStrategy;
use crate::core::{Connection, Effect, Event, JobMasterCore, Registration, SubmitOutcome};

/// Number of further events after which a write is durable, if there are as many.
const EVENTS_A_WRITE: usize = 200;
/// Number of events in a millisecond.
const EVENTS_A_MS: usize = 10;
/// Slots of a TaskManager.
const SLOTS: usize = 10;
/// Number of regions; large enough that iterating over all of them for each event would be noticed.
const MANY: u32 = 4_000;
/// Time limit of each part, far above what the slowest machine needs.
const BOUND: Duration = Duration::from_secs(120);

/// A job, its TaskManagers, which follow all requests, and its store.
struct Job {
    core: JobMasterCore,
    now_ms: u64,
    events: usize,
    stored: pb::JobState,
    writing: Option<(u64, pb::JobState, usize)>,
    registrations: u64,
    /// Deployed tasks that TaskManagers have not started yet, with the number of their TaskManager.
    deployed: VecDeque<(usize, pb::TaskDeployment)>,
    running: BTreeMap<u32, (usize, u64, String)>,
    deployments: usize,
    is_ended: bool,
}

impl Job {
    fn of(graph: &pb::JobGraph, state: pb::JobState, epoch: u64, now_ms: u64) -> Job {
        let options = crate::core::CoreOptions {
            restart_strategy: RestartStrategy::FixedDelay {
                attempts: 1_000,
                delay_ms: 1_000,
            },
            slot_request_timeout_ms: 600_000,
            ..options()
        };
        let epoch = Epoch::new(epoch);
        let core = JobMasterCore::build(
            graph.clone(),
            state.clone(),
            epoch.get() > 1,
            epoch,
            options,
            now_ms,
        );
        let mut job = Job {
            core: core.expect("the record is of this graph"),
            now_ms,
            events: 0,
            stored: state,
            writing: None,
            registrations: 1_000_000 * epoch.get(),
            deployed: VecDeque::new(),
            running: BTreeMap::new(),
            deployments: 0,
            is_ended: false,
        };
        job.hear(Event::Started);
        job.settle_down();
        job
    }

    fn hear(&mut self, event: Event) {
        self.events += 1;
        self.now_ms += u64::from(self.events.is_multiple_of(EVENTS_A_MS));
        self.take(event);
        while let Some(due_ms) = self.core.next_deadline_ms().filter(|at| *at <= self.now_ms) {
            assert!(due_ms > 0);
            self.take(Event::TimePassed);
        }
        let is_written = |(_, _, at): &mut (u64, pb::JobState, usize)| *at <= self.events;
        if let Some((number, state, _)) = self.writing.take_if(is_written) {
            self.stored = state;
            self.take(Event::Persisted(number));
        }
    }

    fn take(&mut self, event: Event) {
        let effects = self.core.handle(self.now_ms, event).expect("taken");
        for effect in effects {
            match effect {
                Effect::Persist { number, state, .. } => {
                    let due = self.events + EVENTS_A_WRITE;
                    self.writing = Some((number, (*state).clone(), due));
                }
                Effect::Deploy { connection, tasks } => {
                    self.deployments += 1;
                    let at = number_of(&connection.task_manager);
                    self.deployed
                        .extend(tasks.into_iter().map(|task| (at, task)));
                }
                Effect::CommitSinks(_) => self.take(Event::SinksCommitted),
                Effect::End(_) => self.is_ended = true,
                _ => {}
            }
        }
    }

    /// Completes all writes.
    fn settle_down(&mut self) {
        while let Some((number, state, _)) = self.writing.take() {
            self.stored = state;
            self.take(Event::Persisted(number));
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.hear(Event::TimePassed);
    }

    fn connection(&self, number: usize) -> Connection {
        let registration = Registration::new(self.registrations);
        Connection {
            task_manager: task_manager(number),
            registration,
        }
    }

    fn register(&mut self, number: usize, executions: Vec<pb::ExecutionReport>) {
        let slots = executions.iter().enumerate().map(|(index, report)| {
            let allocation = report.allocation_id.clone();
            offer(allocation, index)
        });
        let slots = slots.collect();
        self.hear(Event::Registered {
            connection: self.connection(number),
            location: location(task_manager(number).as_str(), "1"),
            executions,
            slots,
            outputs: vec![],
        });
    }

    /// The TaskManagers start the deployed tasks and report each one by itself.
    fn run_deployed(&mut self) {
        while let Some((at, task)) = self.deployed.pop_front() {
            let execution = pb::ExecutionId {
                vertex_id: task.vertex_id.clone(),
                subtask: task.subtask,
                generation: task.generation,
            };
            self.hear(Event::TasksSubmitted {
                connection: self.connection(at),
                tasks: vec![execution],
                outcome: SubmitOutcome::Answered(vec![]),
            });
            let running = (at, task.generation, task.allocation_id);
            self.running.insert(task.subtask, running);
            self.report(task.subtask, S::Running);
        }
    }

    fn report(&mut self, subtask: u32, state: S) {
        let (at, report) = self.report_of(subtask, state);
        self.hear(Event::ExecutionsReported {
            connection: self.connection(at),
            executions: vec![report],
        });
    }

    fn report_of(&self, subtask: u32, state: S) -> (usize, pb::ExecutionReport) {
        let (at, generation, allocation_id) = &self.running[&subtask];
        let report = pb::ExecutionReport {
            vertex_id: format!("{:032x}", 1),
            subtask,
            generation: *generation,
            state: state.into(),
            allocation_id: allocation_id.clone(),
            ..pb::ExecutionReport::default()
        };
        (*at, report)
    }

    fn heartbeats(&mut self) {
        let mut executions: BTreeMap<usize, Vec<pb::ExecutionReport>> = BTreeMap::new();
        for subtask in self.running.keys() {
            let (at, report) = self.report_of(*subtask, S::Running);
            executions.entry(at).or_default().push(report);
        }
        for (at, executions) in executions {
            let allocations = executions.iter().map(|it| &it.allocation_id);
            let allocations = allocations.map(|it| it.parse().expect("an allocation"));
            self.hear(Event::HeartbeatAnswered {
                connection: self.connection(at),
                requested_in: self.core.turn(),
                allocations: allocations.collect(),
                executions,
                outputs: vec![],
            });
        }
    }
}

fn task_manager(number: usize) -> ResourceId {
    id(&format!("tm{number}"))
}

fn number_of(task_manager: &ResourceId) -> usize {
    let number = task_manager.as_str().trim_start_matches("tm");
    number.parse().expect("tm and a number")
}

fn offer(allocation_id: String, index: usize) -> pb::SlotOffer {
    pb::SlotOffer {
        allocation_id,
        slot: u32::try_from(index).expect("few slots"),
        profile: None,
    }
}

/// Durations of the parts of a job's life.
struct Watch {
    since: Instant,
    parts: Vec<(&'static str, Duration)>,
}

impl Watch {
    fn lap(&mut self, part: &'static str) {
        self.parts.push((part, self.since.elapsed()));
        self.since = Instant::now();
    }
}

/// A whole life of a job of `count` independent subtasks.
fn live(count: u32) -> Vec<(&'static str, Duration)> {
    let graph = graph_of(&[("source and sink", count)], &[]);
    let many = usize::try_from(count).expect("fits");
    let state = submitted(&graph);
    let mut watch = Watch {
        since: Instant::now(),
        parts: Vec::new(),
    };
    let mut job = Job::of(&graph, state, 1, 1_000_000);
    let task_managers = many.div_ceil(SLOTS);
    watch.lap("built");
    for number in 0..task_managers {
        job.register(number, vec![]);
    }
    watch.lap("TaskManagers registered");
    for slot in 0..many {
        let (at, index) = (slot % task_managers, slot / task_managers);
        let allocation = AllocationId::from_bits(slot as u128 + 1).to_string();
        job.hear(Event::SlotsOffered {
            connection: job.connection(at),
            slots: vec![offer(allocation, index)],
        });
    }
    while job.running.len() < many {
        job.settle_down();
        job.run_deployed();
        job.pass(20);
    }
    watch.lap("all placed and running");
    job.heartbeats();
    watch.lap("heartbeats of all");

    let failing = count / 2;
    job.report(failing, S::Failed);
    for subtask in (0..count).filter(|it| *it != failing) {
        job.report(subtask, S::Running);
    }
    job.settle_down();
    job.pass(1_000);
    job.settle_down();
    job.run_deployed();
    assert_eq!(job.running[&failing].1, 2, "it runs in its next generation");
    assert_eq!(job.stored.regions[0].generation, 1, "no other region does");
    watch.lap("one failed and restarted, all others heard of");

    let (now_ms, running) = (job.now_ms, std::mem::take(&mut job.running));
    let mut job = Job::of(&graph, job.stored, 2, now_ms);
    job.running = running;
    watch.lap("taken over");
    let mut there: BTreeMap<usize, Vec<pb::ExecutionReport>> = BTreeMap::new();
    for subtask in 0..count {
        let (at, report) = job.report_of(subtask, S::Running);
        there.entry(at).or_default().push(report);
    }
    for (at, executions) in there {
        job.register(at, executions);
    }
    let adoption = job.core.adoption().expect("nothing is awaited");
    assert_eq!(
        (adoption.tasks_adopted, adoption.tasks_restarted),
        (count, 0)
    );
    watch.lap("all adopted");
    for subtask in 0..count {
        job.report(subtask, S::Finished);
    }
    job.settle_down();
    assert!(job.is_ended);
    assert!(job.deployed.is_empty());
    watch.lap("all finished");
    watch.parts
}

#[test]
fn thousands_of_regions_are_placed_restarted_adopted_and_finished() {
    for (part, took) in live(MANY) {
        println!("{part}: {took:?}");
        assert!(took < BOUND, "{part}: {took:?}");
    }
}
