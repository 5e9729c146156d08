//! A change of the leader in the middle of everything that a job goes through: what the next core does with what it finds.
//! Each write is durable at once here; the simulation has the other orders.

use tanist_ha::election::Epoch;
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::core::{CoreOptions, JobMasterCore};
use super::event::{Connection, Effect, Event, Refusal, Registration, SubmitOutcome};
use super::restart::RestartStrategy;
use super::testing::{graph_of, submitted};

const RECONCILE_MS: u64 = 50_000;

fn id(name: &str) -> ResourceId {
    name.parse().expect("a resource id")
}

fn slot(number: u32) -> AllocationId {
    AllocationId::from_bits(u128::from(number) + 1)
}

fn location(name: &str, incarnation: &str) -> pb::TaskManagerLocation {
    pb::TaskManagerLocation {
        resource_id: name.to_owned(),
        incarnation: incarnation.to_owned(),
        rpc_address: format!("{name}:1"),
        data_address: format!("{name}:2"),
    }
}

/// Two vertices of two subtasks in one region, each pair of subtasks in one slot on `tm0` or `tm1`.
fn one_region() -> pb::JobGraph {
    graph_of(&[("a", 2), ("b", 2)], &[(0, 1)])
}

/// The same vertices in a region each.
fn two_regions() -> pb::JobGraph {
    graph_of(&[("a", 2), ("b", 2)], &[])
}

/// What a term of epoch 1 has left of the graph: every region in this generation, subtask 0 on `tm0` and 1 on `tm1`.
fn placed(graph: &pb::JobGraph, generation: u64) -> pb::JobState {
    let mut state = submitted(graph);
    let placements = |ids: Vec<&str>| {
        let subtasks = ids
            .into_iter()
            .flat_map(|id| [(id.to_owned(), 0), (id.to_owned(), 1)]);
        subtasks
            .map(|(vertex_id, subtask)| pb::Placement {
                vertex_id,
                subtask,
                allocation_id: slot(subtask).to_string(),
                location: Some(location(&format!("tm{subtask}"), "1")),
            })
            .collect()
    };
    let ids: Vec<&str> = graph.vertices.iter().map(|it| it.id.as_str()).collect();
    let regions = match graph.edges.is_empty() {
        true => ids.into_iter().map(|id| vec![id]).collect(),
        false => vec![ids],
    };
    state.regions = regions
        .into_iter()
        .map(|ids: Vec<&str>| pb::RegionState {
            generation,
            epoch: 1,
            placements: placements(ids),
        })
        .collect();
    state.job_incarnation = 1;
    state
}

fn report(vertex: u32, subtask: u32, generation: u64, state: S) -> pb::ExecutionReport {
    pb::ExecutionReport {
        vertex_id: format!("{vertex:032x}"),
        subtask,
        generation,
        state: state.into(),
        allocation_id: slot(subtask).to_string(),
        ..pb::ExecutionReport::default()
    }
}

/// What a TaskManager reports of its two tasks.
fn both(subtask: u32, generation: u64, state: S) -> Vec<pb::ExecutionReport> {
    [1, 2]
        .map(|vertex| report(vertex, subtask, generation, state))
        .to_vec()
}

fn end(vertex: u32, subtask: u32, generation: u64, state: S) -> pb::TerminalExecution {
    pb::TerminalExecution {
        vertex_id: format!("{vertex:032x}"),
        subtask,
        generation,
        state: state.into(),
        ended_at_ms: 1,
        ..pb::TerminalExecution::default()
    }
}

/// A job taken up by the next term.
struct Recovered {
    core: JobMasterCore,
    stored: pb::JobState,
    writes: u32,
    now_ms: u64,
    registrations: u64,
    effects: Vec<Effect>,
}

impl Recovered {
    fn new(graph: &pb::JobGraph, state: pb::JobState) -> Recovered {
        Recovered::in_term(graph, state, 2)
    }

    fn in_term(graph: &pb::JobGraph, state: pb::JobState, epoch: u64) -> Recovered {
        let options = CoreOptions {
            slot_request_timeout_ms: 10_000,
            slot_idle_timeout_ms: 5_000,
            task_cancellation_timeout_ms: 180_000,
            reconcile_timeout_ms: RECONCILE_MS,
            restart_strategy: RestartStrategy::None,
            seed: 1,
        };
        let now_ms = 1_000_000;
        let epoch = Epoch::new(epoch);
        let core = JobMasterCore::build(graph.clone(), state.clone(), true, epoch, options, now_ms);
        let mut recovered = Recovered {
            core: core.expect("the record is of this graph"),
            stored: state,
            writes: 0,
            now_ms,
            registrations: 10 * epoch.get(),
            effects: Vec::new(),
        };
        recovered.hear(Event::Started);
        recovered
    }

