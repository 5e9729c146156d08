//! `project`: computes columns and drops the others.

use serde::{Deserialize, Serialize};

use super::{
    Declaration, EventTime, ExpressionTypes, Section, StateUse, Step, Transformation, computed,
};
use crate::job_file::{Fields, Reader};
use crate::{NamedExpression, Schema};

/// Computes columns by SQL expressions. Emits only these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Project {
    /// The emitted columns, in this order.
    pub columns: Vec<NamedExpression>,
}

impl Declaration for Project {
    fn kind(&self) -> &'static str {
        "project"
    }

    computed::declare_computed!();

    fn output(&self, input: &Schema, types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        computed::output(&self.columns, input, types).map(Schema::new)
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "project",
    section: Section::Transformations,
    text: "\
Computes columns and drops the others. Emits its columns in their order.",
    fields: &[&[
        "`columns` | a list of columns and [expressions](expressions.md), or a map as for `map` | required | input columns, which are kept unchanged, and computed ones: `[word, { name: total, expression: price * amount }]`",
    ]],
    checkpoints: "It has no state.",
    example: "\
- datagen: { count: 1000 }
- project:
    columns: [key, { name: half, expression: value / 2.0 }]
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let columns = fields.required("columns", "[word, count]", reader, computed::list)?;
    Some(Project { columns }.into())
}
