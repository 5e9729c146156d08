//! `tanist local`: a cluster in this process, for one job, on free ports and an embedded store that ends with it.
//!
//! This command owns the cluster and its directory, and removes both when it ends, however the job ended. So a signal,
//! or a TaskManager that can't continue, ends the job, and no other process can continue it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tanist_client::{ClientError, JobClient, RestClient, Restore, RetryOptions, StaticAddresses};
use tanist_config::{Configuration, LoadOptions};
use tanist_model::slots_needed;
use tanist_process::{JobManager, TaskManager, TaskManagerFailure};
use tanist_proto::v1::JobGraph;
use tanist_telemetry::ExitCode;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::args::{LocalArgs, OutputFormat};
use super::cluster::first_failure;
use super::host::own_directory;
use super::output::{answer_json, fail, hint, inform, warn};
use super::per_job::end_of;
use super::processes::run_jobmanager;
use super::progress::Progress;
use super::report_error;
use super::run::{Files, compile_job, interrupted, report_end, restore_of, show_end};

/// Interval for asking whether the cleanup of the job is complete.
const CLEANUP_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout for the end of the cluster.
const END_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn local(
    load: LoadOptions,
    configuration: &Configuration,
    args: &LocalArgs,
    output: OutputFormat,
) -> ExitCode {
    if args.detached {
        fail("`tanist local` can't be detached: its cluster ends with this command");
        hint("`tanist run --detached` leaves a job with a cluster that stays");
        return ExitCode::Usage;
    }
    let graph = match compile_job(configuration, &args.job, None, Files::Uploaded) {
        Ok(graph) => graph,
        Err(error) => {
            fail(error);
            return ExitCode::InvalidJob;
        }
    };
    let restore = match restore_of(configuration, &args.restore) {
        Ok(restore) => restore,
        Err(error) => {
            fail(error);
            return ExitCode::Usage;
        }
    };
    let directory = match own_directory(configuration, "local") {
        Ok(directory) => directory,
        Err(failure) => return failure.report(),
    };
    // The terminal may close: the cluster runs to the end of the job.
    let _hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
    match LocalCluster::start(load, directory.path(), slots_needed(&graph)).await {
        Ok(mut cluster) => {
            let code = tokio::select! {
                code = follow_job(&cluster.client, &graph, restore.as_ref(), output) => code,
                failure = first_failure(&mut cluster.taskmanager) => {
                    fail(format_args!("{failure}: the job ends with its cluster"));
                    failure.code
                }
            };
            cluster.stop().await;
            code
        }
        Err((code, error)) => {
            fail(error);
            code
        }
    }
}

/// Submits the job and waits for its end. A signal ends this command, and with it the cluster and the job.
async fn follow_job(
    client: &JobClient,
    graph: &JobGraph,
    restore: Option<&Restore>,
    output: OutputFormat,
) -> ExitCode {
    let mut progress = Progress::new();
    let running = async {
        // The cluster is new: no other submission has the job's id.
        let submitted = client.submit_from(graph, &graph.job_id, restore).await?;
        let ended = client
            .wait_for_end(submitted.job, |info| progress.update(info))
            .await?;
        // The cluster ends with the job, so no process could clean up later.
        let cleaned_up = async {
            while client
                .info(submitted.job)
                .await
                .is_ok_and(|info| info.cleaning_up)
            {
                tokio::time::sleep(CLEANUP_INTERVAL).await;
            }
        };
        if tokio::time::timeout(END_TIMEOUT, cleaned_up).await.is_err() {
            warn("temporary files of the job in its output directory could not be removed in time");
        }
        Ok(ended)
    };
    let ended: Result<Result<_, ClientError>, ExitCode> = tokio::select! {
        ended = running => Ok(ended),
        code = interrupted() => Err(code),
    };
    progress.end();
    match ended {
        Ok(Ok(info)) => {
            let code = report_end(client, &info).await;
            match show_end(client, info.jid, output, code).await {
                // The quarantined job ends here, because its cluster ends.
                ExitCode::Quarantined => ExitCode::JobFailed,
                code => code,
            }
        }
        Ok(Err(error)) => report_error(&error),
        Err(code) => {
            inform("interrupted: the job ends with its cluster");
            if output == OutputFormat::Json
                && let Ok(job) = graph.job_id.parse()
            {
                answer_json(&end_of(job, "CANCELED", None));
            }
            code
        }
    }
}

/// A JobManager and a TaskManager in this process.
struct LocalCluster {
    client: JobClient,
    stop_taskmanager: CancellationToken,
    /// Contains exactly one task.
    taskmanager: JoinSet<Result<(), TaskManagerFailure>>,
    stop_jobmanager: CancellationToken,
    jobmanager: JoinHandle<ExitCode>,
}

