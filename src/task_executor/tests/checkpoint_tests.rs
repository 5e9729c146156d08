//! Checkpoints of a TaskExecutor with its loop: objects are written and read, and reported to JobMasters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tanist_dataflow::{CheckpointProgress, CheckpointStatus};
use tanist_gateway::GatewayResult;
use tanist_ha::blob::{BlobOptions, BlobStore, Marker};
use tanist_ha::election::ClusterIncarnation;
use tanist_proto::pieces::{Piece, pieces};

use super::scripted_gateways::Heard;
use super::scripted_leader::Leader;
use super::testing::*;
use crate::actor::faults::{Fault, plant};
use crate::*;

const SIZE: usize = 5_000;

fn snapshot() -> pb::SubtaskSnapshot {
    let segment = |name: &str, size: usize| pb::StateSegment {
        uid: "count".to_owned(),
        name: name.to_owned(),
        length: size as u64,
        content: name.bytes().cycle().take(size).collect(),
        ..pb::StateSegment::default()
    };
    pb::SubtaskSnapshot {
        vertex_id: VERTEX.to_owned(),
        segments: vec![segment("large", SIZE), segment("small", 10)],
        positions: vec![pb::SourcePosition {
            uid: "files".to_owned(),
            position: vec![3; 2 * SIZE],
            ..pb::SourcePosition::default()
        }],
        operators: vec![pb::OperatorState {
            uid: "sink".to_owned(),
            content: vec![4; SIZE],
            ..pb::OperatorState::default()
        }],
        ..pb::SubtaskSnapshot::default()
    }
}

fn saved(number: u64) -> CheckpointStatus {
    CheckpointStatus {
        highest: number,
        progress: CheckpointProgress::Saved(Arc::new(snapshot())),
        input_ended: false,
        paused: false,
        times: pb::CheckpointTimes {
            alignment_us: 7,
            saving_us: 11,
            writing_us: 0,
        },
    }
}

fn options(directory: PathBuf) -> Options {
    let (url, shared) = (directory.to_string_lossy().into_owned(), true);
    Options {
        checkpoints: Some(CheckpointPlace {
            blobs: BlobOptions { url, shared },
            option: tanist_ha::blob::options::BLOBS,
            is_marked: false,
        }),
        ..Options::default()
    }
}

/// A TaskExecutor with objects in this directory, and its task.
async fn running_in(directory: PathBuf) -> (World, Leader, Started) {
    running_as(options(directory)).await
}

async fn running_as(options: Options) -> (World, Leader, Started) {
    running_with(options, "").await
}

/// The same for a deployment that names a storage.
async fn running_with(options: Options, storage: &str) -> (World, Leader, Started) {
    let mut world = World::start_as(false, None, options);
    let (_, leader) = world.with_leader("jm1:1", 1).await;
    leader.request_slot(0, A1).await;
    leader.registered_job().await;
    leader.offered().await;
    let mut request = leader.deployment(0, 1, A1);
    storage.clone_into(&mut request.tasks[0].storage);
    let answer = leader.task_executor().submit_tasks(request).await;
    assert!(answer.expect("is registered").refused.is_empty());
    let task = world.next_started().await;
    task.status.send_replace(TaskStatus::Running);
    leader.updated(pb::ExecutionState::Running).await;
    (world, leader, task)
}

/// The options of a TaskExecutor whose directory for objects is the storage `s` of cluster `c1`.
async fn options_of_storage_s(directory: &Path) -> Options {
    let (url, shared) = (directory.to_string_lossy().into_owned(), true);
    let blobs = BlobStore::open(&BlobOptions { url, shared }).await;
    let blobs = blobs
        .expect("a directory")
        .of_cluster(&ClusterIncarnation::new("c1"));
    let storage = Marker {
        storage: "s".to_owned(),
        cluster: "c".to_owned(),
        incarnation: "c1".to_owned(),
        epoch: 1,
        process: "p".to_owned(),
        confirmation: "1".to_owned(),
    };
    blobs.put_marker(&storage).await.expect("it is put");
    marked(options(directory.to_owned()))
}

fn marked(options: Options) -> Options {
    let checkpoints = options.checkpoints.map(|place| CheckpointPlace {
        is_marked: true,
        ..place
    });
    Options {
        checkpoints,
        ..options
    }
}

async fn reported(leader: &Leader, progress: pb::CheckpointProgress) -> pb::CheckpointReport {
    let take = |heard| match heard {
        Heard::Checkpoints(request) => {
            let mut reports = request.reports.into_iter();
            reports.find(|report| report.progress() == progress)
        }
        _ => None,
    };
    leader.wait_for(progress.as_str_name(), take).await
}

