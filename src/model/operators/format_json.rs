//! `format-json`: each record as a JSON object.

use serde::{Deserialize, Serialize};

use super::columns::line;
use super::{Declaration, ExpressionTypes, Section, StateUse, Step};
use crate::Schema;

/// Formats a record as a JSON object. Emits `line: string`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatJson {}

impl Declaration for FormatJson {
    fn kind(&self) -> &'static str {
        "format-json"
    }

    fn state(&self) -> StateUse {
        StateUse::None
    }

    fn output(&self, _input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        Ok(line())
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "format-json",
    section: Section::Transformations,
    text: "\
Writes a record as a JSON object. Emits `line: string`, which `parse-json` reads back to the same values. Numbers that
JSON does not have become the texts `\"NaN\"`, `\"Infinity\"` and `\"-Infinity\"`. A line break in a text is escaped, so
each record is one line. Before a `file-sink` it defines the format of the files.",
    fields: &[],
    example: "\
- datagen: { count: 1000 }
- format-json: {}
- file-sink: { path: out }
",
    read: |_, _| Some(FormatJson {}.into()),
}];
