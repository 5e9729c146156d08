//! Blocked reasons of a job: which TaskManagers are awaited, and which restart follows which failure.

use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, HindranceKind};

use super::core::CoreOptions;
use super::event::{Effect, Event};
use super::recovered::{
    RECONCILE_MS, Recovered, both, end, one_region, options, placed, report, two_regions,
};
use super::restart::RestartStrategy;
use super::testing::{apart, submitted_whole};

fn only(job: &Recovered) -> pb::Hindrance {
    let mut hindrances = job.core.hindrances();
    assert_eq!(hindrances.len(), 1, "{hindrances:?}");
    hindrances.remove(0)
}

#[test]
fn it_names_the_task_managers_that_are_awaited_and_until_when() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 3));
    let began_ms = job.now_ms;
    let hindrance = only(&job);
    assert_eq!(hindrance.kind(), HindranceKind::Reconciling);
    assert_eq!(hindrance.missing, ["tm0", "tm1"]);
    assert_eq!(hindrance.since_ms, began_ms);
    assert_eq!(hindrance.until_ms, began_ms + RECONCILE_MS);
    let expected = "4 running tasks are awaited, on 2 TaskManagers";
    assert!(hindrance.text.starts_with(expected), "{}", hindrance.text);
    job.now_ms += 7;
    job.register("tm0", "1", both(0, 3, S::Running));
    let hindrance = only(&job);
    assert_eq!(hindrance.missing, ["tm1"]);
    assert_eq!(hindrance.until_ms, began_ms + RECONCILE_MS);
    let expected = "2 running tasks are awaited, on 1 TaskManagers";
    assert!(hindrance.text.starts_with(expected), "{}", hindrance.text);
    job.register("tm1", "1", both(1, 3, S::Running));
    assert_eq!(job.core.hindrances(), []);
}

#[test]
fn outputs_of_finished_tasks_are_awaited_by_name_too() {
    let graph = two_regions();
    let mut state = placed(&graph, 3);
    let mut graph = graph;
    graph.edges.push(pb::JobEdge {
        source: graph.vertices[0].id.clone(),
        target: graph.vertices[1].id.clone(),
        partitioning: pb::Partitioning::Rebalance.into(),
        exchange: pb::Exchange::Blocking.into(),
        ..pb::JobEdge::default()
    });
    state.terminal = vec![end(1, 0, 3, S::Finished), end(1, 1, 3, S::Finished)];
    state.regions[1] = pb::RegionState::default();
    let job = Recovered::new(&graph, state);
    assert_eq!(job.core.status(), pb::JobStatus::Reconciling);
    let hindrance = only(&job);
    assert_eq!(hindrance.kind(), HindranceKind::Reconciling);
    assert_eq!(hindrance.missing, ["tm0", "tm1"]);
    let expected = "the outputs of 2 finished tasks are awaited, on 2 TaskManagers";
    assert!(hindrance.text.starts_with(expected), "{}", hindrance.text);
}

#[test]
fn it_says_what_is_restarted_after_what_and_when() {
    let graph = one_region();
    let options = CoreOptions {
        restart_strategy: RestartStrategy::FixedDelay {
            attempts: 3,
            delay_ms: 2_000,
        },
        ..options()
    };
    let mut job = Recovered::with_options(&graph, placed(&graph, 3), 2, options);
    job.register("tm0", "1", both(0, 3, S::Running));
    job.register("tm1", "1", both(1, 3, S::Running));
    let failed = pb::ExecutionReport {
        cause: "division by zero".to_owned(),
        ..report(2, 0, 3, S::Failed)
    };
    let failed_at_ms = job.now_ms;
    job.reports("tm0", vec![failed, report(1, 0, 3, S::Running)]);
    let hindrance = only(&job);
    assert_eq!(hindrance.kind(), HindranceKind::Restarting);
    let expected = "1 of 1 region is restarted, after: b (1/2): division by zero";
    assert_eq!(hindrance.text, expected);
    assert_eq!(hindrance.since_ms, failed_at_ms);
    assert_eq!(hindrance.until_ms, failed_at_ms + 2_000);
    job.reports("tm0", vec![report(1, 0, 3, S::Canceled)]);
    job.reports("tm1", both(1, 3, S::Canceled));
    job.pass(1_999);
    assert_eq!(only(&job).kind(), HindranceKind::Restarting);
    job.pass(1);
    assert_eq!(job.core.hindrances(), [], "it is placed again");
}

#[test]
fn it_names_the_running_tasks_whose_peer_is_away_until_it_is_there() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 3));
    job.register("tm0", "1", both(0, 3, S::Running));
    job.register("tm1", "1", both(1, 3, S::Running));
    let with_peer = |subtask: u32, peer_away_since_ms| pb::ExecutionReport {
        metrics: Some(pb::TaskMetrics {
            peer_away_since_ms,
            ..pb::TaskMetrics::default()
        }),
        ..report(2, subtask, 3, S::Running)
    };
    let other = |subtask| report(1, subtask, 3, S::Running);
    job.reports("tm0", vec![with_peer(0, 0), other(0)]);
    job.reports("tm1", vec![with_peer(1, 42), other(1)]);
    assert_eq!(job.core.status(), pb::JobStatus::Running);
    let hindrance = only(&job);
    assert_eq!(hindrance.kind(), HindranceKind::PeerAway);
    assert_eq!(hindrance.since_ms, 42);
    assert_eq!(hindrance.missing, ["b (2/2)"]);
    let expected = "1 running tasks can't reach the peer";
    assert!(hindrance.text.starts_with(expected), "{}", hindrance.text);
    job.reports("tm1", vec![with_peer(1, 0), other(1)]);
    assert_eq!(job.core.hindrances(), []);
}

