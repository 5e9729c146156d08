//! One number in flight at one region: which tasks have acknowledged it, and which TaskExecutors have to answer its
//! trigger. Owned by its region (`regions.rs`), and gone when the number is durable or aborted.
//!
//! Invariants: the first acknowledgement of a task counts, and repeated ones change nothing; `floor` is the one that it
//! was triggered with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

/// The content of a number's barriers besides the number: the same for each of its triggers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Flags {
    /// It is for a savepoint.
    pub(super) is_savepoint: bool,
    /// Sources pause behind it.
    pub(super) pauses: bool,
}

/// What a task does for a number that it has not saved. For people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// It blocks inputs that have delivered the barrier.
    Aligning,
    /// Its state is being written.
    Writing,
}

/// A number in flight; see the module.
#[derive(Debug)]
pub(super) struct Attempt {
    number: u64,
    floor: u64,
    flags: Flags,
    began_ms: u64,
    acknowledged: BTreeMap<usize, Arc<pb::SubtaskSnapshot>>,
    /// What tasks do for it, by their last report.
    work: BTreeMap<usize, Work>,
    /// TaskExecutors that have not answered the trigger, and the end of their timeout.
    unanswered: BTreeMap<ResourceId, u64>,
    /// Tasks that answered that their source has ended.
    ended_sources: BTreeSet<usize>,
    is_complete: bool,
}

impl Attempt {
    /// A number that is about to be triggered.
    pub(super) fn new(number: u64, floor: u64, flags: Flags, now_ms: u64) -> Attempt {
        Attempt {
            number,
            floor,
            flags,
            began_ms: now_ms,
            acknowledged: BTreeMap::new(),
            work: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            ended_sources: BTreeSet::new(),
            is_complete: false,
        }
    }

    /// The number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The floor that it was triggered with.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// What its barriers say.
    pub(super) fn flags(&self) -> Flags {
        self.flags
    }

    /// When it began.
    pub(super) fn began_ms(&self) -> u64 {
        self.began_ms
    }

    /// Whether each subtask has acknowledged it or had ended before. It waits for its write.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Notes that each subtask has acknowledged it or had ended before.
    pub(super) fn set_complete(&mut self) {
        self.is_complete = true;
    }

    /// A task has saved its state.
    pub(super) fn acknowledge(&mut self, task: usize, snapshot: Arc<pb::SubtaskSnapshot>) {
        self.acknowledged.entry(task).or_insert(snapshot);
    }

    /// A task says what it does for it.
    pub(super) fn note_work(&mut self, task: usize, work: Work) {
        self.work.insert(task, work);
    }

    /// What a task does for it, by its last report. `None`: it has reported nothing.
    pub(super) fn work(&self, task: usize) -> Option<Work> {
        self.work.get(&task).copied()
    }

    /// What a task has saved.
    pub(super) fn snapshot(&self, task: usize) -> Option<&Arc<pb::SubtaskSnapshot>> {
        self.acknowledged.get(&task)
    }

    /// All that tasks have saved.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &pb::SubtaskSnapshot> {
        self.acknowledged.values().map(|snapshot| &**snapshot)
    }

    /// A trigger was sent, and has to be answered by then. A repeated trigger does not extend the timeout.
    pub(super) fn await_answer(&mut self, task_manager: ResourceId, until_ms: u64) {
        self.unanswered.entry(task_manager).or_insert(until_ms);
    }

    /// A trigger was answered.
    pub(super) fn answered(&mut self, task_manager: &ResourceId) {
        self.unanswered.remove(task_manager);
    }

    /// A task answered that its source has ended.
    pub(super) fn source_ended(&mut self, task: usize) {
        self.ended_sources.insert(task);
    }

    /// Whether a task answered that its source has ended.
    pub(super) fn has_ended_source(&self, task: usize) -> bool {
        self.ended_sources.contains(&task)
    }

    /// The first TaskExecutor whose answer is awaited, and until when.
    pub(super) fn first_unanswered(&self) -> Option<(&ResourceId, u64)> {
        let unanswered = self.unanswered.iter().map(|(id, until)| (id, *until));
        unanswered.min_by_key(|(_, until)| *until)
    }
}
