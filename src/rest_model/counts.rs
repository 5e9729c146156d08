//! Numbers of tasks or vertices by state.

use serde::{Deserialize, Serialize};
use tanist_proto::v1::ExecutionState;

macro_rules! counts {
    ($(#[$attribute:meta])* $name:ident [$($total:ident)?] { $($state:ident $field:ident,)* }) => {
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        $(#[$attribute])*
        #[serde(default)]
        pub struct $name {
            $(#[doc = "All of them."] pub $total: u64,)?
            $(#[doc = concat!("Those that are ", stringify!($state), ".")] pub $field: u64,)*
        }

        impl FromIterator<ExecutionState> for $name {
            fn from_iter<I: IntoIterator<Item = ExecutionState>>(states: I) -> $name {
                let mut counts = $name::default();
                for state in states {
                    $(counts.$total += 1;)?
                    match state {
                        $(ExecutionState::$state => counts.$field += 1,)*
                    }
                }
                counts
            }
        }
    };
}

counts! {
    /// Number of subtasks, or of vertices, in each state.
    #[serde(rename_all = "UPPERCASE")]
    StateCounts [] {
        Created created, Scheduled scheduled, Deploying deploying, Running running, Finished finished,
        Canceling canceling, Canceled canceled, Failed failed, Reconciling reconciling,
        Initializing initializing,
    }
}

counts! {
    /// Number of tasks of a job, in total and in each state, as in the list of jobs.
    TaskCounts [total] {
        Created created, Scheduled scheduled, Deploying deploying, Running running, Finished finished,
        Canceling canceling, Canceled canceled, Failed failed, Reconciling reconciling,
        Initializing initializing,
    }
}
