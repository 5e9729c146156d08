//! Keys and values in etcd: paths below the namespace, and JSON.
//!
//! The JSON of one value must always be the same bytes, because guards compare it. So the order of the fields in
//! these types is part of the format: another order makes guards fail against values that are already stored.

use etcd_client::{KeyValue, TxnOpResponse, TxnResponse};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::election::{
    ClusterIncarnation, ElectionView, Epoch, EpochRecord, EpochToken, ProcessId, StoreIdentity,
    Unreadable,
};
use crate::error::{Error, Result};
use crate::keys::{CHANGES_RING, Key, Kind, path};
use crate::store::{Change, Guard};

/// The keys below a namespace.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    /// Ends with a slash.
    prefix: String,
}

impl Keys {
    pub(super) fn new(namespace: &str) -> Keys {
        Keys {
            prefix: format!("{}/", namespace.trim_end_matches('/')),
        }
    }

    /// The common prefix of all keys; ends with a slash.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn fixed(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    pub(super) fn epoch(&self) -> String {
        self.fixed(path::EPOCH)
    }

    pub(super) fn leader(&self) -> String {
        self.fixed(path::LEADER)
    }

    pub(super) fn leader_info(&self) -> String {
        self.fixed(path::LEADER_INFO)
    }

    pub(super) fn member(&self, process: &ProcessId) -> String {
        format!("{}{process}", self.members())
    }

    /// The prefix of all members.
    pub(super) fn members(&self) -> String {
        format!("{}{}/", self.prefix, path::MEMBERS)
    }

    pub(super) fn changes(&self) -> String {
        self.fixed(path::CHANGES)
    }

    pub(super) fn ring(&self, number: u64) -> String {
        format!("{}{}/{}", self.prefix, path::CHANGES, number % CHANGES_RING)
    }

    pub(super) fn item(&self, key: &Key) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The prefix of all items of a kind.
    pub(super) fn kind(&self, kind: Kind) -> String {
        format!("{}{}/", self.prefix, kind.directory())
    }
}

/// Encodes a value.
pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("the types of this crate's keys have JSON forms")
}

/// Decodes the value of the key at `path`, below the namespace.
pub(super) fn decode<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| Error::Corrupt {
        key: path.to_owned(),
        reason: error.to_string(),
    })
}

fn decode_first<T: DeserializeOwned>(path: &str, kvs: &[KeyValue]) -> Result<Option<T>> {
    kvs.first().map(|kv| decode(path, kv.value())).transpose()
}

/// The key-values of each read in a transaction's answer, in order.
fn reads(answer: &TxnResponse) -> Vec<Vec<KeyValue>> {
    let kvs = |answer| match answer {
        TxnOpResponse::Get(mut answer) => Some(answer.take_kvs()),
        TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
    };
    answer.op_responses().into_iter().filter_map(kvs).collect()
}

/// The revision of an answer.
pub(super) fn revision(header: Option<&etcd_client::ResponseHeader>) -> i64 {
    header.map_or(0, etcd_client::ResponseHeader::revision)
}

/// The identity of the cluster that answered: its id, which etcd derives from the first members' peer URLs
/// and the cluster's token.
pub(super) fn store_identity(
    header: Option<&etcd_client::ResponseHeader>,
) -> Option<StoreIdentity> {
    let id = header.map_or(0, etcd_client::ResponseHeader::cluster_id);
    (id != 0).then(|| StoreIdentity::new(format!("{id:x}")))
}

/// The token for a revision of `epoch`.
pub(super) fn token(revision: i64) -> EpochToken {
    EpochToken(u64::try_from(revision).unwrap_or(0))
}

/// The revision of `epoch` for a token. A token that is not from etcd never matches.
pub(super) fn token_revision(token: EpochToken) -> i64 {
    i64::try_from(token.0).unwrap_or(i64::MAX)
}

fn epoch_record(kvs: &[KeyValue]) -> Result<Option<(EpochRecord, EpochToken)>> {
    let record = decode_first(path::EPOCH, kvs)?;
    Ok(record.zip(kvs.first().map(|kv| token(kv.mod_revision()))))
}

