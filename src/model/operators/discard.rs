//! `discard`: drops records.

use serde::{Deserialize, Serialize};

use super::{Declaration, Role, Section, StateUse, Step};

/// Counts and drops records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Discard {}

impl Declaration for Discard {
    fn kind(&self) -> &'static str {
        "discard"
    }

    fn state(&self) -> StateUse {
        StateUse::None
    }

    fn role(&self) -> Role {
        Role::Sink
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "discard",
    section: Section::Sinks,
    text: "\
Drops records. The metrics of its vertex count them.",
    fields: &[],
    example: "\
- datagen: { count: 1000 }
- discard: {}
",
    read: |_, _| Some(Discard {}.into()),
}];
