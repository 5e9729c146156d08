//! `custom`: operators of an application's own binary, as a graph names them. The code is registered in
//! `operators::custom`. A graph is compiled and checked without it, so the graph itself states what
//! such an operator emits.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Declaration, ExpressionTypes, Role, Section, StateUse, Step, Transformation};
use crate::job_file::{self, Fields, Key, Node, Reader};
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

impl Declaration for CustomSpec {
    fn kind(&self) -> &'static str {
        "custom"
    }

    fn state(&self) -> StateUse {
        StateUse::NotSaved("the operator does not say that it saves its state")
    }

    fn role(&self) -> Role {
        match self.role {
            CustomRole::Source => Role::Source {
                bounded: !self.unbounded,
            },
            CustomRole::Operator => Role::Step,
            CustomRole::Sink => Role::Sink,
        }
    }

    fn problems(&self) -> Vec<String> {
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

    fn output(&self, _input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        self.schema()
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "custom",
    section: Section::Transformations,
    text: "\
Runs an operator that the application's own binary has registered, see
[custom operators](../guides/custom-operators.md). It is a source, an operator or a sink, and emits the columns of
`output`.",
    fields: &[&[
        "`name` | a text | required | the name under which the operator is registered",
        "`role` | `source`, `operator`, `sink` | `operator` | whether it has no input, both, or no output",
        "`output` | a map from names to `string`, `int64`, `float64`, `bool` | none | the columns that it emits; required unless it is a sink",
        "`unbounded` | `true`, `false` | `false` | for a source: whether it never ends by itself",
        "`config` | any value | none | its configuration, as JSON",
    ]],
    example: "\
- datagen: { count: 1000 }
- custom:
    name: enrich
    output: { key: int64, country: string }
    config: { table: countries }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let name = fields.required("name", "my-operator", reader, Reader::text);
    let role = fields.optional_value("role", reader, |reader, field, node| {
        reader.one_of(field, node, &CustomRole::ALL)
    });
    let output = fields.optional("output", reader, columns);
    let unbounded = fields.optional_value("unbounded", reader, Reader::bool);
    let config = fields.optional("config", reader, |_, _, node| Some(json(node)));
    let spec = CustomSpec {
        name: name?,
        role: role.unwrap_or(CustomRole::Operator),
        output: output.unwrap_or_default(),
        unbounded: unbounded.unwrap_or(false),
        config: config.unwrap_or_default(),
    };
    Some(spec.into())
}

/// `{ word: string, n: int64 }`.
fn columns(reader: &mut Reader, field: &str, node: &Node) -> Option<Vec<(String, String)>> {
    let job_file::Value::Map(columns) = &node.value else {
        let message = format!("`{field}` is a map of columns, for example `{{ word: string }}`");
        reader.problem(Some(node.position), message);
        return None;
    };
    let column =
        |(key, node): &(Key, Node)| Some((key.text.clone(), reader.text(&key.text, node)?));
    columns.iter().map(column).collect()
}

/// Converts an operator's configuration to JSON. A scalar that parses as a number or boolean becomes one.
fn json(node: &Node) -> Value {
    match &node.value {
        job_file::Value::Null | job_file::Value::Unreadable => Value::Null,
        job_file::Value::Scalar { text, .. } => match serde_json::from_str(text) {
            Ok(plain @ (Value::Number(_) | Value::Bool(_))) => plain,
            _ => Value::String(text.clone()),
        },
        job_file::Value::List(items) => items.iter().map(json).collect(),
        job_file::Value::Map(fields) => {
            let fields = fields.iter();
            let fields: Map<String, Value> = fields
                .map(|(key, node)| (key.text.clone(), json(node)))
                .collect();
            Value::Object(fields)
        }
    }
}
