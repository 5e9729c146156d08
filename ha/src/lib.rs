//! Leader election with fencing tokens, and fenced record stores, on etcd, ZooKeeper or SQLite.
pub mod blob;
pub mod clock;
pub mod election;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod failpoint;
pub mod jobs;
pub mod keys;
pub mod memory;
pub mod retry;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use error::{Error, Outcome, Result};
