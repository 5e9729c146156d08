//! Results that are read after the term is confirmed: which requests wait for them. On paused time, over the
//! memory store.

use std::time::Duration;

use tanist_gateway::{DispatcherGateway as _, GatewayError, GatewayResult};
use tanist_ha::memory::MemoryCluster;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::task::JoinHandle;

use super::scripted::{End, JOB, Leader, result_of, submission};
use super::testing::recovered;
use crate::DispatcherOptions;

const OTHER: JobId = JobId::from_bits(8);

/// A cluster whose only job has ended, with a clean or a dirty result.
async fn with_a_result(is_dirty: bool) -> MemoryCluster {
    let cluster = MemoryCluster::default();
    let first = Leader::of(&cluster, "first").await;
    let kept = pb::JobResult {
        dirty: is_dirty,
        kept_since_ms: 5_000_000,
        remove: Some(pb::Cleanup {
            sink_directories: vec!["/out".to_owned()],
            ..pb::Cleanup::default()
        }),
        ..result_of(JOB)
    };
    let written = first.store.put_clean_result(&kept).await;
    written.expect("written");
    first.dispatcher.stop().await;
    cluster.partition(&first.process);
    cluster.expire(&first.process);
    cluster
}

fn submit(leader: &Leader, job: JobId) -> JoinHandle<GatewayResult<pb::SubmitJobResponse>> {
    let dispatcher = leader.dispatcher.clone();
    tokio::spawn(async move { Leader::submit_to(&dispatcher, submission(job)).await })
}

/// Lets all tasks run until they wait for a timer.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_submission_of_an_ended_job_waits_for_its_result_and_is_never_run() {
    let cluster = with_a_result(false).await;
    let leader = Leader::with_unread_results(&cluster, "second").await;
    let repeated = submit(&leader, JOB);
    settle().await;
    assert!(!repeated.is_finished(), "its result is not read yet");

    // Requests about another job do not wait.
    let accepted = submit(&leader, OTHER).await.expect("no panic");
    assert!(!accepted.expect("accepted").repeated);
    let unknown = leader.describe(JobId::from_bits(9)).await;
    assert!(
        matches!(unknown, Err(GatewayError::NotFound(_))),
        "{unknown:?}"
    );

    leader.dispatcher.read_results().await.expect("read");
    let answered = repeated.await.expect("no panic").expect("answered");
    assert!(answered.repeated);
    assert_eq!(leader.status(JOB).await, Some(pb::JobStatus::Finished));
    let started = leader.world.job_masters.lock().len();
    assert_eq!(started, 1, "the other job's");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_results_does_not_wait_for_ever() {
    let cluster = with_a_result(false).await;
    let leader = Leader::with_unread_results(&cluster, "second").await;
    let began = tokio::time::Instant::now();
    let refused = submit(&leader, JOB).await.expect("no panic");
    assert!(
        matches!(refused, Err(GatewayError::NotYet(_))),
        "{refused:?}"
    );
    let listed = leader.dispatcher.list_jobs(pb::ListJobsRequest::default());
    assert!(matches!(listed.await, Err(GatewayError::NotYet(_))));
    let timeout = DispatcherOptions::default().store_timeout;
    let rounded = Duration::from_millis(10);
    assert!(
        began.elapsed() <= timeout + rounded,
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn the_cleanup_of_a_dirty_result_is_resumed_when_it_is_read() {
    let cluster = with_a_result(true).await;
    let leader = Leader::with_unread_results(&cluster, "second").await;
    settle().await;
    assert!(leader.world.cleaned.lock().is_empty());
    leader.dispatcher.read_results().await.expect("read");
    for _ in 0..1000 {
        if recovered(&leader.store)
            .await
            .results
            .iter()
            .all(|(_, result)| !result.dirty)
        {
            break;
        }
        settle().await;
    }
    assert_eq!(*leader.world.cleaned.lock(), ["/out"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ends_before_results_are_read_is_kept_by_what_they_have_counted() {
    let cluster = with_a_result(false).await;
    let leader = Leader::with_unread_results(&cluster, "second").await;
    submit(&leader, OTHER)
        .await
        .expect("no panic")
        .expect("accepted");
    leader.end_last(End::Result(Box::new(result_of(OTHER))));
    settle().await;
    let described = leader.describe(OTHER).await.expect("known");
    assert_eq!(described.status(), pb::JobStatus::Running, "its end waits");
    leader.dispatcher.read_results().await.expect("read");
    leader.wait_for(OTHER, pb::JobStatus::Finished).await;
    let stored = recovered(&leader.store).await.results;
    let since = stored.iter().find(|(job, _)| *job == OTHER);
    let since = since.expect("it is kept").1.kept_since_ms;
    assert!(since >= 5_000_000, "{since}");
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_result_and_records_are_both_there_is_not_run_while_the_result_is_unread() {
    let cluster = with_a_result(false).await;
    let between = Leader::with_unread_results(&cluster, "between").await;
    // An operator has written the job's records by hand.
    let graph = pb::JobGraph {
        job_id: JOB.to_string(),
        ..pb::JobGraph::default()
    };
    let state = pb::JobState {
        job_id: JOB.to_string(),
        ..pb::JobState::default()
    };
    let put = between.store.put_submission(&graph, &state).await;
    put.expect("written");
    between.dispatcher.stop().await;
    cluster.partition(&between.process);
    cluster.expire(&between.process);
    let leader = Leader::with_unread_results(&cluster, "second").await;
    settle().await;
    assert!(leader.world.job_masters.lock().is_empty());
    leader.dispatcher.read_results().await.expect("read");
    settle().await;
    assert!(leader.world.job_masters.lock().is_empty());
    assert_eq!(leader.status(JOB).await, Some(pb::JobStatus::Finished));
}
