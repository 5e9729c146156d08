//! `count`: records by key. Over windows it is an [`Aggregate`](super::Aggregate).

use serde::{Deserialize, Serialize};

use super::aggregate::{complete_keys, missing_keys};
use super::emission::{self, Emission, Emit, Windows, stated};
use super::running_result::{CHECKPOINTS, by_key, declare_running_result};
use super::{
    Aggregation, Declaration, ExpressionTypes, Input, OperatorSpec, Section, StateUse, Step,
    Transformation,
};
use crate::job_file::{Fields, Reader};
use crate::{Column, ColumnType, Schema};

/// Counts records by key. Emits the key columns and `count: int64`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Count {
    /// The key columns; the edge before is partitioned by them. Empty until the step is completed from its input.
    pub keys: Vec<String>,
    /// When results are emitted. `None` until the step is completed; then the input decides.
    #[serde(deserialize_with = "stated")]
    pub emit: Option<Emit>,
}

impl Declaration for Count {
    declare_running_result!("count");

    fn windowed(&self, windows: Windows) -> Option<OperatorSpec> {
        Some(windows.of([Aggregation::count("count")]).into())
    }

    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        by_key(input, &self.keys, Column::new("count", ColumnType::Int64))
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "count",
    section: Section::Transformations,
    text: "\
Counts records by key. It must follow a `key-by`. Emits the key columns and `count: int64`; over windows
`window_start` and `window_end` stand between them.",
    fields: &[emission::FIELDS],
    checkpoints: CHECKPOINTS,
    example: "\
- file-source: { paths: [\"books/*.txt\"] }
- split-words: { column: line }
- key-by: { columns: [word] }
- count: {}
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let emit = emission::read(fields, reader)?;
    Some(match emit {
        Emission::Once(emit) => Count {
            emit,
            ..Count::default()
        }
        .into(),
        Emission::Windows(windows) => Count::default().windowed(windows)?.into(),
    })
}
