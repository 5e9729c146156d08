//! Files that were fetched for a job, kept between its programs: another attempt, stage or region of it here finds them. Until the job
//! is let go, which whoever runs its tasks says; at the end of the process, all.
//!
//! Apart from the cache, whose files hold it in their turn.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tanist_proto::id::JobId;

use super::artifacts::HeldArtifact;

type Files = BTreeMap<PathBuf, HeldArtifact>;

/// See the module. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeptArtifacts {
    by_job: Arc<Mutex<BTreeMap<JobId, Files>>>,
}

impl KeptArtifacts {
    /// The file stays as long as the job.
    pub(crate) fn keep(&self, job: JobId, held: HeldArtifact) {
        let path = held.path().to_owned();
        let earlier = {
            let mut all = self.lock();
            all.entry(job).or_default().insert(path, held)
        };
        // Held by the later one as well, so that nothing is removed with it.
        drop(earlier);
    }

    /// Nothing is kept for the job any more. What nobody else holds is removed when this is dropped, which blocks.
    pub(crate) fn let_go(&self, job: JobId) -> Option<impl Send + use<>> {
        self.lock().remove(&job)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, Files>> {
        self.by_job.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
