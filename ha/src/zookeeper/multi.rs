//! A transaction as a list of operations, which can be measured, sent, adapted after a refusal, and sent
//! again. Values only: `election.rs` and `store.rs` build them, and `session.rs` sends them.

use bytes::Bytes;

use super::session::STORE;
use crate::error::{Error, Result};

/// Limit of one request, in bytes. The server's own limit is 1 MiB; above it the server drops the connection
/// with all requests in flight.
pub(super) const REQUEST_LIMIT: usize = 900_000;

/// Bytes of an operation besides its path and data: headers, flags, the access list of a created node.
pub(super) const OPERATION_OVERHEAD: usize = 64;

/// One operation of a transaction. Paths are absolute.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    /// Checks that the node exists, with this data version if one is given.
    Check { path: String, version: Option<i32> },
    /// Creates the node, which must not exist.
    Create {
        path: String,
        data: Bytes,
        ephemeral: bool,
    },
    /// Replaces the data of the node, which must exist, with this data version if one is given.
    Set {
        path: String,
        data: Bytes,
        version: Option<i32>,
    },
    /// Deletes the node, which must exist.
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
    /// Nothing was applied; the index of the first operation that failed.
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
