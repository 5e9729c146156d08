//! The storage of blobs as a term relies on it: begun once, by a decision in the coordination store, and recognized from then on.
//!
//! The record `storages/<storage>` says that a storage was begun, where, and by which confirmations the leaders of this store are known
//! there. The marker, an object in the storage, names the storage and the last confirmation (`docs/adr/0046`). So a directory without
//! marker is one that lost its mount: nothing is acknowledged that relies on it, and it is not begun again. A marker with a confirmation
//! that this store does not know was written by a cluster that has a copy of this store: nothing is deleted any more.
//!
//! | interleaving | what follows |
//! |---|---|
//! | a crash after the record, before the marker | the record says that it is only about to begin: the next leader writes the marker |
//! | a crash after the marker, before the record says so | the same, under the same name |
//! | a leader that was deposed writes the marker late | with a confirmation that the store has known before: it is one of ours |
//! | a leader that was deposed confirms late | the store refuses the record, and no marker is written |
//! | a leader confirms while one of a copied store does | each sees the other's marker at its next look, and writes its own again: as long as both do, neither deletes |

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tanist_ha::blob::{BlobStore, Marker};
use tanist_ha::election::{Epoch, LeaderSession};
use tanist_ha::failpoint::failpoint;
use tanist_ha::jobs::record::{self, Encoded};
use tanist_ha::jobs::store::Record;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::store::Write;
use tanist_ha::store::cache::Records;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::job_store::{JobStore, JobStoreError};

/// How many confirmations are known: of so many looks at a storage that two clusters share, or of so many terms.
const MOST_CONFIRMATIONS: usize = 256;
/// After how many looks at which nobody else has written the marker a storage is this cluster's alone again.
const QUIET_LOOKS: u32 = 3;

/// `storages/<storage>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageRecord {
    /// The storage's name, which its marker has as well.
    storage: String,
    /// Under which paths or addresses it was found.
    locations: Vec<String>,
    /// The marker is there: it was written by then.
    is_begun: bool,
    /// What leaders of this store have written, or were about to write, the last one last.
    confirmations: Vec<String>,
}

impl Record for StorageRecord {
    const KIND: Kind = Kind::Storages;
    const FORMAT: u16 = 1;

    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn decode(_format: u16, bytes: &[u8]) -> Result<StorageRecord, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }
}

impl StorageRecord {
    fn new(location: &str) -> StorageRecord {
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

    /// The next confirmation.
    fn confirm(&mut self) -> String {
        let confirmation = format!("{:016x}", rand::random::<u64>());
        self.confirmations.push(confirmation.clone());
        let excess = self.confirmations.len().saturating_sub(MOST_CONFIRMATIONS);
        self.confirmations.drain(..excess);
        confirmation
    }
}

/// Who this term is, to those who read the marker.
#[derive(Debug, Clone)]
pub struct StorageUser {
    cluster: String,
    incarnation: String,
    epoch: Epoch,
    process: String,
}

impl StorageUser {
    /// The term of this session.
    pub fn of(session: &LeaderSession, cluster: &str) -> StorageUser {
        StorageUser {
            cluster: cluster.to_owned(),
            incarnation: session.incarnation().to_string(),
            epoch: session.epoch(),
            process: session.process().to_string(),
        }
    }
}

/// What a term knows of its storage.
#[derive(Debug, Default)]
pub(super) struct Storage {
    known: Mutex<Known>,
    trouble: watch::Sender<Option<String>>,
}

#[derive(Debug, Default)]
struct Known {
    /// What the coordination store says, of all storages that it knows.
    all: Vec<StorageRecord>,
    /// The one in use, once the marker was confirmed in this term.
    own: Option<Own>,
    /// The cluster has ended for good, and its marker is removed.
    has_ended: bool,
}

#[derive(Debug)]
struct Own {
    record: StorageRecord,
    /// What this term has written into the marker last, and when.
    last: String,
    confirmed_at: Instant,
    /// Somebody else has written the marker, and has not stopped to.
    is_contested: bool,
    quiet: u32,
}

/// What is known of the storage at a location: one that was begun, if there is one.
fn of_location<'a>(all: &'a [StorageRecord], location: &str) -> Option<&'a StorageRecord> {
    let here = all.iter().filter(|known| known.is_at(location));
    here.max_by_key(|known| known.is_begun)
}

