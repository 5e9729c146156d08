//! Records `workers/<resource id>`: a worker that is wanted. Written under the term's fence before the worker is
//! started, deleted before it is stopped; a worker without a record ends by itself.
//!
//! Fields are only added, each with a default.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tanist_gateway::kinds;
use tanist_ha::keys::{Key, Name};
use tanist_ha::store::Write;
use tanist_ha::store::cache::Records;
use tanist_proto::id::ResourceId;
use tanist_proto::resources::{CpuCores, Resources, WorkerResourceSpec};

/// The value of `workers/<resource id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// The driver that was to start it.
    #[serde(default)]
    pub driver: String,
    /// Its place, as the driver names it.
    #[serde(default)]
    pub place: String,
    /// Epoch of the term that requested it.
    #[serde(default)]
    pub epoch: u64,
    /// When it was requested, in milliseconds since 1970.
    #[serde(default)]
    pub requested_at_ms: u64,
    /// Its number of slots.
    #[serde(default)]
    pub slots: u32,
    /// Its resources, if they differ from the configured ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<RecordedResources>,
    /// Whether it must leave as soon as nothing of it is in use.
    #[serde(default)]
    pub releasing: bool,
}

/// Resources of a worker. Memory is in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RecordedResources {
    /// CPU, in millionths of a core.
    #[serde(default)]
    pub cpu: u64,
    /// Memory for tasks.
    #[serde(default)]
    pub task_memory: u64,
    /// Memory for records between tasks.
    #[serde(default)]
    pub network_memory: u64,
    /// Memory for state.
    #[serde(default)]
    pub managed_memory: u64,
    /// Extended resources, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extended: BTreeMap<String, u64>,
}

impl WorkerRecord {
    /// Its resources, if they differ from the configured ones.
    pub fn kind(&self) -> Option<WorkerResourceSpec> {
        let recorded = self.resources.as_ref()?;
        let counted = Resources {
            cpu: CpuCores::from_millionths(recorded.cpu),
            task_memory: recorded.task_memory,
            network_memory: recorded.network_memory,
            managed_memory: recorded.managed_memory,
            ..Resources::ZERO
        };
        let extended = recorded.extended.iter();
        let total = extended.fold(counted, |total, (name, amount)| {
            total.with_extended(name.clone(), *amount)
        });
        Some(WorkerResourceSpec::new(total, self.slots))
    }

    /// Sets its resources, which differ from the configured ones.
    pub fn set_kind(&mut self, kind: &WorkerResourceSpec) {
        let total = kind.total();
        let extended = total.all_extended();
        self.slots = kind.slots();
        self.resources = Some(RecordedResources {
            cpu: total.cpu.millionths(),
            task_memory: total.task_memory,
            network_memory: total.network_memory,
            managed_memory: total.managed_memory,
            extended: extended
                .map(|(name, amount)| (name.to_owned(), amount))
                .collect(),
        });
    }

    /// The write that stores it.
    pub fn write(&self, worker: &ResourceId) -> Write {
        let value = serde_json::to_vec(self).expect("numbers and texts are always JSON");
        Write::Put {
            key: key(worker),
            value: value.into(),
        }
    }

    /// The write that removes the record of a worker.
    pub fn removal(worker: &ResourceId) -> Write {
        Write::Delete { key: key(worker) }
    }
}

/// All recorded workers. One whose record can't be read is included, with default values.
pub fn recorded_workers(records: &Records) -> Vec<(ResourceId, WorkerRecord)> {
    let read = |(name, value): (&Name, &bytes::Bytes)| {
        let worker: ResourceId = name.as_str().parse().ok()?;
        let record = serde_json::from_slice(value).unwrap_or_else(|error| {
            tracing::warn!(%worker, %error, "the record of a worker can't be read");
            serde_json::from_str("{}").expect("every field has a default")
        });
        Some((worker, record))
    };
    records.of(kinds::WORKERS).filter_map(read).collect()
}

/// The key of a worker's record.
pub fn key(worker: &ResourceId) -> Key {
    let name = Name::new(worker.as_str()).expect("resource ids of workers are valid names");
    Key::new(kinds::WORKERS, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_the_first_version_is_read_and_what_is_unknown_is_passed_over() {
        let kept = r#"{"driver":"local-process","place":"here","epoch":7,"requested_at_ms":1,
            "slots":2,"releasing":true,"of_a_later_version":1}"#;
        let worker: ResourceId = "worker-7-1".parse().expect("an id");
        let unreadable: ResourceId = "worker-7-2".parse().expect("an id");
        let all = [(&worker, kept), (&unreadable, "no json")];
        let all = all.map(|(worker, value)| (key(worker), bytes::Bytes::from(value)));
        let found = recorded_workers(&all.into_iter().collect());
        let [(first, record), (second, unknown)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((first, second), (&worker, &unreadable));
        assert_eq!((record.epoch, record.slots, record.releasing), (7, 2, true));
        assert_eq!((unknown.slots, unknown.place.as_str()), (0, ""));
        assert_eq!(record.kind(), None, "the usual one");
    }

    #[test]
    fn a_kind_is_what_was_recorded_also_after_it_was_read_again() {
        let total = Resources {
            cpu: CpuCores::from_cores(2.5),
            task_memory: 1 << 30,
            network_memory: 64 << 20,
            ..Resources::ZERO
        };
        let kind = WorkerResourceSpec::new(total.with_extended("gpu", 2), 1);
        let mut record = WorkerRecord {
            driver: String::new(),
            place: String::new(),
            epoch: 1,
            requested_at_ms: 0,
            slots: 4,
            resources: None,
            releasing: false,
        };
        record.set_kind(&kind);
        let text = serde_json::to_string(&record).expect("JSON");
        let read: WorkerRecord = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read.kind(), Some(kind));
    }
}
