//! The interface between tasks and operators: one trait for transformations and sinks, one for sources, and one
//! for what creates them ([`OperatorFactory`]). The operators themselves are in the crates above.
//!
//! Operators are synchronous and know neither tasks nor exchange: each call does a bounded piece of work, so
//! that the caller can yield and cancel between calls. [`Operator::open`] and [`PrepareCommit`] may block and
//! run where blocking is allowed. State lives in the operator's fields; `snapshot` saves it between two elements.

mod error;
mod external;
mod factory;
mod notices;
mod output;
mod peers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1::{CheckpointCommittable, Committable, JobGraph};
use tokio::sync::Notify;
use tokio::time::Instant;

pub use error::OperatorError;
pub use external::{External, ExternalStatus};
pub use factory::{OperatorFactory, ReleasedFiles};
pub use notices::Notices;
pub use output::Output;
pub use peers::{Away, Peers};

use crate::coordination::CoordinatorLine;
use crate::end_guard::EndGuard;
use crate::state::{Restored, Snapshot};
use crate::time::TimeSignal;

/// Where an operator runs.
#[derive(Debug, Clone)]
pub struct OperatorContext {
    /// The whole graph.
    pub graph: Arc<JobGraph>,
    /// The job.
    pub job: JobId,
    /// The vertex that the operator is part of.
    pub vertex: JobVertexId,
    /// Index of this subtask.
    pub subtask: u32,
    /// Number of the vertex's subtasks.
    pub parallelism: u32,
    /// The attempt.
    pub generation: Generation,
    /// The columns of its input; `None` for sources.
    pub input: Option<SchemaRef>,
    /// The columns by which its input is partitioned; empty: by none, or another operator of its task is in between.
    pub keys: Arc<[String]>,
    /// The columns of its output; `None` for sinks.
    pub output: Option<SchemaRef>,
    /// Whether checkpoints are taken of the task. Otherwise nothing that it writes becomes visible before its job ends.
    pub takes_checkpoints: bool,
    /// The number of the checkpoint that the task is restored from; 0: it begins from the start.
    pub restored_from: u64,
    /// Held by work that may outlive the task's future.
    pub end_guard: EndGuard,
    /// Where it reports that one of its peers is unreachable.
    pub peers: Peers,
    /// Where it says what people should know.
    pub notices: Notices,
    /// Indices of the extended resources that the task may use, by resource name.
    pub external_resources: Arc<BTreeMap<String, Vec<u64>>>,
    /// The connection to the operator's coordinator at the JobMaster; `None` if nothing transports requests.
    pub coordinator: Option<CoordinatorLine>,
}

impl OperatorContext {
    /// The columns of its output; for a sink an empty schema.
    pub fn output_schema(&self) -> SchemaRef {
        self.output
            .clone()
            .unwrap_or_else(|| Arc::new(arrow_schema::Schema::empty()))
    }
}

/// Whether an operator has more to emit after its input's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOfInput {
    /// Call again.
    More,
    /// All was emitted.
    Done,
}

/// Output of sinks that have ended. It is not visible yet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SinkOutput {
    /// What becomes visible when the job has finished.
    pub committables: Vec<Committable>,
    /// What becomes visible with the manifest of its region's end. The task fills in the uid of the sink.
    pub checkpoint_committables: Vec<CheckpointCommittable>,
}

impl SinkOutput {
    /// Output that becomes visible when the job has finished.
    pub fn at_end(committables: Vec<Committable>) -> SinkOutput {
        SinkOutput {
            committables,
            checkpoint_committables: Vec::new(),
        }
    }

    /// Adds output that becomes visible with the last checkpoint of the sink's region: see
    /// [`Snapshot::add_committable`].
    pub fn add_committable(&mut self, kind: &str, content: Vec<u8>) {
        self.checkpoint_committables.push(CheckpointCommittable {
            uid: String::new(),
            kind: kind.to_owned(),
            content,
        });
    }

