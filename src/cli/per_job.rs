//! `tanist run --target per-job`: a cluster for one job that ends with it.
//!
//! The cluster is an application whose program submits the one graph. So running this command again with the
//! same `high-availability.cluster-id` joins the cluster: as a standby while the job runs, and to learn its
//! result afterwards.

use std::time::Duration;

use tanist_client::{ClusterClient, JobInfo, Restore};
use tanist_config::{Configuration, LoadOptions, WorkerDriver};
use tanist_ha::keys::Name;
use tanist_ha::services;
use tanist_leadership::application::{diagnosis_of, job_id_of, left_by};
use tanist_model::artifact::{digest, hex};
use tanist_model::slots_needed;
use tanist_process::ApplicationSetup;
use tanist_process::shutdown::interrupted_by;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobGraph;
use tanist_telemetry::ExitCode;

use super::args::{OutputFormat, RunArgs};
use super::cluster::{FREE_PORTS, HostedCluster, HostedEnd};
use super::host::Host;
use super::output::{answer_json, fail, hint, inform, warn};
use super::progress::Progress;
use super::run::{Files, compile_job, restore_of};

/// Timeout for the end of standbys after the end of the job.
const STANDBY_TIMEOUT: Duration = Duration::from_secs(10);
/// First interval for checking a job that is not submitted yet, or that has no leader at present.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONG_PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn per_job(
    load: LoadOptions,
    configuration: &Configuration,
    args: &RunArgs,
    output: OutputFormat,
) -> ExitCode {
    if args.detached || args.job_id.is_some() {
        fail(
            "--target per-job takes neither --detached nor --job-id: the cluster runs in this command, and the job's \
             id follows from high-availability.cluster-id",
        );
        return ExitCode::Usage;
    }
    let graph = match compile_job(configuration, &args.job, None, Files::InGraph) {
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
    let taskmanagers = args
        .taskmanagers
        .unwrap_or_else(|| default_taskmanagers(configuration));
    let (load, is_own) = own_cluster(load, configuration, &graph, taskmanagers);
    let configuration = match Configuration::load(load) {
        Ok(configuration) => configuration,
        Err(error) => {
            fail(error);
            return ExitCode::Configuration;
        }
    };
    let code = Box::pin(run_cluster(
        configuration.clone(),
        (graph, restore),
        taskmanagers,
        output,
    ))
    .await;
    let is_known = matches!(
        code,
        ExitCode::Ended | ExitCode::JobFailed | ExitCode::JobCanceled
    );
    if !is_known {
        return code;
    }
    match left_by(configuration.ha()).await {
        Some(left) => {
            let cluster_id = &configuration.ha().cluster_id;
            fail(format_args!("{left}; the cluster {cluster_id} is kept"));
            hint(format_args!(
                "run this again with -D high-availability.cluster-id={cluster_id} to try again"
            ));
        }
        None if is_own => remove_when_all_have_ended(&configuration).await,
        None => {}
    }
    code
}

/// Standbys read the result of the job in the store, so it is removed after they have ended.
async fn remove_when_all_have_ended(configuration: &Configuration) {
    let why = match services::until_no_contender(&configuration.ha().backend, STANDBY_TIMEOUT).await
    {
        Ok(true) => return remove_store(configuration).await,
        Ok(false) => "other JobManagers of the cluster have not ended yet".to_owned(),
        Err(error) => error.to_string(),
    };
    let cluster_id = &configuration.ha().cluster_id;
    inform(format_args!(
        "the data of the cluster {cluster_id} stays in the store: {why}"
    ));
}

/// Runs a part of the job's cluster in this process until the cluster has ended, or this process has to.
async fn run_cluster(
    configuration: Configuration,
    (graph, restore): (JobGraph, Option<Restore>),
    taskmanagers: u32,
    output: OutputFormat,
) -> ExitCode {
    let host = match Host::prepare(&configuration, "per-job") {
        Ok(host) => host,
        Err(failure) => return failure.report(),
    };
    let cluster_id = configuration.ha().cluster_id.clone();
    let job = job_id_of(&cluster_id, 0);
    let setup = program_of(graph, restore, job);
    let directory = host.directory.path();
    let bound = HostedCluster::bind(configuration.clone(), setup, taskmanagers, directory).await;
    let cluster = match bound {
        // A standby may have taken the job over.
        Ok(cluster) => cluster.guarded(),
        Err((code, error)) => {
            fail(error);
            return code;
        }
    };
    let rest = cluster.rest_address();
    inform(format_args!(
        "job {job} has the cluster {cluster_id} of its own, at {rest}"
    ));
    let end = tokio::select! {
        end = cluster.run(host.stop.clone()) => end,
        never = show_progress(&configuration, &rest, job) => match never {},
    };
    let goes_on = || {
        inform(format_args!("job {job} has not ended"));
        hint(format_args!(
            "run this again with -D high-availability.cluster-id={cluster_id} to continue the job"
        ));
    };
    let code = match end {
        HostedEnd::Decided(code) => code,
        HostedEnd::JobManager(ExitCode::Ended) => {
            goes_on();
            return interrupted_by();
        }
        HostedEnd::TaskManager(failure) => {
            goes_on();
            return failure.code;
        }
        HostedEnd::JobManager(code) => return code,
    };
    let how = match code {
        ExitCode::Ended => "FINISHED",
        ExitCode::JobFailed => "FAILED",
        ExitCode::JobCanceled => "CANCELED",
        ExitCode::Fatal => {
            fail(format_args!(
                "the result of job {job} is not known: the data of the cluster {cluster_id} stays in the store"
            ));
            return code;
        }
        _ => return code,
    };
    inform(format_args!("job {job} {how}"));
    match output {
        OutputFormat::Table => {}
        // Its cluster is gone; no other information about the job is left.
        OutputFormat::Json => {
            let cause = match code {
                ExitCode::Ended => None,
                _ => diagnosis_of(configuration.ha()).await,
            };
            answer_json(&end_of(job, how, cause));
        }
    }
    code
}

/// The end of a job whose cluster is gone, in the fields of `GET /v1/jobs/ID` that are known.
pub(super) fn end_of(job: JobId, state: &str, cause: Option<String>) -> serde_json::Value {
    let mut end = serde_json::json!({ "jid": job.to_string(), "state": state });
    if let Some(cause) = cause {
        end["cause"] = cause.into();
    }
    end
}

/// Default number of TaskManagers in this process.
fn default_taskmanagers(configuration: &Configuration) -> u32 {
    match configuration.resources().workers.driver {
        WorkerDriver::Standalone => 1,
        WorkerDriver::LocalProcess => 0,
    }
}

/// The program that submits one job and waits for it.
fn program_of(mut graph: JobGraph, restore: Option<Restore>, job: JobId) -> ApplicationSetup {
    let name = format!("job {}", graph.name);
    graph.job_id = job.to_string();
    let identity = hex(&digest(&graph));
    let restore = restore.as_ref().map(Restore::request);
    ApplicationSetup::new(name, move |context| {
        let (graph, restore) = (graph.clone(), restore.clone());
        async move {
            let job = context.execute_graph_from(graph, restore).await?;
            // The application ends with the job, however the job ended.
            job.ended().await?;
            Ok(())
        }
    })
    .identified_by(identity)
}

/// Shows the progress of the job while it can be reached; never completes.
async fn show_progress(
    configuration: &Configuration,
    rest: &str,
    job: JobId,
) -> std::convert::Infallible {
    let addresses = [rest.to_owned()];
    if let Ok(client) = ClusterClient::connect_to(configuration, &addresses).await {
        follow(&client, &configuration.ha().cluster_id, job).await;
    }
    std::future::pending().await
}

/// Shows the progress of the job until it ends.
async fn follow(client: &ClusterClient, cluster_id: &Name, job: JobId) {
    let mut progress = Progress::new();
    let mut shown = None;
    loop {
        let seen = |info: &JobInfo| {
            if info.quarantine.is_none() {
                shown = None;
            }
            progress.update(info);
        };
        let pause = match client.job(job).result_with(seen).await {
            Ok(result) => match result.info.quarantine {
                None => break,
                // Quarantine is no end: an operator may resume the job.
                Some(reason) => {
                    if shown.as_ref() != Some(&reason) {
                        progress.end();
                        inform(format_args!("job {job} is quarantined: {reason}"));
                        hint(format_args!(
                            "`tanist job quarantine retry {job} -D high-availability.cluster-id={cluster_id}` leads it again"
                        ));
                        shown = Some(reason);
                    }
                    LONG_PAUSE
                }
            },
            // The job is not submitted yet.
            Err(error) if error.is_not_found() => FIRST_PAUSE,
            Err(_) => LONG_PAUSE,
        };
        tokio::time::sleep(pause).await;
    }
}

/// The configuration with a generated cluster id, unless one is set, and with free ports, unless ports are
/// set. Also returns whether the id was generated.
fn own_cluster(
    mut load: LoadOptions,
    configuration: &Configuration,
    graph: &JobGraph,
    taskmanagers: u32,
) -> (LoadOptions, bool) {
    let explicit = configuration.explicit_settings();
    let is_set = |key: &str| explicit.iter().any(|setting| setting.key == key);
    for (key, any) in FREE_PORTS {
        if !is_set(key) {
            load = load.with(key, any);
        }
    }
    if !is_set("taskmanager.numberOfTaskSlots") {
        let slots = slots_needed(graph).div_ceil(taskmanagers.max(1)).max(1);
        load = load.with("taskmanager.numberOfTaskSlots", &slots.to_string());
    }
    let is_own = !is_set("high-availability.cluster-id");
    if is_own {
        let id = format!("job-{:016x}", rand::random::<u64>());
        load = load.with("high-availability.cluster-id", &id);
    }
    (load, is_own)
}

/// Removes the cluster from the store. No user asks for its result later, because its id was generated.
async fn remove_store(configuration: &Configuration) {
    let options = configuration.ha();
    let cluster_id = options.cluster_id.as_str();
    let removed = options.backend.remove().await;
    if let Err(error) = removed {
        warn(format_args!(
            "the data of the cluster {cluster_id} could not be removed from the store: {error}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::future::IntoFuture as _;
    use std::sync::Arc;

    use axum::http::StatusCode;
    use axum::routing::get;
    use axum::{Json, Router};
    use clap::Parser as _;
    use parking_lot::Mutex;
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::args::{Cli, Command};

    #[tokio::test(flavor = "multi_thread")]
    async fn why_a_job_with_a_cluster_of_its_own_failed_is_part_of_its_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("job.yaml");
        let missing = directory.path().join("missing.txt");
        let missing = missing.to_string_lossy().into_owned();
        let steps = format!("[{{file-source: {{paths: [{missing}]}}}}, {{discard: {{}}}}]");
        std::fs::write(&file, format!("version: 1\nname: a\nsteps: {steps}\n")).expect("written");
        let [store, working] = ["store", "working"].map(|name| directory.path().join(name));
        let load = LoadOptions::default()
            .with("high-availability.embedded.dir", &store.to_string_lossy())
            .with("high-availability.cluster-id", "c7")
            .with("process.working-dir", &working.to_string_lossy());
        let configuration = Configuration::load(load.clone()).expect("it is valid");
        let file = file.to_string_lossy().into_owned();
        let arguments = ["tanist", "run", &file, "--target", "per-job"];
        let cli = Cli::try_parse_from(arguments).expect("a command");
        let Command::Run(args) = cli.command else {
            panic!("it is `run`")
        };
        let running = per_job(load, &configuration, &args, OutputFormat::Json);
        assert_eq!(Box::pin(running).await, ExitCode::JobFailed);
        let cause = diagnosis_of(configuration.ha()).await;
        let end = end_of(JobId::from_bits(7), "FAILED", cause);
        let shown = end["cause"].as_str().expect("it has a cause");
        assert!(shown.contains("missing.txt"), "{shown}");
        assert_eq!(end["state"], "FAILED");
    }

    #[tokio::test]
    async fn a_job_is_followed_over_a_quarantine_to_its_end() {
        let job = |state: &str, quarantine: Option<&str>| {
            json!({
                "jid": "0".repeat(32), "name": "count", "state": state, "start-time": 1, "end-time": -1,
                "duration": 200, "vertices": [], "quarantine": quarantine
            })
        };
        let answers = [
            (StatusCode::NOT_FOUND, json!({"errors": ["no such job"]})),
            (StatusCode::OK, job("SUSPENDED", Some("bit rot"))),
            (StatusCode::OK, job("RUNNING", None)),
            (StatusCode::BAD_REQUEST, json!({"errors": ["no answer"]})),
            (StatusCode::OK, job("FINISHED", None)),
        ];
        let left = Arc::new(Mutex::new(answers.into_iter()));
        let asked = left.clone();
        let tell = async move || {
            let next = asked.lock().next();
            let (status, body) = next.expect("nobody asks after its end");
            (status, Json(body))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let router = Router::new().route("/v1/jobs/{job}", get(tell));
        tokio::spawn(axum::serve(listener, router).into_future());
        let configuration = Configuration::defaults();
        let client = ClusterClient::connect_to(&configuration, &[address]).await;
        let client = client.expect("it has an address");
        follow(&client, &configuration.ha().cluster_id, JobId::from_bits(0)).await;
        assert!(left.lock().next().is_none());
    }
}
