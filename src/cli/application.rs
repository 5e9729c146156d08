//! The command line of an application: its binary is JobManager, TaskManager and client, chosen by subcommand. It owns
//! only the subcommands of an application; the commands that it has in common with `tanist` are in the other modules.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tanist_client::Restore;
use tanist_compile::{ChainingOptions, CompileOptions};
use tanist_config::{ClaimMode, Configuration, LoadOptions};
use tanist_leadership::application::left_by;
use tanist_operators::become_child_if_asked;
use tanist_process::ApplicationSetup;
use tanist_process::shutdown::interrupted_by;
use tanist_proto::id::JobId;
use tanist_telemetry::{self as telemetry, ExitCode};

use super::args::{
    GlobalArgs, HaCommand, JobCommand, ListArgs, SavepointArgs, StopArgs, TaskManagerCommand,
    overrides_first, parameter,
};
use super::cluster::{FREE_PORTS, HostedCluster, HostedEnd};
use super::host::Host;
use super::output::{fail, inform};
use super::processes::{jobmanager_for, taskmanager};
use super::{
    about_jobs, checkpoints, ha, jobs, load_options, savepoints, show_config, task_managers,
    with_runtime,
};

const EXIT_STATUS: &str = "\
Exit status of jobmanager and local: 0 the application SUCCEEDED, or a signal asked a jobmanager to end; 4 it FAILED; \
5 it was CANCELED; 130 (SIGINT) or 143 (SIGTERM) a signal ended local: an application with a store of its own ends \
with it, another one continues with the store that is configured; 10, 11 and 13 not started: configuration, port, \
directory; 20 fatal error, or it is not known how the application ended; 21 refused permanently, also because the \
program is not the one that the application was started with.";

/// An application: JobManager, TaskManager and client by subcommand
#[derive(Debug, Parser)]
#[command(after_help = EXIT_STATUS)]
struct ApplicationCli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: ApplicationCommand,
}

#[derive(Debug, Subcommand)]
enum ApplicationCommand {
    /// Starts a JobManager: it leads the application or stands by, and ends with it
    Jobmanager(ParameterArgs),
    /// Starts a TaskManager: it runs the application's tasks in its slots
    Taskmanager {
        /// Subcommand; without it a TaskManager is started
        #[command(subcommand)]
        command: Option<TaskManagerCommand>,
    },
    /// Runs the whole application in this process
    Local(ApplicationLocalArgs),
    /// Lists the application's jobs, newest first
    List(ListArgs),
    /// Shows a job with its vertices
    Info {
        /// The job's id
        job: JobId,
    },
    /// Cancels a job, and with it the application
    Cancel {
        /// The job's id
        job: JobId,
    },
    /// Stops a job: its sources end, and it finishes with what they have read
    Stop(StopArgs),
    /// Shows the last checkpoints and savepoints of a job, and the regions without checkpoints
    Checkpoints {
        /// The job's id
        job: JobId,
    },
    /// Takes a savepoint of a job and prints its path, or shows or removes a savepoint
    Savepoint(SavepointArgs),
    /// Manage jobs
    #[command(subcommand)]
    Job(JobCommand),
    /// Show and transfer leadership
    #[command(subcommand)]
    Ha(HaCommand),
    /// Shows the configuration in effect and where each value comes from
    Config,
}

#[derive(Debug, Args)]
struct ParameterArgs {
    /// A parameter of the program; the same for every JobManager
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = parameter)]
    parameters: Vec<(String, String)>,
}

#[derive(Debug, Args)]
struct ApplicationLocalArgs {
    #[command(flatten)]
    parameters: ParameterArgs,

    /// Number of TaskManagers to start; each has taskmanager.numberOfTaskSlots slots
    #[arg(long, value_name = "N", default_value_t = 1)]
    taskmanagers: u32,
}

