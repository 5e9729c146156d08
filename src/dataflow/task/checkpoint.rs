//! What a task reports about checkpoints to its TaskExecutor. Data only; `CheckpointControl` owns and publishes it.

use std::sync::Arc;

use tanist_proto::v1::{CheckpointTimes, SubtaskSnapshot};

/// What a task has done for the highest checkpoint that it knows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CheckpointStatus {
    /// The highest checkpoint that it took up, declined, blocks for, saw aborted or was restored from; 0: none.
    pub highest: u64,
    /// Its progress there.
    pub progress: CheckpointProgress,
    /// Whether its input has ended.
    pub input_ended: bool,
    /// Whether its source is paused behind a barrier.
    pub paused: bool,
    /// How long it took to save the state, without writing it.
    pub times: CheckpointTimes,
}

/// Progress of a task at one checkpoint.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum CheckpointProgress {
    /// It was only restored from that checkpoint, or knows none.
    #[default]
    Unheard,
    /// It blocks inputs that have delivered the barrier.
    Blocked,
    /// It has taken the checkpoint up and passed the barrier on. Its state is being encoded.
    Encoding,
    /// It has taken the checkpoint up and passed the barrier on. This is its state, with all contents.
    Saved(Arc<SubtaskSnapshot>),
    /// It has saved its state, and its TaskExecutor has written it: the contents are not kept here.
    Written,
    /// It can't take the checkpoint up; the reason.
    Declined(String),
    /// The TaskExecutor has said that the checkpoint is aborted.
    Aborted,
}
