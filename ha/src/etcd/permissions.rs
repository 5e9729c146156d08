//! Checks this user's permissions in etcd, with requests that etcd checks in full and that never change
//! anything.
//!
//! etcd checks the permissions for both branches of a transaction before it evaluates its conditions, so
//! writes in a branch that is never taken show whether they are allowed. Any error but `Denied` ends the check: it
//! says nothing about permissions.

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};

use super::client::{Connection, Repeat};
use super::values::Keys;
use crate::election::ProcessId;
use crate::error::{Error, Result};
use crate::keys::{Key, Kinds, Name};

/// The name of items that never exist.
const PROBE_NAME: &str = "permission-check";

/// The permissions that a leader needs and this user lacks, in words.
pub(super) async fn missing(
    connection: &Connection,
    keys: &Keys,
    kinds: Kinds,
) -> Result<Vec<String>> {
    let name = Name::new(PROBE_NAME).expect("it is a name");
    let mut written = vec![
        ("the election", keys.epoch()),
        ("the election", keys.leader()),
        ("the election", keys.leader_info()),
        ("members", keys.member(&ProcessId::new(PROBE_NAME))),
        ("changes", keys.changes()),
        ("changes", keys.ring(0)),
    ];
    for kind in kinds.iter() {
        let key = keys.item(&Key::new(kind, name.clone()));
        written.push((kind.directory(), key));
    }
    let mut missing = Vec::new();
    let all = GetOptions::new().with_prefix().with_count_only();
    let read = TxnOp::get(keys.prefix(), Some(all));
    if let Some(reason) = refusal(connection, keys, read).await? {
        missing.push(format!("to read {}: {reason}", keys.prefix()));
    }
    for (what, key) in written {
        for (verb, operation) in [
            ("write", TxnOp::put(key.as_str(), "", None)),
            ("delete", TxnOp::delete(key.as_str(), None)),
        ] {
            if let Some(reason) = refusal(connection, keys, operation).await? {
                missing.push(format!("to {verb} {key} ({what}): {reason}"));
                // One permission of etcd covers both.
                break;
            }
        }
    }
    Ok(missing)
}

/// The reason why an operation is not allowed; `None` if it is allowed.
async fn refusal(connection: &Connection, keys: &Keys, operation: TxnOp) -> Result<Option<String>> {
    // Never true: a version is never negative.
    let never = Compare::version(keys.epoch(), CompareOp::Less, 0);
    let call = connection.call(Repeat::Always, |client| {
        let check = Txn::new()
            .when([never.clone()])
            .and_then([operation.clone()]);
        async move { client.kv_client().txn(check).await }
    });
    match call.await {
        Ok(_) => Ok(None),
        Err(Error::Denied { reason, .. }) => Ok(Some(reason)),
        Err(error) => Err(error),
    }
}