/// Two texts that enclose all values of `epoch` with this epoch and incarnation, for any holder: these two
/// fields come first in the JSON.
pub(super) fn epoch_between(epoch: Epoch, incarnation: &ClusterIncarnation) -> [Vec<u8>; 2] {
    let record = EpochRecord {
        epoch,
        incarnation: incarnation.clone(),
        holder: None,
        store: None,
    };
    let mut first = encode(&record);
    // It is followed by the end of the object, or by a comma and further fields: both sort before a tilde.
    let _end = first.pop();
    let mut last = first.clone();
    last.push(b'~');
    [first, last]
}

/// The bytes of `epoch` from an answer that read it first.
pub(super) fn epoch_value(answer: &TxnResponse) -> Option<Vec<u8>> {
    let reads = reads(answer);
    let kv = reads.first()?.first()?;
    Some(kv.value().to_vec())
}

/// The view from an answer that read `epoch`, `leader` and `leader-info`, in this order.
pub(super) fn election_view(answer: &TxnResponse) -> Result<ElectionView> {
    let reads = reads(answer);
    let [epoch, leader, info] = &reads[..] else {
        return Err(super::status::no_answer(
            "the answer lacks the requested values",
        ));
    };
    let at = epoch.first().map_or(0, KeyValue::mod_revision);
    let (epoch, unreadable) = match epoch_record(epoch) {
        Ok(epoch) => (epoch, None),
        Err(error) => {
            let reason = error.to_string();
            let token = token(at);
            (None, Some(Unreadable { reason, token }))
        }
    };
    Ok(ElectionView {
        store: store_identity(answer.header()),
        epoch,
        unreadable,
        // An unreadable value counts as missing: its owner writes it again.
        leader: readable(decode_first(path::LEADER, leader)),
        info: readable(decode_first(path::LEADER_INFO, info)),
        is_resigned: false,
    })
}

fn readable<T>(decoded: Result<Option<T>>) -> Option<T> {
    decoded.unwrap_or_else(|error| {
        tracing::debug!(%error, "an unreadable value is ignored");
        None
    })
}

/// The guard from an answer that read `epoch`, `leader` and `changes`, in this order.
pub(super) fn guard(answer: &TxnResponse) -> Result<Guard> {
    let reads = reads(answer);
    let [epoch, leader, changes] = &reads[..] else {
        return Err(super::status::no_answer(
            "the answer lacks the requested values",
        ));
    };
    let flat =
        |(record, token): (EpochRecord, EpochToken)| -> (Epoch, EpochToken, ClusterIncarnation) {
            (record.epoch, token, record.incarnation)
        };
    Ok(Guard {
        epoch: epoch_record(epoch)?.map(flat),
        leader_present: !leader.is_empty(),
        change: change(changes)?,
    })
}

/// The value of `changes`; number 0 if the key does not exist.
pub(super) fn change(kvs: &[KeyValue]) -> Result<Change> {
    Ok(decode_first(path::CHANGES, kvs)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::TermHolder;

    #[test]
    fn a_commit_matches_its_epoch_for_any_holder_and_no_other_epoch() {
        let record = |epoch, incarnation: &str, holds: bool| EpochRecord {
            epoch: Epoch::new(epoch),
            incarnation: ClusterIncarnation::new(incarnation),
            holder: holds.then(|| TermHolder::starting(ProcessId::new("a"))),
            store: holds.then(|| StoreIdentity::new("~")),
        };
        let [after, before] = epoch_between(Epoch::new(7), &ClusterIncarnation::new("c"));
        let fits = |record: &EpochRecord| {
            let value = encode(record);
            after < value && value < before
        };
        assert!(fits(&record(7, "c", true)));
        assert!(fits(&record(7, "c", false)));
        for other in [
            record(6, "c", true),
            record(8, "c", true),
            record(70, "c", true),
            record(7, "b", true),
            record(7, "d", false),
            record(7, "cc", true),
        ] {
            assert!(!fits(&other), "{other:?}");
        }
    }
}
