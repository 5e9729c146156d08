//! SQL expressions over the columns of one record: what `map`, `project` and `filter: { where: ... }` are made of.
//!
//! ```text
//! text ── syntax ──> parsed, only what an expression may have ── sql ──> Typed: coerced, with the type of its column
//! ```
//!
//! Here expressions are checked and typed; nothing is evaluated, not even a constant: a JobManager checks what strangers
//! send, and `repeat('x', 1000000000)` is theirs to pay for. The data flow makes physical expressions of what is typed
//! here. Without the feature `sql` the steps are known, and refused by name.

#[cfg(feature = "sql")]
mod functions;
#[cfg(feature = "sql")]
mod sql;
#[cfg(feature = "sql")]
mod syntax;
#[cfg(all(test, feature = "sql"))]
mod tests;

use serde::{Deserialize, Serialize};

#[cfg(feature = "sql")]
pub use sql::{Typed, column, condition, explain, on_deep_stack};

use super::schema::{ColumnType, Schema};

/// What is said of a step with expressions by a program without the feature.
pub const NEEDS_SQL: &str =
    "it needs the feature `sql`, which this program was built without: use one that has it";

/// A column and what it is computed by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedExpression {
    /// The column's name.
    pub name: String,
    /// A SQL expression over the columns of the input.
    pub expression: String,
}

impl NamedExpression {
    /// The column `name`, computed by `expression`.
    pub fn new(name: impl Into<String>, expression: impl Into<String>) -> NamedExpression {
        NamedExpression {
            name: name.into(),
            expression: expression.into(),
        }
    }

    /// The input's column of this name as it is.
    pub fn column(name: impl Into<String>) -> NamedExpression {
        let name = name.into();
        // Quoted, as it may be a word of SQL.
        let expression = format!("\"{}\"", name.replace('"', "\"\""));
        NamedExpression { name, expression }
    }

    /// Whether it is the input's column of its name as it is: what [`NamedExpression::column`] makes, and a column that `project` names
    /// without an expression.
    pub fn keeps(&self) -> bool {
        *self == NamedExpression::column(&*self.name)
    }
}

impl<N: Into<String>, E: Into<String>> From<(N, E)> for NamedExpression {
    fn from((name, expression): (N, E)) -> NamedExpression {
        NamedExpression::new(name, expression)
    }
}

/// What is wrong with the condition of a filter. Nothing where it can't be looked at, which is said elsewhere.
#[cfg(feature = "sql")]
pub(super) fn check_condition(text: &str, input: &Schema) -> Result<(), Vec<String>> {
    let typed = sql::on_deep_stack(|| sql::condition(text, input).map(drop));
    typed
        .and_then(|typed| typed)
        .map_err(|problem| vec![format!("`where`: {problem}")])
}

#[cfg(not(feature = "sql"))]
pub(super) fn check_condition(_text: &str, _input: &Schema) -> Result<(), Vec<String>> {
    Err(Vec::new())
}

/// The types of computed columns, or everything that is wrong with them. See [`check_condition`].
#[cfg(feature = "sql")]
pub(super) fn types_of(
    columns: &[NamedExpression],
    input: &Schema,
) -> Result<Vec<ColumnType>, Vec<String>> {
    let type_all = || {
        let (mut types, mut problems) = (Vec::new(), Vec::new());
        for NamedExpression { name, expression } in columns {
            match sql::column(expression, input) {
                Ok(typed) => types.push(typed.column_type),
                Err(_) if problems.len() == super::problem::MAX_PROBLEMS => break,
                Err(problem) => problems.push(format!("column `{name}`: {problem}")),
            }
        }
        if problems.is_empty() {
            Ok(types)
        } else {
            Err(problems)
        }
    };
    sql::on_deep_stack(type_all).unwrap_or_else(|problem| Err(vec![problem]))
}

#[cfg(not(feature = "sql"))]
pub(super) fn types_of(
    _columns: &[NamedExpression],
    _input: &Schema,
) -> Result<Vec<ColumnType>, Vec<String>> {
    Err(Vec::new())
}
