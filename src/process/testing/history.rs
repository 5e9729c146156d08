//! The events of a cluster, in their total order.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use tanist_gateway::kinds;
use tanist_ha::keys::Kind;
use tanist_ha::records::record::{self, Payload};
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

/// One attempt to run a subtask.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AttemptKey {
    pub job: JobId,
    pub vertex: String,
    pub subtask: u32,
    pub generation: u64,
}

/// A record about a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    Graph(JobId),
    State(JobId, Box<pb::JobState>),
    Checkpoints(JobId, Box<pb::JobCheckpoints>),
    Result(JobId, Box<pb::JobResult>),
    Description(JobId),
    Deleted(Kind, JobId),
    Other,
}

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// The store applied a transaction.
    Committed { epoch: u64, records: Vec<Record> },
    /// A client's submission was acknowledged.
    Acknowledged(JobId),
    /// A client's cancellation was acknowledged.
    CancelAcknowledged(JobId),
    /// A client's stop was acknowledged.
    StopAcknowledged(JobId),
    /// A task was started in a TaskManager.
    Started {
        attempt: AttemptKey,
        task_manager: String,
        epoch: u64,
    },
    /// A task that takes part in checkpoints begins with the one of this number; 0: from the start.
    Restored { attempt: AttemptKey, number: u64 },
    /// An attempt ended, in any way.
    Ended(AttemptKey),
    /// The output of sinks was made visible.
    SinksCommitted(Vec<pb::Committable>),
    /// The output that a checkpoint names was made visible.
    CheckpointCommitted(u64, Vec<pb::CheckpointCommittable>),
    /// A job's leftovers were removed.
    Cleaned(JobId),
    /// A life of a JobManager was granted leadership.
    Granted { life: String, epoch: u64 },
    /// A TaskManager accepted a leader's message of another epoch than before. When that message came, the last
    /// accepted epoch was `before`.
    Accepted {
        task_manager: String,
        epoch: u64,
        before: u64,
    },
    /// A TaskManager could not be reached, or an answer of it or to it was lost.
    Disturbed(String),
}

impl Record {
    /// The record that a write puts or deletes.
    pub(crate) fn of(write: &Write) -> Record {
        let key = write.key();
        let Ok(job) = key.name.as_str().parse::<JobId>() else {
            return Record::Other;
        };
        let value = match write {
            Write::Delete { .. } => return Record::Deleted(key.kind, job),
            Write::Put { value, .. } => value,
        };
        let bytes = match record::decode(key, 3, value) {
            Ok(Payload::Inline { bytes, .. }) => bytes,
            Ok(Payload::Chunks { .. }) if key.kind == kinds::GRAPHS => return Record::Graph(job),
            Ok(Payload::Chunks { .. } | Payload::Blob { .. })
                if key.kind == kinds::DESCRIPTIONS =>
            {
                return Record::Description(job);
            }
            other => panic!("{key}: no record of these tests is like this: {other:?}"),
        };
        match key.kind {
            kinds::GRAPHS => Record::Graph(job),
            kinds::STATES => {
                let state = pb::JobState::decode(bytes).expect("a state");
                Record::State(job, Box::new(state))
            }
            kinds::CHECKPOINTS => {
                let checkpoints = pb::JobCheckpoints::decode(bytes).expect("checkpoints");
                Record::Checkpoints(job, Box::new(checkpoints))
            }
            kinds::RESULTS => {
                let result = pb::JobResult::decode(bytes).expect("a result");
                Record::Result(job, Box::new(result))
            }
            kinds::DESCRIPTIONS => Record::Description(job),
            kinds::CHUNKS
            | kinds::BLOB_TOMBSTONES
            | kinds::STORAGES
            | kinds::HISTORY
            | kinds::APPLICATIONS
            | kinds::WORKERS
            | kinds::DRAINS => Record::Other,
            unknown => panic!("{key}: decide whether {unknown:?} is about a job"),
        }
    }
}

/// The jobs in the store after a part of the history.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Stored {
    pub graphs: BTreeMap<JobId, ()>,
    pub states: BTreeMap<JobId, pb::JobState>,
    pub checkpoints: BTreeMap<JobId, pb::JobCheckpoints>,
    pub results: BTreeMap<JobId, pb::JobResult>,
    pub descriptions: BTreeSet<JobId>,
}

impl Stored {
    /// Applies an event.
    pub(crate) fn apply(&mut self, event: &Event) {
        let Event::Committed { records, .. } = event else {
            return;
        };
        for record in records {
            match record {
                Record::Graph(job) => drop(self.graphs.insert(*job, ())),
                Record::State(job, state) => drop(self.states.insert(*job, (**state).clone())),
                Record::Checkpoints(job, checkpoints) => {
                    self.checkpoints.insert(*job, (**checkpoints).clone());
                }
                Record::Result(job, result) => drop(self.results.insert(*job, (**result).clone())),
                Record::Description(job) => drop(self.descriptions.insert(*job)),
                Record::Deleted(kinds::DESCRIPTIONS, job) => drop(self.descriptions.remove(job)),
                Record::Deleted(kinds::GRAPHS, job) => drop(self.graphs.remove(job)),
                Record::Deleted(kinds::STATES, job) => drop(self.states.remove(job)),
                Record::Deleted(kinds::CHECKPOINTS, job) => drop(self.checkpoints.remove(job)),
                Record::Deleted(kinds::RESULTS, job) => drop(self.results.remove(job)),
                Record::Deleted(_, _) | Record::Other => {}
            }
        }
    }

    /// Whether a job is known at all.
    pub(crate) fn has(&self, job: JobId) -> bool {
        self.graphs.contains_key(&job) && self.states.contains_key(&job)
            || self.results.contains_key(&job)
    }
}
