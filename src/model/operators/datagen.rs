//! `datagen`: records from a seed.

use serde::{Deserialize, Serialize};

use super::{
    Declaration, ExpressionTypes, Redistribution, Role, Section, StateUse, Step, Transformation,
};
use crate::job_file::{Fields, Reader};
use crate::{ColumnType, Schema};

/// Generates records. Emits `seq: int64, key: int64, value: int64`. Bounded if `count` is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Datagen {
    /// Records per second over all subtasks; absent: at full speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Records over all subtasks; absent: unbounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The same seed gives the same records.
    pub seed: u64,
    /// `key` is drawn from `0..keys`.
    pub keys: u64,
}

impl Declaration for Datagen {
    fn kind(&self) -> &'static str {
        "datagen"
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn redistribution(&self) -> Redistribution {
        Redistribution::Union
    }

    fn role(&self) -> Role {
        Role::Source {
            bounded: self.count.is_some(),
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let (keys, limit) = (self.keys, i64::MAX.unsigned_abs());
        if self.rate == Some(0) {
            problems.push(
                "`rate` is 0: write at least 1 record a second, or leave it out for as fast as possible"
                    .into(),
            );
        }
        if keys == 0 || keys > limit {
            problems.push(format!(
                "`keys` is {keys}: write a number from 1 to {limit}"
            ));
        }
        if self.count.is_some_and(|count| count > limit) {
            problems.push(format!("`count` is too large: write at most {limit}"));
        }
        problems
    }

    fn output(&self, _input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        Ok(Schema::of(
            ["seq", "key", "value"].map(|name| (name, ColumnType::Int64)),
        ))
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "datagen",
    section: Section::Sources,
    text: "\
Generates records. Bounded if `count` is given. Emits `seq: int64, key: int64, value: int64`.",
    fields: &[&[
        "`rate` | a number, at least 1 | as fast as they are consumed | records per second over all subtasks",
        "`count` | a number | unbounded | number of records over all subtasks",
        "`seed` | a number | `0` | the same seed generates the same records",
        "`keys` | a number, at least 1 | `100` | `key` is a random number from 0 to `keys` - 1",
    ]],
    checkpoints: "The next number is saved. A restored subtask follows its `rate` from then on.",
    example: "\
- datagen: { rate: 1000, count: 60000, keys: 10 }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let mut number = |name| fields.optional_value(name, reader, Reader::u64);
    let spec = Datagen {
        rate: number("rate"),
        count: number("count"),
        seed: number("seed").unwrap_or(0),
        keys: number("keys").unwrap_or(100),
    };
    Some(spec.into())
}
