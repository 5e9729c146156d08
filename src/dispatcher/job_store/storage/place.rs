//! One place of objects: what a term knows of it, and how the term begins, confirms and checks it. The protocol and its
//! interleavings are in [`super`].
//!
//! Order of `begin`: record, marker, record with `is_begun`; only then is the place relied on. One that was begun by an
//! earlier term is relied on from the start. A confirmation is in the record and known to the term before it is in the
//! marker: no deletion of the term meets an unknown one.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tanist_gateway::kinds;
use tanist_ha::blob::{BlobStore, Marker};
use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::records::record::{self, Encoded};
use tanist_ha::records::store::Record;
use tanist_ha::store::Write;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::{error, info};

use super::{StorageUser, Troubles};
use crate::job_store::error::JobStoreError;
use crate::job_store::job_records::JobRecords;

/// Number of confirmations kept: one is added per term, or per check while two clusters share a storage.
const MOST_CONFIRMATIONS: usize = 256;
/// Number of checks without a foreign marker after which a contested storage counts as exclusive to this
/// cluster again.
pub(super) const QUIET_CHECKS: u32 = 3;

/// Record `storages/<storage>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StorageRecord {
    /// Name of the storage, also in its marker.
    storage: String,
    /// Paths or addresses under which it was found.
    locations: Vec<String>,
    /// The marker was written.
    is_begun: bool,
    /// Confirmations that leaders of this store have written or were about to write, in order.
    confirmations: Vec<String>,
}

impl Record for StorageRecord {
    const KIND: Kind = kinds::STORAGES;
    const FORMAT: u16 = 1;

    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn decode(_format: u16, bytes: &[u8]) -> Result<StorageRecord, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }
}

impl StorageRecord {
    pub(super) fn new(location: &str) -> StorageRecord {
        StorageRecord {
            storage: format!("{:016x}", rand::random::<u64>()),
            locations: vec![location.to_owned()],
            is_begun: false,
            confirmations: Vec::new(),
        }
    }

    fn is_at(&self, location: &str) -> bool {
        self.locations.iter().any(|known| known == location)
    }

    /// Adds and returns the next confirmation.
    pub(super) fn confirm(&mut self) -> String {
        let confirmation = format!("{:016x}", rand::random::<u64>());
        self.confirmations.push(confirmation.clone());
        let excess = self.confirmations.len().saturating_sub(MOST_CONFIRMATIONS);
        self.confirmations.drain(..excess);
        confirmation
    }
}

/// Which objects are in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Content {
    /// All but those of checkpoints, unless these have no place of their own.
    Blobs,
    /// Those of checkpoints.
    Checkpoints,
}

/// One place; see the module.
#[derive(Debug)]
pub(super) struct Place {
    records: Arc<JobRecords>,
    content: Content,
    /// Held while the marker is read and written: one use of it comes after the other.
    pub(super) known: Mutex<Known>,
    troubles: Arc<Troubles>,
}

#[derive(Debug, Default)]
pub(super) struct Known {
    /// Records of all storages in the coordination store.
    pub(super) all: Vec<StorageRecord>,
    /// The storage in use, once its marker was confirmed in this term.
    own: Option<Own>,
    /// The cluster has ended permanently, and its marker is removed.
    has_ended: bool,
}

#[derive(Debug)]
struct Own {
    record: StorageRecord,
    /// The confirmation that this term last wrote into the marker, and when.
    last: String,
    confirmed_at: Instant,
    /// Another cluster has written the marker, and may still do so.
    is_contested: bool,
    /// Number of checks in a row that found this term's confirmation.
    quiet: u32,
}

/// Returns the record of the storage at a location, preferring one that was begun.
fn of_location<'a>(all: &'a [StorageRecord], location: &str) -> Option<&'a StorageRecord> {
    let here = all.iter().filter(|known| known.is_at(location));
    here.max_by_key(|known| known.is_begun)
}

impl Place {
    pub(super) fn new(
        records: Arc<JobRecords>,
        content: Content,
        troubles: Arc<Troubles>,
    ) -> Place {
        Place {
            records,
            content,
            known: Mutex::default(),
            troubles,
        }
    }

    /// Returns the place, if it is guarded by a marker.
    fn guarded_blobs(&self) -> Option<&BlobStore> {
        let blobs = self.records.blobs()?;
        let place = match self.content {
            Content::Blobs => &**blobs,
            Content::Checkpoints => blobs.checkpoint_place()?,
        };
        place.is_guarded().then_some(place)
    }

