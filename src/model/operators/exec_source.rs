//! `exec-source`: a program that writes records.

use serde::{Deserialize, Serialize};

use super::exec::{self, read_columns, read_program};
use super::{Declaration, ExpressionTypes, Role, Section, StateUse, Step, Transformation};
use crate::Schema;
use crate::exec::ExecSpec;
use crate::job_file::{Fields, Reader};

/// Runs a program that writes records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExecSource(Box<ExecSpec>);

impl ExecSource {
    /// Runs this program.
    pub fn new(program: ExecSpec) -> ExecSource {
        ExecSource(Box::new(program))
    }

    /// The program.
    pub fn program(&self) -> &ExecSpec {
        &self.0
    }
}

impl Declaration for ExecSource {
    fn kind(&self) -> &'static str {
        "exec-source"
    }

    fn state(&self) -> StateUse {
        StateUse::NotSaved(exec::PROGRAM)
    }

    fn role(&self) -> Role {
        Role::Source {
            bounded: !self.0.unbounded,
        }
    }

    fn problems(&self) -> Vec<String> {
        self.0.problems(true)
    }

    fn uses_artifacts(&self) -> bool {
        true
    }

    fn output(&self, _input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        Ok(self.0.schema())
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "exec-source",
    section: Section::Sources,
    text: "\
Runs a program in each subtask. The records are read from its standard output. See
[Programs](programs.md).",
    fields: &[
        exec::FIELDS,
        exec::COLUMNS,
        &[
            "`bounded` | `true`, `false` | `true` | `false`: the program never ends by itself, so no step can wait for its end",
        ],
    ],
    example: "\
- exec-source:
    command: [seq, \"1000\"]
    columns: { number: string }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let program = read_program(fields, reader, |program, fields, reader| {
        read_columns(program, fields, reader);
        let bounded = fields.optional_value("bounded", reader, Reader::bool);
        program.unbounded = bounded == Some(false);
    })?;
    Some(ExecSource::new(program).into())
}
