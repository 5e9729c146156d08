//! What etcd allows this user: found out by requests that etcd checks in full and that never change anything.
//!
//! etcd checks the permissions for both branches of a transaction before it looks at its conditions, so that writes in a
//! branch that can't be taken tell whether they would be allowed.

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};

use super::client::{Connection, Repeat};
use super::values::Keys;
use crate::election::ProcessId;
use crate::error::{Error, Result};
use crate::keys::{Key, Kind, Name};

/// The name of items that nobody has.
const NOBODY: &str = "permission-check";

/// What a leader must be allowed and this user is not, in words.
pub(super) async fn lacking(connection: &Connection, keys: &Keys) -> Result<Vec<String>> {
    let name = Name::new(NOBODY).expect("it is a name");
    let mut written = vec![
        ("the election", keys.epoch()),
        ("the election", keys.leader()),
        ("the election", keys.leader_info()),
        ("members", keys.member(&ProcessId::new(NOBODY))),
        ("changes", keys.changes()),
        ("changes", keys.ring(0)),
    ];
    for kind in Kind::ALL {
        let key = keys.item(&Key::new(kind, name.clone()));
        written.push((kind.directory(), key));
    }
    let mut lacking = Vec::new();
    let all = GetOptions::new().with_prefix().with_count_only();
    let read = TxnOp::get(keys.prefix(), Some(all));
    if let Some(reason) = refusal(connection, keys, read).await? {
        lacking.push(format!("to read {}: {reason}", keys.prefix()));
    }
    for (what, key) in written {
        for (verb, operation) in [
            ("write", TxnOp::put(key.as_str(), "", None)),
            ("delete", TxnOp::delete(key.as_str(), None)),
        ] {
            if let Some(reason) = refusal(connection, keys, operation).await? {
                lacking.push(format!("to {verb} {key} ({what}): {reason}"));
                // One right of etcd's stands for both.
                break;
            }
        }
    }
    Ok(lacking)
}

/// Why an operation would not be allowed; `None`: it would be.
async fn refusal(connection: &Connection, keys: &Keys, operation: TxnOp) -> Result<Option<String>> {
    // No key has ever had fewer versions than none.
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
