//! Quarantined jobs on paused time over the memory store: their descriptions, and how they leave quarantine.

use std::time::Duration;

use tanist_compile::{CompileOptions, JobBuilder};
use tanist_gateway::persistence::JobStateStore as _;
use tanist_gateway::{DispatcherGateway as _, GatewayError, GatewayResult};
use tanist_ha::memory::MemoryCluster;
use tanist_proto::v1 as pb;

use super::admission_tests::{Fixture, is_clean};
use super::crash_suspects_tests::with_ends;
use super::ended_tests::kill;
use super::scripted::{End, JOB as OTHER, Leader, result_of, submission as submission_of};
use super::testing::{JOB, cancel, describe, recovered, submission};
use crate::broken_job_masters::is_bug;
use crate::core::{Deadline, Submission, SubmissionKey, first_state};
use crate::job_store::JobStoreError;
use crate::{RecoveredJob, RecoveredJobs};

#[tokio::test(start_paused = true)]
async fn a_quarantined_job_is_shown_with_its_reason_until_it_is_canceled() {
    let fixture = Fixture::new().await;
    let state = pb::JobState {
        name: "stream".to_owned(),
        submission_token: "token".to_owned(),
        ..pb::JobState::default()
    };
    let unreadable = RecoveredJob::Unreadable {
        kind: pb::QuarantineKind::Unreadable,
        reason: "bit rot".to_owned(),
        state: Some(Box::new(state)),
        graph: None,
    };
    let recovered = RecoveredJobs {
        jobs: vec![(JOB, unreadable)],
        ..RecoveredJobs::default()
    };
    let dispatcher = fixture.start(recovered);
    let details = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(
        (details.quarantine.as_str(), details.name.as_str()),
        ("its records can't be read: bit rot", "stream")
    );
    let other = dispatcher.submit_job(submission("token")).await;
    assert!(matches!(other, Err(GatewayError::Conflict(_))), "{other:?}");
    fixture.faults.delay(Duration::from_millis(100));
    let (one, two) = tokio::join!(
        dispatcher.cancel_job(cancel()),
        dispatcher.cancel_job(cancel())
    );
    one.expect("canceled");
    // It arrives while the result is being written: its client retries.
    assert!(matches!(two, Err(GatewayError::NotYet(_))), "{two:?}");
    fixture
        .until_stored("a clean result", |it| is_clean(it) && it.results.len() == 1)
        .await;
    dispatcher.cancel_job(cancel()).await.expect("canceled");
    let details = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(details.status(), pb::JobStatus::Canceled);
    assert_eq!(fixture.launches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_quarantined_job_goes_on_telling_what_happened_to_it() {
    let fixture = Fixture::new().await;
    let entered = |status: pb::JobStatus, at_ms| pb::StatusTimestamp {
        status: status.into(),
        at_ms,
    };
    let state = pb::JobState {
        statuses: vec![entered(pb::JobStatus::Running, 5)],
        events: vec![pb::JobEvent {
            kind: pb::JobEventKind::Restart.into(),
            at_ms: 6,
            ..pb::JobEvent::default()
        }],
        failures: vec![pb::FailureRecord {
            cause: "out of paper".to_owned(),
            ..pb::FailureRecord::default()
        }],
        restarts: Some(pb::RestartCounters {
            restarts: 4,
            ..pb::RestartCounters::default()
        }),
        ..pb::JobState::default()
    };
    let unreadable = RecoveredJob::Unreadable {
        kind: pb::QuarantineKind::Unreadable,
        reason: "bit rot".to_owned(),
        state: Some(Box::new(state)),
        graph: None,
    };
    let dispatcher = fixture.start(RecoveredJobs {
        jobs: vec![(JOB, unreadable)],
        ..RecoveredJobs::default()
    });
    let kinds = |details: &pb::JobDetails| {
        let events = details.events.iter();
        events.map(pb::JobEvent::kind).collect::<Vec<_>>()
    };
    use pb::JobEventKind as K;
    let details = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(kinds(&details), [K::Restart, K::Quarantine]);
    let since_ms = details.quarantined.expect("it is quarantined").since_ms;
    let expected = [
        entered(pb::JobStatus::Running, 5),
        entered(pb::JobStatus::Suspended, since_ms),
    ];
    assert_eq!(details.timestamps, expected);
    assert_eq!(details.failures[0].cause, "out of paper");
    assert_eq!(details.restarts, 4);
    dispatcher.cancel_job(cancel()).await.expect("canceled");
    fixture
        .until_stored("a clean result", |it| is_clean(it) && it.results.len() == 1)
        .await;
    let ended = dispatcher.describe_job(describe()).await.expect("known");
    let last = [K::Restart, K::Quarantine, K::Cancel, K::Status];
    assert_eq!(kinds(&ended), last);
    assert_eq!(ended.failures[0].cause, "out of paper");
    let canceled = ended.timestamps.last().expect("there are some");
    assert_eq!(canceled.status(), pb::JobStatus::Canceled);
    assert_eq!(canceled.at_ms, ended.ended_at_ms);
}

/// The graph of a job that writes to `/somewhere`.
fn writing_graph() -> pb::JobGraph {
    let options = CompileOptions {
        job_id: JOB,
        ..CompileOptions::default()
    };
    let job = JobBuilder::new("written")
        .datagen("numbers", Some(1), None, 1, 1)
        .file_sink("out", "/somewhere")
        .build();
    job.compile(&options).expect("valid")
}

/// The state of a job that was submitted, cancelled, then quarantined.
fn canceled_and_set_aside() -> pb::JobState {
    let submission = Submission {
        job: JOB,
        graph: writing_graph(),
        key: SubmissionKey {
            token: "token".to_owned(),
            digest: vec![1],
        },
        deadline: Deadline::Never,
        restore: None,
        flaw: None,
    };
    pb::JobState {
        wanted: pb::WantedStatus::Canceled.into(),
        quarantine: Some(pb::Quarantine {
            kind: pb::QuarantineKind::EndedProcess.into(),
            reason: "it ended the processes that led it".to_owned(),
            ..pb::Quarantine::default()
        }),
        ..first_state(&submission, 7)
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_that_is_set_aside_is_canceled_and_leaves_nothing_though_its_graph_is_not_read()
 {
    let fixture = Fixture::new().await;
    let set_aside = RecoveredJob::SetAside {
        state: Box::new(canceled_and_set_aside()),
        graph: None,
    };
    let dispatcher = fixture.start(RecoveredJobs {
        jobs: vec![(JOB, set_aside)],
        ..RecoveredJobs::default()
    });
    fixture
        .until_stored("a clean result", |it| is_clean(it) && it.results.len() == 1)
        .await;
    let details = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(details.status(), pb::JobStatus::Canceled);
    assert_eq!(fixture.cleaned(), ["/somewhere"]);
    assert_eq!(fixture.launches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_that_needs_a_newer_version_is_left_to_that() {
    let fixture = Fixture::new().await;
    let too_new = RecoveredJob::Unreadable {
        kind: pb::QuarantineKind::TooNew,
        reason: "format 9".to_owned(),
        state: Some(Box::new(canceled_and_set_aside())),
        graph: None,
    };
    let dispatcher = fixture.start(RecoveredJobs {
        jobs: vec![(JOB, too_new)],
        ..RecoveredJobs::default()
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    let details = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(details.status(), pb::JobStatus::Suspended);
}

#[tokio::test(start_paused = true)]
async fn what_a_job_wrote_of_which_only_the_graph_can_be_read_is_removed_with_it() {
    let fixture = Fixture::new().await;
    let unreadable = RecoveredJob::Unreadable {
        kind: pb::QuarantineKind::Unreadable,
        reason: "bit rot".to_owned(),
        state: None,
        graph: Some(Box::new(writing_graph())),
    };
    let dispatcher = fixture.start(RecoveredJobs {
        jobs: vec![(JOB, unreadable)],
        ..RecoveredJobs::default()
    });
    let details = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(details.name, "written");
    dispatcher.cancel_job(cancel()).await.expect("canceled");
    fixture
        .until_stored("a clean result", |it| is_clean(it) && it.results.len() == 1)
        .await;
    assert_eq!(fixture.cleaned(), ["/somewhere"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_with_an_operator_that_this_program_lacks_is_set_aside_and_nothing_else() {
    let fixture = Fixture::new().await;
    let mut graph = submission("token").graph.expect("a graph");
    graph.vertices[0].operators[1].spec = r#"{"type":"of-tomorrow"}"#.to_owned();
    let state = pb::JobState {
        name: "stream".to_owned(),
        submission_token: "token".to_owned(),
        ..pb::JobState::default()
    };
    let readable = RecoveredJob::Readable {
        graph: Box::new(graph),
        state: Box::new(state),
    };
    let recovered = RecoveredJobs {
        jobs: vec![(JOB, readable)],
        ..RecoveredJobs::default()
    };
    let dispatcher = fixture.start(recovered);
    let details = dispatcher.describe_job(describe()).await.expect("known");
    let reason = "this JobManager can't lead it: step `out`: its specification is not known";
    assert!(
        details.quarantine.starts_with(reason),
        "{}",
        details.quarantine
    );
    assert_eq!(fixture.launches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_of_whose_records_no_job_master_can_be_made_is_set_aside_at_once_and_keeps_them() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    a.submit(OTHER).await.expect("acknowledged");
    a.end_last(End::Unfit);
    a.wait_for(OTHER, pb::JobStatus::Suspended).await;
    assert_eq!(a.world.job_masters.lock().len(), 1, "no other one is tried");
    let details = a.describe(OTHER).await.expect("known");
    let quarantine = details.quarantined.expect("it is quarantined");
    assert_eq!(quarantine.kind(), pb::QuarantineKind::Unreadable);
    let expected = "no JobMaster can run it: it names nothing";
    assert_eq!(quarantine.reason, expected);
    let told = details.events.last().expect("an event");
    assert_eq!(told.kind(), pb::JobEventKind::Quarantine);
    assert_eq!((told.text.as_str(), told.epoch), (expected, 1));
    let stored = recovered(&a.store).await;
    assert_eq!((stored.jobs.len(), stored.results.len()), (1, 0));
}

/// A leader of a job with this stored state.
async fn leader_of(state: pb::JobState) -> Leader {
    let leader = Leader::of(&MemoryCluster::default(), "a").await;
    leader.submit(OTHER).await.expect("acknowledged");
    leader.store.put_state(&state).await.expect("written");
    leader
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_whose_job_masters_break_is_canceled_all_the_same() {
    let a = leader_of(pb::JobState {
        wanted: pb::WantedStatus::Canceled.into(),
        ..first_state(&submission_of(OTHER), 1)
    })
    .await;
    for _ in 1..=3 {
        a.end_last(End::Broken);
        a.wait_for(OTHER, pb::JobStatus::Reconciling).await;
        a.wait_for(OTHER, pb::JobStatus::Running).await;
    }
    a.end_last(End::Broken);
    a.wait_for(OTHER, pb::JobStatus::Canceled).await;
    let stored = recovered(&a.store).await;
    assert_eq!((stored.jobs.len(), stored.results.len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_job_master_breaks_gets_another_one_from_its_record() {
    let a = leader_of(pb::JobState {
        job_incarnation: 5,
        ..first_state(&submission_of(OTHER), 1)
    })
    .await;
    for broken in 1..=3 {
        a.end_last(End::Broken);
        a.wait_for(OTHER, pb::JobStatus::Reconciling).await;
        let denied = a
            .dispatcher
            .job_master(OTHER)
            .await
            .expect_err("there is none");
        assert!(matches!(denied, GatewayError::NotYet(_)), "{denied:?}");
        a.wait_for(OTHER, pb::JobStatus::Running).await;
        let job_masters = a.world.job_masters.lock();
        assert_eq!(job_masters.len(), broken + 1);
        assert_eq!(job_masters[broken].state.job_incarnation, 5);
        assert_eq!(*a.world.withdrawn.lock(), vec![OTHER; broken]);
    }
    a.end_last(End::Broken);
    a.wait_for(OTHER, pb::JobStatus::Suspended).await;
    let quarantine = a.describe(OTHER).await.expect("known").quarantine;
    assert!(quarantine.contains("broke 4 times"), "{quarantine}");
    a.cancel(OTHER).await.expect("it can be given up");
    a.wait_for(OTHER, pb::JobStatus::Canceled).await;
}

/// A leader that finds a job whose tasks have all finished, and which was quarantined before their output was
/// made visible.
async fn leader_of_a_finished_job_that_is_set_aside() -> Leader {
    let finished = (2, pb::ExecutionState::Finished);
    let state = pb::JobState {
        quarantine: Some(pb::Quarantine {
            kind: pb::QuarantineKind::Broke.into(),
            reason: "its JobMaster broke".to_owned(),
            ..pb::Quarantine::default()
        }),
        sinks: Some(pb::SinkDirectories {
            paths: vec!["/out".to_owned()],
            ..pb::SinkDirectories::default()
        }),
        regions: with_ends([finished; 2]).regions,
        terminal: with_ends([finished; 2]).terminal,
        ..first_state(&submission_of(OTHER), 1)
    };
    let a = leader_of(state).await;
    kill(&a).await;
    let b = Leader::of(&a.cluster, "b").await;
    b.wait_for(OTHER, pb::JobStatus::Suspended).await;
    b
}

async fn resolve(leader: &Leader, action: pb::QuarantineAction) -> GatewayResult<pb::Ack> {
    let request = pb::ResolveQuarantineRequest {
        job_id: OTHER.to_string(),
        action: action.into(),
        ..pb::ResolveQuarantineRequest::default()
    };
    leader.dispatcher.resolve_quarantine(request).await
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_set_aside_when_all_its_tasks_have_finished_is_not_cancelled_but_led_again() {
    let b = leader_of_a_finished_job_that_is_set_aside().await;
    let job_id = OTHER.to_string();
    let stop = pb::StopJobRequest { job_id };
    for refused in [b.cancel(OTHER).await, b.dispatcher.stop_job(stop).await] {
        match refused {
            Err(GatewayError::Conflict(text)) => assert!(text.contains("retry it"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(b.world.cleaned.lock().is_empty());
    let retried = resolve(&b, pb::QuarantineAction::Retry).await;
    retried.expect("led again");
    b.end_last(End::Result(Box::new(result_of(OTHER))));
    b.wait_for(OTHER, pb::JobStatus::Finished).await;
}

#[tokio::test(start_paused = true)]
async fn whoever_deletes_a_job_in_so_many_words_deletes_it_though_all_its_tasks_have_finished() {
    let b = leader_of_a_finished_job_that_is_set_aside().await;
    let deleted = resolve(&b, pb::QuarantineAction::Delete).await;
    deleted.expect("written");
    b.wait_for(OTHER, pb::JobStatus::Canceled).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_master_broke_where_the_term_goes_on_and_did_not_where_the_leader_was_deposed() {
    let cluster = MemoryCluster::default();
    let deposed = Leader::of(&cluster, "deposed").await;
    deposed.submit(OTHER).await.expect("acknowledged");
    for is_fit in [true, false] {
        let broke = is_bug(&deposed.store, is_fit).await;
        assert_eq!(broke.expect("it leads"), is_fit);
    }
    deposed.election_faults.watch_lag(Duration::from_secs(3600));
    cluster.expire(&deposed.process);
    let young = Leader::of(&cluster, "young").await;
    assert!(!deposed.session.is_over(), "it has not heard of it");
    let refused = is_bug(&deposed.store, true).await;
    assert!(
        matches!(refused, Err(JobStoreError::NotWritten)),
        "{refused:?}"
    );
    let broke = is_bug(&young.store, true).await;
    assert!(broke.expect("it leads"));
}

#[tokio::test(start_paused = true)]
async fn a_deposed_leader_whose_write_was_refused_starts_no_other_job_master() {
    let cluster = MemoryCluster::default();
    let deposed = Leader::of(&cluster, "deposed").await;
    deposed.submit(OTHER).await.expect("acknowledged");
    deposed.election_faults.watch_lag(Duration::from_secs(3600));
    cluster.expire(&deposed.process);
    let _young = Leader::of(&cluster, "young").await;
    deposed.end_last(End::Broken);
    // Longer than starting a JobMaster would take.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(deposed.world.job_masters.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_a_job_that_is_not_quarantined_is_refused_unless_it_is_the_same_one_repeated() {
    let b = leader_of_a_finished_job_that_is_set_aside().await;
    for _ in 0..2 {
        let retried = resolve(&b, pb::QuarantineAction::Retry).await;
        retried.expect("no longer quarantined, and so says the record");
    }
    kill(&b).await;

    let cluster = MemoryCluster::default();
    let healthy = Leader::of(&cluster, "a").await;
    healthy.submit(OTHER).await.expect("acknowledged");
    match resolve(&healthy, pb::QuarantineAction::Retry).await {
        Err(GatewayError::Conflict(text)) => assert!(text.contains("is not quarantined"), "{text}"),
        other => panic!("{other:?}"),
    }
}
