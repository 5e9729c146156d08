//! Fields of operators: what a specification may say independently of its input, and the rules for the columns that
//! steps name. Types of expressions are not here: they need SQL.

use std::collections::HashSet;

use crate::name_problem;

use crate::NamedExpression;
use crate::problem::{MAX_PROBLEMS, instead};
use crate::spec::{Aggregate, Reading, Trigger};
use crate::{ColumnType, Schema};
use crate::{Emit, OperatorSpec};

/// Maximum number of columns that a step computes.
const MAX_COLUMNS: usize = 1_000;

impl OperatorSpec {
    /// Its name in a job file.
    pub fn kind(&self) -> &'static str {
        match self {
            OperatorSpec::FileSource { .. } => "file-source",
            OperatorSpec::Datagen { .. } => "datagen",
            OperatorSpec::SplitWords { .. } => "split-words",
            OperatorSpec::Filter { .. } | OperatorSpec::Where { .. } => "filter",
            OperatorSpec::Map { .. } => "map",
            OperatorSpec::Project { .. } => "project",
            OperatorSpec::Count { .. } => "count",
            OperatorSpec::Sum { .. } => "sum",
            OperatorSpec::Print { .. } => "print",
            OperatorSpec::FileSink { .. } => "file-sink",
            OperatorSpec::Discard {} => "discard",
            OperatorSpec::FollowFiles(_) => "file-source",
            OperatorSpec::StdinSource {} => "stdin-source",
            OperatorSpec::SocketSource(_) => "socket-source",
            OperatorSpec::ParseJson(_) => "parse-json",
            OperatorSpec::ParseCsv(_) => "parse-csv",
            OperatorSpec::FormatJson {} => "format-json",
            OperatorSpec::FormatCsv(_) => "format-csv",
            OperatorSpec::FlatMapRegex(_) => "flat-map-regex",
            OperatorSpec::Watermarks(_) => "watermarks",
            OperatorSpec::Aggregate(spec) => Aggregate::kind(&spec.aggregations),
            OperatorSpec::SocketSink(_) => "socket-sink",
            OperatorSpec::Custom(_) => "custom",
            OperatorSpec::Exec(_) => "exec",
            OperatorSpec::ExecSource(_) => "exec-source",
            OperatorSpec::ExecSink(_) => "exec-sink",
        }
    }

    /// The key columns of an aggregation.
    pub fn keys(&self) -> Option<&[String]> {
        match self {
            OperatorSpec::Count { keys, .. } | OperatorSpec::Sum { keys, .. } => Some(keys),
            OperatorSpec::Aggregate(spec) => Some(&spec.keys),
            OperatorSpec::FileSource { .. }
            | OperatorSpec::Datagen { .. }
            | OperatorSpec::SplitWords { .. }
            | OperatorSpec::Filter { .. }
            | OperatorSpec::Where { .. }
            | OperatorSpec::Map { .. }
            | OperatorSpec::Project { .. }
            | OperatorSpec::Print { .. }
            | OperatorSpec::FileSink { .. }
            | OperatorSpec::Discard {}
            | OperatorSpec::FollowFiles(_)
            | OperatorSpec::StdinSource {}
            | OperatorSpec::SocketSource(_)
            | OperatorSpec::ParseJson(_)
            | OperatorSpec::ParseCsv(_)
            | OperatorSpec::FormatJson {}
            | OperatorSpec::FormatCsv(_)
            | OperatorSpec::FlatMapRegex(_)
            | OperatorSpec::Watermarks(_)
            | OperatorSpec::SocketSink(_)
            | OperatorSpec::Custom(_)
            | OperatorSpec::Exec(_)
            | OperatorSpec::ExecSource(_)
            | OperatorSpec::ExecSink(_) => None,
        }
    }

    /// Whether a source ends by itself.
    pub fn is_bounded_source(&self) -> bool {
        match self {
            OperatorSpec::FileSource { .. } | OperatorSpec::StdinSource {} => true,
            OperatorSpec::SocketSource(spec) => !spec.reconnect,
            OperatorSpec::Datagen { count, .. } => count.is_some(),
            OperatorSpec::Custom(custom) => !custom.unbounded,
            OperatorSpec::ExecSource(exec) => !exec.unbounded,
            OperatorSpec::SplitWords { .. }
            | OperatorSpec::Filter { .. }
            | OperatorSpec::Where { .. }
            | OperatorSpec::Map { .. }
            | OperatorSpec::Project { .. }
            | OperatorSpec::Count { .. }
            | OperatorSpec::Sum { .. }
            | OperatorSpec::Print { .. }
            | OperatorSpec::FileSink { .. }
            | OperatorSpec::Discard {}
            | OperatorSpec::FollowFiles(_)
            | OperatorSpec::ParseJson(_)
            | OperatorSpec::ParseCsv(_)
            | OperatorSpec::FormatJson {}
            | OperatorSpec::FormatCsv(_)
            | OperatorSpec::FlatMapRegex(_)
            | OperatorSpec::Watermarks(_)
            | OperatorSpec::Aggregate(_)
            | OperatorSpec::SocketSink(_)
            | OperatorSpec::Exec(_)
            | OperatorSpec::ExecSink(_) => false,
        }
    }

    /// Returns the problems of its fields, independently of its input.
    pub fn field_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match self {
            OperatorSpec::FileSource { paths, .. } => {
                problems.extend(path_problems(paths));
            }
            OperatorSpec::Datagen {
                rate, count, keys, ..
            } => {
                let limit = i64::MAX.unsigned_abs();
                if *rate == Some(0) {
                    problems.push(
                        "`rate` is 0: write at least 1 record a second, or leave it out for as fast as possible"
                            .into(),
                    );
                }
                if *keys == 0 || *keys > limit {
                    problems.push(format!(
                        "`keys` is {keys}: write a number from 1 to {limit}"
                    ));
                }
                if count.is_some_and(|count| count > limit) {
                    problems.push(format!("`count` is too large: write at most {limit}"));
                }
            }
            OperatorSpec::FileSink { path } => {
                if path.is_empty() {
                    problems.push("`path` is empty: write the directory for the output".into());
                } else if path.contains('\0') {
                    problems.push(format!("{path:?} is no path"));
                }
            }
            OperatorSpec::Count { keys, .. } | OperatorSpec::Sum { keys, .. } => {
                if keys.is_empty() {
                    problems.push("it has no key columns: put a key-by before it".into());
                }
            }
            OperatorSpec::FollowFiles(spec) => problems.extend(spec.problems()),
            OperatorSpec::SocketSource(spec) => problems.extend(spec.problems()),
            OperatorSpec::ParseJson(spec) => problems.extend(spec.problems()),
            OperatorSpec::ParseCsv(spec) => problems.extend(spec.problems()),
            OperatorSpec::FormatCsv(spec) => problems.extend(spec.problems()),
            OperatorSpec::FlatMapRegex(spec) => problems.extend(spec.problems()),
            OperatorSpec::Watermarks(spec) => problems.extend(spec.problems()),
            OperatorSpec::Aggregate(spec) => problems.extend(spec.problems()),
            OperatorSpec::SocketSink(spec) => problems.extend(spec.problems()),
            OperatorSpec::Custom(custom) => problems.extend(custom.problems()),
            OperatorSpec::Map { columns } | OperatorSpec::Project { columns } => {
                problems.extend(self.missing_feature().map(String::from));
                problems.extend(column_problems(columns));
            }
            OperatorSpec::Where { .. } => {
                problems.extend(self.missing_feature().map(String::from));
            }
            OperatorSpec::Exec(exec) | OperatorSpec::ExecSource(exec) => {
                problems.extend(exec.problems(true));
            }
            OperatorSpec::ExecSink(exec) => problems.extend(exec.problems(false)),
            OperatorSpec::SplitWords { .. }
            | OperatorSpec::Filter { .. }
            | OperatorSpec::Print { .. }
            | OperatorSpec::Discard {}
            | OperatorSpec::StdinSource {}
            | OperatorSpec::FormatJson {} => {}
        }
        problems
    }

    /// Returns the problems of its fields at submission. Some of these are not checked for a graph that was
    /// accepted before, which continues.
    pub fn submission_problems(&self) -> Vec<String> {
        let mut problems = self.field_problems();
        let reading = match self {
            OperatorSpec::ParseJson(spec) => Some(&spec.reading),
            OperatorSpec::ParseCsv(spec) => Some(&spec.reading),
            OperatorSpec::FlatMapRegex(spec) => Some(&spec.reading),
            _ => None,
        };
        problems.extend(reading.and_then(Reading::format_problem));
        problems
    }

    /// Whether it emits nothing before the end of its input.
    pub fn waits_for_the_end(&self) -> bool {
        match self {
            OperatorSpec::Count { emit, .. } | OperatorSpec::Sum { emit, .. } => {
                *emit == Emit::Final
            }
            OperatorSpec::Aggregate(spec) => spec.trigger == Trigger::Final,
            _ => false,
        }
    }
}

