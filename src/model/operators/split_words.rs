//! `split-words`: the words of a text column.

use serde::{Deserialize, Serialize};

use super::{Declaration, ExpressionTypes, Section, StateUse, Step, Transformation, text_column};
use crate::job_file::{Fields, Reader};
use crate::{ColumnType, Schema};

/// Splits a text column into words at anything but ASCII letters and digits. Emits `word: string`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitWords {
    /// The column to split.
    pub column: String,
}

impl Declaration for SplitWords {
    fn kind(&self) -> &'static str {
        "split-words"
    }

    fn state(&self) -> StateUse {
        StateUse::None
    }

    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        text_column(input, &self.column)?;
        Ok(Schema::of([("word", ColumnType::String)]))
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "split-words",
    section: Section::Transformations,
    text: "\
Splits a text into words at every character that is not an ASCII letter or digit. Emits `word: string`.",
    fields: &[&["`column` | a column, `string` | required | the column to split"]],
    example: "\
- file-source: { paths: [\"books/*.txt\"] }
- split-words: { column: line }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let column = fields.required("column", "line", reader, Reader::text)?;
    Some(SplitWords { column }.into())
}
