//! Reads a `custom` step: the name of the operator in the application's binary, its output columns and its
//! configuration.

use serde_json::{Map, Value as Json};
use tanist_model::{CustomRole, CustomSpec};

use super::node::{Node, Value};
use super::reader::{Fields, Reader};

pub(super) fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<CustomSpec> {
    let name = fields.required("name", "my-operator", reader, Reader::text);
    let role = fields.optional_value("role", reader, |reader, field, node| {
        reader.one_of(field, node, &CustomRole::ALL)
    });
    let output = fields.optional("output", reader, columns);
    let unbounded = fields.optional_value("unbounded", reader, Reader::bool);
    let config = fields.optional("config", reader, |_, _, node| Some(json(node)));
    Some(CustomSpec {
        name: name?,
        role: role.unwrap_or(CustomRole::Operator),
        output: output.unwrap_or_default(),
        unbounded: unbounded.unwrap_or(false),
        config: config.unwrap_or_default(),
    })
}

/// `{ word: string, n: int64 }`.
fn columns(reader: &mut Reader, field: &str, node: &Node) -> Option<Vec<(String, String)>> {
    let Value::Map(columns) = &node.value else {
        let message = format!("`{field}` is a map of columns, for example `{{ word: string }}`");
        reader.problem(Some(node.position), message);
        return None;
    };
    let column = |(key, node): &(super::node::Key, Node)| {
        Some((key.text.clone(), reader.text(&key.text, node)?))
    };
    columns.iter().map(column).collect()
}

/// Converts an operator's configuration to JSON. A scalar that parses as a number or boolean becomes one.
fn json(node: &Node) -> Json {
    match &node.value {
        Value::Null | Value::Unreadable => Json::Null,
        Value::Scalar { text, .. } => match serde_json::from_str(text) {
            Ok(plain @ (Json::Number(_) | Json::Bool(_))) => plain,
            _ => Json::String(text.clone()),
        },
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(fields) => {
            let fields = fields.iter();
            let fields: Map<String, Json> = fields
                .map(|(key, node)| (key.text.clone(), json(node)))
                .collect();
            Json::Object(fields)
        }
    }
}