impl LocalCluster {
    async fn start(
        load: LoadOptions,
        directory: &Path,
        slots: u32,
    ) -> Result<LocalCluster, (ExitCode, String)> {
        let configuration = Configuration::load(of_one_process(load, directory, slots))
            .map_err(|error| (ExitCode::Configuration, error.to_string()))?;
        let jobmanager = JobManager::bind(&configuration)
            .await
            .map_err(|error| (error.exit_code(), error.to_string()))?;
        let taskmanager = TaskManager::bind(&configuration, directory)
            .await
            .map_err(|error| (error.exit_code(), error.to_string()))?
            .of_a_command();
        let addresses = StaticAddresses(vec![jobmanager.addresses()["rest"].clone()]);
        let options = RetryOptions {
            timeout: configuration.client().timeout,
            retry_period: configuration.client().retry_period,
            ..RetryOptions::default()
        };
        let client = JobClient::new(RestClient::new(Arc::new(addresses), options));
        let (stop_jobmanager, stop_taskmanager) =
            (CancellationToken::new(), CancellationToken::new());
        let stop = stop_jobmanager.clone();
        let jobmanager = tokio::spawn(async move {
            Box::pin(run_jobmanager(jobmanager, &configuration, stop)).await
        });
        let mut running = JoinSet::new();
        running.spawn(Box::pin(taskmanager.run(stop_taskmanager.clone())));
        Ok(LocalCluster {
            client,
            stop_taskmanager,
            taskmanager: running,
            stop_jobmanager,
            jobmanager,
        })
    }

    /// Ends both; the TaskManager first, because its tasks write files.
    async fn stop(mut self) {
        let stopping = async {
            self.stop_taskmanager.cancel();
            let _ = self.taskmanager.join_next().await;
            self.stop_jobmanager.cancel();
            let _ = self.jobmanager.await;
        };
        if tokio::time::timeout(END_TIMEOUT, stopping).await.is_err() {
            warn("the cluster takes too long to end: this process ends without waiting for it");
        }
    }
}

/// The same configuration, on free ports of this host and a store in `directory`.
fn of_one_process(load: LoadOptions, directory: &Path, slots: u32) -> LoadOptions {
    let store = directory.join("store");
    load.with("high-availability.type", "embedded")
        .with("high-availability.embedded.dir", &store.to_string_lossy())
        .with("high-availability.cluster-id", "local")
        .with("jobmanager.bind-host", "127.0.0.1")
        .with("jobmanager.rpc.address", "127.0.0.1")
        .with("jobmanager.rpc.port", "0")
        .with("rest.bind-address", "127.0.0.1")
        .with("rest.address", "127.0.0.1")
        .with("rest.bind-port", "0")
        .with("taskmanager.bind-host", "127.0.0.1")
        .with("taskmanager.host", "127.0.0.1")
        .with("taskmanager.rpc.port", "0")
        .with("taskmanager.data.port", "0")
        .with("taskmanager.numberOfTaskSlots", &slots.max(1).to_string())
        // No other TaskManager will join: a request that this one can't serve fails at once.
        .with("resourcemanager.standalone.start-up-time", "0 s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{JobArgs, RestoreArgs};

    const NUMBERS: &str = "\
version: 1
name: numbers
steps:
  - name: numbers
    datagen:
      count: 100
  - name: out
    file-sink:
      path: ${output}
parameters:
  output:
    description: Where to.
";

    /// Runs a job file in `directory`. Returns the code, and the number of working files that are left.
    async fn run_in(directory: &Path, file: &str, output: &Path) -> (ExitCode, usize) {
        let job = directory.join("job.yaml");
        std::fs::write(&job, file).expect("the directory is ours");
        let working = directory.join("working");
        let load = LoadOptions::default().with("process.working-dir", &working.to_string_lossy());
        let configuration = Configuration::load(load.clone()).expect("it is valid");
        let args = LocalArgs {
            job: JobArgs {
                file: job,
                parameters: vec![("output".to_owned(), output.to_string_lossy().into_owned())],
                parallelism: Some(2),
            },
            restore: RestoreArgs::default(),
            detached: false,
        };
        let code = Box::pin(local(load, &configuration, &args, OutputFormat::Table)).await;
        let left = std::fs::read_dir(&working).map_or(0, Iterator::count);
        (code, left)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_local_job_leaves_its_result_and_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let output = directory.path().join("output");
        let (code, left) = run_in(directory.path(), NUMBERS, &output).await;
        assert_eq!((code, left), (ExitCode::Ended, 0));
        let lines = std::fs::read_dir(&output)
            .expect("it was written")
            .map(|entry| {
                let part = entry.expect("it can be listed").path();
                let text = std::fs::read_to_string(part).expect("parts are text");
                text.lines().count()
            });
        assert_eq!(lines.sum::<usize>(), 100);
    }

    #[tokio::test]
    async fn what_keeps_its_taskmanager_from_starting_has_the_code_of_its_cause() {
        let directory = tempfile::tempdir().expect("a directory");
        let load = LoadOptions::default().with("process.control-groups", "/nowhere");
        let started = LocalCluster::start(load, directory.path(), 1).await;
        let code = started.err().map(|(code, _)| code);
        assert_eq!(code, Some(ExitCode::Configuration));
    }

    #[tokio::test]
    async fn a_wrong_job_file_starts_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = NUMBERS.replace("datagen", "datagem");
        let (code, left) = run_in(directory.path(), &file, directory.path()).await;
        assert_eq!((code, left), (ExitCode::InvalidJob, 0));
        assert!(!directory.path().join("working").exists());
    }
}
