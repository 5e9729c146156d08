//! Which objects the jobs of a term need: blobs and chunks that hold their records, and uploads of their graphs. And
//! which objects are about to be deleted. In memory only: its callers read and write the stores.
//!
//! Invariants:
//! - An object that a known record names is never an orphan. If a record of a job can't be read, what it names is
//!   unknown, and no object of that job is an orphan.
//! - A job is protected before its uploads are looked for. An object gets its tombstone in the same critical section in
//!   which its job is found unprotected. So either the garbage collection keeps the upload, or the submission finds
//!   the tombstone.
//!
//! One lock, taken and released inside each method.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tanist_gateway::kinds;
use tanist_ha::blob::{BlobName, ClusterTag, Origin};
use tanist_ha::election::Epoch;
use tanist_ha::keys::{Kind, Name};
use tanist_model::artifact;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

/// Kinds of records that can be in a blob.
const IN_BLOBS: [Kind; 5] = [
    kinds::GRAPHS,
    kinds::STATES,
    kinds::CHECKPOINTS,
    kinds::RESULTS,
    kinds::DESCRIPTIONS,
];

/// Those that are replaced by a job's result.
const OF_RUNNING: [Kind; 3] = [kinds::GRAPHS, kinds::STATES, kinds::CHECKPOINTS];

/// The blobs, chunks and uploads that the jobs of a term need.
#[derive(Debug, Default)]
pub(super) struct BlobLedger {
    state: Mutex<LedgerEntries>,
}

#[derive(Debug, Default)]
struct LedgerEntries {
    /// The blob of each record that is in one.
    blobs: BTreeMap<(JobId, Kind), Name>,
    graph_chunks: BTreeMap<JobId, BTreeSet<Name>>,
    description_chunks: BTreeMap<JobId, BTreeSet<Name>>,
    /// Jobs with a graph or result that can't be read, so that their chunks are unknown.
    with_unknown_chunks: BTreeSet<JobId>,
    /// Jobs that have a graph or are about to be submitted.
    with_graph: BTreeSet<JobId>,
    /// Uploads that the graphs name.
    uploads: BTreeMap<JobId, Vec<pb::UploadedContent>>,
    /// Ended jobs whose result can't be read.
    with_unreadable_result: BTreeSet<JobId>,
    /// Objects that are about to be deleted.
    tombstones: BTreeSet<Name>,
}

impl BlobLedger {
    /// Protects the uploads of a job that has a graph or is about to be submitted. Returns true if it was not
    /// protected before.
    pub(super) fn protect(&self, job: JobId) -> bool {
        self.state.lock().with_graph.insert(job)
    }

    /// Ends the protection: the submission was refused.
    pub(super) fn unprotect(&self, job: JobId) {
        let mut state = self.state.lock();
        state.with_graph.remove(&job);
        state.uploads.remove(&job);
    }

    /// Records the chunks that hold the graph of a job, and the uploads that it names.
    pub(super) fn note_graph(&self, job: JobId, chunks: Vec<Name>, graph: &pb::JobGraph) {
        let uploads: Vec<_> = artifact::uploads(graph).into_iter().cloned().collect();
        let mut state = self.state.lock();
        state.with_unknown_chunks.remove(&job);
        if chunks.is_empty() {
            state.graph_chunks.remove(&job);
        } else {
            state.graph_chunks.insert(job, chunks.into_iter().collect());
        }
        if !uploads.is_empty() {
            state.uploads.insert(job, uploads);
        }
    }

    /// Records that a job has a graph that was not read, so that its chunks are not known.
    pub(super) fn note_unread_graph(&self, job: JobId) {
        let mut state = self.state.lock();
        state.with_graph.insert(job);
        state.with_unknown_chunks.insert(job);
    }

    /// Records the blob of a record that was read.
    pub(super) fn note_blob(&self, job: JobId, kind: Kind, blob: Option<Name>) {
        if let Some(blob) = blob {
            self.state.lock().blobs.insert((job, kind), blob);
        }
    }

    /// Records the blobs of records that were written; `None`: the record has none, or was deleted. Returns the
    /// blobs that they replace.
    pub(super) fn replace_blobs(&self, written: Vec<(JobId, Kind, Option<Name>)>) -> Vec<Name> {
        let mut state = self.state.lock();
        let replace = |(job, kind, blob)| match blob {
            Some(blob) => state.blobs.insert((job, kind), blob),
            None => state.blobs.remove(&(job, kind)),
        };
        written.into_iter().filter_map(replace).collect()
    }

    /// Records the chunks that hold the description of an ended job.
    pub(super) fn note_description(&self, job: JobId, chunks: Vec<Name>) {
        if !chunks.is_empty() {
            let mut state = self.state.lock();
            let chunks = chunks.into_iter().collect();
            state.description_chunks.insert(job, chunks);
        }
    }

    /// Records the description that a result of an earlier term names.
    pub(super) fn note_kept_description(&self, job: JobId, kept: &pb::KeptDescription) {
        let named = |names: &[String]| names.iter().filter_map(|name| name.parse().ok()).collect();
        let blobs: Vec<Name> = named(&kept.blobs);
        self.note_blob(job, kinds::DESCRIPTIONS, blobs.into_iter().next());
        self.note_description(job, named(&kept.chunks));
    }

