//! Files that are fetched for programs: once per job, even if its tasks are started several times.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use tanist_dataflow::TaskStatus;
use tanist_operators::UploadSource;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{BOUND, World, numbers, sh};

const CONTENT: &str = "a model";

/// Counts requests.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

#[async_trait]
impl UploadSource for Counting {
    async fn object(&self, _name: &str) -> Result<bytes::Bytes, String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(bytes::Bytes::from_static(CONTENT.as_bytes()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_attempt_fetches_nothing_and_nothing_is_left_of_the_job() {
    let source = Arc::new(Counting::default());
    let world = World {
        uploads: Some(source.clone()),
        ..World::new()
    };
    let script = format!("test \"$(cat model)\" = '{CONTENT}' || exit 9; cat > /dev/null");
    let steps = numbers(10).exec("reads", sh(&script)).discard("out");
    let (runtime, spec) = world.task(steps).await;
    let job: JobId = spec.graph.job_id.parse().expect("it is an id");
    let mut graph = (*spec.graph).clone();
    graph.artifacts.push(pb::Artifact {
        name: "model".to_owned(),
        sha256: Sha256::digest(CONTENT).to_vec().into(),
        uploaded: Some(pb::UploadedContent {
            object: "object".to_owned(),
            pieces: 1,
            size: CONTENT.len() as u64,
        }),
        ..pb::Artifact::default()
    });
    let graph = Arc::new(graph);
    for generation in 1..=2 {
        let mut spec = spec.clone();
        spec.graph = graph.clone();
        spec.deployment.generation = generation;
        let task = runtime.start(spec);
        let ended = tokio::time::timeout(BOUND, task.ended()).await;
        let ended = ended.expect("it takes no minute");
        assert!(matches!(ended, TaskStatus::Finished { .. }), "{ended:?}");
    }
    assert_eq!(source.0.load(Ordering::Relaxed), 1, "fetched once");
    let left = || {
        let left = fs::read_dir(world.working.path().join("artifacts"));
        left.map_or(0, Iterator::count)
    };
    assert_eq!(left(), 1, "kept for another attempt");
    runtime.release_files(job);
    let gone = async {
        while left() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let gone = tokio::time::timeout(BOUND, gone).await;
    gone.expect("removed with the job");
}
