//! `drains/<digest>`: that a TaskManager, or all of a host, is to be given nothing any more, and how what runs there leaves it. Written under the
//! term's fence before anybody acts on it, and removed before it is taken back: so it outlives every leader and TaskManager.
//!
//! Fields are only added, each with a default.

use std::fmt;
use std::str::FromStr as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::store::Write;
use tanist_ha::store::cache::Records;
use tanist_ha::store::pipeline::{CommitError, CommitPipeline};
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use crate::gateway::{GatewayError, GatewayResult};

/// More records than these of TaskManagers that are not there are not kept: the oldest goes.
pub(super) const KEPT: usize = 1_000;

/// What is drained.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainTarget {
    /// One TaskManager.
    TaskManager(ResourceId),
    /// All whose address has this host.
    Host(String),
}

impl DrainTarget {
    /// What a request names.
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

    /// Where its record is: hosts and resource ids have characters that names have not.
    pub fn key(&self) -> Key {
        let digest = Sha256::digest(self.to_string());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = Name::new(digest).expect("hexadecimal digits are a name");
        Key::new(Kind::Drains, name)
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
    /// The TaskManager; empty: a host.
    #[serde(default)]
    pub task_manager: String,
    /// The host; empty: a TaskManager.
    #[serde(default)]
    pub host: String,
    /// When it was asked for first.
    #[serde(default)]
    pub since_ms: u64,
    /// Who asked, for people.
    #[serde(default)]
    pub by: String,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
    /// What runs there is moved.
    #[serde(default)]
    pub evict: bool,
    /// When it is in any case; 0: never.
    #[serde(default)]
    pub deadline_ms: u64,
    /// At that time also what there are no slots for elsewhere.
    #[serde(default)]
    pub force: bool,
}

impl DrainRecord {
    /// What it is of; nothing: it makes no sense.
    pub fn target(&self) -> Option<DrainTarget> {
        match self.host.as_str() {
            "" => Some(DrainTarget::TaskManager(self.task_manager.parse().ok()?)),
            host => Some(DrainTarget::Host(host.to_owned())),
        }
    }

    /// The write that keeps it.
    pub fn write(&self, target: &DrainTarget) -> Write {
        let value = serde_json::to_vec(self).expect("numbers and texts are always JSON");
        Write::Put {
            key: target.key(),
            value: value.into(),
        }
    }

    /// The write that takes it back.
    pub fn removal(target: &DrainTarget) -> Write {
        Write::Delete { key: target.key() }
    }
}

/// All that is drained. What can't be read is passed over, with a warning: it names nobody.
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
    records.of(Kind::Drains).filter_map(read).collect()
}

/// A decision about drains that is to be written before it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainChange {
    /// Of what.
    pub target: DrainTarget,
    /// How it is drained; nothing: it is not any more.
    pub record: Option<DrainRecord>,
    /// Of these the records go: nobody needs them.
    pub forgotten: Vec<DrainTarget>,
}

impl DrainChange {
    /// Makes it durable. Nothing is written without a store. Never returns if the term is over.
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

/// What a ResourceManager keeps drains with, and those that there are when it begins.
#[derive(Debug, Clone, Default)]
pub struct DrainsServices {
    /// Through which decisions are written; nothing: they are lost with the term.
    pub pipeline: Option<CommitPipeline>,
    /// What the store had when the term began.
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
        let unreadable = Key::new(Kind::Drains, Name::new("x").expect("a name"));
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
