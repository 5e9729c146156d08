//! What a process tells about itself: its log, what it says at its start, and the code with which it ends.
//!
//! Independent of configuration, which another layer reads: everything comes in as plain values.

mod exit;
mod memory_limit;
mod startup;

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

pub use exit::ExitCode;
pub use memory_limit::memory_limit_bytes;
pub use startup::{Startup, StartupSetting, startup_log, version};

/// The environment variable whose filter wins over the configured level.
pub const FILTER_VARIABLE: &str = "TANIST_LOG";

/// How log events look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One line of text an event.
    Text,
    /// One JSON object an event.
    Json,
}

/// A log that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is none.
    #[error("{FILTER_VARIABLE} is no log filter: write `info` or `info,tanist::rpc=debug`")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// Only the first set-up of a process counts.
    #[error("the log of this process is already set up")]
    AlreadySet(#[source] tracing_subscriber::util::TryInitError),
}

/// Sends this process's events to standard error: those that `filter` lets through (the value of `TANIST_LOG`), or, without
/// one, those of at least `level`.
pub fn init(level: &str, format: Format, filter: Option<&str>) -> Result<(), Error> {
    let filter = parse_filter(level, filter)?;
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let colours = io::IsTerminal::is_terminal(&io::stderr());
    match format {
        Format::Text => registry.with(layer.with_ansi(colours)).try_init(),
        Format::Json => registry.with(layer.json().flatten_event(true)).try_init(),
    }
    .map_err(Error::AlreadySet)
}

/// Libraries log at `warn` unless the filter says otherwise: at `info` they tell of each connection.
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
}
