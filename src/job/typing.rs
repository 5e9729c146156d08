//! Types of operators: checks a specification's fields, and computes the output columns for a given input.
//!
//! Used both for a graph that is being compiled and for one that arrives compiled: a JobGraph is checked by the
//! same rules that created it.

use std::collections::HashSet;

use serde_json::Value;

use super::expression::{self, NamedExpression};
use super::operator::{Comparison, Emit, OperatorSpec};
use super::problem::{MAX_PROBLEMS, instead};
use super::schema::{Column, ColumnType, Schema};
use super::spec::{Aggregate, Reading, Trigger, line};
use super::validate::name_problem;

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
    pub(super) fn field_problems(&self) -> Vec<String> {
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
    pub(super) fn submission_problems(&self) -> Vec<String> {
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

    /// Returns what it emits for this input (empty for a source), or all problems of its fields and the input.
    pub fn emits(&self, input: &Schema) -> Result<Schema, Vec<String>> {
        let mut problems = self.field_problems();
        match self.output(input) {
            Ok(output) if problems.is_empty() => Ok(output),
            Ok(_) => Err(problems),
            Err(wrong) => {
                problems.extend(wrong);
                Err(problems)
            }
        }
    }

    /// Whether it emits nothing before the end of its input.
    pub(super) fn waits_for_the_end(&self) -> bool {
        match self {
            OperatorSpec::Count { emit, .. } | OperatorSpec::Sum { emit, .. } => {
                *emit == Emit::Final
            }
            OperatorSpec::Aggregate(spec) => spec.trigger == Trigger::Final,
            _ => false,
        }
    }

    /// The schema that it emits for this input (empty for a source), or all problems of the input. An error without
    /// problems means that the problems of the fields already say it: a feature is missing.
    pub(crate) fn output(&self, input: &Schema) -> Result<Schema, Vec<String>> {
        match self {
            OperatorSpec::FileSource { .. }
            | OperatorSpec::FollowFiles(_)
            | OperatorSpec::StdinSource {}
            | OperatorSpec::SocketSource(_)
            | OperatorSpec::FormatJson {}
            | OperatorSpec::FormatCsv(_) => Ok(line()),
            OperatorSpec::ParseJson(spec) => spec.output(input),
            OperatorSpec::ParseCsv(spec) => spec.output(input),
            OperatorSpec::FlatMapRegex(spec) => spec.output(input),
            OperatorSpec::Watermarks(spec) => spec.output(input),
            OperatorSpec::Aggregate(spec) => spec.output(input),
            OperatorSpec::Custom(custom) => custom.schema(),
            OperatorSpec::Datagen { .. } => Ok(Schema::of([
                ("seq", ColumnType::Int64),
                ("key", ColumnType::Int64),
                ("value", ColumnType::Int64),
            ])),
            OperatorSpec::SplitWords { column } => {
                text_column(input, column)?;
                Ok(Schema::of([("word", ColumnType::String)]))
            }
            OperatorSpec::Filter { column, op, value } => {
                let found = plain_column(input, column)?;
                let problem = check_comparison(column, found, *op)
                    .or_else(|| check_value(column, found, value));
                problem.map_or_else(|| Ok(input.clone()), |problem| Err(vec![problem]))
            }
            OperatorSpec::Where { condition } => {
                expression::check_condition(condition, input).map(|()| input.clone())
            }
            OperatorSpec::Map { columns } => {
                let types = expression::types_of(columns, input)?;
                let mut all = input.columns().to_vec();
                for column in computed(columns, types, input) {
                    match all.iter_mut().find(|it| it.name == column.name) {
                        Some(replaced) => *replaced = column,
                        None => all.push(column),
                    }
                }
                Ok(Schema::new(all))
            }
            OperatorSpec::Project { columns } => {
                let types = expression::types_of(columns, input)?;
                Ok(Schema::new(computed(columns, types, input).collect()))
            }
            OperatorSpec::Count { keys, .. } => {
                aggregated(input, keys, Column::new("count", ColumnType::Int64))
            }
            OperatorSpec::Sum { keys, column, .. } => {
                let found = plain_column(input, column)?;
                if !found.is_number() {
                    let is_number = ColumnType::is_number;
                    let problem = wrong_type(input, column, found, "a number", is_number);
                    return Err(vec![problem]);
                }
                aggregated(input, keys, Column::new("sum", found))
            }
            OperatorSpec::Exec(exec) => match exec.input_problems(input) {
                problems if problems.is_empty() => Ok(exec.schema()),
                problems => Err(problems),
            },
            OperatorSpec::ExecSource(exec) => Ok(exec.schema()),
            OperatorSpec::ExecSink(exec) => match exec.input_problems(input) {
                problems if problems.is_empty() => Ok(Schema::default()),
                problems => Err(problems),
            },
            OperatorSpec::Print { .. }
            | OperatorSpec::FileSink { .. }
            | OperatorSpec::Discard {}
            | OperatorSpec::SocketSink(_) => Ok(Schema::default()),
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

/// Returns the columns of expressions: a computed column is not nullable, a kept one stays as it is.
fn computed(
    columns: &[NamedExpression],
    types: Vec<ColumnType>,
    input: &Schema,
) -> impl Iterator<Item = Column> {
    let named = columns.iter().zip(types);
    named.map(|(column, column_type)| {
        let kept = input.column(&column.name).filter(|_| column.keeps());
        kept.cloned()
            .unwrap_or_else(|| Column::new(&column.name, column_type))
    })
}

/// Returns the problems of these key columns for this input.
pub(super) fn check_keys(input: &Schema, keys: &[String]) -> Vec<String> {
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
pub(super) fn path_problems(paths: &[String]) -> Vec<String> {
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
pub(super) fn plain_column(input: &Schema, column: &str) -> Result<ColumnType, Vec<String>> {
    let found = column_of(input, column).map_err(|problem| vec![problem])?;
    if input.column(column).is_some_and(|column| column.nullable) {
        return Err(vec![format!(
            "column `{column}` is {found}?, but a value is needed in each record; declare a default for it where it is read, or fill it before"
        )]);
    }
    Ok(found)
}

/// Checks that a column is a text and not nullable.
pub(super) fn text_column(input: &Schema, column: &str) -> Result<(), Vec<String>> {
    let is_text = |found| found == ColumnType::String;
    match plain_column(input, column)? {
        found if is_text(found) => Ok(()),
        found => Err(vec![wrong_type(input, column, found, "string", is_text)]),
    }
}

pub(super) fn wrong_type(
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

fn check_comparison(column: &str, found: ColumnType, op: Comparison) -> Option<String> {
    let (allowed, names) = match found {
        ColumnType::String => return None,
        ColumnType::Int64 | ColumnType::Float64 | ColumnType::Timestamp => (
            !matches!(op, Comparison::Contains | Comparison::StartsWith),
            "eq, ne, lt, le, gt, ge",
        ),
        ColumnType::Bool => (matches!(op, Comparison::Eq | Comparison::Ne), "eq, ne"),
    };
    (!allowed).then(|| {
        format!(
            "`{}` does not compare column `{column}`, which is {found}; use one of: {names}",
            op.name()
        )
    })
}

fn check_value(column: &str, found: ColumnType, value: &Value) -> Option<String> {
    let in_type = match found {
        ColumnType::String => value.is_string(),
        ColumnType::Int64 | ColumnType::Timestamp => value.is_i64(),
        ColumnType::Float64 => value.is_f64(),
        ColumnType::Bool => value.is_boolean(),
    };
    let wanted = match found {
        ColumnType::String => "a text",
        ColumnType::Int64 => "an integer",
        ColumnType::Float64 => "a number",
        ColumnType::Bool => "true or false",
        ColumnType::Timestamp => "a time such as 2026-01-01T00:00:00Z",
    };
    (!in_type)
        .then(|| format!("`value` is {value}, but column `{column}` is {found}: write {wanted}"))
}

fn aggregated(input: &Schema, keys: &[String], result: Column) -> Result<Schema, Vec<String>> {
    let mut problems = check_keys(input, keys);
    if keys.contains(&result.name) {
        problems.push(format!(
            "its result is a column `{0}`, but a key column is called `{0}` too: key by other columns",
            result.name
        ));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut columns: Vec<Column> = keys
        .iter()
        .filter_map(|key| {
            input
                .columns()
                .iter()
                .find(|column| column.name == *key)
                .cloned()
        })
        .collect();
    columns.push(result);
    Ok(Schema::new(columns))
}
