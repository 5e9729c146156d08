//! Which savepoints the jobs of a term begin from, and which are being removed.
//!
//! Invariant: a savepoint that a job begins from, or is about to, is not removed by this term; and no job begins from
//! one whose removal has begun. A job begins from its savepoint until its record of checkpoints has no origin.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

/// The savepoints in use; see the module.
#[derive(Debug, Default)]
pub(super) struct Origins {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The directories of savepoints.
    of_jobs: BTreeMap<JobId, String>,
    /// Jobs whose record can't be read: each may begin from any savepoint.
    unreadable: BTreeSet<JobId>,
    disposing: BTreeSet<String>,
}

/// A removal. While it exists, no job begins from the savepoint.
#[derive(Debug)]
pub(super) struct Disposal<'a> {
    origins: &'a Origins,
    directory: String,
}

impl Drop for Disposal<'_> {
    fn drop(&mut self) {
        let mut state = self.origins.state.lock();
        state.disposing.remove(&self.directory);
    }
}

impl Origins {
    /// A job is about to begin from a savepoint. The error says why it can't.
    pub(super) fn begin(&self, job: JobId, directory: &str) -> Result<(), String> {
        let mut state = self.state.lock();
        if state.disposing.contains(directory) {
            return Err(format!("the savepoint in {directory} is being removed"));
        }
        state.of_jobs.insert(job, directory.to_owned());
        Ok(())
    }

    /// The record of a job is this one.
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

    /// Begins a removal. The error says which job needs the savepoint.
    pub(super) fn dispose(&self, directory: &str) -> Result<Disposal<'_>, String> {
        let mut state = self.state.lock();
        if let Some((job, _)) = state.of_jobs.iter().find(|(_, used)| *used == directory) {
            return Err(format!(
                "the savepoint in {directory} is still needed: job {job} has begun from it, and has not taken a checkpoint \
                 of each region since"
            ));
        }
        if let Some(job) = state.unreadable.first() {
            return Err(format!(
                "whether the savepoint in {directory} is still needed can't be told: the record of the checkpoints of job \
                 {job} can't be read"
            ));
        }
        if !state.disposing.insert(directory.to_owned()) {
            return Err(format!(
                "the savepoint in {directory} is being removed already"
            ));
        }
        Ok(Disposal {
            origins: self,
            directory: directory.to_owned(),
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
    fn a_savepoint_is_needed_until_the_record_of_its_job_has_no_origin() {
        let origins = Origins::default();
        origins.begin(JOB, "/a").expect("not in use");
        for _ in 0..2 {
            let refusal = origins.dispose("/a").expect_err("in use");
            assert!(refusal.contains(&JOB.to_string()), "{refusal}");
            origins.note(JOB, &record("/a"));
        }
        drop(origins.dispose("/b").expect("not in use"));
        origins.note(JOB, &pb::JobCheckpoints::default());
        origins.dispose("/a").expect("not in use any more");
        origins.note(JOB, &record(""));
        origins
            .dispose("")
            .expect("the own directory of a job is no savepoint");
    }

    #[test]
    fn no_job_begins_from_a_savepoint_that_is_being_removed() {
        let origins = Origins::default();
        let disposal = origins.dispose("/a").expect("not in use");
        assert!(origins.dispose("/a").is_err(), "once at a time");
        let refusal = origins.begin(JOB, "/a").expect_err("being removed");
        assert!(refusal.contains("is being removed"), "{refusal}");
        origins.begin(JOB, "/b").expect("another one");
        drop(disposal);
        origins.begin(JOB, "/a").expect("the removal has ended");
        origins.forget(JOB);
        origins.dispose("/a").expect("the job was not submitted");
    }

    #[test]
    fn a_record_that_cannot_be_read_may_need_any_savepoint() {
        let origins = Origins::default();
        origins.note_unreadable(JOB);
        let refusal = origins.dispose("/a").expect_err("not known");
        assert!(refusal.contains("can't be read"), "{refusal}");
        origins.note(JOB, &pb::JobCheckpoints::default());
        origins.dispose("/a").expect("known");
    }
}
