//! Blocked reasons of a job: which TaskManagers are awaited, and which restart follows which failure.

use tanist_proto::v1 as pb;
use tanist_proto::v1::{BlockedReasonKind, ExecutionState as S};

use super::recovered::{
    RECONCILE_MS, Recovered, both, end, one_region, options, placed, report, two_regions,
};
use super::testing::{apart, submitted_whole};
use crate::core::restart::RestartStrategy;
use crate::core::{CoreOptions, Effect, Event};

fn only(job: &Recovered) -> pb::BlockedReason {
    let mut blocked_reasons = job.core.blocked_reasons();
    assert_eq!(blocked_reasons.len(), 1, "{blocked_reasons:?}");
    blocked_reasons.remove(0)
}

#[test]
fn it_names_the_task_managers_that_are_awaited_and_until_when() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 3));
    let began_ms = job.now_ms;
    let blocked_reason = only(&job);
    assert_eq!(blocked_reason.kind(), BlockedReasonKind::Reconciling);
    assert_eq!(blocked_reason.missing, ["tm0", "tm1"]);
    assert_eq!(blocked_reason.since_ms, began_ms);
    assert_eq!(blocked_reason.until_ms, began_ms + RECONCILE_MS);
    let expected = "4 running tasks are awaited, on 2 TaskManagers";
    assert!(
        blocked_reason.text.starts_with(expected),
        "{}",
        blocked_reason.text
    );
    job.now_ms += 7;
    job.register("tm0", "1", both(0, 3, S::Running));
    let blocked_reason = only(&job);
    assert_eq!(blocked_reason.missing, ["tm1"]);
    assert_eq!(blocked_reason.until_ms, began_ms + RECONCILE_MS);
    let expected = "2 running tasks are awaited, on 1 TaskManagers";
    assert!(
        blocked_reason.text.starts_with(expected),
        "{}",
        blocked_reason.text
    );
    job.register("tm1", "1", both(1, 3, S::Running));
    assert_eq!(job.core.blocked_reasons(), []);
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
    let blocked_reason = only(&job);
    assert_eq!(blocked_reason.kind(), BlockedReasonKind::Reconciling);
    assert_eq!(blocked_reason.missing, ["tm0", "tm1"]);
    let expected = "the outputs of 2 finished tasks are awaited, on 2 TaskManagers";
    assert!(
        blocked_reason.text.starts_with(expected),
        "{}",
        blocked_reason.text
    );
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
    let blocked_reason = only(&job);
    assert_eq!(blocked_reason.kind(), BlockedReasonKind::Restarting);
    let expected = "1 of 1 region is restarted, after: b (1/2): division by zero";
    assert_eq!(blocked_reason.text, expected);
    assert_eq!(blocked_reason.since_ms, failed_at_ms);
    assert_eq!(blocked_reason.until_ms, failed_at_ms + 2_000);
    job.reports("tm0", vec![report(1, 0, 3, S::Canceled)]);
    job.reports("tm1", both(1, 3, S::Canceled));
    job.pass(1_999);
    assert_eq!(only(&job).kind(), BlockedReasonKind::Restarting);
    job.pass(1);
    assert_eq!(job.core.blocked_reasons(), [], "it is placed again");
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
    let blocked_reason = only(&job);
    assert_eq!(blocked_reason.kind(), BlockedReasonKind::PeerAway);
    assert_eq!(blocked_reason.since_ms, 42);
    assert_eq!(blocked_reason.missing, ["b (2/2)"]);
    let expected = "1 running tasks can't reach the peer";
    assert!(
        blocked_reason.text.starts_with(expected),
        "{}",
        blocked_reason.text
    );
    job.reports("tm1", vec![with_peer(1, 0), other(1)]);
    assert_eq!(job.core.blocked_reasons(), []);
}

/// The job runs, and the decision about this event is being written. Returns the number of that write.
fn deciding(job: &mut Recovered, event: impl FnOnce(&Recovered) -> Event) -> u64 {
    job.register("tm0", "1", both(0, 3, S::Running));
    job.register("tm1", "1", both(1, 3, S::Running));
    assert_eq!(job.core.blocked_reasons(), []);
    let event = event(job);
    let effects = job.core.handle(job.now_ms, event).expect("taken");
    let write = effects.iter().find_map(|effect| match effect {
        Effect::Persist { number, .. } => Some(*number),
        _ => None,
    });
    write.expect("it is written")
}

