//! Finds the values of declared columns in the text of a JSON object, without building the object.
//!
//! A text column gets the JSON text of the value unchanged: a number with all its digits, arrays and objects in
//! their order. Only JSON strings are unescaped.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::reading::Row;
use super::values::Value;

/// The requested columns, by name.
pub(super) type Places = HashMap<String, Place>;

/// A requested column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Index of the column.
    pub(super) column: usize,
    /// Whether its value is taken as JSON text.
    pub(super) is_text: bool,
}

/// Finds the values of the columns. Other names in the object are skipped; of a duplicate name the last value
/// counts.
pub(super) fn find<'t>(text: &'t str, places: &Places) -> Result<Row<'t>, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let row = Object { places }.deserialize(&mut deserializer);
    row.and_then(|row| deserializer.end().map(|()| row))
        .map_err(|error| format!("no JSON object: {error}"))
}

struct Object<'p> {
    places: &'p Places,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Row<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Row<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Row<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row<'de>, A::Error> {
        let mut row = vec![None; self.places.len()];
        while let Some(place) = map.next_key_seed(Name(self.places))? {
            match place {
                Some(Place {
                    column,
                    is_text: true,
                }) => row[column] = Some(text_of(map.next_value()?).map_err(A::Error::custom)?),
                Some(Place { column, .. }) => row[column] = Some(map.next_value_seed(Single)?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(row)
    }
}

/// Returns a value as a text; null stays null.
fn text_of(value: &RawValue) -> Result<Value<'_>, serde_json::Error> {
    let text = value.get();
    let quoted = text.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    Ok(match quoted {
        Some(plain) if !plain.contains('\\') => Value::Text(Cow::Borrowed(plain)),
        Some(_) => Value::Text(Cow::Owned(serde_json::from_str(text)?)),
        None if text == "null" => Value::Null,
        None => Value::Text(Cow::Borrowed(text)),
    })
}

/// Finds the column of a name.
struct Name<'p>(&'p Places);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Option<Place>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Place>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Option<Place>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Option<Place>, E> {
        Ok(self.0.get(name).copied())
    }
}

/// Reads one value of a column that is not a text; an array or object, which it can't hold, is returned as JSON
/// text.
struct Single;

impl<'de> DeserializeSeed<'de> for Single {
    type Value = Value<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Single {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value<'de>, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value<'de>, E> {
        Ok(Value::Int(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value<'de>, E> {
        // A number beyond int64 stays exact as a text, and can still become a float64.
        Ok(match i64::try_from(number) {
            Ok(number) => Value::Int(number),
            Err(_) => Value::Text(Cow::Owned(number.to_string())),
        })
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value<'de>, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_string<E>(self, text: String) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value<'de>, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element::<serde_json::Value>()? {
            array.push(item);
        }
        Ok(Value::Text(Cow::Owned(
            serde_json::Value::Array(array).to_string(),
        )))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
        let mut object = serde_json::Map::new();
        while let Some((name, value)) = map.next_entry()? {
            object.insert(name, value);
        }
        Ok(Value::Text(Cow::Owned(
            serde_json::Value::Object(object).to_string(),
        )))
    }
}