/// Waits for the report of an execution that can't read its state.
async fn unread(leader: &Leader) -> pb::ExecutionReport {
    let take = |heard| match heard {
        Heard::Update(request) => {
            let mut executions = request.executions.into_iter();
            executions.find(|execution| !execution.unread_state.is_empty())
        }
        _ => None,
    };
    leader.wait_for("state that can't be read", take).await
}

fn execution() -> pb::ExecutionId {
    pb::ExecutionId {
        vertex_id: VERTEX.to_owned(),
        subtask: 0,
        generation: 1,
    }
}

async fn abort(leader: &Leader, number: u64) -> GatewayResult<pb::Ack> {
    let request = pb::AbortCheckpointRequest {
        sender: leader.job_master_sender(),
        job: scope(),
        number,
        executions: vec![execution()],
    };
    leader.task_executor().abort_checkpoint(request).await
}

/// Waits until a task has received something.
async fn told(task: &Started, what: &str) {
    let telling = async {
        while !task.told.lock().iter().any(|told| told.starts_with(what)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let told = tokio::time::timeout(BOUND, telling).await;
    told.unwrap_or_else(|_| panic!("it was not told: {what}"));
}

#[tokio::test]
async fn large_state_is_in_an_object_when_it_is_acknowledged_and_a_restored_task_has_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut world, leader, task) = running_in(directory.path().to_owned()).await;
    task.checkpoints.send_replace(saved(7));
    let report = reported(&leader, pb::CheckpointProgress::Acknowledged).await;
    assert_eq!((report.highest, report.execution), (7, Some(execution())));
    let times = report.times.expect("the task has said how long it took");
    assert_eq!((times.alignment_us, times.saving_us), (7, 11));
    assert!(times.writing_us > 0, "the object was written");
    let written = report.snapshot.expect("a snapshot");
    let [large, small] = &written.segments[..] else {
        panic!("{written:?}");
    };
    assert!(large.object.starts_with("7-1-") && large.content.is_empty());
    assert_eq!((large.offset, large.length), (0, SIZE as u64));
    assert_eq!(small, &snapshot().segments[1]);
    let places = pieces(&written).filter_map(Piece::place);
    let ranges = places.map(|it| (it.offset as usize, it.length as usize));
    let expected = [(0, SIZE), (SIZE, 2 * SIZE), (3 * SIZE, SIZE)];
    assert!(ranges.eq(expected), "{written:?}");
    // The task learns that it need not keep it.
    told(&task, "written 7 in 3 places").await;

    // The next generation is restored from it, in another slot.
    leader.request_slot(1, A2).await;
    let mut request = leader.deployment(0, 2, A2);
    request.tasks[0].restore = Some(pb::TaskRestore {
        number: 7,
        snapshot: Some(written.clone()),
        ..pb::TaskRestore::default()
    });
    let answer = leader.task_executor().submit_tasks(request).await;
    assert_eq!(answer.expect("is registered").refused, []);
    let restored = world.next_started().await;
    let restore = restored.start.deployment.restore.expect("a snapshot");
    let read = restore.snapshot.expect("there");
    let (read, expected) = (pieces(&read), snapshot());
    assert!(
        read.map(Piece::content)
            .eq(pieces(&expected).map(Piece::content))
    );
}

/// Whether each piece that an acknowledged snapshot names is in the directory as it was saved (K5).
fn is_durable(
    directory: &Path,
    written: &pb::SubtaskSnapshot,
    saved: &pb::SubtaskSnapshot,
) -> bool {
    let checkpoints = directory.join("checkpoints");
    let clusters = std::fs::read_dir(checkpoints).into_iter().flatten();
    let jobs = clusters.map(|cluster| cluster.expect("an entry").path().join(JOB.to_string()));
    let jobs: Vec<PathBuf> = jobs.collect();
    let is_there = |(written, saved): (Piece<'_>, Piece<'_>)| {
        let Some(place) = written.place() else {
            return written.content() == saved.content();
        };
        let mut objects = jobs
            .iter()
            .map(|job| std::fs::read(job.join(&place.object)));
        let range = place.offset as usize..(place.offset + place.length) as usize;
        objects.any(|object| {
            object.is_ok_and(|object| object.get(range.clone()) == Some(saved.content()))
        })
    };
    pieces(written).zip(pieces(saved)).all(is_there)
}

