//! Types of operators: checks a specification's fields, and computes the output columns for a given input.
//!
//! Used both for a graph that is being compiled and for one that arrives compiled: a JobGraph is checked by the
//! same rules that created it.

use serde_json::Value;
use tanist_model::spec::line;
use tanist_model::{
    Column, ColumnType, Comparison, NamedExpression, OperatorSpec, Schema, check_keys,
    plain_column, text_column, wrong_type,
};

use crate::expression::{self};

/// Returns what it emits for this input (empty for a source), or all problems of its fields and the input.
pub fn emits(spec: &OperatorSpec, input: &Schema) -> Result<Schema, Vec<String>> {
    let mut problems = spec.field_problems();
    match output(spec, input) {
        Ok(output) if problems.is_empty() => Ok(output),
        Ok(_) => Err(problems),
        Err(wrong) => {
            problems.extend(wrong);
            Err(problems)
        }
    }
}

/// The schema that it emits for this input (empty for a source), or all problems of the input. An error without
/// problems means that the problems of the fields already say it: a feature is missing.
pub fn output(spec: &OperatorSpec, input: &Schema) -> Result<Schema, Vec<String>> {
    match spec {
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
            let problem =
                check_comparison(column, found, *op).or_else(|| check_value(column, found, value));
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