/// Runs an application's binary with these arguments, starting with the program's name. Call it first in
/// `main`: the process may have been started to supervise the program of a task.
pub fn run(setup: ApplicationSetup, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    become_child_if_asked();
    let name = setup.name().to_owned();
    let parsed = ApplicationCli::command()
        .bin_name(name.clone())
        .display_name(name)
        .try_get_matches_from(overrides_first(arguments))
        .and_then(|matches| ApplicationCli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // As in `tanist` itself: help is an error to clap, too, and a failure to print it can't be reported.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::Usage
            } else {
                ExitCode::Ended
            };
        }
    };
    let load = load_options(&cli.global);
    let is_server = matches!(
        cli.command,
        ApplicationCommand::Jobmanager(_) | ApplicationCommand::Taskmanager { command: None }
    );
    let code = with_runtime(load.clone(), is_server, async |configuration| {
        Box::pin(dispatch(setup, cli, load, configuration)).await
    });
    telemetry::flush();
    code
}

async fn dispatch(
    setup: ApplicationSetup,
    cli: ApplicationCli,
    load: LoadOptions,
    configuration: Configuration,
) -> ExitCode {
    let global = &cli.global;
    match cli.command {
        ApplicationCommand::Jobmanager(args) => {
            let setup = complete(setup, args, &configuration, None);
            jobmanager_for(configuration, Some(setup)).await
        }
        ApplicationCommand::Taskmanager { command: None } => {
            Box::pin(taskmanager(configuration)).await
        }
        ApplicationCommand::Taskmanager {
            command: Some(command),
        } => task_managers::task_manager(&configuration, global, &command).await,
        ApplicationCommand::Local(args) => Box::pin(local(setup, load, &configuration, args)).await,
        ApplicationCommand::List(ref args) => jobs::list(&configuration, global, args).await,
        ApplicationCommand::Info { job } => jobs::info(&configuration, global, job).await,
        ApplicationCommand::Cancel { job } => jobs::cancel(&configuration, global, job).await,
        ApplicationCommand::Stop(ref args) => savepoints::stop(&configuration, global, args).await,
        ApplicationCommand::Checkpoints { job } => {
            checkpoints::checkpoints(&configuration, global, job).await
        }
        ApplicationCommand::Savepoint(ref args) => {
            savepoints::savepoint(&configuration, global, args).await
        }
        ApplicationCommand::Job(command) => about_jobs(&configuration, global, &command).await,
        ApplicationCommand::Ha(command) => ha::ha(&configuration, global, &command).await,
        ApplicationCommand::Config => show_config::show(&configuration, global.output),
    }
}

/// The application with its parameters and configuration.
fn complete(
    setup: ApplicationSetup,
    args: ParameterArgs,
    configuration: &Configuration,
    working_dir: Option<PathBuf>,
) -> ApplicationSetup {
    let options = CompileOptions {
        working_dir,
        ..compile_options(configuration)
    };
    // All of its jobs begin from it, and a checkpoint is claimed once.
    let restore = Restore::configured(configuration);
    let restore = restore.map(|restore| restore.with_claim_mode(ClaimMode::NoClaim));
    setup
        .with_parameters(args.parameters.into_iter().collect())
        .compiled_with(options)
        .beginning_from(restore.map(|restore| restore.request()))
}

/// Options for compiling the application's graphs. Relative paths stay relative because the next leader has
/// another working directory.
fn compile_options(configuration: &Configuration) -> CompileOptions {
    let jobs = configuration.jobs();
    CompileOptions {
        default_parallelism: jobs.default_parallelism.get(),
        max_parallelism: jobs.max_parallelism.get(),
        chaining: ChainingOptions {
            enabled: jobs.operator_chaining,
        },
        ..CompileOptions::default()
    }
}

