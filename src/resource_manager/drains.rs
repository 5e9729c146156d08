//! Records `drains/<digest>`: a TaskManager, or a host with all its TaskManagers, that gets no more work, and
//! how running work leaves it. Written under the term's fence before any process acts on it, and deleted before
//! it is undone: so a drain survives every leader and TaskManager.
//!
//! Fields are only added, each with a default.

use std::fmt;
use std::str::FromStr as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tanist_gateway::kinds;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::keys::{Key, Name};
use tanist_ha::store::Write;
use tanist_ha::store::cache::Records;
use tanist_ha::store::pipeline::{CommitError, CommitPipeline};
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

/// Maximum number of records of TaskManagers that are not registered. Beyond it the oldest is deleted.
pub(super) const KEPT: usize = 1_000;

/// The target of a drain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainTarget {
    /// One TaskManager.
    TaskManager(ResourceId),
    /// All TaskManagers whose address has this host.
    Host(String),
}

impl DrainTarget {
    /// The target that a request names.
    pub fn of(request: &pb::DrainTaskManagerRequest) -> GatewayResult<DrainTarget> {
        let (id, host) = (&request.resource_id, &request.host);
        match (id.as_str(), host.as_str()) {
            (id, "") => match ResourceId::from_str(id) {
                Ok(id) => Ok(DrainTarget::TaskManager(id)),
                Err(error) => Err(GatewayError::Invalid(error.to_string())),
            },
            ("", host) => Ok(DrainTarget::Host(host.to_owned())),
            _ => Err(GatewayError::Invalid(
                "name a TaskManager or a host, not both".to_owned(),
            )),
        }
    }

    /// Key of its record. A digest, since hosts and resource ids have characters that are not allowed in names.
    pub fn key(&self) -> Key {
        let digest = Sha256::digest(self.to_string());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = Name::new(digest).expect("hexadecimal digits are a name");
        Key::new(kinds::DRAINS, name)
    }
}

impl fmt::Display for DrainTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DrainTarget::TaskManager(id) => write!(f, "TaskManager {id}"),
            DrainTarget::Host(host) => write!(f, "host {host}"),
        }
    }
}

/// The value of `drains/<digest>`. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DrainRecord {
    /// The TaskManager. Empty: the target is a host.
    #[serde(default)]
    pub task_manager: String,
    /// The host. Empty: the target is a TaskManager.
    #[serde(default)]
    pub host: String,
    /// When the drain was first requested.
    #[serde(default)]
    pub since_ms: u64,
    /// Who requested it, for display.
    #[serde(default)]
    pub by: String,
    /// The reason, for display.
    #[serde(default)]
    pub reason: String,
    /// Whether work that runs there is moved away.
    #[serde(default)]
    pub evict: bool,
    /// When work is moved even without `evict`. 0: never.
    #[serde(default)]
    pub deadline_ms: u64,
    /// Whether at the deadline also work without free slots elsewhere is stopped.
    #[serde(default)]
    pub force: bool,
}

impl DrainRecord {
    /// The target of the record. `None`: the record is invalid.
    pub fn target(&self) -> Option<DrainTarget> {
        match self.host.as_str() {
            "" => Some(DrainTarget::TaskManager(self.task_manager.parse().ok()?)),
            host => Some(DrainTarget::Host(host.to_owned())),
        }
    }

    /// The write that stores it.
    pub fn write(&self, target: &DrainTarget) -> Write {
        let value = serde_json::to_vec(self).expect("numbers and texts are always JSON");
        Write::Put {
            key: target.key(),
            value: value.into(),
        }
    }

    /// The write that deletes it.
    pub fn removal(target: &DrainTarget) -> Write {
        Write::Delete { key: target.key() }
    }
}

/// All recorded drains. Skips records that can't be read, with a warning: they name no target.
pub fn recorded_drains(records: &Records) -> Vec<(DrainTarget, DrainRecord)> {
    let read = |(name, value): (&Name, &bytes::Bytes)| {
        let record: DrainRecord = match serde_json::from_slice(value) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(%name, %error, "the record of a drain can't be read");
                return None;
            }
        };
        Some((record.target()?, record))
    };
    records.of(kinds::DRAINS).filter_map(read).collect()
}

/// A decision about drains that is to be written before it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DrainChange {
    /// The target.
    pub target: DrainTarget,
    /// How it is drained. `None`: it is no longer drained.
    pub record: Option<DrainRecord>,
    /// Targets whose records are deleted since they are no longer needed.
    pub forgotten: Vec<DrainTarget>,
}

impl DrainChange {
    /// Writes the decision. Without a store nothing is written. Never returns if the term is over.
    pub(super) async fn commit(&self, pipeline: Option<&CommitPipeline>) -> GatewayResult<()> {
        let Some(pipeline) = pipeline else {
            return Ok(());
        };
        let own = match &self.record {
            Some(record) => record.write(&self.target),
            None => DrainRecord::removal(&self.target),
        };
        let forgotten = self.forgotten.iter().map(DrainRecord::removal);
        match pipeline.commit(forgotten.chain([own]).collect()).await {
            Ok(_change) => Ok(()),
            Err(error @ (CommitError::TooLarge(_) | CommitError::OutOfSpace(_))) => {
                Err(GatewayError::NotYet(error.to_string()))
            }
            Err(CommitError::NotApplied | CommitError::Unknown) => std::future::pending().await,
        }
    }
}

/// The store of drains, and the drains that exist when a ResourceManager starts.
#[derive(Debug, Clone, Default)]
pub struct DrainsServices {
    /// Writes decisions. `None`: drains are lost with the term.
    pub pipeline: Option<CommitPipeline>,
    /// The drains that the store had when the term began.
    pub recorded: Vec<(DrainTarget, DrainRecord)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_again_by_what_it_is_of_whatever_its_characters() {
        let of = |resource_id: &str, host: &str| pb::DrainTaskManagerRequest {
            resource_id: resource_id.to_owned(),
            host: host.to_owned(),
            ..pb::DrainTaskManagerRequest::default()
        };
        let targets = [
            of("a:6122-é", ""),
            of("10.0.0.1:6122-x", ""),
            of("", "fe80::1"),
        ];
        let [wrong, id, host] = targets.map(|request| DrainTarget::of(&request));
        assert!(matches!(wrong, Err(GatewayError::Invalid(_))), "{wrong:?}");
        assert!(DrainTarget::of(&of("a", "b")).is_err());
        let (id, host) = (id.expect("an id"), host.expect("a host"));
        let of_id = DrainRecord {
            task_manager: "10.0.0.1:6122-x".to_owned(),
            evict: true,
            ..DrainRecord::default()
        };
        let of_host = DrainRecord {
            host: "fe80::1".to_owned(),
            ..DrainRecord::default()
        };
        let value = |record| bytes::Bytes::from(serde_json::to_vec(record).expect("JSON"));
        let unreadable = Key::new(kinds::DRAINS, Name::new("x").expect("a name"));
        let records = [
            (id.key(), value(&of_id)),
            (host.key(), value(&of_host)),
            (unreadable, "no json".into()),
        ];
        let mut found = recorded_drains(&records.into_iter().collect());
        found.sort_by_key(|(target, _)| target.clone());
        assert_eq!(found, [(id, of_id), (host, of_host)]);
    }
}
