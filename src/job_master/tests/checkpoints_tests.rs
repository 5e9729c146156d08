//! Checkpoints of a job through the actor, with scripted TaskExecutors: a round, a restart from a snapshot, a change of
//! the leader with a checkpoint in flight, and the end of the job. Not here: what a user is told
//! ([`super::checkpoint_notices_tests`]).

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::persistence::MemoryJobStateStore;
use tanist_gateway::{Detail, JobMasterGateway as _};
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::scripted::{Fixture, TaskExecutor, options, sender, wait_until};
use crate::core::tests::testing::{graph_of, submitted};
use crate::{CheckpointDefaults, JobMasterOptions, RestartStrategy};

const INTERVAL: Duration = Duration::from_secs(10);

pub(super) fn with_checkpoints() -> JobMasterOptions {
    let restart_strategy = RestartStrategy::FixedDelay {
        attempts: 3,
        delay_ms: 100,
    };
    JobMasterOptions {
        checkpoints: CheckpointDefaults {
            interval_ms: 10_000,
            ..CheckpointDefaults::default()
        },
        ..options(restart_strategy)
    }
}

/// The id of a subtask of `a`, the source, or `b`.
pub(super) fn execution(vertex: u32, subtask: u32, generation: u64) -> pb::ExecutionId {
    pb::ExecutionId {
        vertex_id: format!("{vertex:032x}"),
        subtask,
        generation,
    }
}

/// What a subtask has saved for a number: its name and the number.
fn snapshot(execution: &pb::ExecutionId, number: u64) -> pb::SubtaskSnapshot {
    pb::SubtaskSnapshot {
        vertex_id: execution.vertex_id.clone(),
        subtask: execution.subtask,
        positions: vec![pb::SourcePosition {
            uid: "u".to_owned(),
            position: format!("{}/{} at {number}", execution.vertex_id, execution.subtask).into(),
            ..pb::SourcePosition::default()
        }],
        ..pb::SubtaskSnapshot::default()
    }
}

pub(super) fn report(
    execution: pb::ExecutionId,
    number: u64,
    progress: pb::CheckpointProgress,
) -> pb::CheckpointReport {
    let is_saved = progress == pb::CheckpointProgress::Acknowledged;
    pb::CheckpointReport {
        snapshot: is_saved.then(|| snapshot(&execution, number)),
        execution: Some(execution),
        highest: number,
        progress: progress.into(),
        times: is_saved.then_some(TIMES),
        ..pb::CheckpointReport::default()
    }
}

const TIMES: pb::CheckpointTimes = pb::CheckpointTimes {
    alignment_us: 7,
    saving_us: 11,
    writing_us: 13,
};

/// The reports of all three tasks that they have saved a number.
pub(super) fn all_saved(number: u64, generation: u64) -> Vec<pb::CheckpointReport> {
    let tasks = [(1, 0), (2, 0), (2, 1)];
    let saved = tasks.map(|(vertex, subtask)| {
        let execution = execution(vertex, subtask, generation);
        report(execution, number, pb::CheckpointProgress::Acknowledged)
    });
    saved.to_vec()
}

pub(super) async fn tell(fixture: &Fixture, registration: u64, reports: Vec<pb::CheckpointReport>) {
    let request = pb::ReportCheckpointsRequest {
        sender: Some(sender(registration)),
        job: None,
        resource_id: "tm1".to_owned(),
        incarnation: "1".to_owned(),
        reports,
    };
    let told = fixture.job_master.report_checkpoints(request).await;
    told.expect("registered");
}

/// A job whose three tasks run, as their TaskManager has reported.
async fn running() -> (Fixture, Arc<TaskExecutor>) {
    let graph = graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]);
    running_with(with_checkpoints(), graph).await
}

/// The same of this graph, which has three tasks.
pub(super) async fn running_with(
    options: JobMasterOptions,
    graph: pb::JobGraph,
) -> (Fixture, Arc<TaskExecutor>) {
    let (fixture, task_executor) = Fixture::running_with(options, graph).await;
    fixture.report("tm1", 1, task_executor.reports()).await;
    (fixture, task_executor)
}

