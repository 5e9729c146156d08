//! Answers of the Dispatcher while its store does not answer or has no space. On paused time, over the memory store.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::kinds;
use tanist_gateway::persistence::JobStateStore as _;
use tanist_gateway::{DispatcherGateway as _, GatewayError};
use tanist_ha::blob::missing::MissingBucket;
use tanist_ha::election::NotLeading;
use tanist_ha::memory::MemoryCluster;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::admission_tests::Fixture;
use super::ended_tests::{count, described, end, kill};
use super::scripted::{self, End, Leader, large_name};
use super::testing::{JOB, cancel, describe, recovered, result, submission};
use crate::{DispatcherHandle, DispatcherOptions, RecoveredJobs};

impl Fixture {
    async fn until_suspended(&self) {
        for _ in 0..10_000 {
            if self.session.check() == Err(NotLeading::Suspended) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("not suspended within 1000 s");
    }
}

fn other_submission() -> pb::SubmitJobRequest {
    let mut request = submission("other");
    if let Some(graph) = &mut request.graph {
        graph.job_id = JobId::from_bits(0xB).to_string();
    }
    request
}

async fn submit(dispatcher: &DispatcherHandle) {
    let accepted = dispatcher.submit_job(submission("token")).await;
    assert!(accepted.is_ok(), "{accepted:?}");
}

/// Checks that the error is retryable and contains `reason`.
fn check_passing(refused: Result<impl std::fmt::Debug, GatewayError>, reason: &str) {
    let error = refused.expect_err("refused");
    assert!(error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains(reason), "{error}");
}

#[tokio::test(start_paused = true)]
async fn suspended_nothing_is_accepted_and_what_is_known_is_told() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(RecoveredJobs::default());
    submit(&dispatcher).await;
    fixture.cluster.unavailable(true);
    fixture.until_suspended().await;

    let asked = tokio::time::Instant::now();
    check_passing(dispatcher.submit_job(other_submission()).await, "suspended");
    check_passing(dispatcher.cancel_job(cancel()).await, "suspended");
    assert_eq!(asked.elapsed(), Duration::ZERO, "at once");
    let repeated = dispatcher.submit_job(submission("token")).await;
    assert!(repeated.expect("it was accepted before").repeated);
    let described = dispatcher.describe_job(describe()).await;
    assert!(described.expect("known").as_of.is_some());
    let consistent = pb::DescribeJobRequest {
        consistent: true,
        ..describe()
    };
    let refused = dispatcher.describe_job(consistent.clone()).await;
    check_passing(refused, "can't confirm");

    fixture.cluster.unavailable(false);
    let described = dispatcher.describe_job(consistent).await;
    assert!(described.is_ok(), "{described:?}");
}

#[tokio::test(start_paused = true)]
async fn a_submission_that_the_store_does_not_answer_is_answered_all_the_same() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(RecoveredJobs::default());
    fixture.faults.delay(Duration::from_secs(60));
    let asked = tokio::time::Instant::now();
    let unknown = dispatcher.submit_job(submission("token")).await;
    assert_eq!(asked.elapsed(), Duration::from_secs(5));
    assert!(
        matches!(unknown, Err(GatewayError::Unknown(_))),
        "{unknown:?}"
    );
    let answered = async {
        loop {
            match dispatcher.submit_job(submission("token")).await {
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
                Ok(accepted) => return accepted,
            }
        }
    };
    let accepted = tokio::time::timeout(Duration::from_secs(600), answered).await;
    assert_eq!(accepted.expect("in time").job_id, JOB.to_string());
}

