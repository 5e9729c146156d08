//! Builder methods for operators that declare columns, aggregations or windows, and for connectors.

use std::time::Duration;

use tanist_ha::clock::millis;
use tanist_model::OperatorSpec;
use tanist_model::spec::{
    AggregateFunction, Aggregation, DeclaredColumn, FlatMapRegex, FollowFiles, FormatCsv, OnError,
    ParseCsv, ParseJson, Reading, SocketSink, SocketSource, Watermarks,
};

use crate::{JobBuilder, Steps};
use crate::{Transformation, Windows};

impl JobBuilder {
    /// See [`Steps::follow_files`].
    pub fn follow_files<P: Into<String>>(
        self,
        name: impl Into<String>,
        paths: impl IntoIterator<Item = P>,
    ) -> Steps {
        self.operator(name, follow_files(paths))
    }

    /// See [`Steps::stdin_source`].
    pub fn stdin_source(self, name: impl Into<String>) -> Steps {
        self.operator(name, OperatorSpec::StdinSource {})
    }

    /// See [`Steps::socket_source`].
    pub fn socket_source(self, name: impl Into<String>, address: impl Into<String>) -> Steps {
        self.operator(name, socket_source(address))
    }

    /// See [`Steps::operator`].
    pub fn operator(self, name: impl Into<String>, spec: OperatorSpec) -> Steps {
        self.step(name, Transformation::Operator(spec))
    }
}

fn follow_files<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> OperatorSpec {
    OperatorSpec::FollowFiles(FollowFiles {
        paths: paths.into_iter().map(Into::into).collect(),
        discovery_interval_ms: FollowFiles::DISCOVERY_INTERVAL_MS,
    })
}

fn socket_source(address: impl Into<String>) -> OperatorSpec {
    OperatorSpec::SocketSource(SocketSource {
        address: address.into(),
        reconnect: true,
    })
}

impl Steps {
    /// Adds an operator whose specification is complete.
    #[must_use]
    pub fn operator(self, name: impl Into<String>, spec: OperatorSpec) -> Steps {
        self.step(name, Transformation::Operator(spec))
    }

    /// Reads the lines of text files and continues when they grow.
    #[must_use]
    pub fn follow_files<P: Into<String>>(
        self,
        name: impl Into<String>,
        paths: impl IntoIterator<Item = P>,
    ) -> Steps {
        self.operator(name, follow_files(paths))
    }

    /// Reads the lines of the TaskManager's standard input.
    #[must_use]
    pub fn stdin_source(self, name: impl Into<String>) -> Steps {
        self.operator(name, OperatorSpec::StdinSource {})
    }

    /// Reads lines from a TCP server, and reconnects.
    #[must_use]
    pub fn socket_source(self, name: impl Into<String>, address: impl Into<String>) -> Steps {
        self.operator(name, socket_source(address))
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
        self.operator(name, OperatorSpec::ParseJson(spec))
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
        self.operator(name, OperatorSpec::ParseCsv(spec))
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
        self.operator(name, OperatorSpec::FlatMapRegex(spec))
    }

    /// Sets how the last step, a parser, handles unreadable records. No effect on other steps.
    #[must_use]
    pub fn on_error(self, on_error: OnError) -> Steps {
        self.last(|step| {
            if let Some(Transformation::Operator(
                OperatorSpec::ParseJson(ParseJson { reading, .. })
                | OperatorSpec::ParseCsv(ParseCsv { reading, .. })
                | OperatorSpec::FlatMapRegex(FlatMapRegex { reading, .. }),
            )) = &mut step.transformation
            {
                reading.on_error = on_error;
            }
        })
    }

    /// Formats each record as a JSON object.
    #[must_use]
    pub fn format_json(self, name: impl Into<String>) -> Steps {
        self.operator(name, OperatorSpec::FormatJson {})
    }

    /// Formats each record as a CSV line, separated by commas.
    #[must_use]
    pub fn format_csv(self, name: impl Into<String>) -> Steps {
        self.operator(name, OperatorSpec::FormatCsv(FormatCsv { separator: ',' }))
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
        self.operator(name, OperatorSpec::Watermarks(spec))
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
        let aggregations = aggregations.into_iter().collect();
        self.step(
            name,
            Transformation::Aggregate {
                aggregations,
                emit: None,
                windows: None,
            },
        )
    }

    /// Makes the last step, an aggregation, aggregate over windows of event time. No effect on other steps.
    #[must_use]
    pub fn windowed(self, windows: Windows) -> Steps {
        self.last(|step| {
            let aggregation = match step.transformation.take() {
                Some(Transformation::Count { emit }) => {
                    Ok((vec![Aggregation::count("count")], emit))
                }
                Some(Transformation::Sum { column, emit }) => {
                    let sum = Aggregation::of("sum", AggregateFunction::Sum, column);
                    Ok((vec![sum], emit))
                }
                Some(Transformation::Aggregate {
                    aggregations, emit, ..
                }) => Ok((aggregations, emit)),
                other => Err(other),
            };
            step.transformation = match aggregation {
                Ok((aggregations, emit)) => Some(Transformation::Aggregate {
                    aggregations,
                    emit,
                    windows: Some(windows),
                }),
                Err(other) => other,
            };
        })
    }

    /// Writes records as lines to a TCP server.
    #[must_use]
    pub fn socket_sink(self, name: impl Into<String>, address: impl Into<String>) -> Steps {
        let address = address.into();
        self.operator(name, OperatorSpec::SocketSink(SocketSink { address }))
    }
}
