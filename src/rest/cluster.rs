//! Handlers about the cluster: overview, configuration of user interfaces, TaskManagers, high availability, health.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::ask::Context;
use super::error::RestError;
use super::extract::{PathParts, id, position_headers};
use super::json::Nothing;
use super::json::cluster::{Overview, UiConfig};
use super::json::ha::{HaStatusBody, role_name};
use super::json::task_managers::{TaskManager, TaskManagers};
use crate::process::Role;

/// How long the store is waited for before `/ha/status` answers without the members.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn overview(
    State(context): State<Context>,
) -> Result<(HeaderMap, Json<Overview>), RestError> {
    let overview = context
        .ask(async |dispatcher| {
            let request = pb::DescribeClusterRequest {};
            dispatcher.describe_cluster(request).await
        })
        .await?;
    let headers = position_headers(overview.as_of);
    Ok((headers, Json(Overview::new(&overview))))
}

pub(super) async fn ui_config() -> Json<UiConfig> {
    Json(UiConfig::default())
}

async fn task_manager_list(context: &Context) -> Result<Vec<pb::TaskManagerInfo>, RestError> {
    let list = context
        .ask(async |dispatcher| {
            let request = pb::ListTaskManagersRequest {};
            dispatcher.list_task_managers(request).await
        })
        .await?;
    Ok(list.task_managers)
}

pub(super) async fn task_managers(
    State(context): State<Context>,
) -> Result<Json<TaskManagers>, RestError> {
    let list = task_manager_list(&context).await?;
    Ok(Json(TaskManagers::new(&list)))
}

pub(super) async fn task_manager(
    State(context): State<Context>,
    PathParts(text): PathParts<String>,
) -> Result<Json<TaskManager>, RestError> {
    let wanted: ResourceId = id(&text)?;
    let list = task_manager_list(&context).await?;
    let found = list.iter().find(|info| {
        let location = info.location.as_ref();
        location.is_some_and(|location| location.resource_id == wanted.as_str())
    });
    let missing = || RestError::not_found(format!("no TaskManager {wanted} is registered"));
    Ok(Json(TaskManager::new(found.ok_or_else(missing)?)))
}

/// Accepted means that the TaskManager has heard of it.
pub(super) async fn drain(
    State(context): State<Context>,
    PathParts(text): PathParts<String>,
) -> Result<(StatusCode, Json<Nothing>), RestError> {
    let wanted: ResourceId = id(&text)?;
    context
        .ask(async |dispatcher| {
            let resource_id = wanted.to_string();
            let request = pb::DrainTaskManagerRequest { resource_id };
            dispatcher.drain_task_manager(request).await
        })
        .await?;
    Ok((StatusCode::ACCEPTED, Json(Nothing {})))
}

pub(super) async fn ha_status(State(context): State<Context>) -> Json<HaStatusBody> {
    Json(HaStatusBody::new(
        &context.view.ha_status(STATUS_TIMEOUT).await,
    ))
}

/// Alive: this answers.
pub(super) async fn healthz() -> Json<Nothing> {
    Json(Nothing {})
}

/// Ready: requests get answers here, since a leader is known.
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
