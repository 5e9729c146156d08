//! What a process reports about itself (its log, its start log, its exit code), and what it learns from its system:
//! memory limits and control groups.
//!
//! The log is the only state: two statics of the process, which [`init`] sets once and no code removes. Logging never
//! blocks. If standard error is not read, lines beyond `WAITING_BYTES` are dropped and counted. Independent of the
//! configuration, which another layer reads: all settings are parameters.

pub mod backlog;
pub mod control_group;
mod exit;
mod fields;
mod memory_limit;
mod panics;
mod printable;
mod startup;
mod writer;

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

pub use exit::ExitCode;
pub use memory_limit::memory_limit_bytes;
pub use panics::{catch_panic, panic_message};
pub use printable::{Printable, PrintableLines};
pub use startup::{REVISION, Startup, StartupSetting, VERSION, VERSION_AND_REVISION, startup_log};

use self::writer::{LogWriter, Report};

/// The environment variable whose filter overrides the configured level.
pub const FILTER_VARIABLE: &str = "TANIST_LOG";

/// How many bytes of log lines wait for a slow reader of standard error; further lines are dropped.
const WAITING_BYTES: usize = 4 << 20;
/// How long a process that ends waits for that reader.
const FINAL_MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);
const PANIC_TIMEOUT: Duration = Duration::from_millis(200);

