//! `tanist local`: a whole cluster in this process, for one job, that leaves nothing behind.

use std::path::Path;
use std::time::Duration;

use tanist_proto::v1 as pb;
use tokio_util::sync::CancellationToken;

use super::jobmanager::JobManager;
use super::listen::BindError;
use super::taskmanager::{StartError, TaskManager};
use crate::config::{ConfigError, Configuration, LoadOptions};
use crate::gateway::GatewayError;
use crate::job::slots_needed;
use crate::telemetry::ExitCode;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Why a local run gave no result.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The configuration does not fit a local cluster.
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    /// Its JobManager could not start.
    #[error(transparent)]
    JobManager(#[from] BindError),
    /// Its TaskManager could not start.
    #[error(transparent)]
    TaskManager(#[from] StartError),
    /// The job was not accepted, or its end could not be learned.
    #[error(transparent)]
    Job(#[from] GatewayError),
    /// It was asked to end before the job did.
    #[error("stopped before the job ended")]
    Stopped,
}

/// The configuration of a local cluster: what `load` says, on an embedded store in `directory`, on free ports, with as many
/// slots as the job needs.
pub fn configuration(
    load: LoadOptions,
    directory: &Path,
    graph: &pb::JobGraph,
) -> Result<Configuration, ConfigError> {
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let slots = slots_needed(graph).max(1).to_string();
    let load = load
        .with("high-availability.type", "embedded")
        .with("high-availability.embedded.dir", &path("store"))
        .with("process.working-dir", &path("work"))
        .with("jobmanager.rpc.port", "0")
        .with("rest.bind-port", "0")
        .with("taskmanager.rpc.port", "0")
        .with("taskmanager.data.port", "0")
        .with("taskmanager.numberOfTaskSlots", &slots);
    Configuration::load(load)
}

/// Runs the job to its end; `seen` hears of its progress. The cluster is gone when this returns.
pub async fn run(
    configuration: &Configuration,
    graph: pb::JobGraph,
    stop: CancellationToken,
    mut seen: impl FnMut(&pb::JobDetails),
) -> Result<pb::JobDetails, LocalError> {
    let manager = JobManager::bind(configuration).await?;
    let view = manager.view();
    let worker = TaskManager::bind(configuration).await?;
    let end_manager = CancellationToken::new();
    let end_worker = CancellationToken::new();
    let manager = tokio::spawn(manager.run(end_manager.clone()));
    let worker = tokio::spawn(worker.run(end_worker.clone()));

    let job = async {
        let dispatcher = view.dispatcher(START_PATIENCE).await?;
        let job_id = graph.job_id.clone();
        let request = pb::SubmitJobRequest {
            graph: Some(graph),
            submission_token: job_id.clone(),
            deadline_ms: 0,
        };
        dispatcher.submit_job(request).await?;
        loop {
            let request = pb::DescribeJobRequest {
                job_id: job_id.clone(),
            };
            let details = dispatcher.describe_job(request).await?;
            seen(&details);
            match details.status() {
                pb::JobStatus::Finished | pb::JobStatus::Canceled | pb::JobStatus::Failed
                    if !details.cleaning_up && details.ended_at_ms > 0 =>
                {
                    return Ok(details);
                }
                pb::JobStatus::Initializing
                | pb::JobStatus::Created
                | pb::JobStatus::Running
                | pb::JobStatus::Failing
                | pb::JobStatus::Cancelling
                | pb::JobStatus::Restarting
                | pb::JobStatus::Suspended
                | pb::JobStatus::Reconciling
                | pb::JobStatus::Finished
                | pb::JobStatus::Canceled
                | pb::JobStatus::Failed => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    };
    let ended = tokio::select! {
        ended = job => ended,
        () = stop.cancelled() => Err(LocalError::Stopped),
    };
    // The worker first: it says goodbye to a leader that is still there.
    end_worker.cancel();
    let worker = worker.await.unwrap_or(ExitCode::Fatal);
    end_manager.cancel();
    let manager = manager.await.unwrap_or(ExitCode::Fatal);
    tracing::debug!(?worker, ?manager, "the local cluster has ended");
    ended
}
