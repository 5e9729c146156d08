//! Specification of aggregations by key: over the whole input, or over windows of event time.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::watermarks::{EventTime, time_column};
use crate::name_problem;
use crate::problem::MAX_PROBLEMS;
use crate::timestamp::FARTHEST;
use crate::{Column, ColumnType, Schema};
use crate::{check_keys, plain_column, wrong_type};

/// Maximum number of sliding windows that a record belongs to.
const MAX_OVERLAP: u64 = 1_000;
const MAX_AGGREGATIONS: usize = 100;

/// Aggregates records by key. Emits the key columns, for windows `window_start` and `window_end`, and the results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aggregate {
    /// The key columns; the edge before is partitioned by them.
    pub keys: Vec<String>,
    /// The results, in the order of their columns.
    pub aggregations: Vec<Aggregation>,
    /// When results are emitted.
    pub trigger: Trigger,
}

/// One result column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aggregation {
    /// The name of the result column.
    pub name: String,
    /// The aggregate function.
    pub function: AggregateFunction,
    /// The column that it aggregates; `None` for a count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
}

/// A function over a key's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AggregateFunction {
    /// The number of records.
    Count,
    /// The sum of a numeric column, in its type.
    Sum,
    /// The minimum: a number, a timestamp or a text.
    Min,
    /// The maximum: a number, a timestamp or a text.
    Max,
    /// The mean of a numeric column, as float64.
    Average,
}

impl AggregateFunction {
    /// All functions, by their names in a job file.
    pub const ALL: [(&'static str, AggregateFunction); 5] = [
        ("count", AggregateFunction::Count),
        ("sum", AggregateFunction::Sum),
        ("min", AggregateFunction::Min),
        ("max", AggregateFunction::Max),
        ("average", AggregateFunction::Average),
    ];

    /// Its name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            AggregateFunction::Count => "count",
            AggregateFunction::Sum => "sum",
            AggregateFunction::Min => "min",
            AggregateFunction::Max => "max",
            AggregateFunction::Average => "average",
        }
    }

    /// The type of its result; `None` if it can't be applied to a column of this type.
    fn result(self, of: ColumnType) -> Option<ColumnType> {
        match self {
            AggregateFunction::Count => Some(ColumnType::Int64),
            AggregateFunction::Sum => of.is_number().then_some(of),
            AggregateFunction::Average => of.is_number().then_some(ColumnType::Float64),
            AggregateFunction::Min | AggregateFunction::Max => {
                (of != ColumnType::Bool).then_some(of)
            }
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            AggregateFunction::Count => "any type",
            AggregateFunction::Sum | AggregateFunction::Average => "a number",
            AggregateFunction::Min | AggregateFunction::Max => "a number, a timestamp or a string",
        }
    }
}

impl Aggregation {
    /// A count, as a column of this name.
    pub fn count(name: impl Into<String>) -> Aggregation {
        Aggregation {
            name: name.into(),
            function: AggregateFunction::Count,
            column: None,
        }
    }

    /// A function of a column, as a column of this name.
    pub fn of(
        name: impl Into<String>,
        function: AggregateFunction,
        column: impl Into<String>,
    ) -> Aggregation {
        Aggregation {
            name: name.into(),
            function,
            column: Some(column.into()),
        }
    }

    fn result(&self, input: &Schema) -> Result<Column, Vec<String>> {
        let column_type = match &self.column {
            None => ColumnType::Int64,
            Some(column) => {
                let found = plain_column(input, column)?;
                let function = self.function;
                function.result(found).ok_or_else(|| {
                    vec![wrong_type(
                        input,
                        column,
                        found,
                        function.wanted(),
                        |found| function.result(found).is_some(),
                    )]
                })?
            }
        };
        Ok(Column::new(&self.name, column_type))
    }
}

/// When an aggregation emits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// Each key's results once, at the end of the input.
    Final,
    /// The new results after each record.
    Updates,
    /// The results of each window once the watermark has passed its end.
    Window(Window),
}

