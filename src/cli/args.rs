//! The command line arguments, as clap reads them: the commands, and the options of all of them. `jobs`, `running`,
//! `savepoints` and `cluster` have the arguments of the commands.

mod cluster;
mod jobs;
mod running;
mod savepoints;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tanist_proto::id::JobId;
use tanist_telemetry::VERSION_AND_REVISION;

pub(super) use cluster::{DrainedArgs, HaCommand, TaskManagerCommand};
pub(super) use jobs::{JobCommand, ListArgs, QuarantineCommand, StopArgs};
pub(super) use running::{JobArgs, LocalArgs, RestoreArgs, RunArgs, parameter};
pub(super) use savepoints::{SavepointArgs, SavepointCommand};

const EXIT_STATUS: &str = "\
Exit status: 0 done, and the job FINISHED if it was waited for; 1 refused; 2 wrong command line; 3 wrong job file; \
4 the job FAILED; 5 the job was CANCELED; 6 no JobManager answered; 7 the job is quarantined, and goes on; \
10, 11, 13 not started: configuration, port, directory; 20 fatal error; 21 refused permanently; \
22 shut down before cleaning up; 130, 143 interrupted by ^C, SIGTERM: what was accepted goes on.";

/// A cluster runtime for job graphs whose control plane does not go down.
#[derive(Debug, Parser)]
#[command(name = "tanist", version = VERSION_AND_REVISION, after_help = EXIT_STATUS)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: GlobalArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Options of all commands.
#[derive(Debug, Args)]
pub(super) struct GlobalArgs {
    /// Sets an option of the configuration; overrides file and environment
    #[arg(short = 'D', global = true, value_name = "KEY=VALUE")]
    pub(super) overrides: Vec<String>,
    /// The configuration file; default: tanist.yaml in $TANIST_CONF_DIR
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// REST addresses of JobManagers; default: rest.address and rest.port, or the leader that the store names
    #[arg(long, global = true, value_name = "HOST:PORT", value_delimiter = ',', value_parser = rest_address)]
    pub(super) address: Vec<String>,
    /// Format of answers
    #[arg(short, long, global = true, value_enum, default_value_t = OutputFormat::Table)]
    pub(super) output: OutputFormat,
}

/// The arguments with each `-D` before the command, where all of them count: clap drops those before a command if one
/// follows it. What follows `--` belongs to another program.
pub(super) fn overrides_first(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let mut first: Vec<OsString> = arguments.next().into_iter().collect();
    let mut others = Vec::new();
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_encoded_bytes();
        if bytes == b"--" {
            others.push(argument);
            others.extend(arguments.by_ref());
        } else if bytes == b"-D" {
            match arguments.next() {
                Some(value) => first.extend([argument, value]),
                // clap reports that the value is missing.
                None => others.push(argument),
            }
        } else if bytes.starts_with(b"-D") {
            first.push(argument);
        } else {
            others.push(argument);
        }
    }
    first.extend(others);
    first
}

/// The format of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// For people.
    Table,
    /// The JSON of the REST server.
    Json,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Starts a JobManager: it leads the cluster or stands by
    Jobmanager,
    /// Starts a TaskManager: it runs tasks in its slots
    Taskmanager {
        /// Subcommand; without it a TaskManager is started
        #[command(subcommand)]
        command: Option<TaskManagerCommand>,
    },
    /// Runs a job in a cluster of its own that ends with it
    Local(LocalArgs),
    /// Submits a job and waits for its end
    Run(RunArgs),
    /// Shows the plan of a job file: steps, columns, vertices, exchanges and slots; needs no cluster
    Plan(JobArgs),
    /// Lists all jobs, running and ended, newest first
    List(ListArgs),
    /// Shows a job with its vertices
    Info {
        /// The job's id
        job: JobId,
    },
    /// Shows the last checkpoints and savepoints of a job, and the regions without checkpoints
    Checkpoints {
        /// The job's id
        job: JobId,
    },
    /// Cancels a job
    Cancel {
        /// The job's id
        job: JobId,
    },
    /// Stops a job: its sources end, and it finishes with what they have read
    Stop(StopArgs),
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

/// Parses `host:port`, also in the form of a URL.
fn rest_address(text: &str) -> Result<String, String> {
    let address = text.trim().trim_end_matches('/');
    let address = address.strip_prefix("http://").unwrap_or(address);
    match address.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) =>
        {
            Ok(address.to_owned())
        }
        _ => Err("write HOST:PORT".to_owned()),
    }
}
