//! Commits of what checkpoints list through the actor: made from the durable record, repeated when they fail, and what
//! follows if they can never succeed.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tanist_gateway::persistence::{JobStateStore as _, MemoryJobStateStore, PersistError};
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::checkpoints_tests::{
    all_saved, execution, fail_all, retained, running_with, tell, triggered, with_checkpoints,
};
use super::scripted::{Fixture, TaskExecutor, wait_until};
use crate::core::tests::testing::{graph_of, submitted};

fn file(name: &str) -> pb::CheckpointCommittable {
    pb::CheckpointCommittable {
        uid: "out".to_owned(),
        kind: "file".to_owned(),
        content: pb::Committable {
            pending_path: format!("/out/.tanist/{name}"),
            final_path: format!("/out/{name}"),
        }
        .encode_to_vec(),
    }
}

/// A graph with a file sink.
fn to_files() -> pb::JobGraph {
    let mut graph = graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]);
    graph.vertices[1].operators = vec![pb::Operator {
        uid: "out".to_owned(),
        name: "out".to_owned(),
        spec: r#"{"type":"file-sink","path":"/out"}"#.to_owned(),
        output: Vec::new(),
    }];
    graph
}

/// The reports that all tasks have saved a number; the sink has written this file.
fn saved_with(number: u64, generation: u64, name: &str) -> Vec<pb::CheckpointReport> {
    let mut saved = all_saved(number, generation);
    let snapshot = saved[1].snapshot.as_mut().expect("saved");
    snapshot.committables = vec![file(name)];
    snapshot.files = vec![format!("/out/.tanist/open-{name}").into_bytes()];
    saved
}

/// Completes the next checkpoint, with a file. Returns its number.
async fn complete(
    fixture: &Fixture,
    task_executor: &TaskExecutor,
    generation: u64,
    name: &str,
) -> u64 {
    let before = retained(&fixture.store).last().copied().unwrap_or_default();
    wait_until("a trigger", || triggered(task_executor) > before).await;
    let number = triggered(task_executor);
    tell(fixture, 1, saved_with(number, generation, name)).await;
    wait_until("complete", || retained(&fixture.store).contains(&number)).await;
    number
}

fn committed(fixture: &Fixture) -> Vec<u64> {
    let committed = fixture.environment.committed_checkpoints.lock();
    committed.iter().map(|it| it.0).collect()
}

async fn to_run() -> (Fixture, Arc<TaskExecutor>) {
    running_with(with_checkpoints(), to_files()).await
}