impl JobStore {
    /// The blob store that this term uses.
    pub fn blobs(&self) -> Option<&std::sync::Arc<BlobStore>> {
        self.records.blobs()
    }

    fn guarded_blobs(&self) -> Option<&BlobStore> {
        let blobs = self.records.blobs()?;
        blobs.is_guarded().then_some(&**blobs)
    }

    /// Why nothing can be acknowledged, or nothing deleted, that has to do with the storage.
    pub fn storage_trouble(&self) -> watch::Receiver<Option<String>> {
        self.storage.trouble.subscribe()
    }

    fn tell(&self, trouble: Option<String>) {
        let is_news = *self.storage.trouble.borrow() != trouble;
        if !is_news {
            return;
        }
        match &trouble {
            Some(trouble) => error!("{trouble}"),
            None => info!("the storage of large objects is as this cluster has begun it"),
        }
        self.storage.trouble.send_replace(trouble);
    }

    /// Takes in what the coordination store says, at the beginning of a term: a storage that was begun is relied on from here on.
    pub async fn expect_storage(&self, records: &Records) {
        let Some(blobs) = self.guarded_blobs() else {
            return;
        };
        let found = match self.records.decode::<StorageRecord>(records).await {
            Ok(found) => found,
            Err(error) => {
                warn!(%error, "what is known of the storage can't be read");
                return;
            }
        };
        let readable = found.into_iter().filter_map(|(name, stored)| match stored {
            Ok(stored) => Some(stored.record),
            Err(error) => {
                warn!(storage = %name, %error, "what is known of a storage can't be read");
                None
            }
        });
        let all: Vec<StorageRecord> = readable.collect();
        let here = of_location(&all, blobs.location());
        if let Some(here) = here.filter(|known| known.is_begun) {
            blobs.rely_on(&here.storage, &here.confirmations);
        }
        self.storage.known.lock().await.all = all;
    }

    /// Begins the storage if this cluster has not begun it yet, and confirms it in this term. An error: to be tried again, unless the
    /// term is over.
    pub async fn begin_storage(&self, user: &StorageUser) -> Result<(), JobStoreError> {
        let Some(blobs) = self.guarded_blobs() else {
            return Ok(());
        };
        let mut known = self.storage.known.lock().await;
        if known.own.is_some() || known.has_ended {
            return Ok(());
        }
        let location = blobs.location();
        let here = of_location(&known.all, location).cloned();
        let mut record = match here {
            Some(record) => record,
            None => match self.found_elsewhere(blobs, &known.all).await? {
                Found::Nothing => StorageRecord::new(location),
                Found::Ours(mut record) => {
                    record.locations.push(location.to_owned());
                    record
                }
                Found::Strangers(marker) => {
                    let error = blobs.taken(&marker);
                    self.tell(Some(error.to_string()));
                    return Err(JobStoreError::Refused(error));
                }
            },
        };
        let confirmation = record.confirm();
        self.put_storage(&record).await?;
        // What fails from here on is tried again under the same name.
        known.note(record.clone());
        failpoint("storage.decided").await;
        if record.is_begun {
            // What is lost is not made again.
            match blobs.marker().await.map_err(JobStoreError::Refused)? {
                None => {
                    let error = blobs.lost();
                    self.tell(Some(error.to_string()));
                    known.note(record);
                    return Err(JobStoreError::Refused(error));
                }
                Some(marker) if marker.storage != record.storage => {
                    let error = blobs.taken(&marker);
                    self.tell(Some(error.to_string()));
                    known.note(record);
                    return Err(JobStoreError::Refused(error));
                }
                Some(_) => {}
            }
        } else if let Err(error) = blobs.make_directory().await {
            self.tell(Some(error.to_string()));
            return Err(JobStoreError::Refused(error));
        }
        let written = self.write_marker(blobs, user, &record, &confirmation);
        written.await?;
        failpoint("storage.marked").await;
        if !record.is_begun {
            record.is_begun = true;
            self.put_storage(&record).await?;
            info!(location, "the storage of large objects is begun");
        }
        blobs.rely_on(&record.storage, &record.confirmations);
        known.note(record.clone());
        known.own = Some(Own {
            record,
            last: confirmation,
            confirmed_at: Instant::now(),
            is_contested: false,
            quiet: 0,
        });
        self.tell(None);
        Ok(())
    }

