//! Handlers that drain TaskManagers, one or all of a host, and that end a drain. The leader keeps drains in the store;
//! a repeated request sets the same drain again, and its deadline counts from the last attempt.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use tanist_config::parse_duration;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;
use tanist_rest_model::{DrainOptions, DurationText, Nothing};

use super::ask::Context;
use super::error::RestError;
use super::extract::{PathParts, id, read_body};

/// Maximum size of the body, in bytes.
const MAX_BODY: usize = 64 << 10;

type Accepted = Result<(StatusCode, Json<Nothing>), RestError>;

/// Accepted means that the drain is in the store: it outlives the leader and the TaskManager.
pub(super) async fn drain(
    State(context): State<Context>,
    PathParts(text): PathParts<String>,
    headers: HeaderMap,
    body: Body,
) -> Accepted {
    let request = of_task_manager(&text)?;
    request_drain(&context, with_body(request, &headers, body).await?).await
}

pub(super) async fn undrain(
    State(context): State<Context>,
    PathParts(text): PathParts<String>,
) -> Accepted {
    let mut request = of_task_manager(&text)?;
    request.undrain = true;
    request_drain(&context, request).await
}

pub(super) async fn drain_host(
    State(context): State<Context>,
    PathParts(host): PathParts<String>,
    headers: HeaderMap,
    body: Body,
) -> Accepted {
    request_drain(&context, with_body(of_host(host), &headers, body).await?).await
}

pub(super) async fn undrain_host(
    State(context): State<Context>,
    PathParts(host): PathParts<String>,
) -> Accepted {
    let mut request = of_host(host);
    request.undrain = true;
    request_drain(&context, request).await
}

fn of_task_manager(text: &str) -> Result<pb::DrainTaskManagerRequest, RestError> {
    let wanted: ResourceId = id(text)?;
    Ok(pb::DrainTaskManagerRequest {
        resource_id: wanted.to_string(),
        ..pb::DrainTaskManagerRequest::default()
    })
}

fn of_host(host: String) -> pb::DrainTaskManagerRequest {
    pb::DrainTaskManagerRequest {
        host,
        ..pb::DrainTaskManagerRequest::default()
    }
}

async fn with_body(
    request: pb::DrainTaskManagerRequest,
    headers: &HeaderMap,
    body: Body,
) -> Result<pb::DrainTaskManagerRequest, RestError> {
    let body = read_body(headers, body, MAX_BODY).await?;
    if body.is_empty() {
        return Ok(request);
    }
    let wrong = |error| RestError::bad_request(format!("the body is invalid: {error}"));
    let asked: DrainOptions = serde_json::from_slice(&body).map_err(wrong)?;
    let deadline_in_ms = match &asked.deadline {
        None => 0,
        Some(DurationText(text)) => {
            let wrong = |error| RestError::bad_request(format!("the deadline {text:?} {error}"));
            let deadline = parse_duration(text).map_err(wrong)?;
            u64::try_from(deadline.as_millis())
                .unwrap_or(u64::MAX)
                .max(1)
        }
    };
    Ok(pb::DrainTaskManagerRequest {
        evict: asked.evict,
        deadline_in_ms,
        force: asked.force,
        by: asked.by,
        reason: asked.reason,
        ..request
    })
}

async fn request_drain(context: &Context, request: pb::DrainTaskManagerRequest) -> Accepted {
    context
        .ask(async |dispatcher| dispatcher.drain_task_manager(request.clone()).await)
        .await?;
    Ok((StatusCode::ACCEPTED, Json(Nothing {})))
}
