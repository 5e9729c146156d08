//! Operators of an application's own binary, as a graph names them. The code is registered in
//! `operators::custom`. A graph is compiled and checked without it, so the graph itself states what
//! such an operator emits.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Column, ColumnType, Schema};

/// Role of an operator in the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CustomRole {
    /// It has no input.
    Source,
    /// It has input and output.
    Operator,
    /// It has no output.
    Sink,
}

impl CustomRole {
    /// All roles, by their names in a job file.
    pub const ALL: [(&str, CustomRole); 3] = [
        ("source", CustomRole::Source),
        ("operator", CustomRole::Operator),
        ("sink", CustomRole::Sink),
    ];
}

/// A custom operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CustomSpec {
    /// The name under which it is registered.
    pub name: String,
    /// Its role in the job.
    pub role: CustomRole,
    /// The columns that it emits, each with the name of its type; empty for a sink.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<(String, String)>,
    /// Whether a source never ends by itself.
    #[serde(default)]
    pub unbounded: bool,
    /// Its configuration.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub config: Value,
}

impl CustomSpec {
    /// An operator with an input and an output.
    pub fn operator<const N: usize>(name: &str, output: [(&str, ColumnType); N]) -> CustomSpec {
        CustomSpec::of(name, CustomRole::Operator, &output)
    }

    /// A source that ends by itself.
    pub fn source<const N: usize>(name: &str, output: [(&str, ColumnType); N]) -> CustomSpec {
        CustomSpec::of(name, CustomRole::Source, &output)
    }

    /// A sink.
    pub fn sink(name: &str) -> CustomSpec {
        CustomSpec::of(name, CustomRole::Sink, &[])
    }

    fn of(name: &str, role: CustomRole, output: &[(&str, ColumnType)]) -> CustomSpec {
        let column = |(name, column_type): &(&str, ColumnType)| {
            ((*name).to_owned(), column_type.to_string())
        };
        CustomSpec {
            name: name.to_owned(),
            role,
            output: output.iter().map(column).collect(),
            unbounded: false,
            config: Value::Null,
        }
    }

    /// Sets its configuration.
    #[must_use]
    pub fn with_config(mut self, config: impl Into<Value>) -> CustomSpec {
        self.config = config.into();
        self
    }

    /// Makes the source unbounded: it never ends by itself.
    #[must_use]
    pub fn never_ending(mut self) -> CustomSpec {
        self.unbounded = true;
        self
    }

    /// Returns the problems of its fields, without its input.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.name.is_empty() {
            problems.push("`name` is empty: write under which the operator is registered".into());
        }
        match self.role {
            CustomRole::Sink if !self.output.is_empty() => {
                problems.push("a sink has no `output`".into());
            }
            CustomRole::Source | CustomRole::Operator if self.output.is_empty() => {
                problems.push("`output` is missing: write the columns that it emits".into());
            }
            CustomRole::Source | CustomRole::Operator | CustomRole::Sink => {}
        }
        if self.unbounded && self.role != CustomRole::Source {
            problems.push("only a source can be `unbounded`".into());
        }
        if let Err(schema) = self.schema() {
            problems.extend(schema);
        }
        problems
    }

    /// The columns that it emits.
    pub fn schema(&self) -> Result<Schema, Vec<String>> {
        let mut columns: Vec<Column> = Vec::with_capacity(self.output.len());
        let mut problems = Vec::new();
        for (name, type_name) in &self.output {
            let known = [
                ColumnType::String,
                ColumnType::Int64,
                ColumnType::Float64,
                ColumnType::Bool,
            ];
            let found = known.into_iter().find(|it| it.to_string() == *type_name);
            if columns.iter().any(|column| column.name == *name) {
                problems.push(format!("column `{name}` is there twice: write it once"));
            }
            match found {
                Some(column_type) => columns.push(Column::new(name.clone(), column_type)),
                None => problems.push(format!(
                    "column `{name}` can't be {type_name}: use one of string, int64, float64, bool"
                )),
            }
        }
        if problems.is_empty() {
            Ok(Schema::new(columns))
        } else {
            Err(problems)
        }
    }
}
