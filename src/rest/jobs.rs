//! Handlers about jobs: reading, cancelling, stopping, and resolving quarantines.
//!
//! The leader's Dispatcher has the state. It is asked again after a change of leader ([`Context::ask`]), so each
//! request that changes something has no further effect if it is repeated, and is answered only when the store has it.

use std::num::NonZeroU64;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use tanist_ha::clock::wall_clock_ms;
use tanist_proto::id::{JobId, JobVertexId};
use tanist_proto::v1 as pb;
use tanist_rest_model::{
    JobEvents, JobExceptions, JobInfo, JobStatusBody, Nothing, QuarantineList, VertexSubtasks,
    paths,
};

use super::ask::Context;
use super::error::RestError;
use super::extract::{Parameters, PathParts, id, position_headers};
use super::json::blocked_reason::quarantine_list;
use super::json::events::{events_of, events_with_tasks};
use super::json::exceptions::exceptions_of;
use super::json::job::{JobIdAndStatus, job_info, job_summary, status_of};
use super::json::plan::{PlanBody, plan_of};
use super::json::result::ExecutionResult;
use super::json::vertex::{SubtaskTimesBody, vertex_subtasks};
use super::rows::Rows;

/// The number of failures that are listed without `maxExceptions`.
const MAX_EXCEPTIONS: usize = 20;

/// A body, with the position of the state that it shows in headers.
type Answer<T> = Result<(HeaderMap, Json<T>), RestError>;

pub(super) async fn list(
    context: &Context,
    parameters: &Parameters,
) -> Result<pb::ListJobsResponse, RestError> {
    let consistent = parameters.consistent()?;
    context
        .ask(async |dispatcher| {
            let request = pb::ListJobsRequest { consistent };
            dispatcher.list_jobs(request).await
        })
        .await
}

pub(super) async fn describe(
    context: &Context,
    text: &str,
    parameters: &Parameters,
) -> Result<pb::JobDetails, RestError> {
    describe_as(context, text, parameters, false).await
}

/// `brief`: the answer has only the status and the result.
async fn describe_as(
    context: &Context,
    text: &str,
    parameters: &Parameters,
    brief: bool,
) -> Result<pb::JobDetails, RestError> {
    let job: JobId = id(text)?;
    let consistent = parameters.consistent()?;
    context
        .ask(async |dispatcher| {
            let job_id = job.to_string();
            let request = pb::DescribeJobRequest {
                job_id,
                consistent,
                brief,
            };
            dispatcher.describe_job(request).await
        })
        .await
}

pub(super) fn of_job<T>(details: &pb::JobDetails, body: T) -> (HeaderMap, Json<T>) {
    (position_headers(details.as_of), Json(body))
}

pub(super) async fn job_ids(
    State(context): State<Context>,
    parameters: Parameters,
) -> Result<impl IntoResponse, RestError> {
    let answer = list(&context, &parameters).await?;
    let headers = position_headers(answer.as_of);
    Ok((headers, Rows::new(answer.jobs, JobIdAndStatus::new)))
}

pub(super) async fn overview(
    State(context): State<Context>,
    parameters: Parameters,
) -> Result<impl IntoResponse, RestError> {
    let answer = list(&context, &parameters).await?;
    let headers = position_headers(answer.as_of);
    let now = wall_clock_ms();
    let row = move |job: &pb::JobDetails| job_summary(job, now);
    Ok((headers, Rows::new(answer.jobs, row)))
}

pub(super) async fn job(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Answer<JobInfo> {
    let details = describe(&context, &job, &parameters).await?;
    let body = job_info(&details, wall_clock_ms());
    Ok(of_job(&details, body))
}

pub(super) async fn status(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Answer<JobStatusBody> {
    let details = describe_as(&context, &job, &parameters, true).await?;
    let status = status_of(&details);
    Ok(of_job(&details, JobStatusBody { status }))
}

pub(super) async fn vertex(
    State(context): State<Context>,
    PathParts((job, vertex)): PathParts<(String, String)>,
    parameters: Parameters,
) -> Answer<VertexSubtasks> {
    let details = describe(&context, &job, &parameters).await?;
    let body = vertex_subtasks(vertex_of(&details, &vertex)?, wall_clock_ms());
    Ok(of_job(&details, body))
}

pub(super) async fn subtask_times(
    State(context): State<Context>,
    PathParts((job, vertex)): PathParts<(String, String)>,
    parameters: Parameters,
) -> Answer<SubtaskTimesBody> {
    let details = describe(&context, &job, &parameters).await?;
    let body = SubtaskTimesBody::new(vertex_of(&details, &vertex)?, wall_clock_ms());
    Ok(of_job(&details, body))
}

fn vertex_of<'a>(
    details: &'a pb::JobDetails,
    text: &str,
) -> Result<&'a pb::VertexDetails, RestError> {
    let wanted: JobVertexId = id(text)?;
    let is_wanted = |vertex: &&pb::VertexDetails| vertex.id.parse() == Ok(wanted);
    let missing = || {
        let job = &details.job_id;
        RestError::not_found(if details.undescribed.is_empty() {
            format!("job {job} has no vertex {wanted}")
        } else {
            let why = &details.undescribed;
            format!("the description of job {job} is missing: {why}")
        })
    };
    details.vertices.iter().find(is_wanted).ok_or_else(missing)
}

