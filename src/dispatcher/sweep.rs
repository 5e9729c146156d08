//! Removes objects of the blob store that nothing points to: what leaders left that died between an object and the record that
//! would name it, and what was uploaded for submissions that never came.
//!
//! An object of a *term* gets its first pointer in that term, under its fence: one of an earlier term that no record names when a
//! term begins never gets one. An *upload* is named by a submission, which may come in any term after it. So before an upload is
//! deleted a fenced write says so (`doomed/<object>`), and a submission that names a doomed one is refused, also by the next
//! leader: who submits uploads again, under a new name.
//!
//! | interleaving | why no job loses what it names |
//! |---|---|
//! | a submission names an upload while it is swept | both go through [`Holdings`]: it holds the job first, and the sweep leaves its uploads alone; or the upload is doomed first, and it is refused |
//! | the leader is deposed after the write, and deletes late | its successor knows what is doomed from the store, and refuses submissions that name it; names are never given twice |
//! | the leader is deposed before the write | the write is refused, and nothing is deleted |
//! | a crash between the write and the deletion | the next sweep deletes it and takes the name back |
//! | a crash between the deletion and taking the name back | the same; deleting what is gone changes nothing |
//! | a submission names an upload that is gone | it looks for every piece before it is written, and is refused |
//! | a graph or result can't be read | which objects are its own is not known: those of that job are kept |
//! | another cluster keeps its objects in the same place | names say of which cluster they are |
//! | a cluster with a copy of this store does | the marker says so, and nothing is deleted (`storage.rs`) |
//!
//! `blob.orphan-grace` is for those who submit, not for safety: so long an upload may wait for its submission.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tanist_ha::blob::{BlobName, BlobStore, Origin};
use tanist_ha::failpoint::failpoint;
use tanist_ha::jobs::record::{self, Encoded};
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::{debug, info};

use super::job_store::{JobStore, JobStoreError};

/// The format of `doomed/<object>`, which has no content.
const DOOMED_FORMAT: u16 = 1;

/// Whose objects are not swept, and which are about to go.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// Jobs with a graph, or about to be submitted.
    graphs: BTreeSet<JobId>,
    /// What was uploaded for them, as far as their graphs name it.
    uploads: BTreeMap<JobId, Vec<pb::UploadedContent>>,
    /// Ended jobs whose result can't be read.
    unreadable: BTreeSet<JobId>,
    doomed: BTreeSet<Name>,
}

impl Holdings {
    /// The job has a graph. True: it had none before.
    pub(super) fn hold(&mut self, job: JobId) -> bool {
        self.graphs.insert(job)
    }

    /// It has none any more.
    pub(super) fn release(&mut self, job: JobId) {
        self.graphs.remove(&job);
        self.uploads.remove(&job);
    }

    pub(super) fn note_uploads(&mut self, job: JobId, uploads: Vec<pb::UploadedContent>) {
        if !uploads.is_empty() {
            self.uploads.insert(job, uploads);
        }
    }

    /// What the graph of a job names.
    pub(super) fn uploads_of(&self, job: JobId) -> Vec<pb::UploadedContent> {
        self.uploads.get(&job).cloned().unwrap_or_default()
    }

    pub(super) fn note_unreadable_result(&mut self, job: JobId) {
        self.unreadable.insert(job);
    }

    pub(super) fn forget_result(&mut self, job: JobId) {
        self.unreadable.remove(&job);
    }

    pub(super) fn doom(&mut self, name: Name) {
        self.doomed.insert(name);
    }

    pub(super) fn is_doomed(&self, name: &Name) -> bool {
        self.doomed.contains(name)
    }

    fn keeps(&self, job: JobId) -> bool {
        self.graphs.contains(&job) || self.unreadable.contains(&job)
    }
}

impl JobStore {
    /// Deletes objects that nothing points to and what ended processes were writing, if they are older than `grace`. How many objects
    /// it were. Nothing where the storage is not this cluster's alone, for `settled` at least.
    pub async fn sweep(&self, grace: Duration, settled: Duration) -> Result<usize, JobStoreError> {
        let Some(blobs) = self.records.blobs() else {
            return Ok(0);
        };
        if !self.may_sweep(settled).await? {
            debug!("nothing is swept: the storage is not known to be this cluster's alone");
            return Ok(0);
        }
        let swept = self.sweep_objects(grace).await;
        let unfinished = blobs.remove_unfinished(grace).await;
        if let Ok(files) =
            unfinished.inspect_err(|error| debug!(%error, "unfinished files are left"))
            && files > 0
        {
            info!(files, "removed what ended processes were writing");
        }
        swept
    }

