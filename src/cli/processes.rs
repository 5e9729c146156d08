//! Starts the processes of a cluster: sets up the process itself and hands over to [`tanist_process`]. The last entry
//! of the log names the exit code and the cause, also if the process did not start.

use tanist_config::{AllowedHosts, Configuration, mask_arguments};
use tanist_process::{ApplicationSetup, JobManager, TaskManager};
use tanist_rest::{self as rest, RestServerOptions};
use tanist_telemetry::{ExitCode, Startup, StartupSetting, startup_log};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::host::{Failure, Host};

/// Runs a JobManager with its REST server until it is asked to end.
pub(super) async fn jobmanager(configuration: Configuration) -> ExitCode {
    jobmanager_for(configuration, None).await
}

/// The same for the cluster of an application: it also ends with the application.
pub(super) async fn jobmanager_for(
    configuration: Configuration,
    application: Option<ApplicationSetup>,
) -> ExitCode {
    let host = match Host::prepare(&configuration, "jobmanager") {
        Ok(host) => host,
        Err(failure) => return failure.log(),
    };
    let manager = match JobManager::bind_for(&configuration, application).await {
        Ok(manager) => manager,
        Err(error) => return Failure::new(error.exit_code(), &error).log(),
    };
    let resource_id = configuration.jobmanager().id.as_ref();
    let resource_id = resource_id.map(ToString::to_string);
    let resource_id = resource_id.unwrap_or_else(|| manager.addresses()["rpc"].clone());
    start_log("jobmanager", resource_id, &configuration);
    let code = run_jobmanager(manager, &configuration, host.stop.clone()).await;
    if code == ExitCode::Ended && host.stop.is_cancelled() {
        code.log_final_message("shutdown was requested");
    }
    code
}

/// Runs a bound JobManager with its REST server until `stop`.
#[cfg_attr(
    not(any(test, feature = "testing")),
    expect(unreachable_pub, reason = "tests of another crate use it")
)]
pub async fn run_jobmanager(
    mut manager: JobManager,
    configuration: &Configuration,
    stop: CancellationToken,
) -> ExitCode {
    let serving = CancellationToken::new();
    let rest = manager.take_rest_listener().map(|listener| {
        let mut options = rest_options(configuration);
        options.refuses_submissions = manager.application().map(refusal);
        let view = manager.view();
        tokio::spawn(rest::serve(listener, view, options, serving.clone()))
    });
    // On a thread like those of its JobMasters: memory that a recovery needs only briefly is then reused by later work.
    let mut running = JoinSet::new();
    running.spawn(Box::pin(manager.run(stop)));
    // The task ends with this function: dropping the set ends its tasks, and `join_all` panics if the task panicked.
    let code = running.join_all().await[0];
    serving.cancel();
    if let Some(rest) = rest
        && let Err(error) = rest.await
    {
        tracing::warn!(%error, "the REST server ended with an error");
    }
    code
}

/// The error for other jobs that are submitted to the cluster of an application.
fn refusal(application: &ApplicationSetup) -> String {
    let name = application.name();
    format!(
        "this cluster is that of the application {name:?} and ends with it: it takes no other jobs, submit them to a session"
    )
}

fn rest_options(configuration: &Configuration) -> RestServerOptions {
    let (jobs, rest) = (configuration.jobs(), configuration.rest());
    let manager = &configuration.options().jobmanager;
    let mut own_hosts = AllowedHosts::default();
    for host in [
        &rest.address,
        &rest.bind_address,
        &manager.address,
        &manager.bind_host,
    ] {
        if !host.is_wildcard() {
            own_hosts.allow(host.as_str());
        }
    }
    own_hosts.allow(&rustix::system::uname().nodename().to_string_lossy());
    RestServerOptions {
        own_hosts,
        allowed_hosts: rest.allowed_hosts.clone(),
        await_leader_timeout: rest.await_leader_timeout,
        submission_timeout: configuration.client().timeout,
        max_content_length: rest.max_content_length.as_usize(),
        max_artifact_size: configuration.options().jobmanager.max_artifacts.bytes(),
        default_parallelism: jobs.default_parallelism.get(),
        max_parallelism: jobs.max_parallelism.get(),
        operator_chaining: jobs.operator_chaining,
        savepoint_dir: configuration
            .checkpoints()
            .savepoint_dir
            .as_ref()
            .map(ToString::to_string),
        state_recovery: configuration.client().state_recovery.clone(),
        ..RestServerOptions::default()
    }
}

/// Runs a TaskManager until it is asked to end, or its cluster has ended with its jobs.
pub(super) async fn taskmanager(configuration: Configuration) -> ExitCode {
    let Host { stop, directory } = match Host::prepare(&configuration, "taskmanager") {
        Ok(host) => host,
        Err(failure) => return failure.log(),
    };
    let manager = match TaskManager::bind(&configuration, directory.path()).await {
        Ok(manager) => manager.guarded(),
        Err(error) => return Failure::new(error.exit_code(), &error).log(),
    };
    let resource_id = manager.resource_id().map(|id| id.to_string());
    start_log(
        "taskmanager",
        resource_id.unwrap_or_default(),
        &configuration,
    );
    let ended = Box::pin(manager.run(stop.clone())).await;
    let (code, cause) = match ended {
        Ok(()) => {
            let cause = match stop.is_cancelled() {
                true => "shutdown was requested",
                false => "it was drained, or its cluster does not need it any more",
            };
            (ExitCode::Ended, cause.to_owned())
        }
        Err(failure) => (failure.code, failure.cause),
    };
    code.log_final_message(&cause);
    code
}

fn start_log(process: &str, resource_id: String, configuration: &Configuration) {
    let settings = configuration.explicit_settings().into_iter();
    let settings = settings.map(|setting| StartupSetting {
        key: setting.key.to_owned(),
        value: setting.value.unwrap_or_default(),
        source: setting.source.to_string(),
    });
    let arguments = std::env::args_os().map(|text| text.to_string_lossy().into_owned());
    startup_log(&Startup {
        process: process.to_owned(),
        resource_id,
        arguments: mask_arguments(arguments),
        settings: settings.collect(),
    });
    for warning in configuration.warnings() {
        tracing::warn!("{warning}");
    }
}
