//! Ended jobs over the memory store: what is kept of them, for how long, and which leader serves it.

use std::time::Duration;

use tanist_gateway::kinds;
use tanist_gateway::{DispatcherGateway as _, GatewayError};
use tanist_ha::keys::Kind;
use tanist_ha::memory::MemoryCluster;
use tanist_ha::store::CoordinationStore as _;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::scripted::{End, JOB, Leader, blobs, large_name, result_of};
use super::testing::recovered;
use crate::DispatcherOptions;

/// Returns the result of a job with this name, with a full description.
pub(super) fn described(job: JobId, name: String) -> pb::JobResult {
    let subtask = |subtask, state: pb::ExecutionState| pb::SubtaskDetails {
        subtask,
        state: state.into(),
        ..pb::SubtaskDetails::default()
    };
    let failure = |cause: &str| pb::FailureRecord {
        cause: cause.to_owned(),
        ..pb::FailureRecord::default()
    };
    pb::JobResult {
        details: Some(pb::JobDetails {
            vertices: vec![pb::VertexDetails {
                name,
                parallelism: 2,
                subtasks: vec![
                    subtask(0, pb::ExecutionState::Finished),
                    subtask(1, pb::ExecutionState::Finished),
                ],
                ..pb::VertexDetails::default()
            }],
            failures: vec![failure("first"), failure("last")],
            restarts: 2,
            ..pb::JobDetails::default()
        }),
        ..result_of(job)
    }
}