    fn set_trouble(&self, trouble: Option<String>) {
        let location = self.guarded_blobs().map(BlobStore::location);
        let is_news = self.troubles.set(self.content, trouble.clone());
        match trouble {
            _ if !is_news => {}
            Some(trouble) => error!("{trouble}"),
            None => info!(
                location,
                "the storage of large objects is available and belongs to this cluster"
            ),
        }
    }

    /// Takes the storages that the store has records of. From then on one that was begun is relied on.
    pub(super) async fn rely_on(&self, all: Vec<StorageRecord>) {
        let Some(blobs) = self.guarded_blobs() else {
            return;
        };
        let here = of_location(&all, blobs.location());
        if let Some(here) = here.filter(|known| known.is_begun) {
            blobs.rely_on(&here.storage, &here.confirmations);
        }
        self.known.lock().await.all = all;
    }

    /// Begins the place if this cluster has not done so, and confirms it in this term. On an error the caller
    /// retries, unless the term is over.
    pub(super) async fn begin(&self, user: &StorageUser) -> Result<(), JobStoreError> {
        let Some(blobs) = self.guarded_blobs() else {
            return Ok(());
        };
        let mut known = self.known.lock().await;
        if known.own.is_some() || known.has_ended {
            return Ok(());
        }
        let location = blobs.location();
        let here = of_location(&known.all, location).cloned();
        let mut record = match here {
            Some(record) => record,
            None => match self.found_at_location(blobs, &known.all).await? {
                Found::Nothing => StorageRecord::new(location),
                Found::Begun(mut record) => {
                    record.locations.push(location.to_owned());
                    record
                }
                Found::Foreign(marker) => {
                    let error = blobs.taken(&marker);
                    self.set_trouble(Some(error.to_string()));
                    return Err(JobStoreError::Refused(error));
                }
            },
        };
        let confirmation = record.confirm();
        self.put_record(&record).await?;
        // A retry after a later failure uses the same name.
        known.note(record.clone());
        failpoint("storage.decided").await;
        if record.is_begun {
            // A lost storage is not created again.
            match blobs.marker().await.map_err(JobStoreError::Refused)? {
                None => {
                    let error = blobs.lost();
                    self.set_trouble(Some(error.to_string()));
                    return Err(JobStoreError::Refused(error));
                }
                Some(marker) if marker.storage != record.storage => {
                    let error = blobs.taken(&marker);
                    self.set_trouble(Some(error.to_string()));
                    return Err(JobStoreError::Refused(error));
                }
                // Deletions of this term go on: it already relies on the place, and the marker may be there before
                // this returns.
                Some(_) => blobs.rely_on(&record.storage, &record.confirmations),
            }
        } else if let Err(error) = blobs.make_directory().await {
            self.set_trouble(Some(error.to_string()));
            return Err(JobStoreError::Refused(error));
        }
        let written = self.write_marker(blobs, user, &record, &confirmation);
        written.await?;
        failpoint("storage.marked").await;
        if !record.is_begun {
            record.is_begun = true;
            self.put_record(&record).await?;
            blobs.rely_on(&record.storage, &record.confirmations);
            info!(location, "the storage of large objects is begun");
        }
        known.note(record.clone());
        known.own = Some(Own {
            record,
            last: confirmation,
            confirmed_at: Instant::now(),
            is_contested: false,
            quiet: 0,
        });
        self.set_trouble(None);
        Ok(())
    }

