//! How the coordination store is: a part of `/ha/status`.

use serde::Serialize;
use tanist_ha::store::health::{ServerRole, StoreHealth, StoreServer};

/// See [`StoreHealth`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StoreBody {
    /// How long a linearizable read took, in milliseconds.
    pub latency: f64,
    /// Bytes of its data.
    pub size_bytes: Option<u64>,
    /// Bytes above which it takes no writes any more.
    pub quota_bytes: Option<u64>,
    /// Whether nobody said so, and that is the store's default.
    pub quota_assumed: bool,
    /// It keeps more old revisions of its data than these.
    pub revisions_kept: Option<u64>,
    /// Free bytes where it keeps its data, where that is the host of who was asked.
    pub free_bytes: Option<u64>,
    /// Alarms that it has raised, by its own names.
    pub alarms: Vec<String>,
    /// Its servers.
    pub servers: Vec<StoreServerBody>,
    /// What could not be found out, and why.
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
