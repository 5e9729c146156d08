//! The health of the coordination store: a part of `/ha/status`.

use serde::Serialize;
use tanist_ha::store::health::{ServerRole, StoreHealth, StoreServer};

/// See [`StoreHealth`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StoreBody {
    /// Latency of a linearizable read, in milliseconds.
    pub latency: f64,
    /// Size of its data, in bytes.
    pub size_bytes: Option<u64>,
    /// Size in bytes above which it accepts no writes.
    pub quota_bytes: Option<u64>,
    /// Whether the quota was not reported and is the store's default.
    pub quota_assumed: bool,
    /// Lower bound of the old revisions of its data, if it keeps very many.
    pub revisions_kept: Option<u64>,
    /// Free bytes on its disk, if that is on the host of the process that was asked.
    pub free_bytes: Option<u64>,
    /// Alarms that it has raised, by its own names.
    pub alarms: Vec<String>,
    /// Its servers.
    pub servers: Vec<StoreServerBody>,
    /// What could not be determined, and why.
    pub unknown: Vec<String>,
}

/// A server of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StoreServerBody {
    /// Its name or address.
    pub name: String,
    /// `leader`, `follower`, `standalone`, `unknown` or `unreachable`.
    pub role: &'static str,
    /// Its version.
    pub version: Option<String>,
    /// Why it is unreachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl From<&StoreServer> for StoreServerBody {
    fn from(server: &StoreServer) -> StoreServerBody {
        let (role, error) = match &server.role {
            ServerRole::Leader => ("leader", None),
            ServerRole::Follower => ("follower", None),
            ServerRole::Standalone => ("standalone", None),
            ServerRole::Unknown => ("unknown", None),
            ServerRole::Unreachable(reason) => ("unreachable", Some(reason.clone())),
        };
        StoreServerBody {
            name: server.name.clone(),
            role,
            version: server.version.clone(),
            error,
        }
    }
}

impl From<&StoreHealth> for StoreBody {
    fn from(health: &StoreHealth) -> StoreBody {
        StoreBody {
            latency: health.latency.as_secs_f64() * 1000.0,
            size_bytes: health.size_bytes,
            quota_bytes: health.quota_bytes,
            quota_assumed: health.quota_is_assumed,
            revisions_kept: health.revisions_kept,
            free_bytes: health.free_bytes,
            alarms: health.alarms.clone(),
            servers: health.servers.iter().map(StoreServerBody::from).collect(),
            unknown: health.unknown.clone(),
        }
    }
}