/// Windows of event time, aligned to 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Length of each window.
    pub size_ms: u64,
    /// Time between the starts of two windows; equal to the size for tumbling windows.
    pub slide_ms: u64,
    /// The column with the event time.
    pub time: String,
    /// Time after a window was emitted in which records can still change it; then it is emitted again.
    pub allowed_lateness_ms: u64,
}

impl Window {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let Window {
            size_ms: size,
            slide_ms: slide,
            ..
        } = *self;
        if size == 0 || slide == 0 {
            problems.push("a window's `size` and `slide` must be more than 0".into());
        } else if slide > size {
            problems.push(
                "`slide` is longer than `size`, so that records between two windows would be lost: write at most the size"
                    .into(),
            );
        } else if size.div_ceil(slide) > MAX_OVERLAP {
            problems.push(format!(
                "`slide` is so short that each record is in {} windows: write one for at most {MAX_OVERLAP}",
                size.div_ceil(slide)
            ));
        }
        if size.max(self.allowed_lateness_ms) > FARTHEST.unsigned_abs() {
            problems.push("a window's `size` or `allowed-lateness` is too long".into());
        }
        problems
    }

    /// Event time of the results. Unknown for overlapping windows and with lateness, whose start does not
    /// determine when they are emitted.
    fn event_time(&self) -> Option<EventTime> {
        (self.size_ms == self.slide_ms && self.allowed_lateness_ms == 0).then(|| EventTime {
            column: "window_start".into(),
            span_ms: self.size_ms,
        })
    }
}

impl Aggregate {
    /// The columns between the keys and the results.
    fn window_columns(&self) -> Vec<Column> {
        match &self.trigger {
            Trigger::Final | Trigger::Updates => Vec::new(),
            Trigger::Window(_) => ["window_start", "window_end"]
                .map(|name| Column::new(name, ColumnType::Timestamp))
                .to_vec(),
        }
    }

    /// Name of the step in messages.
    pub fn kind(aggregations: &[Aggregation]) -> &'static str {
        match aggregations {
            [only] if only.name == only.function.name() => only.function.name(),
            _ => "aggregate",
        }
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.keys.is_empty() {
            problems.push("it has no key columns: put a key-by before it".into());
        }
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
        if let Trigger::Window(window) = &self.trigger {
            problems.extend(window.problems());
        }
        problems
    }

    /// The columns that it emits for this input, or its problems.
    pub fn output(&self, input: &Schema) -> Result<Schema, Vec<String>> {
        let mut problems = check_keys(input, &self.keys);
        let mut columns: Vec<Column> = self
            .keys
            .iter()
            .filter_map(|key| input.column(key).cloned())
            .collect();
        columns.extend(self.window_columns());
        if let Trigger::Window(window) = &self.trigger {
            problems.extend(time_column(input, &window.time).err().unwrap_or_default());
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

    /// The event time of its results.
    pub fn event_time(&self) -> Option<EventTime> {
        match &self.trigger {
            Trigger::Final | Trigger::Updates => None,
            Trigger::Window(window) => window.event_time(),
        }
    }

    /// Returns the problem of its input's event time.
    pub fn event_time_problem(&self, input: Option<&EventTime>) -> Option<String> {
        let Trigger::Window(window) = &self.trigger else {
            return None;
        };
        match input {
            None => Some(
                "windows need event time: put a `watermarks: { column: ... }` step before it, on each of its inputs"
                    .into(),
            ),
            Some(time) if time.column != window.time => Some(format!(
                "its windows go by column `{}`, but the watermarks before it by `{}`",
                window.time, time.column
            )),
            Some(EventTime { span_ms: 0, .. }) => None,
            Some(EventTime { span_ms: span, .. }) => {
                let whole = window.size_ms.is_multiple_of(*span)
                    && window.slide_ms.is_multiple_of(*span);
                (!whole).then(|| {
                    format!(
                        "it reads results of windows of {span} ms, which its own windows would cut: make `size` and `slide` multiples of that"
                    )
                })
            }
        }
    }
}
