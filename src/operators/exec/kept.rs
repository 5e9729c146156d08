//! Files that were fetched for a job and are kept between its programs, so that another attempt, stage or
//! region of the job finds them here. They are kept until the owner of the job's tasks releases the job, or
//! until the process ends.
//!
//! Separate from the cache: each of the cache's files holds the cache in turn.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tanist_proto::id::JobId;

use super::artifacts::HeldArtifact;

type Files = BTreeMap<PathBuf, HeldArtifact>;

/// Files that are kept per job; see the module. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeptArtifacts {
    by_job: Arc<Mutex<BTreeMap<JobId, Files>>>,
}

impl KeptArtifacts {
    /// Keeps the file until the job is released.
    pub(crate) fn keep(&self, job: JobId, held: HeldArtifact) {
        let path = held.path().to_owned();
        let earlier = {
            let mut all = self.by_job.lock();
            all.entry(job).or_default().insert(path, held)
        };
        // The later handle holds the same file, so dropping the earlier one removes nothing.
        drop(earlier);
    }

    /// Stops keeping files for the job. Files without another holder are removed when the returned value is
    /// dropped, which blocks.
    pub(crate) fn let_go(&self, job: JobId) -> Option<impl Send + use<>> {
        self.by_job.lock().remove(&job)
    }
}
