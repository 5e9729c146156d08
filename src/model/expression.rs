//! A computed column as a job names it: a name and the text of a SQL expression, which is checked and typed by the
//! compiler.

use serde::{Deserialize, Serialize};

/// Error for a step with expressions in a program without the feature.
pub const NEEDS_SQL: &str =
    "it needs the feature `sql`, which this program was built without: use one that has it";

/// A column and the expression that computes it.
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

    /// The input's column of this name, unchanged.
    pub fn column(name: impl Into<String>) -> NamedExpression {
        let name = name.into();
        // Quoted, since it may be an SQL keyword.
        let expression = format!("\"{}\"", name.replace('"', "\"\""));
        NamedExpression { name, expression }
    }

    /// Whether it is the input's column of its name, unchanged: created by [`NamedExpression::column`], or by a
    /// column without an expression in `project`.
    pub fn keeps(&self) -> bool {
        *self == NamedExpression::column(&*self.name)
    }
}

impl<N: Into<String>, E: Into<String>> From<(N, E)> for NamedExpression {
    fn from((name, expression): (N, E)) -> NamedExpression {
        NamedExpression::new(name, expression)
    }
}
