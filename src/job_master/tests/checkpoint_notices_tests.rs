//! What users are told of the checkpoints of a job: warnings, failing regions, and objects that can't be removed.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::persistence::MemoryJobStateStore;
use tanist_ha::blob::{BlobOptions, BlobStore, Marker};
use tanist_proto::v1 as pb;

use super::checkpoints_tests::{
    all_saved, checkpoint_events, checkpointed, execution, report, retained, running_with, tell,
    triggered, with_checkpoints,
};
use super::scripted::{Fixture, wait_until};
use crate::core::tests::testing::{graph_of, submitted};
use crate::{CheckpointDefaults, JobMasterOptions, StartLimiter};

/// The events of a job that warn.
async fn warnings(fixture: &Fixture) -> Vec<String> {
    let events = fixture.details().await.events.into_iter();
    let texts = events.map(|it| it.text);
    texts.filter(|it| it.starts_with("warning")).collect()
}

/// The job file says nothing about checkpoints: the configuration asks for them.
#[tokio::test(start_paused = true)]
async fn steps_with_state_and_without_names_are_one_event_of_the_job() {
    let mut graph = graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]);
    let operator = |name: &str, spec: &str| pb::Operator {
        name: name.to_owned(),
        spec: spec.to_owned(),
        ..pb::Operator::default()
    };
    graph.vertices[0].operators = vec![operator(
        "datagen",
        r#"{"type":"datagen","seed":0,"keys":1}"#,
    )];
    let count = r#"{"type":"count","keys":["key"],"emit":"updates"}"#;
    graph.vertices[1].operators = vec![
        operator("count", count),
        operator("discard", r#"{"type":"discard"}"#),
    ];
    let (former, _) = running_with(with_checkpoints(), graph.clone()).await;
    let text = "warning: only the name of their operator identifies the state of the steps `datagen`, `count` in \
                checkpoints: give each a `name` or a `uid`";
    assert_eq!(warnings(&former).await, [text]);
    former.job_master.stop().await;
    let (state, store) = (former.stored(), former.store.clone());
    let successor = Fixture::start_with(with_checkpoints(), graph.clone(), state, store);
    assert_eq!(warnings(&successor).await, [text], "once");

    for (name, operator) in ["read", "counts", "out"].into_iter().zip(
        graph
            .vertices
            .iter_mut()
            .flat_map(|vertex| &mut vertex.operators),
    ) {
        name.clone_into(&mut operator.name);
    }
    let (named, _) = running_with(with_checkpoints(), graph).await;
    assert_eq!(warnings(&named).await, [""; 0]);
}

