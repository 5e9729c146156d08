//! One result of an aggregation: a function of a column over a key's records.

use serde::{Deserialize, Serialize};

use super::{plain_column, wrong_type};
use crate::job_file::{Key, Node, Reader, Value};
use crate::problem::instead;
use crate::{Column, ColumnType, Schema};

/// One result column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aggregation {
    /// The name of the result column.
    pub name: String,
    /// The aggregate function.
    pub function: AggregateFunction,
    /// The column that it aggregates; `None` for a count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
}

/// A function over a key's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AggregateFunction {
    /// The number of records.
    Count,
    /// The sum of a numeric column, in its type.
    Sum,
    /// The minimum: a number, a timestamp or a text.
    Min,
    /// The maximum: a number, a timestamp or a text.
    Max,
    /// The mean of a numeric column, as float64.
    Average,
}

crate::named! {
    AggregateFunction {
        Count = "count",
        Sum = "sum",
        Min = "min",
        Max = "max",
        Average = "average",
    }
}

impl AggregateFunction {
    /// The type of its result; `None` if it can't be applied to a column of this type.
    fn result(self, of: ColumnType) -> Option<ColumnType> {
        match self {
            AggregateFunction::Count => Some(ColumnType::Int64),
            AggregateFunction::Sum => of.is_number().then_some(of),
            AggregateFunction::Average => of.is_number().then_some(ColumnType::Float64),
            AggregateFunction::Min | AggregateFunction::Max => {
                (of != ColumnType::Bool).then_some(of)
            }
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            AggregateFunction::Count => "any type",
            AggregateFunction::Sum | AggregateFunction::Average => "a number",
            AggregateFunction::Min | AggregateFunction::Max => "a number, a timestamp or a string",
        }
    }
}

impl Aggregation {
    /// A count, as a column of this name.
    pub fn count(name: impl Into<String>) -> Aggregation {
        Aggregation {
            name: name.into(),
            function: AggregateFunction::Count,
            column: None,
        }
    }

    /// A function of a column, as a column of this name.
    pub fn of(
        name: impl Into<String>,
        function: AggregateFunction,
        column: impl Into<String>,
    ) -> Aggregation {
        Aggregation {
            name: name.into(),
            function,
            column: Some(column.into()),
        }
    }

    pub(super) fn result(&self, input: &Schema) -> Result<Column, Vec<String>> {
        let column_type = match &self.column {
            None => ColumnType::Int64,
            Some(column) => {
                let found = plain_column(input, column)?;
                let function = self.function;
                function.result(found).ok_or_else(|| {
                    vec![wrong_type(
                        input,
                        column,
                        found,
                        function.wanted(),
                        |found| function.result(found).is_some(),
                    )]
                })?
            }
        };
        Ok(Column::new(&self.name, column_type))
    }
}

/// Reads `count: {}`, `n: count`, `n: {count: {}}` or `total: {sum: amount}`.
pub(super) fn read(key: &Key, node: &Node, reader: &mut Reader) -> Option<Aggregation> {
    let name = key.text.clone();
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Map(fields) => fields.is_empty(),
        Value::Scalar { .. } | Value::List(_) | Value::Unreadable => false,
    };
    match &node.value {
        Value::Unreadable => return None,
        Value::Scalar { text, .. } if text == "count" => return Some(Aggregation::count(name)),
        value if is_empty(value) && name == "count" => return Some(Aggregation::count(name)),
        Value::Map(fields) => {
            if let [(function, argument)] = fields.as_slice() {
                let functions = AggregateFunction::ALL.map(AggregateFunction::name);
                let found = AggregateFunction::ALL
                    .into_iter()
                    .find(|it| it.name() == function.text);
                return match found {
                    None => {
                        let instead = instead(&function.text, functions);
                        let message =
                            format!("there is no function `{}`; {instead}", function.text);
                        reader.problem(Some(function.position), message);
                        None
                    }
                    Some(AggregateFunction::Count) => {
                        if is_empty(&argument.value) {
                            return Some(Aggregation::count(name));
                        }
                        let message = "a count has no column: write `count: {}`";
                        reader.problem(Some(argument.position), message);
                        None
                    }
                    Some(function) => reader
                        .text(function.name(), argument)
                        .map(|column| Aggregation::of(name, function, column)),
                };
            }
        }
        Value::Null | Value::Scalar { .. } | Value::List(_) => {}
    }
    let message = format!(
        "`{name}` is {}: write what it is computed by, such as `{name}: {{ sum: amount }}` or `{name}: count`",
        node.describe()
    );
    reader.problem(Some(node.position), message);
    None
}