pub(super) fn triggered(task_executor: &TaskExecutor) -> u64 {
    let triggered = task_executor.triggered.lock();
    let barrier = triggered.as_ref().and_then(|it| it.barrier);
    barrier.map_or(0, |barrier| barrier.number)
}

pub(super) fn retained(store: &MemoryJobStateStore) -> Vec<u64> {
    let history = store.checkpoints_history();
    let last = history.last().cloned().unwrap_or_default();
    last.retained.iter().map(|it| it.number).collect()
}

/// A job of which a checkpoint is complete, and its number.
pub(super) async fn checkpointed() -> (Fixture, Arc<TaskExecutor>, u64) {
    let (fixture, task_executor) = running().await;
    wait_until("a trigger", || triggered(&task_executor) > 0).await;
    let number = triggered(&task_executor);
    tell(&fixture, 1, all_saved(number, 1)).await;
    wait_until("complete", || retained(&fixture.store) == [number]).await;
    (fixture, task_executor, number)
}

/// The texts of the events of checkpoints.
pub(super) fn checkpoint_events(details: &pb::JobDetails) -> Vec<&str> {
    let events = details.events.iter();
    let events = events.filter(|it| it.kind() == pb::JobEventKind::Checkpoint);
    events.map(|it| &*it.text).collect()
}

#[tokio::test(start_paused = true)]
async fn a_round_triggers_the_source_and_its_acknowledgements_complete_it_in_one_write() {
    let (fixture, task_executor) = running().await;
    let began = tokio::time::Instant::now();
    wait_until("a trigger", || triggered(&task_executor) > 0).await;
    assert!(began.elapsed() <= INTERVAL + Duration::from_secs(1));
    let trigger = task_executor.triggered.lock().clone().expect("triggered");
    assert_eq!(trigger.sources, [execution(1, 0, 1)], "only the source");
    assert_eq!(trigger.job.expect("named").job_id, fixture.graph.job_id);
    let number = triggered(&task_executor);
    let before = fixture.store.checkpoints_history().len();
    let states = fixture.store.history().len();
    let mut saved = all_saved(number, 1);
    let last = saved.pop().expect("three");
    tell(&fixture, 1, saved).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fixture.store.checkpoints_history().len(), before);
    let details = fixture.details().await;
    let checkpoints = details.checkpoints.expect("taken");
    let open = checkpoints.history.last().expect("in progress");
    assert_eq!(open.outcome(), pb::CheckpointOutcome::InProgress);
    assert_eq!((open.subtasks, open.acknowledged_subtasks), (3, 2));
    let vertices = open.vertices.iter();
    let counts = vertices.map(|it| (it.subtasks, it.acknowledged_subtasks));
    assert!(counts.eq([(1, 1), (2, 1)]), "{open:?}");
    let [saved] = &checkpoints.saved[..] else {
        panic!("one region: {checkpoints:?}");
    };
    assert_eq!((&*saved.vertices.concat(), saved.regions), ("ab", 1));
    let began_ms = saved.since_ms;
    assert!(began_ms < open.triggered_at_ms, "{saved:?}");

    tell(&fixture, 1, vec![last]).await;
    wait_until("complete", || retained(&fixture.store) == [number]).await;
    let history = fixture.store.checkpoints_history();
    assert_eq!(history.len(), before + 1, "one write");
    assert_eq!(
        fixture.store.history().len(),
        states,
        "none of the job's state"
    );
    let details = fixture.details().await;
    let checkpoints = details.checkpoints.expect("taken");
    assert_eq!(
        (checkpoints.completed, checkpoints.interval_ms),
        (1, 10_000)
    );
    let done = checkpoints.history.last().expect("complete");
    assert_eq!(done.outcome(), pb::CheckpointOutcome::Completed);
    assert_eq!((done.number, done.acknowledged_subtasks), (number, 3));
    assert_eq!(checkpoints.saved[0].since_ms, done.ended_at_ms);
    let b = &done.vertices[1];
    assert_eq!(b.vertex_id, execution(2, 0, 1).vertex_id);
    let subtasks = b.acknowledgements.iter().map(|it| it.subtask);
    assert!(subtasks.eq([0, 1]), "{b:?}");
    let [of_first, of_last] = [&b.acknowledgements[0], &b.acknowledgements[1]];
    assert!(of_first.at_ms < of_last.at_ms, "{b:?}");
    assert_eq!(of_last.times, Some(TIMES));
    let saved = snapshot(&execution(2, 1, 1), number);
    let size = saved.positions[0].position.len() as u64;
    assert_eq!((of_last.size, of_last.written), (size, size));
    assert_eq!(done.written, 3 * size);
}

