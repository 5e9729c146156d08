//! `print`: lines on standard output.

use serde::{Deserialize, Serialize};

use super::{Declaration, Redistribution, Role, Section, StateUse, Step, Transformation};
use crate::job_file::{Fields, Reader};

/// Writes each record as a line to the TaskManager's standard output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Print {
    /// Written before each line.
    #[serde(default)]
    pub prefix: String,
}

impl Declaration for Print {
    fn kind(&self) -> &'static str {
        "print"
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn redistribution(&self) -> Redistribution {
        Redistribution::List
    }

    fn role(&self) -> Role {
        Role::Sink
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "print",
    section: Section::Sinks,
    text: "\
Writes records as lines to the TaskManager's standard output. If no process reads that output, the sink waits; other
jobs do not. If the reader was closed (`| head -1`), the job fails at once. A task ends when all its output is written.
The remaining output of a cancelled task is not written.",
    fields: &[&["`prefix` | a text | none | text before each line"]],
    checkpoints: "\
Lines that are not written yet are saved. A line may be written twice after a restore.",
    example: "\
- datagen: { count: 1000 }
- print: { prefix: \"record: \" }
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let prefix = fields.optional("prefix", reader, Reader::text);
    let prefix = prefix.unwrap_or_default();
    Some(Print { prefix }.into())
}