    /// Forgets the descriptions of these jobs. Returns the chunks that held them.
    pub(super) fn forget_descriptions(&self, jobs: &[JobId]) -> Vec<Name> {
        let mut state = self.state.lock();
        let mut chunks: BTreeSet<Name> = BTreeSet::new();
        for job in jobs {
            chunks.extend(state.description_chunks.remove(job).unwrap_or_default());
        }
        chunks.into_iter().collect()
    }

    /// Records that an ended job has a result that can't be read.
    pub(super) fn note_unreadable_result(&self, job: JobId) {
        let mut state = self.state.lock();
        state.with_unknown_chunks.insert(job);
        state.with_unreadable_result.insert(job);
    }

    /// Forgets the results of these jobs, which were read or deleted, and what the jobs' graphs point to: with a
    /// result the graph is gone. Not for jobs that run.
    pub(super) fn forget_results(&self, jobs: &[JobId]) {
        let mut state = self.state.lock();
        for job in jobs {
            state.with_unreadable_result.remove(job);
            state.forget_graph_chunks(*job);
        }
    }

    /// Returns the objects that graph, state and checkpoints of a job name: its result names them, so that they are
    /// removed.
    pub(super) fn objects_of(&self, job: JobId) -> pb::Cleanup {
        let state = self.state.lock();
        let blobs = OF_RUNNING.map(|kind| state.blobs.get(&(job, kind)));
        let chunks = state.graph_chunks.get(&job).into_iter().flatten();
        pb::Cleanup {
            blobs: blobs.into_iter().flatten().map(Name::to_string).collect(),
            chunks: chunks.map(Name::to_string).collect(),
            uploads: state.uploads.get(&job).cloned().unwrap_or_default(),
            ..pb::Cleanup::default()
        }
    }

    /// Forgets what graph, state and checkpoints of a job name: they are replaced by a result that names it.
    pub(super) fn forget_running(&self, job: JobId) {
        let mut state = self.state.lock();
        for kind in OF_RUNNING {
            state.blobs.remove(&(job, kind));
        }
        state.forget_graph_chunks(job);
        state.with_graph.remove(&job);
        state.uploads.remove(&job);
    }

    /// Whether a graph or description may name this chunk of `owner`.
    pub(super) fn may_need_chunk(&self, owner: &Name, chunk: &Name) -> bool {
        let Ok(job) = owner.as_str().parse::<JobId>() else {
            // Not a job's chunk; leave it alone.
            return true;
        };
        let state = self.state.lock();
        let known = [&state.graph_chunks, &state.description_chunks];
        let mut known = known.into_iter().filter_map(|chunks| chunks.get(&job));
        state.with_unknown_chunks.contains(&job) || known.any(|chunks| chunks.contains(chunk))
    }

    /// Whether no record names this listed object, and none ever will; `epoch` is the present term. False for
    /// objects of another cluster than `tag`'s, and for those that have a tombstone.
    pub(super) fn is_orphan(&self, name: &Name, tag: &ClusterTag, epoch: Epoch) -> bool {
        let Some(object) = BlobName::read(name).filter(|object| object.tag == *tag) else {
            return false;
        };
        let Ok(job) = object.owner.as_str().parse::<JobId>() else {
            return false;
        };
        let state = self.state.lock();
        if state.protects(job) || state.tombstones.contains(name) {
            return false;
        }
        match object.origin {
            // This term may be about to name what it wrote.
            Origin::Term(written_in) if written_in >= epoch => false,
            Origin::Term(_) => !IN_BLOBS
                .iter()
                .any(|kind| state.blobs.get(&(job, *kind)) == Some(name)),
            Origin::Upload => true,
        }
    }

    /// Gives a tombstone to each of these objects whose job is not protected. Returns these objects.
    pub(super) fn add_tombstones(&self, names: &[Name]) -> Vec<Name> {
        let mut state = self.state.lock();
        let is_unprotected = |name: &&Name| {
            let owner = BlobName::read(name).map(|object| object.owner);
            let job = owner.and_then(|owner| owner.as_str().parse::<JobId>().ok());
            job.is_some_and(|job| !state.protects(job))
        };
        let unprotected: Vec<Name> = names.iter().filter(is_unprotected).cloned().collect();
        state.tombstones.extend(unprotected.iter().cloned());
        unprotected
    }

    /// Records a tombstone that the store has.
    pub(super) fn note_tombstone(&self, name: Name) {
        self.state.lock().tombstones.insert(name);
    }

    /// Forgets tombstones: the objects are gone, or the tombstones could not be written.
    pub(super) fn forget_tombstones<'a>(&self, names: impl IntoIterator<Item = &'a Name>) {
        let mut state = self.state.lock();
        for name in names {
            state.tombstones.remove(name);
        }
    }

    /// Returns the objects that are about to be deleted.
    pub(super) fn tombstones(&self) -> Vec<Name> {
        self.state.lock().tombstones.iter().cloned().collect()
    }

    /// Whether one of these objects is about to be deleted.
    pub(super) fn has_tombstone(&self, names: &[Name]) -> bool {
        let state = self.state.lock();
        names.iter().any(|name| state.tombstones.contains(name))
    }
}

impl LedgerEntries {
    /// Whether all objects of the job are kept.
    fn protects(&self, job: JobId) -> bool {
        self.with_graph.contains(&job) || self.with_unreadable_result.contains(&job)
    }

    fn forget_graph_chunks(&mut self, job: JobId) {
        self.graph_chunks.remove(&job);
        self.with_unknown_chunks.remove(&job);
    }
}

#[cfg(test)]
#[path = "tests/blob_ledger_tests.rs"]
mod tests;
