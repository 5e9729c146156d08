//! Which TaskManagers a JobMaster counts as lost, and when: silent, unreachable or refusing ones, on paused
//! time. Adoption after a change of the leader is not tested here.

use std::time::Duration;

use tanist_gateway::GoneTaskManager;
use tanist_proto::v1::JobStatus;

use super::scripted::{Fixture, Mood, options, wait_until};
use crate::RestartStrategy;

/// The call that a TaskManager receives when it is given up.
const GOODBYE: &str = "disconnect, ended: false";

/// Asserts that the job fails for this reason, long before a heartbeat times out.
async fn fails_soon(fixture: &Fixture, reason: &str) {
    let before = tokio::time::Instant::now();
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    assert!(result.cause.contains(reason), "{}", result.cause);
    let elapsed = before.elapsed();
    assert!(elapsed <= Duration::from_secs(21), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_standstill_of_the_job_master_counts_as_no_silence_of_task_managers() {
    let (fixture, task_executor) = Fixture::running(options(RestartStrategy::None)).await;
    fixture.report("tm1", 1, task_executor.reports()).await;
    // As if the process had been stopped: no timer fired meanwhile.
    tokio::time::advance(Duration::from_secs(90)).await;
    let asked = tokio::time::Instant::now();
    while asked.elapsed() < Duration::from_secs(120) {
        let details = fixture.details().await;
        assert_eq!(details.status(), JobStatus::Running);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(!task_executor.was_called("cancel"));
    // A TaskManager that is silent afterwards is lost as usual.
    *task_executor.mood.lock() = Mood::Silent;
    let result = fixture.job_master.ended();
    let ended = tokio::time::timeout(Duration::from_secs(300), result).await;
    let result = ended.expect("in time").expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_silent_task_manager_is_lost_and_its_region_restarts_elsewhere() {
    let (fixture, first) = Fixture::running(options(RestartStrategy::default())).await;
    let second = fixture.task_executor("tm2");
    *first.mood.lock() = Mood::Silent;
    let before = tokio::time::Instant::now();
    wait_until("a new generation", || {
        fixture.stored().regions[0].generation == 2
    })
    .await;
    assert!(
        before.elapsed() >= Duration::from_secs(40),
        "{:?}",
        before.elapsed()
    );
    assert!(
        before.elapsed() <= Duration::from_secs(61),
        "{:?}",
        before.elapsed()
    );
    fixture.register("tm2", 2).await.expect("admitted");
    wait_until("three tasks run elsewhere", || second.reports().len() == 3).await;
    let details = fixture.details().await;
    assert_eq!(
        (details.restarts, details.vertices[0].subtasks[0].attempt),
        (1, 2)
    );
    let failure = details.failures.last().expect("one failure");
    assert!(first.was_called(GOODBYE));
    assert_eq!(failure.task, "a (1/1)");
    assert_eq!(
        failure.cause,
        "TaskManager tm1 (tm1:1) was lost: no heartbeat for 50000 ms"
    );
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_the_resource_manager_found_gone_is_lost_at_once() {
    let (fixture, task_executor) = Fixture::running(options(RestartStrategy::None)).await;
    let verdict = fixture.environment.registered.lock()[0].verdict.clone();
    let tell = |incarnation: String| {
        let gone = GoneTaskManager {
            id: "tm1".parse().expect("an id"),
            incarnation,
            cause: "connection refused".to_owned(),
        };
        verdict.change(|verdict| verdict.gone.push(gone));
    };
    tell("0".to_owned());
    assert_eq!(fixture.details().await.status(), JobStatus::Running);
    wait_until("it took that", || verdict.look(|it| it.gone.is_empty())).await;
    assert_eq!(fixture.details().await.status(), JobStatus::Running);
    let before = tokio::time::Instant::now();
    tell("1".to_owned());
    let result = fixture.job_master.ended().await.expect("it ends");
    let cause = "TaskManager tm1 (tm1:1) was lost: connection refused";
    assert!(result.cause.contains(cause), "{}", result.cause);
    assert!(before.elapsed() < Duration::from_secs(1));
    assert!(task_executor.was_called(GOODBYE));
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_can_not_be_reached_is_lost_before_its_heartbeat_times_out() {
    let (fixture, task_executor) = Fixture::running(options(RestartStrategy::None)).await;
    *task_executor.mood.lock() = Mood::Unreachable;
    fails_soon(&fixture, "TaskManager tm1 (tm1:1) was lost").await;
    // It may still be alive. Then it must refuse late messages.
    assert!(task_executor.was_called(GOODBYE));
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_refuses_a_job_master_which_is_cut_off_is_lost_only_by_its_silence() {
    let (fixture, task_executor) = Fixture::running(options(RestartStrategy::None)).await;
    *fixture.environment.is_cut_off.lock() = true;
    let before = tokio::time::Instant::now();
    for _ in 0..2 {
        *task_executor.mood.lock() = Mood::Unreachable;
        tokio::time::sleep(Duration::from_secs(25)).await;
        let details = fixture.details().await;
        assert_eq!(details.status(), JobStatus::Running);
        *task_executor.mood.lock() = Mood::Well;
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    *task_executor.mood.lock() = Mood::Unreachable;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert!(result.cause.contains("no heartbeat"), "{}", result.cause);
    let elapsed = before.elapsed();
    assert!(elapsed >= Duration::from_secs(115), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_refuses_heartbeats_is_lost_without_ending_the_term() {
    let (fixture, task_executor) = Fixture::running(options(RestartStrategy::None)).await;
    *task_executor.mood.lock() = Mood::StartedAgain;
    fails_soon(&fixture, "no such registration").await;
    assert!(task_executor.was_called(GOODBYE));
    assert_eq!(*fixture.deposed_by.lock(), None);
}
