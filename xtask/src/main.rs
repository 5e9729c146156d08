//! The single entry point for development tasks: set-up, tests, lints, demo. Every command first checks
//! its prerequisites, and installs what is missing where it can.
//!
//! It depends on no crate of the project and needs no protoc, so that it builds on a machine that has only Rust.

mod cargo;
mod links;
mod prose;
mod setup;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    bin_name = "cargo xtask",
    about = "The project's one entry",
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Installs the tools for building and testing: protoc, etcd, ZooKeeper, Java, `ip`, `unshare` and Chromium.
    Setup,
    /// Runs the tests, against real etcd and ZooKeeper servers.
    Test {
        /// Also runs the long tests, with the default leases instead of the shortest ones.
        #[arg(long)]
        all: bool,
        /// Runs only tests whose names contain one of these.
        filters: Vec<String>,
    },
    /// Kills, pauses and cuts off leaders, standbys, TaskManagers and stores under jobs that verify themselves; about
    /// 20 kills a minute.
    Chaos {
        /// Number of kills on each store.
        #[arg(long, default_value_t = 1_000)]
        kills: u64,
        /// Repeats the faults of a run, which says its seed.
        #[arg(long)]
        seed: Option<u64>,
        /// The stores, one after the other.
        #[arg(long, num_args = 1.., default_values_t = ["embedded", "etcd", "zookeeper"].map(str::to_owned))]
        store: Vec<String>,
    },
    /// Takes checkpoints of a job while leaders and TaskManagers are killed, and checks that files, records and memory
    /// do not grow.
    Soak {
        /// Number of checkpoints; 86,400 are a day if they are a second apart.
        #[arg(long, default_value_t = 3_600)]
        checkpoints: u64,
        /// Milliseconds between two checkpoints
        #[arg(long, default_value_t = 1_000)]
        interval_ms: u64,
    },
    /// Checks format, lints, documentation, prose, links and, if cargo-deny is installed, dependencies.
    Lint {
        /// Checks only prose and links, which needs no compiler.
        #[arg(long)]
        documents: bool,
    },
    /// Builds the book of `docs/` with mdBook, and checks the links of all documents.
    Docs,
    /// Formats the code, applies the suggestions of clippy, and writes generated documentation.
    Fix,
    /// Measures the released program: start-up, memory, failover, submission, scheduling, recovery, throughput.
    Bench {
        /// `--only NAME..`, `--store STORE..`, `--json FILE`, `--quick`; `--beside-flink`: Tanist and Apache Flink in
        /// turns.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Runs Flink's own REST client and CLI against a cluster (needs a JDK, pip, and once a download of 330 MB).
    Flink,
    /// Builds and runs the demo: a cluster whose leader is killed in the middle of a job.
    Demo {
        /// `--keep`, `--megabytes N`, `--config FILE`, `-D KEY=VALUE`, `--program FILE`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> anyhow::Result<()> {
    // Set by `cargo xtask`. The one at build time may be that of another checkout with the same target folder.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("run this as `cargo xtask`")?;
    std::env::set_current_dir(PathBuf::from(manifest).join(".."))?;
    match Arguments::parse().task {
        Task::Setup => {
            setup::protoc()?;
            setup::servers()?;
            println!("everything is there: protoc, etcd, ZooKeeper, Java, ip, unshare, Chromium");
            Ok(())
        }
        Task::Test { all, filters } => {
            setup::protoc()?;
            setup::servers()?;
            cargo::test(all, &filters)
        }
        Task::Chaos { kills, seed, store } => {
            setup::protoc()?;
            setup::servers()?;
            cargo::chaos(kills, seed, &store)
        }
        Task::Soak {
            checkpoints,
            interval_ms,
        } => {
            setup::protoc()?;
            setup::servers()?;
            cargo::soak(checkpoints, interval_ms)
        }
        Task::Lint { documents: true } => cargo::lint_documents(),
        Task::Lint { documents: false } => {
            setup::protoc()?;
            cargo::lint()
        }
        Task::Docs => {
            links::check()?;
            let program = setup::mdbook()?;
            cargo::book(&program)
        }
        Task::Fix => {
            setup::protoc()?;
            cargo::fix()
        }
        Task::Bench { arguments } => {
            setup::protoc()?;
            setup::servers()?;
            if arguments.iter().any(|word| word == "--beside-flink") {
                setup::flink()?;
            }
            cargo::bench(&arguments)
        }
        Task::Flink => {
            setup::protoc()?;
            cargo::flink()
        }
        Task::Demo { arguments } => {
            setup::protoc()?;
            cargo::demo(&arguments)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_demo_gets_its_arguments_as_they_are() {
        let parsed = Arguments::parse_from(["cargo xtask", "demo", "--keep", "x", "-v"]);
        let Task::Demo { arguments } = parsed.task else {
            panic!("{parsed:?}")
        };
        assert_eq!(arguments, ["--keep", "x", "-v"]);
    }
}
