//! The command line: reads it, reads the configuration, and hands over to a process or to the client.
//!
//! Standard output contains only answers: the job id of `run --detached`, a table, JSON. Progress messages
//! and all errors go to standard error. The exit status is one of [`ExitCode`].

mod accept;
pub mod application;
mod args;
mod checkpoints;
mod cluster;
mod connect;
mod events;
mod exceptions;
mod ha;
mod host;
mod inspection;
mod jobs;
mod local;
mod output;
mod per_job;
mod plan;
mod processes;
mod progress;
mod quarantine;
#[cfg(test)]
mod reference;
mod reload;
mod run;
mod savepoints;
mod show_config;
#[cfg(test)]
mod stalled_task_tests;
mod subtasks;
mod target;
mod task_managers;

use std::fmt::Display;

use clap::Parser as _;
use tanist_client::ClientError;
use tanist_config::{Configuration, LoadOptions, Source, Umask};
use tanist_operators::{become_child_if_asked, umask};
use tanist_telemetry::{self as telemetry, ExitCode};

use args::{Cli, Command, GlobalArgs, JobCommand};
use output::{fail, hint};

#[cfg(any(test, feature = "testing"))]
pub use processes::run_jobmanager;

/// Runs the program with this process's arguments and environment. Call it first in `main`: the process may
/// have been started to supervise the program of a task.
pub fn main() -> std::process::ExitCode {
    become_child_if_asked();
    let cli = match Cli::try_parse_from(args::overrides_first(std::env::args_os())) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors to clap, too. A failure to print them can't be reported.
            let _ = error.print();
            let code = if error.use_stderr() {
                ExitCode::Usage
            } else {
                ExitCode::Ended
            };
            return code.into();
        }
    };
    let code = execute(cli);
    telemetry::flush();
    code.into()
}

fn load_options(global: &GlobalArgs) -> LoadOptions {
    let mut load = LoadOptions::from_environment();
    load.file.clone_from(&global.config);
    load.overrides.clone_from(&global.overrides);
    load
}

fn execute(cli: Cli) -> ExitCode {
    let is_server = matches!(
        cli.command,
        Command::Jobmanager | Command::Taskmanager { command: None }
    );
    let load = load_options(&cli.global);
    with_runtime(load.clone(), is_server, async |configuration| {
        Box::pin(dispatch(cli, load, configuration)).await
    })
}

/// Reads the configuration, sets the log up, and runs a command on a runtime.
fn with_runtime(
    load: LoadOptions,
    is_server: bool,
    command: impl AsyncFnOnce(Configuration) -> ExitCode,
) -> ExitCode {
    let configuration = match Configuration::load(load.clone()) {
        Ok(configuration) => configuration,
        Err(error) => {
            fail(&error);
            return ExitCode::Configuration;
        }
    };
    tanist_process::grow_descriptor_table();
    umask::restrict(configuration.process().output_umask.map(Umask::bits));
    // A user who requests something wants the answer, not a log.
    let level = if is_server || is_set_by_flag(&configuration, "log.level") {
        configuration.log().level.as_str()
    } else {
        "error"
    };
    let format = match configuration.log().format {
        tanist_config::LogFormat::Text => telemetry::Format::Text,
        tanist_config::LogFormat::Json => telemetry::Format::Json,
    };
    let filter = std::env::var(telemetry::FILTER_VARIABLE).ok();
    if let Err(error) = telemetry::init(level, format, filter.as_deref()) {
        fail(error);
        return ExitCode::Configuration;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            fail(format_args!("no threads can be started: {error}"));
            return ExitCode::Fatal;
        }
    };
    for variable in configuration.passed_over() {
        tracing::debug!(
            variable,
            "ignored an environment variable that Kubernetes or Docker set for a service"
        );
    }
    let code = runtime.block_on(async {
        if is_server {
            reload::on_hangup(load, configuration.clone());
        }
        Box::pin(command(configuration)).await
    });
    // Tasks that still run are not waited for.
    runtime.shutdown_background();
    match code {
        ExitCode::Ended if output::is_answer_lost() => ExitCode::Unsuccessful,
        code => code,
    }
}

/// Whether the user set this option on the command line, not in a file that is shared with others.
fn is_set_by_flag(configuration: &Configuration, key: &str) -> bool {
    let mut explicit = configuration.explicit_settings().into_iter();
    explicit.any(|it| it.key == key && it.source == Source::Flag)
}

async fn dispatch(cli: Cli, load: LoadOptions, configuration: Configuration) -> ExitCode {
    let global = &cli.global;
    match cli.command {
        Command::Jobmanager => processes::jobmanager(configuration).await,
        Command::Taskmanager { command: None } => processes::taskmanager(configuration).await,
        Command::Taskmanager {
            command: Some(command),
        } => task_managers::task_manager(&configuration, global, &command).await,
        Command::Config => show_config::show(&configuration, global.output),
        Command::Local(args) => {
            target::local(load, &configuration, &global.address, &args, global.output).await
        }
        Command::Run(args) => {
            target::run(load, &configuration, &global.address, &args, global.output).await
        }
        Command::Plan(args) => plan::plan(&configuration, &args, global.output),
        Command::Ha(command) => ha::ha(&configuration, global, &command).await,
        Command::Job(command) => about_jobs(&configuration, global, &command).await,
        Command::List(ref args) => jobs::list(&configuration, global, args).await,
        Command::Info { job } => jobs::info(&configuration, global, job).await,
        Command::Checkpoints { job } => checkpoints::checkpoints(&configuration, global, job).await,
        Command::Cancel { job } => jobs::cancel(&configuration, global, job).await,
        Command::Stop(ref args) => savepoints::stop(&configuration, global, args).await,
        Command::Savepoint(ref args) => savepoints::savepoint(&configuration, global, args).await,
    }
}

/// `job ...`, of `tanist` and of the binary of an application.
async fn about_jobs(
    configuration: &Configuration,
    global: &GlobalArgs,
    command: &JobCommand,
) -> ExitCode {
    match *command {
        JobCommand::List(ref args) => jobs::list(configuration, global, args).await,
        JobCommand::Describe { job } => jobs::info(configuration, global, job).await,
        JobCommand::Events { job, tasks } => {
            events::events(configuration, global, job, tasks).await
        }
        JobCommand::Subtasks { job, ref vertex } => {
            subtasks::subtasks(configuration, global, job, vertex.as_deref()).await
        }
        JobCommand::Exceptions { job } => exceptions::exceptions(configuration, global, job).await,
        JobCommand::Cancel { job } => jobs::cancel(configuration, global, job).await,
        JobCommand::Stop(ref args) => savepoints::stop(configuration, global, args).await,
        JobCommand::Quarantine(ref command) => {
            quarantine::quarantine(configuration, global, command).await
        }
    }
}

/// Shows the error of a request, and returns its exit code.
fn report_error(error: &ClientError) -> ExitCode {
    fail(error);
    advise(error)
}

/// The same; `what` names the action that failed because of the error.
fn report_failure(what: impl Display, error: &ClientError) -> ExitCode {
    fail(format_args!("{what}: {error}"));
    advise(error)
}

fn advise(error: &ClientError) -> ExitCode {
    if let Some(advice) = error.advice() {
        hint(advice);
    }
    match error {
        ClientError::Unreachable { .. } | ClientError::NoCluster { .. } => ExitCode::Unreachable,
        ClientError::Refused { .. }
        | ClientError::Unsendable { .. }
        | ClientError::BadAnswer { .. } => ExitCode::Unsuccessful,
    }
}
