//! What the Dispatcher answers while its store gives no answer, or has no space: on paused time over the memory store.

use std::time::Duration;

use tanist_ha::election::NotLeading;
use tanist_proto::v1 as pb;

use super::DispatcherHandle;
use super::RecoveredJobs;
use super::admission_tests::Fixture;
use super::testing::{JOB, cancel, describe, result, submission};
use crate::gateway::{DispatcherGateway as _, GatewayError};

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
        graph.job_id = tanist_proto::id::JobId::from_bits(0xB).to_string();
    }
    request
}

async fn submit(dispatcher: &DispatcherHandle) {
    let accepted = dispatcher.submit_job(submission("token")).await;
    assert!(accepted.is_ok(), "{accepted:?}");
}

/// To be asked again, for a reason that says this.
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