/// Returns the problems of computed columns, without those of their expressions.
fn column_problems(columns: &[NamedExpression]) -> Vec<String> {
    if columns.is_empty() {
        return vec!["`columns` is empty: write at least one column".into()];
    }
    if columns.len() > MAX_COLUMNS {
        let number = columns.len();
        return vec![format!(
            "it has {number} columns: write at most {MAX_COLUMNS}"
        )];
    }
    let mut seen = HashSet::new();
    let problems = columns.iter().filter_map(|NamedExpression { name, .. }| {
        if let Some(problem) = name_problem(name) {
            Some(format!("column `{name}`: its name {problem}"))
        } else if !seen.insert(name) {
            Some(format!("column `{name}` is given twice: write it once"))
        } else {
            None
        }
    });
    problems.take(MAX_PROBLEMS).collect()
}

/// Returns the problems of these key columns for this input.
pub fn check_keys(input: &Schema, keys: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = HashSet::new();
    for key in keys {
        if problems.len() == MAX_PROBLEMS {
            break;
        }
        if !seen.insert(key) {
            problems.push(format!("column `{key}` is given twice: write it once"));
        } else if let Err(wrong) = plain_column(input, key) {
            problems.extend(wrong);
        }
    }
    problems
}

/// Returns the problems of paths and globs to read.
pub(crate) fn path_problems(paths: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    if paths.is_empty() {
        problems.push("`paths` is empty: write at least one path or glob".into());
    }
    for path in paths {
        if problems.len() == MAX_PROBLEMS {
            break;
        }
        if path.is_empty() {
            problems.push("`paths` has an empty path: write a path or a glob".into());
        } else if path.contains('\0') {
            problems.push(format!("{path:?} is no path"));
        } else if let Err(error) = glob::Pattern::new(path) {
            problems.push(format!("`{path}` is no valid glob: {}", error.msg));
        }
    }
    problems
}