#[tokio::test]
async fn what_is_acknowledged_is_durable_and_a_planted_fault_is_found() {
    for fault in [None, Some(Fault::AcknowledgedBeforeDurable)] {
        let directory = tempfile::tempdir().expect("a directory");
        let (_world, leader, task) = running_in(directory.path().to_owned()).await;
        plant(fault);
        task.checkpoints.send_replace(saved(7));
        let report = reported(&leader, pb::CheckpointProgress::Acknowledged).await;
        plant(None);
        let written = report.snapshot.expect("a snapshot");
        let is_durable = is_durable(directory.path(), &written, &snapshot());
        assert_eq!(is_durable, fault.is_none(), "{fault:?}");
    }
}

/// Contents that no other subtask has.
fn contents_of(subtask: u32) -> pb::SubtaskSnapshot {
    let mut snapshot = snapshot();
    snapshot.subtask = subtask;
    for operator in &mut snapshot.operators {
        operator.content = vec![u8::try_from(subtask).expect("few"); SIZE + subtask as usize];
    }
    snapshot
}

#[tokio::test]
async fn small_snapshots_of_many_tasks_are_written_and_each_task_is_restored_from_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut world, leader, first) = running_in(directory.path().to_owned()).await;
    let mut tasks = vec![first];
    for subtask in 1..8 {
        let request = leader.deployment(subtask, 1, A1);
        let answer = leader.task_executor().submit_tasks(request).await;
        assert_eq!(answer.expect("is registered").refused, []);
        let task = world.next_started().await;
        task.status.send_replace(TaskStatus::Running);
        tasks.push(task);
    }
    for (subtask, task) in (0..).zip(&tasks) {
        task.checkpoints.send_replace(CheckpointStatus {
            progress: CheckpointProgress::Saved(Arc::new(contents_of(subtask))),
            ..saved(7)
        });
    }
    let mut written = BTreeMap::new();
    while written.len() < tasks.len() {
        let take = |heard| match heard {
            Heard::Checkpoints(request) => Some(request.reports),
            _ => None,
        };
        for report in leader.wait_for("reports", take).await {
            if report.progress() == pb::CheckpointProgress::Acknowledged {
                let snapshot = report.snapshot.expect("a snapshot");
                written.insert(snapshot.subtask, snapshot);
            }
        }
    }
    leader.request_slot(1, A2).await;
    for (subtask, snapshot) in written {
        let mut request = leader.deployment(subtask, 2, A2);
        request.tasks[0].restore = Some(pb::TaskRestore {
            number: 7,
            snapshot: Some(snapshot),
            ..pb::TaskRestore::default()
        });
        let answer = leader.task_executor().submit_tasks(request).await;
        assert_eq!(answer.expect("is registered").refused, []);
        let restored = world.next_started().await;
        let restore = restored.start.deployment.restore.expect("a snapshot");
        let (read, expected) = (restore.snapshot.expect("there"), contents_of(subtask));
        let read = pieces(&read).map(Piece::content);
        assert!(
            read.eq(pieces(&expected).map(Piece::content)),
            "subtask {subtask}"
        );
    }
}

/// Deploys the next generation, which is restored from what was written for checkpoint 7.
async fn deploy_restored(leader: &Leader, written: &pb::SubtaskSnapshot) {
    let mut request = leader.deployment(0, 2, A1);
    request.tasks[0].restore = Some(pb::TaskRestore {
        number: 7,
        snapshot: Some(written.clone()),
        ..pb::TaskRestore::default()
    });
    let answer = leader.task_executor().submit_tasks(request).await;
    assert_eq!(answer.expect("is registered").refused, []);
}

#[tokio::test]
async fn a_task_fails_whose_state_is_missing_and_the_report_says_that_no_restart_helps() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_world, leader, task) = running_in(directory.path().to_owned()).await;
    task.checkpoints.send_replace(saved(7));
    let report = reported(&leader, pb::CheckpointProgress::Acknowledged).await;
    let written = report.snapshot.expect("a snapshot");
    let object = written.segments[0].object.clone();
    let checkpoints = directory.path().join("checkpoints");
    for cluster in std::fs::read_dir(&checkpoints).expect("a directory") {
        let job = cluster.expect("an entry").path().join(JOB.to_string());
        std::fs::remove_file(job.join(&object)).expect("it was there");
    }
    deploy_restored(&leader, &written).await;
    let failed = leader.updated(pb::ExecutionState::Failed).await;
    assert_eq!((failed.generation, failed.highest_checkpoint), (2, 7));
    for part in ["checkpoint 7", &object, "is damaged"] {
        assert!(failed.cause.contains(part), "{}", failed.cause);
    }
    assert_eq!(failed.damaged_state, failed.cause);
    assert!(!failed.unrecoverable, "that would end the job");
}

