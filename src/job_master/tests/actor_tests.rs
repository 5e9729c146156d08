//! The actor on paused time, with scripted TaskExecutors: a job from its start to its result, its commits,
//! and terms that end or are recovered. [`super::lost_task_managers_tests`] tests which TaskManagers count as
//! lost.

use std::time::Duration;

use tanist_gateway::persistence::{MemoryJobStateStore, PersistError};
use tanist_gateway::{Detail, GatewayError, JobMasterGateway, Verdict};
use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState, JobStatus};

use super::scripted::{Fixture, options, sender, wait_until};
use crate::core::tests::testing::{graph_of, submitted};
use crate::{JobMasterOptions, RestartStrategy};

#[tokio::test(start_paused = true)]
async fn a_job_is_placed_deployed_committed_and_let_go() {
    let fixture = Fixture::start(options(RestartStrategy::None));
    let task_executor = fixture.task_executor("tm1");
    *fixture.environment.failing_commits.lock() = 2;
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    assert_eq!(fixture.stored().regions[0].placements.len(), 3);
    fixture.report("tm1", 1, task_executor.reports()).await;
    let details = fixture.details().await;
    assert_eq!(details.status(), JobStatus::Running);
    let subtask = &details.vertices[1].subtasks[1];
    assert_eq!(
        (subtask.state(), subtask.attempt),
        (ExecutionState::Running, 1)
    );
    assert_eq!(subtask.host, "tm1:1");

    let finished = task_executor.all_become(ExecutionState::Finished);
    fixture.report("tm1", 1, finished).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Finished, "{}", result.cause);
    assert!(result.dirty);
    assert_eq!(fixture.environment.committed.lock().len(), 3);
    wait_until("acknowledged", || task_executor.was_called("acknowledge 3")).await;
    let error = fixture.job_master.cancel().await.expect_err("too late");
    assert!(matches!(error, GatewayError::Conflict(_)), "{error}");

    fixture
        .job_master
        .result_written()
        .await
        .expect("there is a result");
    assert!(task_executor.was_called("disconnect, ended: true"));
    assert_eq!(fixture.environment.declared.lock().first(), Some(&2));
    assert_eq!(fixture.environment.declared.lock().last(), Some(&0));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_acknowledged_after_it_is_durable_and_ends_a_job_that_waits_for_slots() {
    let fixture = Fixture::start(options(RestartStrategy::None));
    wait_until("the start is durable", || {
        fixture.stored().job_incarnation == 1
    })
    .await;
    fixture.store.set_delay(Duration::from_secs(5));
    let before = tokio::time::Instant::now();
    fixture.job_master.cancel().await.expect("canceled");
    assert!(before.elapsed() >= Duration::from_secs(5));
    assert_eq!(fixture.stored().wanted(), pb::WantedStatus::Canceled);
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Canceled);
    assert!(before.elapsed() < Duration::from_secs(6));
    fixture.job_master.cancel().await.expect("canceled already");
}

