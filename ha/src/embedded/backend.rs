//! The embedded store as a [`Backend`].
//!
//! Invariant: only a contender creates the store. An observer of a store that does not exist gets `Unreachable`
//! and may try again, because the process that creates it may be starting.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::directory::Directory;
use super::{EmbeddedOptions, STORE, open_election, open_store};
use crate::backend::{Access, Backend};
use crate::clock::Clock;
use crate::election::{ElectionDriver, ProcessId};
use crate::error::{Error, Result};
use crate::keys::Kinds;
use crate::retry::Backoff;
use crate::store::CoordinationStore;

/// Pauses between two checks of the directory by an observer. Short: a check is cheap, and the process that creates
/// the store may be starting at this moment.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Number of attempts to remove the directory.
const REMOVE_TRIES: usize = 10;
const REMOVE_PAUSE: Duration = Duration::from_millis(100);

#[async_trait]
impl Backend for EmbeddedOptions {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn lease(&self) -> Option<Duration> {
        None
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.dir)
    }

    fn absence(&self) -> Option<String> {
        let database = Directory::at(&self.dir).database();
        // If that can't be determined, opening reports the reason.
        if database.try_exists().unwrap_or(true) {
            return None;
        }
        let place = self.dir.display();
        Some(match self.dir.exists() {
            true => format!("{place} has no store"),
            false => format!("there is no {place}"),
        })
    }

    fn observer_backoff(&self) -> Backoff {
        Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
    }

    async fn open_election(
        &self,
        process: ProcessId,
        access: Access,
    ) -> Result<Arc<dyn ElectionDriver>> {
        self.check_exists(access)?;
        let contends = access == Access::Contend;
        let election = open_election(self.clone(), process, contends, Clock::Boottime);
        Ok(Arc::new(election.await?))
    }

    async fn open_store(&self, kinds: Kinds, access: Access) -> Result<Arc<dyn CoordinationStore>> {
        self.check_exists(access)?;
        Ok(Arc::new(open_store(self.clone(), kinds).await?))
    }

    /// Removes its directory.
    async fn remove(&self) -> Result<()> {
        let dir = self.dir.clone();
        let mut tries = 0;
        loop {
            tries += 1;
            match remove_all(dir.clone()).await {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                // Processes that are just ending may still create a file there.
                Err(_) if tries < REMOVE_TRIES => tokio::time::sleep(REMOVE_PAUSE).await,
                Err(error) => {
                    let text = format!("{} can't be removed: {error}", dir.display());
                    return Err(Error::Misconfigured(text.into()));
                }
            }
        }
    }
}

impl EmbeddedOptions {
    /// An error for an observer of a store that no process has created: opening would create it.
    fn check_exists(&self, access: Access) -> Result<()> {
        if access == Access::Contend || self.absence().is_none() {
            return Ok(());
        }
        Err(Error::Unreachable {
            store: STORE,
            endpoints: self.dir.display().to_string(),
            reason: "it does not exist".to_owned(),
        })
    }
}

async fn remove_all(dir: PathBuf) -> io::Result<()> {
    let removing = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(dir));
    removing.await.map_err(io::Error::other).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::kinds::KINDS;

    #[tokio::test]
    async fn an_observer_creates_no_store_and_a_contender_does_and_it_is_removed() {
        let root = tempfile::tempdir().expect("a directory");
        let backend = EmbeddedOptions::new(root.path().join("cluster"));
        let process = || ProcessId::new("a");
        for _ in 0..2 {
            let opened = backend.open_election(process(), Access::Observe).await;
            let error = opened.expect_err("there is none");
            assert!(matches!(error, Error::Unreachable { .. }), "{error}");
            let opened = backend.open_store(KINDS, Access::Observe).await;
            assert!(opened.is_err());
        }
        let absence = backend.absence().expect("there is none");
        assert!(absence.starts_with("there is no "), "{absence}");
        std::fs::create_dir(&backend.dir).expect("created");
        let absence = backend.absence().expect("there is none");
        assert!(absence.ends_with(" has no store"), "{absence}");
        assert!(!backend.is_removed(), "only the file is missing");

        let store = backend.open_store(KINDS, Access::Contend).await;
        drop(store.expect("created"));
        assert_eq!(backend.absence(), None);
        let observer = backend.open_election(process(), Access::Observe).await;
        drop(observer.expect("opened"));
        backend.remove().await.expect("removed");
        assert!(backend.is_removed());
        backend.remove().await.expect("nothing is left to remove");
    }
}
