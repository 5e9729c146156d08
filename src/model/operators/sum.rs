//! `sum`: a column added up by key. Over windows it is an [`Aggregate`](super::Aggregate).

use serde::{Deserialize, Serialize};

use super::aggregate::{COLUMN_OF_NUMBERS, complete_keys, missing_keys};
use super::emission::{self, Emission, Emit, Windows, stated};
use super::running_result::{CHECKPOINTS, by_key, declare_running_result};
use super::{
    AggregateFunction, Aggregation, Declaration, ExpressionTypes, Input, OperatorSpec, Section,
    StateUse, Step, Transformation, plain_column, wrong_type,
};
use crate::job_file::{Fields, Reader};
use crate::{Column, ColumnType, Schema};

/// Sums a numeric column by key. Emits the key columns and `sum` in the column's type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sum {
    /// The key columns; the edge before is partitioned by them. Empty until the step is completed from its input.
    pub keys: Vec<String>,
    /// The column to sum.
    pub column: String,
    /// When results are emitted. `None` until the step is completed; then the input decides.
    #[serde(deserialize_with = "stated")]
    pub emit: Option<Emit>,
}

impl Sum {
    /// Sums this column. Keys and emission are completed from the input of the step.
    pub fn of(column: impl Into<String>) -> Sum {
        Sum {
            keys: Vec::new(),
            column: column.into(),
            emit: None,
        }
    }
}

impl Declaration for Sum {
    declare_running_result!("sum");

    fn windowed(&self, windows: Windows) -> Option<OperatorSpec> {
        let sum = Aggregation::of("sum", AggregateFunction::Sum, &self.column);
        Some(windows.of([sum]).into())
    }

    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        let found = plain_column(input, &self.column)?;
        if !found.is_number() {
            let is_number = ColumnType::is_number;
            let problem = wrong_type(input, &self.column, found, "a number", is_number);
            return Err(vec![problem]);
        }
        by_key(input, &self.keys, Column::new("sum", found))
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "sum",
    section: Section::Transformations,
    text: "\
Adds up a column by key. It must follow a `key-by`. Emits the key columns and `sum` in the column's type; over windows
`window_start` and `window_end` stand between them. A sum of integers that does not fit `int64` fails the task.",
    fields: &[COLUMN_OF_NUMBERS, emission::FIELDS],
    checkpoints: CHECKPOINTS,
    example: "\
- datagen: { count: 1000 }
- key-by: { columns: [key] }
- sum: { column: value }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let column = fields.required("column", "value", reader, Reader::text);
    let emit = emission::read(fields, reader)?;
    let mut sum = Sum::of(column?);
    Some(match emit {
        Emission::Once(emit) => {
            sum.emit = emit;
            sum.into()
        }
        Emission::Windows(windows) => sum.windowed(windows)?.into(),
    })
}
