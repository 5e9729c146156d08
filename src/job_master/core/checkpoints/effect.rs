//! Effects: the outputs of this core, run by the actor. Data only.

use std::sync::Arc;

use tanist_proto::v1 as pb;

use crate::core::Connection;

/// What a region is restored from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoredFrom {
    /// Nothing: it begins from the start.
    Start,
    /// The origin of the job.
    Origin,
    /// Its snapshot of this number.
    Snapshot(u64),
}

/// The content of a barrier, the same from the trigger to the sinks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Barrier {
    /// The number.
    pub number: u64,
    /// The number of the region's newest snapshot; 0: it has none.
    pub newest: u64,
    /// A snapshot may name objects numbered from this on, and those of `newest`. Not below the record's floor at the
    /// trigger: objects below that may be garbage.
    pub floor: u64,
    /// It is for a savepoint.
    pub is_savepoint: bool,
    /// Sources pause behind it.
    pub pauses: bool,
}

/// Executions of a region on one TaskExecutor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executions {
    /// The region.
    pub region: usize,
    /// Its generation.
    pub generation: u64,
    /// The tasks.
    pub tasks: Vec<usize>,
}

/// An output of this core.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Trigger a number at sources. It may have been triggered there before.
    Trigger {
        /// The TaskExecutor's connection.
        connection: Connection,
        /// The sources.
        sources: Executions,
        /// What they inject.
        barrier: Barrier,
    },
    /// Send the abort of a number to tasks. It resumes sources that pause behind it, or behind a lower one.
    Abort {
        /// The TaskExecutor's connection.
        connection: Connection,
        /// The tasks.
        executions: Executions,
        /// The number.
        number: u64,
    },
    /// Answer an acknowledgement, so that it is not repeated.
    AnswerAcknowledgement {
        /// The TaskExecutor's connection.
        connection: Connection,
        /// The task.
        task: usize,
        /// Its generation.
        generation: u64,
        /// The number.
        number: u64,
        /// The error says why it does not count.
        answer: Result<(), String>,
    },
    /// Put a manifest into the blob store, under a name that was never used.
    PutManifest {
        /// The number of the checkpoint.
        number: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Write the record.
    Write {
        /// Identifies the write in its answer.
        write: u64,
        /// The record.
        record: Arc<pb::JobCheckpoints>,
    },
    /// Commit what a durable manifest lists. Nothing else is being committed.
    Commit {
        /// The checkpoint: its mark has this number.
        number: u64,
        /// What to commit.
        committables: Vec<pb::CheckpointCommittable>,
    },
    /// Remove the marks of commits up to a number: the record says that they are done.
    ForgetCommits {
        /// The number.
        up_to: u64,
    },
    /// Remove objects in this order. What does not exist counts as removed.
    Remove {
        /// Identifies the removal in its answer.
        removal: u64,
        /// Their names.
        objects: Vec<String>,
    },
    /// List the objects in the job's directory.
    List,
    /// Give a region up: more of its checkpoints failed than are tolerated.
    FailRegion {
        /// The region.
        region: usize,
        /// Why.
        cause: String,
    },
    /// Answer a request for a savepoint: it is durable, or refused.
    AnswerSavepoint {
        /// Identifies the request.
        trigger_id: String,
        /// The error says why it is refused.
        answer: Result<(), String>,
    },
    /// Copy a completed checkpoint, whose output is committed, into a directory below this one. Repeated by each
    /// JobMaster until its outcome is durable.
    CopySavepoint {
        /// Identifies the request.
        trigger_id: String,
        /// The checkpoint, which stays retained meanwhile.
        number: u64,
        /// The directory.
        directory: String,
    },
    /// Remove the copy of a savepoint that has durably failed. Each JobMaster does so once, after it has stopped a copy
    /// of its own. A copy that does not exist counts as removed.
    DiscardCopy {
        /// Identifies the request.
        trigger_id: String,
        /// The directory.
        directory: String,
    },
    /// For people: a checkpoint is complete.
    Completed {
        /// Its number.
        number: u64,
        /// The regions whose snapshots are new, in order.
        regions: Vec<usize>,
    },
    /// For people: a number of a region is aborted.
    Aborted {
        /// The region.
        region: usize,
        /// The number.
        number: u64,
        /// Why.
        reason: String,
        /// Whether it counts as a failed checkpoint. `false`, for example: the region or the job ends.
        is_failure: bool,
    },
}
