//! What an `exec` step runs and how records are written for it: the specification as it stands in the job graph. It is
//! checked here and run by the data flow; how a job file spells it is `yaml`'s.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::schema::{Column, ColumnType, Schema};

/// The longest time that a program gets to end by itself.
const LONGEST_GRACE_MS: u64 = 60_000;

/// Variables whose names begin so are set by us alone.
const RESERVED: &str = "TANIST_";

/// A program that a step runs, once a subtask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables of its environment, beside those that every program gets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// How records stand in its standard input. Says nothing of a source.
    #[serde(default)]
    pub input: ExecFormat,
    /// How records stand in its standard output. Says nothing of a sink.
    #[serde(default)]
    pub output: ExecFormat,
    /// The columns of its output; none for a sink.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<ExecColumn>,
    /// A source that never ends by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unbounded: bool,
    /// What it may use of the host.
    #[serde(default)]
    pub limits: ExecLimits,
    /// How long after the request to end it is killed, in milliseconds; sooner where its task has less time to end.
    pub grace_ms: u64,
}

/// How records are written into a program or read out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecFormat {
    /// A line a record: its columns, separated by a space.
    #[default]
    Lines,
    /// The length in bytes, as a number of 4 bytes with the highest first, then the one column.
    Frames,
    /// A JSON object a line.
    JsonLines,
    /// A frame whose content is a JSON object.
    JsonFrames,
}

impl ExecFormat {
    /// All of them.
    pub const ALL: [ExecFormat; 4] = [
        ExecFormat::Lines,
        ExecFormat::Frames,
        ExecFormat::JsonLines,
        ExecFormat::JsonFrames,
    ];

    /// Its name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            ExecFormat::Lines => "lines",
            ExecFormat::Frames => "frames",
            ExecFormat::JsonLines => "json-lines",
            ExecFormat::JsonFrames => "json-frames",
        }
    }

    /// Whether records are JSON objects, which have any columns.
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

/// What a program may use; absent: as much as the TaskManager itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExecLimits {
    /// Bytes: of memory of all processes together where there are control groups, else of address space of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Seconds of processor time of each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<u64>,
    /// Files that each process has open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Thousandths of a core, of all processes together; where there are control groups only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Processes and threads: of the program where there are control groups, else of the user, all programs together, who must not be root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
}

impl ExecSpec {
    /// How long a program has to end by itself, unless the step says otherwise.
    pub const DEFAULT_GRACE_MS: u64 = 5_000;

    /// A program with these arguments: lines in, lines out as the column `line`.
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

    /// What is wrong with its fields by themselves; `emits`: it is no sink.
    pub(super) fn problems(&self, emits: bool) -> Vec<String> {
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

    /// What is wrong with its input.
    pub(super) fn input_problems(&self, input: &Schema) -> Vec<String> {
        let is_one_text =
            || matches!(input.columns(), [one] if one.column_type == ColumnType::String);
        if self.input == ExecFormat::Frames && !is_one_text() {
            vec![format!(
                "a record in frames is one text, but its input has ({input}): write `input-format: json-frames`, or put a step before it that makes one column"
            )]
        } else {
            Vec::new()
        }
    }

    /// What it emits.
    pub fn schema(&self) -> Schema {
        let columns = self.columns.iter();
        let columns = columns.map(|column| Column::new(&column.name, column.column_type));
        Schema::new(columns.collect())
    }
}
