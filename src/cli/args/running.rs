//! Arguments of the commands that read a job file: what runs, with which parameters, where, and what it begins from.

use std::path::PathBuf;
use std::str::FromStr as _;

use clap::Args;
use tanist_config::{ClaimMode, ExecutionTarget, RestoreFrom};
use tanist_proto::id::JobId;

/// A job file and its parameters.
#[derive(Debug, Clone, Args)]
pub(crate) struct JobArgs {
    /// The job file
    pub(crate) file: PathBuf,
    /// A parameter of the job file
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = parameter)]
    pub(crate) parameters: Vec<(String, String)>,
    /// The parallelism of steps that set none
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) parallelism: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Prints the job's id once it is accepted, and does not wait for its end
    #[arg(short, long)]
    pub(crate) detached: bool,
    /// The job's id: a job with this id is submitted only once, even if the command is repeated
    #[arg(long, value_name = "HEX")]
    pub(crate) job_id: Option<JobId>,

    #[command(flatten)]
    pub(crate) restore: RestoreArgs,

    /// Where the job runs: remote, local, per-job or application; default: execution.target, or else a running cluster
    #[arg(long, value_name = "TARGET", value_parser = ExecutionTarget::from_str)]
    pub(crate) target: Option<ExecutionTarget>,

    /// With the target per-job: number of TaskManagers in this process; default: 1, or 0 if a driver starts
    /// them. With 0 and no driver other TaskManagers have to join
    #[arg(long, value_name = "N")]
    pub(crate) taskmanagers: Option<u32>,

    /// Shows where the job goes, and why
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LocalArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    #[command(flatten)]
    pub(crate) restore: RestoreArgs,
    /// Not possible: the cluster ends with this command
    #[arg(short, long, hide = true)]
    pub(crate) detached: bool,
}

/// What a job begins from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct RestoreArgs {
    /// Begins from a savepoint, by its path, or from the retained checkpoint of an ended job, by `job:` and the job's
    /// id; default: execution.state-recovery.path, or else from the start
    #[arg(long, value_name = "PATH", value_parser = RestoreFrom::from_str)]
    pub(crate) from_savepoint: Option<RestoreFrom>,
    /// Leaves out state that no step of the job has; without this the job is refused
    #[arg(long)]
    pub(crate) allow_non_restored_state: bool,
    /// NO_CLAIM: what the job begins from stays as it is; CLAIM: a retained checkpoint is moved to the job; default:
    /// NO_CLAIM, or without --from-savepoint execution.state-recovery.claim-mode
    #[arg(long, value_name = "MODE", value_parser = ClaimMode::from_str)]
    pub(crate) claim_mode: Option<ClaimMode>,
}

pub(crate) fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.to_owned()))
        }
        _ => Err("write NAME=VALUE".to_owned()),
    }
}
