//! Events: the inputs of this core. Data only.

use std::collections::VecDeque;
use std::sync::Arc;

use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use crate::core::Connection;

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskEnd {
    /// The highest number that it took up, declined or saw aborted, or was restored from. For later numbers it counts
    /// as ended.
    pub highest: u64,
    /// Its last output.
    pub committables: Vec<pb::CheckpointCommittable>,
    /// Its output that becomes visible when the job has finished.
    pub output: Vec<pb::Committable>,
}

/// What a task has done for the highest number that it knows.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskProgress {
    /// It was only restored from that number, or knows none.
    Unheard,
    /// It blocks inputs that have delivered the barrier.
    Blocked,
    /// It has taken the number up, and its state is being written.
    Writing,
    /// It has saved this.
    Acknowledged(Arc<pb::SubtaskSnapshot>),
    /// It can't take the number up.
    Declined,
    /// It has received the abort of the number.
    Aborted,
}

/// What a TaskExecutor reports about an execution, also after its end.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskReport {
    /// The task.
    pub task: usize,
    /// Its generation.
    pub generation: u64,
    /// The highest number that it took up, declined, blocks for, saw aborted, or was restored from; 0: none.
    pub highest: u64,
    /// Its progress there.
    pub progress: TaskProgress,
    /// Whether its source is paused.
    pub is_paused: bool,
    /// Whether its input has ended, as [`Event::InputEnded`] says.
    pub has_input_ended: bool,
}

impl TaskReport {
    /// Whether this report was made before `other`, of the same task: an execution never goes back.
    pub(super) fn is_before(&self, other: &TaskReport) -> bool {
        let order = |it: &TaskReport| (it.generation, it.highest, it.progress.rank());
        order(self) < order(other)
    }
}

impl TaskProgress {
    /// The order in which an execution goes through the states of a number.
    fn rank(&self) -> u8 {
        match self {
            TaskProgress::Unheard => 0,
            TaskProgress::Blocked => 1,
            TaskProgress::Writing => 2,
            TaskProgress::Acknowledged(_) | TaskProgress::Declined => 3,
            TaskProgress::Aborted => 4,
        }
    }
}

/// A task's answer to a trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TriggerAnswer {
    /// It injects the barrier, or has done so.
    Injected,
    /// Its source has ended.
    SourceEnded,
    /// It does not; the reason.
    Refused(String),
}

/// The state of a region when a JobMaster begins, by the record `states/<job>`.
#[derive(Debug, Clone)]
pub enum RegionStart {
    /// It is not placed.
    Waiting {
        /// The last generation that was written.
        generation: u64,
    },
    /// An earlier JobMaster placed it. Its executions are awaited.
    Placed {
        /// Its generation.
        generation: u64,
        /// Where its tasks are.
        places: Vec<(usize, ResourceId)>,
        /// The ends of its tasks that are durable.
        ends: Vec<(usize, TaskEnd)>,
    },
    /// All its tasks have durably finished.
    Finished {
        /// Its generation.
        generation: u64,
        /// The ends of its tasks.
        ends: Vec<(usize, TaskEnd)>,
    },
}

/// The state of a job when a JobMaster begins.
#[derive(Debug, Clone, Default)]
pub struct JobStart {
    /// When the job began, in milliseconds since 1970; 0: it is not known. The first round is due an interval later.
    pub began_ms: u64,
    /// Its regions.
    pub regions: Vec<RegionStart>,
    /// The decisions of its operator coordinators, by their records.
    pub coordinators: Vec<pb::CoordinatorState>,
    /// It is decided that the job is canceled or fails.
    pub is_end_decided: bool,
}

