//! `filter` by a comparison with a constant, without SQL. With `where` its step is another operator, see
//! [`Where`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Declaration, ExpressionTypes, Input, Section, StateUse, Step, Transformation, Where,
    plain_column, value_in_type,
};
use crate::job_file::{Fields, Reader};
use crate::{ColumnType, Schema};

/// Passes on records for which the comparison is true.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// The compared column.
    pub column: String,
    /// The comparison.
    pub op: Comparison,
    /// The constant. It is completed to the column's type, so a text can be a number.
    pub value: Value,
}

/// Comparison operator of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// The text contains the value.
    Contains,
    /// The text starts with the value.
    StartsWith,
}

crate::named! {
    Comparison {
        Eq = "eq",
        Ne = "ne",
        Lt = "lt",
        Le = "le",
        Gt = "gt",
        Ge = "ge",
        Contains = "contains",
        StartsWith = "starts-with",
    }
}

impl Declaration for Filter {
    fn kind(&self) -> &'static str {
        "filter"
    }

    fn state(&self) -> StateUse {
        StateUse::None
    }

    fn complete(&mut self, input: &Input<'_>) -> Result<(), String> {
        let column_type = input.schema.column_type(&self.column);
        if let Some(value) = column_type.and_then(|wanted| value_in_type(&self.value, wanted)) {
            self.value = value;
        }
        Ok(())
    }

    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        let column = self.column.as_str();
        let found = plain_column(input, column)?;
        let problem = check_comparison(column, found, self.op)
            .or_else(|| check_value(column, found, &self.value));
        problem.map_or_else(|| Ok(input.clone()), |problem| Err(vec![problem]))
    }
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

pub(super) const STEPS: &[Step] = &[Step {
    name: "filter",
    section: Section::Transformations,
    text: "\
Passes on the records for which a condition in SQL is true, or, without SQL, one comparison. Emits the columns that it
reads.",
    fields: &[&[
        "`where` | an [expression](expressions.md) | none | the condition, such as `amount > 10 and level = 'ERROR'`; it replaces the other fields",
        "`column` | a column | required without `where` | the column that is compared",
        "`op` | `eq`, `ne`, `lt`, `le`, `gt`, `ge`, `contains`, `starts-with` | required without `where` | the comparison; the last two only for strings, for booleans only the first two",
        "`value` | a value | required without `where` | the value to compare with; it is parsed in the column's type",
    ]],
    checkpoints: "It has no state.",
    example: "\
- datagen: { count: 1000 }
- filter: { column: value, op: ge, value: 500 }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    if let Some(condition) = fields.optional("where", reader, Reader::text) {
        return Some(Where { condition }.into());
    }
    let column = fields.required("column", "word", reader, Reader::text);
    let comparisons = Comparison::ALL.map(|comparison| (comparison.name(), comparison));
    let op = fields.required("op", "eq", reader, |reader, field, node| {
        reader.one_of(field, node, &comparisons)
    });
    let value = fields.required("value", "\"the\"", reader, Reader::text);
    let filter = Filter {
        column: column?,
        op: op?,
        value: Value::String(value?),
    };
    Some(filter.into())
}
