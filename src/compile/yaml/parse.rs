//! Parses YAML into the tree of a job file. The parser converts numbers and booleans, but the tree has texts: their
//! spelling is taken from the file, so that a text such as `1.10` or `007` stays as it was written.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use tanist_model::Position;
use tanist_model::job_file::{Key, Node, Value};

use crate::{JobFile, JobFileError};

/// Parses a job file.
pub(super) fn parse(file: &JobFile) -> Result<Node, JobFileError> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<Spanned<Raw>>(&file.text, options)
        .map(|raw| raw_node(raw, &file.text))
        .map_err(|error| JobFileError::Syntax {
            name: file.name.clone(),
            position: error.location().map(position),
            message: message(&error),
        })
}

/// The parser's message without its position, which is reported in our own form.
fn message(error: &serde_saphyr::Error) -> String {
    if let serde_saphyr::Error::DuplicateMappingKey { key, .. } = error.without_snippet() {
        let key = key.as_deref().unwrap_or_default();
        return format!("the field `{key}` is there twice: write it once");
    }
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    let end = error
        .location()
        .and_then(|location| {
            text.find(&format!(
                " at line {}, column {}",
                location.line(),
                location.column()
            ))
        })
        .unwrap_or(text.len());
    text[..end].to_owned()
}

fn position(location: Location) -> Position {
    Position {
        line: location.line(),
        column: location.column(),
    }
}

/// A node as returned by the parser.
#[derive(Debug)]
enum Raw {
    Null,
    /// The text after the parser has resolved quotes and escapes.
    Text(String),
    /// A plain scalar that looks like a number or a boolean; its text is taken from the file.
    Literal(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

fn raw_node(raw: Spanned<Raw>, text: &str) -> Node {
    let scalar = |text: String| Value::Scalar {
        text,
        written: None,
    };
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Text(text) => scalar(text),
        Raw::Literal(canonical) => scalar(source_text(raw.defined, text).unwrap_or(canonical)),
        Raw::List(items) => {
            Value::List(items.into_iter().map(|item| raw_node(item, text)).collect())
        }
        Raw::Map(fields) => {
            let field = |(key, value): (Spanned<String>, Spanned<Raw>)| {
                let key = Key {
                    position: position(key.referenced),
                    text: key.value,
                };
                (key, raw_node(value, text))
            };
            Value::Map(fields.into_iter().map(field).collect())
        }
    };
    Node {
        position: position(raw.referenced),
        value,
    }
}

/// The text of a literal in the file; `None` if its location is not known or is not that of one word.
fn source_text(location: Location, text: &str) -> Option<String> {
    let span = location.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let length = usize::try_from(span.byte_len()?).ok()?;
    let literal = text.get(start..start.checked_add(length)?)?.trim();
    (!literal.is_empty() && !literal.contains(char::is_whitespace)).then(|| literal.to_owned())
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        Raw::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Literal(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Literal(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Literal(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Literal(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::Literal(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Literal(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(field) = fields.next_entry()? {
            map.push(field);
        }
        Ok(Raw::Map(map))
    }
}
