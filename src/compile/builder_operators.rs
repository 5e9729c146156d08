//! Builder methods for operators that declare columns, aggregations or windows, and for connectors.

use std::time::Duration;

use tanist_ha::clock::millis;
use tanist_model::operators::{
    Aggregate, AggregateFunction, Aggregation, DeclaredColumn, FlatMapRegex, FollowFiles,
    FormatCsv, FormatJson, OnError, ParseCsv, ParseJson, Reading, Sample, SocketSink, SocketSource,
    StdinSource, Watermarks, Windows,
};

use crate::{JobBuilder, Steps};

impl JobBuilder {
    /// See [`Steps::follow_files`].
    pub fn follow_files<P: Into<String>>(
        self,
        name: impl Into<String>,
        paths: impl IntoIterator<Item = P>,
    ) -> Steps {
        self.step(name, follow_files(paths))
    }

    /// See [`Steps::stdin_source`].
    pub fn stdin_source(self, name: impl Into<String>) -> Steps {
        self.step(name, StdinSource {})
    }

    /// See [`Steps::socket_source`].
    pub fn socket_source(self, name: impl Into<String>, address: impl Into<String>) -> Steps {
        self.step(name, socket_source(address))
    }
}

fn follow_files<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> FollowFiles {
    FollowFiles {
        paths: paths.into_iter().map(Into::into).collect(),
        discovery_interval_ms: FollowFiles::DISCOVERY_INTERVAL_MS,
    }
}

fn socket_source(address: impl Into<String>) -> SocketSource {
    SocketSource {
        address: address.into(),
        reconnect: true,
    }
}

impl Steps {
    /// Reads the lines of text files and continues when they grow.
    #[must_use]
    pub fn follow_files<P: Into<String>>(
        self,
        name: impl Into<String>,
        paths: impl IntoIterator<Item = P>,
    ) -> Steps {
        self.step(name, follow_files(paths))
    }

    /// Reads the lines of the TaskManager's standard input.
    #[must_use]
    pub fn stdin_source(self, name: impl Into<String>) -> Steps {
        self.step(name, StdinSource {})
    }

    /// Reads lines from a TCP server, and reconnects.
    #[must_use]
    pub fn socket_source(self, name: impl Into<String>, address: impl Into<String>) -> Steps {
        self.step(name, socket_source(address))
    }

    /// Passes on each record with a probability, which a hash of its values and the seed decides.
    #[must_use]
    pub fn sample(self, name: impl Into<String>, fraction: f64, seed: u64) -> Steps {
        self.step(name, Sample { fraction, seed })
    }

    /// Parses JSON objects.
    #[must_use]
    pub fn parse_json(
        self,
        name: impl Into<String>,
        column: impl Into<String>,
        columns: impl IntoIterator<Item = DeclaredColumn>,
    ) -> Steps {
        let spec = ParseJson {
            column: column.into(),
            reading: Reading::of(columns),
        };
        self.step(name, spec)
    }

    /// Parses CSV records, separated by commas.
    #[must_use]
    pub fn parse_csv(
        self,
        name: impl Into<String>,
        column: impl Into<String>,
        columns: impl IntoIterator<Item = DeclaredColumn>,
    ) -> Steps {
        let spec = ParseCsv {
            column: column.into(),
            reading: Reading::of(columns),
            separator: ',',
            header: false,
        };
        self.step(name, spec)
    }

    /// Emits a record for each match. Its columns are the named groups: those listed here with their type, all
    /// others as texts.
    #[must_use]
    pub fn flat_map_regex(
        self,
        name: impl Into<String>,
        column: impl Into<String>,
        pattern: impl Into<String>,
        columns: impl IntoIterator<Item = DeclaredColumn>,
    ) -> Steps {
        let spec = FlatMapRegex {
            reading: Reading::of(columns),
            ..FlatMapRegex::new(column, pattern)
        };
        self.step(name, spec)
    }

    /// Sets how the last step, a parser, handles unreadable records. No effect on other steps.
    #[must_use]
    pub fn on_error(self, on_error: OnError) -> Steps {
        self.last(|step| {
            let operator = step.operator_mut();
            if let Some(reading) = operator.and_then(|operator| operator.reading_mut()) {
                reading.on_error = on_error;
            }
        })
    }

    /// Formats each record as a JSON object.
    #[must_use]
    pub fn format_json(self, name: impl Into<String>) -> Steps {
        self.step(name, FormatJson {})
    }

    /// Formats each record as a CSV line, separated by commas.
    #[must_use]
    pub fn format_csv(self, name: impl Into<String>) -> Steps {
        self.step(name, FormatCsv { separator: ',' })
    }

    /// Generates watermarks. A record arrives at most `out_of_orderness` after one with a later event time.
    #[must_use]
    pub fn watermarks(
        self,
        name: impl Into<String>,
        column: impl Into<String>,
        out_of_orderness: Duration,
    ) -> Steps {
        let spec = Watermarks {
            column: column.into(),
            out_of_orderness_ms: millis(out_of_orderness),
            idle_timeout_ms: None,
        };
        self.step(name, spec)
    }

    /// The minimum of a column by key.
    #[must_use]
    pub fn min(self, name: impl Into<String>, column: impl Into<String>) -> Steps {
        self.function(name, AggregateFunction::Min, column)
    }

    /// The maximum of a column by key.
    #[must_use]
    pub fn max(self, name: impl Into<String>, column: impl Into<String>) -> Steps {
        self.function(name, AggregateFunction::Max, column)
    }

    /// The mean of a column by key.
    #[must_use]
    pub fn average(self, name: impl Into<String>, column: impl Into<String>) -> Steps {
        self.function(name, AggregateFunction::Average, column)
    }

    fn function(
        self,
        name: impl Into<String>,
        function: AggregateFunction,
        column: impl Into<String>,
    ) -> Steps {
        self.aggregate(name, [Aggregation::of(function.name(), function, column)])
    }

    /// Several results by key.
    #[must_use]
    pub fn aggregate(
        self,
        name: impl Into<String>,
        aggregations: impl IntoIterator<Item = Aggregation>,
    ) -> Steps {
        self.step(name, Aggregate::of(aggregations))
    }

    /// Makes the last step, an aggregation, aggregate over windows of event time. No effect on other steps.
    #[must_use]
    pub fn windowed(self, windows: Windows) -> Steps {
        self.last(|step| {
            if let Some(operator) = step.operator_mut()
                && let Some(windowed) = operator.windowed(windows)
            {
                *operator = windowed;
            }
        })
    }

    /// Writes records as lines to a TCP server.
    #[must_use]
    pub fn socket_sink(self, name: impl Into<String>, address: impl Into<String>) -> Steps {
        let address = address.into();
        self.step(name, SocketSink { address })
    }
}
