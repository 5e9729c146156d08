//! A YAML document as a tree whose nodes know their positions.
//!
//! Scalars keep their text and have no type: the type is known only where a field is read, and a parameter may
//! stand for a number.

use crate::Position;

/// A value with its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Where it begins.
    pub position: Position,
    /// The value.
    pub value: Value,
}

/// The value of a [`Node`].
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing, `null` or `~`.
    Null,
    /// A text, a number or a boolean.
    Scalar {
        /// Its text, with parameters substituted.
        text: String,
        /// The text in the file, if parameters were substituted.
        written: Option<String>,
    },
    /// A list.
    List(Vec<Node>),
    /// A map of fields, in the order of the file.
    Map(Vec<(Key, Node)>),
    /// A scalar whose parameters have no value, which has been reported.
    Unreadable,
}

/// The name of a field, with its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// Where it begins.
    pub position: Position,
    /// The name.
    pub text: String,
}

impl Node {
    /// Describes the value for messages.
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Null => "empty".into(),
            Value::Scalar {
                text,
                written: None,
            } => format!("`{text}`"),
            Value::Scalar {
                text,
                written: Some(written),
            } => format!("`{text}` (from `{written}`)"),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a map of fields".into(),
            Value::Unreadable => "unreadable".into(),
        }
    }
}
