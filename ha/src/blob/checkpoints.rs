//! The place of the directories of a cluster's checkpoints, one a job.
//!
//! ```text
//! checkpoints/<cluster tag>/<job>/<number>-<generation>-<random>     below their place
//! ```
//!
//! The job's JobMaster decides when an object is garbage. What may go wrong is in
//! [`object_directory`](super::object_directory).

use object_store::path::Path;

use super::{BlobStore, ObjectDirectory};
use crate::error::Result;
use crate::keys::Name;

const DIRECTORY: &str = "checkpoints";

/// The objects of one job's checkpoints.
pub type CheckpointStorage = ObjectDirectory;

/// A name for an object that is written for a checkpoint by an execution of this generation. It is used once.
pub fn object_name(number: u64, generation: u64) -> String {
    format!("{number}-{generation}-{:016x}", rand::random::<u64>())
}

impl BlobStore {
    /// The objects of a job's checkpoints, under the tag of its cluster.
    pub fn checkpoints(&self, job: &Name) -> CheckpointStorage {
        let place = self.place_of_checkpoints();
        ObjectDirectory::below(
            place,
            format!("{DIRECTORY}/{}/{job}", place.tag.as_str()),
            DIRECTORY,
        )
    }

    /// Whether the objects of checkpoints survive the loss of this host.
    pub fn keeps_checkpoints(&self) -> bool {
        self.place_of_checkpoints().survives_host
    }

    fn place_of_checkpoints(&self) -> &BlobStore {
        self.checkpoints.as_deref().unwrap_or(self)
    }

    /// The jobs of this cluster that have a directory for checkpoints, in order.
    pub async fn jobs_with_checkpoints(&self) -> Result<Vec<Name>> {
        let place = self.place_of_checkpoints();
        let prefix = Path::from(format!("{DIRECTORY}/{}", place.tag.as_str()));
        let listed = place.objects.list_with_delimiter(Some(&prefix)).await;
        let directories = listed
            .map_err(|error| place.failure(error))?
            .common_prefixes
            .into_iter();
        let mut jobs: Vec<Name> = directories
            .filter_map(|path| Name::new(path.filename()?).ok())
            .collect();
        jobs.sort();
        Ok(jobs)
    }
}
