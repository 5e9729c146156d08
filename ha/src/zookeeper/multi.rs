//! A transaction as a list of operations, which can be measured, sent, adapted where it was refused, and sent again.

use bytes::Bytes;

use super::session::STORE;
use crate::error::{Error, Result};

/// Bytes that one request may have. The server's own limit is 1 MiB, and it answers more by dropping the connection,
/// for all that is in flight on it.
pub(super) const REQUEST_LIMIT: usize = 900_000;

/// Bytes of an operation besides its path and data: headers, flags, the access list of a created node.
pub(super) const OPERATION_OVERHEAD: usize = 64;

/// One operation of a transaction. Paths are absolute.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    /// The node is there, at this data version if one is given.
    Check { path: String, version: Option<i32> },
    /// The node is not there, and is created.
    Create {
        path: String,
        data: Bytes,
        ephemeral: bool,
    },
    /// The node is there, at this data version if one is given, and its data is replaced.
    Set {
        path: String,
        data: Bytes,
        version: Option<i32>,
    },
    /// The node is there and is deleted.
    Delete { path: String },
}

impl Operation {
    fn size(&self) -> usize {
        OPERATION_OVERHEAD
            + match self {
                Operation::Check { path, .. } | Operation::Delete { path } => path.len(),
                Operation::Create { path, data, .. } | Operation::Set { path, data, .. } => {
                    path.len() + data.len()
                }
            }
    }
}

/// The definite answer to a transaction.
#[derive(Debug)]
pub(super) enum Reply {
    /// Applied; the data version after each operation that set one.
    Applied(Vec<Option<i32>>),
    /// Nothing was applied: this operation was the first for which the nodes were not as it needs them.
    Refused { index: usize },
}

/// `TooLarge` if the operations don't fit into one request.
pub(super) fn check_size(operations: &[Operation]) -> Result<()> {
    let size = operations.iter().map(Operation::size).sum();
    if size > REQUEST_LIMIT {
        let what = "a transaction";
        return Err(Error::TooLarge {
            store: STORE,
            what,
            size,
            limit: REQUEST_LIMIT,
        });
    }
    Ok(())
}
