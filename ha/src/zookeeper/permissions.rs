//! Checks this user's permissions in ZooKeeper, with transactions that it checks in full and that never
//! change anything.
//!
//! ZooKeeper processes the operations of a transaction in order and stops at the first that fails: operations
//! before one that can't succeed are checked and undone. Any error but `Denied` ends the check: it says nothing
//! about permissions.

use super::multi::{Operation, Reply};
use super::session::Session;
use crate::error::{Error, Result};
use crate::keys::{Kind, Kinds, path};

/// The name of nodes that never exist.
const PROBE_NAME: &str = "permission-check";

/// The permissions that a leader needs and this user lacks, in words.
pub(super) async fn missing(session: &Session, kinds: Kinds) -> Result<Vec<String>> {
    let directories = kinds
        .iter()
        .map(Kind::directory)
        .chain([path::MEMBERS, path::CHANGES])
        .map(|directory| session.path(directory));
    let mut missing = Vec::new();
    // The namespace itself holds the nodes of the election.
    for directory in [session.root().to_owned()].into_iter().chain(directories) {
        let node = format!("{directory}/{PROBE_NAME}");
        let create = Operation::Create {
            path: node.clone(),
            data: bytes::Bytes::new(),
            ephemeral: false,
        };
        let delete = Operation::Delete { path: node };
        if let Some(reason) = refusal(session, vec![create.clone()]).await? {
            missing.push(format!("to create nodes in {directory}: {reason}"));
        } else if let Some(reason) = refusal(session, vec![create, delete]).await? {
            missing.push(format!("to delete nodes in {directory}: {reason}"));
        }
    }
    for node in [path::EPOCH, path::LEADER_INFO, path::CHANGES] {
        let set = Operation::Set {
            path: session.path(node),
            data: bytes::Bytes::new(),
            version: None,
        };
        if let Some(reason) = refusal(session, vec![set]).await? {
            missing.push(format!("to set {}: {reason}", session.path(node)));
        }
    }
    Ok(missing)
}

/// The reason why operations are not allowed; `None` if they are allowed, or if their nodes do not exist.
async fn refusal(session: &Session, mut operations: Vec<Operation>) -> Result<Option<String>> {
    operations.push(Operation::Check {
        path: session.root().to_owned(),
        // No process ever writes the namespace's own node.
        version: Some(i32::MAX),
    });
    match session.commit(&operations).await {
        Ok(Reply::Refused { .. }) => Ok(None),
        Ok(Reply::Applied(_)) => Err(Error::Corrupt {
            key: session.root().to_owned(),
            reason: "its data version is the highest there is".to_owned(),
        }),
        Err(Error::Denied { reason, .. }) => Ok(Some(reason)),
        Err(error) => Err(error),
    }
}
