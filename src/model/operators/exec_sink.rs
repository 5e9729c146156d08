//! `exec-sink`: a program that reads records.

use serde::{Deserialize, Serialize};

use super::exec::{self, read_program};
use super::{Declaration, ExpressionTypes, Role, Section, StateUse, Step, Transformation};
use crate::Schema;
use crate::exec::ExecSpec;
use crate::job_file::{Fields, Reader};

/// Runs a program that reads records; its output goes to the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExecSink(Box<ExecSpec>);

impl ExecSink {
    /// Runs this program. A sink has no columns.
    pub fn new(program: ExecSpec) -> ExecSink {
        let columns = Vec::new();
        ExecSink(Box::new(ExecSpec { columns, ..program }))
    }

    /// The program.
    pub fn program(&self) -> &ExecSpec {
        &self.0
    }
}

impl Declaration for ExecSink {
    fn kind(&self) -> &'static str {
        "exec-sink"
    }

    fn state(&self) -> StateUse {
        StateUse::NotSaved(exec::PROGRAM)
    }

    fn role(&self) -> Role {
        Role::Sink
    }

    fn problems(&self) -> Vec<String> {
        self.0.problems(false)
    }

    fn uses_artifacts(&self) -> bool {
        true
    }

    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        self.0.check_input(input)?;
        Ok(Schema::default())
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "exec-sink",
    section: Section::Sinks,
    text: "\
Runs a program in each subtask. The program receives the records; its standard output goes to the log. See
[Programs](programs.md).",
    fields: &[exec::FIELDS],
    example: "\
- file-source: { paths: [\"books/*.txt\"] }
- exec-sink: { command: [./upload, --quiet] }
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let program = read_program(fields, reader, |_, _, _| {})?;
    Some(ExecSink::new(program).into())
}