/// An input of this core.
#[derive(Debug, Clone)]
pub enum Event {
    /// A deadline may have passed; see [`super::CheckpointCore::deadline_ms`].
    TimePassed,
    /// A TaskExecutor registers and reports all executions of the job that it knows. Its former registration is void.
    Registered {
        /// Its connection.
        connection: Connection,
        /// Whether it takes part in checkpoints.
        takes_checkpoints: bool,
        /// Its executions.
        reports: Vec<TaskReport>,
    },
    /// A registered TaskExecutor can't be reached at present.
    Disconnected {
        /// Its connection.
        connection: Connection,
    },
    /// A TaskExecutor reports all executions of the job that it knows.
    Reported {
        /// Its connection.
        connection: Connection,
        /// Its executions.
        reports: Vec<TaskReport>,
    },
    /// All executions of a region that an earlier JobMaster placed were reported: they run, or have ended.
    RegionAdopted {
        /// The region.
        region: usize,
    },
    /// The placement of a region is durable. It restores what [`super::CheckpointCore::restored_from`] says.
    RegionPlaced {
        /// The region.
        region: usize,
        /// The generation.
        generation: u64,
        /// Where its tasks are.
        places: Vec<(usize, ResourceId)>,
    },
    /// All tasks of a region run or have ended.
    RegionRunning {
        /// The region.
        region: usize,
        /// The generation.
        generation: u64,
    },
    /// A region has failed, or is given up for another reason.
    RegionFailed {
        /// The region.
        region: usize,
    },
    /// It is durable that all tasks of a region have finished.
    RegionFinished {
        /// The region.
        region: usize,
        /// The generation.
        generation: u64,
        /// The ends of its tasks.
        ends: Vec<(usize, TaskEnd)>,
    },
    /// The answer to a trigger.
    TriggerAnswered {
        /// The TaskExecutor's connection.
        connection: Connection,
        /// The region.
        region: usize,
        /// The number.
        number: u64,
        /// The answers of its sources there.
        answers: Vec<(usize, TriggerAnswer)>,
    },
    /// A task has saved its state.
    Acknowledged {
        /// The TaskExecutor's connection.
        connection: Connection,
        /// The task.
        task: usize,
        /// Its generation.
        generation: u64,
        /// The number.
        number: u64,
        /// What it saved.
        snapshot: Arc<pb::SubtaskSnapshot>,
    },
    /// A task can't take a number up, or could not save its state.
    Declined {
        /// The TaskExecutor's connection.
        connection: Connection,
        /// The task.
        task: usize,
        /// Its generation.
        generation: u64,
        /// The number.
        number: u64,
        /// Why.
        reason: String,
    },
    /// The input of a task has ended. It still runs.
    InputEnded {
        /// The TaskExecutor's connection.
        connection: Connection,
        /// The task.
        task: usize,
        /// Its generation.
        generation: u64,
        /// The highest number that it took up, declined or saw aborted.
        highest: u64,
    },
    /// A task has finished.
    TaskEnded {
        /// The TaskExecutor's connection.
        connection: Connection,
        /// The task.
        task: usize,
        /// Its generation.
        generation: u64,
        /// Its end.
        end: TaskEnd,
    },
    /// The decisions of operator coordinators changed.
    CoordinatorsChanged(Vec<pb::CoordinatorState>),
    /// The manifest is in the blob store.
    ManifestPut(pb::ManifestObject),
    /// The manifest could not be put; the reason.
    ManifestNotPut(String),
    /// A write is durable.
    Written {
        /// The write.
        write: u64,
    },
    /// The store refused a write for good: it is not durable.
    WriteRefused {
        /// The write.
        write: u64,
        /// Why.
        reason: String,
    },
    /// Another term exists, and whether the write is durable can't be known: this term decides nothing any more.
    WriteUnknown {
        /// The write.
        write: u64,
    },
    /// All committables of a checkpoint are committed.
    Committed {
        /// The checkpoint.
        number: u64,
    },
    /// Some committables of a checkpoint are not committed, and are to be tried again.
    CommitFailed {
        /// The checkpoint.
        number: u64,
    },
    /// The objects of a removal are gone.
    Removed {
        /// The removal.
        removal: u64,
    },
    /// Some objects of a removal may exist.
    RemovalFailed {
        /// The removal.
        removal: u64,
    },
    /// The objects in the job's directory.
    Listed(Vec<String>),
    /// The job's directory could not be listed.
    NotListed,
    /// It is decided that the job is canceled or fails: no snapshot is written any more.
    EndDecided,
    /// A client asks for a savepoint. A known trigger id is the same request.
    SavepointRequested {
        /// The request.
        request: pb::TriggerSavepointRequest,
        /// Milliseconds since 1970, for people.
        at_ms: u64,
    },
    /// The copy of a savepoint is complete, or why there is none.
    SavepointCopied {
        /// Identifies the request.
        trigger_id: String,
        /// The path of the savepoint; the error says why there is none.
        outcome: Result<String, String>,
    },
}

/// Takes the next events to be handled together: all of them, up to the decided end of the job. What is decided in the
/// same step as the end must not be handled without it: a region's failure may complete a round, and no snapshot is
/// written once the end is decided.
pub fn take_batch(news: &mut VecDeque<Event>) -> Vec<Event> {
    let ends = |event: &Event| matches!(event, Event::EndDecided);
    let end = news.iter().position(ends);
    let count = end.map_or(news.len(), |before| before + 1);
    news.drain(..count).collect()
}