/// Runs everything in this process, on a store that ends with it unless one is configured.
async fn local(
    setup: ApplicationSetup,
    mut load: LoadOptions,
    configuration: &Configuration,
    args: ApplicationLocalArgs,
) -> ExitCode {
    let Host { stop, directory } = match Host::prepare(configuration, "local") {
        Ok(host) => host,
        Err(failure) => return failure.report(),
    };
    let explicit = configuration.explicit_settings();
    let is_set = |key: &str| explicit.iter().any(|setting| setting.key == key);
    for (key, any) in FREE_PORTS {
        if !is_set(key) {
            load = load.with(key, any);
        }
    }
    let has_own_store =
        !is_set("high-availability.type") && !is_set("high-availability.embedded.dir");
    if has_own_store {
        let store = directory.path().join("store");
        load = load.with("high-availability.embedded.dir", &store.to_string_lossy());
    }
    let configuration = match Configuration::load(load) {
        Ok(configuration) => configuration,
        Err(error) => {
            fail(error);
            return ExitCode::Configuration;
        }
    };
    let working_dir = std::env::current_dir().ok();
    let setup = complete(setup, args.parameters, &configuration, working_dir);
    let (count, own) = (args.taskmanagers, directory.path());
    let ha = configuration.ha().clone();
    match HostedCluster::bind(configuration, setup, count, own).await {
        Ok(mut cluster) => {
            if !has_own_store {
                // A standby may have taken the application over.
                cluster = cluster.guarded();
            }
            inform(format_args!(
                "the application runs at {}",
                cluster.rest_address()
            ));
            let what = if has_own_store {
                "the application ends with its cluster".to_owned()
            } else {
                let id = &ha.cluster_id;
                format!(
                    "the application has not ended: it goes on with the same high-availability.cluster-id, {id}"
                )
            };
            match Box::pin(cluster.run(stop)).await {
                HostedEnd::Decided(code) => {
                    if let Some(left) = left_by(&ha).await {
                        fail(left);
                    }
                    code
                }
                HostedEnd::JobManager(ExitCode::Ended) => {
                    inform(format_args!("interrupted: {what}"));
                    interrupted_by()
                }
                HostedEnd::JobManager(code) => code,
                HostedEnd::TaskManager(failure) => {
                    inform(what);
                    failure.code
                }
            }
        }
        Err((code, error)) => {
            fail(error);
            code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_arguments_is_sound() {
        ApplicationCli::command().debug_assert();
    }

    #[test]
    fn its_jobs_and_task_managers_are_asked_about_as_those_of_a_session() {
        let parse = |arguments: &[&str]| {
            let all = std::iter::once("app").chain(arguments.iter().copied());
            ApplicationCli::try_parse_from(all).map(|cli| cli.command)
        };
        let id = "0123456789abcdef0123456789abcdef";
        for arguments in [
            &["job", "events", id][..],
            &["job", "subtasks", id],
            &["job", "exceptions", id],
            &["job", "quarantine", "retry", id],
        ] {
            let read = parse(arguments);
            assert!(matches!(read, Ok(ApplicationCommand::Job(_))), "{read:?}");
        }
        for (arguments, is_asked) in [
            (&["taskmanager"][..], false),
            (&["taskmanager", "list"], true),
            (&["taskmanager", "drain", "tm-1"], true),
        ] {
            let Ok(ApplicationCommand::Taskmanager { command }) = parse(arguments) else {
                panic!("{arguments:?} is about TaskManagers");
            };
            assert_eq!(command.is_some(), is_asked, "{arguments:?}");
        }
    }

    #[test]
    fn parameters_reach_the_program_and_strangers_are_refused() {
        let parse = |arguments: &[&str]| {
            let all = std::iter::once("app").chain(arguments.iter().copied());
            ApplicationCli::try_parse_from(all)
        };
        let cli =
            parse(&["jobmanager", "--param", "input=a=b", "-D", "rest.port=1"]).expect("read");
        assert_eq!(cli.global.overrides, ["rest.port=1"]);
        let ApplicationCommand::Jobmanager(args) = cli.command else {
            panic!("{:?}", cli.command);
        };
        let setup = ApplicationSetup::new("app", |_| async { Ok(()) });
        let setup = complete(setup, args, &Configuration::defaults(), None);
        assert_eq!(setup.name(), "app");
        for wrong in [&["run", "job.yaml"][..], &["local", "--param", "x"], &[]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
