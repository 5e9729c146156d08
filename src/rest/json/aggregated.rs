//! Statistics over the subtasks of a vertex: `aggregated` of `/jobs/:id/vertices/:vid`.
//!
//! Percentiles are estimated as in Flink: at position `p * (n + 1)` of the `n` sorted values, interpolated
//! linearly.

use tanist_proto::v1::ExecutionState;
use tanist_rest_model::{Aggregated, IoMetrics, Statistics, SubtaskInfo, execution_state_name};

/// The states whose durations are in Flink's statistics.
const MEASURED_STATES: [ExecutionState; 5] = [
    ExecutionState::Created,
    ExecutionState::Scheduled,
    ExecutionState::Deploying,
    ExecutionState::Initializing,
    ExecutionState::Running,
];

/// A metric of one subtask.
type Metric = fn(&IoMetrics) -> u64;

/// The metrics that are in the statistics.
const METRICS: [(&str, Metric); 8] = [
    ("read-bytes", |metrics| metrics.read_bytes),
    ("write-bytes", |metrics| metrics.write_bytes),
    ("read-records", |metrics| metrics.read_records),
    ("write-records", |metrics| metrics.write_records),
    ("state-bytes", |metrics| metrics.state_bytes),
    ("accumulated-backpressured-time", |metrics| {
        metrics.accumulated_backpressured_time
    }),
    ("accumulated-idle-time", |metrics| {
        metrics.accumulated_idle_time
    }),
    ("accumulated-busy-time", |metrics| {
        metrics.accumulated_busy_time
    }),
];

/// The statistics of these subtasks.
pub(super) fn aggregated(subtasks: &[SubtaskInfo]) -> Aggregated {
    let of_metric = |(name, metric): (&'static str, Metric)| {
        let values = subtasks.iter().map(|subtask| metric(&subtask.metrics));
        let values = values.map(|value| i64::try_from(value).unwrap_or(i64::MAX));
        (name.into(), statistics(values.collect()))
    };
    let of_state = |state| {
        let name = execution_state_name(state);
        let durations = subtasks.iter().map(|subtask| &subtask.status_duration);
        let durations = durations.filter_map(|of_subtask| of_subtask.get(name).copied());
        (name.into(), statistics(durations.collect()))
    };
    Aggregated {
        metrics: METRICS.into_iter().map(of_metric).collect(),
        status_duration: MEASURED_STATES.into_iter().map(of_state).collect(),
    }
}

fn statistics(mut values: Vec<i64>) -> Statistics {
    values.sort_unstable();
    let (Some(&min), Some(&max)) = (values.first(), values.last()) else {
        return Statistics::default();
    };
    let sum: i128 = values.iter().copied().map(i128::from).sum();
    let narrow = |value: i128| i64::try_from(value).unwrap_or(i64::MAX);
    Statistics {
        min,
        max,
        avg: narrow(sum / values.len() as i128),
        sum: narrow(sum),
        median: percentile(&values, 50),
        p25: percentile(&values, 25),
        p75: percentile(&values, 75),
        p95: percentile(&values, 95),
    }
}

/// A percentile of sorted values; there must be at least one.
fn percentile(sorted: &[i64], percent: usize) -> i64 {
    let hundredths = percent * (sorted.len() + 1);
    let (place, part) = (hundredths / 100, hundredths % 100);
    let at = |place: usize| sorted[place.clamp(1, sorted.len()) - 1];
    let (lower, upper) = (i128::from(at(place)), i128::from(at(place + 1)));
    let between = lower + (upper - lower) * part as i128 / 100;
    i64::try_from(between).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_values_in_proportion() {
        let of = |values: &[i64]| statistics(values.to_vec());
        assert_eq!(of(&[]), Statistics::default());
        let one = of(&[7]);
        assert_eq!(
            (one.min, one.avg, one.median, one.p95, one.max),
            (7, 7, 7, 7, 7)
        );
        let four = of(&[40, 10, 30, 20]);
        let told = (
            four.sum,
            four.avg,
            four.p25,
            four.median,
            four.p75,
            four.p95,
        );
        assert_eq!(told, (100, 25, 12, 25, 37, 40));
    }
}
