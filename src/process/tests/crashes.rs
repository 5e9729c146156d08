//! The leader dies at each step of a job's life; a standby goes on from the stored state.

use std::time::Duration;

use tanist_dataflow::TaskStatus;
use tanist_gateway::kinds;
use tanist_proto::id::JobId;
use tanist_proto::v1::{ExecutionState, JobState, JobStatus, WantedStatus};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::testing::cluster::{TestCluster, graph};
use crate::testing::history::{Event, Record};
use crate::testing::world::Step;

const JOB: JobId = JobId::from_bits(0xA);

/// Whether this is the step at which the leader dies.
type IsStep = fn(&Step<'_>) -> bool;

/// Three JobManagers, and two TaskManagers with two slots each.
async fn cluster() -> TestCluster {
    let cluster = TestCluster::start(3, 2, 2).await;
    cluster.leader().await;
    cluster
}

/// A client that repeats its submission until it is acknowledged; returns whether an earlier attempt had been
/// applied.
fn submit(cluster: &TestCluster) -> JoinHandle<bool> {
    let client = cluster.client.clone();
    tokio::spawn(async move {
        let answer = client.submit(&graph(JOB, 2), "token").await;
        answer.expect("accepted").repeated
    })
}

fn is_submission(record: &Record) -> bool {
    matches!(record, Record::Graph(_))
}

fn is_result(record: &Record) -> bool {
    matches!(record, Record::Result(_, result) if result.dirty)
}

fn is_clean(record: &Record) -> bool {
    matches!(record, Record::Result(_, result) if !result.dirty)
}

fn is_placed(record: &Record) -> bool {
    matches!(record, Record::State(_, state) if state.regions.iter().any(|region| !region.placements.is_empty()))
}

fn is_failed(record: &Record) -> bool {
    matches!(record, Record::State(_, state) if !state.failures.is_empty())
}

fn is_placed_again(record: &Record) -> bool {
    matches!(record, Record::State(_, state) if state.regions.iter().any(|region| {
        region.generation == 2 && !region.placements.is_empty()
    }))
}

fn is_canceled(record: &Record) -> bool {
    matches!(record, Record::State(_, state) if state.wanted() == WantedStatus::Canceled)
}

fn all_finished(state: &JobState) -> bool {
    let finished = state
        .terminal
        .iter()
        .filter(|end| end.state() == ExecutionState::Finished);
    finished.count() == 4
}

fn is_finished(record: &Record) -> bool {
    matches!(record, Record::State(_, state) if all_finished(state))
}

/// The job runs under the leader of `epoch`, finishes, and leaves exactly its result.
async fn finishes(cluster: &TestCluster, epoch: u64) {
    cluster.leader_above(epoch - 1).await;
    cluster.until_running(JOB, 4).await;
    assert_eq!(cluster.epoch(), epoch);
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}

/// Like [`finishes`], for a job whose tasks ran when the leader died: none of them is restarted.
async fn goes_on(cluster: &TestCluster, epoch: u64) {
    cluster.leader_above(epoch - 1).await;
    assert_eq!(cluster.until_running(JOB, 4).await, 1, "adopted");
    finishes(cluster, epoch).await;
    assert_eq!(generations_started(cluster), [1]);
}

fn generations_started(cluster: &TestCluster) -> Vec<u64> {
    let events = cluster.world.events();
    let started = events.iter().filter_map(|event| match event {
        Event::Started { attempt, .. } => Some(attempt.generation),
        _ => None,
    });
    let mut generations: Vec<u64> = started.collect();
    generations.dedup();
    generations
}

#[tokio::test(start_paused = true)]
async fn before_the_submission_is_written_the_client_submits_again() {
    let mut cluster = cluster().await;
    cluster.strike_at(|step| step.commits(is_submission));
    let submission = submit(&cluster);
    cluster.after_strike().await;
    assert!(!submission.await.expect("acknowledged"));
    finishes(&cluster, 2).await;
    assert_eq!(generations_started(&cluster), [1]);
}

#[tokio::test(start_paused = true)]
async fn after_the_submission_is_written_and_before_it_is_acknowledged_it_runs_once() {
    let mut cluster = cluster().await;
    cluster.strike_at(|step| step.committed(is_submission));
    let submission = submit(&cluster);
    cluster.after_strike().await;
    assert!(
        submission.await.expect("acknowledged"),
        "an earlier try's answer"
    );
    finishes(&cluster, 2).await;
    assert_eq!(generations_started(&cluster), [1]);
}

#[tokio::test(start_paused = true)]
async fn after_the_acknowledgement_the_job_is_recovered() {
    let mut cluster = cluster().await;
    submit(&cluster).await.expect("acknowledged");
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    finishes(&cluster, 2).await;
}

#[tokio::test(start_paused = true)]
async fn while_slots_are_requested() {
    for nth in 1..=2 {
        let mut cluster = cluster().await;
        let mut requests = 0;
        cluster.strike_at(move |step| {
            requests += u32::from(step.calls("request_slot"));
            requests == nth
        });
        submit(&cluster).await.expect("acknowledged");
        cluster.after_strike().await;
        finishes(&cluster, 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn before_a_placement_is_written() {
    let mut cluster = cluster().await;
    cluster.strike_at(|step| step.commits(is_placed));
    submit(&cluster).await.expect("acknowledged");
    cluster.after_strike().await;
    finishes(&cluster, 2).await;
    assert_eq!(generations_started(&cluster).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn between_writing_a_placement_and_deploying_it() {
    let mut cluster = cluster().await;
    cluster.strike_at(|step| step.committed(is_placed));
    submit(&cluster).await.expect("acknowledged");
    cluster.after_strike().await;
    finishes(&cluster, 2).await;
    assert_eq!(
        generations_started(&cluster),
        [2],
        "the first is never deployed"
    );
}

#[tokio::test(start_paused = true)]
async fn in_the_middle_of_deploying() {
    // One slot each, so that the job has to be deployed to two TaskManagers.
    let mut cluster = TestCluster::start(3, 2, 1).await;
    cluster.leader().await;
    let mut deployments = 0;
    cluster.strike_at(move |step| {
        deployments += u32::from(step.calls("submit_tasks"));
        deployments == 2
    });
    submit(&cluster).await.expect("acknowledged");
    cluster.after_strike().await;
    assert_eq!(cluster.world.tasks.of(JOB).len(), 2, "half of it");
    assert_eq!(cluster.until_running(JOB, 4).await, 2);
    finishes(&cluster, 2).await;
}

#[tokio::test(start_paused = true)]
async fn while_a_task_manager_registers() {
    for method in ["register_task_executor", "register_task_manager"] {
        for is_handled in [false, true] {
            let mut cluster = cluster().await;
            submit(&cluster).await.expect("acknowledged");
            cluster.until_running(JOB, 4).await;
            let first = cluster.leader().await;
            // The second dies when the first registration of a TaskManager arrives, or is accepted but not
            // answered yet.
            cluster.strike_at(move |step| step.receives(method, is_handled));
            cluster.kill_job_manager(&first).await;
            cluster.after_strike().await;
            goes_on(&cluster, 3).await;
        }
    }
}

/// A task fails, and the restart strategy permits a restart: no leader's death between the decision and the
/// restarted tasks loses the failure, and it is counted once.
#[tokio::test(start_paused = true)]
async fn while_a_region_restarts_after_a_failure() {
    let steps: [(&str, IsStep); 6] = [
        ("unwritten", |step| step.commits(is_failed)),
        ("written", |step| step.committed(is_failed)),
        ("to be canceled", |step| step.calls("cancel_tasks")),
        ("to be placed", |step| step.commits(is_placed_again)),
        ("placed", |step| step.committed(is_placed_again)),
        ("to be deployed", |step| step.calls("submit_tasks")),
    ];
    let mut seen = Vec::new();
    for (place, strike) in steps {
        let mut cluster = cluster().await;
        submit(&cluster).await.expect("acknowledged");
        cluster.until_running(JOB, 4).await;
        cluster.strike_at(strike);
        let (attempt, _) = cluster.world.tasks.of(JOB).remove(0);
        let failed = TaskStatus::failed("a test wants it");
        cluster.world.end_task(&attempt, failed);
        cluster.after_strike().await;
        cluster.leader_above(1).await;
        let generation = cluster.until_running(JOB, 4).await;
        let stored = cluster.world.stored();
        let restarts = stored.states[&JOB].restarts.clone().unwrap_or_default();
        seen.push((place, generation, restarts.restarts));
        finishes(&cluster, 2).await;
    }
    // Only the term that wrote a generation deploys it. A failure that was not written is reported to the next
    // leader.
    let expected = [
        ("unwritten", 2, 1),
        ("written", 3, 1),
        ("to be canceled", 3, 1),
        ("to be placed", 3, 1),
        ("placed", 3, 1),
        ("to be deployed", 3, 1),
    ];
    assert_eq!(seen, expected);
}

#[tokio::test(start_paused = true)]
async fn while_the_job_runs() {
    let mut cluster = cluster().await;
    submit(&cluster).await.expect("acknowledged");
    cluster.until_running(JOB, 4).await;
    let leader = cluster.leader().await;
    let start = Instant::now();
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    assert_eq!(cluster.until_running(JOB, 4).await, 1);
    assert!(
        start.elapsed() < Duration::from_millis(100),
        "took {:?}",
        start.elapsed()
    );
    goes_on(&cluster, 2).await;
}

#[tokio::test(start_paused = true)]
async fn while_the_job_runs_and_no_process_leads_until_the_lease_is_over() {
    let mut cluster = cluster().await;
    submit(&cluster).await.expect("acknowledged");
    cluster.until_running(JOB, 4).await;
    let leader = cluster.leader().await;
    cluster.kill_job_manager_keeping_its_lease(&leader).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(cluster.world.tasks.of(JOB).len(), 4, "tasks need no leader");
    goes_on(&cluster, 2).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_cancel_is_written_the_job_is_canceled() {
    for is_written in [false, true] {
        let mut cluster = cluster().await;
        submit(&cluster).await.expect("acknowledged");
        cluster.until_running(JOB, 4).await;
        cluster.strike_at(move |step| match is_written {
            true => step.committed(is_canceled),
            false => step.commits(is_canceled),
        });
        let client = cluster.client.clone();
        let cancel = tokio::spawn(async move { client.cancel(JOB).await });
        cluster.after_strike().await;
        assert_eq!(cluster.until_clean(JOB).await, JobStatus::Canceled);
        cancel
            .await
            .expect("answered")
            .expect("acknowledged, however late");
        cluster.check();
    }
}

#[tokio::test(start_paused = true)]
async fn between_the_end_of_all_tasks_and_the_result_sinks_are_committed_again() {
    let steps: [fn(&Step<'_>) -> bool; 5] = [
        |step| step.commits(is_finished),
        |step| step.committed(is_finished),
        |step| matches!(step, Step::CommittingSinks),
        |step| matches!(step, Step::CommittedSinks),
        |step| step.commits(is_result),
    ];
    for (place, strike) in steps.into_iter().enumerate() {
        let mut cluster = cluster().await;
        submit(&cluster).await.expect("acknowledged");
        cluster.until_running(JOB, 4).await;
        cluster.strike_at(strike);
        cluster.world.finish_tasks(JOB);
        cluster.after_strike().await;
        assert_eq!(
            cluster.until_clean(JOB).await,
            JobStatus::Finished,
            "{place}"
        );
        let events = cluster.world.events();
        let commits = events
            .iter()
            .filter(|event| matches!(event, Event::SinksCommitted(_)));
        assert_eq!(commits.count(), if place < 3 { 1 } else { 2 }, "{place}");
        // Even if nothing of its end was written: the TaskManagers report it again.
        assert_eq!(generations_started(&cluster), [1], "{place}");
        cluster.check();
    }
}

#[tokio::test(start_paused = true)]
async fn between_result_and_cleanup_the_job_is_cleaned_up_and_not_run() {
    let steps: [fn(&Step<'_>) -> bool; 3] = [
        |step| step.committed(is_result),
        |step| step.commits(is_clean),
        |step| step.committed(is_clean),
    ];
    for strike in steps {
        let mut cluster = cluster().await;
        submit(&cluster).await.expect("acknowledged");
        cluster.until_running(JOB, 4).await;
        cluster.strike_at(strike);
        cluster.world.finish_tasks(JOB);
        cluster.after_strike().await;
        assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
        assert_eq!(generations_started(&cluster), [1]);
        // Its slots are free again: another job gets all of them.
        let other = JobId::from_bits(0xB);
        cluster
            .client
            .submit(&graph(other, 4), "other")
            .await
            .expect("accepted");
        cluster.until_running(other, 8).await;
        cluster.check();
    }
}

#[tokio::test(start_paused = true)]
async fn two_leaders_in_a_row_die_and_the_third_goes_on() {
    let mut cluster = cluster().await;
    submit(&cluster).await.expect("acknowledged");
    cluster.until_running(JOB, 4).await;
    let first = cluster.leader().await;
    // The second dies right after the write that takes over the job.
    cluster.strike_at(|step| {
        step.committed(
            |record| matches!(record, Record::State(_, state) if state.job_incarnation == 2),
        )
    });
    cluster.kill_job_manager(&first).await;
    cluster.after_strike().await;
    goes_on(&cluster, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_before_it_is_confirmed_leaves_everything_to_the_next() {
    let mut cluster = cluster().await;
    submit(&cluster).await.expect("acknowledged");
    cluster.until_running(JOB, 4).await;
    let first = cluster.leader().await;
    cluster.strike_at(|step| {
        step.commits(
            |record| matches!(record, Record::State(_, state) if state.job_incarnation == 2),
        )
    });
    cluster.kill_job_manager(&first).await;
    let second = cluster.after_strike().await;
    cluster.start_job_manager(&first);
    cluster.start_job_manager(&second);
    goes_on(&cluster, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_stopped_hands_over_at_once() {
    let mut cluster = cluster().await;
    submit(&cluster).await.expect("acknowledged");
    cluster.until_running(JOB, 4).await;
    let leader = cluster.leader().await;
    let start = Instant::now();
    cluster.stop_job_manager(&leader).await;
    assert_ne!(cluster.leader_above(1).await, leader);
    assert!(
        start.elapsed() < Duration::from_millis(100),
        "took {:?}",
        start.elapsed()
    );
    goes_on(&cluster, 2).await;
    let stored = cluster.world.stored();
    assert!(
        stored.graphs.is_empty() && stored.states.is_empty(),
        "{:?}",
        kinds::GRAPHS
    );
}
