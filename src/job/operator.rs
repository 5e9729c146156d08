//! What an operator does: its specification as it stands in the job graph (JSON, tagged by `type`). What it runs as is
//! the data flow's; how a job file spells it is `yaml`'s.

use serde::{Deserialize, Serialize};

use super::custom::{CustomRole, CustomSpec};
use super::exec::ExecSpec;
use super::expression::NamedExpression;
use super::spec::{
    Aggregate, FlatMapRegex, FollowFiles, FormatCsv, ParseCsv, ParseJson, SocketSink, SocketSource,
    Watermarks,
};

/// The specification of one operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OperatorSpec {
    /// Reads text files line by line. Emits `line: string`. Bounded.
    FileSource {
        /// Paths or globs. The JobMaster sorts the files that match, cuts them into byte ranges and shares these out among the subtasks.
        paths: Vec<String>,
    },
    /// Makes records. Emits `seq: int64, key: int64, value: int64`. Bounded if `count` is given.
    Datagen {
        /// Records a second over all subtasks; absent: as fast as taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<u64>,
        /// Records over all subtasks; absent: unbounded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
        /// The same seed, the same records.
        seed: u64,
        /// `key` is drawn from `0..keys`.
        keys: u64,
    },
    /// Cuts a text column into words at anything but ASCII letters and digits. Emits `word: string`.
    SplitWords {
        /// The column to cut.
        column: String,
    },
    /// Passes records on for which the comparison holds.
    Filter {
        /// The column that is compared.
        column: String,
        /// How.
        op: Comparison,
        /// With what, in the column's type.
        value: serde_json::Value,
    },
    /// Passes records on for which a SQL expression is true. Called `filter` in job files, too.
    Where {
        /// The expression.
        condition: String,
    },
    /// Computes columns by SQL expressions and keeps the others.
    Map {
        /// They take the place of the column of their name, or stand behind all others, in this order.
        columns: Vec<NamedExpression>,
    },
    /// Computes columns by SQL expressions. Emits only these.
    Project {
        /// In this order.
        columns: Vec<NamedExpression>,
    },
    /// Counts records by key. Emits the key columns and `count: int64`.
    Count {
        /// The key columns; the edge before is partitioned by them.
        keys: Vec<String>,
        /// When results are emitted.
        emit: Emit,
    },
    /// Adds a numeric column up by key. Emits the key columns and `sum` in the column's type.
    Sum {
        /// The key columns; the edge before is partitioned by them.
        keys: Vec<String>,
        /// The column that is added up.
        column: String,
        /// When results are emitted.
        emit: Emit,
    },
    /// Writes each record as a line to the TaskManager's standard output.
    Print {
        /// Put before each line.
        #[serde(default)]
        prefix: String,
    },
    /// Writes records as lines (columns separated by a space) into part files of a directory. The parts become visible
    /// when the whole job has finished.
    FileSink {
        /// The directory: reachable from TaskManagers and JobManagers under this path.
        path: String,
    },
    /// Counts and drops records.
    Discard {},
    /// Reads text files and goes on when they grow.
    FollowFiles(FollowFiles),
    /// Reads the TaskManager's standard input line by line. Emits `line: string`. Bounded; one subtask.
    StdinSource {},
    /// Reads lines from a TCP server.
    SocketSource(SocketSource),
    /// Reads a JSON object out of a text column.
    ParseJson(ParseJson),
    /// Reads a CSV record out of a text column.
    ParseCsv(ParseCsv),
    /// Writes a record as a JSON object. Emits `line: string`.
    FormatJson {},
    /// Writes a record as a CSV line. Emits `line: string`.
    FormatCsv(FormatCsv),
    /// Makes a record of each match of a regular expression.
    FlatMapRegex(FlatMapRegex),
    /// Makes watermarks out of a column.
    Watermarks(Watermarks),
    /// Aggregates records by key, over the whole input or over windows.
    Aggregate(Aggregate),
    /// Writes records as lines to a TCP server.
    SocketSink(SocketSink),
    /// An operator that the binary of an application brings.
    Custom(CustomSpec),
    /// Runs a program that gets records and gives records.
    Exec(Box<ExecSpec>),
    /// Runs a program that gives records.
    ExecSource(Box<ExecSpec>),
    /// Runs a program that gets records; what it writes goes to the log.
    ExecSink(Box<ExecSpec>),
}

/// How a filter compares.
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
    /// All of them.
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
    /// Each key's result once, at the end of the input: what bounded jobs get.
    Final,
    /// The new result after each record: what unbounded jobs get.
    Updates,
}

impl OperatorSpec {
    /// As it stands in a JobGraph. Fields stand in the order in which they are declared: vertex ids depend on it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and JSON values always serialize")
    }

    /// From a JobGraph.
    pub fn from_json(json: &str) -> Result<OperatorSpec, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// The feature of the program that it needs, if this program was built without it.
    pub fn missing_feature(&self) -> Option<&'static str> {
        (self.has_expressions() && !cfg!(feature = "sql")).then_some(super::expression::NEEDS_SQL)
    }

    /// Whether it is made of SQL expressions.
    pub fn has_expressions(&self) -> bool {
        matches!(
            self,
            OperatorSpec::Where { .. } | OperatorSpec::Map { .. } | OperatorSpec::Project { .. }
        )
    }

    /// Whether it has a half at the JobMaster.
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

    /// Whether it can only run once: there is one standard input, and one connection to a server that serves lines.
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