pub(super) async fn quarantined(
    State(context): State<Context>,
    parameters: Parameters,
) -> Answer<QuarantineList> {
    let answer = list(&context, &parameters).await?;
    let headers = position_headers(answer.as_of);
    Ok((headers, Json(quarantine_list(&answer.jobs))))
}

/// Accepted means that the quarantine is no longer in the store.
pub(super) async fn retry_quarantined(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Result<(StatusCode, Json<Nothing>), RestError> {
    let number = parameters.0.get(paths::FROM_CHECKPOINT);
    let number = number.map(|text| text.parse::<NonZeroU64>());
    let number = number.transpose().map_err(|error| {
        let name = paths::FROM_CHECKPOINT;
        RestError::bad_request(format!("`{name}` is the number of a checkpoint: {error}"))
    })?;
    let accepts = parameters.flag(paths::ACCEPT_DUPLICATES)?;
    let request = pb::ResolveQuarantineRequest {
        action: pb::QuarantineAction::Retry.into(),
        from_checkpoint: number.map_or(0, NonZeroU64::get),
        accept_duplicates: accepts.unwrap_or(false),
        ..pb::ResolveQuarantineRequest::default()
    };
    resolve(&context, &job, request).await
}

/// Accepted means that the cancellation is in the store.
pub(super) async fn delete_quarantined(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
) -> Result<(StatusCode, Json<Nothing>), RestError> {
    let request = pb::ResolveQuarantineRequest {
        action: pb::QuarantineAction::Delete.into(),
        ..pb::ResolveQuarantineRequest::default()
    };
    resolve(&context, &job, request).await
}

async fn resolve(
    context: &Context,
    job: &str,
    request: pb::ResolveQuarantineRequest,
) -> Result<(StatusCode, Json<Nothing>), RestError> {
    let job: JobId = id(job)?;
    let job_id = job.to_string();
    let request = pb::ResolveQuarantineRequest { job_id, ..request };
    context
        .ask(async |dispatcher| dispatcher.resolve_quarantine(request.clone()).await)
        .await?;
    Ok((StatusCode::ACCEPTED, Json(Nothing {})))
}

pub(super) async fn exceptions(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Answer<JobExceptions> {
    let maximum = parameters
        .number("maxExceptions")?
        .unwrap_or(MAX_EXCEPTIONS);
    let details = describe(&context, &job, &parameters).await?;
    Ok(of_job(&details, exceptions_of(&details, maximum)))
}

pub(super) async fn events(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Answer<JobEvents> {
    let maximum = parameters.number("maxEvents")?.unwrap_or(usize::MAX);
    let details = describe(&context, &job, &parameters).await?;
    let events = match parameters.get("tasks")? {
        Some(true) => events_with_tasks(&details, maximum),
        Some(false) | None => events_of(&details, maximum),
    };
    Ok(of_job(&details, events))
}

pub(super) async fn execution_result(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Answer<ExecutionResult> {
    let details = describe_as(&context, &job, &parameters, true).await?;
    Ok(of_job(&details, ExecutionResult::new(&details)))
}

pub(super) async fn plan(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Answer<PlanBody> {
    let details = describe(&context, &job, &parameters).await?;
    let plan = plan_of(&details);
    Ok(of_job(&details, PlanBody { plan }))
}

/// Accepted means that the store has the wanted status CANCELED or STOPPED.
pub(super) async fn change(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Result<(StatusCode, Json<Nothing>), RestError> {
    let job: JobId = id(&job)?;
    let mode: Option<String> = parameters.get("mode")?;
    match mode.as_deref() {
        None | Some("cancel") => {}
        Some("stop") => {
            request_stop(&context, job).await?;
            return Ok((StatusCode::ACCEPTED, Json(Nothing {})));
        }
        Some(mode) => {
            let text = format!("there is no mode `{mode}`: write `mode=cancel` or `mode=stop`");
            return Err(RestError::bad_request(text));
        }
    }
    context
        .ask(async |dispatcher| {
            let job_id = job.to_string();
            dispatcher.cancel_job(pb::CancelJobRequest { job_id }).await
        })
        .await?;
    Ok((StatusCode::ACCEPTED, Json(Nothing {})))
}

/// Requests that the job stops without a savepoint. The store has the request when this returns.
pub(super) async fn request_stop(context: &Context, job: JobId) -> Result<(), RestError> {
    context
        .ask(async |dispatcher| {
            let job_id = job.to_string();
            dispatcher.stop_job(pb::StopJobRequest { job_id }).await
        })
        .await?;
    Ok(())
}