    fn try_hear(&mut self, event: Event) -> Result<(), Refusal> {
        let mut effects = self.core.handle(self.now_ms, event)?;
        while let Some(at) = effects
            .iter()
            .position(|effect| matches!(effect, Effect::Persist { .. }))
        {
            let Effect::Persist { number, state, .. } = effects.remove(at) else {
                unreachable!("that is what was looked for");
            };
            self.stored = *state;
            self.writes += 1;
            let follows = self.core.handle(self.now_ms, Event::Persisted(number));
            effects.extend(follows.expect("an answer of the store is heard"));
        }
        self.effects.extend(effects);
        Ok(())
    }

    fn hear(&mut self, event: Event) {
        self.try_hear(event).expect("taken");
    }

    fn register(&mut self, name: &str, incarnation: &str, executions: Vec<pb::ExecutionReport>) {
        self.registrations += 1;
        let number = name
            .trim_start_matches("tm")
            .parse()
            .expect("tm and a number");
        let slots = vec![pb::SlotOffer {
            allocation_id: slot(number).to_string(),
            slot: 0,
            profile: None,
        }];
        self.hear(Event::Registered {
            connection: Connection {
                task_manager: id(name),
                registration: Registration::new(self.registrations),
            },
            location: location(name, incarnation),
            executions,
            slots,
        });
    }

    fn connection(&self, name: &str) -> Connection {
        let mut known = self.core.connections().into_iter();
        let known = known.find(|it| it.0.task_manager == id(name));
        known.expect("it is registered").0
    }

    fn reports(&mut self, name: &str, executions: Vec<pb::ExecutionReport>) {
        let connection = self.connection(name);
        self.hear(Event::ExecutionsReported {
            connection,
            executions,
        });
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.hear(Event::TimePassed);
    }

    fn generations(&self) -> Vec<u64> {
        let regions = self.stored.regions.iter();
        regions.map(|region| region.generation).collect()
    }

    fn deployed(&self) -> Vec<(String, u64)> {
        let mut deployed = Vec::new();
        for effect in &self.effects {
            if let Effect::Deploy { connection, tasks } = effect {
                let to = connection.task_manager.to_string();
                deployed.extend(tasks.iter().map(|task| (to.clone(), task.generation)));
            }
        }
        deployed
    }

    fn cancelled(&self) -> Vec<(String, u32, u64)> {
        let mut cancelled = Vec::new();
        for effect in &self.effects {
            if let Effect::Cancel { connection, tasks } = effect {
                let to = connection.task_manager.to_string();
                let all = tasks.iter();
                cancelled.extend(all.map(|task| (to.clone(), task.subtask, task.up_to_generation)));
            }
        }
        cancelled
    }

    fn declared(&self) -> Vec<u32> {
        let needed = |effect: &Effect| match effect {
            Effect::Declare { needed, .. } => Some(*needed),
            _ => None,
        };
        self.effects.iter().filter_map(needed).collect()
    }

    /// Nothing but that it was taken up was written, nothing was sent, and it runs under its old attempts.
    fn assert_adopted(&self, tasks: u32) {
        assert_eq!(self.core.status(), JobStatus::Running);
        assert_eq!((self.deployed(), self.cancelled()), (vec![], vec![]));
        assert_eq!(self.writes, 1);
        let adoption = self.core.adoption().expect("nothing is awaited");
        assert_eq!(
            (adoption.tasks_adopted, adoption.tasks_restarted),
            (tasks, 0)
        );
        assert_eq!(self.declared(), [2]);
    }

    /// What is left of the old generation stops, then all of the next one is deployed.
    fn assert_restarts(&mut self, old: u64, left: &[(&str, u32)]) {
        assert!(self.deployed().is_empty(), "{:?}", self.deployed());
        assert_eq!(
            self.generations(),
            [old + 1],
            "written before anything is cancelled"
        );
        for (name, subtask) in left {
            let of_it = (name.to_string(), *subtask, old);
            assert!(self.cancelled().contains(&of_it), "{:?}", self.cancelled());
            self.reports(name, both(*subtask, old, S::Canceled));
        }
        for name in ["tm0", "tm1"] {
            let here = self.core.location(&id(name)).is_some();
            if !here {
                self.register(name, "2", vec![]);
            }
        }
        let deployed = self.deployed();
        assert_eq!(deployed.len(), 4, "{deployed:?}");
        assert!(
            deployed
                .iter()
                .all(|(_, generation)| *generation == old + 1)
        );
        let region = &self.stored.regions[0];
        assert_eq!((region.generation, region.epoch), (old + 1, 2));
    }
}

