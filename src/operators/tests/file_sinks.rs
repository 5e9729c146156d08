//! Whole tasks with a file sink that commits with checkpoints.

use std::collections::BTreeSet;
use std::time::Duration;

use tanist_dataflow::{CheckpointProgress, RunningTask, SinkOutput, TaskStatus};
use tanist_model::{OperatorSpec, operators};
use tanist_proto::v1::trigger_answer::Answer;
use tanist_proto::v1::{CheckpointBarrier, CheckpointCommittable, SubtaskSnapshot, TaskRestore};

use super::{GraphBuilder, TaskManager, spec, wait_until};
use crate::sink;

/// What a task saves for a number.
async fn saved(task: &RunningTask, number: u64, newest: u64) -> SubtaskSnapshot {
    let barrier = CheckpointBarrier {
        number,
        newest,
        ..CheckpointBarrier::default()
    };
    wait_until("the task runs", || {
        matches!(task.trigger(barrier), Answer::Injected(_))
    })
    .await;
    let mut status = task.checkpoints();
    let is_saved = |progress: &CheckpointProgress| matches!(progress, CheckpointProgress::Saved(_));
    let status = status.wait_for(|it| it.highest == number && is_saved(&it.progress));
    match &status.await.expect("it lives").progress {
        CheckpointProgress::Saved(snapshot) => (**snapshot).clone(),
        other => panic!("{other:?}"),
    }
}

async fn stopped(task: &RunningTask) -> SinkOutput {
    task.stop();
    match task.ended().await {
        TaskStatus::Finished { output } => output,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_and_the_end_of_a_restored_task_name_each_record_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = operators::Datagen {
        rate: Some(1000),
        count: None,
        seed: 7,
        keys: 100,
    };
    let path = directory.path().to_string_lossy();
    // The source does not end, so this is the default.
    let sink = operators::FileSink::new(path).rolling(1, Duration::ZERO);
    let operators: [OperatorSpec; 2] = [source.into(), sink.into()];
    let graph = GraphBuilder::new().vertex(1, &operators, None).build();
    let managers = TaskManager::start_many::<1>().await;
    let start = |generation, restore| {
        let mut spec = spec(&graph, &managers, |_, _| 0, (0, 0), generation);
        spec.deployment.takes_checkpoints = true;
        spec.deployment.restore = restore;
        managers[0].runtime.start(spec)
    };
    let first = start(1, None);
    let mut number = 1;
    let mut snapshot = saved(&first, number, 0).await;
    while snapshot.committables.is_empty() {
        number += 1;
        snapshot = saved(&first, number, 0).await;
    }
    let zombie = stopped(&first).await;
    assert!(zombie.committables.is_empty());
    assert!(
        zombie
            .checkpoint_committables
            .starts_with(&snapshot.committables)
    );

    let restore = TaskRestore {
        number,
        snapshot: Some(snapshot.clone()),
        ..TaskRestore::default()
    };
    let second = start(2, Some(restore));
    let mut later = saved(&second, number + 1, number).await;
    while later.committables.is_empty() {
        number += 1;
        later = saved(&second, number + 1, 0).await;
    }
    let last = stopped(&second).await.checkpoint_committables;
    assert!(last.iter().all(|it| it.uid == snapshot.committables[0].uid));
    let commit = |number, committables: &[CheckpointCommittable]| {
        let parts = sink::decoded(committables).expect("of a file sink");
        sink::commit_checkpoint_while(number, &parts, &|| true).expect("committed");
    };
    commit(1, &snapshot.committables);
    commit(2, &last);

    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory.path()).expect("the directory") {
        let entry = entry.expect("an entry");
        if entry.file_name().to_string_lossy().starts_with("part-") {
            let part = std::fs::read_to_string(entry.path()).expect("a part");
            let numbers = part.lines().filter_map(|line| line.split(' ').next());
            found.extend(numbers.map(|it| it.parse::<u64>().expect("a number")));
        }
    }
    let distinct: BTreeSet<u64> = found.iter().copied().collect();
    assert_eq!(found.len(), distinct.len(), "none is there twice");
    assert!(
        distinct.into_iter().eq(0..found.len() as u64),
        "none is missing"
    );
}