    /// Looks whether the storage is there, and this cluster's alone. Where another cluster has written the marker this one's is written
    /// again, so that the other one sees it as well.
    pub async fn look_at_storage(&self, user: &StorageUser) -> Result<(), JobStoreError> {
        let Some(blobs) = self.guarded_blobs() else {
            return Ok(());
        };
        let mut known = self.storage.known.lock().await;
        if known.has_ended {
            return Ok(());
        }
        let Some(own) = &mut known.own else {
            drop(known);
            return self.begin_storage(user).await;
        };
        let marker = blobs.marker().await.map_err(JobStoreError::Refused)?;
        let Some(marker) = marker else {
            self.tell(Some(blobs.lost().to_string()));
            own.quiet = 0;
            return Ok(());
        };
        if marker.storage != own.record.storage {
            self.tell(Some(blobs.taken(&marker).to_string()));
            own.quiet = 0;
            return Ok(());
        }
        if marker.confirmation == own.last {
            own.quiet = own.quiet.saturating_add(1);
            if own.is_contested && own.quiet < QUIET_LOOKS {
                return Ok(());
            }
            own.is_contested = false;
            blobs.set_contested(false);
            self.tell(None);
            return Ok(());
        }
        own.quiet = 0;
        if !own.record.confirmations.contains(&marker.confirmation) {
            own.is_contested = true;
            blobs.set_contested(true);
            self.tell(Some(blobs.taken(&marker).to_string()));
        }
        let confirmation = own.record.confirm();
        self.put_storage(&own.record).await?;
        blobs.rely_on(&own.record.storage, &own.record.confirmations);
        self.write_marker(blobs, user, &own.record, &confirmation)
            .await?;
        own.last = confirmation;
        own.confirmed_at = Instant::now();
        Ok(())
    }

    /// Whether what nothing points to may be deleted: nobody else has written the marker since this term did, at least `settled` ago.
    pub(super) async fn may_sweep(&self, settled: Duration) -> Result<bool, JobStoreError> {
        let Some(blobs) = self.guarded_blobs() else {
            return Ok(true);
        };
        let known = self.storage.known.lock().await;
        let Some(own) = known.own.as_ref().filter(|own| !own.is_contested) else {
            return Ok(false);
        };
        let marker = blobs.marker().await.map_err(JobStoreError::Refused)?;
        let is_own = marker
            .is_some_and(|it| it.storage == own.record.storage && it.confirmation == own.last);
        Ok(is_own && own.confirmed_at.elapsed() >= settled)
    }

    /// The cluster has ended for good, and deletes what it has: the marker too.
    pub async fn remove_marker(&self) -> tanist_ha::Result<()> {
        let Some(blobs) = self.guarded_blobs() else {
            return Ok(());
        };
        self.storage.known.lock().await.has_ended = true;
        blobs.delete(&blobs.marker_name()?).await
    }

    async fn found_elsewhere(
        &self,
        blobs: &BlobStore,
        known: &[StorageRecord],
    ) -> Result<Found, JobStoreError> {
        let marker = blobs.marker().await.map_err(JobStoreError::Refused)?;
        let Some(marker) = marker else {
            return Ok(Found::Nothing);
        };
        let ours = known.iter().find(|it| it.storage == marker.storage);
        Ok(ours.map_or(Found::Strangers(marker), |it| Found::Ours(it.clone())))
    }

    async fn put_storage(&self, record: &StorageRecord) -> Result<(), JobStoreError> {
        let name = Name::new(&*record.storage);
        let name = name.map_err(|error| refused(&error))?;
        let encoded = record::encode(StorageRecord::FORMAT, &record.encode(), usize::MAX);
        let value = match encoded.map_err(JobStoreError::Refused)? {
            Encoded::Inline(value) | Encoded::Oversized(value) => value,
        };
        let key = Key::new(Kind::Storages, name);
        let written = self.pipeline.commit(vec![Write::Put { key, value }]).await;
        written.map(drop).map_err(JobStoreError::from)
    }

    async fn write_marker(
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
    /// A storage that it has begun under another path.
    Ours(StorageRecord),
    /// One that a cluster of this incarnation has begun, and this one does not know.
    Strangers(Marker),
}

#[cfg(test)]
#[path = "storage_tests.rs"]
mod tests;
