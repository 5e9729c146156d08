//! Handlers about the cluster: overview, configuration of user interfaces, TaskManagers, health.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use tanist_leadership::Role;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;
use tanist_rest_model::{Nothing, TaskManagerList};

use super::ask::Context;
use super::error::RestError;
use super::extract::{Parameters, PathParts, id, position_headers};
use super::json::cluster::{Overview, UiConfig};
use super::json::ha::role_name;
use super::json::task_managers::{self, TaskManagerDetails};

pub(super) async fn overview(
    State(context): State<Context>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<Overview>), RestError> {
    let consistent = parameters.consistent()?;
    let overview = context
        .ask(async |dispatcher| {
            let request = pb::DescribeClusterRequest { consistent };
            dispatcher.describe_cluster(request).await
        })
        .await?;
    let headers = position_headers(overview.as_of);
    Ok((headers, Json(Overview::new(&overview))))
}

pub(super) async fn ui_config() -> Json<UiConfig> {
    Json(UiConfig::default())
}

pub(super) async fn task_manager_list(
    context: &Context,
    parameters: &Parameters,
) -> Result<pb::ListTaskManagersResponse, RestError> {
    let consistent = parameters.consistent()?;
    context
        .ask(async |dispatcher| {
            let request = pb::ListTaskManagersRequest { consistent };
            dispatcher.list_task_managers(request).await
        })
        .await
}

pub(super) async fn task_managers(
    State(context): State<Context>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<TaskManagerList>), RestError> {
    let list = task_manager_list(&context, &parameters).await?;
    let headers = position_headers(list.as_of);
    Ok((headers, Json(task_managers::task_manager_list(&list))))
}

pub(super) async fn task_manager(
    State(context): State<Context>,
    PathParts(text): PathParts<String>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<TaskManagerDetails>), RestError> {
    let wanted: ResourceId = id(&text)?;
    let list = task_manager_list(&context, &parameters).await?;
    let found = list.task_managers.iter().find(|info| {
        let location = info.location.as_ref();
        location.is_some_and(|location| location.resource_id == wanted.as_str())
    });
    let missing = || RestError::not_found(format!("no TaskManager \"{wanted}\" is registered"));
    let body = TaskManagerDetails::new(found.ok_or_else(missing)?);
    Ok((position_headers(list.as_of), Json(body)))
}

/// Liveness: the process answers.
pub(super) async fn healthz() -> Json<Nothing> {
    Json(Nothing {})
}

/// Readiness: requests get answers here, since a leader is known.
pub(super) async fn readyz(State(context): State<Context>) -> Result<Json<Nothing>, RestError> {
    let not_ready = |reason: String| RestError::new(StatusCode::SERVICE_UNAVAILABLE, reason);
    let role = context.view.role();
    match role {
        Role::Connecting => Err(not_ready("the store has not been reached yet".to_owned())),
        Role::Refused => Err(not_ready(
            "the store belongs to another incarnation of the cluster".to_owned(),
        )),
        Role::Leading => Ok(Json(Nothing {})),
        Role::Standby | Role::Recovering | Role::Suspended => {
            if context.view.leader().leader.is_some() {
                return Ok(Json(Nothing {}));
            }
            let role = role_name(role);
            Err(not_ready(format!(
                "no leader is known; this JobManager is {role}"
            )))
        }
    }
}
