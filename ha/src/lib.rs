//! Leader election with fencing tokens, and fenced record stores, on etcd, ZooKeeper or SQLite.
pub mod clock;
pub mod election;
pub mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod failpoint;
pub mod keys;
pub mod retry;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use error::{Error, Outcome, Result};
