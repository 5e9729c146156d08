//! Arguments of the commands about jobs that exist.

use std::num::NonZeroU64;

use clap::{Args, Subcommand};
use tanist_config::StorageLocation;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;

/// Commands about jobs.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum JobCommand {
    /// Lists all jobs, running and ended, newest first
    List(ListArgs),
    /// Shows a job with its vertices, and the reason if it does not run
    Describe {
        /// The job's id
        job: JobId,
    },
    /// Shows the history of a job: statuses, restarts and their causes, changes of the leader
    Events {
        /// The job's id
        job: JobId,
        /// Also shows the states of its tasks, in their current attempts
        #[arg(long)]
        tasks: bool,
    },
    /// Shows the subtasks of a job: their states, start times and TaskManagers
    Subtasks {
        /// The job's id
        job: JobId,
        /// Only this vertex, by id, name or a step of it, as `info` shows them; default: all vertices
        vertex: Option<String>,
    },
    /// Shows the recorded failures of a job: when, which task, where and why
    Exceptions {
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
    /// Manage jobs that are quarantined because they can't be led
    #[command(subcommand)]
    Quarantine(QuarantineCommand),
}

/// What is stopped, and how.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct StopArgs {
    /// The job's id
    pub(crate) job: JobId,
    /// Stops with a savepoint, from which another job can continue: waits for it and prints its path; directory as of
    /// `tanist savepoint`
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    savepoint: Option<Option<StorageLocation>>,
    /// What a stop without --savepoint does, in Flink's words: what the sources have read is processed, open windows
    /// are emitted, and nothing can continue from there
    #[arg(long, conflicts_with = "savepoint")]
    drain: bool,
    /// With --savepoint: prints the id of the request once it is accepted, and does not wait
    #[arg(short, long, requires = "savepoint")]
    pub(crate) detached: bool,
}

impl StopArgs {
    /// The savepoint to stop with, perhaps with its directory. None: the job is drained.
    pub(crate) fn savepoint(&self) -> Option<Option<&StorageLocation>> {
        let savepoint = self.savepoint.as_ref();
        savepoint.filter(|_| !self.drain).map(Option::as_ref)
    }
}

/// Commands about quarantined jobs.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum QuarantineCommand {
    /// Lists quarantined jobs, with reasons and evidence
    List,
    /// Reads a job again and, if that succeeds, leads it again
    Retry {
        /// The job's id
        job: JobId,
        /// Goes back to this retained checkpoint, which is older than the newest one: what was made visible since then
        /// appears twice
        #[arg(long, value_name = "NUMBER")]
        from_checkpoint: Option<NonZeroU64>,
        /// Accepts that output appears twice, which --from-checkpoint needs
        #[arg(long, requires = "from_checkpoint")]
        accept_duplicates: bool,
    },
    /// Cancels a job: its tasks end, and its data is removed
    Delete {
        /// The job's id
        job: JobId,
    },
}

/// Options for listing jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ListArgs {
    /// Only jobs in these states: running, waiting, finished, failed ...
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = shown_state)]
    pub(crate) state: Vec<String>,
    /// At most this number of jobs, newest first
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

fn shown_state(text: &str) -> Result<String, String> {
    let name = text.to_ascii_uppercase();
    let is_status = JobStatus::from_str_name(&format!("JOB_STATUS_{name}")).is_some();
    if is_status || name == "WAITING" {
        return Ok(name);
    }
    Err("write a job's state: running, waiting, finished, failed, canceled ...".to_owned())
}