#[tokio::test(start_paused = true)]
async fn what_a_checkpoint_lists_is_committed_once_it_is_durable_and_its_mark_is_removed() {
    let (fixture, task_executor) = to_run().await;
    let number = complete(&fixture, &task_executor, 1, "a").await;
    wait_until("committed", || committed(&fixture) == [number]).await;
    assert_eq!(
        fixture.environment.committed_checkpoints.lock()[0].1,
        [file("a")]
    );
    let next = complete(&fixture, &task_executor, 1, "b").await;
    wait_until("committed", || committed(&fixture) == [number, next]).await;
    let forgotten = || fixture.environment.forgotten_marks.lock().clone();
    wait_until("forgotten", || forgotten().contains(&number)).await;
    assert!(fixture.environment.superseded.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_is_shown_with_its_sink_and_is_repeated() {
    let (fixture, task_executor) = to_run().await;
    *fixture.environment.failing_commits.lock() = 3;
    let number = complete(&fixture, &task_executor, 1, "a").await;
    wait_until("one failed", || {
        *fixture.environment.failing_commits.lock() < 3
    })
    .await;
    let details = fixture.details().await;
    let failure = details.failures.last().expect("noted");
    let told = format!("checkpoint {number}, sinks out: no space");
    assert!(failure.cause.contains(&told), "{}", failure.cause);
    let kinds = details.blocked_reasons.iter().map(pb::BlockedReason::kind);
    assert!(kinds.eq([pb::BlockedReasonKind::Committing]));
    wait_until("committed", || committed(&fixture) == [number]).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let details = fixture.details().await;
    assert!(details.blocked_reasons.is_empty() && details.failures.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_can_never_succeed_fails_the_job() {
    let (fixture, task_executor) = to_run().await;
    *fixture.environment.is_occupied.lock() = true;
    complete(&fixture, &task_executor, 1, "a").await;
    wait_until("canceled", || task_executor.was_called("cancel")).await;
    let canceled = task_executor.all_become(S::Canceled);
    fixture.report("tm1", 1, canceled).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    assert!(result.cause.contains("sinks out: /out/part-0 is there"));
    assert!(committed(&fixture).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_gives_up_what_could_not_be_committed() {
    let (fixture, task_executor) = to_run().await;
    *fixture.environment.failing_commits.lock() = u32::MAX;
    complete(&fixture, &task_executor, 1, "a").await;
    fixture.job_master.cancel().await.expect("canceled");
    let canceled = task_executor.all_become(S::Canceled);
    fixture.report("tm1", 1, canceled).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Canceled);
    assert!(committed(&fixture).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_commits_what_is_durable() {
    let (fixture, task_executor) = to_run().await;
    *fixture.environment.failing_commits.lock() = 1;
    let number = complete(&fixture, &task_executor, 1, "a").await;
    wait_until("committed", || committed(&fixture) == [number]).await;
    fixture.job_master.cancel().await.expect("canceled");
    let canceled = task_executor.all_become(S::Canceled);
    fixture.report("tm1", 1, canceled).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Canceled);
}

#[tokio::test(start_paused = true)]
async fn files_of_an_earlier_generation_are_removed_except_what_a_retained_manifest_names() {
    let (fixture, task_executor) = to_run().await;
    complete(&fixture, &task_executor, 1, "a").await;
    fail_all(&fixture, &task_executor).await;
    fixture.report("tm1", 1, task_executor.reports()).await;
    complete(&fixture, &task_executor, 2, "b").await;
    let removed = || fixture.environment.superseded.lock().clone();
    wait_until("removed", || removed().len() == 1).await;
    let removed = removed().remove(0);
    let below = removed.below.iter().map(|((vertex, subtask), below)| {
        let id = execution(1, *subtask, *below);
        (*vertex == id.vertex_id, *subtask, *below)
    });
    assert!(below.eq([(true, 0, 2), (false, 0, 2), (false, 1, 2)]));
    let kept = ["/out/.tanist/b", "/out/.tanist/open-b"].map(|it| it.as_bytes().to_vec());
    assert!(removed.kept.iter().eq(&kept), "{:?}", removed.kept);
    complete(&fixture, &task_executor, 2, "c").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let again = fixture.environment.superseded.lock().len();
    assert_eq!(again, 1, "no generation has grown");
}

#[tokio::test(start_paused = true)]
async fn a_task_takes_checkpoints_if_its_region_does() {
    let mut graph = to_files();
    graph.vertices[0].operators = vec![pb::Operator {
        name: "run".to_owned(),
        spec: r#"{"type":"exec","command":["cat"]}"#.to_owned(),
        ..pb::Operator::default()
    }];
    let (_fixture, task_executor) = running_with(with_checkpoints(), graph).await;
    let takes = |task: &pb::TaskDeployment| task.takes_checkpoints;
    assert!(!task_executor.restored.lock().iter().any(takes));
    let (_fixture, task_executor) = to_run().await;
    assert!(task_executor.restored.lock().iter().all(takes));
}

#[tokio::test(start_paused = true)]
async fn a_removal_of_files_or_marks_that_fails_is_repeated_with_the_next_checkpoint() {
    let (fixture, task_executor) = to_run().await;
    let failing = || *fixture.environment.failing_removals.lock();
    let number = complete(&fixture, &task_executor, 1, "a").await;
    wait_until("committed", || committed(&fixture) == [number]).await;
    *fixture.environment.failing_removals.lock() = 1;
    complete(&fixture, &task_executor, 1, "b").await;
    wait_until("a removal of marks has failed", || failing() == 0).await;
    assert!(fixture.environment.forgotten_marks.lock().is_empty());
    complete(&fixture, &task_executor, 1, "c").await;
    wait_until("forgotten", || {
        let forgotten = fixture.environment.forgotten_marks.lock();
        forgotten.last().is_some_and(|up_to| *up_to >= number)
    })
    .await;

    fail_all(&fixture, &task_executor).await;
    fixture.report("tm1", 1, task_executor.reports()).await;
    // The marks and the files.
    *fixture.environment.failing_removals.lock() = 2;
    complete(&fixture, &task_executor, 2, "d").await;
    wait_until("removals have failed", || failing() == 0).await;
    assert!(fixture.environment.superseded.lock().is_empty());
    complete(&fixture, &task_executor, 2, "e").await;
    wait_until("removed", || {
        fixture.environment.superseded.lock().len() == 1
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn output_of_ended_tasks_is_committed_although_no_checkpoints_are_taken_any_more() {
    let (former, task_executor) = to_run().await;
    former.job_master.stop().await;
    assert!(former.store.checkpoints_history().is_empty());
    let mut state = former.stored();
    state.regions[0].epoch = 2;
    let mut options = with_checkpoints();
    options.checkpoints.interval_ms = 0;
    let (graph, store) = (former.graph.clone(), former.store.clone());
    let fixture = Fixture::start_with(options, graph, state, store);
    let successor = fixture.task_executor("tm1");
    *successor.running.lock() = task_executor.running.lock().clone();
    fixture.register("tm1", 2).await.expect("admitted");
    fixture.job_master.reconciled().await.expect("alive");
    let mut finished = successor.all_become(S::Finished);
    let id = execution(2, 0, 1);
    for report in &mut finished {
        report.committables.clear();
        if (&report.vertex_id, report.subtask) == (&id.vertex_id, id.subtask) {
            report.checkpoint_committables = vec![file("last")];
        }
    }
    fixture.report("tm1", 2, finished).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Finished, "{}", result.cause);
    let committed = fixture.environment.committed_checkpoints.lock().clone();
    let committed: Vec<_> = committed.into_iter().flat_map(|it| it.1).collect();
    assert_eq!(committed, [file("last")]);
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_whose_last_checkpoint_the_store_refuses_can_be_cancelled() {
    let refusals = [
        (PersistError::Refused("too large".to_owned()), "too large"),
        // The storage may be there for others.
        (
            PersistError::NoBlobs("is it mounted?".to_owned()),
            "is it mounted?, on the JobManager at jm:1",
        ),
    ];
    for (refusal, expected) in refusals {
        let (fixture, task_executor) = to_run().await;
        fixture.details().await;
        fixture.store.refuse_checkpoints(Some(refusal));
        let mut finished = task_executor.all_become(S::Finished);
        finished[1].checkpoint_committables = vec![file("last")];
        fixture.report("tm1", 1, finished).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let details = fixture.details().await;
        let failure = details.failures.last().expect("noted");
        assert!(failure.cause.contains(expected), "{}", failure.cause);
        let mut reasons = details.blocked_reasons.iter();
        assert!(reasons.any(|it| it.text.contains(expected)), "{details:?}");
        fixture.job_master.cancel().await.expect("canceled");
        let result = fixture.job_master.ended().await.expect("it ends");
        assert_eq!(result.status(), JobStatus::Canceled);
    }
}

#[tokio::test(start_paused = true)]
async fn the_result_waits_for_a_write_of_the_checkpoints_that_is_under_way() {
    let (fixture, task_executor) = to_run().await;
    *fixture.environment.failing_commits.lock() = u32::MAX;
    complete(&fixture, &task_executor, 1, "a").await;
    fixture
        .store
        .set_checkpoints_delay(Duration::from_secs(1_000));
    let request = pb::TriggerSavepointRequest {
        job_id: fixture.graph.job_id.clone(),
        trigger_id: "0123456789abcdef".to_owned(),
        directory: "/savepoints".to_owned(),
        stop: false,
    };
    let ending = async {
        // The request is being written.
        tokio::time::sleep(Duration::from_secs(1)).await;
        fixture.job_master.cancel().await.expect("canceled");
        let canceled = task_executor.all_become(S::Canceled);
        fixture.report("tm1", 1, canceled).await;
        fixture.job_master.ended().await.expect("it ends")
    };
    let (_answer, result) = tokio::join!(fixture.job_master.trigger_savepoint(request), ending);
    assert_eq!(result.status(), JobStatus::Canceled);
    let written = fixture.store.checkpoints_history().len();
    tokio::time::sleep(Duration::from_secs(5_000)).await;
    assert_eq!(fixture.store.checkpoints_history().len(), written);
}

/// The record of a job that begins with the checkpoint of another one, of which its sink has a file.
fn begun(graph: &pb::JobGraph) -> pb::JobCheckpoints {
    let of = |vertex, subtask, files: &[&str]| pb::SubtaskSnapshot {
        vertex_id: execution(vertex, subtask, 0).vertex_id,
        subtask,
        files: files.iter().map(|it| it.as_bytes().to_vec()).collect(),
        ..pb::SubtaskSnapshot::default()
    };
    let manifest = pb::CheckpointManifest {
        job_id: graph.job_id.clone(),
        number: 7,
        regions: vec![pb::RegionSnapshot {
            kind: pb::RegionSnapshotKind::Taken.into(),
            number: 7,
            generation: 0,
            subtasks: vec![
                of(1, 0, &[]),
                of(2, 0, &["/out/.tanist/from-x"]),
                of(2, 1, &[]),
            ],
        }],
        ..pb::CheckpointManifest::default()
    };
    let place = pb::stored_manifest::Place::Inline(tanist_proto::manifest::encode(&manifest));
    pb::JobCheckpoints {
        job_id: graph.job_id.clone(),
        next: 8,
        floor: 8,
        retained: vec![pb::CompletedCheckpoint {
            number: 7,
            manifest: Some(pb::StoredManifest { place: Some(place) }),
            committed: true,
            ..pb::CompletedCheckpoint::default()
        }],
        started_from: format!("job:{:032x}", 9),
        ..pb::JobCheckpoints::default()
    }
}

#[tokio::test(start_paused = true)]
async fn files_that_another_job_has_handed_over_go_with_the_checkpoint_that_names_them() {
    let (graph, store) = (to_files(), MemoryJobStateStore::default());
    store
        .put_checkpoints(&begun(&graph))
        .await
        .expect("written");
    let state = submitted(&graph);
    let fixture = Fixture::start_with(with_checkpoints(), graph, state, store);
    let task_executor = fixture.task_executor("tm1");
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    fixture.report("tm1", 1, task_executor.reports()).await;
    let removed = || fixture.environment.superseded.lock().clone();
    let forgotten = || fixture.environment.forgotten_marks.lock().clone();
    wait_until("marks of earlier commits are gone", || forgotten() == [7]).await;
    *fixture.environment.failing_removals.lock() = 1;
    complete(&fixture, &task_executor, 1, "x").await;
    let failing = || *fixture.environment.failing_removals.lock();
    wait_until("a removal has failed", || failing() == 0).await;
    assert!(removed().is_empty());
    complete(&fixture, &task_executor, 1, "a").await;
    wait_until("removed", || removed().len() == 1).await;
    let kept = ["/out/.tanist/a", "/out/.tanist/open-a"].map(|it| it.as_bytes().to_vec());
    assert!(removed()[0].kept.iter().eq(&kept), "{:?}", removed());
    complete(&fixture, &task_executor, 1, "b").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(removed().len(), 1, "once");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_can_not_be_built_keeps_the_checkpoint_with_which_it_began() {
    let (mut graph, store) = (to_files(), MemoryJobStateStore::default());
    graph.edges[0].target = "unknown".to_owned();
    store
        .put_checkpoints(&begun(&graph))
        .await
        .expect("written");
    let state = submitted(&graph);
    let fixture = Fixture::start_with(with_checkpoints(), graph, state, store);
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    let stays = fixture.job_master.retained_checkpoints();
    let stays = stays.expect("its only checkpoint");
    assert_eq!(stays.retained[0].number, 7);
}
