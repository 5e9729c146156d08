//! What ZooKeeper allows this user: found out by transactions that it checks in full and that never change anything.
//!
//! ZooKeeper goes through the operations of a transaction in order and stops at the first that fails: what comes before one
//! that can't succeed is checked, and undone.

use super::multi::{Operation, Reply};
use super::session::Session;
use crate::error::{Error, Result};
use crate::keys::{Kind, path};

/// The name of nodes that nobody has.
const NOBODY: &str = "permission-check";

/// What a leader must be allowed and this user is not, in words.
pub(super) async fn lacking(session: &Session) -> Result<Vec<String>> {
    let directories = Kind::ALL.map(Kind::directory);
    let directories = directories
        .into_iter()
        .chain([path::MEMBERS, path::CHANGES])
        .map(|directory| session.path(directory));
    let mut lacking = Vec::new();
    // The namespace itself holds the nodes of the election.
    for directory in [session.root().to_owned()].into_iter().chain(directories) {
        let node = format!("{directory}/{NOBODY}");
        let create = Operation::Create {
            path: node.clone(),
            data: bytes::Bytes::new(),
            ephemeral: false,
        };
        let delete = Operation::Delete { path: node };
        if let Some(reason) = refusal(session, vec![create.clone()]).await? {
            lacking.push(format!("to create nodes in {directory}: {reason}"));
        } else if let Some(reason) = refusal(session, vec![create, delete]).await? {
            lacking.push(format!("to delete nodes in {directory}: {reason}"));
        }
    }
    for node in [path::EPOCH, path::LEADER_INFO, path::CHANGES] {
        let set = Operation::Set {
            path: session.path(node),
            data: bytes::Bytes::new(),
            version: None,
        };
        if let Some(reason) = refusal(session, vec![set]).await? {
            lacking.push(format!("to set {}: {reason}", session.path(node)));
        }
    }
    Ok(lacking)
}

/// Why operations would not be allowed; `None`: they would be, or what they are about is not there.
async fn refusal(session: &Session, mut operations: Vec<Operation>) -> Result<Option<String>> {
    operations.push(Operation::Check {
        path: session.root().to_owned(),
        // Nobody ever writes the namespace's own node.
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
