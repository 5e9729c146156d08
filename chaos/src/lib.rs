//! Starts, kills, stops and isolates real Tanist processes and their stores, and checks for leftovers. Also the
//! demonstration ([`demo`]), as the program `tanist-demo`.
//!
//! A [`Cluster`] is a number of `tanist` processes on a [`Store`]: each with its own directory, ports and
//! log. All of them end when the cluster is dropped, and when the process that holds it dies. Every wait
//! has a timeout, and its error shows the last value together with the ends of all logs. Not here: the
//! faults and the invariants of a test, which belong to the test.

pub mod builder;
pub mod cli;
pub mod cluster;
pub mod continuity;
pub mod copies;
pub mod demo;
pub mod dump;
pub mod faults;
pub mod guard;
pub mod history;
mod hosts;
pub mod jobs;
mod leftovers;
pub mod nemesis;
pub mod network;
pub mod process;
pub mod rest;
pub mod store;
pub mod wait;
pub mod wordcount;

pub use builder::ClusterBuilder;
pub use cli::{Cli, CliOutput};
pub use cluster::{Cluster, Leader};
pub use continuity::Attempts;
pub use copies::Copy;
pub use dump::StoreDump;
pub use faults::Faults;
pub use history::{History, Observer};
pub use jobs::{JobView, Submission};
pub use leftovers::files_called;
pub use nemesis::{LeaderKiller, TaskManagerKiller};
pub use network::{Host, Link, Network, on_a_network_of_its_own, small_file_system};
pub use process::Process;
pub use rest::RestClient;
pub use store::{Store, StoreKind};
pub use wait::wait_for;

/// Whether the long variants are enabled: the stores' default leases instead of the shortest ones.
pub fn test_all() -> bool {
    std::env::var_os("TANIST_TEST_ALL").is_some_and(|value| value == "1")
}
