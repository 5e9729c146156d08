//! The specification of a program, for `exec`, `exec-source` and `exec-sink`: command, record formats, limits.
//!
//! It is persisted as JSON in job graphs, and vertex ids are hashes of that JSON: another name or order of fields gives
//! the vertices of a job other ids. Here: its rules. The step is in `operators/exec.rs`, what runs the program in
//! `tanist-operators`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Column, ColumnType, Schema};

/// Maximum time that a program gets to end by itself, in milliseconds.
const LONGEST_GRACE_MS: u64 = 60_000;

/// Prefix of variables that only Tanist sets.
const RESERVED: &str = "TANIST_";

/// A program that a step runs, once per subtask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Additional environment variables, besides those that every program gets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Format of records in its standard input. Not used for a source.
    #[serde(default)]
    pub input: ExecFormat,
    /// Format of records in its standard output. Not used for a sink.
    #[serde(default)]
    pub output: ExecFormat,
    /// The columns of its output; empty for a sink.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<ExecColumn>,
    /// Whether a source never ends by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unbounded: bool,
    /// Its resource limits.
    #[serde(default)]
    pub limits: ExecLimits,
    /// Milliseconds from the request to end until it is killed; less if its task's timeout is shorter.
    pub grace_ms: u64,
}

/// Format of a program's records in a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecFormat {
    /// One line per record: its columns, separated by a space.
    #[default]
    Lines,
    /// The length in 4 bytes, big-endian, then the only column.
    Frames,
    /// One JSON object per line.
    JsonLines,
    /// A frame whose content is a JSON object.
    JsonFrames,
}

crate::named! {
    ExecFormat {
        Lines = "lines",
        Frames = "frames",
        JsonLines = "json-lines",
        JsonFrames = "json-frames",
    }
}

impl ExecFormat {
    /// Whether records are JSON objects, which can have any columns.
    pub fn is_json(self) -> bool {
        matches!(self, ExecFormat::JsonLines | ExecFormat::JsonFrames)
    }
}

/// A column of a program's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub column_type: ColumnType,
}

/// Limits of a program. An absent limit is that of the TaskManager itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExecLimits {
    /// Bytes. With control groups: memory of all processes together. Without: address space of each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Seconds of processor time of each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<u64>,
    /// Maximum number of open files of each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Thousandths of a core, for all processes together; only with control groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Maximum number of processes and threads. With control groups: of the program. Without: of the user, over
    /// all programs; the user must not be root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
}

impl ExecSpec {
    /// Default time that a program has to end by itself, in milliseconds.
    pub const DEFAULT_GRACE_MS: u64 = 5_000;

    /// Creates a program with these arguments: lines as input, lines as output in the column `line`.
    pub fn new<A: Into<String>>(command: impl IntoIterator<Item = A>) -> ExecSpec {
        ExecSpec {
            command: command.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            input: ExecFormat::Lines,
            output: ExecFormat::Lines,
            columns: vec![ExecColumn {
                name: "line".to_owned(),
                column_type: ColumnType::String,
            }],
            unbounded: false,
            limits: ExecLimits::default(),
            grace_ms: ExecSpec::DEFAULT_GRACE_MS,
        }
    }

    /// Returns the problems of its fields, without its input. `emits`: it is not a sink.
    pub(crate) fn problems(&self, emits: bool) -> Vec<String> {
        let mut problems = Vec::new();
        if self.command.first().is_none_or(String::is_empty) {
            problems.push("`command` is empty: write the program and its arguments".into());
        }
        if self.command.iter().any(|part| part.contains('\0')) {
            problems.push("`command` has a zero byte, which no program can be given".into());
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                problems.push(format!("`env` has the impossible variable {name:?}"));
            } else if name.starts_with(RESERVED) {
                problems.push(format!(
                    "`env` sets `{name}`: names that begin with `{RESERVED}` are set by the TaskManager"
                ));
            }
        }
        if self.grace_ms > LONGEST_GRACE_MS {
            problems.push("`grace` is too long: write at most `1 min`".into());
        }
        let limits = &self.limits;
        for (name, limit) in [
            ("memory", limits.memory),
            ("cpu-time", limits.cpu_time),
            ("open-files", limits.open_files),
            ("processes", limits.processes),
            ("cpu", limits.cpu_millis),
        ] {
            if limit == Some(0) {
                problems.push(format!(
                    "`limits` has `{name}: 0`, with which no program runs: leave it out for no limit"
                ));
            }
        }
        if emits {
            self.column_problems(&mut problems);
        }
        problems
    }

    fn column_problems(&self, problems: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        for column in &self.columns {
            if column.name.is_empty() {
                problems.push("`columns` has a column without a name".into());
            } else if !seen.insert(&column.name) {
                problems.push(format!("`columns` has `{}` twice", column.name));
            }
            if column.column_type == ColumnType::Timestamp {
                problems.push(format!(
                    "`columns` has `{}` of type timestamp, which programs can't give: write `string` or `int64`, and make a timestamp of it in a step behind it",
                    column.name
                ));
            }
        }
        let format = self.output.name();
        if self.output.is_json() {
            if self.columns.is_empty() {
                problems.push(format!(
                    "records in {format} have columns: write for example `columns: {{ word: string, count: int64 }}`"
                ));
            }
        } else if !matches!(&self.columns[..], [one] if one.column_type == ColumnType::String) {
            problems.push(format!(
                "a record in {format} is one text: write `columns: {{ NAME: string }}`, or another output format"
            ));
        }
    }

    /// Checks that its input can be written in its format.
    pub(crate) fn check_input(&self, input: &Schema) -> Result<(), Vec<String>> {
        let is_one_text =
            || matches!(input.columns(), [one] if one.column_type == ColumnType::String);
        if self.input == ExecFormat::Frames && !is_one_text() {
            return Err(vec![format!(
                "a record in frames is one text, but its input has ({input}): write `input-format: json-frames`, or put a step before it that makes one column"
            )]);
        }
        Ok(())
    }

    /// The columns that it emits.
    pub fn schema(&self) -> Schema {
        let columns = self.columns.iter();
        let columns = columns.map(|column| Column::new(&column.name, column.column_type));
        Schema::new(columns.collect())
    }
}