#[test]
fn a_region_that_runs_whole_goes_on_and_nothing_is_sent_to_it() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 3));
    assert_eq!(job.core.status(), JobStatus::Reconciling);
    job.register("tm0", "1", both(0, 3, S::Running));
    assert_eq!(job.core.status(), JobStatus::Reconciling);
    assert_eq!((job.core.adoption(), job.declared()), (None, vec![]));
    job.now_ms += 30;
    job.register("tm1", "1", both(1, 3, S::Running));
    job.assert_adopted(4);
    let details = job.core.details();
    let subtask = &details.vertices[1].subtasks[1];
    assert_eq!((subtask.state(), subtask.attempt), (S::Running, 3));
    let adoption = job.core.adoption().expect("nothing is awaited");
    assert_eq!(adoption.first_adopted_at_ms, Some(job.now_ms));
}

#[test]
fn a_region_of_which_one_half_was_deployed_is_restarted_without_counting_a_failure() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", vec![]);
    job.assert_restarts(1, &[("tm0", 0)]);
    let details = job.core.details();
    assert_eq!(details.restarts, 0);
    let cause = &details.failures.last().expect("it is told").cause;
    assert!(cause.contains("change of the leader"), "{cause}");
}

#[test]
fn a_deployment_with_unknown_outcome_is_judged_by_what_is_there() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", both(1, 1, S::Deploying));
    job.assert_adopted(4);
    job.reports("tm1", both(1, 1, S::Running));
    job.assert_adopted(4);

    // Of a deployment by this leader nothing is known when its answer is lost, whatever runs.
    let mut job = Recovered::new(&graph, submitted(&graph));
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    assert_eq!(job.deployed().len(), 4);
    let connection = job.connection("tm0");
    job.hear(Event::TasksSubmitted {
        connection,
        tasks: vec![pb::ExecutionId {
            vertex_id: graph.vertices[0].id.clone(),
            subtask: 0,
            generation: 1,
        }],
        outcome: SubmitOutcome::Unknown("no answer".to_owned()),
    });
    assert_eq!(
        job.core.status(),
        JobStatus::Failing,
        "no restarts are allowed"
    );
}

#[test]
fn a_restart_that_was_under_way_goes_on_with_the_generation_after_it() {
    let graph = one_region();
    let mut state = placed(&graph, 1);
    state.regions[0] = pb::RegionState {
        generation: 2,
        epoch: 1,
        placements: vec![],
    };
    let mut job = Recovered::new(&graph, state);
    assert_eq!(job.generations(), [3]);
    assert_eq!(job.declared(), [2], "nothing is awaited");
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", vec![]);
    assert_eq!(job.cancelled()[0], ("tm0".to_owned(), 0, 1));
    assert!(job.deployed().is_empty(), "its slot is not free");
    job.reports("tm0", both(0, 1, S::Canceled));
    assert_eq!(job.deployed().len(), 4);
    assert!(
        job.deployed()
            .iter()
            .all(|(_, generation)| *generation == 3)
    );
}

#[test]
fn a_cancel_goes_on_with_what_is_there() {
    let graph = one_region();
    let mut state = placed(&graph, 1);
    state.set_wanted(pb::WantedStatus::Canceled);
    let mut job = Recovered::new(&graph, state);
    assert_eq!(job.core.status(), JobStatus::Cancelling);
    job.register("tm0", "1", both(0, 1, S::Running));
    assert_eq!(job.cancelled().len(), 2);
    job.reports("tm0", both(0, 1, S::Canceled));
    assert_eq!(job.core.status(), JobStatus::Cancelling);
    job.register("tm1", "1", both(1, 1, S::Canceled));
    assert_eq!(job.core.status(), JobStatus::Canceled);
}

#[test]
fn a_job_that_is_cancelled_while_it_reconciles_adopts_nothing() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.hear(Event::CancelRequested);
    assert_eq!(job.cancelled().len(), 2);
    job.reports("tm0", both(0, 1, S::Canceled));
    job.pass(RECONCILE_MS);
    assert_eq!(
        job.core.status(),
        JobStatus::Canceled,
        "who stays away is not waited for longer"
    );
    assert_eq!(job.core.adoption().expect("it is over").tasks_adopted, 0);
}

