//! `custom`: operators of an application's own binary, as a graph names them. The code is registered in
//! `operators::custom`. A graph is compiled and checked without it, so the graph itself states what
//! such an operator emits.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Declaration, ExpressionTypes, FileSink, Redistribution, Role, Section, StateUse, Step,
    Transformation,
};
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

/// How the positions and messages of a custom operator are divided if its parallelism changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CustomRedistribution {
    /// What a subtask saved goes to one subtask, in turns. So a subtask may get that of several, or nothing.
    List,
    /// Each subtask gets what all have saved, and takes its share of it.
    Union,
}

impl CustomRedistribution {
    /// All of them, by their names in a job file.
    pub const ALL: [(&str, CustomRedistribution); 2] = [
        ("list", CustomRedistribution::List),
        ("union", CustomRedistribution::Union),
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
    /// Whether its `snapshot` saves its state, or it has none. Otherwise no checkpoint of its region is taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub saves_state: bool,
    /// How its positions and messages are divided if its parallelism changes; `None`: they are not, and it keeps its
    /// parallelism. State that says so itself (by key, operator lists, broadcast state) needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redistribution: Option<CustomRedistribution>,
    /// The kinds of its output that is committed with checkpoints. The application registers a committer for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commits: Vec<String>,
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
            saves_state: false,
            redistribution: None,
            commits: Vec::new(),
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

    /// States that its `snapshot` saves its state, or that it has none.
    #[must_use]
    pub fn saving_state(mut self) -> CustomSpec {
        self.saves_state = true;
        self
    }

    /// Sets how its positions and messages are divided if its parallelism changes.
    #[must_use]
    pub fn redistributed(mut self, redistribution: CustomRedistribution) -> CustomSpec {
        self.redistribution = Some(redistribution);
        self
    }

    /// Adds a kind of its output that is committed with checkpoints.
    #[must_use]
    pub fn committing(mut self, kind: impl Into<String>) -> CustomSpec {
        self.commits.push(kind.into());
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
        match self.saves_state {
            true => StateUse::Saved,
            false => {
                StateUse::NotSaved("the custom operator does not state that it saves its state")
            }
        }
    }

    fn redistribution(&self) -> Redistribution {
        match self.redistribution {
            None => Redistribution::SameParallelism,
            Some(CustomRedistribution::List) => Redistribution::List,
            Some(CustomRedistribution::Union) => Redistribution::Union,
        }
    }

    fn commits(&self) -> Vec<&str> {
        self.commits.iter().map(String::as_str).collect()
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
        if !self.commits.is_empty() && self.role != CustomRole::Sink {
            problems.push("only a sink can have `commits`".into());
        }
        if !self.commits.is_empty() && !self.saves_state {
            problems.push(
                "what it `commits` becomes visible with checkpoints: write `saves-state: true`"
                    .into(),
            );
        }
        for kind in &self.commits {
            if kind.is_empty() || kind == FileSink::OUTPUT {
                problems.push(format!(
                    "it can't commit output of kind `{kind}`: write another name"
                ));
            }
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
        "`saves-state` | `true`, `false` | `false` | whether its `snapshot` saves its state, or it has none",
        "`redistribution` | `list`, `union` | none | how its positions and messages are divided if its parallelism changes; without it they are not, and it keeps its parallelism",
        "`commits` | a kind of output, or a list of them | none | for a sink: the kinds of output that it has committed with checkpoints",
        "`config` | any value | none | its configuration, as JSON",
    ]],
    checkpoints: "The region of the operator is checkpointed only with `saves-state: true`.",
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
    let saves_state = fields.optional_value("saves-state", reader, Reader::bool);
    let redistribution = fields.optional_value("redistribution", reader, |reader, field, node| {
        reader.one_of(field, node, &CustomRedistribution::ALL)
    });
    let commits = fields.optional("commits", reader, Reader::texts);
    let config = fields.optional("config", reader, |_, _, node| Some(json(node)));
    let spec = CustomSpec {
        name: name?,
        role: role.unwrap_or(CustomRole::Operator),
        output: output.unwrap_or_default(),
        unbounded: unbounded.unwrap_or(false),
        saves_state: saves_state.unwrap_or(false),
        redistribution,
        commits: commits.unwrap_or_default(),
        config: config.unwrap_or_default(),
    };
    Some(spec.into())
}

/// Reads columns such as `{ word: string, n: int64 }`. Their types are checked with the other problems.
fn columns(reader: &mut Reader, field: &str, node: &Node) -> Option<Vec<(String, String)>> {
    let columns = reader.map(field, node, "a map of columns, such as `{ word: string }`")?;
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
