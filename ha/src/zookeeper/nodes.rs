//! Nodes: their names and values, the parts of transactions that check or move `epoch`, and removing a tree.
//!
//! Keeps no state. `election.rs` and `store.rs` commit what is built here; a refused commit means that the nodes
//! changed after they were read, and the caller reads again.
//!
//! Besides the nodes of [`crate::keys`] there is `epoch/<incarnation>`, empty and created together with
//! `epoch`. A data version restarts at zero when its node is deleted and created again, and a transaction
//! can't check a node's content or creation time; the existence of this node proves the incarnation. With it
//! the fence holds even if another client deletes some or all nodes under a living session.

use bytes::Bytes;
use futures::future::try_join_all;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::multi::{Operation, Reply};
use super::session::{Node, Session, unavailable};
use crate::election::{ClusterIncarnation, EpochRecord, EpochToken, ProcessId};
use crate::error::{Error, Result};
use crate::keys::{CHANGES_RING, path};

/// Number of nodes that are listed, or deleted, at once.
const AT_ONCE: usize = 256;
/// Number of tries for a tree that changes meanwhile: ephemeral nodes disappear when their sessions end.
const TRIES: usize = 5;

/// The node that proves the incarnation, relative to the namespace.
pub(super) fn marker(incarnation: &ClusterIncarnation) -> String {
    format!("{}/{}", path::EPOCH, name(incarnation.as_str()))
}

/// The node of a contending process, relative to the namespace.
pub(super) fn member(process: &ProcessId) -> String {
    format!("{}/{}", path::MEMBERS, name(process.as_str()))
}

/// The node that has the names touched by transaction `number`; overwritten `CHANGES_RING` transactions later.
/// Relative to the namespace.
pub(super) fn ring(number: u64) -> String {
    format!("{}/{}", path::CHANGES, number % CHANGES_RING)
}

/// Checks that the incarnation is this one.
pub(super) fn check_incarnation(session: &Session, incarnation: &ClusterIncarnation) -> Operation {
    Operation::Check {
        path: session.path(&marker(incarnation)),
        version: None,
    }
}

/// Checks that `epoch` is at this token, in this incarnation.
pub(super) fn fence(
    session: &Session,
    token: EpochToken,
    incarnation: &ClusterIncarnation,
) -> Result<[Operation; 2]> {
    let epoch = session.path(path::EPOCH);
    Ok([
        Operation::Check {
            path: epoch,
            version: Some(version(token)?),
        },
        check_incarnation(session, incarnation),
    ])
}

/// Checks that `epoch` is at this token, in the incarnation of `record`, and sets it to `record`.
pub(super) fn set_epoch(
    session: &Session,
    token: EpochToken,
    record: &EpochRecord,
) -> Result<[Operation; 2]> {
    let (path, data) = (session.path(path::EPOCH), encode(record)?);
    Ok([
        Operation::Set {
            path,
            data,
            version: Some(version(token)?),
        },
        check_incarnation(session, &record.incarnation),
    ])
}

/// Checks that there is no `epoch`, and creates it and the node of its incarnation.
pub(super) fn create_epoch(session: &Session, record: &EpochRecord) -> Result<[Operation; 2]> {
    let create = |path, data| Operation::Create {
        path,
        data,
        ephemeral: false,
    };
    Ok([
        create(session.path(path::EPOCH), encode(record)?),
        create(session.path(&marker(&record.incarnation)), Bytes::new()),
    ])
}

/// Checks that `epoch` is at this token, readable or not, and sets it to `record` with a new incarnation.
/// Deletes the nodes that proved the former one.
pub(super) async fn replace_epoch(
    session: &Session,
    token: EpochToken,
    record: &EpochRecord,
) -> Result<Vec<Operation>> {
    let path = session.path(path::EPOCH);
    let former = session.children(&path).await?.unwrap_or_default();
    let mut operations = vec![Operation::Set {
        path: path.clone(),
        data: encode(record)?,
        version: Some(version(token)?),
    }];
    operations.extend(former.into_iter().map(|name| Operation::Delete {
        path: format!("{path}/{name}"),
    }));
    operations.push(Operation::Create {
        path: session.path(&marker(&record.incarnation)),
        data: Bytes::new(),
        ephemeral: false,
    });
    Ok(operations)
}

/// Decodes the node `epoch`: its value and its token.
pub(super) fn decode_epoch(node: &Node) -> Result<(EpochRecord, EpochToken)> {
    let token = u64::try_from(node.version).map_err(|_| Error::Corrupt {
        key: path::EPOCH.into(),
        reason: format!("its data version is {}", node.version),
    })?;
    Ok((decode(path::EPOCH, node)?, EpochToken(token)))
}

/// The data version of a token.
pub(super) fn version(token: EpochToken) -> Result<i32> {
    i32::try_from(token.0).map_err(|_| Error::Corrupt {
        key: path::EPOCH.into(),
        reason: format!("{} is not a data version", token.0),
    })
}

/// Deletes a node and everything below it, children first, in several transactions: after a crash or an error a
/// part is left, and the call may be repeated.
pub(super) async fn remove_tree(session: &Session, root: &str) -> Result<()> {
    for _ in 0..TRIES {
        if remove_as_seen(session, root).await? {
            return Ok(());
        }
    }
    Err(unavailable(format!("{root} changes while it is removed")))
}

/// Deletes the tree as listed. Returns false if it had changed.
async fn remove_as_seen(session: &Session, root: &str) -> Result<bool> {
    // Children come after their parent.
    let mut found = vec![root.to_owned()];
    let mut listed = 0;
    while listed < found.len() {
        let some = &found[listed..found.len().min(listed + AT_ONCE)];
        let children = try_join_all(some.iter().map(|path| session.children(path))).await?;
        let below = some.iter().zip(children).flat_map(|(path, names)| {
            let names = names.unwrap_or_default().into_iter();
            names.map(move |name| format!("{path}/{name}"))
        });
        let below: Vec<String> = below.collect();
        listed += some.len();
        found.extend(below);
    }
    for some in found.rchunks(AT_ONCE) {
        let delete = |path: &String| Operation::Delete { path: path.clone() };
        let deletions: Vec<Operation> = some.iter().rev().map(delete).collect();
        match session.commit(&deletions).await? {
            Reply::Applied(_) => {}
            Reply::Refused { .. } => return Ok(false),
        }
    }
    Ok(true)
}

/// Decodes the value of a node.
pub(super) fn decode<T: DeserializeOwned>(key: &str, node: &Node) -> Result<T> {
    serde_json::from_slice(&node.data).map_err(|error| Error::Corrupt {
        key: key.to_owned(),
        reason: error.to_string(),
    })
}

/// Encodes a value for a node.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Bytes> {
    match serde_json::to_vec(value) {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) => Err(Error::Misconfigured(
            format!("can't be written: {error}").into(),
        )),
    }
}

/// Converts a text to the name of a node, with characters escaped that a path can't contain.
fn name(text: &str) -> String {
    let mut name = String::new();
    for (at, char) in text.char_indices() {
        match char {
            '/' | '%' => name.push_str(&format!("%{:02x}", u32::from(char))),
            '.' if at == 0 => name.push_str("%2e"),
            char if char.is_control() => name.push_str(&format!("%{:02x}", u32::from(char))),
            char => name.push(char),
        }
    }
    name
}
