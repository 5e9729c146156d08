//! `count`: records by key. Over windows it is an [`Aggregate`](super::Aggregate).

use serde::{Deserialize, Serialize};

use super::aggregate::{complete_keys, missing_keys};
use super::emission::{self, Emission, Emit, Windows, stated};
use super::{
    Aggregation, Declaration, ExpressionTypes, Input, OperatorSpec, Section, StateUse, Step,
    Transformation, check_keys,
};
use crate::job_file::{Fields, Reader};
use crate::{Column, ColumnType, Schema};

/// Counts records by key. Emits the key columns and `count: int64`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Count {
    /// The key columns; the edge before is partitioned by them. Empty until it is completed.
    pub keys: Vec<String>,
    /// When results are emitted. `None` until it is completed: as the input requires.
    #[serde(deserialize_with = "stated")]
    pub emit: Option<Emit>,
}

impl Declaration for Count {
    fn kind(&self) -> &'static str {
        "count"
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn problems(&self) -> Vec<String> {
        missing_keys(&self.keys).into_iter().collect()
    }

    fn complete(&mut self, input: &Input<'_>) -> Result<(), String> {
        complete_keys(&mut self.keys, input);
        self.emit.get_or_insert(Emit::implied(input));
        Ok(())
    }

    fn keys(&self) -> Option<&[String]> {
        Some(&self.keys)
    }

    fn keyed_results(&self) -> Option<String> {
        Some("count".to_owned())
    }

    fn waits_for_the_end(&self) -> bool {
        self.emit == Some(Emit::Final)
    }

    fn set_emit(&mut self, emit: Emit) {
        self.emit = Some(emit);
    }

    fn windowed(&self, windows: Windows) -> Option<OperatorSpec> {
        Some(windows.of([Aggregation::count("count")]).into())
    }

    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        by_key(input, &self.keys, Column::new("count", ColumnType::Int64))
    }
}

/// The key columns and one result, or the problems of the keys.
pub(super) fn by_key(
    input: &Schema,
    keys: &[String],
    result: Column,
) -> Result<Schema, Vec<String>> {
    let mut problems = check_keys(input, keys);
    if keys.contains(&result.name) {
        problems.push(format!(
            "its result is a column `{0}`, but a key column is called `{0}` too: key by other columns",
            result.name
        ));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let keys = keys.iter().filter_map(|key| input.column(key).cloned());
    Ok(Schema::new(keys.chain([result]).collect()))
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "count",
    section: Section::Transformations,
    text: "\
Counts records by key. It must follow a `key-by`. Emits the key columns and `count: int64`; over windows
`window_start` and `window_end` stand between them.",
    fields: &[emission::FIELDS],
    checkpoints: "\
The results of all keys are saved. Over windows, so are the open windows and the event time.",
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