fn kinds(job: &Recovered) -> Vec<BlockedReasonKind> {
    let blocked_reasons = job.core.blocked_reasons();
    blocked_reasons
        .iter()
        .map(pb::BlockedReason::kind)
        .collect()
}

#[test]
fn it_says_that_the_store_takes_long_to_confirm_what_was_decided() {
    use BlockedReasonKind::{Restarting, Store};
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
    assert_eq!(job.core.blocked_reasons()[0].since_ms, began_ms);
    job.hear(Event::Persisted(number));
    assert_eq!(kinds(&job), [Restarting]);
}

#[test]
fn a_slow_write_is_also_a_reason_of_a_job_that_has_to_end() {
    use BlockedReasonKind::{Stopping, Store};
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 3));
    let number = deciding(&mut job, |_| Event::CancelRequested);
    job.pass(1_000);
    assert_eq!(kinds(&job), [Store, Stopping]);
    job.hear(Event::Persisted(number));
    assert_eq!(kinds(&job), [Stopping]);
}

#[test]
fn the_end_of_the_wait_for_slots_counts_from_the_last_region_that_could_have_freed_some() {
    let graph = apart(&[1, 2]);
    let mut job = Recovered::new(&graph, submitted_whole(&graph));
    let began_ms = job.now_ms;
    job.register("tm0", "1", vec![]);
    let blocked_reason = only(&job);
    assert_eq!(blocked_reason.kind(), BlockedReasonKind::NoSlots);
    assert_eq!(
        (blocked_reason.since_ms, blocked_reason.until_ms),
        (began_ms, 0)
    );
    job.pass(30_000);
    job.reports("tm0", vec![report(1, 0, 1, S::Finished)]);
    let blocked_reason = only(&job);
    let until_ms = job.now_ms + 10_000;
    assert_eq!(
        (blocked_reason.since_ms, blocked_reason.until_ms),
        (began_ms, until_ms)
    );
    job.pass(9_999);
    assert_eq!(job.stored.fatal_cause, "");
    job.pass(1);
    assert!(job.stored.fatal_cause.starts_with("not enough slots"));
}

#[test]
fn a_job_that_has_its_slots_waits_until_its_input_files_have_been_listed() {
    let mut graph = one_region();
    graph.vertices[0].operators = vec![pb::Operator {
        uid: String::new(),
        name: "lines".to_owned(),
        spec: r#"{"type":"file-source","paths":["f"]}"#.to_owned(),
        output: Vec::new(),
    }];
    let mut job = Recovered::new(&graph, submitted_whole(&graph));
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    let blocked_reason = only(&job);
    let expected = "it has its slots, and starts when its input files have been listed";
    assert_eq!(blocked_reason.text, expected);
    assert_eq!(blocked_reason.until_ms, job.now_ms + 10_000);
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

#[test]
fn it_names_tasks_that_cannot_read_their_state_until_they_can() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 3));
    job.register("tm0", "1", both(0, 3, S::Deploying));
    job.register("tm1", "1", both(1, 3, S::Deploying));
    let unread = |subtask: u32, reason: &str| pb::ExecutionReport {
        unread_state: reason.to_owned(),
        ..report(2, subtask, 3, S::Deploying)
    };
    job.reports("tm1", vec![unread(1, "checkpoint 7 can't be read by tm1")]);
    let blocked_reason = only(&job);
    assert_eq!(blocked_reason.kind(), BlockedReasonKind::Restoring);
    assert_eq!(blocked_reason.missing, ["b (2/2)"]);
    let expected = "a task can't read the state that it begins with, and tries again: checkpoint 7 can't be read by tm1";
    assert_eq!(blocked_reason.text, expected);
    let said = job.core.unread_state_of(0);
    assert_eq!(
        said.as_deref(),
        Some("b (2/2): checkpoint 7 can't be read by tm1")
    );
    let details = job.core.details();
    let subtasks = details.vertices.iter().flat_map(|it| &it.subtasks);
    let told = subtasks.filter(|it| it.unread_state == "checkpoint 7 can't be read by tm1");
    assert_eq!(told.count(), 1);
    job.reports("tm1", vec![report(2, 1, 3, S::Initializing)]);
    assert_eq!(job.core.blocked_reasons(), []);
    assert_eq!(job.core.unread_state_of(0), None);
}
