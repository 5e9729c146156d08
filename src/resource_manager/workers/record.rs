//! `workers/<resource id>`: that a worker is wanted. Written under the term's fence before it is started, removed before it is
//! stopped; a worker without a record ends by itself.
//!
//! Fields are only added, each with a default.

use serde::{Deserialize, Serialize};
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::store::Write;
use tanist_ha::store::cache::Records;
use tanist_proto::id::ResourceId;

/// The value of `workers/<resource id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// The driver that was to start it.
    #[serde(default)]
    pub driver: String,
    /// Where, as that driver says.
    #[serde(default)]
    pub place: String,
    /// In which term.
    #[serde(default)]
    pub epoch: u64,
    /// When, in milliseconds since 1970.
    #[serde(default)]
    pub requested_at_ms: u64,
    /// How many slots it is to have.
    #[serde(default)]
    pub slots: u32,
    /// It is to leave as soon as nothing of it is in use.
    #[serde(default)]
    pub releasing: bool,
}

impl WorkerRecord {
    /// The write that keeps it.
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

/// The workers that were recorded. One whose record can't be read is there all the same: nothing is known of it.
pub fn recorded_workers(records: &Records) -> Vec<(ResourceId, WorkerRecord)> {
    let read = |(name, value): (&Name, &bytes::Bytes)| {
        let worker: ResourceId = name.as_str().parse().ok()?;
        let record = serde_json::from_slice(value).unwrap_or_else(|error| {
            tracing::warn!(%worker, %error, "the record of a worker can't be read");
            serde_json::from_str("{}").expect("every field has a default")
        });
        Some((worker, record))
    };
    records.of(Kind::Workers).filter_map(read).collect()
}

/// Where the record of a worker is.
pub fn key(worker: &ResourceId) -> Key {
    let name = Name::new(worker.as_str()).expect("the ids of workers are made of what names are");
    Key::new(Kind::Workers, name)
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
    }
}
