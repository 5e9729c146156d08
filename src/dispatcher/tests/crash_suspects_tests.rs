//! Jobs that are cancelled before their turn to be recovered.

use std::time::Duration;

use tanist_gateway::{DispatcherGateway as _, GatewayError};
use tanist_proto::v1 as pb;

use super::admission_tests::{Fixture, is_clean};
use super::testing::{JOB, cancel, describe, result, submission};
use crate::{RecoveredJob, RecoveredJobs};

/// Recovered records of a term in crash-loop recovery: one suspect job.
fn suspect(wanted: pb::WantedStatus, sinks: &str) -> RecoveredJobs {
    suspect_of(wanted, sinks, pb::JobState::default())
}

/// Like [`suspect`], with the other fields of the job's record from `recorded`.
fn suspect_of(wanted: pb::WantedStatus, sinks: &str, recorded: pb::JobState) -> RecoveredJobs {
    let state = pb::JobState {
        job_id: JOB.to_string(),
        name: "stream".to_owned(),
        wanted: wanted.into(),
        sinks: Some(pb::SinkDirectories {
            paths: vec![sinks.to_owned()],
            ..pb::SinkDirectories::default()
        }),
        events: vec![pb::JobEvent {
            kind: pb::JobEventKind::Restart.into(),
            ..pb::JobEvent::default()
        }],
        ..recorded
    };
    let state = Box::new(state);
    RecoveredJobs {
        jobs: vec![(JOB, RecoveredJob::Suspect { state })],
        ..RecoveredJobs::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_cancelled_before_its_turn_ends_without_being_led() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(suspect(pb::WantedStatus::Running, "/out"));
    fixture.faults.delay(Duration::from_millis(100));
    let (one, two) = tokio::join!(
        dispatcher.cancel_job(cancel()),
        dispatcher.cancel_job(cancel())
    );
    one.expect("cancelled");
    // It arrives while the result is being written: its client retries.
    assert!(matches!(two, Err(GatewayError::NotYet(_))), "{two:?}");
    fixture
        .until_stored("a clean result", |it| is_clean(it) && it.results.len() == 1)
        .await;
    dispatcher
        .start_crash_suspects(vec![JOB])
        .await
        .expect("its turn comes");
    dispatcher.cancel_job(cancel()).await.expect("cancelled");
    let ended = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(ended.status(), pb::JobStatus::Canceled);
    use pb::JobEventKind as K;
    let kinds: Vec<K> = ended.events.iter().map(pb::JobEvent::kind).collect();
    assert_eq!(
        kinds,
        [K::Restart, K::Cancel, K::Status],
        "never quarantined"
    );
    assert_eq!(fixture.cleaned(), ["/out"]);
    assert_eq!(fixture.launches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_cancellation_was_acknowledged_needs_no_turn() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(suspect(pb::WantedStatus::Canceled, "/out"));
    fixture
        .until_stored("a clean result", |it| is_clean(it) && it.results.len() == 1)
        .await;
    let ended = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(ended.status(), pb::JobStatus::Canceled);
    assert_eq!(fixture.launches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_comes_while_the_end_is_being_written_passes_the_job_over() {
    let fixture = Fixture::new().await;
    // So that the store has its records when its turn comes.
    let first = fixture.start(RecoveredJobs::default());
    let submitted = first.submit_job(submission("token")).await;
    submitted.expect("accepted");
    let dispatcher = fixture.start(suspect(pb::WantedStatus::Running, "/out"));
    fixture.cluster.out_of_space(true);
    let (canceled, started) = tokio::join!(
        dispatcher.cancel_job(cancel()),
        dispatcher.start_crash_suspects(vec![JOB])
    );
    assert!(
        matches!(canceled, Err(GatewayError::Unknown(_))),
        "{canceled:?}"
    );
    started.expect("its turn has come");
    let waiting = dispatcher.describe_job(describe()).await.expect("known");
    assert!(
        waiting.blocked_reasons[0].text.contains("is being written"),
        "{waiting:?}"
    );
    fixture.cluster.out_of_space(false);
    fixture
        .until_stored("a clean result", |it| is_clean(it) && it.results.len() == 1)
        .await;
    assert_eq!(fixture.launches(), 1, "by the first one alone");
}

/// State of a job with two subtasks, placed in generation 2, with these terminal states by generation.
pub(super) fn with_ends(ends: [(u64, pb::ExecutionState); 2]) -> pb::JobState {
    let vertex_id = format!("{:032x}", 1);
    let placement = |subtask| pb::Placement {
        vertex_id: vertex_id.clone(),
        subtask,
        ..pb::Placement::default()
    };
    let terminal = (0..)
        .zip(ends)
        .map(|(subtask, (generation, state))| pb::TerminalExecution {
            vertex_id: vertex_id.clone(),
            subtask,
            generation,
            state: state.into(),
            ..pb::TerminalExecution::default()
        });
    pb::JobState {
        regions: vec![pb::RegionState {
            generation: 2,
            placements: vec![placement(0), placement(1)],
            ..pb::RegionState::default()
        }],
        terminal: terminal.collect(),
        ..pb::JobState::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_tasks_have_all_finished_is_not_cancelled_before_its_turn() {
    use pb::ExecutionState::Finished;
    let fixture = Fixture::new().await;
    // So that the store has its records when its turn comes.
    let first = fixture.start(RecoveredJobs::default());
    let submitted = first.submit_job(submission("token")).await;
    submitted.expect("accepted");
    let finished = with_ends([(2, Finished), (2, Finished)]);
    let running = pb::WantedStatus::Running;
    let dispatcher = fixture.start(suspect_of(running, "/out", finished));
    let early = dispatcher.cancel_job(cancel()).await;
    assert!(matches!(early, Err(GatewayError::NotYet(_))), "{early:?}");
    dispatcher
        .start_crash_suspects(vec![JOB])
        .await
        .expect("its turn comes");
    assert_eq!(fixture.launches(), 2);
    let ended = result(pb::JobStatus::Finished);
    fixture.job_master().result.send_replace(Some(ended));
    fixture
        .until_stored("a clean result", |it| is_clean(it) && it.results.len() == 1)
        .await;
    let ended = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(ended.status(), pb::JobStatus::Finished);
}

#[tokio::test(start_paused = true)]
async fn a_job_of_which_a_task_has_not_finished_in_its_last_attempt_is_cancelled_before_its_turn() {
    use pb::ExecutionState::{Canceled, Finished};
    for ends in [
        [(2, Finished), (1, Finished)],
        [(2, Finished), (2, Canceled)],
    ] {
        let fixture = Fixture::new().await;
        let running = pb::WantedStatus::Running;
        let found = suspect_of(running, "/out", with_ends(ends));
        let dispatcher = fixture.start(found);
        dispatcher.cancel_job(cancel()).await.expect("cancelled");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_cancelled_as_its_output_could_not_be_made_visible_needs_no_turn() {
    use pb::ExecutionState::Finished;
    let fixture = Fixture::new().await;
    let finished = with_ends([(2, Finished), (2, Finished)]);
    let canceled = pb::WantedStatus::Canceled;
    let dispatcher = fixture.start(suspect_of(canceled, "/out", finished));
    fixture
        .until_stored("a clean result", |it| is_clean(it) && it.results.len() == 1)
        .await;
    let ended = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(ended.status(), pb::JobStatus::Canceled);
}