    /// Checks that the place is there and exclusive to this cluster. If another cluster has written the
    /// marker, writes it again so that the other cluster notices as well.
    pub(super) async fn check(&self, user: &StorageUser) -> Result<(), JobStoreError> {
        let Some(blobs) = self.guarded_blobs() else {
            return Ok(());
        };
        let mut known = self.known.lock().await;
        if known.has_ended {
            return Ok(());
        }
        let Some(own) = &mut known.own else {
            drop(known);
            return self.begin(user).await;
        };
        let marker = blobs.marker().await.map_err(JobStoreError::Refused)?;
        let Some(marker) = marker else {
            self.set_trouble(Some(blobs.lost().to_string()));
            own.quiet = 0;
            return Ok(());
        };
        if marker.storage != own.record.storage {
            self.set_trouble(Some(blobs.taken(&marker).to_string()));
            own.quiet = 0;
            return Ok(());
        }
        if marker.confirmation == own.last {
            own.quiet = own.quiet.saturating_add(1);
            if own.is_contested && own.quiet < QUIET_CHECKS {
                return Ok(());
            }
            own.is_contested = false;
            blobs.set_contested(false);
            self.set_trouble(None);
            return Ok(());
        }
        own.quiet = 0;
        if !own.record.confirmations.contains(&marker.confirmation) {
            own.is_contested = true;
            blobs.set_contested(true);
            self.set_trouble(Some(blobs.taken(&marker).to_string()));
        }
        let confirmation = own.record.confirm();
        self.put_record(&own.record).await?;
        blobs.rely_on(&own.record.storage, &own.record.confirmations);
        self.write_marker(blobs, user, &own.record, &confirmation)
            .await?;
        own.last = confirmation;
        own.confirmed_at = Instant::now();
        Ok(())
    }

    /// Whether unreferenced objects may be deleted: no other cluster has written the marker since this term
    /// did, which is at least `settled` ago.
    pub(super) async fn is_exclusive(&self, settled: Duration) -> Result<bool, JobStoreError> {
        let Some(blobs) = self.guarded_blobs() else {
            return Ok(true);
        };
        let known = self.known.lock().await;
        let Some(own) = known.own.as_ref().filter(|own| !own.is_contested) else {
            return Ok(false);
        };
        let marker = blobs.marker().await.map_err(JobStoreError::Refused)?;
        let is_own = marker
            .is_some_and(|it| it.storage == own.record.storage && it.confirmation == own.last);
        Ok(is_own && own.confirmed_at.elapsed() >= settled)
    }

    /// Removes the marker: the cluster has ended permanently and deletes its data.
    pub(super) async fn remove_marker(&self) -> tanist_ha::Result<()> {
        let Some(blobs) = self.guarded_blobs() else {
            return Ok(());
        };
        self.known.lock().await.has_ended = true;
        blobs.delete(&blobs.marker_name()?).await
    }

    async fn found_at_location(
        &self,
        blobs: &BlobStore,
        known: &[StorageRecord],
    ) -> Result<Found, JobStoreError> {
        let marker = blobs.marker().await.map_err(JobStoreError::Refused)?;
        let Some(marker) = marker else {
            return Ok(Found::Nothing);
        };
        let ours = known.iter().find(|it| it.storage == marker.storage);
        Ok(ours.map_or(Found::Foreign(marker), |it| Found::Begun(it.clone())))
    }

    pub(super) async fn put_record(&self, record: &StorageRecord) -> Result<(), JobStoreError> {
        let name = Name::new(&*record.storage);
        let name = name.map_err(|error| refused(&error))?;
        let encoded = record::encode(StorageRecord::FORMAT, &record.encode(), usize::MAX);
        let value = match encoded.map_err(JobStoreError::Refused)? {
            Encoded::Inline(value) | Encoded::Oversized(value) => value,
        };
        let key = Key::new(kinds::STORAGES, name);
        let written = self.records.commit(vec![Write::Put { key, value }]).await;
        written.map_err(JobStoreError::from)
    }

    pub(super) async fn write_marker(
        &self,
        blobs: &BlobStore,
        user: &StorageUser,
        record: &StorageRecord,
        confirmation: &str,
    ) -> Result<(), JobStoreError> {
        let marker = Marker {
            storage: record.storage.clone(),
            cluster: user.cluster.clone(),
            incarnation: user.incarnation.clone(),
            epoch: user.epoch.get(),
            process: user.process.clone(),
            confirmation: confirmation.to_owned(),
        };
        let put = blobs.put_marker(&marker).await;
        put.map_err(JobStoreError::Refused)
    }
}

impl Known {
    fn note(&mut self, record: StorageRecord) {
        self.all.retain(|known| known.storage != record.storage);
        self.all.push(record);
    }
}

fn refused(error: &impl std::fmt::Display) -> JobStoreError {
    JobStoreError::Refused(tanist_ha::Error::Misconfigured(error.to_string().into()))
}

/// What is at a location that this cluster has not begun.
enum Found {
    Nothing,
    /// A storage that this cluster has begun under another path.
    Begun(StorageRecord),
    /// A storage of another cluster: this store has no record of it.
    Foreign(Marker),
}
