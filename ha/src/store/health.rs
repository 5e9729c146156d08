//! Health of a coordination store, for display and metrics: latency, space, servers.
//!
//! A plain value, which each backend fills in on request ([`CoordinationStore::health`]). No decision depends on
//! it. Values that the store does not report, or not to this user, are missing and listed as unknown.
//!
//! [`CoordinationStore::health`]: super::CoordinationStore::health

use std::time::Duration;

/// Share of its quota from which on a store counts as nearly full, in percent.
const NEARLY_FULL_PERCENT: u64 = 80;
/// Number of free bytes below which a disk counts as nearly full.
const LITTLE_SPACE: u64 = 512 * 1024 * 1024;

/// Health of a coordination store; see the module documentation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreHealth {
    /// Latency of a linearizable read.
    pub latency: Duration,
    /// Size of its data in bytes; of the largest server if there are several.
    pub size_bytes: Option<u64>,
    /// Limit in bytes above which it accepts no more writes.
    pub quota_bytes: Option<u64>,
    /// Whether the quota is the store's default because the store does not report it.
    pub quota_is_assumed: bool,
    /// A lower bound of the old revisions that it keeps; `None`: few, or the store keeps none.
    pub revisions_kept: Option<u64>,
    /// Free bytes on its disk, if it runs on this host.
    pub free_bytes: Option<u64>,
    /// Alarms that it has raised, by its own names (etcd: `NOSPACE`, `CORRUPT`).
    pub alarms: Vec<String>,
    /// Its servers; empty if it has none.
    pub servers: Vec<StoreServer>,
    /// Values that could not be determined, and why.
    pub unknown: Vec<String>,
    /// What an operator should do, with the commands of this kind of store; `None`: nothing.
    pub advice: Option<String>,
}

/// A server of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreServer {
    /// Its name or address.
    pub name: String,
    /// Its current role.
    pub role: ServerRole,
    /// Its version.
    pub version: Option<String>,
}

/// The role of a server of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerRole {
    /// It leads the others.
    Leader,
    /// It follows one, or does not vote.
    Follower,
    /// It is the only one.
    Standalone,
    /// It answered without its role; or it is not a configured endpoint and was not asked.
    Unknown,
    /// It gave no answer; the reason.
    Unreachable(String),
}

impl StoreHealth {
    /// Warnings for an operator, in words.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self
            .alarms
            .iter()
            .map(|alarm| format!("the store has raised the alarm {alarm}"))
            .collect();
        if let (Some(size), Some(quota)) = (self.size_bytes, self.quota_bytes)
            && self.is_nearly_full()
        {
            let assumed = if self.quota_is_assumed {
                " (assumed: it does not report its quota)"
            } else {
                ""
            };
            warnings.push(format!(
                "the store's data takes {size} of at most {quota} bytes{assumed}"
            ));
        }
        if let Some(many) = self.revisions_kept {
            warnings.push(format!(
                "the store keeps more than {many} old revisions of its data: it is not compacted, or rarely, and fills up"
            ));
        }
        if let Some(free) = self.free_bytes.filter(|free| *free < LITTLE_SPACE) {
            warnings.push(format!(
                "{free} bytes are free where the store keeps its data"
            ));
        }
        for server in &self.servers {
            if let ServerRole::Unreachable(reason) = &server.role {
                let name = &server.name;
                warnings.push(format!(
                    "the store's server {name} gives no answer: {reason}"
                ));
            }
        }
        warnings.extend(self.advice.clone());
        warnings
    }

    /// Whether the data takes most of its quota.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let sizes = self.size_bytes.zip(self.quota_bytes);
        sizes.is_some_and(|(size, quota)| {
            size.saturating_mul(100) >= quota.saturating_mul(NEARLY_FULL_PERCENT)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_warned_of_before_it_is_full_and_when_a_server_is_away() {
        let healthy = StoreHealth {
            size_bytes: Some(70),
            quota_bytes: Some(100),
            free_bytes: Some(u64::MAX),
            ..StoreHealth::default()
        };
        assert!(healthy.warnings().is_empty());
        let away = StoreServer {
            name: "etcd-2".to_owned(),
            role: ServerRole::Unreachable("refused".to_owned()),
            version: None,
        };
        let uncompacted = StoreHealth {
            size_bytes: Some(90),
            quota_is_assumed: true,
            revisions_kept: Some(1000),
            ..healthy.clone()
        };
        let warnings = uncompacted.warnings();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("assumed"), "{warnings:?}");
        assert!(warnings[1].contains("not compacted"), "{warnings:?}");
        let ill = StoreHealth {
            size_bytes: Some(80),
            free_bytes: Some(1000),
            alarms: vec!["NOSPACE".to_owned()],
            servers: vec![away],
            ..healthy
        };
        let warnings = ill.warnings();
        assert_eq!(warnings.len(), 4, "{warnings:?}");
        assert!(warnings[0].contains("NOSPACE") && warnings[3].contains("etcd-2"));
    }
}