    /// Adds the output of another sink.
    pub fn extend(&mut self, other: SinkOutput) {
        self.committables.extend(other.committables);
        let committables = other.checkpoint_committables;
        self.checkpoint_committables.extend(committables);
    }
}

/// What a sink does once its input has ended, so that its output can be made visible later. May block.
pub type PrepareCommit = Box<dyn FnOnce() -> Result<SinkOutput, OperatorError> + Send>;

/// A transformation or sink.
pub trait Operator: Send {
    /// Takes its state from the snapshot that the task is restored from. Called at most once, before
    /// [`Operator::open`]. May block.
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let _ = restored;
        Ok(())
    }

    /// Saves its state, as it is after all elements that it has received. An operator without state saves nothing.
    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let _ = snapshot;
        Ok(())
    }

    /// Memory of its keyed state, in bytes: [`StateTable::memory`](crate::StateTable::memory) of all its tables.
    /// Asked at most once a second. `None`: what its last snapshot took counts.
    fn state_bytes(&self) -> Option<u64> {
        None
    }

    /// Called once before the first batch. May block.
    fn open(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    /// Processes one batch.
    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError>;

    /// Receives an event-time signal; most operators pass it on.
    fn signal(&mut self, signal: TimeSignal, output: &mut Output) -> Result<(), OperatorError> {
        output.signal(signal);
        Ok(())
    }

    /// Called from time to time, and at the time that the last call returned. `now` stands still while the task is
    /// paused behind a barrier.
    fn tick(
        &mut self,
        now: Instant,
        output: &mut Output,
    ) -> Result<Option<Instant>, OperatorError> {
        let _ = (now, output);
        Ok(None)
    }

    /// For an operator that passes records to another process: if its buffer is full, returns the signal that
    /// there is room again.
    fn without_room(&self) -> Option<Arc<Notify>> {
        None
    }

    /// Called after the last batch, repeatedly while it returns [`EndOfInput::More`]; each call emits a bounded
    /// piece.
    fn end_input(&mut self, output: &mut Output) -> Result<EndOfInput, OperatorError> {
        let _ = output;
        Ok(EndOfInput::Done)
    }

    /// The part that works outside of these calls; `None` if there is none.
    fn external(&mut self) -> Option<&mut dyn External> {
        None
    }

    /// Called after the input's end: the work to do before the task counts as finished.
    fn prepare_commit(&mut self) -> Option<PrepareCommit> {
        None
    }

    /// Called last, and only when the task finishes. A task that fails or is cancelled drops its operators.
    fn close(&mut self) {}
}

/// Result of polling a source.
#[derive(Debug)]
pub enum SourceState {
    /// Records.
    Batch(RecordBatch),
    /// Nothing before this time.
    Wait(Instant),
    /// Nothing before this is notified.
    WaitFor(Arc<Notify>),
    /// Nothing before [`Source::poll_ready`] is ready.
    Pending,
    /// The end.
    End,
}

/// How a source reacts to a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It has ended and is not polled again.
    AtOnce,
    /// It continues to [`SourceState::End`] soon; records that it has in progress are read before that.
    Soon,
}

/// A source of records. Its task polls it; a call reads or creates one bounded batch.
pub trait Source: Send {
    /// Continues behind the position of the snapshot that the task is restored from. Called at most once, before
    /// [`Source::open`]. May block.
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let _ = restored;
        Ok(())
    }

    /// Saves how far it has read: all records that it has emitted, and no others. A source without positions saves
    /// nothing.
    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let _ = snapshot;
        Ok(())
    }

    /// Called once before the first poll. May block.
    fn open(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    /// Returns the next records.
    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError>;

    /// Stops the source as if there were no more records. Called once.
    fn stop(&mut self) -> Stopped {
        Stopped::AtOnce
    }

    /// After [`SourceState::Pending`]: ready when the source must be polled again.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Ready(())
    }

    /// Called last, and only when the task finishes.
    fn close(&mut self) {}
}

/// An operator built from its specification.
pub enum Built {
    /// The first of a chain without input.
    Source(Box<dyn Source>),
    /// Any other.
    Operator(Box<dyn Operator>),
}
