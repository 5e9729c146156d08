//! `stdin-source`: the lines of standard input.

use serde::{Deserialize, Serialize};

use super::columns::line;
use super::{Declaration, ExpressionTypes, Role, Section, StateUse, Step};
use crate::Schema;

/// Reads the TaskManager's standard input line by line. Emits `line: string`. Bounded; one subtask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdinSource {}

impl Declaration for StdinSource {
    fn kind(&self) -> &'static str {
        "stdin-source"
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn has_position(&self) -> bool {
        false
    }

    fn role(&self) -> Role {
        Role::Source { bounded: true }
    }

    /// There is one standard input.
    fn is_single(&self) -> bool {
        true
    }

    fn output(&self, _input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        Ok(line())
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "stdin-source",
    section: Section::Sources,
    text: "\
Reads the TaskManager's standard input line by line: `cat access.log | tanist local ...`. Bounded. One subtask. Emits
`line: string`. The null device (`</dev/null`, as cron and service managers set it) is an empty input for
`tanist local`; a TaskManager of a cluster that has the null device refuses the job. After a restart the source
continues at its position. If standard input could not be read to its end, each attempt fails.",
    fields: &[],
    checkpoints: "\
No position is saved: what was read after the checkpoint is lost when the job is restored.",
    example: "\
- stdin-source: {}
- print: {}
",
    read: |_, _| Some(StdinSource {}.into()),
}];
