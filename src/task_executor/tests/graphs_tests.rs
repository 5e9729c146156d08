//! Deployments that only name their graph: it is fetched once, and they are checked when it has arrived.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use prost::Message as _;
use tanist_gateway::blobs::{BlobGateway, BlobStream, HeldBlob, ServedBlobs};
use tanist_gateway::{GatewayError, GatewayResult};
use tokio::sync::Semaphore;

use super::scripted_leader::Leader;
use super::testing::*;
use crate::*;

/// A blob server that answers when the test allows it.
#[derive(Debug)]
struct Slow {
    served: ServedBlobs,
    asked: AtomicUsize,
    may_answer: Semaphore,
}

#[async_trait]
impl BlobGateway for Slow {
    async fn fetch(&self, request: pb::FetchBlobRequest) -> GatewayResult<BlobStream> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let permit = self.may_answer.acquire().await;
        permit.expect("never closed").forget();
        self.served.fetch(request).await
    }
}

/// A TaskExecutor with a slot of the job, and the job's graph on a blob server.
struct Scene {
    world: World,
    leader: Leader,
    server: Arc<Slow>,
    held: HeldBlob,
}

impl Scene {
    async fn start() -> Scene {
        let world = World::start(false);
        let served = ServedBlobs::new("jm1:2");
        let encoded = Bytes::from(graph().encode_to_vec());
        let held = served.hold(encoded).await.expect("held");
        let server = Arc::new(Slow {
            served,
            asked: AtomicUsize::new(0),
            may_answer: Semaphore::new(0),
        });
        world.connector.put_blobs("jm1:2", server.clone());
        let (_, leader) = world.with_leader("jm1:1", 1).await;
        leader.request_slot(0, A1).await;
        leader.registered_job().await;
        leader.offered().await;
        Scene {
            world,
            leader,
            server,
            held,
        }
    }

    /// Deploys a subtask, in a tokio task.
    fn deploy(
        &self,
        subtask: u32,
        generation: u64,
    ) -> tokio::task::JoinHandle<GatewayResult<pb::SubmitTasksResponse>> {
        let request = self.leader.deployment(subtask, generation, A1);
        let request = pb::SubmitTasksRequest {
            graph: None,
            graph_reference: Some(self.held.reference()),
            ..request
        };
        let gateway = self.leader.task_executor();
        tokio::spawn(async move { gateway.submit_tasks(request).await })
    }

    /// Waits until the blob server has received this number of requests.
    async fn asked(&self, times: usize) {
        while self.server.asked.load(Ordering::SeqCst) < times {
            pass(Duration::from_millis(1)).await;
        }
    }

    fn may_answer(&self) {
        self.server.may_answer.add_permits(1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_graph_is_fetched_once_for_all_deployments_of_its_job() {
    let mut scene = Scene::start().await;
    let first = scene.deploy(0, 1);
    let second = scene.deploy(1, 1);
    scene.asked(1).await;
    pass(Duration::from_secs(1)).await;
    // Meanwhile the TaskExecutor answers others.
    scene
        .leader
        .request_slot(1, "000000000000000000000000000000a2")
        .await;
    scene.may_answer();
    for deployed in [first, second] {
        let answer = deployed.await.expect("no panic").expect("is registered");
        assert_eq!(answer.refused, []);
        let started = scene.world.next_started().await;
        assert_eq!(*started.start.graph, graph());
    }
    let third = scene.deploy(0, 2).await.expect("no panic");
    assert_eq!(third.expect("is registered").refused, []);
    assert_eq!(scene.server.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn tasks_whose_graph_can_not_be_fetched_are_refused_with_the_reason() {
    let mut scene = Scene::start().await;
    scene.world.connector.remove("jm1:2");
    let refused = scene.deploy(0, 1).await.expect("no panic");
    let refused = refused.expect("is registered").refused;
    let reason = &refused[0].reason;
    assert_eq!((refused.len(), refused[0].generation), (1, 1));
    assert!(
        reason.contains("the job's graph can't be fetched"),
        "{reason}"
    );
    // The next generation tries again.
    let server = scene.server.clone();
    scene.world.connector.put_blobs("jm1:2", server);
    scene.may_answer();
    let answer = scene.deploy(0, 2).await.expect("no panic");
    assert_eq!(answer.expect("is registered").refused, []);
    scene.world.next_started().await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_held_up_by_its_graph_is_refused_when_a_younger_leader_is_known() {
    let mut scene = Scene::start().await;
    let late = scene.deploy(0, 1);
    scene.asked(1).await;
    let (_, _younger) = scene.world.with_leader("jm2:1", 2).await;
    scene.may_answer();
    let refused = late.await.expect("no panic");
    let is_outdated = matches!(refused, Err(GatewayError::Outdated { epoch: 2, .. }));
    assert!(is_outdated, "{refused:?}");
    pass(Duration::from_secs(1)).await;
    assert!(scene.world.started.try_recv().is_err(), "it was started");
}

#[tokio::test(start_paused = true)]
async fn a_deployment_of_the_next_leader_does_not_wait_for_the_graph_of_a_leader_that_is_gone() {
    let mut scene = Scene::start().await;
    let late = scene.deploy(0, 1);
    scene.asked(1).await;
    let served = ServedBlobs::new("jm2:2");
    let encoded = Bytes::from(graph().encode_to_vec());
    let held = served.hold(encoded).await.expect("held");
    scene
        .world
        .connector
        .put_blobs("jm2:2", Arc::new(served.clone()));
    let (_, younger) = scene.world.with_leader("jm2:1", 2).await;
    younger.registered_job().await;
    let request = pb::SubmitTasksRequest {
        graph: None,
        graph_reference: Some(held.reference()),
        ..younger.deployment(0, 2, A1)
    };
    let answer = younger.task_executor().submit_tasks(request).await;
    assert_eq!(answer.expect("is registered").refused, []);
    let started = scene.world.next_started().await;
    assert_eq!(started.start.deployment.generation, 2);
    scene.may_answer();
    late.await.expect("no panic").expect_err("outdated");
}

#[tokio::test(start_paused = true)]
async fn a_task_cancelled_while_its_graph_is_fetched_never_starts() {
    let mut scene = Scene::start().await;
    let late = scene.deploy(0, 1);
    scene.asked(1).await;
    scene.leader.cancel(1).await;
    scene.may_answer();
    let answer = late.await.expect("no panic").expect("is registered");
    assert_eq!(answer.refused.len(), 1);
    assert!(scene.world.started.try_recv().is_err(), "it was started");
}

#[tokio::test(start_paused = true)]
async fn a_graph_that_is_not_what_was_named_is_refused() {
    let scene = Scene::start().await;
    let lie = ServedBlobs::new("jm1:2");
    #[derive(Debug)]
    struct Liar(ServedBlobs, pb::FetchBlobRequest);
    #[async_trait]
    impl BlobGateway for Liar {
        async fn fetch(&self, _: pb::FetchBlobRequest) -> GatewayResult<BlobStream> {
            self.0.fetch(self.1.clone()).await
        }
    }
    let mut other = graph().encode_to_vec();
    other[40] ^= 1;
    let held = lie.hold(Bytes::from(other)).await.expect("held");
    let content = pb::fetch_blob_request::Content::Sha256(held.reference().sha256);
    let content = Some(content);
    let liar = Liar(lie, pb::FetchBlobRequest { content });
    scene.world.connector.put_blobs("jm1:2", Arc::new(liar));
    let answer = scene.deploy(0, 1).await.expect("no panic");
    let refused = answer.expect("is registered").refused;
    assert!(refused[0].reason.contains("SHA-256"), "{refused:?}");
}
