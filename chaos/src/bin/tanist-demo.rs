//! `tanist-demo`: the command line of the demonstration. `cargo xtask demo` builds it together with `tanist`.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Parser;
use tanist_chaos::demo::{self, DemoOptions, Inherited, Outcome};
use tanist_config::{ConfigError, Configuration, LoadOptions};

const EXIT_STATUS: &str = "\
Exit status: 0 the cluster did what it should; 1 it did not; 2 wrong command line; 10 wrong configuration; \
130, 143 interrupted by ^C, SIGTERM.";
/// The demo failed.
const FAILED: u8 = 1;
/// The configuration is wrong, as for `tanist`.
const CONFIGURATION: u8 = 10;
/// Added to the number of the signal that ended the demo, as shells do.
const SIGNALLED: u8 = 128;

/// Starts a cluster, kills its leader in the middle of a job, and checks the result.
///
/// Its JobManagers and TaskManagers use the given configuration (--config, -D, the environment), except
/// for the values that isolate the demo: the store and all other directories, ids, addresses and ports,
/// the number of slots, `heartbeat.interval`, and that no driver starts TaskManagers.
#[derive(Debug, Parser)]
#[command(name = "tanist-demo", after_help = EXIT_STATUS, max_term_width = 100)]
struct Arguments {
    /// The `tanist` program; default: the one beside this program
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Megabytes of text to count; default: a few seconds of work
    #[arg(long)]
    megabytes: Option<usize>,
    /// Keep the directory with logs, input and output
    #[arg(long)]
    keep: bool,
    /// Sets an option of the configuration; overrides file and environment
    #[arg(short = 'D', value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// The configuration file; default: tanist.yaml in $TANIST_CONF_DIR
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Arguments {
    fn inherited(&self) -> Result<Inherited, ConfigError> {
        let mut load = LoadOptions::from_environment();
        load.file.clone_from(&self.config);
        load.overrides.clone_from(&self.overrides);
        let configuration = Configuration::load(load)?;
        Ok(Inherited::new(&configuration, self.overrides.clone()))
    }

    /// The absolute path of `tanist`: its processes have another working directory.
    fn program(&self) -> anyhow::Result<PathBuf> {
        let program = match &self.program {
            Some(program) => std::path::absolute(program)?,
            None => std::env::current_exe()?.with_file_name("tanist"),
        };
        ensure!(
            program.is_file(),
            "there is no program {}: build it (`cargo build --package tanist`) or name another one (--program)",
            program.display()
        );
        Ok(program)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.inherited() {
        Ok(inherited) => run(&arguments, inherited).unwrap_or_else(|error| {
            report(format_args!("{error:#}"));
            FAILED.into()
        }),
        Err(error) => {
            report(error);
            CONFIGURATION.into()
        }
    }
}

fn run(arguments: &Arguments, inherited: Inherited) -> anyhow::Result<ExitCode> {
    let options = DemoOptions {
        program: arguments.program()?,
        megabytes: arguments.megabytes.unwrap_or(DemoOptions::MEGABYTES),
        keep: arguments.keep,
        inherited,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no threads can be started")?;
    let outcome = runtime.block_on(demo::run(options));
    // Nothing waits for threads that still write or count text.
    runtime.shutdown_background();
    Ok(match outcome? {
        Outcome::Succeeded => ExitCode::SUCCESS,
        Outcome::Interrupted(signal) => {
            eprintln!("interrupted");
            let signal = u8::try_from(signal.as_raw_value()).unwrap_or_default();
            (SIGNALLED + signal).into()
        }
    })
}

fn report(error: impl Display) {
    eprintln!("error: {error}");
}
