//! Handlers of metrics over several jobs or TaskManagers, with Flink's names and parameters.
//!
//! `get` selects the metrics; without it the answer lists the available ones. `agg` selects the aggregations. A
//! metric that does not exist is left out, as in Flink.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::v1 as pb;

use super::ask::Context;
use super::cluster::task_manager_list;
use super::error::RestError;
use super::extract::{Parameters, id, position_headers};
use super::jobs;
use super::json::metric::{AggregatedMetric, Aggregation};

type Answer = Result<(HeaderMap, Json<Vec<AggregatedMetric>>), RestError>;

/// The name of a metric, and the function that reads its value.
type Metric<T> = (&'static str, fn(&T) -> f64);

const OF_JOBS: [Metric<pb::JobDetails>; 1] = [("numRestarts", |job| f64::from(job.restarts))];

const OF_TASK_MANAGERS: [Metric<pb::TaskManagerInfo>; 2] = [
    ("Status.Flink.Memory.Managed.Total", |info| {
        let total = info.total_profile.as_ref();
        total.map_or(0.0, |total| total.managed_memory_bytes as f64)
    }),
    ("Status.Shuffle.Netty.TotalMemory", |info| {
        let total = info.total_profile.as_ref();
        total.map_or(0.0, |total| total.network_memory_bytes as f64)
    }),
];

pub(super) async fn of_jobs(State(context): State<Context>, parameters: Parameters) -> Answer {
    let wanted: Vec<JobId> = parameters.list("jobs", id)?;
    let listed = jobs::list(&context, &parameters).await?;
    let is_wanted = |job: &&pb::JobDetails| {
        wanted.is_empty() || job.job_id.parse().is_ok_and(|id| wanted.contains(&id))
    };
    let chosen: Vec<&pb::JobDetails> = listed.jobs.iter().filter(is_wanted).collect();
    let metrics = aggregate(&OF_JOBS, &chosen, &parameters)?;
    Ok((position_headers(listed.as_of), Json(metrics)))
}

pub(super) async fn of_task_managers(
    State(context): State<Context>,
    parameters: Parameters,
) -> Answer {
    let wanted: Vec<ResourceId> = parameters.list("taskmanagers", id)?;
    let listed = task_manager_list(&context, &parameters).await?;
    let is_wanted = |info: &&pb::TaskManagerInfo| {
        let location = info.location.as_ref();
        let id = location.map_or("", |location| &location.resource_id);
        wanted.is_empty() || wanted.iter().any(|wanted| wanted.as_str() == id)
    };
    let chosen: Vec<&pb::TaskManagerInfo> = listed.task_managers.iter().filter(is_wanted).collect();
    let metrics = aggregate(&OF_TASK_MANAGERS, &chosen, &parameters)?;
    Ok((position_headers(listed.as_of), Json(metrics)))
}

fn aggregate<T>(
    known: &[Metric<T>],
    over: &[&T],
    parameters: &Parameters,
) -> Result<Vec<AggregatedMetric>, RestError> {
    let wanted: Vec<String> = parameters.list("get", |name| Ok(name.to_owned()))?;
    if wanted.is_empty() {
        let names = known.iter().map(|(name, _)| AggregatedMetric::named(name));
        return Ok(names.collect());
    }
    let mut aggregations: Vec<Aggregation> = parameters.list("agg", id)?;
    if aggregations.is_empty() {
        aggregations = Aggregation::ALL.to_vec();
    }
    let named = known
        .iter()
        .filter(|(name, _)| wanted.iter().any(|it| it == name));
    let metrics = named.filter_map(|(name, value)| {
        let values: Vec<f64> = over.iter().map(|it| value(it)).collect();
        AggregatedMetric::over(name, &values, &aggregations)
    });
    Ok(metrics.collect())
}
