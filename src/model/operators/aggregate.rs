//! `aggregate`, `min`, `max`, `average`: results by key, over the whole input or over windows of event time.
//! `count` and `sum` over windows, too.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::aggregation::{self, AggregateFunction, Aggregation};
use super::emission::{self, Emission, Emit, Trigger, Windows, stated};
use super::event_time::{EventTime, time_column};
use super::running_result::CHECKPOINTS;
use super::{
    Declaration, ExpressionTypes, Input, OperatorSpec, Redistribution, Section, StateUse, Step,
    Transformation, check_keys,
};
use crate::job_file::{Fields, Reader};
use crate::problem::MAX_PROBLEMS;
use crate::{Column, ColumnType, Schema, name_problem};

const MAX_AGGREGATIONS: usize = 100;

/// Aggregates records by key. Emits the key columns, for windows `window_start` and `window_end`, and the results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aggregate {
    /// The key columns; the edge before is partitioned by them. Empty until the step is completed from its input.
    pub keys: Vec<String>,
    /// The results, in the order of their columns.
    pub aggregations: Vec<Aggregation>,
    /// When results are emitted. `None` until the step is completed; then the input decides.
    #[serde(deserialize_with = "stated")]
    pub trigger: Option<Trigger>,
}

impl Aggregate {
    /// Computes these results. Keys and trigger are completed from the input of the step.
    pub fn of(aggregations: impl IntoIterator<Item = Aggregation>) -> Aggregate {
        Aggregate {
            keys: Vec::new(),
            aggregations: aggregations.into_iter().collect(),
            trigger: None,
        }
    }

    fn windows(&self) -> Option<&Windows> {
        match &self.trigger {
            Some(Trigger::Window(windows)) => Some(windows),
            Some(Trigger::Final | Trigger::Updates) | None => None,
        }
    }

    /// The columns between the keys and the results.
    fn window_columns(&self) -> Vec<Column> {
        let columns = self.windows().map(|_| {
            ["window_start", "window_end"].map(|name| Column::new(name, ColumnType::Timestamp))
        });
        columns.into_iter().flatten().collect()
    }
}

