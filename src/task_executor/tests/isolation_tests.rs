//! A TaskExecutor with tasks of an isolated job: it starts none that the store does not know, and stops them by
//! itself. On paused time.

use std::time::Duration;

use tanist_gateway::{GatewayResult, StoredGenerations};
use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::scripted_leader::*;
use super::testing::*;
use crate::launcher::TaskStatus;
use crate::*;

const TIMEOUT: Duration = Duration::from_secs(30);
const CANCELLATION: Duration = Duration::from_secs(10);

/// The deployment of a generation of an isolated job.
fn isolated(leader: &Leader, generation: u64) -> pb::SubmitTasksRequest {
    pb::SubmitTasksRequest {
        stop_first: Some(pb::StopFirst {
            timeout_ms: 30_000,
            cancellation_ms: 10_000,
        }),
        ..leader.deployment(0, generation, A1)
    }
}

async fn deploy(leader: &Leader, generation: u64) -> GatewayResult<pb::SubmitTasksResponse> {
    let request = isolated(leader, generation);
    leader.task_executor().submit_tasks(request).await
}

/// A TaskExecutor with a slot of the job.
async fn with_slot(is_slow_to_cancel: bool) -> (World, Leader) {
    let world = World::start(is_slow_to_cancel);
    let (_, leader) = world.with_leader("jm1:1", 1).await;
    leader.request_slot(0, A1).await;
    leader.registered_job().await;
    leader.offered().await;
    (world, leader)
}

/// Generation 1 of the job's only task runs, and the store knows it.
async fn running_isolated(is_slow_to_cancel: bool) -> (World, Leader, Started) {
    let (mut world, leader) = with_slot(is_slow_to_cancel).await;
    world.records.say_generation(1, 1);
    let answer = deploy(&leader, 1).await.expect("is registered");
    assert_eq!(answer.refused, []);
    let task = world.next_started().await;
    task.status.send_replace(TaskStatus::Running);
    leader.updated(pb::ExecutionState::Running).await;
    (world, leader, task)
}

/// Its JobMaster sends heartbeats as usual.
async fn heartbeats(leader: &Leader, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        leader.job_heartbeat(&[A1]).await.expect("is registered");
        pass(Duration::from_secs(1)).await;
    }
}

