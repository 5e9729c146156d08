//! Which savepoints the jobs of a term begin from, and which are being removed.
//!
//! Invariant: a savepoint that a job begins from, or is about to, is not removed by this term; and no job begins from
//! one whose removal has begun. A job begins from its savepoint until its record of checkpoints has no origin.
//!
//! One directory may have several paths. Its *identity* is the path without links, as this host sees it; the paths of
//! the jobs are as users gave them. The caller compares their identities once a removal has begun.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

/// The savepoints in use; see the module.
#[derive(Debug, Default)]
pub(super) struct Origins {
    state: Mutex<OriginsInUse>,
}

#[derive(Debug, Default)]
struct OriginsInUse {
    /// The directories of savepoints.
    of_jobs: BTreeMap<JobId, String>,
    /// Jobs whose record can't be read: each may begin from any savepoint.
    unreadable: BTreeSet<JobId>,
    /// Identities of directories.
    disposing: BTreeSet<String>,
}

/// A removal. While it exists, no job begins from the savepoint.
#[derive(Debug)]
pub(super) struct Disposal<'a> {
    origins: &'a Origins,
    identity: String,
}

impl Drop for Disposal<'_> {
    fn drop(&mut self) {
        let mut state = self.origins.state.lock();
        state.disposing.remove(&self.identity);
    }
}

impl Origins {
    /// A job is about to begin from a savepoint. The error says why it can't.
    pub(super) fn begin(&self, job: JobId, directory: &str, identity: &str) -> Result<(), String> {
        let mut state = self.state.lock();
        if state.disposing.contains(identity) {
            return Err(format!("the savepoint in {directory} is being removed"));
        }
        state.of_jobs.insert(job, directory.to_owned());
        Ok(())
    }

    /// Records what the job begins from, by its record, which was read or written.
    pub(super) fn note(&self, job: JobId, record: &pb::JobCheckpoints) {
        let mut state = self.state.lock();
        state.unreadable.remove(&job);
        let directory = record.origin.as_ref().map(|origin| &origin.directory);
        match directory.filter(|directory| !directory.is_empty()) {
            Some(directory) => drop(state.of_jobs.insert(job, directory.clone())),
            None => drop(state.of_jobs.remove(&job)),
        }
    }

    pub(super) fn note_unreadable(&self, job: JobId) {
        self.state.lock().unreadable.insert(job);
    }

    /// The job has no record, and gets none.
    pub(super) fn forget(&self, job: JobId) {
        let mut state = self.state.lock();
        state.unreadable.remove(&job);
        state.of_jobs.remove(&job);
    }

    /// The jobs that begin from savepoints, with the paths of these.
    pub(super) fn used(&self) -> Vec<(JobId, String)> {
        let state = self.state.lock();
        let used = state.of_jobs.iter();
        used.map(|(job, path)| (*job, path.clone())).collect()
    }

    /// Begins a removal. From here on no other job begins from the savepoint.
    pub(super) fn dispose(&self, directory: &str, identity: &str) -> Result<Disposal<'_>, String> {
        let mut state = self.state.lock();
        if let Some(job) = state.unreadable.first() {
            return Err(format!(
                "whether the savepoint in {directory} is still needed can't be told: the record of the checkpoints of job \
                 {job} can't be read"
            ));
        }
        if !state.disposing.insert(identity.to_owned()) {
            return Err(format!(
                "the savepoint in {directory} is being removed already"
            ));
        }
        Ok(Disposal {
            origins: self,
            identity: identity.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId::from_bits(1);

    fn record(directory: &str) -> pb::JobCheckpoints {
        pb::JobCheckpoints {
            origin: Some(pb::CheckpointOrigin {
                directory: directory.to_owned(),
                ..pb::CheckpointOrigin::default()
            }),
            ..pb::JobCheckpoints::default()
        }
    }

    #[test]
    fn a_savepoint_is_used_until_the_record_of_its_job_has_no_origin() {
        let origins = Origins::default();
        origins.begin(JOB, "/a", "/a").expect("not in use");
        for _ in 0..2 {
            assert_eq!(origins.used(), [(JOB, "/a".to_owned())]);
            origins.note(JOB, &record("/a"));
        }
        origins.note(JOB, &pb::JobCheckpoints::default());
        assert_eq!(origins.used(), []);
        origins.note(JOB, &record(""));
        assert_eq!(origins.used(), [], "the own directory of a job");
    }

    #[test]
    fn no_job_begins_from_a_savepoint_that_is_being_removed() {
        let origins = Origins::default();
        let disposal = origins.dispose("/a", "/a").expect("the first one");
        assert!(origins.dispose("/link", "/a").is_err(), "once at a time");
        let refusal = origins
            .begin(JOB, "/link", "/a")
            .expect_err("being removed");
        assert!(refusal.contains("is being removed"), "{refusal}");
        origins.begin(JOB, "/b", "/b").expect("another one");
        drop(disposal);
        origins
            .begin(JOB, "/a", "/a")
            .expect("the removal has ended");
        origins.forget(JOB);
        assert_eq!(origins.used(), []);
    }

    #[test]
    fn a_record_that_cannot_be_read_may_need_any_savepoint() {
        let origins = Origins::default();
        origins.note_unreadable(JOB);
        let refusal = origins.dispose("/a", "/a").expect_err("not known");
        assert!(refusal.contains("can't be read"), "{refusal}");
        origins.note(JOB, &pb::JobCheckpoints::default());
        origins.dispose("/a", "/a").expect("known");
    }
}
