//! Graphs that are too large for a message, and graphs that are too large for a transaction.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tanist_compile::{CompileOptions, JobBuilder};
use tanist_config::LoadOptions;
use tanist_gateway::blobs::ServedBlobs;
use tanist_gateway::kinds;
use tanist_gateway::local::Fault;
use tanist_gateway::{Connector as _, DispatcherGateway as _};
use tanist_ha::election::ProcessId;
use tanist_ha::keys::Key;
use tanist_ha::store::{CoordinationStore as _, Write};
use tanist_leadership::ForwardingDispatcher;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use crate::testing::cluster::{TestCluster, graph};
use crate::testing::history::{Event, Record};

const JOB: JobId = JobId::from_bits(0xB);

/// Two JobManagers, and two TaskManagers with two slots each. Every graph is too large for a message.
async fn cluster() -> TestCluster {
    let load = LoadOptions::default()
        .with("restart-strategy.type", "fixed-delay")
        .with("restart-strategy.fixed-delay.attempts", "1000000")
        .with("restart-strategy.fixed-delay.delay", "100 ms")
        .with("rpc.inline-deployment-threshold", "100 b");
    let cluster = TestCluster::start_with(load, 2, 2, 2).await;
    cluster.leader().await;
    cluster
}

/// A graph that is too large for a transaction even when compressed.
fn large_graph() -> pb::JobGraph {
    let mut random = StdRng::seed_from_u64(1);
    let noise = (0..3_000_000).map(|_| char::from(random.random_range(b'0'..=b'z')));
    let path: String = noise.filter(char::is_ascii_alphanumeric).collect();
    let stream = JobBuilder::new("stream")
        .parallelism(2)
        // No task looks for this file.
        .follow_files("lines", [format!("/{path}")])
        .key_by("by-line", ["line"])
        .count("counts")
        .discard("out");
    let options = CompileOptions {
        job_id: JOB,
        ..CompileOptions::default()
    };
    stream.build().compile(&options).expect("a valid job")
}

async fn chunks(cluster: &TestCluster) -> usize {
    let store = cluster.memory.store_of(ProcessId::new("reader"));
    let page = store.list(kinds::CHUNKS, None, 1000).await;
    page.expect("readable").items.len()
}

