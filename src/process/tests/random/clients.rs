//! The clients of a run: each submits a job, repeats the submission, and may stop or cancel the job.

use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use tanist_gateway::GatewayError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::QuarantineAction;
use tokio::task::JoinHandle;

use crate::testing::client::Client;
use crate::testing::cluster::TestCluster;

/// The planned end of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientRequest {
    /// Its tasks finish by themselves.
    Finish,
    /// It runs forever and is canceled.
    Cancel,
    /// It runs until it is stopped.
    Stop,
}

/// Starts a client that submits this job at some time.
pub(super) fn send_request(
    cluster: &TestCluster,
    random: &mut StdRng,
    graph: pb::JobGraph,
    request: ClientRequest,
) -> JoinHandle<()> {
    let job: JobId = graph.job_id.parse().expect("a job id");
    let mut pause = || Duration::from_millis(random.random_range(0..25_000));
    let (first, second, third) = (pause(), pause(), pause());
    if request == ClientRequest::Finish {
        let time = Duration::from_millis(random.random_range(1..30_000));
        cluster.world.tasks.finish_after(job, time);
    }
    if request == ClientRequest::Stop {
        cluster.world.tasks.follow_stopped_sources(job);
    }
    let client = cluster.client.clone();
    tokio::spawn(async move {
        tokio::time::sleep(first).await;
        client.submit(&graph, "token").await.expect("accepted");
        tokio::time::sleep(second).await;
        match request {
            ClientRequest::Finish => {}
            ClientRequest::Cancel => client.cancel(job).await.expect("canceled"),
            ClientRequest::Stop => stop(&client, job).await,
        }
        tokio::time::sleep(third).await;
        // In any state of the job: the same submission gets the same answer, and another graph is refused.
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

/// Starts a client that stops a job at some time.
pub(super) fn stop_some_time(
    cluster: &TestCluster,
    random: &mut StdRng,
    job: JobId,
) -> JoinHandle<()> {
    let pause = Duration::from_millis(random.random_range(0..60_000));
    let client = cluster.client.clone();
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        stop(&client, job).await;
    })
}

/// Stops a job. A quarantined one is led again first. It may already have finished or failed, or been cancelled because
/// nothing of it had begun: it was stopped before, and the process that would have answered died.
pub(super) async fn stop(client: &Client, job: JobId) {
    loop {
        match client.stop(job).await {
            Ok(()) => return,
            Err(GatewayError::Conflict(_)) => {
                let details = client.describe(job).await.expect("it was accepted");
                if details.status().has_ended() {
                    return;
                }
                // It may be led again already, or may only be restarting.
                let _ = client.resolve(job, QuarantineAction::Retry).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("job {job} can't be stopped: {error}"),
        }
    }
}

/// Waits until all clients have had definite answers.
pub(super) async fn answered(clients: Vec<JoinHandle<()>>) {
    for client in clients {
        client.await.expect("the client got a definite answer");
    }
}
