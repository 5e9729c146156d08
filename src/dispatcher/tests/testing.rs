//! Shared by tests of the Dispatcher: a job with its requests, and jobs as a new term would read them at any time.

use tanist_compile::{CompileOptions, JobBuilder, validate_job_graph};
use tanist_ha::store::cache::{CacheOptions, WarmCache};
use tanist_model::OperatorSpec;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::watch;

use crate::{Caution, GraphChecks, JobStore, RecoveredJobs};

/// The checks of a process that has no operators of its own.
pub(crate) fn checks() -> GraphChecks {
    GraphChecks {
        invalid: |graph| {
            let checked = validate_job_graph(graph);
            checked.err().map(|invalid| invalid.to_string())
        },
        unknown_operators: |graph| {
            let mut operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
            operators.find_map(|operator| match OperatorSpec::from_json(&operator.spec) {
                Ok(OperatorSpec::Custom(custom)) => Some(format!("no operator `{}`", custom.name)),
                Ok(_) | Err(_) => None,
            })
        },
    }
}

/// The job of most tests.
pub(crate) const JOB: JobId = JobId::from_bits(0xA);

pub(crate) fn submission(token: &str) -> pb::SubmitJobRequest {
    let options = CompileOptions {
        job_id: JOB,
        ..CompileOptions::default()
    };
    let job = JobBuilder::new("stream")
        .datagen("numbers", Some(1), None, 1, 1)
        .discard("out")
        .build();
    pb::SubmitJobRequest {
        graph: Some(job.compile(&options).expect("valid")),
        submission_token: token.to_owned(),
        ..pb::SubmitJobRequest::default()
    }
}

pub(crate) fn result(status: pb::JobStatus) -> pb::JobResult {
    pb::JobResult {
        job_id: JOB.to_string(),
        name: "stream".to_owned(),
        status: status.into(),
        ended_at_ms: u64::MAX / 2,
        dirty: true,
        submission_token: "token".to_owned(),
        remove: Some(pb::Cleanup {
            sink_directories: vec!["/out".to_owned()],
            ..pb::Cleanup::default()
        }),
        ..pb::JobResult::default()
    }
}

pub(crate) fn cancel() -> pb::CancelJobRequest {
    pb::CancelJobRequest {
        job_id: JOB.to_string(),
    }
}

pub(crate) fn describe() -> pb::DescribeJobRequest {
    pb::DescribeJobRequest {
        job_id: JOB.to_string(),
        ..pb::DescribeJobRequest::default()
    }
}

/// Returns all jobs as the store has them, read through a cold cache.
pub(crate) async fn recovered(store: &JobStore) -> RecoveredJobs {
    let found = found(store).await;
    let read = store.read_results(&found.kept).await.expect("readable");
    RecoveredJobs {
        jobs: found.jobs,
        ..read
    }
}

/// The same with unread results.
pub(crate) async fn found(store: &JobStore) -> RecoveredJobs {
    let coordination = store.coordination_store().clone();
    loop {
        let guard = coordination.guard().await.expect("the store answers");
        let (_, _, incarnation) = guard.epoch.expect("a term has begun");
        let options = CacheOptions {
            kinds: JobStore::KINDS.to_vec(),
            max_bytes: 1 << 20,
            compare_interval: std::time::Duration::from_secs(60),
        };
        let mut cache = WarmCache::new(coordination.clone(), options, watch::Sender::default());
        // Concurrent writes refute the proof.
        if let Ok(proven) = cache.prove(&incarnation, guard.change).await {
            return store
                .recover(&proven.records, &Caution::default())
                .await
                .expect("readable");
        }
        tokio::task::yield_now().await;
    }
}
