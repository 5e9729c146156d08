//! Reads columns that are computed by expressions: as a map from name to expression, or as a list.

use tanist_model::NamedExpression;

use super::node::{Key, Node, Value};
use super::reader::{Fields, Reader};

const AS_MAP: &str = "a map such as `{ total: price * amount }`";
const AS_LIST: &str = "a list such as `[word, { name: total, expression: price * amount }]`";

/// `{ name: expression, ... }`.
pub(super) fn map(reader: &mut Reader, field: &str, node: &Node) -> Option<Vec<NamedExpression>> {
    match &node.value {
        Value::Map(columns) => pairs(reader, columns),
        Value::Unreadable => None,
        Value::Null | Value::Scalar { .. } | Value::List(_) => {
            reader.wrong(field, node, AS_MAP);
            None
        }
    }
}

/// `[column, { name: ..., expression: ... }, ...]`, or a map as above.
pub(super) fn list(reader: &mut Reader, field: &str, node: &Node) -> Option<Vec<NamedExpression>> {
    match &node.value {
        Value::Map(columns) => pairs(reader, columns),
        Value::List(items) => {
            let columns: Vec<_> = items
                .iter()
                .map(|item| element(reader, field, item))
                .collect();
            columns.into_iter().collect()
        }
        Value::Scalar { text, .. } => Some(vec![NamedExpression::column(text)]),
        Value::Unreadable => None,
        Value::Null => {
            reader.wrong(field, node, AS_LIST);
            None
        }
    }
}

fn pairs(reader: &mut Reader, columns: &[(Key, Node)]) -> Option<Vec<NamedExpression>> {
    let columns: Vec<_> = columns
        .iter()
        .map(|(key, node)| {
            Some(NamedExpression::new(
                &key.text,
                reader.text(&key.text, node)?,
            ))
        })
        .collect();
    columns.into_iter().collect()
}

fn element(reader: &mut Reader, field: &str, item: &Node) -> Option<NamedExpression> {
    match &item.value {
        Value::Scalar { text, .. } => Some(NamedExpression::column(text)),
        Value::Map(_) => {
            let mut fields = Fields::of(item, reader);
            let name = fields.required("name", "total", reader, Reader::text);
            let expression = fields.required("expression", "price * amount", reader, Reader::text);
            fields.finish("a column", reader);
            Some(NamedExpression::new(name?, expression?))
        }
        Value::Unreadable => None,
        Value::Null | Value::List(_) => {
            reader.wrong(field, item, AS_LIST);
            None
        }
    }
}