/// Waits for the task's end. Returns how long that took.
async fn stopped(task: &Started) -> Duration {
    let start = Instant::now();
    let mut status = task.status.subscribe();
    let ended = status.wait_for(|it| it.is_terminal() || *it == TaskStatus::Canceling);
    let ended = tokio::time::timeout(BOUND, ended).await;
    ended.expect("it stops").expect("the task is there");
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_task_starts_only_when_the_store_has_its_generation() {
    let (mut world, leader) = with_slot(false).await;
    for (said, why) in [
        (None, "the store does not answer"),
        (Some((1, 2)), "a younger generation follows"),
        (Some((1, 0)), "an older store"),
    ] {
        match said {
            Some((epoch, generation)) => world.records.say_generation(epoch, generation),
            None => world.records.say(None),
        }
        let answer = deploy(&leader, 1).await.expect("is registered");
        assert_eq!(answer.refused.len(), 1, "{why}");
    }
    world.records.say(Some((1, StoredGenerations::Absent)));
    assert_eq!(deploy(&leader, 1).await.expect("heard").refused.len(), 1);
    assert!(world.started.try_recv().is_err(), "nothing was started");
    // None of these counts as a start.
    world.records.say_generation(1, 1);
    assert_eq!(deploy(&leader, 1).await.expect("heard").refused, []);
    world.next_started().await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_of_a_term_that_the_store_knows_to_be_over_starts_nothing() {
    let (mut world, leader) = with_slot(false).await;
    world.records.say_generation(2, 1);
    assert!(deploy(&leader, 1).await.is_err());
    assert_eq!(world.highest.accepted().epoch, Epoch::new(2));
    assert!(world.started.try_recv().is_err(), "nothing was started");
}

#[tokio::test(start_paused = true)]
async fn tasks_continue_without_a_leader_while_the_store_answers() {
    let (world, _leader, task) = running_isolated(false).await;
    world.connector.remove("jm1:1");
    world.no_leader();
    pass(Duration::from_secs(1800)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    assert!(!world.guard.is_overdue());
}

#[tokio::test(start_paused = true)]
async fn the_store_is_asked_rarely_while_the_job_master_is_heard() {
    let (world, leader, task) = running_isolated(false).await;
    let before = world.records.reads();
    heartbeats(&leader, Duration::from_secs(300)).await;
    let reads = world.records.reads() - before;
    assert!((20..=32).contains(&reads), "{reads} reads");
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn without_the_store_tasks_are_stopped_though_a_job_master_is_heard() {
    let (world, leader, task) = running_isolated(false).await;
    world.records.be_silent();
    let start = Instant::now();
    let stop = stopped(&task);
    tokio::select! {
        took = stop => assert!(took <= TIMEOUT + Duration::from_millis(200), "{took:?}"),
        () = heartbeats(&leader, HOUR) => panic!("the leader may have been deposed long ago"),
    }
    let took = start.elapsed();
    let at_least = TIMEOUT - Duration::from_secs(12);
    assert!(took >= at_least, "asked every ten seconds: {took:?}");
    leader.updated(pb::ExecutionState::Canceled).await;
    assert!(!world.guard.is_overdue());
}

#[tokio::test(start_paused = true)]
async fn a_read_counts_from_its_beginning_and_not_from_its_answer() {
    let (world, _leader, task) = running_isolated(false).await;
    let start = Instant::now();
    // Each answer is outdated when it arrives.
    world.records.answer_after(Duration::from_secs(9));
    pass(Duration::from_secs(60)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    world.records.say(None);
    stopped(&task).await;
    assert!(start.elapsed() >= Duration::from_secs(60));
    let asked = world.records.last_answered();
    let late = Instant::now() - asked;
    assert!(late <= TIMEOUT + Duration::from_millis(200), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stood_still_stops_isolated_tasks_before_it_does_anything_else() {
    let (world, _leader, task) = running_isolated(true).await;
    tokio::time::advance(TIMEOUT + Duration::from_secs(5)).await;
    let took = stopped(&task).await;
    assert!(took <= Duration::from_millis(1), "{took:?}");
    // Some of the cancellation time is used up.
    let start = Instant::now();
    let cause = world.executor.fatal().await;
    assert!(matches!(cause, Fatal::CancellationTimedOut(_)), "{cause}");
    let took = start.elapsed();
    assert!(took <= Duration::from_secs(5), "{took:?}");
    assert!(world.guard.is_overdue() || took < CANCELLATION);
}

#[tokio::test(start_paused = true)]
async fn the_guard_shows_that_tasks_run_after_their_deadline() {
    let (world, _leader, _task) = running_isolated(true).await;
    assert!(!world.guard.is_overdue());
    // Nothing in the process runs.
    tokio::time::advance(TIMEOUT + CANCELLATION + Duration::from_millis(1)).await;
    assert!(world.guard.is_overdue());
}

#[tokio::test(start_paused = true)]
async fn superseded_isolated_tasks_have_less_time_to_end() {
    let (world, _leader, task) = running_isolated(true).await;
    world.connector.remove("jm1:1");
    world.no_leader();
    world.records.say_generation(2, 2);
    stopped(&task).await;
    let start = Instant::now();
    assert!(matches!(
        world.executor.fatal().await,
        Fatal::CancellationTimedOut(_)
    ));
    let took = start.elapsed();
    assert!(took <= CANCELLATION, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_that_takes_long_is_cut_short_when_the_store_falls_silent() {
    let (world, leader, task) = running_isolated(true).await;
    leader.cancel(1).await;
    stopped(&task).await;
    world.records.say(None);
    let start = Instant::now();
    assert!(matches!(
        world.executor.fatal().await,
        Fatal::CancellationTimedOut(_)
    ));
    let took = start.elapsed();
    let bound = TIMEOUT + CANCELLATION + Duration::from_millis(200);
    assert!(took <= bound, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_is_refused_while_the_last_one_still_ends_here() {
    let (mut world, leader, task) = running_isolated(true).await;
    world.records.say_generation(1, 2);
    let answer = deploy(&leader, 2).await.expect("is registered");
    assert_eq!(answer.refused.len(), 1);
    task.status.send_replace(TaskStatus::Canceled);
    leader.updated(pb::ExecutionState::Canceled).await;
    let answer = deploy(&leader, 2).await.expect("is registered");
    assert_eq!(answer.refused, []);
    world.next_started().await;
}

const HOUR: Duration = Duration::from_secs(3600);