/// The configuration of the next JobManager has no interval.
#[tokio::test(start_paused = true)]
async fn a_job_whose_next_leader_takes_no_checkpoints_says_so() {
    let (former, _, number) = checkpointed().await;
    former.job_master.stop().await;
    let options = JobMasterOptions {
        checkpoints: CheckpointDefaults::default(),
        ..with_checkpoints()
    };
    let (state, store) = (former.stored(), former.store.clone());
    let next = Fixture::start_with(options, former.graph.clone(), state, store);
    let told = "an earlier JobManager took checkpoints of the job, and this one takes none: set `interval` in its \
                `checkpoints`, or `execution.checkpointing.interval` of all JobManagers";
    wait_until("it is led", || retained(&next.store) == [number]).await;
    let warned = warnings(&next).await;
    assert!(warned.iter().any(|it| it.contains(told)), "{warned:?}");
    let shown = next.details().await.checkpoints.expect("it has some");
    let shown = shown.skipped.last().expect("none is taken");
    assert_eq!(shown.vertices, ["a", "b"]);
    assert!(shown.reason.contains("at intervals"), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_asks_for_checkpoints_without_an_interval_has_an_event_that_says_that_none_is_taken()
 {
    let text = "warning: the job asks for checkpoints, and none is taken: set `interval` in its `checkpoints`, or \
                `execution.checkpointing.interval` of all JobManagers";
    for (own, expected) in [
        (None, vec![]),
        (Some(None), vec![text]),
        (Some(Some(0)), vec![]),
    ] {
        let mut graph = graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]);
        let checkpoints = own.map(|interval_ms| pb::CheckpointSettings {
            interval_ms,
            ..pb::CheckpointSettings::default()
        });
        graph.options.get_or_insert_default().checkpoints = checkpoints;
        let (fixture, _) = running_with(JobMasterOptions::default(), graph).await;
        assert_eq!(warnings(&fixture).await, expected, "{own:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_commits_with_checkpoints_in_a_job_without_any_is_an_event() {
    let text = "warning: step `out` has `commit: checkpoint`, and without checkpoints its output is lost unless the \
                job finishes: set `interval` in its `checkpoints`, or `execution.checkpointing.interval` of all \
                JobManagers";
    for (commit, interval_ms, expected) in [
        (r#","commit":"checkpoint""#, None, vec![text]),
        (r#","commit":"checkpoint""#, Some(0), vec![text]),
        (r#","commit":"checkpoint""#, Some(1_000), vec![]),
        (r#","commit":"end""#, None, vec![]),
        ("", None, vec![]),
    ] {
        let mut graph = graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]);
        graph.vertices[1].operators = vec![pb::Operator {
            name: "out".to_owned(),
            spec: format!(r#"{{"type":"file-sink","path":"/out"{commit}}}"#),
            ..pb::Operator::default()
        }];
        let checkpoints = interval_ms.map(|interval_ms| pb::CheckpointSettings {
            interval_ms: Some(interval_ms),
            ..pb::CheckpointSettings::default()
        });
        graph.options.get_or_insert_default().checkpoints = checkpoints;
        let (fixture, _) = running_with(JobMasterOptions::default(), graph).await;
        assert_eq!(
            warnings(&fixture).await,
            expected,
            "{commit} {interval_ms:?}"
        );
    }
}

/// The manifest of the first checkpoint is an object. That of the second one is small, and the first one's can't be
/// removed, as the directory is not mounted any more.
#[tokio::test(start_paused = true)]
async fn objects_that_can_not_be_removed_are_shown_and_are_one_event() {
    let root = tempfile::tempdir().expect("a directory");
    let (mounted, away) = (root.path().join("mounted"), root.path().join("away"));
    let options = BlobOptions {
        url: mounted.to_string_lossy().into_owned(),
        shared: true,
    };
    let objects = BlobStore::open(&options).await.expect("opened");
    objects.make_directory().await.expect("made");
    let marker = Marker {
        storage: "here".to_owned(),
        cluster: String::new(),
        incarnation: String::new(),
        epoch: 1,
        process: String::new(),
        confirmation: String::new(),
    };
    objects.put_marker(&marker).await.expect("marked");
    let graph = graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]);
    let (state, store) = (submitted(&graph), MemoryJobStateStore::default());
    let fixture = Fixture::start_in(
        (with_checkpoints(), graph),
        state,
        store,
        StartLimiter::default(),
        Some(Arc::new(objects.guarded_by_presence())),
    );
    let task_executor = fixture.task_executor("tm1");
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    fixture.report("tm1", 1, task_executor.reports()).await;
    wait_until("a trigger", || triggered(&task_executor) > 0).await;
    let first = triggered(&task_executor);
    let mut large = all_saved(first, 1);
    let snapshot = large[0].snapshot.as_mut().expect("saved");
    let content: Vec<u8> = (0..20_000).map(|_| rand::random()).collect();
    snapshot.positions[0].position = content;
    tell(&fixture, 1, large).await;
    wait_until("complete", || retained(&fixture.store) == [first]).await;
    std::fs::rename(&mounted, &away).expect("there");
    wait_until("a trigger", || triggered(&task_executor) > first).await;
    let second = triggered(&task_executor);
    tell(&fixture, 1, all_saved(second, 1)).await;
    wait_until("complete", || retained(&fixture.store) == [second]).await;
    let problem = async || {
        let details = fixture.details().await;
        let events = details.events.into_iter();
        let events = events.filter(|it| it.text.starts_with("objects that no checkpoint needs"));
        let problem = details.checkpoints.expect("taken").storage_problem;
        (problem.map(|it| it.text), events.count())
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (text, events) = problem().await;
    let text = text.expect("shown");
    let place = format!("{}/", mounted.display());
    for part in [&*place, "by the JobManager at jm:1: "] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(events, 0, "it may pass");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(problem().await.1, 1, "once");
    std::fs::rename(&away, &mounted).expect("there");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(problem().await, (None, 1));
}

fn declined(execution: pb::ExecutionId, number: u64, reason: &str) -> pb::CheckpointReport {
    pb::CheckpointReport {
        reason: reason.to_owned(),
        ..report(execution, number, pb::CheckpointProgress::Declined)
    }
}

/// `a`, and the two subtasks of `b`, are regions of their own. The second one of `b` fails: once before the others are
/// complete, and once after.
#[tokio::test(start_paused = true)]
async fn a_region_whose_checkpoints_fail_is_shown_while_those_of_others_complete() {
    let graph = graph_of(&[("a", 1), ("b", 2)], &[]);
    let (fixture, task_executor) = running_with(with_checkpoints(), graph).await;
    let checkpoints = async || fixture.details().await.checkpoints.expect("taken");
    let saved = |number| {
        let mut saved = all_saved(number, 1);
        saved.truncate(2);
        saved
    };
    wait_until("a trigger", || triggered(&task_executor) > 0).await;
    let first = triggered(&task_executor);
    tell(
        &fixture,
        1,
        vec![declined(execution(2, 1, 1), first, "full")],
    )
    .await;
    tell(&fixture, 1, saved(first)).await;
    wait_until("complete", || retained(&fixture.store) == [first]).await;
    let shown = checkpoints().await;
    assert_eq!((shown.completed, shown.failed), (1, 1));
    let done = shown.history.last().expect("complete");
    assert_eq!(done.outcome(), pb::CheckpointOutcome::Completed);
    assert_eq!((done.subtasks, done.acknowledged_subtasks), (3, 2));
    let vertices = done.vertices.iter();
    let counts = vertices.map(|it| (it.subtasks, it.acknowledged_subtasks));
    assert!(counts.eq([(1, 1), (2, 1)]), "{done:?}");
    let [failing] = &shown.failing[..] else {
        panic!("one: {shown:?}");
    };
    let since_ms = failing.since_ms;
    assert!(since_ms >= done.triggered_at_ms, "{failing:?}");

    wait_until("a trigger", || triggered(&task_executor) > first).await;
    let second = triggered(&task_executor);
    tell(&fixture, 1, saved(second)).await;
    wait_until("complete", || retained(&fixture.store) == [second]).await;
    assert_eq!(checkpoints().await.failed, 1, "it is still in flight");
    let late = declined(execution(2, 1, 1), second, "still full");
    tell(&fixture, 1, vec![late]).await;
    let shown = checkpoints().await;
    assert_eq!((shown.completed, shown.failed), (2, 2));
    let expected = pb::FailingRegions {
        vertices: vec!["b".to_owned()],
        regions: 1,
        number: second,
        reason: "b (2/2) at tm1 declined it: still full".to_owned(),
        in_a_row: 2,
        since_ms,
    };
    assert_eq!(shown.failing, [expected]);

    let mut number = second;
    while !checkpoints().await.failing.is_empty() {
        wait_until("a trigger", || triggered(&task_executor) > number).await;
        number = triggered(&task_executor);
        tell(&fixture, 1, all_saved(number, 1)).await;
        wait_until("complete", || retained(&fixture.store) == [number]).await;
    }
    let details = fixture.details().await;
    let texts = checkpoint_events(&details);
    let expected = [
        format!("checkpoint {first} of b failed: b (2/2) at tm1 declined it: full"),
        format!("checkpoint {number} of b is complete, after 2 that failed"),
    ];
    assert_eq!(texts, expected);
    let shown = checkpoints().await;
    let done = shown.history.last().expect("complete");
    assert_eq!((done.subtasks, done.acknowledged_subtasks), (3, 3));
}