/// The job runs, and the decision about this event is being written. Returns the number of that write.
fn deciding(job: &mut Recovered, event: impl FnOnce(&Recovered) -> Event) -> u64 {
    job.register("tm0", "1", both(0, 3, S::Running));
    job.register("tm1", "1", both(1, 3, S::Running));
    assert_eq!(job.core.hindrances(), []);
    let event = event(job);
    let effects = job.core.handle(job.now_ms, event).expect("taken");
    let write = effects.iter().find_map(|effect| match effect {
        Effect::Persist { number, .. } => Some(*number),
        _ => None,
    });
    write.expect("it is written")
}

fn kinds(job: &Recovered) -> Vec<HindranceKind> {
    let hindrances = job.core.hindrances();
    hindrances.iter().map(pb::Hindrance::kind).collect()
}

#[test]
fn it_says_that_the_store_takes_long_to_confirm_what_was_decided() {
    use HindranceKind::{Restarting, Store};
    let graph = one_region();
    let options = CoreOptions {
        restart_strategy: RestartStrategy::default(),
        ..options()
    };
    let mut job = Recovered::with_options(&graph, placed(&graph, 3), 2, options);
    let began_ms = job.now_ms;
    let number = deciding(&mut job, |job| Event::ExecutionsReported {
        connection: job.connection("tm0"),
        executions: vec![report(2, 0, 3, S::Failed)],
    });
    job.pass(999);
    assert_eq!(kinds(&job), [Restarting]);
    let due = job.core.next_deadline_ms();
    assert!(
        due.is_some_and(|at_ms| at_ms <= began_ms + 1_000),
        "{due:?}"
    );
    job.pass(1);
    assert_eq!(kinds(&job), [Store, Restarting]);
    assert_eq!(job.core.hindrances()[0].since_ms, began_ms);
    job.hear(Event::Persisted(number));
    assert_eq!(kinds(&job), [Restarting]);
}

#[test]
fn it_says_so_of_a_job_that_is_to_end_as_well() {
    use HindranceKind::{Stopping, Store};
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 3));
    let number = deciding(&mut job, |_| Event::CancelRequested);
    job.pass(1_000);
    assert_eq!(kinds(&job), [Store, Stopping]);
    job.hear(Event::Persisted(number));
    assert_eq!(kinds(&job), [Stopping]);
}

#[test]
fn what_waits_for_slots_fails_a_while_after_the_last_region_that_could_have_left_some() {
    let graph = apart(&[1, 2]);
    let mut job = Recovered::new(&graph, submitted_whole(&graph));
    let began_ms = job.now_ms;
    job.register("tm0", "1", vec![]);
    let hindrance = only(&job);
    assert_eq!(hindrance.kind(), HindranceKind::NoSlots);
    assert_eq!((hindrance.since_ms, hindrance.until_ms), (began_ms, 0));
    job.pass(30_000);
    job.reports("tm0", vec![report(1, 0, 1, S::Finished)]);
    let hindrance = only(&job);
    let until_ms = job.now_ms + 10_000;
    assert_eq!(
        (hindrance.since_ms, hindrance.until_ms),
        (began_ms, until_ms)
    );
    job.pass(9_999);
    assert_eq!(job.stored.fatal_cause, "");
    job.pass(1);
    assert!(job.stored.fatal_cause.starts_with("not enough slots"));
}

#[test]
fn a_job_that_has_its_slots_waits_until_what_it_reads_has_been_looked_at() {
    let mut graph = one_region();
    graph.vertices[0].operators = vec![pb::Operator {
        name: "lines".to_owned(),
        spec: r#"{"type":"file-source","paths":["f"]}"#.to_owned(),
        output: Vec::new(),
    }];
    let mut job = Recovered::new(&graph, submitted_whole(&graph));
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    let hindrance = only(&job);
    let expected = "it has its slots, and starts when its input files have been listed";
    assert_eq!(hindrance.text, expected);
    assert_eq!(hindrance.until_ms, job.now_ms + 10_000);
}

#[test]
fn regions_that_have_their_slots_wait_for_earlier_attempts_and_for_their_round() {
    let graph = apart(&[2, 1]);
    let mut state = submitted_whole(&graph);
    state.regions[0].generation = 2;
    let mut job = Recovered::new(&graph, state);
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.register(name, "1", vec![report(1, subtask, 1, S::Running)]);
    }
    // One reservation round: 1/20 of the slot request timeout of 10 s.
    job.pass(500);
    job.register("tm2", "1", vec![]);
    let expected = "it has its slots, and starts when they are free of tasks of earlier attempts, \
                    and when regions that wait longer have had their turn";
    assert_eq!(only(&job).text, expected);
    job.pass(500);
    let expected = "it has its slots, and starts when they are free of tasks of earlier attempts";
    assert_eq!(only(&job).text, expected);
}