/// The writer of all lines. Unset in programs that have not called [`init`], such as tests: they log nothing.
static WRITER: OnceLock<LogWriter> = OnceLock::new();
/// Changes the filter while the process runs.
static LEVEL: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// The format of log events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One line of text per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// Errors in the setup of the log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is invalid.
    #[error("{FILTER_VARIABLE} is not a log filter: write `info` or `info,tanist_rpc=debug`")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// The log can be set up only once per process.
    #[error("the log of this process is already set up")]
    AlreadySet(#[source] tracing_subscriber::util::TryInitError),
    /// The level can't be changed: the log keeps its level.
    #[error("the level of the log can't be changed")]
    NotReloaded(#[source] reload::Error),
    /// The thread that writes the log can't be started.
    #[error("the log has no thread")]
    Thread(#[source] io::Error),
}

/// Sends this process's events to standard error: those that match `filter` (the value of `TANIST_LOG`), or,
/// without it, those of at least `level`. Logging never waits for the reader: see [`flush`].
pub fn init(level: &str, format: Format, filter: Option<&str>) -> Result<(), Error> {
    let (filter, handle) = reload::Layer::new(parse_filter(level, filter)?);
    let registry = tracing_subscriber::registry().with(filter);
    let report: Report = match format {
        Format::Text => {
            |dropped| format!("{dropped} log lines were dropped: standard error was not read\n")
        }
        Format::Json => |dropped| {
            format!(
                "{{\"level\":\"WARN\",\"message\":\"log lines were dropped: standard error was not read\",\"dropped\":{dropped}}}\n"
            )
        },
    };
    let writer = LogWriter::start(io::stderr(), WAITING_BYTES, report).map_err(Error::Thread)?;
    let lines = writer.clone();
    let layer = tracing_subscriber::fmt::layer().with_writer(move || lines.clone());
    let colours = io::IsTerminal::is_terminal(&io::stderr()) && are_colours_wanted();
    match format {
        Format::Text => {
            let layer = layer.with_ansi(colours).fmt_fields(fields::Fields);
            registry.with(layer).try_init()
        }
        Format::Json => registry.with(layer.json().flatten_event(true)).try_init(),
    }
    .map_err(Error::AlreadySet)?;
    // `try_init` succeeds only once per process.
    let _ = LEVEL.set(handle);
    if WRITER.set(writer).is_ok() {
        std::panic::set_hook(Box::new(panics::log_panic));
    }
    Ok(())
}

/// Changes the filter, with the same arguments as [`init`].
pub fn set_level(level: &str, filter: Option<&str>) -> Result<(), Error> {
    let filter = parse_filter(level, filter)?;
    match LEVEL.get() {
        Some(handle) => handle.reload(filter).map_err(Error::NotReloaded),
        None => Ok(()),
    }
}

/// Whether colours are allowed: `NO_COLOR` (<https://no-color.org>) is unset or empty.
pub(crate) fn are_colours_wanted() -> bool {
    colours_wanted_by(std::env::var_os("NO_COLOR").as_deref())
}

fn colours_wanted_by(no_color: Option<&std::ffi::OsStr>) -> bool {
    no_color.is_none_or(std::ffi::OsStr::is_empty)
}

/// Waits briefly until all events are written. Called before the process ends.
pub fn flush() {
    flush_for(FINAL_MESSAGE_TIMEOUT);
}

fn flush_for(timeout: Duration) {
    if let Some(writer) = WRITER.get() {
        writer.flush(timeout);
    }
}

/// Number of log lines that were dropped because standard error was not read.
pub fn dropped_log_lines() -> u64 {
    WRITER.get().map_or(0, LogWriter::dropped)
}

/// No line is dropped after this. For a process that ends.
fn make_room() {
    if let Some(writer) = WRITER.get() {
        writer.make_room();
    }
}

/// Libraries log at `warn` unless the filter says otherwise: at `info` they log every connection.
fn parse_filter(level: &str, filter: Option<&str>) -> Result<EnvFilter, Error> {
    match filter.map(str::trim).filter(|filter| !filter.is_empty()) {
        Some(filter) => EnvFilter::try_new(filter),
        None => match level {
            "info" => EnvFilter::try_new("warn,tanist=info,tanist_ha=info,tanist_proto=info"),
            "debug" => EnvFilter::try_new("info,tanist=debug,tanist_ha=debug,tanist_proto=debug"),
            other => EnvFilter::try_new(other),
        },
    }
    .map_err(Error::Filter)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use tanist_ha::clock::Clock;
    use tanist_ha::election::core::Timing;
    use tanist_ha::election::{
        ElectionOptions, LeaderElection, Leadership, ProcessId, random_start,
    };
    use tanist_ha::memory::{MemoryCluster, MemoryOptions};

    use super::*;

    #[test]
    fn the_environments_filter_wins_over_the_level() {
        let shown = |level, filter| parse_filter(level, filter).expect("a filter").to_string();
        assert_eq!(shown("warn", None), "warn");
        assert_eq!(shown("warn", Some("debug")), "debug");
        assert_eq!(shown("error", Some(" ")), "error");
        assert!(shown("info", None).contains("tanist=info"));
    }

    #[test]
    fn a_filter_that_is_none_is_refused_by_the_variables_name() {
        let error = parse_filter("info", Some("tanist=loud")).expect_err("no such level");
        assert!(error.to_string().contains("TANIST_LOG"), "{error}");
    }

    #[test]
    fn no_color_is_heeded_unless_it_is_empty() {
        let wanted = |value: Option<&str>| colours_wanted_by(value.map(AsRef::as_ref));
        assert!(wanted(None));
        assert!(wanted(Some("")));
        assert!(!wanted(Some("1")));
        assert!(!wanted(Some("0")));
    }

    /// Set in the child process of the test.
    const CHILD: &str = "TANIST_TEST_UNREAD_LOG";

    #[test]
    fn a_process_whose_standard_error_is_a_full_pipe_goes_on_leading() {
        if std::env::var_os(CHILD).is_some() {
            return lead_and_log_much();
        }
        let path = concat!(
            module_path!(),
            "::a_process_whose_standard_error_is_a_full_pipe_goes_on_leading"
        );
        // Test names do not contain the name of the crate.
        let (_, name) = path.split_once("::").expect("a module is in a crate");
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            // This pipe is never read.
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started once more");
        let mut said = String::new();
        let mut answers = child.stdout.take().expect("it is piped");
        answers.read_to_string(&mut said).expect("it is text");
        let ended = child.wait().expect("it has ended");
        assert!(ended.success(), "{ended}: {said}");
        assert!(said.contains("leads after all"), "{said}");
    }

    /// Logs far more than pipe and writer can hold, while it renews a lease that is shorter than the test.
    fn lead_and_log_much() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            init("info", Format::Text, None).expect("nothing set it up before");
            let cluster = MemoryCluster::new(MemoryOptions {
                ttl: Duration::from_secs(1),
                ..MemoryOptions::default()
            });
            let process = ProcessId::new("a");
            let clock = Clock::Boottime;
            let driver = cluster.election(process.clone(), clock);
            let options = ElectionOptions {
                process,
                start: random_start(),
                timing: Timing::default(),
                clock,
            };
            let election = LeaderElection::start(Arc::new(driver), options);
            let mut leadership = election.leadership();
            let leads = |now: &Leadership| matches!(now, Leadership::Granted(_));
            leadership.wait_for(leads).await.expect("it leads");
            let mut lease = election.lease();
            for _ in 0..5 {
                for _ in 0..2000 {
                    tracing::info!(target: "tanist", text = "x".repeat(1000), "much");
                }
                lease.changed().await.expect("it is renewed");
            }
            assert!(leads(&leadership.borrow()));
            assert!(dropped_log_lines() > 0, "the pipe is not full");
            ExitCode::Ended.log_final_message("nobody reads this");
            // The parent reads standard output.
            writeln!(io::stdout(), "leads after all").expect("it is read");
        });
    }
}