async fn finishes(cluster: &TestCluster) {
    cluster.until_running(JOB, 4).await;
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, pb::JobStatus::Finished);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_graph_above_the_inline_threshold_is_fetched_by_the_task_managers() {
    let mut cluster = cluster().await;
    let leader = cluster.leader().await;
    let blobs = format!("{leader}:2");
    cluster.connector().set_fault(&blobs, Fault::Unreachable);
    let accepted = cluster.client.submit(&graph(JOB, 2), "token").await;
    accepted.expect("accepted");
    cluster
        .until_stored("deployments were refused", |stored| {
            let state = stored.states.get(&JOB);
            state.is_some_and(|state| state.failures.len() > 2)
        })
        .await;
    assert_eq!(cluster.world.tasks.of(JOB), []);
    cluster.connector().set_fault(&blobs, Fault::None);
    cluster.until_running(JOB, 4).await;
    // The next leader serves it too: to a TaskManager that does not have it yet.
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    cluster.until_running(JOB, 4).await;
    for name in ["tm1", "tm2"] {
        cluster.kill_task_manager(name).await;
    }
    cluster.start_task_manager("tm3");
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_standby_holds_a_large_submission_until_the_leader_has_answered() {
    let cluster = cluster().await;
    let leader = cluster.leader().await;
    let blobs = ServedBlobs::new("standby:2");
    cluster
        .connector()
        .put_blobs("standby:2", Arc::new(blobs.clone()));
    let standby = ForwardingDispatcher {
        leader: cluster.connector().dispatcher(&format!("{leader}:1")),
        blobs: blobs.clone(),
        threshold: 100,
    };
    let submission = pb::SubmitJobRequest {
        graph: Some(graph(JOB, 2)),
        submission_token: "token".to_owned(),
        ..pb::SubmitJobRequest::default()
    };
    cluster
        .connector()
        .set_fault("standby:2", Fault::Unreachable);
    let unreachable = standby.submit_job(submission.clone()).await;
    let error = unreachable.expect_err("the leader can't fetch it");
    assert!(error.is_retryable(), "{error}");
    cluster.connector().set_fault("standby:2", Fault::None);
    let accepted = standby.submit_job(submission.clone()).await;
    assert!(!accepted.expect("accepted").repeated);
    // The same submission within a message is recognized as the same.
    let again = standby.leader.submit_job(submission).await;
    assert!(again.expect("accepted").repeated);
    assert_eq!(blobs.held(), 0);
    finishes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_graph_that_no_transaction_takes_survives_its_leader_and_leaves_nothing() {
    let mut cluster = cluster().await;
    let leader = cluster.leader().await;
    let accepted = cluster.client.submit(&large_graph(), "token").await;
    accepted.expect("accepted");
    let written = chunks(&cluster).await;
    assert!(written > 1, "{written} chunks");
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    assert_eq!(chunks(&cluster).await, written);
    finishes(&cluster).await;
    assert_eq!(chunks(&cluster).await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_leader_leaves_that_dies_between_the_parts_and_the_graph_is_removed() {
    let mut cluster = cluster().await;
    cluster.strike_at(|step| step.commits(|record| matches!(record, Record::Graph(_))));
    let client = cluster.client.clone();
    let submitting = tokio::spawn(async move { client.submit(&large_graph(), "token").await });
    cluster.after_strike().await;
    let left = chunks(&cluster).await;
    assert!(left > 1, "{left} chunks");
    cluster.leader_above(1).await;
    let accepted = submitting.await.expect("no panic").expect("accepted");
    assert!(!accepted.repeated, "the first try left no graph");
    // The chunks of the first attempt are removed, those of the second stay.
    let graphs = |event: &Event| {
        matches!(event, Event::Committed { records, .. }
            if records.iter().any(|record| matches!(record, Record::Graph(_))))
    };
    assert_eq!(
        cluster
            .world
            .events()
            .iter()
            .filter(|it| graphs(it))
            .count(),
        1
    );
    finishes(&cluster).await;
    assert_eq!(chunks(&cluster).await, 0);
}

/// Deletes a chunk outside any term.
async fn delete_a_chunk(cluster: &TestCluster) {
    let store = cluster.memory.store_of(ProcessId::new("stranger"));
    let page = store.list(kinds::CHUNKS, None, 1).await.expect("readable");
    let (name, _) = page.items.into_iter().next().expect("there is one");
    let key = Key::new(kinds::CHUNKS, name);
    cluster.write_as_a_stranger(Write::Delete { key }).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_graph_lost_a_chunk_is_quarantined_and_its_chunks_go_when_it_is_cancelled() {
    let mut cluster = cluster().await;
    let leader = cluster.leader().await;
    let accepted = cluster.client.submit(&large_graph(), "token").await;
    accepted.expect("accepted");
    cluster.until_running(JOB, 4).await;
    let written = chunks(&cluster).await;
    delete_a_chunk(&cluster).await;
    cluster.kill_job_manager(&leader).await;
    let second = cluster.leader_above(1).await;
    let described = cluster.client.describe(JOB).await.expect("it is there");
    let reason = &described.quarantine;
    assert!(reason.contains("chunk 0"), "{reason}");
    assert_eq!(
        chunks(&cluster).await,
        written - 1,
        "they may be needed to repair it"
    );
    cluster
        .client
        .cancel(JOB)
        .await
        .expect("it can be canceled");
    assert_eq!(cluster.until_clean(JOB).await, pb::JobStatus::Canceled);
    // It was not known which chunks belonged to the job: for the next term they are orphans.
    cluster.start_job_manager(&leader);
    cluster.kill_job_manager(&second).await;
    let epoch = cluster.epoch();
    cluster.leader_above(epoch).await;
    for _ in 0..1000 {
        if chunks(&cluster).await == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} chunks are left", chunks(&cluster).await);
}

#[tokio::test(start_paused = true)]
async fn a_graph_above_the_limit_is_refused_before_anything_is_written() {
    let load = LoadOptions::default().with("high-availability.store.max-graph-size", "1 mb");
    let cluster = TestCluster::start_with(load, 1, 1, 1).await;
    let refused = cluster.client.submit(&large_graph(), "token").await;
    let text = refused.expect_err("too large").to_string();
    for key in ["store.max-graph-size", "storageDir", "storage-shared"] {
        assert!(text.contains(&format!("high-availability.{key}")), "{text}");
    }
    assert_eq!(chunks(&cluster).await, 0);
}
