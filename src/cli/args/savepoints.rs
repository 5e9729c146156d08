//! Arguments of the commands about savepoints.

use clap::{Args, Subcommand};
use tanist_config::StorageLocation;
use tanist_proto::id::JobId;

/// A savepoint that is taken, or a command about one that exists.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SavepointArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SavepointCommand>,
    /// The job's id
    #[arg(required = true)]
    pub(crate) job: Option<JobId>,
    /// The directory below which the savepoint gets a directory of its own: an absolute path or a URL; default:
    /// execution.checkpointing.savepoint-dir of the JobManagers
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<StorageLocation>,
    /// Prints the id of the request once it is accepted, and does not wait
    #[arg(short, long)]
    pub(crate) detached: bool,
}

/// Commands about a savepoint that exists.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum SavepointCommand {
    /// Shows what a savepoint holds; asks no JobManager
    Inspect {
        /// Its directory: a path or a URL
        path: String,
        /// Reads all of it, and compares checksums
        #[arg(long)]
        verify: bool,
    },
    /// Removes a savepoint, unless a job still needs it
    Dispose {
        /// Its directory: an absolute path or a URL
        path: StorageLocation,
        /// Asks no JobManager, and so does not know whether a job needs it
        #[arg(long)]
        without_cluster: bool,
    },
}
