//! One metric over several jobs or TaskManagers: `/jobs/metrics`, `/taskmanagers/metrics`.

use serde::Serialize;

/// An aggregation of the values of one metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aggregation {
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The mean.
    Avg,
    /// The sum.
    Sum,
}

impl Aggregation {
    /// All of them.
    pub(crate) const ALL: [Aggregation; 4] = [
        Aggregation::Min,
        Aggregation::Max,
        Aggregation::Avg,
        Aggregation::Sum,
    ];
}

impl std::str::FromStr for Aggregation {
    type Err = String;
    fn from_str(text: &str) -> Result<Aggregation, String> {
        match text.to_ascii_lowercase().as_str() {
            "min" => Ok(Aggregation::Min),
            "max" => Ok(Aggregation::Max),
            "avg" => Ok(Aggregation::Avg),
            "sum" => Ok(Aggregation::Sum),
            _ => Err(format!(
                "there is no aggregation \"{text}\": write min, max, avg or sum"
            )),
        }
    }
}

/// A metric with the requested aggregations; in a list of available metrics only its name.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct AggregatedMetric {
    /// Its name.
    pub(crate) id: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    avg: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sum: Option<f64>,
}

impl AggregatedMetric {
    /// Only the name.
    pub(crate) fn named(id: &'static str) -> AggregatedMetric {
        AggregatedMetric {
            id,
            ..AggregatedMetric::default()
        }
    }

    /// The metric over `values`; without aggregations if there are none.
    pub(crate) fn over(
        id: &'static str,
        values: &[f64],
        wanted: &[Aggregation],
    ) -> Option<AggregatedMetric> {
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        let sum: f64 = values.iter().sum();
        let mut metric = AggregatedMetric::named(id);
        for aggregation in wanted {
            match aggregation {
                Aggregation::Min => metric.min = Some(least),
                Aggregation::Max => metric.max = Some(most),
                Aggregation::Avg => metric.avg = Some(sum / values.len() as f64),
                Aggregation::Sum => metric.sum = Some(sum),
            }
        }
        Some(metric)
    }
}
