//! How a JobMaster persists its job's state: a trait that hides store and fence, and an in-memory
//! implementation with faults for tests.
//!
//! Invariant: an answer is definite. An implementation repeats an ambiguous write until the store has answered.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_proto::v1 as pb;

/// Why a job's state was not persisted. Definite: it was not and never will be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PersistError {
    /// The term is over: forget everything and inform no one.
    #[error("this term is over")]
    TermOver,
    /// The record is larger than the store's limit.
    #[error("the job's state of {size} bytes is more than the {limit} bytes that the store takes")]
    TooLarge {
        /// Size of the record in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Not written: the record needs the blob store, which can't be reached at present.
    #[error("the record is too large to be written without the blob store: {0}")]
    NoBlobs(String),
    /// The store refused it for another permanent reason.
    #[error("the store refused the job's state: {0}")]
    Refused(String),
}

/// Why the record of a job's checkpoints can't be read. It says nothing about the job's state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointsUnread {
    /// This term is over: forget everything and inform no one.
    #[error("this term is over")]
    TermOver,
    /// It is damaged, or of a later version.
    #[error("checkpoints/{job} can't be read: {reason}")]
    Unreadable {
        /// The job.
        job: String,
        /// What is wrong.
        reason: String,
    },
}

/// Persists the states of one term's jobs under its fence.
#[async_trait]
pub trait JobStateStore: Send + Sync + fmt::Debug + 'static {
    /// Replaces `states/<job>`. Returns when the store's answer is definite, without a timeout. The caller has
    /// one write in flight.
    async fn put_state(&self, state: &pb::JobState) -> Result<(), PersistError>;

    /// Replaces `checkpoints/<job>`, in the same way. The caller has one such write in flight. If the record needs a
    /// blob store that can't be reached, this soon fails with `NoBlobs`, and nothing is written.
    async fn put_checkpoints(&self, record: &pb::JobCheckpoints) -> Result<(), PersistError>;

    /// `checkpoints/<job>` as this term finds it; None: there is none. Waits while it can't be read for now.
    async fn checkpoints(
        &self,
        job_id: &str,
    ) -> Result<Option<pb::JobCheckpoints>, CheckpointsUnread>;
}

/// Whether no task of the job was ever placed, so that none can have started.
pub fn was_never_placed(state: &pb::JobState) -> bool {
    let mut regions = state.regions.iter();
    regions.all(|region| region.placements.is_empty() && !region.placed_before)
}

/// A [`JobStateStore`] in memory, for tests. Clones share their content.
#[derive(Debug, Clone, Default)]
pub struct MemoryJobStateStore {
    inner: Arc<Mutex<Memory>>,
}

#[derive(Debug, Default)]
struct Memory {
    history: Vec<pb::JobState>,
    checkpoints: Vec<pb::JobCheckpoints>,
    delay: Duration,
    term_is_over: bool,
    refusal: Option<PersistError>,
    checkpoints_refusal: Option<PersistError>,
    checkpoints_delay: Duration,
}

impl MemoryJobStateStore {
    async fn put(&self, write: impl FnOnce(&mut Memory) + Send) -> Result<(), PersistError> {
        let delay = self.inner.lock().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut memory = self.inner.lock();
        if memory.term_is_over {
            return Err(PersistError::TermOver);
        }
        if let Some(refusal) = &memory.refusal {
            return Err(refusal.clone());
        }
        write(&mut memory);
        Ok(())
    }

    /// Delays each write by this time from here on.
    pub fn set_delay(&self, delay: Duration) {
        self.inner.lock().delay = delay;
    }

    /// Simulates a newer term: every write that is not applied yet is refused.
    pub fn end_term(&self) {
        self.inner.lock().term_is_over = true;
    }

    /// Refuses every write from here on.
    pub fn refuse(&self, error: PersistError) {
        self.inner.lock().refusal = Some(error);
    }

    /// Delays each write of a record of checkpoints by this time from here on.
    pub fn set_checkpoints_delay(&self, delay: Duration) {
        self.inner.lock().checkpoints_delay = delay;
    }

    /// Refuses every write of a record of checkpoints from here on; `None`: takes them again.
    pub fn refuse_checkpoints(&self, error: Option<PersistError>) {
        self.inner.lock().checkpoints_refusal = error;
    }

    /// Returns all written records of checkpoints, oldest first.
    pub fn checkpoints_history(&self) -> Vec<pb::JobCheckpoints> {
        self.inner.lock().checkpoints.clone()
    }

    /// Returns all writes, oldest first.
    pub fn history(&self) -> Vec<pb::JobState> {
        self.inner.lock().history.clone()
    }

    /// Returns the last write for `job_id`.
    pub fn state(&self, job_id: &str) -> Option<pb::JobState> {
        self.inner
            .lock()
            .history
            .iter()
            .rev()
            .find(|state| state.job_id == job_id)
            .cloned()
    }
}

#[async_trait]
impl JobStateStore for MemoryJobStateStore {
    async fn put_state(&self, state: &pb::JobState) -> Result<(), PersistError> {
        self.put(|memory| memory.history.push(state.clone())).await
    }

    async fn put_checkpoints(&self, record: &pb::JobCheckpoints) -> Result<(), PersistError> {
        let delay = self.inner.lock().checkpoints_delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if let Some(refusal) = self.inner.lock().checkpoints_refusal.clone() {
            return Err(refusal);
        }
        self.put(|memory| memory.checkpoints.push(record.clone()))
            .await
    }

    async fn checkpoints(
        &self,
        job_id: &str,
    ) -> Result<Option<pb::JobCheckpoints>, CheckpointsUnread> {
        let memory = self.inner.lock();
        let mut written = memory.checkpoints.iter().rev();
        Ok(written.find(|record| record.job_id == job_id).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_on_its_way_when_the_term_ends_is_refused() {
        let store = MemoryJobStateStore::default();
        store.set_delay(Duration::from_secs(1));
        let state = pb::JobState {
            job_id: "j".to_owned(),
            ..pb::JobState::default()
        };
        let (answer, ()) = tokio::join!(store.put_state(&state), async {
            store.end_term();
        });
        assert_eq!(answer, Err(PersistError::TermOver));
        assert_eq!(store.state("j"), None);
    }
}
