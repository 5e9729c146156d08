//! Columns that SQL expressions compute, for the operators that have them: rules, types, and how they are read.

use std::collections::HashSet;

use super::{EventTime, ExpressionTypes};
use crate::job_file::{Fields, Key, Node, Reader, Value};
use crate::problem::MAX_PROBLEMS;
use crate::{Column, NamedExpression, Schema, name_problem};

/// Maximum number of columns that a step computes.
const MAX_COLUMNS: usize = 1_000;

const AS_MAP: &str = "a map such as `{ total: price * amount }`";
const AS_LIST: &str = "a list such as `[word, { name: total, expression: price * amount }]`";

/// The methods of a [`Declaration`](super::Declaration) that `map` and `project` share: those of its `columns`.
macro_rules! declare_computed {
    () => {
        fn state(&self) -> StateUse {
            StateUse::None
        }

        fn problems(&self) -> Vec<String> {
            computed::problems(&self.columns)
        }

        fn has_expressions(&self) -> bool {
            true
        }

        fn event_time(&self, input: Option<&EventTime>) -> Option<EventTime> {
            computed::event_time(&self.columns, input)
        }
    };
}
pub(super) use declare_computed;

/// Returns the problems of computed columns, without those of their expressions.
pub(super) fn problems(columns: &[NamedExpression]) -> Vec<String> {
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
pub(super) fn output(
    columns: &[NamedExpression],
    input: &Schema,
    types: &dyn ExpressionTypes,
) -> Result<Vec<Column>, Vec<String>> {
    let named = columns.iter().zip(types.types_of(columns, input)?);
    let output = named.map(|(column, column_type)| {
        let kept = input.column(&column.name).filter(|_| column.keeps());
        kept.cloned()
            .unwrap_or_else(|| Column::new(&column.name, column_type))
    });
    Ok(output.collect())
}

/// The event time behind a step with these columns: none if one of them replaces its column.
pub(super) fn event_time(
    columns: &[NamedExpression],
    input: Option<&EventTime>,
) -> Option<EventTime> {
    let replaces = |time: &EventTime| {
        let mut of_its_name = columns.iter().filter(|it| it.name == time.column);
        of_its_name.any(|it| !it.keeps() && it.expression.trim() != time.column)
    };
    input.filter(|time| !replaces(time)).cloned()
}

/// Reads `{ name: expression, ... }`.
pub(super) fn map(reader: &mut Reader, field: &str, node: &Node) -> Option<Vec<NamedExpression>> {
    let columns = reader.map(field, node, AS_MAP)?;
    pairs(reader, columns)
}

/// Reads `[column, { name: ..., expression: ... }, ...]`, or a map as above.
pub(super) fn list(reader: &mut Reader, field: &str, node: &Node) -> Option<Vec<NamedExpression>> {
    match &node.value {
        Value::Map(columns) => pairs(reader, columns),
        Value::List(items) => {
            let columns: Vec<_> = items
                .iter()
                .map(|item| element(reader, field, item))
                .collect();
            columns.into_iter().collect()
        }
        Value::Scalar { text, .. } => Some(vec![NamedExpression::column(text)]),
        Value::Unreadable => None,
        Value::Null => {
            reader.wrong(field, node, AS_LIST);
            None
        }
    }
}

fn pairs(reader: &mut Reader, columns: &[(Key, Node)]) -> Option<Vec<NamedExpression>> {
    let columns: Vec<_> = columns
        .iter()
        .map(|(key, node)| {
            Some(NamedExpression::new(
                &key.text,
                reader.text(&key.text, node)?,
            ))
        })
        .collect();
    columns.into_iter().collect()
}

fn element(reader: &mut Reader, field: &str, item: &Node) -> Option<NamedExpression> {
    match &item.value {
        Value::Scalar { text, .. } => Some(NamedExpression::column(text)),
        Value::Map(_) => {
            let mut fields = Fields::of(item, reader);
            let name = fields.required("name", "total", reader, Reader::text);
            let expression = fields.required("expression", "price * amount", reader, Reader::text);
            fields.finish("a column", reader);
            Some(NamedExpression::new(name?, expression?))
        }
        Value::Unreadable => None,
        Value::Null | Value::List(_) => {
            reader.wrong(field, item, AS_LIST);
            None
        }
    }
}