fn column_of(input: &Schema, column: &str) -> Result<ColumnType, String> {
    input.column_type(column).ok_or_else(|| {
        format!(
            "column `{column}` is not in its input ({input}); {}",
            instead(column, input.names())
        )
    })
}

/// Returns the type of a column that must not be nullable.
pub fn plain_column(input: &Schema, column: &str) -> Result<ColumnType, Vec<String>> {
    let found = column_of(input, column).map_err(|problem| vec![problem])?;
    if input.column(column).is_some_and(|column| column.nullable) {
        return Err(vec![format!(
            "column `{column}` is {found}?, but a value is needed in each record; declare a default for it where it is read, or fill it before"
        )]);
    }
    Ok(found)
}

/// Checks that a column is a text and not nullable.
pub fn text_column(input: &Schema, column: &str) -> Result<(), Vec<String>> {
    let is_text = |found| found == ColumnType::String;
    match plain_column(input, column)? {
        found if is_text(found) => Ok(()),
        found => Err(vec![wrong_type(input, column, found, "string", is_text)]),
    }
}

/// The problem of a column whose type does not fit, with the columns that would.
pub fn wrong_type(
    input: &Schema,
    column: &str,
    found: ColumnType,
    wanted: &str,
    fits: impl Fn(ColumnType) -> bool,
) -> String {
    let fitting: Vec<&str> = input
        .columns()
        .iter()
        .filter(|column| fits(column.column_type) && !column.nullable)
        .map(|column| column.name.as_str())
        .collect();
    let instead = if fitting.is_empty() {
        format!("its input ({input}) has no such column")
    } else {
        format!("use one of: {}", fitting.join(", "))
    };
    format!("column `{column}` is {found}, but {wanted} is needed; {instead}")
}
