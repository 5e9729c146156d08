//! Event time through the steps: in which column it is after each step. ADR 0008 has the rules.

use crate::NamedExpression;
use crate::OperatorSpec;
use crate::spec::EventTime;

impl OperatorSpec {
    /// Returns the event time of the output, given that of the input. A column that only has the same name as
    /// the watermarks' column is a different column: its event time is unknown.
    pub fn event_time(&self, input: Option<&EventTime>) -> Option<EventTime> {
        match self {
            OperatorSpec::Watermarks(spec) => Some(EventTime {
                column: spec.column.clone(),
                span_ms: 0,
            }),
            OperatorSpec::Aggregate(spec) => spec.event_time(),
            OperatorSpec::Count { .. } | OperatorSpec::Sum { .. } => None,
            // A program emits its records at any time.
            OperatorSpec::Exec(_) | OperatorSpec::ExecSource(_) | OperatorSpec::ExecSink(_) => None,
            // All columns that these emit are parsed again.
            OperatorSpec::ParseJson(_)
            | OperatorSpec::ParseCsv(_)
            | OperatorSpec::FlatMapRegex(_) => None,
            OperatorSpec::Map { columns } | OperatorSpec::Project { columns } => input
                .filter(|time| !replaces(columns, &time.column))
                .cloned(),
            _ if self.is_source() => None,
            _ => input.cloned(),
        }
    }

    /// Returns the problem of its input's event time.
    pub fn event_time_problem(&self, input: Option<&EventTime>) -> Option<String> {
        match self {
            OperatorSpec::Aggregate(spec) => spec.event_time_problem(input),
            _ => None,
        }
    }
}

/// Whether one of these columns replaces the one with its name.
fn replaces(columns: &[NamedExpression], column: &str) -> bool {
    let mut of_its_name = columns.iter().filter(|it| it.name == column);
    of_its_name.any(|it| !it.keeps() && it.expression.trim() != column)
}
