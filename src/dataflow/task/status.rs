//! Status and counters of a task. The task writes them; its TaskExecutor reads and reports them.

use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use tanist_proto::v1::{Committable, ExecutionId, ExecutionState, TaskMetrics};

use crate::operator::{Notices, Peers, SinkOutput};
use crate::record::size_of;

/// Status of a task. It only moves forward; the last three are final.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskStatus {
    /// The task was accepted.
    Deploying,
    /// It opens its operators.
    Initializing,
    /// It processes records.
    Running,
    /// It was cancelled and is ending.
    Canceling,
    /// All its input is processed and all its output handed over.
    Finished {
        /// Output of its sinks that is not visible yet.
        output: SinkOutput,
    },
    /// It ended because it was cancelled.
    Canceled,
    /// It failed.
    Failed {
        /// The reason, for people.
        cause: String,
        /// The finished execution whose kept output could not be read; `None`: that is not the reason.
        unreadable: Option<ExecutionId>,
        /// Whether every further attempt would end the same way.
        unrecoverable: bool,
        /// Whether the state that it is restored from is missing, damaged or too new.
        has_damaged_state: bool,
        /// Whether it only lost a task to which it is connected, which may have failed before it.
        lost_peer: bool,
    },
}

impl TaskStatus {
    /// The status of a task that has finished, with the output that becomes visible when its job has.
    pub fn finished(committables: Vec<Committable>) -> TaskStatus {
        TaskStatus::Finished {
            output: SinkOutput::at_end(committables),
        }
    }

    /// The status of a task that failed for this reason and may be restarted.
    pub fn failed(cause: impl Into<String>) -> TaskStatus {
        TaskStatus::Failed {
            cause: cause.into(),
            unreadable: None,
            unrecoverable: false,
            has_damaged_state: false,
            lost_peer: false,
        }
    }

    /// The status of a task whose state can't be restored by any attempt, for this reason.
    pub fn damaged_state(cause: impl Into<String>) -> TaskStatus {
        TaskStatus::Failed {
            cause: cause.into(),
            unreadable: None,
            unrecoverable: false,
            has_damaged_state: true,
            lost_peer: false,
        }
    }

    /// Whether the task has ended.
    pub fn is_terminal(&self) -> bool {
        match self {
            TaskStatus::Deploying
            | TaskStatus::Initializing
            | TaskStatus::Running
            | TaskStatus::Canceling => false,
            TaskStatus::Finished { .. } | TaskStatus::Canceled | TaskStatus::Failed { .. } => true,
        }
    }

    /// The state as it is reported.
    pub fn execution_state(&self) -> ExecutionState {
        match self {
            TaskStatus::Deploying => ExecutionState::Deploying,
            TaskStatus::Initializing => ExecutionState::Initializing,
            TaskStatus::Running => ExecutionState::Running,
            TaskStatus::Canceling => ExecutionState::Canceling,
            TaskStatus::Finished { .. } => ExecutionState::Finished,
            TaskStatus::Canceled => ExecutionState::Canceled,
            TaskStatus::Failed { .. } => ExecutionState::Failed,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.execution_state().as_str_name()
    }
}

/// Counts records and bytes into and out of the task; a chain counts as one. Also holds which peers are
/// unreachable, and the notices of its operators.
#[derive(Debug, Default)]
pub(super) struct Counters {
    records_in: AtomicU64,
    records_out: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    late: AtomicU64,
    skipped: AtomicU64,
    state_bytes: AtomicU64,
    peers: Peers,
    notices: Notices,
}

impl Counters {
    pub(super) fn count_in(&self, batch: &RecordBatch) {
        self.records_in
            .fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        self.bytes_in
            .fetch_add(size_of(batch) as u64, Ordering::Relaxed);
    }

    pub(super) fn count_out(&self, rows: usize, bytes: usize) {
        self.records_out.fetch_add(rows as u64, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts records that operators dropped because they were late or unreadable.
    pub(super) fn count_dropped(&self, late: u64, skipped: u64) {
        self.late.fetch_add(late, Ordering::Relaxed);
        self.skipped.fetch_add(skipped, Ordering::Relaxed);
    }

    /// Notes the memory of the state.
    pub(super) fn set_state_bytes(&self, bytes: u64) {
        self.state_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Where operators report that a peer is unreachable.
    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Where operators say what people should know.
    pub(super) fn notices(&self) -> &Notices {
        &self.notices
    }

    pub(super) fn snapshot(&self) -> TaskMetrics {
        TaskMetrics {
            records_in: self.records_in.load(Ordering::Relaxed),
            records_out: self.records_out.load(Ordering::Relaxed),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            late_records_dropped: self.late.load(Ordering::Relaxed),
            records_skipped: self.skipped.load(Ordering::Relaxed),
            peer_away_since_ms: self.peers.away_since_ms(),
            state_bytes: self.state_bytes.load(Ordering::Relaxed),
        }
    }
}
