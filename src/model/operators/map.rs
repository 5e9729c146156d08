//! `map`: computes columns and keeps the others.

use serde::{Deserialize, Serialize};

use super::{
    Declaration, EventTime, ExpressionTypes, Section, StateUse, Step, Transformation, computed,
};
use crate::job_file::{Fields, Reader};
use crate::{NamedExpression, Schema};

/// Computes columns by SQL expressions and keeps the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    /// Each replaces the column of its name, or is appended after all others, in this order.
    pub columns: Vec<NamedExpression>,
}

impl Declaration for Map {
    fn kind(&self) -> &'static str {
        "map"
    }

    computed::declare_computed!();

    fn output(&self, input: &Schema, types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        let mut all = input.columns().to_vec();
        for column in computed::output(&self.columns, input, types)? {
            match all.iter_mut().find(|it| it.name == column.name) {
                Some(replaced) => *replaced = column,
                None => all.push(column),
            }
        }
        Ok(Schema::new(all))
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "map",
    section: Section::Transformations,
    text: "\
Computes columns and keeps the others. A computed column replaces the column of the same name, or comes after all
others.",
    fields: &[&["`columns` | a map from names to [expressions](expressions.md) | required | the computed columns: `{ total: price * amount }`. Expressions see the input's columns, not each other's"]],
    checkpoints: "It has no state.",
    example: "\
- datagen: { count: 1000 }
- map:
    columns: { half: value / 2.0 }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let example = "{ total: price * amount }";
    let columns = fields.required("columns", example, reader, computed::map)?;
    Some(Map { columns }.into())
}