#[test]
fn a_job_that_finished_while_nobody_led_is_recorded_acknowledged_and_committed() {
    let graph = one_region();
    let mut state = placed(&graph, 1);
    state.terminal = vec![end(1, 0, 1, S::Finished)];
    let mut job = Recovered::new(&graph, state);
    job.register("tm0", "1", both(0, 1, S::Finished));
    let is_acknowledged = |job: &Recovered| {
        let count = |effect: &Effect| match effect {
            Effect::Acknowledge { executions, .. } => executions.len(),
            _ => 0,
        };
        job.effects.iter().map(count).sum::<usize>()
    };
    assert_eq!(
        is_acknowledged(&job),
        2,
        "one was recorded by the former leader"
    );
    job.register("tm1", "1", both(1, 1, S::Finished));
    assert_eq!(is_acknowledged(&job), 4);
    assert_eq!(job.stored.terminal.len(), 4);
    assert!(job.deployed().is_empty());
    job.hear(Event::SinksCommitted);
    assert_eq!(job.core.status(), JobStatus::Finished);
}

#[test]
fn what_finished_long_ago_needs_nobody_to_report_it() {
    let graph = one_region();
    let mut state = placed(&graph, 1);
    // The sources ended, and nobody needs their TaskManager any more.
    state.terminal = vec![end(1, 0, 1, S::Finished), end(1, 1, 1, S::Finished)];
    for placement in &mut state.regions[0].placements {
        if placement.vertex_id == graph.vertices[0].id {
            placement.location = Some(location("tm2", "1"));
        }
    }
    let mut job = Recovered::new(&graph, state);
    job.register("tm0", "1", vec![report(2, 0, 1, S::Running)]);
    job.register("tm1", "1", vec![report(2, 1, 1, S::Running)]);
    job.assert_adopted(2);
}

#[test]
fn a_registration_that_is_older_than_one_that_was_seen_adopts_nothing() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    let late = job.try_hear(Event::Registered {
        connection: Connection {
            task_manager: id("tm0"),
            registration: Registration::new(1),
        },
        location: location("tm0", "1"),
        executions: vec![],
        slots: vec![],
    });
    assert!(matches!(late, Err(Refusal::Outdated { .. })));
    // It registers again in the middle of it.
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", both(1, 1, S::Running));
    job.assert_adopted(4);
}

#[test]
fn a_second_change_of_the_leader_while_it_reconciles_finds_what_the_first_found() {
    let graph = one_region();
    let mut first = Recovered::new(&graph, placed(&graph, 1));
    first.register("tm0", "1", both(0, 1, S::Running));
    let mut second = Recovered::in_term(&graph, first.stored, 3);
    assert_eq!(second.core.job_incarnation(), 3);
    second.register("tm1", "1", both(1, 1, S::Running));
    second.register("tm0", "1", both(0, 1, S::Running));
    second.assert_adopted(4);
}

#[test]
fn a_leader_that_died_after_giving_a_generation_up_is_followed_by_the_one_after() {
    let graph = one_region();
    let mut first = Recovered::new(&graph, placed(&graph, 1));
    first.register("tm0", "1", both(0, 1, S::Running));
    first.register("tm1", "1", vec![]);
    assert_eq!(first.generations(), [2]);
    let mut second = Recovered::in_term(&graph, first.stored, 3);
    second.register("tm0", "1", both(0, 1, S::Canceled));
    second.register("tm1", "1", vec![]);
    assert_eq!(second.generations(), [3]);
    assert_eq!(second.deployed().len(), 4);
}

#[test]
fn a_task_manager_that_is_lost_with_the_leader_is_waited_for_as_long_as_any_silent_one() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    let deadline = job.core.next_deadline_ms().expect("it waits");
    assert_eq!(deadline, job.now_ms + RECONCILE_MS);
    job.pass(RECONCILE_MS - 1);
    assert_eq!((job.generations(), job.cancelled()), (vec![1], vec![]));
    job.pass(1);
    job.assert_restarts(1, &[("tm0", 0)]);
}

#[test]
fn proof_that_a_task_manager_is_gone_ends_the_wait_and_nothing_less_does() {
    let graph = one_region();
    let gone = |name: &str, incarnation: &str| Event::TaskManagerGone {
        task_manager: id(name),
        incarnation: incarnation.to_owned(),
    };
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.hear(gone("tm0", "1"));
    job.hear(gone("tm1", "0"));
    assert_eq!(
        job.generations(),
        [1],
        "it is registered, or another incarnation is meant"
    );
    job.hear(gone("tm1", "1"));
    job.assert_restarts(1, &[("tm0", 0)]);
    assert_eq!(job.core.adoption().expect("decided").tasks_restarted, 4);
}

