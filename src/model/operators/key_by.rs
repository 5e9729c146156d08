//! `key-by`: the distribution of records by columns. A step, but no operator.

use super::{Section, Step, Transformation};
use crate::job_file::{Fields, Reader};

/// Sends records with equal values in these columns to the same subtask of the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyBy {
    /// The columns.
    pub columns: Vec<String>,
}

impl KeyBy {
    /// Its name in a job file.
    pub const NAME: &str = "key-by";
}

pub(super) const STEPS: &[Step] = &[Step {
    name: KeyBy::NAME,
    section: Section::Transformations,
    text: "\
Sends records with equal values in `columns` to the same subtask of the step that reads it. It is not an operator, so
it has no parallelism, partition, chaining or slot sharing group. Emits the columns that it reads.",
    fields: &[&["`columns` | a column, or a list of them | required | the columns by which records are distributed"]],
    checkpoints: "It has no state.",
    example: "\
- datagen: { count: 1000 }
- key-by: { columns: [key] }
- count: {}
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let columns = fields.required("columns", "[word]", reader, Reader::texts)?;
    Some(KeyBy { columns }.into())
}
