//! A TaskExecutor whose leader is gone: it asks the store, and continues or stops. On paused time.

use std::time::Duration;

use tanist_gateway::{GatewayError, StoredGenerations};
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::id::Generation;
use tanist_proto::v1::ExecutionState;
use tokio::time::Instant;

use super::scripted_leader::*;
use super::testing::*;
use crate::launcher::TaskStatus;
use crate::*;

const HOUR: Duration = Duration::from_secs(3600);

/// A TaskExecutor with generation 1 of the job's only task, whose leader of epoch 1 died.
async fn leaderless() -> (World, Started) {
    let (world, _leader, task) = running(false).await;
    world.connector.remove("jm1:1");
    world.no_leader();
    (world, task)
}

/// Waits for the task's end. Returns how long that took.
async fn stopped(task: &Started) -> Duration {
    let start = Instant::now();
    let mut status = task.status.subscribe();
    let ended = status.wait_for(TaskStatus::is_terminal);
    let ended = tokio::time::timeout(BOUND, ended).await;
    ended.expect("it stops").expect("the task is there");
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn without_a_leader_tasks_continue_while_the_store_has_no_younger_generation() {
    let (world, task) = leaderless().await;
    world.records.say_generation(1, 1);
    pass(HOUR).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    // It asks about once a second, not more often.
    let reads = world.records.reads();
    assert!((3600..=4800).contains(&reads), "{reads} reads");
    // The next leader receives everything.
    let (_, next) = world.with_leader("jm2:1", 2).await;
    let report = next.registered_job().await;
    assert_eq!((report.executions.len(), report.slots.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn superseded_tasks_stop_within_two_seconds_and_keep_their_slot() {
    let (world, task) = leaderless().await;
    world.records.say_generation(1, 1);
    pass(Duration::from_secs(60)).await;
    world.records.say_generation(2, 2);
    let took = stopped(&task).await;
    assert!(took <= Duration::from_secs(2), "{took:?}");
    // The store's epoch counts as if a leader had sent it.
    assert_eq!(world.highest.accepted().epoch, Epoch::new(2));
    let (_, next) = world.with_leader("jm2:1", 2).await;
    let report = next.registered_job().await;
    assert_eq!(report.slots.len(), 1, "the leader decides about the slot");
    assert_eq!(report.executions[0].state(), ExecutionState::Canceled);
}

#[tokio::test(start_paused = true)]
async fn a_task_is_superseded_by_the_generation_of_the_region_that_its_deployment_named() {
    let (mut world, leader, first) = running(false).await;
    let mut request = leader.deployment(1, 1, A1);
    request.tasks[0].region = 1;
    let answer = leader.task_executor().submit_tasks(request).await;
    assert_eq!(answer.expect("is registered").refused, []);
    let second = world.next_started().await;
    second.status.send_replace(TaskStatus::Running);
    world.connector.remove("jm1:1");
    world.no_leader();
    let regions =
        |one, other| StoredGenerations::Present(vec![Generation::new(one), Generation::new(other)]);
    world.records.say(Some((1, regions(1, 1))));
    pass(Duration::from_secs(60)).await;
    world.records.say(Some((2, regions(1, 2))));
    stopped(&second).await;
    pass(Duration::from_secs(60)).await;
    assert_eq!(*first.status.borrow(), TaskStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ended_or_is_gone_is_let_go_with_its_slots() {
    for stored_generations in [StoredGenerations::Ended, StoredGenerations::Absent] {
        let (world, task) = leaderless().await;
        world.records.say(Some((1, stored_generations)));
        let took = stopped(&task).await;
        assert!(took <= Duration::from_secs(2), "{took:?}");
        let (_, next) = world.with_leader("jm2:1", 2).await;
        pass(Duration::from_secs(1)).await;
        let slots = next.slot_report().await.expect("is registered");
        assert!(
            slots.iter().all(|slot| slot.allocation.is_none()),
            "{slots:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_failover_timeout_starts_again_whenever_the_store_answered() {
    let (world, task) = leaderless().await;
    let timeout = Options::default().job_manager_failover_timeout;
    for _ in 0..5 {
        world.records.say(None);
        pass(timeout - Duration::from_secs(10)).await;
        world.records.say_generation(1, 1);
        pass(Duration::from_secs(5)).await;
    }
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    world.records.say(None);
    let took = stopped(&task).await;
    let at_least = timeout - Duration::from_secs(2);
    let at_most = timeout + Duration::from_secs(1);
    assert!((at_least..=at_most).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_went_back_is_not_believed_and_is_fatal() {
    let (world, task) = leaderless().await;
    let cluster = ClusterIncarnation::new("c1");
    let heard = world.highest.observe(&cluster, Epoch::new(3));
    heard.expect("a younger epoch");
    world.records.say(Some((2, StoredGenerations::Absent)));
    pass(Duration::from_secs(60)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    let fatal = tokio::time::timeout(BOUND, world.executor.fatal()).await;
    let Ok(Fatal::Refused(reason)) = fatal else {
        panic!("{fatal:?}");
    };
    assert!(reason.contains("from epoch 3 to epoch 2"), "{reason}");
    let took = stopped(&task).await;
    assert!(
        took > Duration::from_secs(200),
        "only the failover timeout ends it: {took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_falls_silent_is_doubted_before_it_counts_as_lost() {
    let (world, _leader, task) = running(false).await;
    pass(Duration::from_secs(10)).await;
    assert_eq!(world.records.reads(), 0, "no JobMaster is doubted");
    // Its heartbeats come every 10 s; it is cut off, and another TaskExecutor runs the next generation.
    world.records.say_generation(1, 2);
    let took = stopped(&task).await;
    assert!(took <= Duration::from_secs(7), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dials_is_registered_at_without_any_news_of_the_store() {
    let (world, task) = leaderless().await;
    world.records.say_generation(1, 1);
    pass(Duration::from_secs(30)).await;
    let (_, next) = Leader::start(&world.connector, "jm2:1", 2);
    world.takes(&next);
    let start = Instant::now();
    let answer = next.announce().await.expect("a younger leader");
    assert_eq!(
        (answer.resource_id.as_str(), answer.incarnation.as_str()),
        ("tm", "1")
    );
    next.registered().await;
    let report = next.registered_job().await;
    assert_eq!(report.executions.len(), 1);
    assert!(
        start.elapsed() < Duration::from_millis(100),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    // Repeated, it changes nothing.
    next.announce().await.expect("the same leader");
    next.job_heartbeat(&[A1]).await.expect("still registered");
}

#[tokio::test(start_paused = true)]
async fn after_a_dial_the_old_terms_deployments_and_dials_are_refused() {
    let mut world = World::start(false);
    let (_, old) = world.with_leader("jm1:1", 1).await;
    old.request_slot(0, A1).await;
    old.registered_job().await;
    old.offered().await;
    // A leader that announces itself and is never heard of again.
    let (_, next) = Leader::start(&world.connector, "jm2:1", 2);
    world.takes(&next);
    world.connector.remove("jm2:1");
    next.announce().await.expect("a younger leader");
    let refused = old.submit(1, A1).await;
    assert!(
        matches!(refused, Err(GatewayError::Outdated { epoch: 2, .. })),
        "{refused:?}"
    );
    let refused = old.announce().await;
    assert!(
        matches!(refused, Err(GatewayError::Outdated { epoch: 2, .. })),
        "{refused:?}"
    );
    // The store's late news of the old leader does not make it followed again.
    world.lead(&old);
    pass(Duration::from_secs(60)).await;
    assert!(old.submit(1, A1).await.is_err());
    assert!(world.started.try_recv().is_err(), "nothing was started");
}

#[tokio::test(start_paused = true)]
async fn a_registration_in_its_delay_is_woken_by_a_dial() {
    let world = World::start(false);
    let (script, leader) = Leader::start(&world.connector, "jm1:1", 1);
    world.connector.remove("jm1:1");
    world.lead(&leader);
    // By then the delays are 10 s.
    pass(Duration::from_secs(120)).await;
    world.connector.put_resource_manager("jm1:1", script);
    let start = Instant::now();
    leader.announce().await.expect("the leader");
    leader.registered().await;
    assert!(
        start.elapsed() < Duration::from_millis(10),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn the_slot_timeout_is_suspended_without_a_leader() {
    let world = World::start(false);
    let (script, leader) = world.with_leader("jm1:1", 1).await;
    *script.is_ignoring_offers.lock() = true;
    leader.request_slot(1, A2).await;
    leader.offered().await;
    world.records.say_generation(1, 0);
    world.no_leader();
    pass(Duration::from_secs(30)).await;
    let slots = leader.slot_report().await.expect("is registered");
    assert!(
        slots[1].allocation.is_some(),
        "there was no leader that could accept it"
    );
    world.lead(&leader);
    leader.freed(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_given_without_a_leader_has_its_whole_timeout_under_the_next_leader() {
    let world = World::start(false);
    let (script, leader) = world.with_leader("jm1:1", 1).await;
    *script.is_ignoring_offers.lock() = true;
    leader.request_slot(0, A1).await;
    leader.registered_job().await;
    world.records.say_generation(1, 0);
    world.no_leader();
    // The former leader still runs, and does not know that the store no longer shows it.
    leader.request_slot(1, A2).await;
    pass(Duration::from_secs(30)).await;
    assert_eq!(leader.held_slots().await, 2);
    // Another registration there does not start the timeout, either.
    leader.let_go().await;
    leader.registered_job().await;
    pass(Duration::from_secs(30)).await;
    assert_eq!(leader.held_slots().await, 2);
    world.lead(&leader);
    pass(Duration::from_secs(9)).await;
    assert_eq!(leader.held_slots().await, 2);
    leader.freed(1).await;
}

#[tokio::test(start_paused = true)]
async fn the_time_to_take_a_slot_begins_when_the_next_job_master_is_there() {
    let world = World::start(false);
    let (script, old) = world.with_leader("jm1:1", 1).await;
    *script.is_ignoring_offers.lock() = true;
    old.request_slot(0, A1).await;
    old.offered().await;
    let (script, next) = Leader::start(&world.connector, "jm2:1", 2);
    *script.is_ignoring_offers.lock() = true;
    // Its recovery of jobs takes longer than that timeout.
    world.connector.remove_job_master("jm2:1", JOB);
    world.records.say_generation(2, 0);
    world.lead(&next);
    next.registered().await;
    pass(Duration::from_secs(30)).await;
    assert_eq!(next.held_slots().await, 1);
    world.connector.put_job_master("jm2:1", JOB, script.clone());
    next.registered_job().await;
    let start = Instant::now();
    next.freed(0).await;
    let took = start.elapsed();
    assert!(took >= Options::default().slot_timeout, "{took:?}");
}

/// Simulates a TaskExecutor that stands still: only its clock moves.
async fn stand_still(time: Duration) {
    tokio::time::advance(time).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stood_still_asks_once_more_before_it_lets_jobs_go() {
    let (world, task) = leaderless().await;
    let timeout = Options::default().job_manager_failover_timeout;
    world.records.say(None);
    pass(Duration::from_secs(20)).await;
    world.records.say_generation(1, 1);
    stand_still(timeout).await;
    pass(Duration::from_secs(30)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    // A read that was in flight says nothing either.
    world.records.be_silent();
    pass(Duration::from_secs(1)).await;
    stand_still(timeout).await;
    world.records.say_generation(1, 1);
    pass(Duration::from_secs(30)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
}