#[tokio::test]
async fn state_that_can_not_be_read_at_present_is_waited_for_and_the_report_says_where() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut world, leader, task) = running_in(directory.path().to_owned()).await;
    task.checkpoints.send_replace(saved(7));
    let report = reported(&leader, pb::CheckpointProgress::Acknowledged).await;
    let written = report.snapshot.expect("a snapshot");
    let [here, away] = ["checkpoints", "away"].map(|name| directory.path().join(name));
    std::fs::rename(&here, &away).expect("it was there");
    deploy_restored(&leader, &written).await;
    let told = unread(&leader).await;
    assert_eq!(
        (told.generation, told.state()),
        (2, pb::ExecutionState::Deploying)
    );
    let place = directory.path().to_string_lossy();
    for part in ["checkpoint 7", &written.segments[0].object, TE, &place] {
        assert!(told.unread_state.contains(part), "{}", told.unread_state);
    }
    std::fs::rename(&away, &here).expect("it was there");
    let restored = world.next_started().await;
    restored.status.send_replace(TaskStatus::Running);
    let running = leader.updated(pb::ExecutionState::Running).await;
    assert_eq!((running.generation, running.unread_state.as_str()), (2, ""));
    let restore = restored.start.deployment.restore.expect("a snapshot");
    assert_eq!(
        restore.snapshot.expect("there").segments[0].content.len(),
        SIZE
    );
}

#[tokio::test]
async fn a_task_that_waits_for_its_state_ends_when_its_task_executor_stops() {
    let directory = tempfile::tempdir().expect("a directory");
    let (world, leader, task) = running_in(directory.path().to_owned()).await;
    task.checkpoints.send_replace(saved(7));
    let report = reported(&leader, pb::CheckpointProgress::Acknowledged).await;
    let written = report.snapshot.expect("a snapshot");
    let [here, away] = ["checkpoints", "away"].map(|name| directory.path().join(name));
    std::fs::rename(&here, &away).expect("it was there");
    deploy_restored(&leader, &written).await;
    unread(&leader).await;
    world.executor.stop("SIGTERM").await;
    let take = |heard| match heard {
        Heard::DisconnectedJobMaster(request) => Some(request.nothing_runs),
        _ => None,
    };
    assert!(leader.wait_for("disconnect", take).await);
}

#[tokio::test]
async fn state_that_can_not_be_written_is_declined_with_host_and_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("place");
    std::fs::create_dir(&place).expect("made");
    std::fs::write(place.join("checkpoints"), "not a directory").expect("written");
    let (_world, leader, task) = running_in(place.clone()).await;
    task.checkpoints.send_replace(saved(7));
    let report = reported(&leader, pb::CheckpointProgress::Declined).await;
    let reason = report.reason;
    let place = place.to_string_lossy().into_owned();
    assert!(reason.contains(TE) && reason.contains(&place), "{reason}");
}

#[tokio::test]
async fn state_is_written_to_the_storage_of_the_deployment_or_not_at_all() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = options_of_storage_s(directory.path()).await;
    for named in ["", "s"] {
        let (_world, leader, task) = running_with(options.clone(), named).await;
        task.checkpoints.send_replace(saved(7));
        let report = reported(&leader, pb::CheckpointProgress::Acknowledged).await;
        assert_eq!(report.storage, "s");
    }
    let checkpoints = directory.path().join("checkpoints");
    std::fs::remove_dir_all(&checkpoints).expect("objects were there");

    let (_world, leader, task) = running_with(options, "t").await;
    task.checkpoints.send_replace(saved(7));
    let report = reported(&leader, pb::CheckpointProgress::Declined).await;
    assert!(report.reason.contains("another storage"), "{report:?}");
    assert_eq!(report.storage, "");
    assert!(!checkpoints.exists(), "it was written");
}

