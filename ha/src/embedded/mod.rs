//! The embedded store: SQLite in a directory on this host, shared by all processes of a cluster on one host.
//!
//! Leadership is the epoch row and nothing else; the token is its number. There is no lease: each process
//! holds an OS lock on its own member file for its lifetime, and if another process can take that lock, the
//! owner is dead (`member_locks.rs`). A thread that waits for the leader's lock detects the leader's death as soon
//! as the kernel has released it.
//!
//! Not for several hosts: network file systems are refused.
//!
//! State: the database file owns epoch, changes and items; `members/` owns liveness. A handle keeps only copies.
//!
//! Threads of a handle: one that writes, one that reads and polls for changes, one that listens for changes
//! (`change_signal.rs`), and one for each leader that it ever waited for, which ends with that leader.

mod backend;
mod change_signal;
#[cfg(feature = "testing")]
pub mod conformance;
mod database;
mod directory;
mod election;
mod member_locks;
mod reserve;
mod stopped_lock_holder;
mod store;
mod tables;
#[cfg(test)]
mod tests;
mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use self::change_signal::Listener;
use self::database::Database;
use self::directory::Directory;
pub use self::election::EmbeddedElection;
use self::member_locks::Members;
pub use self::store::EmbeddedStore;
use crate::clock::Clock;
use crate::election::ProcessId;
use crate::error::{Error, Result};
use crate::keys::Kinds;
use crate::store::Limits;

const STORE: &str = "the embedded store";

/// Number of tries to open the file while another process creates it.
const OPEN_TRIES: usize = 10;
const OPEN_PAUSE: Duration = Duration::from_millis(20);

/// Polling interval of a handle without an inotify watch.
const FALLBACK_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Location and timeouts of an embedded store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// Its directory, on a local file system; created with its parents.
    pub dir: PathBuf,
    /// Timeout of a write that waits for writes of other processes.
    pub busy_timeout: Duration,
    /// Interval of polling for changes by other processes, in addition to notifications.
    pub poll_interval: Duration,
    /// The limits of one transaction.
    pub limits: Limits,
}

impl EmbeddedOptions {
    /// The default options for `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> EmbeddedOptions {
        EmbeddedOptions {
            dir: dir.into(),
            busy_timeout: Duration::from_secs(1),
            poll_interval: Duration::from_millis(100),
            limits: Limits {
                writes: 1000,
                bytes: 8 * 1024 * 1024,
            },
        }
    }
}

/// Opens the election part. A process that `contends` locks its member file; one that does not only observes.
/// The clock is unused, because there is no lease.
pub async fn open_election(
    options: EmbeddedOptions,
    process: ProcessId,
    contends: bool,
    _clock: Clock,
) -> Result<EmbeddedElection> {
    let directory = create_directory(&options.dir).await?;
    let members = Members::new(directory.clone());
    let own = if contends {
        let own = members.own(&process).await?;
        if let Err(error) = members.remove_dead(&own) {
            tracing::debug!(%error, "the member files of dead processes stay");
        }
        Some(own)
    } else {
        None
    };
    let reader = open_database(&directory, &options).await?;
    let writer = open_database(&directory, &options).await?;
    EmbeddedElection::start(&options, members, own, reader, writer)
}

/// Opens the records part.
pub async fn open_store(options: EmbeddedOptions, kinds: Kinds) -> Result<EmbeddedStore> {
    let directory = create_directory(&options.dir).await?;
    let reader = open_database(&directory, &options).await?;
    let writer = open_database(&directory, &options).await?;
    let members = Members::new(directory);
    EmbeddedStore::start(&options, members, kinds, reader, writer)
}

impl EmbeddedOptions {
    /// The polling interval of a handle, depending on whether it has a listener.
    fn poll_interval(&self, listener: Option<&Listener>) -> Duration {
        let interval = self.poll_interval;
        if listener.is_some() {
            interval
        } else {
            interval.min(FALLBACK_POLL_INTERVAL)
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::Unavailable {
            store: STORE,
            reason: error.to_string(),
        })?
}

async fn create_directory(root: &Path) -> Result<Directory> {
    let root = root.to_owned();
    blocking(move || Directory::create(&root)).await
}

async fn open_database(directory: &Directory, options: &EmbeddedOptions) -> Result<Database> {
    let mut tries = 1;
    loop {
        let (path, busy_timeout) = (directory.database(), options.busy_timeout);
        match blocking(move || Database::open(&path, busy_timeout)).await {
            // SQLite does not wait for another process that is switching the file to WAL mode.
            Err(Error::Unavailable { reason, .. }) if tries < OPEN_TRIES => {
                tracing::debug!(reason, "the embedded store is busy: opening it again");
                tries += 1;
                tokio::time::sleep(OPEN_PAUSE).await;
            }
            result => return result,
        }
    }
}
