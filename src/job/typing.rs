//! The types of operators: whether a specification's fields make sense, and what it emits for a given input.
//!
//! Used both for a graph that is being built and for one that arrives compiled: a JobGraph is checked by the same rules
//! it was made by.

use std::collections::HashSet;

use serde_json::Value;

use super::expression::{self, NamedExpression};
use super::operator::{Comparison, OperatorSpec};
use super::problem::{MAX_PROBLEMS, instead};
use super::schema::{Column, ColumnType, Schema};
use super::validate::name_problem;

/// A step computes at most so many columns.
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
            OperatorSpec::Exec(_) => "exec",
            OperatorSpec::ExecSource(_) => "exec-source",
            OperatorSpec::ExecSink(_) => "exec-sink",
        }
    }

    /// The key columns of an aggregation.
    pub fn keys(&self) -> Option<&[String]> {
        match self {
            OperatorSpec::Count { keys, .. } | OperatorSpec::Sum { keys, .. } => Some(keys),
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
            | OperatorSpec::Exec(_)
            | OperatorSpec::ExecSource(_)
            | OperatorSpec::ExecSink(_) => None,
        }
    }

    /// Whether it ends by itself, for a source.
    pub fn is_bounded_source(&self) -> bool {
        match self {
            OperatorSpec::FileSource { .. } => true,
            OperatorSpec::Datagen { count, .. } => count.is_some(),
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
            | OperatorSpec::Exec(_)
            | OperatorSpec::ExecSink(_) => false,
        }
    }

    /// What is wrong with its fields by themselves, whatever its input is.
    pub(super) fn field_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match self {
            OperatorSpec::FileSource { paths } => {
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
            | OperatorSpec::Discard {} => {}
        }
        problems
    }

    /// What it emits for this input (empty for a source), or everything that is wrong with the input. Nothing is wrong and
    /// it is an error all the same where the fields' problems say it: a feature is missing.
    pub(crate) fn output(&self, input: &Schema) -> Result<Schema, Vec<String>> {
        match self {
            OperatorSpec::FileSource { .. } => Ok(Schema::of([("line", ColumnType::String)])),
            OperatorSpec::Datagen { .. } => Ok(Schema::of([
                ("seq", ColumnType::Int64),
                ("key", ColumnType::Int64),
                ("value", ColumnType::Int64),
            ])),
            OperatorSpec::SplitWords { column } => {
                match column_of(input, column).map_err(|problem| vec![problem])? {
                    ColumnType::String => Ok(Schema::of([("word", ColumnType::String)])),
                    other @ (ColumnType::Int64 | ColumnType::Float64 | ColumnType::Bool) => {
                        Err(vec![wrong_type(input, column, other, "string", |found| {
                            found == ColumnType::String
                        })])
                    }
                }
            }
            OperatorSpec::Filter { column, op, value } => {
                let found = column_of(input, column).map_err(|problem| vec![problem])?;
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
                for column in computed(columns, types) {
                    match all.iter_mut().find(|it| it.name == column.name) {
                        Some(replaced) => *replaced = column,
                        None => all.push(column),
                    }
                }
                Ok(Schema::new(all))
            }
            OperatorSpec::Project { columns } => {
                let types = expression::types_of(columns, input)?;
                Ok(Schema::new(computed(columns, types).collect()))
            }
            OperatorSpec::Count { keys, .. } => aggregated(
                input,
                keys,
                Column {
                    name: "count".into(),
                    column_type: ColumnType::Int64,
                },
            ),
            OperatorSpec::Sum { keys, column, .. } => {
                match column_of(input, column).map_err(|problem| vec![problem])? {
                    found @ (ColumnType::Int64 | ColumnType::Float64) => aggregated(
                        input,
                        keys,
                        Column {
                            name: "sum".into(),
                            column_type: found,
                        },
                    ),
                    other @ (ColumnType::String | ColumnType::Bool) => Err(vec![wrong_type(
                        input,
                        column,
                        other,
                        "a number",
                        |found| matches!(found, ColumnType::Int64 | ColumnType::Float64),
                    )]),
                }
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
            | OperatorSpec::Discard {} => Ok(Schema::default()),
        }
    }
}

/// What is wrong with computed columns apart from their expressions.
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

fn computed(columns: &[NamedExpression], types: Vec<ColumnType>) -> impl Iterator<Item = Column> {
    let named = columns.iter().zip(types);
    named.map(|(column, column_type)| Column {
        name: column.name.clone(),
        column_type,
    })
}

/// Whether these can be key columns of records like these.
pub(super) fn check_keys(input: &Schema, keys: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = HashSet::new();
    for key in keys {
        if problems.len() == MAX_PROBLEMS {
            break;
        }
        if !seen.insert(key) {
            problems.push(format!("column `{key}` is given twice: write it once"));
        } else if let Err(problem) = column_of(input, key) {
            problems.push(problem);
        }
    }
    problems
}

/// The value in the column's type, as a comparison needs it: texts are read, so that a job file need not say types.
pub(super) fn coerce(value: &Value, column_type: ColumnType) -> Option<Value> {
    match (column_type, value) {
        (ColumnType::String, Value::String(_)) => Some(value.clone()),
        (ColumnType::String, Value::Number(number)) => Some(Value::String(number.to_string())),
        (ColumnType::String, Value::Bool(truth)) => Some(Value::String(truth.to_string())),
        (ColumnType::Int64, Value::Number(number)) => number.as_i64().map(Value::from),
        (ColumnType::Int64, Value::String(text)) => {
            text.trim().parse::<i64>().ok().map(Value::from)
        }
        (ColumnType::Float64, Value::Number(number)) => number.as_f64().map(Value::from),
        (ColumnType::Float64, Value::String(text)) => text
            .trim()
            .parse::<f64>()
            .ok()
            .and_then(serde_json::Number::from_f64)
            .map(Value::Number),
        (ColumnType::Bool, Value::Bool(_)) => Some(value.clone()),
        (ColumnType::Bool, Value::String(text)) => {
            text.trim().parse::<bool>().ok().map(Value::Bool)
        }
        (_, Value::Null | Value::Array(_) | Value::Object(_))
        | (ColumnType::Int64 | ColumnType::Float64, Value::Bool(_))
        | (ColumnType::Bool, Value::Number(_)) => None,
    }
}

fn column_of(input: &Schema, column: &str) -> Result<ColumnType, String> {
    input.column_type(column).ok_or_else(|| {
        format!(
            "column `{column}` is not in its input ({input}); {}",
            instead(column, input.names())
        )
    })
}

fn wrong_type(
    input: &Schema,
    column: &str,
    found: ColumnType,
    wanted: &str,
    fits: impl Fn(ColumnType) -> bool,
) -> String {
    let fitting: Vec<&str> = input
        .columns()
        .iter()
        .filter(|column| fits(column.column_type))
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
        ColumnType::Int64 | ColumnType::Float64 => (
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
        ColumnType::Int64 => value.is_i64(),
        ColumnType::Float64 => value.is_f64(),
        ColumnType::Bool => value.is_boolean(),
    };
    let wanted = match found {
        ColumnType::String => "a text",
        ColumnType::Int64 => "an integer",
        ColumnType::Float64 => "a number",
        ColumnType::Bool => "true or false",
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