#[tokio::test]
async fn state_that_a_storage_does_not_take_is_reported_as_being_written_until_it_is_aborted() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, shared) = (directory.path().to_string_lossy().into_owned(), true);
    let blobs = BlobStore::open(&BlobOptions { url, shared }).await;
    let blobs = blobs
        .expect("a directory")
        .of_cluster(&ClusterIncarnation::new("c1"));
    let marker = blobs.marker_name().expect("a name");
    let marker = directory.path().join(marker.as_str());
    // Who reads it is blocked, as by a server that does not answer.
    let made = std::process::Command::new("mkfifo").arg(&marker).status();
    assert!(made.expect("mkfifo").success());
    let options = marked(options(directory.path().to_owned()));
    let (_world, leader, task) = running_as(options).await;
    task.checkpoints.send_replace(saved(7));
    let report = reported(&leader, pb::CheckpointProgress::Writing).await;
    assert_eq!(report.highest, 7);
    abort(&leader, 7).await.expect("is registered");
    told(&task, "release 7").await;
    // It answers again.
    let blocked = directory.path().join("blocked");
    std::fs::rename(&marker, &blocked).expect("it is there");
    options_of_storage_s(directory.path()).await;
    task.checkpoints.send_replace(saved(8));
    let report = reported(&leader, pb::CheckpointProgress::Acknowledged).await;
    assert_eq!(report.highest, 8);
    // A thread that is blocked ends, and the test with it.
    let both = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&blocked);
    both.expect("it opens at once");
}

#[tokio::test(start_paused = true)]
async fn the_next_leader_learns_of_an_acknowledgement_with_the_registration() {
    let (world, leader, task) = running(false).await;
    task.checkpoints.send_replace(saved(7));
    reported(&leader, pb::CheckpointProgress::Acknowledged).await;
    let committables = Vec::new();
    task.status.send_replace(TaskStatus::finished(committables));
    let ended = leader.updated(pb::ExecutionState::Finished).await;
    assert_eq!(ended.highest_checkpoint, 7);
    leader.acknowledge(1).await;
    let (_, next) = world.with_leader("jm2:1", 2).await;
    let registered = next.registered_job().await;
    assert!(registered.takes_checkpoints);
    let [report] = &registered.checkpoints[..] else {
        panic!("{registered:?}");
    };
    assert_eq!(report.progress(), pb::CheckpointProgress::Acknowledged);
    assert_eq!((report.highest, &report.snapshot), (7, &Some(snapshot())));
}

#[tokio::test(start_paused = true)]
async fn triggers_and_aborts_reach_the_task_of_the_present_job_master() {
    let (world, leader, task) = running(false).await;
    let trigger = async |leader: &Leader| {
        let request = pb::TriggerCheckpointRequest {
            sender: leader.job_master_sender(),
            job: scope(),
            barrier: Some(pb::CheckpointBarrier {
                number: 7,
                ..pb::CheckpointBarrier::default()
            }),
            sources: vec![execution()],
        };
        leader.task_executor().trigger_checkpoint(request).await
    };
    let answer = trigger(&leader).await.expect("is registered");
    let injected = pb::trigger_answer::Answer::Injected(pb::Ack {});
    assert_eq!(answer.answers[0].answer, Some(injected));
    abort(&leader, 7).await.expect("is registered");
    told(&task, "abort 7").await;
    // What it may have saved is not needed.
    told(&task, "release 7").await;
    assert_eq!(*task.told.lock(), ["trigger 7", "abort 7", "release 7"]);
    let heartbeat = leader.job_heartbeat(&[A1]).await.expect("is registered");
    let [report] = &heartbeat.checkpoints[..] else {
        panic!("{heartbeat:?}");
    };
    assert_eq!(report.progress(), pb::CheckpointProgress::Aborted);
    world.with_leader("jm2:1", 2).await;
    trigger(&leader).await.expect_err("another one leads");
    abort(&leader, 7).await.expect_err("another one leads");
    assert_eq!(task.told.lock().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_blocks_continues_after_a_second_without_a_leader() {
    let (world, leader, task) = running(false).await;
    task.checkpoints.send_replace(CheckpointStatus {
        highest: 7,
        progress: CheckpointProgress::Blocked,
        input_ended: false,
        paused: false,
        times: pb::CheckpointTimes::default(),
    });
    pass(Duration::from_secs(3)).await;
    assert_eq!(*task.told.lock(), Vec::<String>::new());
    world.no_leader();
    pass(Duration::from_millis(900)).await;
    assert_eq!(*task.told.lock(), Vec::<String>::new());
    pass(Duration::from_millis(200)).await;
    assert_eq!(task.told.lock().len(), 1, "{:?}", task.told.lock());
    world.lead(&leader);
    let report = reported(&leader, pb::CheckpointProgress::Declined).await;
    assert_eq!(report.highest, 7);
}
