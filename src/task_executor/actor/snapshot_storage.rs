//! The place for objects of checkpoints, as a TaskManager opens it. The actor owns it; writes and reads share it.
//!
//! It may be missing, not mounted, or another storage than the leader's. Then each write or read fails with the reason,
//! and the TaskManager runs on.

use tanist_ha::blob::{BlobStore, ObjectDirectory};
use tanist_ha::error::{Error, Result};
use tanist_ha::keys::Name;
use tanist_proto::id::JobId;
use tokio::sync::OnceCell;

use crate::CheckpointPlace;
use crate::core::{NO_PLACE, SnapshotPlace};

/// The place for objects. Opened when it is needed first: a TaskManager starts without it.
#[derive(Debug)]
pub(super) struct SnapshotStorage {
    place: Option<CheckpointPlace>,
    opened: OnceCell<BlobStore>,
}

impl SnapshotStorage {
    pub(super) fn new(place: Option<CheckpointPlace>) -> SnapshotStorage {
        SnapshotStorage {
            place,
            opened: OnceCell::new(),
        }
    }

    /// The directory of checkpoints, for messages.
    pub(super) fn directory(&self) -> &str {
        self.place.as_ref().map_or("", |place| &place.blobs.url)
    }

    /// The objects of a job.
    pub(super) async fn of(&self, of: &SnapshotPlace, job: JobId) -> Result<ObjectDirectory> {
        let Some(place) = &self.place else {
            let reason = format!("this TaskManager has no place for checkpoints: {NO_PLACE}");
            return Err(Error::Misconfigured(reason.into()));
        };
        let opening = self.opened.get_or_try_init(async || {
            let blobs = BlobStore::open_named(&place.blobs, place.option).await?;
            Ok(match place.is_marked {
                true => blobs.guarded_by_presence(),
                false => blobs,
            })
        });
        let name = Name::new(job.to_string());
        let name = name.map_err(|error| Error::Misconfigured(error.to_string().into()))?;
        let blobs = opening
            .await?
            .of_cluster(&of.cluster)
            .expecting(&of.storage);
        Ok(blobs.checkpoints(&name))
    }
}