#[tokio::test(start_paused = true)]
async fn running_tasks_are_cancelled_and_waited_for_before_the_job_is_canceled() {
    let (fixture, task_executor) = Fixture::running(options(RestartStrategy::None)).await;
    fixture.job_master.cancel().await.expect("canceled");
    wait_until("told", || task_executor.was_called("cancel")).await;
    assert_eq!(fixture.details().await.status(), JobStatus::Cancelling);
    let canceled = task_executor.all_become(ExecutionState::Canceled);
    fixture.report("tm1", 1, canceled).await;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Canceled);
    assert!(fixture.environment.committed.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn slots_that_don_t_come_fail_the_job_with_what_is_missing() {
    let fixture = Fixture::start(options(RestartStrategy::None));
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    assert!(
        result.cause.contains("2 of 2 slots are missing"),
        "{}",
        result.cause
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_can_not_be_initialized_ends_as_failed_with_its_cause() {
    let mut graph = graph_of(&[("a", 1)], &[]);
    graph.vertices[0].parallelism = 0;
    let state = submitted(&graph);
    let store = MemoryJobStateStore::default();
    let fixture = Fixture::start_with(JobMasterOptions::default(), graph, state, store);
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    assert!(result.cause.contains("parallelism 0"), "{}", result.cause);
    // It must not look ended before its result is written.
    let details = fixture.details().await;
    assert_eq!(details.status(), JobStatus::Initializing);
    assert!(details.cleaning_up && details.ended_at_ms == 0);
    assert_eq!(details.cause, result.cause);
    let is_of_end = |it: &pb::StatusTimestamp| it.status() == JobStatus::Failed;
    assert!(!details.timestamps.iter().any(is_of_end), "{details:?}");
    assert!(details.events.is_empty(), "{details:?}");
    fixture
        .job_master
        .result_written()
        .await
        .expect("there is a result");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ran_and_whose_records_do_not_fit_together_is_not_ended() {
    let graph = graph_of(&[("a", 1)], &[]);
    let mut state = submitted(&graph);
    state.job_incarnation = 3;
    state.regions = vec![pb::RegionState {
        generation: 2,
        epoch: 1,
        placements: vec![pb::Placement {
            vertex_id: "of another graph".to_owned(),
            ..pb::Placement::default()
        }],
        ..pb::RegionState::default()
    }];
    let store = MemoryJobStateStore::default();
    let fixture = Fixture::start_with(JobMasterOptions::default(), graph, state, store);
    assert_eq!(fixture.job_master.ended().await, None);
    let unfit = fixture.job_master.unfit().expect("that is why");
    assert!(unfit.contains("of another graph"), "{unfit}");
    let adoption = fixture.job_master.reconciled().await;
    assert!(
        adoption.is_some(),
        "it waits for no TaskManager that it does not await"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_master_whose_term_is_over_stops_and_notifies_no_process() {
    let (fixture, task_executor) = Fixture::running(options(RestartStrategy::default())).await;
    fixture.store.end_term();
    let calls = task_executor.calls.lock().len();
    let error = fixture
        .job_master
        .cancel()
        .await
        .expect_err("its outcome is unknown");
    assert!(matches!(error, GatewayError::Unknown(_)), "{error}");
    assert_eq!(fixture.job_master.ended().await, None);
    assert_eq!(task_executor.calls.lock().len(), calls);
    assert!(fixture.job_master.describe(Detail::Full).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn stopping_notifies_no_process() {
    let (fixture, task_executor) = Fixture::running(options(RestartStrategy::default())).await;
    fixture.job_master.stop().await;
    assert_eq!(fixture.job_master.ended().await, None);
    assert!(!task_executor.was_called("disconnect, ended: true"));
}

#[tokio::test(start_paused = true)]
async fn messages_of_other_terms_are_refused_and_a_younger_term_is_reported() {
    let fixture = Fixture::start(options(RestartStrategy::default()));
    let offer = |epoch: u64| pb::OfferSlotsRequest {
        sender: Some(pb::Sender { epoch, ..sender(1) }),
        resource_id: "tm1".to_owned(),
        ..pb::OfferSlotsRequest::default()
    };
    let error = fixture
        .job_master
        .offer_slots(offer(2))
        .await
        .expect_err("older");
    assert!(matches!(error, GatewayError::Outdated { .. }), "{error}");
    assert_eq!(*fixture.deposed_by.lock(), None);
    let error = fixture
        .job_master
        .offer_slots(offer(4))
        .await
        .expect_err("younger");
    assert!(matches!(error, GatewayError::Outdated { .. }), "{error}");
    assert_eq!(*fixture.deposed_by.lock(), Some(Epoch::new(4)));
    let error = fixture
        .job_master
        .offer_slots(offer(3))
        .await
        .expect_err("not registered");
    assert!(matches!(error, GatewayError::NotFound(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_is_not_the_youngest_is_refused() {
    let fixture = Fixture::start(options(RestartStrategy::default()));
    fixture.register("tm1", 2).await.expect("admitted");
    let answer = fixture.register("tm1", 2).await.expect("admitted");
    let answer = answer
        .registration
        .and_then(|registration| registration.answer);
    assert!(
        matches!(answer, Some(pb::registration_response::Answer::Failure(_))),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_record_that_the_store_refuses_fails_the_job_with_the_reason() {
    let store = MemoryJobStateStore::default();
    store.refuse(PersistError::TooLarge { size: 9, limit: 8 });
    let graph = graph_of(&[("a", 1)], &[]);
    let state = submitted(&graph);
    let fixture = Fixture::start_with(options(RestartStrategy::None), graph, state, store);
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    assert!(
        result.cause.contains("9 bytes is more than the 8 bytes"),
        "{}",
        result.cause
    );
}

#[tokio::test(start_paused = true)]
async fn a_recovered_job_whose_tasks_have_all_finished_is_committed_and_not_run() {
    let committable = pb::Committable {
        pending_path: "p".to_owned(),
        final_path: "f".to_owned(),
    };
    let fixture = all_finished(&committable);
    let result = fixture.job_master.ended().await.expect("it ends");
    assert_eq!(result.status(), JobStatus::Finished, "{}", result.cause);
    assert_eq!(*fixture.environment.committed.lock(), [committable]);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_output_can_never_be_made_visible_fails_with_that_cause() {
    let fixture = all_finished(&pb::Committable::default());
    *fixture.environment.is_occupied.lock() = true;
    let ended = tokio::time::timeout(Duration::from_secs(600), fixture.job_master.ended());
    let result = ended.await.expect("it does not try for ever");
    let result = result.expect("it ends");
    assert_eq!(result.status(), JobStatus::Failed);
    assert!(result.cause.contains("/out/part-0"), "{}", result.cause);
    let failures = &result.details.as_ref().expect("described").failures;
    assert!(
        failures.iter().any(|it| it.cause.contains("/out/part-0")),
        "{failures:?}"
    );
    assert_eq!(
        fixture.stored().fatal_cause,
        result.cause,
        "decided in the store"
    );
}

/// A recovered job whose record says that its one task has finished.
fn all_finished(committable: &pb::Committable) -> Fixture {
    let graph = graph_of(&[("a", 1)], &[]);
    let mut state = submitted(&graph);
    state.regions = vec![pb::RegionState {
        generation: 2,
        epoch: 1,
        ..pb::RegionState::default()
    }];
    state.terminal = vec![pb::TerminalExecution {
        vertex_id: graph.vertices[0].id.clone(),
        generation: 2,
        state: ExecutionState::Finished.into(),
        committables: vec![committable.clone()],
        ..pb::TerminalExecution::default()
    }];
    let store = MemoryJobStateStore::default();
    Fixture::start_with(options(RestartStrategy::None), graph, state, store)
}

#[tokio::test(start_paused = true)]
async fn a_recovered_job_restarts_under_a_new_generation_without_counting_a_failure() {
    let graph = graph_of(&[("a", 1), ("b", 2)], &[(0, 1)]);
    let mut state = submitted(&graph);
    state.regions = vec![pb::RegionState {
        generation: 4,
        epoch: 1,
        ..pb::RegionState::default()
    }];
    let store = MemoryJobStateStore::default();
    let fixture = Fixture::start_with(options(RestartStrategy::None), graph, state, store);
    let task_executor = fixture.task_executor("tm1");
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    assert!(
        task_executor
            .reports()
            .iter()
            .all(|report| report.generation == 5)
    );
    let region = &fixture.stored().regions[0];
    assert_eq!((region.generation, region.epoch), (5, 3));
    assert_eq!(fixture.details().await.restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_region_restarts_when_its_last_task_has_stopped_however_long_ago_its_backoff_was_over() {
    let (fixture, task_executor) = Fixture::running(options(RestartStrategy::default())).await;
    let mut failed = task_executor.reports().remove(0);
    failed.set_state(ExecutionState::Failed);
    failed.cause = "division by zero".to_owned();
    let key = (failed.vertex_id.clone(), failed.subtask);
    task_executor.running.lock().insert(key, failed.clone());
    fixture.report("tm1", 1, vec![failed]).await;
    let start = tokio::time::Instant::now();
    wait_until("the backoff is over", || {
        start.elapsed() > Duration::from_secs(30)
    })
    .await;
    let details = fixture.details().await;
    assert_eq!(details.status(), JobStatus::Restarting);
    assert_eq!(
        details.vertices[1].subtasks[0].state(),
        ExecutionState::Canceling
    );
    for report in task_executor.running.lock().values_mut() {
        if report.state() == ExecutionState::Running {
            report.set_state(ExecutionState::Canceled);
        }
    }
    fixture.report("tm1", 1, task_executor.reports()).await;
    let runs_again = || {
        task_executor
            .reports()
            .iter()
            .all(|report| report.generation == 2)
    };
    wait_until("the next generation runs", runs_again).await;
}

#[tokio::test(start_paused = true)]
async fn all_requirements_are_declared_in_full_at_each_new_connection() {
    let fixture = Fixture::start(options(RestartStrategy::None));
    let declared = || fixture.environment.declared.lock().clone();
    let registered = || fixture.environment.registered.lock().len();
    wait_until("declared", || declared() == [2]).await;
    assert_eq!(registered(), 1);
    // The ResourceManager does not know it any more: it registers and declares again immediately.
    let unknown = GatewayError::NotFound("not registered".to_owned());
    fixture.environment.refusals.lock().push(unknown);
    wait_until("declared again", || registered() == 2).await;
    wait_until("declared in full", || declared() == [2, 2]).await;
    let ids = fixture.environment.registered.lock();
    assert_eq!(ids[0].job_master, ids[1].job_master);
    assert_eq!(ids[0].job_master.epoch, Epoch::new(3));
}

#[tokio::test(start_paused = true)]
async fn a_job_master_that_another_one_replaced_stops() {
    let told = Fixture::start(options(RestartStrategy::None));
    wait_until("registered", || {
        !told.environment.registered.lock().is_empty()
    })
    .await;
    let registered = told.environment.registered.lock()[0].clone();
    registered
        .verdict
        .change(|verdict| verdict.is_superseded = true);
    assert_eq!(told.job_master.ended().await, None);

    let refused = Fixture::start(options(RestartStrategy::None));
    wait_until("declared", || {
        !refused.environment.declared.lock().is_empty()
    })
    .await;
    let outdated = GatewayError::Outdated {
        epoch: 3,
        reason: "another one is the present one".to_owned(),
    };
    refused.environment.refusals.lock().push(outdated);
    assert_eq!(refused.job_master.ended().await, None);
}

/// A change of the room as the ResourceManager makes it.
fn set_room(fixture: &Fixture, has_room: bool) {
    let registered = fixture.environment.registered.lock()[0].clone();
    let change = |verdict: &mut Verdict| {
        verdict.has_room = has_room;
        verdict.room_changes += 1;
    };
    match has_room {
        true => registered.verdict.change_quietly(change),
        false => registered.verdict.change(change),
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_waits_while_there_is_room_and_fails_its_whole_timeout_after_the_room_went() {
    let fixture = Fixture::start(options(RestartStrategy::None));
    wait_until("registered", || {
        !fixture.environment.registered.lock().is_empty()
    })
    .await;
    let slot_request_timeout = JobMasterOptions::default().slot_request_timeout;
    let has_ended = async |times: f64| {
        let after = slot_request_timeout.mul_f64(times);
        let ended = tokio::time::timeout(after, fixture.job_master.ended());
        ended.await.is_ok()
    };
    assert!(!has_ended(0.9).await);
    // It hears of nothing in between, and knows all the same that there is room when its time would be over.
    set_room(&fixture, true);
    assert!(!has_ended(3.0).await);
    set_room(&fixture, false);
    assert!(!has_ended(0.9).await);
    // There is room again, and at once no more.
    set_room(&fixture, true);
    set_room(&fixture, false);
    assert!(!has_ended(0.9).await);
    assert!(has_ended(0.2).await);
}
