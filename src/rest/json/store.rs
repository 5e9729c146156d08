//! The health of the coordination store: a part of `/ha/status`.

use tanist_ha::store::health::{ServerRole, StoreHealth, StoreServer};
use tanist_rest_model::{StoreInfo, StoreServerInfo};

/// See [`StoreHealth`].
pub(super) fn store_info(health: &StoreHealth) -> StoreInfo {
    StoreInfo {
        latency: health.latency.as_secs_f64() * 1000.0,
        size_bytes: health.size_bytes,
        quota_bytes: health.quota_bytes,
        quota_assumed: health.quota_is_assumed,
        revisions_kept: health.revisions_kept,
        free_bytes: health.free_bytes,
        alarms: health.alarms.clone(),
        servers: health.servers.iter().map(server_info).collect(),
        unknown: health.unknown.clone(),
    }
}

fn server_info(server: &StoreServer) -> StoreServerInfo {
    let (role, error) = match &server.role {
        ServerRole::Leader => ("leader", None),
        ServerRole::Follower => ("follower", None),
        ServerRole::Standalone => ("standalone", None),
        ServerRole::Unknown => ("unknown", None),
        ServerRole::Unreachable(reason) => ("unreachable", Some(reason.clone())),
    };
    StoreServerInfo {
        name: server.name.clone(),
        role: role.into(),
        version: server.version.clone(),
        error,
    }
}
