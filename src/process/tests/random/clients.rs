//! What clients ask for in a run: each submits a job, asks again what it knows already, and may cancel it.

use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::task::JoinHandle;

use crate::gateway::GatewayError;
use crate::process::testing::cluster::TestCluster;

/// How a job is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Its tasks finish by themselves.
    Finish,
    /// It runs for ever and is canceled.
    Cancel,
}

/// Starts a client that submits this job at some time.
pub fn ask(
    cluster: &TestCluster,
    random: &mut StdRng,
    graph: pb::JobGraph,
    wish: Wish,
) -> JoinHandle<()> {
    let job: JobId = graph.job_id.parse().expect("a job id");
    let mut pause = || Duration::from_millis(random.random_range(0..25_000));
    let (first, second, third) = (pause(), pause(), pause());
    if wish == Wish::Finish {
        let time = Duration::from_millis(random.random_range(1..30_000));
        cluster.world.tasks.finish_after(job, time);
    }
    let client = cluster.client.clone();
    tokio::spawn(async move {
        tokio::time::sleep(first).await;
        client.submit(&graph, "token").await.expect("accepted");
        tokio::time::sleep(second).await;
        if wish == Wish::Cancel {
            client.cancel(job).await.expect("canceled");
        }
        tokio::time::sleep(third).await;
        // Whatever became of it: the same submission gets the same answer, and another graph is refused.
        let again = client
            .submit(&graph, "token")
            .await
            .expect("the same answer");
        assert_eq!(again.job_id, job.to_string());
        let mut other = graph;
        other.name.push_str(" of somebody else");
        let other = client.submit(&other, "other").await;
        assert!(
            matches!(other, Err(GatewayError::Conflict(_))),
            "another submission of job {job}: {other:?}"
        );
    })
}

/// Waits until all clients have had definite answers.
pub async fn answered(clients: Vec<JoinHandle<()>>) {
    for client in clients {
        client.await.expect("the client got a definite answer");
    }
}
