//! How a coordination store is, for people and metrics: how fast it answers, how full it is, which servers it has.
//!
//! Nothing is decided on it. What a store does not tell, or does not tell this user, is left out and named.

use std::time::Duration;

/// From which share of its quota on a store is called nearly full, in percent.
const NEARLY_FULL_PERCENT: u64 = 80;
/// Below so many free bytes a disk is called nearly full.
const LITTLE_SPACE: u64 = 512 * 1024 * 1024;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreHealth {
    /// How long a linearizable read took.
    pub latency: Duration,
    /// Bytes of its data: of the largest server, where there are several.
    pub size_bytes: Option<u64>,
    /// Bytes above which it takes no writes any more.
    pub quota_bytes: Option<u64>,
    /// Whether nobody said so, and that is what such a store has where nothing else is set.
    pub quota_is_assumed: bool,
    /// It keeps more old revisions of its data than these; none: it does not, or has none.
    pub revisions_kept: Option<u64>,
    /// Free bytes where it keeps its data, where that is this host.
    pub free_bytes: Option<u64>,
    /// Alarms that it has raised, by its own names (etcd: `NOSPACE`, `CORRUPT`).
    pub alarms: Vec<String>,
    /// Its servers; none where it has none.
    pub servers: Vec<StoreServer>,
    /// What could not be found out, and why.
    pub unknown: Vec<String>,
}

/// A server of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreServer {
    /// Its name or address.
    pub name: String,
    /// What it does at present.
    pub role: ServerRole,
    /// Its version.
    pub version: Option<String>,
}

/// What a server of a store does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerRole {
    /// It leads the others.
    Leader,
    /// It follows one, or does not vote.
    Follower,
    /// It is the only one.
    Standalone,
    /// It answers, but not that question; or it is no configured endpoint, and so was not asked.
    Unknown,
    /// It gave no answer, for this reason.
    Unreachable(String),
}

impl StoreHealth {
    /// What an operator should look after, in words.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self
            .alarms
            .iter()
            .map(|alarm| format!("the store has raised the alarm {alarm}"))
            .collect();
        if let (Some(size), Some(quota)) = (self.size_bytes, self.quota_bytes)
            && size.saturating_mul(100) >= quota.saturating_mul(NEARLY_FULL_PERCENT)
        {
            let assumed = if self.quota_is_assumed {
                " (assumed: it does not tell its quota)"
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
        warnings
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
