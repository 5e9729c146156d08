//! A backend: one kind of store, and where that store is. Everything that depends on the kind of store is asked of
//! [`Backend`]; no code outside the folders of the backends distinguishes them.
//!
//! Each backend implements it in its own folder, in `backend.rs`: `EtcdOptions`, `ZooKeeperOptions`,
//! `EmbeddedOptions` and [`MemoryCluster`](crate::memory::MemoryCluster). The value is only a description: it
//! connects to nothing and keeps nothing open. [`crate::services`] opens it with retries.
//!
//! ```
//! use std::sync::Arc;
//!
//! use tanist_ha::backend::{Access, Backend};
//! use tanist_ha::election::ProcessId;
//! use tanist_ha::keys::{Kind, Kinds};
//! use tanist_ha::memory::MemoryCluster;
//!
//! const ITEMS: Kind = Kind::new("items");
//! const KINDS: Kinds = Kinds::new(&[ITEMS]);
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tanist_ha::Result<()> {
//! let backend: Arc<dyn Backend> = Arc::new(MemoryCluster::default());
//! let election = backend.open_election(ProcessId::new("a"), Access::Contend).await?;
//! let store = backend.open_store(KINDS, Access::Contend).await?;
//! assert!(store.list(ITEMS, None, 10).await?.items.is_empty());
//! # drop(election);
//! # Ok(())
//! # }
//! ```

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::election::{ElectionDriver, ProcessId};
use crate::error::Result;
use crate::keys::Kinds;
use crate::retry::Backoff;
use crate::store::CoordinationStore;

const FIRST_RETRY: Duration = Duration::from_millis(200);
const SLOWEST_RETRY: Duration = Duration::from_secs(5);

/// What a process does with a store that it opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It contends for leadership: it keeps a lease or session, and creates what is missing.
    Contend,
    /// It only observes: it keeps no lease. A store in a directory must exist already, otherwise it gets an error: an
    /// observer with a wrong path, or one that runs as another user, must not create a store. On ZooKeeper it creates
    /// the directories that are missing: watches need them.
    Observe,
}

/// A kind of store, and where one is. Object safe.
#[async_trait]
pub trait Backend: Any + fmt::Debug + Send + Sync {
    /// Its name in configuration, log and status, like `etcd`.
    fn name(&self) -> &'static str;

    /// The lease or session timeout that it requests: how long the store keeps a dead process as leader. `None`: it
    /// has no lease, because the death of a process is detected at once.
    fn lease(&self) -> Option<Duration>;

    /// The local directory that contains the whole store, which all processes share. Its parent belongs to the store as
    /// well: it contains only such directories, one a cluster. `None`: the store is elsewhere.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// Whether the whole store was certainly removed: its local directory is gone. Reads do not show this to a process
    /// that has the store open, because they still reach the deleted files.
    fn is_removed(&self) -> bool {
        self.directory()
            .is_some_and(|directory| !directory.exists())
    }

    /// Why the store certainly does not exist: no process has created it yet, or it was removed. For display.
    /// `None`: it exists, or that is not known without asking its servers.
    fn absence(&self) -> Option<String> {
        None
    }

    /// The pauses between attempts of an observer to open it.
    fn observer_backoff(&self) -> Backoff {
        Backoff::new(FIRST_RETRY, SLOWEST_RETRY)
    }

    /// Opens the election's keys, on the current runtime. One attempt, which fails soon if no server answers.
    async fn open_election(
        &self,
        process: ProcessId,
        access: Access,
    ) -> Result<Arc<dyn ElectionDriver>>;

    /// Opens the records of these kinds, on a connection of its own. One attempt, like [`Backend::open_election`].
    async fn open_store(&self, kinds: Kinds, access: Access) -> Result<Arc<dyn CoordinationStore>>;

    /// Removes everything that the store has of a cluster that has ended for good and has no processes any more,
    /// including its epochs.
    async fn remove(&self) -> Result<()>;
}