impl Declaration for Aggregate {
    /// The steps `min`, `max` and `average` are aggregations of one result with the function's name.
    fn kind(&self) -> &'static str {
        match &self.aggregations[..] {
            [only] if only.name == only.function.name() => only.function.name(),
            _ => "aggregate",
        }
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn redistribution(&self) -> Redistribution {
        Redistribution::Union
    }

    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = missing_keys(&self.keys).into_iter().collect();
        if self.aggregations.is_empty() {
            problems.push("it computes nothing: write for example `total: { sum: amount }`".into());
        }
        if self.aggregations.len() > MAX_AGGREGATIONS {
            problems.push(format!("it computes more than {MAX_AGGREGATIONS} results"));
            return problems;
        }
        for aggregation in &self.aggregations {
            if let Some(problem) = name_problem(&aggregation.name) {
                problems.push(format!("the name of a result {problem}"));
            }
            let counts = aggregation.function == AggregateFunction::Count;
            if counts != aggregation.column.is_none() {
                problems.push(format!(
                    "`{}` must {} a column",
                    aggregation.name,
                    if counts { "not have" } else { "have" }
                ));
            }
        }
        problems.extend(self.windows().into_iter().flat_map(Windows::problems));
        problems
    }

    fn complete(&mut self, input: &Input<'_>) -> Result<(), String> {
        complete_keys(&mut self.keys, input);
        let trigger = self
            .trigger
            .get_or_insert_with(|| Emit::implied(input).into());
        if let Trigger::Window(windows) = trigger
            && windows.time.is_empty()
        {
            let time = input.event_time.ok_or(
                "windows need event time: put a `watermarks: { column: ... }` step before the key-by, on each of its inputs",
            )?;
            windows.time.clone_from(&time.column);
        }
        Ok(())
    }

    fn keys(&self) -> Option<&[String]> {
        Some(&self.keys)
    }

    fn keyed_results(&self) -> Option<String> {
        let results = self.aggregations.iter().map(|aggregation| {
            let name = aggregation.function.name();
            match &aggregation.column {
                Some(column) => format!("{name}({column})"),
                None => name.to_owned(),
            }
        });
        let results = results.collect::<Vec<_>>().join(", ");
        Some(match self.windows() {
            Some(windows) => {
                let (size, slide) = (windows.size_ms, windows.slide_ms);
                format!("{results} in windows of {size} ms each {slide} ms")
            }
            None => results,
        })
    }

    fn waits_for_the_end(&self) -> bool {
        self.trigger == Some(Trigger::Final)
    }

    fn set_emit(&mut self, emit: Emit) {
        if self.windows().is_none() {
            self.trigger = Some(emit.into());
        }
    }

    fn windowed(&self, windows: Windows) -> Option<OperatorSpec> {
        Some(windows.of(self.aggregations.clone()).into())
    }

    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        let mut problems = check_keys(input, &self.keys);
        let mut columns: Vec<Column> = self
            .keys
            .iter()
            .filter_map(|key| input.column(key).cloned())
            .collect();
        columns.extend(self.window_columns());
        if let Some(windows) = self.windows() {
            problems.extend(time_column(input, &windows.time).err().unwrap_or_default());
        }
        for aggregation in &self.aggregations {
            match aggregation.result(input) {
                Ok(column) => columns.push(column),
                Err(wrong) => problems.extend(wrong),
            }
        }
        let mut seen: HashSet<&str> = self.keys.iter().map(String::as_str).collect();
        for column in columns.iter().skip(self.keys.len()) {
            let name = column.name.as_str();
            if problems.len() < MAX_PROBLEMS && !seen.insert(name) {
                problems.push(format!(
                    "its result is a column `{name}`, but there is one called `{name}` already: give each result a name of its own"
                ));
            }
        }
        if problems.is_empty() {
            Ok(Schema::new(columns))
        } else {
            Err(problems)
        }
    }

    fn event_time(&self, _input: Option<&EventTime>) -> Option<EventTime> {
        self.windows().and_then(Windows::event_time)
    }

    fn event_time_problem(&self, input: Option<&EventTime>) -> Option<String> {
        let windows = self.windows()?;
        match input {
            None => Some(
                "windows need event time: put a `watermarks: { column: ... }` step before it, on each of its inputs"
                    .into(),
            ),
            Some(time) if time.column != windows.time => Some(format!(
                "its windows go by column `{}`, but the watermarks before it by `{}`",
                windows.time, time.column
            )),
            Some(EventTime { span_ms: 0, .. }) => None,
            Some(EventTime { span_ms: span, .. }) => {
                let whole = windows.size_ms.is_multiple_of(*span)
                    && windows.slide_ms.is_multiple_of(*span);
                (!whole).then(|| {
                    format!(
                        "it reads results of windows of {span} ms, which its own windows would cut: make `size` and `slide` multiples of that"
                    )
                })
            }
        }
    }
}

/// Sets the keys of an aggregation that states none to those of the key-by before it. Stated ones stay: the check of
/// the graph compares them with the key-by's.
pub(super) fn complete_keys(keys: &mut Vec<String>, input: &Input<'_>) {
    if keys.is_empty() {
        *keys = input.keys.to_vec();
    }
}

/// The problem of an aggregation without keys.
pub(super) fn missing_keys(keys: &[String]) -> Option<String> {
    let problem = "it has no key columns: put a key-by before it";
    keys.is_empty().then(|| problem.to_owned())
}

/// The column of a function of numbers.
pub(super) const COLUMN_OF_NUMBERS: &[&str] =
    &["`column` | a column, `int64` or `float64` | required | the column that is aggregated"];

