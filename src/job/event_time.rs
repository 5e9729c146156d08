//! What becomes of event time on its way through the steps: which column it stands in behind each of them. The rules are ADR 0008's.

use super::expression::NamedExpression;
use super::operator::OperatorSpec;
use super::spec::EventTime;

impl OperatorSpec {
    /// The event time of what it emits, from that of its input. A column that only has the name of the one that the watermarks were
    /// made of is another one: nothing is known of its times.
    pub(super) fn event_time(&self, input: Option<&EventTime>) -> Option<EventTime> {
        match self {
            OperatorSpec::Watermarks(spec) => Some(EventTime {
                column: spec.column.clone(),
                span_ms: 0,
            }),
            OperatorSpec::Aggregate(spec) => spec.event_time(),
            OperatorSpec::Count { .. } | OperatorSpec::Sum { .. } => None,
            // A program gives its records when it likes.
            OperatorSpec::Exec(_) | OperatorSpec::ExecSource(_) | OperatorSpec::ExecSink(_) => None,
            // All that these emit is read anew.
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

    /// What is wrong with the event time of its input.
    pub(super) fn event_time_problem(&self, input: Option<&EventTime>) -> Option<String> {
        match self {
            OperatorSpec::Aggregate(spec) => spec.event_time_problem(input),
            _ => None,
        }
    }
}

/// Whether one of these columns takes the place of the one that has its name.
fn replaces(columns: &[NamedExpression], column: &str) -> bool {
    let mut of_its_name = columns.iter().filter(|it| it.name == column);
    of_its_name.any(|it| !it.keeps() && it.expression.trim() != column)
}