/// Has all tasks fail, and waits until their next attempt is deployed.
pub(super) async fn fail_all(fixture: &Fixture, task_executor: &TaskExecutor) {
    task_executor.restored.lock().clear();
    let failed = task_executor.all_become(S::Failed);
    task_executor.running.lock().clear();
    fixture.report("tm1", 1, failed).await;
    wait_until("deployed again", || {
        task_executor.restored.lock().len() == 3
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_region_is_placed_with_the_number_of_its_snapshot_and_its_tasks_get_it() {
    let (fixture, task_executor, number) = checkpointed().await;
    fail_all(&fixture, &task_executor).await;
    let placed = &fixture.stored().regions[0];
    assert_eq!((placed.generation, placed.restored_from), (2, number));
    for task in task_executor.restored.lock().iter() {
        let restore = task.restore.as_ref().expect("a snapshot");
        let id = pb::ExecutionId {
            vertex_id: task.vertex_id.clone(),
            subtask: task.subtask,
            generation: 2,
        };
        assert_eq!(restore.number, number);
        assert_eq!(restore.snapshot, Some(snapshot(&id, number)));
    }
    let details = fixture.details().await;
    let checkpoints = details.checkpoints.expect("taken");
    assert_eq!(checkpoints.restored_from, number);
}

#[tokio::test(start_paused = true)]
async fn a_number_in_flight_outlives_its_leader_and_no_task_restarts() {
    let (former, task_executor) = running().await;
    wait_until("a trigger", || triggered(&task_executor) > 0).await;
    let number = triggered(&task_executor);
    former.job_master.stop().await;
    let mut state = former.stored();
    state.regions[0].epoch = 2;
    assert!(retained(&former.store).is_empty());
    let fixture = Fixture::start_with(
        with_checkpoints(),
        former.graph.clone(),
        state,
        former.store.clone(),
    );
    let successor = fixture.task_executor("tm1");
    *successor.running.lock() = task_executor.running.lock().clone();
    // One has saved it, one works on it, and one has not heard of it.
    *successor.checkpoints.lock() = vec![
        report(
            execution(1, 0, 1),
            number,
            pb::CheckpointProgress::Acknowledged,
        ),
        report(execution(2, 0, 1), number, pb::CheckpointProgress::Writing),
        report(execution(2, 1, 1), 0, pb::CheckpointProgress::Unheard),
    ];
    fixture.register("tm1", 2).await.expect("admitted");
    let adoption = fixture.job_master.reconciled().await.expect("alive");
    assert_eq!((adoption.tasks_adopted, adoption.tasks_restarted), (3, 0));
    let others = all_saved(number, 1).split_off(1);
    tell(&fixture, 2, others).await;
    wait_until("complete", || retained(&fixture.store) == [number]).await;
    assert!(successor.restored.lock().is_empty());
    let heard = successor.calls.lock().clone();
    let aborted = format!("abort {number}");
    assert!(!heard.contains(&aborted), "{heard:?}");
    let region = &fixture.stored().regions[0];
    assert_eq!((region.generation, region.restored_from), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_newest_complete_checkpoint_of_an_earlier_leader_is_shown_and_not_counted() {
    let (former, task_executor) = running().await;
    wait_until("a trigger", || triggered(&task_executor) > 0).await;
    let number = triggered(&task_executor);
    tell(&former, 1, all_saved(number, 1)).await;
    wait_until("complete", || retained(&former.store) == [number]).await;
    let of_former = former.details().await.checkpoints.expect("taken");
    former.job_master.stop().await;
    let fixture = Fixture::start_with(
        with_checkpoints(),
        former.graph.clone(),
        former.stored(),
        former.store.clone(),
    );
    let details = fixture.details().await.checkpoints.expect("it has some");
    let [known] = details.history.as_slice() else {
        panic!("{:?}", details.history);
    };
    let [before] = of_former.history.as_slice() else {
        panic!("{:?}", of_former.history);
    };
    assert_eq!(known.outcome(), pb::CheckpointOutcome::Completed);
    let told = |it: &pb::CheckpointSummary| (it.number, it.size, it.triggered_at_ms);
    assert_eq!(told(known), told(before));
    assert!(
        known.triggered_at_ms > 0 && known.ended_at_ms == 0,
        "{known:?}"
    );
    assert_eq!(details.completed, 0, "of this leader");
}

#[tokio::test(start_paused = true)]
async fn a_number_that_a_task_declines_is_aborted_at_all_tasks() {
    let (fixture, task_executor) = running().await;
    wait_until("a trigger", || triggered(&task_executor) > 0).await;
    let number = triggered(&task_executor);
    let source = all_saved(number, 1).split_off(2);
    tell(&fixture, 1, source).await;
    let declined = pb::CheckpointReport {
        reason: "its disk is full".to_owned(),
        ..report(execution(2, 0, 1), number, pb::CheckpointProgress::Declined)
    };
    tell(&fixture, 1, vec![declined]).await;
    let aborted = format!("abort {number}");
    wait_until("aborted", || task_executor.was_called(&aborted)).await;
    tell(&fixture, 1, all_saved(number, 1)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(retained(&fixture.store).is_empty());
    let details = fixture.details().await;
    let checkpoints = details.checkpoints.expect("taken");
    assert_eq!((checkpoints.completed, checkpoints.failed), (0, 1));
    let failed = checkpoints.history.last().expect("failed");
    assert_eq!(
        failed.reason,
        "b (1/2) at tm1 declined it: its disk is full"
    );
    assert_eq!((failed.acknowledged_subtasks, failed.subtasks), (1, 3));
    wait_until("the next one", || triggered(&task_executor) > number).await;
    // The first failure in a row is an event, and so is the first completion after it.
    let (failed, number) = (number, triggered(&task_executor));
    let declined = pb::CheckpointReport {
        reason: "it still is".to_owned(),
        ..report(execution(2, 1, 1), number, pb::CheckpointProgress::Declined)
    };
    tell(&fixture, 1, vec![declined]).await;
    wait_until("the next one", || triggered(&task_executor) > number).await;
    let number = triggered(&task_executor);
    tell(&fixture, 1, all_saved(number, 1)).await;
    wait_until("complete", || retained(&fixture.store) == [number]).await;
    let details = fixture.details().await;
    let texts = checkpoint_events(&details);
    let expected = [
        format!("checkpoint {failed} failed: b (1/2) at tm1 declined it: its disk is full"),
        format!("checkpoint {number} is complete, after 2 that failed"),
    ];
    assert_eq!(texts, expected);
    // A list has the complete one alone, and one subtask of each vertex.
    let described = fixture.job_master.describe(Detail::Brief).await;
    let described = described.expect("alive").checkpoints.expect("taken");
    let [complete] = &described.history[..] else {
        panic!("one: {described:?}");
    };
    assert_eq!(complete.number, number);
    let kept = complete.vertices.iter().map(|it| it.acknowledgements.len());
    assert!(kept.eq([1, 1]), "{complete:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_cancellation_is_decided_no_snapshot_is_written() {
    let (fixture, task_executor) = running().await;
    wait_until("a trigger", || triggered(&task_executor) > 0).await;
    let number = triggered(&task_executor);
    fixture.job_master.cancel().await.expect("canceled");
    let aborted = format!("abort {number}");
    wait_until("aborted", || task_executor.was_called(&aborted)).await;
    tell(&fixture, 1, all_saved(number, 1)).await;
    tokio::time::sleep(3 * INTERVAL).await;
    assert!(retained(&fixture.store).is_empty());
    assert_eq!(triggered(&task_executor), number, "no other one");
    let canceled = task_executor.all_become(S::Canceled);
    fixture.report("tm1", 1, canceled).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Canceled);
    let details = result.details.as_ref().expect("described");
    assert!(details.checkpoints.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_result_follows_the_manifest_that_has_the_ends_of_all_tasks() {
    let (fixture, task_executor, number) = checkpointed().await;
    fixture.store.set_delay(Duration::from_secs(1));
    let finished = task_executor.all_become(S::Finished);
    fixture.report("tm1", 1, finished).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Finished, "{}", result.cause);
    let history = fixture.store.checkpoints_history();
    let last = history.last().and_then(|it| it.retained.last()).cloned();
    let last = last.expect("a checkpoint");
    assert!(last.number > number);
    let stored = last.manifest.and_then(|it| it.place).expect("a place");
    let pb::stored_manifest::Place::Inline(bytes) = stored else {
        panic!("{stored:?} is small");
    };
    let manifest = tanist_proto::manifest::decode(&bytes).expect("readable");
    let subtasks = &manifest.regions[0].subtasks;
    assert!(subtasks.iter().all(|it| it.ended), "{subtasks:?}");
    // Nothing is written after the result.
    let writes = history.len();
    tokio::time::sleep(3 * INTERVAL).await;
    assert_eq!(fixture.store.checkpoints_history().len(), writes);
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_can_not_be_read_ends_no_job_and_names_its_number() {
    let graph = graph_of(&[("a", 1)], &[]);
    let mut state = submitted(&graph);
    state.job_incarnation = 1;
    state.regions = vec![pb::RegionState::default()];
    let store = MemoryJobStateStore::default();
    let damaged = pb::StoredManifest {
        place: Some(pb::stored_manifest::Place::Inline(b"tnCM?".to_vec())),
    };
    let record = pb::JobCheckpoints {
        job_id: graph.job_id.clone(),
        next: 20,
        retained: vec![pb::CompletedCheckpoint {
            number: 7,
            manifest: Some(damaged),
            ..pb::CompletedCheckpoint::default()
        }],
        ..pb::JobCheckpoints::default()
    };
    use tanist_gateway::persistence::JobStateStore as _;
    store.put_checkpoints(&record).await.expect("written");
    // Also if no checkpoints are to be taken any more.
    let options = JobMasterOptions::default();
    let fixture = Fixture::start_with(options, graph, state, store);
    assert!(fixture.job_master.ended().await.is_none());
    let reason = fixture.job_master.unfit().expect("unfit");
    assert!(reason.contains("checkpoint 7"), "{reason}");
}

/// The numbers of the checkpoints that stay after a job that ends with this status.
async fn staying_after(options: JobMasterOptions, end: S) -> Vec<u64> {
    let (fixture, task_executor) = Fixture::running(options).await;
    fixture.report("tm1", 1, task_executor.reports()).await;
    wait_until("a trigger", || triggered(&task_executor) > 0).await;
    let number = triggered(&task_executor);
    tell(&fixture, 1, all_saved(number, 1)).await;
    wait_until("complete", || retained(&fixture.store) == [number]).await;
    assert!(fixture.job_master.retained_checkpoints().is_none());
    if end == S::Canceled {
        fixture.job_master.cancel().await.expect("canceled");
    }
    let ended = task_executor.all_become(end);
    fixture.report("tm1", 1, ended).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    let stays = fixture.job_master.retained_checkpoints();
    let described = result
        .details
        .as_ref()
        .and_then(|it| it.checkpoints.clone());
    let kept = stays.as_ref().map_or(0, |record| record.retained[0].number);
    assert_eq!(described.expect("it had some").kept, kept);
    if let Some(record) = &stays {
        assert_eq!(record.floor, record.next, "all else is garbage");
        assert_eq!(record.retained[0].number, number);
    }
    stays.map_or_else(Vec::new, |it| {
        it.retained.iter().map(|it| it.number).collect()
    })
}

#[tokio::test(start_paused = true)]
async fn the_newest_checkpoint_stays_after_a_failure_and_if_wanted_after_a_cancellation() {
    let fails = JobMasterOptions {
        restart_strategy: RestartStrategy::None,
        ..with_checkpoints()
    };
    assert_eq!(staying_after(fails, S::Failed).await.len(), 1);
    assert!(
        staying_after(with_checkpoints(), S::Finished)
            .await
            .is_empty()
    );
    assert!(
        staying_after(with_checkpoints(), S::Canceled)
            .await
            .is_empty()
    );
    let mut retains = with_checkpoints();
    retains.checkpoints.retention = pb::CheckpointRetention::RetainOnCancellation;
    assert_eq!(staying_after(retains, S::Canceled).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_state_is_damaged_quarantines_the_job_and_changes_no_record() {
    let (fixture, task_executor, _) = checkpointed().await;
    let failed = task_executor.all_become(S::Failed);
    fixture.report("tm1", 1, failed).await;
    wait_until("the next attempt is deployed", || {
        task_executor.reports().iter().any(|it| it.generation > 1)
    })
    .await;
    // The answer to the deployment arrives, and what follows is written.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = (fixture.stored(), fixture.store.checkpoints_history());
    let mut damaged = task_executor.all_become(S::Failed);
    for report in &mut damaged {
        report.damaged_state = "checkpoint 7 is damaged: its object 7-1-aa is missing".to_owned();
    }
    fixture.report("tm1", 1, damaged).await;
    assert!(fixture.job_master.ended().await.is_none());
    let reason = fixture.job_master.unfit().expect("unfit");
    assert!(reason.contains("7-1-aa"), "{reason}");
    let after = (fixture.stored(), fixture.store.checkpoints_history());
    assert_eq!(after, before);
}

/// The messages with which three tasks are deployed that are restored from 500 bytes each, by the limit of a message.
async fn deployments_with(max_message_size: usize) -> (usize, Vec<u64>) {
    let graph = graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]);
    let options = JobMasterOptions {
        max_message_size,
        ..with_checkpoints()
    };
    let (fixture, task_executor) = running_with(options, graph).await;
    wait_until("a trigger", || triggered(&task_executor) > 0).await;
    let number = triggered(&task_executor);
    let mut saved = all_saved(number, 1);
    for snapshot in saved.iter_mut().filter_map(|it| it.snapshot.as_mut()) {
        snapshot.positions[0].position = vec![7; 500];
    }
    tell(&fixture, 1, saved).await;
    wait_until("complete", || retained(&fixture.store) == [number]).await;
    task_executor.calls.lock().clear();
    let failed = task_executor.all_become(S::Failed);
    fixture.report("tm1", 1, failed).await;
    wait_until("deployed again", || {
        let reports = task_executor.reports();
        reports.iter().all(|it| it.generation == 2)
    })
    .await;
    fixture.report("tm1", 1, task_executor.reports()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let calls = task_executor.calls.lock().clone();
    let generations = task_executor.reports();
    let generations = generations.iter().map(|it| it.generation).collect();
    (
        calls.iter().filter(|it| *it == "submit").count(),
        generations,
    )
}

#[tokio::test(start_paused = true)]
async fn deployments_for_one_task_manager_are_divided_by_the_limit_of_a_message() {
    assert_eq!(deployments_with(16 << 20).await, (1, vec![2; 3]));
    assert_eq!(deployments_with(3_000).await, (2, vec![2; 3]));
    assert_eq!(deployments_with(10).await, (3, vec![2; 3]));
}