#[tokio::test(start_paused = true)]
async fn without_space_submissions_are_refused_and_results_are_written_later() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(RecoveredJobs::default());
    submit(&dispatcher).await;
    fixture.cluster.out_of_space(true);
    let asked = tokio::time::Instant::now();
    let refused = dispatcher.submit_job(other_submission()).await;
    check_passing(refused, "out of space");
    assert!(asked.elapsed() < Duration::from_secs(1), "at once");
    let finished = result(pb::JobStatus::Finished);
    fixture.job_master().result.send_replace(Some(finished));
    tokio::time::sleep(Duration::from_secs(600)).await;
    fixture
        .until_stored("nothing new", |stored| stored.results.is_empty())
        .await;

    fixture.cluster.out_of_space(false);
    fixture
        .until_stored("its clean result", |stored| {
            stored.results.iter().any(|(_, result)| !result.dirty)
        })
        .await;
    let accepted = dispatcher.submit_job(other_submission()).await;
    assert!(accepted.is_ok(), "{accepted:?}");
}

#[tokio::test(start_paused = true)]
async fn without_space_descriptions_beyond_the_capacity_keep_no_result_from_being_forgotten() {
    let retention = Duration::from_secs(3600);
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    for job in [1, 2].map(JobId::from_bits) {
        end(&a, described(job, "counts".to_owned())).await;
    }
    kill(&a).await;
    cluster.out_of_space(true);
    let options = DispatcherOptions {
        result_retention: retention,
        max_described: 1,
        ..DispatcherOptions::default()
    };
    let b = Leader::with(&cluster, "b", None, options).await;
    tokio::time::sleep(retention + Duration::from_secs(120)).await;
    for kind in [kinds::RESULTS, kinds::DESCRIPTIONS] {
        assert_eq!(count(&b, kind).await, 0, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn descriptions_that_were_dropped_before_the_store_had_no_space_are_not_written_of_again() {
    let fixture = Fixture::new().await;
    let jobs = [1, 2, 3].map(JobId::from_bits);
    for job in jobs {
        let written = fixture
            .store
            .put_result(described(job, "counts".to_owned()));
        written.await.expect("written");
    }
    let results = recovered(&fixture.store).await.results;
    let results: Vec<pb::JobResult> = results.into_iter().map(|(_, result)| result).collect();
    // Too large for any store: its result is refused after the first one's was written.
    let mut last = results[1].clone();
    last.details.get_or_insert_default().name = (0..2000).map(|_| large_name()).collect();
    let tried = vec![results[0].clone(), last, results[2].clone()];
    let dropped = fixture.store.drop_descriptions(tried).await;
    assert!(dropped.failure.is_some(), "{dropped:?}");
    let left: Vec<&str> = dropped.left.iter().map(|it| it.job_id.as_str()).collect();
    assert_eq!(left, [results[0].job_id.as_str()]);
    assert!(dropped.left[0].description.is_none());
}

/// A leader whose blob store has no bucket at present.
async fn without_bucket() -> (Leader, MissingBucket) {
    let bucket = MissingBucket::default();
    let blobs = Some(Arc::new(bucket.store()));
    let options = DispatcherOptions::default();
    let leader = Leader::with(&MemoryCluster::default(), "a", blobs, options).await;
    (leader, bucket)
}

#[tokio::test(start_paused = true)]
async fn the_state_of_a_job_waits_for_a_bucket_that_is_missing() {
    let (leader, bucket) = without_bucket().await;
    let state = pb::JobState {
        job_id: scripted::JOB.to_string(),
        name: large_name(),
        ..pb::JobState::default()
    };
    let write = leader.store.put_state(&state);
    tokio::pin!(write);
    let waiting = tokio::time::timeout(Duration::from_secs(600), &mut write).await;
    assert!(waiting.is_err(), "{waiting:?}");
    bucket.appear();
    let written = tokio::time::timeout(Duration::from_secs(600), write).await;
    written.expect("in time").expect("written");
}

#[tokio::test(start_paused = true)]
async fn a_job_ends_without_its_description_while_the_bucket_for_it_is_missing() {
    let (leader, _missing) = without_bucket().await;
    let job = scripted::JOB;
    leader.submit(job).await.expect("acknowledged");
    let result = described(job, large_name());
    leader.end_last(End::Result(Box::new(result)));
    leader.wait_for(job, pb::JobStatus::Finished).await;
    let details = leader.describe(job).await.expect("its result is kept");
    let undescribed = details.undescribed;
    assert!(undescribed.contains("the blob store"), "{undescribed}");
}
