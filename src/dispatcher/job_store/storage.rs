//! The places where a cluster keeps its objects: a directory or bucket for those of checkpoints, if the configuration
//! names one, and one for all others. Each is *begun* once, by a decision in the coordination store, and recognized by
//! its marker from then on. [`Place`] owns what a term knows of one place; a place with a trouble is neither relied on
//! nor cleaned.
//!
//! The record `storages/<storage>` says that a storage was begun, where, and with which confirmations the
//! leaders of this store are known there. The marker, an object in the storage, contains the storage's name and
//! the last confirmation (`docs/adr/0046`). So a directory without a marker is one that lost its mount: nothing
//! that relies on it is acknowledged, and it is not begun again. A marker with a confirmation unknown to this
//! store was written by a cluster with a copy of this store: nothing is deleted any more.
//!
//! Interleavings:
//! - A crash after the record, before the marker: the record says "not begun"; the next leader writes the marker.
//! - A crash after the marker, before the record says "begun": the same, with the same name.
//! - A deposed leader writes the marker late: its confirmation is in the store already, so it is one of ours.
//! - A deposed leader confirms late: the store refuses the record, and no marker is written.
//! - A leader confirms while one of a copied store does: each finds the other's marker at its next check, and
//!   writes its own again. While both do this, neither deletes.

mod place;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tanist_ha::election::{Epoch, LeaderSession};
use tanist_ha::store::cache::Records;
use tokio::sync::watch;
use tracing::warn;

use super::error::JobStoreError;
use super::job_records::JobRecords;
use place::{Content, Place, StorageRecord};

/// Identity of this term in the marker.
#[derive(Debug, Clone)]
pub struct StorageUser {
    cluster: String,
    incarnation: String,
    epoch: Epoch,
    process: String,
}

impl StorageUser {
    /// Returns the identity of the session's term.
    pub fn of(session: &LeaderSession, cluster: &str) -> StorageUser {
        StorageUser {
            cluster: cluster.to_owned(),
            incarnation: session.incarnation().to_string(),
            epoch: session.epoch(),
            process: session.process().to_string(),
        }
    }
}

/// The places of a term's objects; see the module.
#[derive(Debug)]
pub struct Storage {
    records: Arc<JobRecords>,
    blobs: Place,
    checkpoints: Place,
    troubles: Arc<Troubles>,
}

/// Why places can't be used.
#[derive(Debug, Default)]
struct Troubles {
    of: Mutex<BTreeMap<Content, String>>,
    /// The first of them.
    first: watch::Sender<Option<String>>,
}

impl Troubles {
    /// Returns whether it has changed.
    fn set(&self, content: Content, trouble: Option<String>) -> bool {
        let mut of = self.of.lock();
        if of.get(&content) == trouble.as_ref() {
            return false;
        }
        match trouble {
            Some(trouble) => of.insert(content, trouble),
            None => of.remove(&content),
        };
        self.first.send_replace(of.values().next().cloned());
        true
    }
}

impl Storage {
    pub(super) fn new(records: Arc<JobRecords>) -> Storage {
        let troubles = Arc::<Troubles>::default();
        let place = |content| Place::new(records.clone(), content, troubles.clone());
        Storage {
            blobs: place(Content::Blobs),
            checkpoints: place(Content::Checkpoints),
            records,
            troubles,
        }
    }

    /// Receives the reason why nothing that relies on the storage can be acknowledged or deleted.
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.troubles.first.subscribe()
    }

    /// Reads the storage records at the start of a term. From then on a storage that was begun is relied on.
    pub async fn load(&self, records: &Records) {
        if self.records.blobs().is_none() {
            return;
        }
        let found = match self.records.decode::<StorageRecord>(records).await {
            Ok(found) => found,
            Err(error) => {
                warn!(%error, "the records of the storage can't be read");
                return;
            }
        };
        let readable = found.into_iter().filter_map(|(name, stored)| match stored {
            Ok(stored) => Some(stored.record),
            Err(error) => {
                warn!(storage = %name, %error, "the record of a storage can't be read");
                None
            }
        });
        let all: Vec<StorageRecord> = readable.collect();
        self.blobs.rely_on(all.clone()).await;
        self.checkpoints.rely_on(all).await;
    }

    /// Begins each place if this cluster has not done so, and confirms it in this term. On an error the caller
    /// retries, unless the term is over.
    pub async fn begin(&self, user: &StorageUser) -> Result<(), JobStoreError> {
        let of_blobs = self.blobs.begin(user).await;
        self.checkpoints.begin(user).await.and(of_blobs)
    }

    /// Checks that each place is there and exclusive to this cluster. If another cluster has written a
    /// marker, writes it again so that the other cluster notices as well.
    pub async fn check(&self, user: &StorageUser) -> Result<(), JobStoreError> {
        let of_blobs = self.blobs.check(user).await;
        self.checkpoints.check(user).await.and(of_blobs)
    }

    /// Whether unreferenced objects may be deleted: no other cluster has written a marker since this term
    /// did, which is at least `settled` ago.
    pub(super) async fn is_exclusive(&self, settled: Duration) -> Result<bool, JobStoreError> {
        let of_blobs = self.blobs.is_exclusive(settled).await?;
        Ok(of_blobs && self.checkpoints.is_exclusive(settled).await?)
    }

    /// Removes the markers: the cluster has ended permanently and deletes its data.
    pub async fn remove_marker(&self) -> tanist_ha::Result<()> {
        let of_blobs = self.blobs.remove_marker().await;
        self.checkpoints.remove_marker().await.and(of_blobs)
    }
}

#[cfg(test)]
#[path = "tests/storage_tests.rs"]
mod tests;
