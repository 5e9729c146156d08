//! The marker of a storage: an object that tells a cluster that what it looks at is the storage which it has begun, and not an empty
//! directory where that was mounted, nor one that another cluster has taken for its own.
//!
//! Not here: what the coordination store says of a storage, which comes first. Invariants: nothing is written by a store that is
//! [guarded](BlobStore::guarded) unless the marker is there before and after, and nothing is deleted unless it was written by this
//! coordination store's leaders alone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{BlobStore, STORE, failure};
use crate::error::{Error, Result};
use crate::keys::Name;
use crate::own_directory;

/// How long a write waits for a term to find out about the storage.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the marker says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// Which storage it is: made up by the leader that began it, and kept in the coordination store.
    pub storage: String,
    /// The cluster's id.
    pub cluster: String,
    /// Its incarnation.
    pub incarnation: String,
    /// The epoch of the leader that has confirmed it last.
    pub epoch: u64,
    /// The process that led in it.
    pub process: String,
    /// That confirmation, which the coordination store knew before.
    pub confirmation: String,
}

/// What a term knows of the storage from the coordination store.
#[derive(Debug, Clone, Default)]
struct Expected {
    storage: String,
    confirmations: Vec<String>,
    /// Another cluster has been seen here: nothing is deleted.
    is_contested: bool,
}

/// What has to hold before a store writes or deletes.
#[derive(Debug, Clone)]
pub(super) enum Guard {
    /// A marker is there: the leader looks at what it says.
    Presence,
    /// It is the one that the term expects, once it does.
    Content(Arc<Content>),
}

#[derive(Debug, Default)]
pub(super) struct Content {
    expected: Mutex<Expected>,
    is_known: watch::Sender<bool>,
}

impl Content {
    fn lock(&self) -> MutexGuard<'_, Expected> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlobStore {
    /// The same for the term that leads: it relies on the marker that [`BlobStore::rely_on`] names, once that was called.
    #[must_use]
    pub fn guarded(&self) -> BlobStore {
        self.with_guard(Guard::Content(Arc::default()))
    }

    /// The same for those who do not lead: a marker has to be there.
    #[must_use]
    pub fn guarded_by_presence(&self) -> BlobStore {
        self.with_guard(Guard::Presence)
    }

    fn with_guard(&self, guard: Guard) -> BlobStore {
        BlobStore {
            guard: Some(guard),
            ..self.clone()
        }
    }

    /// Where it is, as it was configured.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Whether anything depends on its marker.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// The coordination store says that the storage was begun under this name, and by which confirmations its leaders are known.
    pub fn rely_on(&self, storage: &str, confirmations: &[String]) {
        if let Some(Guard::Content(content)) = &self.guard {
            let mut expected = content.lock();
            storage.clone_into(&mut expected.storage);
            expected.confirmations = confirmations.to_vec();
            drop(expected);
            content.is_known.send_replace(true);
        }
    }

    /// Whether another cluster has been seen here. As long as that is so nothing is deleted.
    pub fn set_contested(&self, is_contested: bool) {
        if let Some(Guard::Content(content)) = &self.guard {
            content.lock().is_contested = is_contested;
        }
    }

    /// The marker's name. No object of a job has one like this.
    pub fn marker_name(&self) -> Result<Name> {
        let name = Name::new(format!("storage-{}", self.tag.as_str()));
        name.map_err(|error| Error::Misconfigured(error.to_string().into()))
    }

    /// The marker; none: it is not there, or nothing is.
    pub async fn marker(&self) -> Result<Option<Marker>> {
        let name = self.marker_name()?;
        let found = match self.objects.get(&Path::from(name.as_str())).await {
            Ok(found) => found.bytes().await.map_err(failure)?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failure(error)),
        };
        let marker = serde_json::from_slice(&found);
        marker.map(Some).map_err(|error| Error::Corrupt {
            key: format!("blob {name}"),
            reason: error.to_string(),
        })
    }

    /// Writes it over what is there. Decided in the coordination store before.
    pub async fn put_marker(&self, marker: &Marker) -> Result<()> {
        let name = self.marker_name()?;
        let bytes = serde_json::to_vec_pretty(marker)
            .map_err(|error| Error::Misconfigured(error.to_string().into()))?;
        let path = Path::from(name.as_str());
        let put = self.objects.put(&path, bytes.into()).await;
        put.map(drop).map_err(failure)
    }

    /// Makes the directory of a storage that nobody has begun yet. One that was begun is never made again: it is not mounted.
    pub async fn make_directory(&self) -> Result<()> {
        let Some(directory) = self.directory.clone() else {
            return Ok(());
        };
        let making = tokio::task::spawn_blocking(move || own_directory::make(&directory)).await;
        making
            .map_err(std::io::Error::other)
            .flatten()
            .map_err(|error| self.unusable(&error))
    }

    /// An error that says what is wrong unless the storage is the one that was begun.
    pub async fn check_marker(&self) -> Result<()> {
        let Some(guard) = &self.guard else {
            return Ok(());
        };
        let expected = match guard {
            Guard::Presence => None,
            Guard::Content(content) => Some(self.expected(content).await?),
        };
        let marker = self.marker().await?.ok_or_else(|| self.lost())?;
        match expected {
            Some(expected) if expected.storage != marker.storage => Err(self.taken(&marker)),
            Some(_) | None => Ok(()),
        }
    }

    /// The same before something is deleted: no other cluster writes the marker, too.
    pub(super) async fn check_before_deletion(&self) -> Result<()> {
        let Some(Guard::Content(content)) = &self.guard else {
            return self.check_marker().await;
        };
        let expected = self.expected(content).await?;
        let marker = self.marker().await?.ok_or_else(|| self.lost())?;
        let is_ours = expected.storage == marker.storage
            && expected.confirmations.contains(&marker.confirmation);
        if expected.is_contested || !is_ours {
            return Err(self.taken(&marker));
        }
        Ok(())
    }

    async fn expected(&self, content: &Content) -> Result<Expected> {
        let mut is_known = content.is_known.subscribe();
        let waiting = is_known.wait_for(|is_known| *is_known);
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            return Err(self.refusal("the leader has not begun to use it yet".to_owned()));
        }
        Ok(content.lock().clone())
    }

    /// The marker is missing.
    pub fn lost(&self) -> Error {
        self.refusal(format!(
            "{} is not the storage that this cluster has begun, as the marker storage-{} is missing there: mount it again",
            self.location,
            self.tag.as_str()
        ))
    }

    /// The marker is another cluster's.
    pub fn taken(&self, marker: &Marker) -> Error {
        self.refusal(format!(
            "another cluster uses {}, too, whose store is a copy of this one's or has been one: process {} has marked it in epoch {}. \
             Nothing is deleted there: give one of them another storageDir",
            self.location, marker.process, marker.epoch
        ))
    }

    fn refusal(&self, reason: String) -> Error {
        Error::Unavailable {
            store: STORE,
            reason,
        }
    }
}

#[cfg(test)]
#[path = "marker_tests.rs"]
mod tests;