pub(super) async fn end(leader: &Leader, result: pb::JobResult) {
    let job: JobId = result.job_id.parse().expect("an id");
    leader.submit(job).await.expect("acknowledged");
    leader.end_last(End::Result(Box::new(result)));
    leader.wait_for(job, pb::JobStatus::Finished).await;
    for _ in 0..10_000 {
        if !leader.describe(job).await.expect("known").cleaning_up {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{job} is not cleaned up after");
}

pub(super) async fn count(leader: &Leader, kind: Kind) -> usize {
    let page = leader.records.list(kind, None, 1000).await;
    page.expect("readable").items.len()
}

/// Ends a term without notice, as if its process was killed.
pub(super) async fn kill(leader: &Leader) {
    leader.dispatcher.stop().await;
    leader.cluster.partition(&leader.process);
    leader.cluster.expire(&leader.process);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_not_cleaned_up_after_is_never_forgotten_with_the_others() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    end(&a, result_of(JobId::from_bits(8))).await;
    assert!(!a.store.has_unended_jobs().await.expect("read"));
    a.world.hanging.lock().push("/hangs".to_owned());
    a.submit(JOB).await.expect("acknowledged");
    assert!(a.store.has_unended_jobs().await.expect("read"));
    let dirty = pb::JobResult {
        remove: Some(pb::Cleanup {
            sink_directories: vec!["/hangs".to_owned()],
            ..pb::Cleanup::default()
        }),
        ..result_of(JOB)
    };
    a.end_last(End::Result(Box::new(dirty)));
    a.wait_for(JOB, pb::JobStatus::Finished).await;
    assert!(!a.store.has_unended_jobs().await.expect("read"));
    assert!(!a.store.delete_clean_results().await.expect("written"));
    assert_eq!(count(&a, kinds::RESULTS).await, 1);
    kill(&a).await;
    let b = Leader::of(&cluster, "b").await;
    b.wait_for(JOB, pb::JobStatus::Finished).await;
    let is_cleaned_up = async || !b.describe(JOB).await.expect("known").cleaning_up;
    while !is_cleaned_up().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(b.store.delete_clean_results().await.expect("written"));
    assert_eq!(count(&b, kinds::RESULTS).await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_next_leader_serves_the_whole_description_and_has_it_in_memory_in_short() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    let result = pb::JobResult {
        cause: "it broke (not restarted)".to_owned(),
        ..described(JOB, "counts".to_owned())
    };
    end(&a, result).await;
    kill(&a).await;
    let b = Leader::of(&cluster, "b").await;
    let recovered = recovered(&b.store).await;
    let result = &recovered.results[0].1;
    let short = result.details.as_ref().expect("in short");
    assert!(short.vertices.is_empty() && short.failures.len() == 1);
    for _ in 0..2 {
        let details = b.describe(JOB).await.expect("described");
        assert_eq!(details.status(), pb::JobStatus::Finished);
        assert_eq!(details.vertices[0].name, "counts");
        assert_eq!((details.failures.len(), details.restarts), (2, 2));
        assert_eq!(details.cause, "it broke (not restarted)");
        assert_eq!(details.ended_at_ms, result.ended_at_ms);
    }
    let listed = b.dispatcher.list_jobs(pb::ListJobsRequest::default()).await;
    let listed = &listed.expect("listed").jobs[0];
    assert_eq!(listed.state_counts[0].count, 2);
    assert_eq!(listed.cause, "it broke (not restarted)");
    assert!(listed.vertices.is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_of_the_store_a_job_is_described_in_short_and_the_reason_is_given() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    end(&a, described(JOB, "counts".to_owned())).await;
    kill(&a).await;
    let b = Leader::of(&cluster, "b").await;
    b.records.faults().delay(Duration::from_secs(60));
    let details = b.describe(JOB).await.expect("described");
    assert_eq!(details.status(), pb::JobStatus::Finished);
    assert!(
        details.undescribed.contains("no answer"),
        "{}",
        details.undescribed
    );
}

/// The store keeps the description outside the result, and removes it with the result.
async fn is_forgotten_with_the_result(in_blobs: bool) {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let options = || DispatcherOptions {
        expiration_interval: Duration::from_secs(1),
        ..DispatcherOptions::default()
    };
    let given = in_blobs.then(|| blobs.clone());
    let a = Leader::with(&cluster, "a", given.clone(), options()).await;
    let name: String = (0..400).map(|_| large_name()).collect();
    end(&a, described(JOB, name.clone())).await;
    let objects = async || blobs.list().await.expect("listed").len();
    assert_eq!(objects().await, usize::from(in_blobs));
    assert_eq!(count(&a, kinds::CHUNKS).await > 1, !in_blobs);
    kill(&a).await;
    let options = DispatcherOptions {
        result_retention: Duration::ZERO,
        expiration_interval: Duration::from_secs(5),
        ..DispatcherOptions::default()
    };
    let b = Leader::with(&cluster, "b", given, options).await;
    let details = b.describe(JOB).await;
    if let Ok(details) = details {
        assert!(details.vertices.is_empty() || details.vertices[0].name == name);
    }
    // The sweep of a later term keeps it, as a result names it.
    b.store.orphan_gc().remove_chunks().await.expect("swept");
    for _ in 0..1000 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let kinds = [kinds::RESULTS, kinds::DESCRIPTIONS, kinds::CHUNKS];
        let mut left = objects().await;
        for kind in kinds {
            left += count(&b, kind).await;
        }
        if left == 0 {
            return;
        }
    }
    panic!("something is left of a job that is forgotten");
}

#[tokio::test]
async fn a_description_in_a_blob_goes_with_the_result() {
    is_forgotten_with_the_result(true).await;
}

#[tokio::test]
async fn a_description_in_chunks_goes_with_the_result() {
    is_forgotten_with_the_result(false).await;
}

#[tokio::test(start_paused = true)]
async fn chunks_of_a_kept_description_are_not_swept_and_it_is_read_from_them() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    let name: String = (0..400).map(|_| large_name()).collect();
    end(&a, described(JOB, name.clone())).await;
    kill(&a).await;
    let b = Leader::of(&cluster, "b").await;
    let chunks = count(&b, kinds::CHUNKS).await;
    b.store.orphan_gc().remove_chunks().await.expect("swept");
    assert_eq!(count(&b, kinds::CHUNKS).await, chunks);
    let details = b.describe(JOB).await.expect("described");
    assert_eq!(details.vertices[0].name, name);
}

#[tokio::test(start_paused = true)]
async fn of_too_many_ended_jobs_the_results_are_kept_and_the_newest_descriptions() {
    let cluster = MemoryCluster::default();
    let options = DispatcherOptions {
        max_described: 2,
        ..DispatcherOptions::default()
    };
    let a = Leader::with(&cluster, "a", None, options).await;
    let jobs: Vec<JobId> = (1..=3).map(JobId::from_bits).collect();
    for (at, job) in (1..).zip(&jobs) {
        let mut result = described(*job, "counts".to_owned());
        result.ended_at_ms += at;
        end(&a, result).await;
    }
    let is_described = async |leader: &Leader, job: JobId| {
        let details = leader.describe(job).await.expect("its result is kept");
        assert_eq!(details.status(), pb::JobStatus::Finished);
        details.undescribed.is_empty() && details.vertices.len() == 1
    };
    for _ in 0..1000 {
        if count(&a, kinds::DESCRIPTIONS).await == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    kill(&a).await;
    let b = Leader::of(&cluster, "b").await;
    for leader in [&b] {
        let mut which = Vec::new();
        for job in &jobs {
            which.push(is_described(leader, *job).await);
        }
        assert_eq!(which, [false, true, true]);
    }
    let repeated = b.submit(jobs[0]).await.expect("answered by its result");
    assert!(repeated.repeated);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_had_a_job_cancelled_has_the_same_answer_from_the_next_leader() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    let jobs =
        [true, false].map(|never_placed| (JobId::from_bits(never_placed.into()), never_placed));
    for (job, never_placed) in jobs {
        a.submit(job).await.expect("acknowledged");
        let canceled = pb::JobResult {
            status: pb::JobStatus::Canceled.into(),
            never_placed,
            ..result_of(job)
        };
        a.end_last(End::Result(Box::new(canceled)));
        a.wait_for(job, pb::JobStatus::Canceled).await;
    }
    kill(&a).await;
    let b = Leader::of(&cluster, "b").await;
    for (job, never_placed) in jobs {
        b.wait_for(job, pb::JobStatus::Canceled).await;
        let job_id = job.to_string();
        let stopped = b.dispatcher.stop_job(pb::StopJobRequest { job_id }).await;
        assert_eq!(stopped.is_ok(), never_placed, "{stopped:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_is_stopped_again_only_if_a_stop_has_ended_it() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    let jobs = [true, false].map(|drained| (JobId::from_bits(drained.into()), drained));
    for (job, drained) in jobs {
        a.submit(job).await.expect("acknowledged");
        let finished = pb::JobResult {
            drained,
            ..result_of(job)
        };
        a.end_last(End::Result(Box::new(finished)));
        a.wait_for(job, pb::JobStatus::Finished).await;
    }
    kill(&a).await;
    let b = Leader::of(&cluster, "b").await;
    for (job, drained) in jobs {
        b.wait_for(job, pb::JobStatus::Finished).await;
        let job_id = job.to_string();
        let stopped = b.dispatcher.stop_job(pb::StopJobRequest { job_id }).await;
        match stopped {
            Ok(_) => assert!(drained, "job {job} has finished by itself"),
            Err(GatewayError::Conflict(text)) => {
                assert!(!drained, "{text}");
                assert_eq!(text, format!("job {job} has already ended: FINISHED"));
            }
            other => panic!("{other:?}"),
        }
    }
}
