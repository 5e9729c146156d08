//! Handlers about jobs: reading and cancelling.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use tanist_ha::clock::wall_clock_ms;
use tanist_proto::id::{JobId, JobVertexId};
use tanist_proto::v1 as pb;

use super::ask::Context;
use super::error::RestError;
use super::extract::{Parameters, PathParts, id, position_headers};
use super::json::Nothing;
use super::json::exceptions::Exceptions;
use super::json::job::{JobBody, JobIds, JobStatusBody, JobsOverview};
use super::json::plan::{Plan, PlanBody};
use super::json::result::ExecutionResult;
use super::json::vertex::VertexBody;

/// How many failures are listed unless `maxExceptions` says otherwise.
const MAX_EXCEPTIONS: usize = 20;

type Answer<T> = Result<Json<T>, RestError>;
type PositionedAnswer<T> = Result<(HeaderMap, Json<T>), RestError>;

async fn list(context: &Context) -> Result<pb::ListJobsResponse, RestError> {
    context
        .ask(async |dispatcher| dispatcher.list_jobs(pb::ListJobsRequest {}).await)
        .await
}

async fn describe(context: &Context, text: &str) -> Result<pb::JobDetails, RestError> {
    let job: JobId = id(text)?;
    context
        .ask(async |dispatcher| {
            let job_id = job.to_string();
            let request = pb::DescribeJobRequest { job_id };
            dispatcher.describe_job(request).await
        })
        .await
}

pub(super) async fn job_ids(State(context): State<Context>) -> PositionedAnswer<JobIds> {
    let answer = list(&context).await?;
    let headers = position_headers(answer.as_of);
    Ok((headers, Json(JobIds::new(&answer.jobs))))
}

pub(super) async fn overview(State(context): State<Context>) -> PositionedAnswer<JobsOverview> {
    let answer = list(&context).await?;
    let headers = position_headers(answer.as_of);
    Ok((
        headers,
        Json(JobsOverview::new(&answer.jobs, wall_clock_ms())),
    ))
}

pub(super) async fn job(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
) -> Answer<JobBody> {
    let details = describe(&context, &job).await?;
    Ok(Json(JobBody::new(&details, wall_clock_ms())))
}

pub(super) async fn status(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
) -> Answer<JobStatusBody> {
    let details = describe(&context, &job).await?;
    Ok(Json(JobStatusBody::new(&details)))
}

pub(super) async fn vertex(
    State(context): State<Context>,
    PathParts((job, vertex)): PathParts<(String, String)>,
) -> Answer<VertexBody> {
    let wanted: JobVertexId = id(&vertex)?;
    let details = describe(&context, &job).await?;
    let is_wanted = |vertex: &&pb::VertexDetails| vertex.id.parse() == Ok(wanted);
    let missing = || RestError::not_found(format!("job {job} has no vertex {wanted}"));
    let vertex = details.vertices.iter().find(is_wanted);
    Ok(Json(VertexBody::new(
        vertex.ok_or_else(missing)?,
        wall_clock_ms(),
    )))
}

pub(super) async fn exceptions(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Answer<Exceptions> {
    let maximum = parameters.get("maxExceptions")?.unwrap_or(MAX_EXCEPTIONS);
    let details = describe(&context, &job).await?;
    Ok(Json(Exceptions::new(&details, maximum)))
}

pub(super) async fn execution_result(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
) -> Answer<ExecutionResult> {
    let details = describe(&context, &job).await?;
    Ok(Json(ExecutionResult::new(&details)))
}

pub(super) async fn plan(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
) -> Answer<PlanBody> {
    let details = describe(&context, &job).await?;
    let plan = Plan::new(&details);
    Ok(Json(PlanBody { plan }))
}

/// Accepted means that the store says that CANCELED is wanted.
pub(super) async fn cancel(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Result<(StatusCode, Json<Nothing>), RestError> {
    let job: JobId = id(&job)?;
    let mode: Option<String> = parameters.get("mode")?;
    if let Some(mode) = mode.filter(|mode| mode != "cancel") {
        let text = format!("there is no mode `{mode}`: write `mode=cancel`");
        return Err(RestError::bad_request(text));
    }
    context
        .ask(async |dispatcher| {
            let job_id = job.to_string();
            dispatcher.cancel_job(pb::CancelJobRequest { job_id }).await
        })
        .await?;
    Ok((StatusCode::ACCEPTED, Json(Nothing {})))
}
