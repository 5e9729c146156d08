//! SQL expressions over the columns of one record, as used by `map`, `project` and `filter: { where: ... }`.
//!
//! ```text
//! text ── syntax ──> parsed, only what an expression may have ── sql ──> Typed: coerced, with the type of its column
//! ```
//!
//! Here expressions are checked and typed, but not evaluated, not even constants: a JobManager checks input of
//! untrusted senders, and must not pay for `repeat('x', 1000000000)`. `operators` creates physical expressions
//! of the typed ones. Without the feature `sql` the steps are known, and refused by name.

#[cfg(feature = "sql")]
mod functions;
#[cfg(feature = "sql")]
mod sql;
#[cfg(feature = "sql")]
mod syntax;
#[cfg(all(test, feature = "sql"))]
mod tests;

#[cfg(feature = "sql")]
pub use sql::{Typed, column, condition, explain, on_deep_stack};

use tanist_model::{ColumnType, NamedExpression, Schema};

/// Checks a filter's condition; the error lists its problems. Without the feature the error is empty, since the
/// missing feature is reported elsewhere.
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

/// Returns the types of computed columns, or all their problems. See [`check_condition`].
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
                Err(_) if problems.len() == tanist_model::problem::MAX_PROBLEMS => break,
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
