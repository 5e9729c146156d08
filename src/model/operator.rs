//! The specification of an operator in the job graph (JSON, tagged by `type`). `operators` runs it; `yaml` reads
//! it from a job file.

use serde::{Deserialize, Serialize};

use crate::ExecSpec;
use crate::NamedExpression;
use crate::spec::{
    Aggregate, FlatMapRegex, FollowFiles, FormatCsv, ParseCsv, ParseJson, SocketSink, SocketSource,
    Watermarks,
};
use crate::{CustomRole, CustomSpec};

/// The specification of one operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OperatorSpec {
    /// Reads text files line by line. Emits `line: string`. Bounded.
    FileSource {
        /// Paths or globs. The JobMaster sorts the matching files, cuts them into byte ranges and gives these to the
        /// subtasks.
        paths: Vec<String>,
    },
    /// Generates records. Emits `seq: int64, key: int64, value: int64`. Bounded if `count` is given.
    Datagen {
        /// Records per second over all subtasks; absent: at full speed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<u64>,
        /// Records over all subtasks; absent: unbounded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
        /// The same seed gives the same records.
        seed: u64,
        /// `key` is drawn from `0..keys`.
        keys: u64,
    },
    /// Splits a text column into words at anything but ASCII letters and digits. Emits `word: string`.
    SplitWords {
        /// The column to split.
        column: String,
    },
    /// Passes on records for which the comparison is true.
    Filter {
        /// The compared column.
        column: String,
        /// The comparison.
        op: Comparison,
        /// The constant, in the column's type.
        value: serde_json::Value,
    },
    /// Passes on records for which a SQL expression is true. Also called `filter` in job files.
    Where {
        /// The expression.
        condition: String,
    },
    /// Computes columns by SQL expressions and keeps the others.
    Map {
        /// Each replaces the column of its name, or is appended after all others, in this order.
        columns: Vec<NamedExpression>,
    },
    /// Computes columns by SQL expressions. Emits only these.
    Project {
        /// The emitted columns, in this order.
        columns: Vec<NamedExpression>,
    },
    /// Counts records by key. Emits the key columns and `count: int64`.
    Count {
        /// The key columns; the edge before is partitioned by them.
        keys: Vec<String>,
        /// When results are emitted.
        emit: Emit,
    },
    /// Sums a numeric column by key. Emits the key columns and `sum` in the column's type.
    Sum {
        /// The key columns; the edge before is partitioned by them.
        keys: Vec<String>,
        /// The column to sum.
        column: String,
        /// When results are emitted.
        emit: Emit,
    },
    /// Writes each record as a line to the TaskManager's standard output.
    Print {
        /// Written before each line.
        #[serde(default)]
        prefix: String,
    },
    /// Writes records as lines (columns separated by a space) into part files of a directory. The parts become visible
    /// when the whole job has finished.
    FileSink {
        /// The directory. TaskManagers and JobManagers must reach it under this path.
        path: String,
    },
    /// Counts and drops records.
    Discard {},
    /// Reads text files and continues when they grow.
    FollowFiles(FollowFiles),
    /// Reads the TaskManager's standard input line by line. Emits `line: string`. Bounded; one subtask.
    StdinSource {},
    /// Reads lines from a TCP server.
    SocketSource(SocketSource),
    /// Parses a JSON object in a text column.
    ParseJson(ParseJson),
    /// Parses a CSV record in a text column.
    ParseCsv(ParseCsv),
    /// Formats a record as a JSON object. Emits `line: string`.
    FormatJson {},
    /// Formats a record as a CSV line. Emits `line: string`.
    FormatCsv(FormatCsv),
    /// Emits a record for each match of a regular expression.
    FlatMapRegex(FlatMapRegex),
    /// Generates watermarks from a column.
    Watermarks(Watermarks),
    /// Aggregates records by key, over the whole input or over windows.
    Aggregate(Aggregate),
    /// Writes records as lines to a TCP server.
    SocketSink(SocketSink),
    /// A custom operator of the application's binary.
    Custom(CustomSpec),
    /// Runs a program that reads and writes records.
    Exec(Box<ExecSpec>),
    /// Runs a program that writes records.
    ExecSource(Box<ExecSpec>),
    /// Runs a program that reads records; its output goes to the log.
    ExecSink(Box<ExecSpec>),
}

/// Comparison operator of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// The text contains the value.
    Contains,
    /// The text starts with the value.
    StartsWith,
}

impl Comparison {
    /// All comparisons.
    pub const ALL: [Comparison; 8] = [
        Comparison::Eq,
        Comparison::Ne,
        Comparison::Lt,
        Comparison::Le,
        Comparison::Gt,
        Comparison::Ge,
        Comparison::Contains,
        Comparison::StartsWith,
    ];

    /// Its name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Comparison::Eq => "eq",
            Comparison::Ne => "ne",
            Comparison::Lt => "lt",
            Comparison::Le => "le",
            Comparison::Gt => "gt",
            Comparison::Ge => "ge",
            Comparison::Contains => "contains",
            Comparison::StartsWith => "starts-with",
        }
    }
}

/// When an aggregation emits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Emit {
    /// Each key's result once, at the end of the input: the default for bounded jobs.
    Final,
    /// The new result after each record: the default for unbounded jobs.
    Updates,
}

impl OperatorSpec {
    /// Encodes it for a JobGraph. Fields are written in the order of their declaration: vertex ids depend on
    /// it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and JSON values always serialize")
    }

    /// Decodes it from a JobGraph.
    pub fn from_json(json: &str) -> Result<OperatorSpec, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// Returns the feature that it needs, if this program was built without it.
    pub fn missing_feature(&self) -> Option<&'static str> {
        (self.has_expressions() && !cfg!(feature = "sql")).then_some(crate::NEEDS_SQL)
    }

    /// Whether it has SQL expressions.
    pub fn has_expressions(&self) -> bool {
        matches!(
            self,
            OperatorSpec::Where { .. } | OperatorSpec::Map { .. } | OperatorSpec::Project { .. }
        )
    }

    /// Whether it has a coordinator at the JobMaster.
    pub fn is_coordinated(&self) -> bool {
        matches!(self, OperatorSpec::FileSource { .. })
    }

    /// Whether it has no input.
    pub fn is_source(&self) -> bool {
        match self {
            OperatorSpec::Custom(custom) => custom.role == CustomRole::Source,
            _ => matches!(
                self,
                OperatorSpec::FileSource { .. }
                    | OperatorSpec::Datagen { .. }
                    | OperatorSpec::FollowFiles(_)
                    | OperatorSpec::StdinSource {}
                    | OperatorSpec::SocketSource(_)
                    | OperatorSpec::ExecSource(_)
            ),
        }
    }

    /// Whether it can only have one subtask: there is one standard input, and one connection to a server that
    /// serves lines.
    pub fn is_single(&self) -> bool {
        matches!(
            self,
            OperatorSpec::StdinSource {} | OperatorSpec::SocketSource(_)
        )
    }

    /// Whether it has no output.
    pub fn is_sink(&self) -> bool {
        match self {
            OperatorSpec::Custom(custom) => custom.role == CustomRole::Sink,
            _ => matches!(
                self,
                OperatorSpec::Print { .. }
                    | OperatorSpec::FileSink { .. }
                    | OperatorSpec::Discard {}
                    | OperatorSpec::SocketSink(_)
                    | OperatorSpec::ExecSink(_)
            ),
        }
    }
}