const COLUMN_IN_ORDER: &[&str] =
    &["`column` | a column, not `bool` | required | the column that is aggregated"];

pub(super) const STEPS: &[Step] = &[
    Step {
        name: "min",
        section: Section::Transformations,
        text: "\
The least value of a column by key. It must follow a `key-by`. Emits the key columns and `min` in the column's type;
over windows `window_start` and `window_end` stand between them.",
        fields: &[COLUMN_IN_ORDER, emission::FIELDS],
        checkpoints: CHECKPOINTS,
    example: "\
- datagen: { count: 1000 }
- key-by: { columns: [key] }
- min: { column: value }
- print: {}
",
        read: |fields, reader| function(AggregateFunction::Min, fields, reader),
    },
    Step {
        name: "max",
        section: Section::Transformations,
        text: "\
The greatest value of a column by key; NaN counts as greater than all other numbers. It must follow a `key-by`. Emits
the key columns and `max` in the column's type; over windows `window_start` and `window_end` stand between them.",
        fields: &[COLUMN_IN_ORDER, emission::FIELDS],
        checkpoints: CHECKPOINTS,
    example: "\
- datagen: { count: 1000 }
- key-by: { columns: [key] }
- max: { column: value }
- print: {}
",
        read: |fields, reader| function(AggregateFunction::Max, fields, reader),
    },
    Step {
        name: "average",
        section: Section::Transformations,
        text: "\
The mean of a column by key. It must follow a `key-by`. Emits the key columns and `average: float64`; over windows
`window_start` and `window_end` stand between them.",
        fields: &[COLUMN_OF_NUMBERS, emission::FIELDS],
        checkpoints: CHECKPOINTS,
    example: "\
- datagen: { count: 1000 }
- key-by: { columns: [key] }
- average: { column: value }
- print: {}
",
        read: |fields, reader| function(AggregateFunction::Average, fields, reader),
    },
    Step {
        name: "aggregate",
        section: Section::Transformations,
        text: "\
Computes several results by key. It must follow a `key-by`. Emits the key columns, over windows `window_start` and
`window_end`, and the results in their order.",
        fields: &[
            emission::FIELDS,
            &["`NAME` | `count`, or `{ FUNCTION: COLUMN }` with `sum`, `min`, `max`, `average` | required | a result of this name, at least one; `count: {}` is a count of that name"],
        ],
        checkpoints: CHECKPOINTS,
    example: "\
- datagen: { count: 1000 }
- map: { columns: { time: seq * 10 } }
- watermarks: { column: time }
- key-by: { columns: [key] }
- aggregate:
    window: { tumbling: { size: 1 s } }
    records: count
    total: { sum: value }
    greatest: { max: value }
- print: {}
",
        read: aggregate,
    },
];

fn with_results(emit: Emission, aggregations: Vec<Aggregation>) -> Transformation {
    let aggregate = match emit {
        Emission::Windows(windows) => windows.of(aggregations),
        Emission::Once(emit) => Aggregate {
            trigger: emit.map(Trigger::from),
            ..Aggregate::of(aggregations)
        },
    };
    aggregate.into()
}

/// Reads a step of one function.
fn function(
    function: AggregateFunction,
    fields: &mut Fields<'_>,
    reader: &mut Reader,
) -> Option<Transformation> {
    let column = fields.required("column", "value", reader, Reader::text);
    let emit = emission::read(fields, reader)?;
    let only = Aggregation::of(function.name(), function, column?);
    Some(with_results(emit, vec![only]))
}

/// Reads an `aggregate`: all its fields except `window` and `emit` are result columns.
fn aggregate(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let emit = emission::read(fields, reader);
    let results = fields.others();
    let aggregations: Vec<_> = results
        .map(|(key, node)| aggregation::read(key, node, reader))
        .collect();
    let aggregations: Option<Vec<_>> = aggregations.into_iter().collect();
    Some(with_results(emit?, aggregations?))
}
