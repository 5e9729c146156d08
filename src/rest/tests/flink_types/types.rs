//! The types of JSON values that Flink's classes parse, and a check of values against them.

use serde_json::{Value, json};

/// The expected type of a value.
#[derive(Clone, Copy)]
pub(super) enum Type {
    Bool,
    /// An integer of 32 bits.
    Int,
    /// An integer of 64 bits.
    Long,
    Number,
    Text,
    /// 32 hexadecimal digits.
    Id,
    OneOf(&'static [&'static str]),
    Object(&'static [(&'static str, Type)]),
    /// An object in which each of the names has a value of the type.
    MapOf(&'static [&'static str], &'static Type),
    /// An object with any names.
    Map(&'static Type),
    List(&'static Type),
    /// May be left out, or be null.
    Optional(&'static Type),
    /// Any JSON at all.
    Raw,
}
use Type::{Bool, Id, Int, List, Long, Map, MapOf, Number, Object, OneOf, Optional, Raw, Text};

/// The mismatches of a value, each with its place.
pub(super) fn misfits(place: &str, value: &Value, wanted: Type, found: &mut Vec<String>) {
    let fits = match wanted {
        Bool => value.is_boolean(),
        Int => value
            .as_i64()
            .is_some_and(|number| i32::try_from(number).is_ok()),
        Long => value.is_i64(),
        Number => value.is_number(),
        Text => value.is_string(),
        Id => value.as_str().is_some_and(|text| {
            text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        }),
        OneOf(names) => value.as_str().is_some_and(|text| names.contains(&text)),
        Raw => !value.is_null(),
        Optional(inner) => {
            if !value.is_null() {
                misfits(place, value, *inner, found);
            }
            true
        }
        Object(fields) => {
            for (name, wanted) in fields {
                misfits(&format!("{place}.{name}"), &value[*name], *wanted, found);
            }
            value.is_object()
        }
        MapOf(names, wanted) => {
            for name in names {
                misfits(&format!("{place}.{name}"), &value[*name], *wanted, found);
            }
            value.is_object()
        }
        Map(wanted) => {
            for (name, value) in value.as_object().into_iter().flatten() {
                misfits(&format!("{place}.{name}"), value, *wanted, found);
            }
            value.is_object()
        }
        List(wanted) => {
            for value in value.as_array().into_iter().flatten() {
                misfits(&format!("{place}[]"), value, *wanted, found);
            }
            value.is_array()
        }
    };
    if !fits {
        found.push(format!("{place}: {value}"));
    }
}

#[test]
fn a_value_of_another_type_does_not_fit() {
    let misfits_of = |value: Value, wanted| {
        let mut found = Vec::new();
        misfits("", &value, wanted, &mut found);
        found.len()
    };
    assert_eq!(misfits_of(json!("default"), Id), 1);
    assert_eq!(misfits_of(json!(1_u64 << 40), Int), 1);
    assert_eq!(misfits_of(json!({}), MapOf(&["min", "max"], &Long)), 2);
    assert_eq!(
        misfits_of(json!([{"id": 1}]), List(&Object(&[("id", Text)]))),
        1
    );
}
