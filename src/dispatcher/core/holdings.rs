//! The jobs whose objects are kept, and the objects that are about to be deleted. Pure.

use std::collections::{BTreeMap, BTreeSet};

use tanist_ha::keys::Name;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

/// Jobs whose objects are kept, and objects that are about to be deleted.
#[derive(Debug, Default)]
pub struct Holdings {
    /// Jobs that have a graph or are about to be submitted.
    graphs: BTreeSet<JobId>,
    /// Uploads that the graphs of these jobs name.
    uploads: BTreeMap<JobId, Vec<pb::UploadedContent>>,
    /// Ended jobs whose result can't be read.
    unreadable: BTreeSet<JobId>,
    tombstones: BTreeSet<Name>,
}

impl Holdings {
    /// Records that the job has a graph. Returns true if it had none before.
    pub fn hold(&mut self, job: JobId) -> bool {
        self.graphs.insert(job)
    }

    /// Records that the job has no graph any more.
    pub fn release(&mut self, job: JobId) {
        self.graphs.remove(&job);
        self.uploads.remove(&job);
    }

    /// Records the uploads that the job's graph names.
    pub fn note_uploads(&mut self, job: JobId, uploads: Vec<pb::UploadedContent>) {
        if !uploads.is_empty() {
            self.uploads.insert(job, uploads);
        }
    }

    /// Returns the uploads that the job's graph names.
    pub fn uploads_of(&self, job: JobId) -> Vec<pb::UploadedContent> {
        self.uploads.get(&job).cloned().unwrap_or_default()
    }

    /// Records that the result of an ended job can't be read.
    pub fn note_unreadable_result(&mut self, job: JobId) {
        self.unreadable.insert(job);
    }

    /// Records that the result is gone, or was read.
    pub fn forget_result(&mut self, job: JobId) {
        self.unreadable.remove(&job);
    }

    /// Records that the object is about to be deleted.
    pub fn doom(&mut self, name: Name) {
        self.tombstones.insert(name);
    }

    /// Records that the object is not about to be deleted: it is gone, or its tombstone could not be written.
    pub fn spare(&mut self, name: &Name) {
        self.tombstones.remove(name);
    }

    /// The objects that are about to be deleted.
    pub fn tombstones(&self) -> Vec<Name> {
        self.tombstones.iter().cloned().collect()
    }

    /// Whether the object is about to be deleted.
    pub fn has_tombstone(&self, name: &Name) -> bool {
        self.tombstones.contains(name)
    }

    /// Whether objects of the job are kept.
    pub fn keeps(&self, job: JobId) -> bool {
        self.graphs.contains(&job) || self.unreadable.contains(&job)
    }
}
