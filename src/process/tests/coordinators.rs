//! Tasks ask for file splits while leaders die: each split has one owner, and each request one answer.

use std::collections::BTreeMap;
use std::path::Path;

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tanist_proto::v1::coordinator_state::State;
use tanist_task_executor::TaskStatus;

use crate::testing::cluster::{TestCluster, graph_of_files};
use crate::testing::history::{AttemptKey, Record};
use crate::testing::world::Step;

const JOB: JobId = JobId::from_bits(0xA);
const OPERATOR: &str = "lines";
/// Two subtasks get several splits each.
const SIZE: usize = 100_000;

/// Three JobManagers, two TaskManagers, and a job of four tasks, two of which read a file in the returned
/// directory.
async fn running() -> (TestCluster, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("input");
    write(&path, SIZE);
    let cluster = TestCluster::start(3, 2, 2).await;
    cluster.leader().await;
    let graph = graph_of_files(JOB, 2, &path.to_string_lossy());
    let submitted = cluster.client.submit(&graph, "token").await;
    submitted.expect("accepted");
    assert_eq!(cluster.until_running(JOB, 4).await, 1);
    (cluster, directory)
}

fn write(path: &Path, size: usize) {
    std::fs::write(path, vec![b'\n'; size]).expect("written");
}

/// The reading subtasks, in order.
fn readers(cluster: &TestCluster) -> Vec<AttemptKey> {
    let vertex = stored(cluster).0;
    let running = cluster.world.tasks.of(JOB).into_iter();
    let mut readers: Vec<AttemptKey> = running
        .map(|(attempt, _)| attempt)
        .filter(|attempt| attempt.vertex == vertex)
        .collect();
    readers.sort();
    readers
}

/// The reading vertex, its generation and its splits, as stored.
fn stored(cluster: &TestCluster) -> (String, u64, pb::FileSplits) {
    let state = cluster.world.stored().states[&JOB].clone();
    let [state] = state.coordinators.as_slice() else {
        panic!("not one coordinator: {state:?}");
    };
    let Some(State::FileSplits(splits)) = state.state.clone() else {
        panic!("not of a file source: {state:?}");
    };
    (state.vertex_id.clone(), state.generation, splits)
}

fn has_given(record: &Record) -> bool {
    let Record::State(_, state) = record else {
        return false;
    };
    state.coordinators.iter().any(|it| match &it.state {
        Some(State::FileSplits(splits)) => !splits.assigned.is_empty(),
        None => false,
    })
}

/// Begin and end of a split.
fn range(answer: &Answer) -> Option<(u64, u64)> {
    match answer {
        Answer::FileSplit(split) => Some((split.ranges[0].start, split.ranges[0].end)),
        Answer::Exhausted(_) => None,
    }
}

async fn ask(cluster: &TestCluster, attempt: &AttemptKey, number: u64) -> Answer {
    let answer = cluster.world.ask(attempt, OPERATOR, number).await;
    answer.expect("its task runs").expect("there is an answer")
}

/// Both subtasks ask until nothing is left, after the answers in `known`; then every split was given exactly
/// once.
async fn take_all(cluster: &TestCluster, known: BTreeMap<u32, Vec<Answer>>, size: usize) {
    let mut given = Vec::new();
    for attempt in readers(cluster) {
        let mut answers = known.get(&attempt.subtask).cloned().unwrap_or_default();
        loop {
            let next = ask(cluster, &attempt, answers.len() as u64 + 1).await;
            let Some(split) = range(&next) else { break };
            answers.push(next);
            given.push(split);
            if given.len() > 3 && attempt.subtask == 0 {
                break;
            }
        }
        given.extend(
            known
                .get(&attempt.subtask)
                .into_iter()
                .flatten()
                .filter_map(range),
        );
    }
    given.sort_unstable();
    let mut at = 0;
    for (start, end) in given {
        assert_eq!(start, at, "lost, or given twice");
        at = end;
    }
    assert_eq!(at, size as u64);
}

/// The leader dies at a step of the first request. The step decides whether the answer is stored by then.
async fn a_request_is_answered_whose_leader_dies_at(
    strike: impl Fn(&Step<'_>) -> bool + Send + 'static,
    is_decided: bool,
) {
    let (mut cluster, _directory) = running().await;
    let [first, _] = readers(&cluster).try_into().expect("two subtasks");
    let cut = stored(&cluster).2;
    cluster.strike_at(strike);
    let answer = cluster.world.ask(&first, OPERATOR, 1);
    cluster.after_strike().await;
    assert_eq!(!stored(&cluster).2.assigned.is_empty(), is_decided);
    let answer = answer.await.expect("its task runs").expect("is answered");
    assert_eq!(cluster.epoch(), 2);
    let now = stored(&cluster).2;
    assert_eq!(
        (&now.files, &now.ends),
        (&cut.files, &cut.ends),
        "cut again"
    );
    assert_eq!(now.assigned[0].splits, [0]);
    // The answer was lost: asked again, also at the next leader.
    assert_eq!(ask(&cluster, &first, 1).await, answer);
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    assert_eq!(ask(&cluster, &first, 1).await, answer);
    assert_eq!(
        cluster.until_running(JOB, 4).await,
        1,
        "nothing was started again"
    );
    let known = BTreeMap::from([(first.subtask, vec![answer])]);
    take_all(&cluster, known, SIZE).await;
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, pb::JobStatus::Finished);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_request_is_answered_by_the_next_leader_when_nothing_was_written() {
    a_request_is_answered_whose_leader_dies_at(|step| step.commits(has_given), false).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_is_answered_by_the_next_leader_as_the_former_one_had_written() {
    a_request_is_answered_whose_leader_dies_at(|step| step.committed(has_given), true).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_leader_a_task_that_asks_waits() {
    let (mut cluster, _directory) = running().await;
    let [first, second] = readers(&cluster).try_into().expect("two subtasks");
    for name in ["jm1", "jm2", "jm3"] {
        cluster.kill_job_manager(name).await;
    }
    let asked = [&first, &second].map(|attempt| cluster.world.ask(attempt, OPERATOR, 1));
    tokio::time::sleep(std::time::Duration::from_secs(100)).await;
    assert_eq!(readers(&cluster), [first, second], "they run on");
    cluster.start_job_manager("jm1");
    for answer in asked {
        let answer = answer.await.expect("its task runs").expect("is answered");
        assert!(range(&answer).is_some());
    }
    assert_eq!(cluster.until_running(JOB, 4).await, 1);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_region_that_starts_again_looks_at_its_files_again() {
    let (cluster, directory) = running().await;
    let [first, _] = readers(&cluster).try_into().expect("two subtasks");
    ask(&cluster, &first, 1).await;
    write(&directory.path().join("input"), 2 * SIZE);
    let failed = TaskStatus::failed("division by zero".to_owned());
    cluster.world.end_task(&first, failed);
    cluster
        .until_stored("the next generation", |stored| {
            let state = &stored.states[&JOB];
            let mut coordinators = state.coordinators.iter();
            coordinators.any(|it| it.generation == 2)
        })
        .await;
    assert_eq!(cluster.until_running(JOB, 4).await, 2);
    let (_, generation, splits) = stored(&cluster);
    assert_eq!((generation, splits.files[0].size), (2, 2 * SIZE as u64));
    assert_eq!(splits.assigned, [], "given by the generation before");
    take_all(&cluster, BTreeMap::new(), 2 * SIZE).await;
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, pb::JobStatus::Finished);
    cluster.check();
}
