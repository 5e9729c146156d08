//! Arguments of the commands about the cluster: its leader, its store and its TaskManagers.

use std::time::Duration;

use clap::{Args, Subcommand};
use tanist_config::parse_duration;
use tanist_proto::id::ResourceId;

/// Commands about high availability.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum HaCommand {
    /// Shows the leader, the state of the standbys, the store, and warnings
    Status,
    /// Lists the terms: leader, duration, and the phases of the takeover
    History,
    /// Makes the leader hand over to a standby, without waiting for a timeout
    Transfer {
        /// The JobManager that becomes leader; default: the most up-to-date standby
        #[arg(long, value_name = "PROCESS")]
        to: Option<String>,
    },
    /// Accepts a store that was restored or copied, or whose epoch was overwritten, as the cluster's store;
    /// asks no JobManager
    Accept {
        /// Accepts the store; without this only the changes are shown
        #[arg(long)]
        yes: bool,
        /// Accepts the store even if a JobManager leads in it; its term ends
        #[arg(long, requires = "yes")]
        force: bool,
    },
}

/// Commands about running TaskManagers.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum TaskManagerCommand {
    /// Lists TaskManagers: ids, addresses, free slots, and the progress of drains
    List,
    /// Drains TaskManagers: jobs get no more slots there, also after restarts; each TaskManager ends when
    /// nothing runs there any more
    Drain {
        #[command(flatten)]
        what: DrainedArgs,
        /// Moves running tasks as soon as there are slots for them elsewhere; without this they run to their end
        #[arg(long)]
        evict: bool,
        /// Moves the tasks that still run after this time, as in `30 min`
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        deadline: Option<Duration>,
        /// At the deadline also moves tasks for which there are no slots elsewhere: they stop and wait for slots
        #[arg(long, requires = "deadline")]
        force: bool,
        /// The reason, shown in the list
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Ends a drain: jobs get slots there again
    Undrain {
        #[command(flatten)]
        what: DrainedArgs,
    },
}

/// Selects TaskManagers.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct DrainedArgs {
    /// Ids of TaskManagers
    #[arg(value_name = "TASKMANAGER")]
    pub(crate) ids: Vec<ResourceId>,
    /// All TaskManagers of this host, as in their addresses, also those that start there later
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
}