#[test]
fn another_incarnation_of_a_task_manager_has_nothing_to_adopt() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    // Even if it says so.
    job.register("tm1", "2", both(1, 1, S::Running));
    assert!(job.cancelled().contains(&("tm1".to_owned(), 1, 1)));
    job.reports("tm1", both(1, 1, S::Canceled));
    job.assert_restarts(1, &[("tm0", 0)]);
}

#[test]
fn a_task_manager_that_reports_late_but_in_time_is_adopted() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    // Longer than slots idle or are waited for.
    job.pass(30_000);
    job.register("tm1", "1", both(1, 1, S::Running));
    job.assert_adopted(4);
}

#[test]
fn a_task_manager_that_comes_back_after_its_region_was_restarted_elsewhere_stops_its_tasks() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.pass(RECONCILE_MS);
    job.reports("tm0", both(0, 1, S::Canceled));
    job.register("tm2", "1", vec![]);
    assert_eq!(job.deployed().len(), 4);
    job.register("tm1", "1", both(1, 1, S::Running));
    assert!(job.cancelled().contains(&("tm1".to_owned(), 1, 1)));
    assert_eq!(job.generations(), [2]);
}

#[test]
fn an_execution_that_another_task_manager_reports_than_the_record_names_is_a_stray() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm2", "1", both(1, 1, S::Running));
    assert_eq!(
        job.cancelled(),
        [("tm2".to_owned(), 1, 1), ("tm2".to_owned(), 1, 1)]
    );
    assert_eq!(job.core.status(), JobStatus::Reconciling);
    job.effects.clear();
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", both(1, 1, S::Running));
    job.assert_adopted(4);
}

#[test]
fn a_lower_generation_is_stopped_and_not_adopted() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 2));
    job.register("tm0", "1", both(0, 2, S::Running));
    job.register("tm1", "1", both(1, 1, S::Running));
    assert!(job.cancelled().contains(&("tm1".to_owned(), 1, 1)));
    assert_eq!(job.generations(), [3]);
}

#[test]
fn a_task_that_failed_while_nobody_led_is_a_failure_like_any_other() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    let mut failed = both(0, 1, S::Running);
    failed[0].set_state(S::Failed);
    failed[0].cause = "division by zero".to_owned();
    job.register("tm0", "1", failed);
    assert_eq!(
        job.core.status(),
        JobStatus::Failing,
        "no restarts are allowed"
    );
    assert!(job.stored.fatal_cause.contains("division by zero"));
}

#[test]
fn a_task_that_its_task_manager_is_cancelling_is_not_adopted() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", both(1, 1, S::Canceling));
    job.assert_restarts(1, &[("tm0", 0), ("tm1", 1)]);
}

#[test]
fn one_region_is_restarted_and_the_other_is_not_touched() {
    let graph = two_regions();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "1", vec![report(1, 1, 1, S::Running)]);
    assert_eq!(job.generations(), [1, 2]);
    assert_eq!(job.cancelled(), [("tm0".to_owned(), 0, 1)]);
    job.reports("tm0", vec![report(2, 0, 1, S::Canceled)]);
    assert_eq!(job.deployed().len(), 2);
    let adoption = job.core.adoption().expect("decided");
    assert_eq!((adoption.tasks_adopted, adoption.tasks_restarted), (2, 2));
    let details = job.core.details();
    assert_eq!(details.vertices[0].subtasks[0].attempt, 1);
    assert_eq!(details.vertices[1].subtasks[0].attempt, 2);
}

#[test]
fn while_it_reconciles_no_timer_of_slots_runs_and_afterwards_all_is_declared() {
    let graph = two_regions();
    let mut state = placed(&graph, 1);
    state.regions[1] = pb::RegionState::default();
    let mut job = Recovered::new(&graph, state);
    job.register("tm2", "1", vec![]);
    job.pass(30_000);
    let freed = |effect: &Effect| matches!(effect, Effect::FreeSlots { .. });
    assert!(!job.effects.iter().any(freed));
    assert_eq!(job.declared(), Vec::<u32>::new());
    job.register("tm0", "1", vec![report(1, 0, 1, S::Running)]);
    job.register("tm1", "1", vec![report(1, 1, 1, S::Running)]);
    let held = |effect: &Effect| match effect {
        Effect::Declare { needed, held } => Some((*needed, held.clone())),
        _ => None,
    };
    let declared: Vec<_> = job.effects.iter().filter_map(held).collect();
    let held = [(id("tm0"), 1), (id("tm1"), 1)].into_iter().collect();
    assert_eq!(declared, [(2, held)]);
    assert_eq!(
        job.deployed().len(),
        2,
        "what was never deployed has its slots by then"
    );
}
