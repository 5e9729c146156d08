//! Rules for the columns that operators name.

use std::collections::HashSet;

use crate::problem::{MAX_PROBLEMS, instead};
use crate::{ColumnType, Schema};

/// Schema of text lines.
pub(super) fn line() -> Schema {
    Schema::of([("line", ColumnType::String)])
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
