//! `format-csv`: each record as a CSV line.

use serde::{Deserialize, Serialize};

use super::columns::line;
use super::{Declaration, ExpressionTypes, Section, StateUse, Step, Transformation};
use crate::Schema;
use crate::job_file::{Fields, Reader};

/// Formats a record as a CSV line. Emits `line: string`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatCsv {
    /// Separator of the values.
    pub separator: char,
}

impl Declaration for FormatCsv {
    fn kind(&self) -> &'static str {
        "format-csv"
    }

    fn state(&self) -> StateUse {
        StateUse::None
    }

    fn problems(&self) -> Vec<String> {
        separator_problem(self.separator).into_iter().collect()
    }

    fn output(&self, _input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        Ok(line())
    }
}

/// Returns the problem of a separator of values.
pub(super) fn separator_problem(separator: char) -> Option<String> {
    let usable = separator == '\t' || separator.is_ascii_graphic() || separator == ' ';
    let usable = usable && separator != '"' && !separator.is_ascii_alphanumeric();
    (!usable).then(|| {
        format!(
            "`separator` is {separator:?}: write a punctuation mark such as `,` or `;`, or a tab"
        )
    })
}

/// The field with the separator.
pub(super) const SEPARATOR: &[&str] =
    &["`separator` | one character, or `tab` | `,` | separator of values"];

pub(super) const STEPS: &[Step] = &[Step {
    name: "format-csv",
    section: Section::Transformations,
    text: "\
Writes a record as a CSV line. Emits `line: string`, which `parse-csv` reads back to the same values. A line break in a
text is kept between quotes, so sinks of lines refuse such a record. Before a `file-sink` it defines the format of the
files.",
    fields: &[SEPARATOR],
    example: "\
- datagen: { count: 1000 }
- format-csv: { separator: tab }
- file-sink: { path: out }
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let separator = read_separator(fields, reader)?;
    Some(FormatCsv { separator }.into())
}

/// Reads `separator`; `None` if it can't be read, which is reported.
pub(super) fn read_separator(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<char> {
    let Some(node) = fields.node("separator") else {
        return Some(',');
    };
    let text = reader.text("separator", node)?;
    let mut characters = text.chars();
    match (text.as_str(), characters.next(), characters.next()) {
        ("tab" | "\\t", ..) => Some('\t'),
        (_, Some(separator), None) => Some(separator),
        _ => {
            reader.wrong("separator", node, "one character, or `tab`");
            None
        }
    }
}