    /// The same of objects alone: those of this cluster. What is being written may be another one's, and where nothing is submitted any
    /// more no object needs a grace.
    pub async fn sweep_objects(&self, grace: Duration) -> Result<usize, JobStoreError> {
        let Some(blobs) = self.records.blobs() else {
            return Ok(0);
        };
        let left: Vec<Name> = self.lock_holdings().doomed.iter().cloned().collect();
        let mut refused = None;
        match self.carry_out(blobs, &left).await {
            Err(JobStoreError::Refused(error)) => refused = Some(error),
            other => other?,
        }
        let listed = blobs.list().await.map_err(JobStoreError::Refused)?;
        let old = listed.into_iter().filter(|entry| entry.age >= grace);
        let orphans: Vec<Name> = old
            .map(|entry| entry.name)
            .filter(|name| self.is_orphan(blobs, name) && !self.lock_holdings().is_doomed(name))
            .collect();
        let mut swept = 0;
        for some in orphans.chunks(self.pipeline.limits().writes.clamp(1, 64)) {
            match self.doom_and_delete(blobs, some).await {
                Err(JobStoreError::Refused(error)) => {
                    refused.get_or_insert(error);
                }
                deleted => swept += deleted?,
            }
        }
        if swept > 0 {
            info!(objects = swept, "removed objects that nothing points to");
        }
        refused.map_or(Ok(swept), |error| Err(JobStoreError::Refused(error)))
    }

    /// Whether an object that was listed is named by nothing and will not be.
    fn is_orphan(&self, blobs: &BlobStore, name: &Name) -> bool {
        let Some(read) = BlobName::read(name).filter(|read| read.tag == *blobs.tag()) else {
            return false;
        };
        let Ok(job) = read.owner.as_str().parse::<JobId>() else {
            return false;
        };
        if self.lock_holdings().keeps(job) {
            return false;
        }
        match read.origin {
            // This term may be about to name what it wrote.
            Origin::Term(epoch) if epoch >= self.epoch => false,
            Origin::Term(_) => {
                let known = self.lock_blobs();
                let kinds = [
                    Kind::Graphs,
                    Kind::States,
                    Kind::Results,
                    Kind::Descriptions,
                ];
                !kinds
                    .iter()
                    .any(|kind| known.get(&(job, *kind)) == Some(name))
            }
            Origin::Upload => true,
        }
    }

    async fn doom_and_delete(
        &self,
        blobs: &BlobStore,
        names: &[Name],
    ) -> Result<usize, JobStoreError> {
        let doomed: Vec<Name> = {
            let mut holdings = self.lock_holdings();
            let is_held = |name: &Name| {
                let owner = BlobName::read(name).map(|read| read.owner);
                let job = owner.and_then(|owner| owner.as_str().parse::<JobId>().ok());
                job.is_none_or(|job| holdings.keeps(job))
            };
            let doomed: Vec<Name> = names.iter().filter(|it| !is_held(it)).cloned().collect();
            holdings.doomed.extend(doomed.iter().cloned());
            doomed
        };
        if doomed.is_empty() {
            return Ok(0);
        }
        let put = |name: &Name| Write::Put {
            key: Key::new(Kind::Doomed, name.clone()),
            value: nothing(),
        };
        let written = self.pipeline.commit(doomed.iter().map(put).collect()).await;
        if let Err(error) = written {
            // What the store does not say is not carried out.
            let mut holdings = self.lock_holdings();
            for name in &doomed {
                holdings.doomed.remove(name);
            }
            return Err(error.into());
        }
        failpoint("blob.doomed").await;
        self.carry_out(blobs, &doomed).await?;
        Ok(doomed.len())
    }

    /// Deletes what is doomed, and then takes that back. One that can't be deleted holds no other one up.
    async fn carry_out(&self, blobs: &BlobStore, doomed: &[Name]) -> Result<(), JobStoreError> {
        let mut refused = None;
        for some in doomed.chunks(self.pipeline.limits().writes.clamp(1, 64)) {
            let mut deleted = Vec::with_capacity(some.len());
            for name in some {
                match blobs.delete(name).await {
                    Ok(()) => deleted.push(name),
                    Err(error) => {
                        debug!(object = %name, %error, "an object that nothing points to can't be removed");
                        refused.get_or_insert(error);
                    }
                }
            }
            if deleted.is_empty() {
                continue;
            }
            let delete = |name: &Name| Write::Delete {
                key: Key::new(Kind::Doomed, name.clone()),
            };
            self.pipeline
                .commit(deleted.iter().copied().map(delete).collect())
                .await?;
            let mut holdings = self.lock_holdings();
            for name in deleted {
                holdings.doomed.remove(name);
            }
        }
        refused.map_or(Ok(()), |error| Err(JobStoreError::Refused(error)))
    }
}

/// A record without content.
fn nothing() -> bytes::Bytes {
    match record::encode(DOOMED_FORMAT, &[], usize::MAX) {
        Ok(Encoded::Inline(value) | Encoded::Oversized(value)) => value,
        Err(_) => bytes::Bytes::new(),
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
