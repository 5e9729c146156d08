//! The checkpoint states of a job's executions: the newest report of each execution, and the reports that the JobMaster
//! does not know yet. Pure.
//!
//! ```text
//! execution:  unheard --> blocked --> encoding --> writing --written--> acknowledged
//!                |           |            |           | failed
//!                +-----------+------------+-----------+--> declined
//!             any state --abort of its number or, while the task runs, of a higher one--> aborted
//!             any state --the task takes up a higher number--> begins again
//! ```
//!
//! *Unheard*: the task has received no number since it was started or restored. *Blocked*: it waits for barriers, and
//! takes nothing from inputs that have delivered theirs. *Writing*: the TaskExecutor writes what the task has saved.
//!
//! - A lower number never replaces a higher one, and an abort of a number is final for it.
//! - A report stays after the end of its execution, until a younger generation of the subtask is admitted, the
//!   generation is cancelled, or the job is forgotten.
//! - A report that the JobMaster has to know is sent until it is answered ([`reports`]), and with each registration. A
//!   registration reports acknowledgements that would make it too large as being written; they are sent after it.

mod decline_timer;
mod pieces;
mod reports;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tanist_dataflow::{CheckpointProgress, CheckpointStatus};
use tanist_ha::clock::Uptime;
use tanist_ha::election::ClusterIncarnation;
use tanist_proto::v1 as pb;

pub(crate) use self::decline_timer::DeclineTimer;
pub(crate) use self::pieces::Pieces;
use self::reports::Reports;
use super::executions::ExecutionKey;
use super::job::Beginning;
use super::outbox::Route;
use super::output::Output;

/// Most bytes of state that a subtask saves where there is no place for objects.
const MOST_WITHOUT_STORAGE: u64 = 64 * 1024;
/// Advice for a host without a place for objects.
pub(crate) const NO_PLACE: &str = "set `execution.checkpointing.dir` or `high-availability.storageDir`, and for a directory that all hosts share \
     `high-availability.storage-shared: true`";
/// Most bytes of an acknowledgement: half of the smallest `rpc.max-message-size`. Large state is in objects, but the
/// output that waits for a checkpoint is in the acknowledgement itself.
const MOST_IN_REPORT: usize = 512 * 1024;
/// Most bytes of reports in a message, if there is more than one.
const MOST_IN_MESSAGE: usize = 256 * 1024;
/// Most bytes of a reason.
const MOST_OF_REASON: usize = 1024;

#[derive(Debug, Clone, PartialEq)]
enum Progress {
    Unheard,
    Blocked {
        /// Whether the task was requested to decline.
        is_declining: bool,
    },
    /// The task encodes its state.
    Encoding,
    Writing,
    Acknowledged(Arc<pb::SubtaskSnapshot>),
    Declined(String),
    Aborted,
}

impl Progress {
    fn declined(mut reason: String) -> Progress {
        reason.truncate(reason.floor_char_boundary(MOST_OF_REASON));
        Progress::Declined(reason)
    }

    /// The state is saved, and this names it.
    fn acknowledged(snapshot: Arc<pb::SubtaskSnapshot>) -> Progress {
        let size = snapshot.encoded_len();
        if size <= MOST_IN_REPORT {
            return Progress::Acknowledged(snapshot);
        }
        let output = snapshot.committables.len();
        Progress::declined(format!(
            "beside its objects its snapshot has {size} bytes, and it can have {MOST_IN_REPORT}: it names {output} \
             pieces of output that no checkpoint has made visible"
        ))
    }

    /// Whether it stays as it is when the task reports the same number again.
    fn is_decided(&self) -> bool {
        match self {
            Progress::Unheard | Progress::Blocked { .. } | Progress::Encoding => false,
            Progress::Writing
            | Progress::Acknowledged(_)
            | Progress::Declined(_)
            | Progress::Aborted => true,
        }
    }

    /// Whether the JobMaster waits for it.
    fn is_awaited(&self) -> bool {
        match self {
            Progress::Encoding
            | Progress::Writing
            | Progress::Acknowledged(_)
            | Progress::Declined(_) => true,
            Progress::Unheard | Progress::Blocked { .. } | Progress::Aborted => false,
        }
    }
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    Finished,
    Ended,
}

#[derive(Debug)]
struct Known {
    /// Where it writes objects.
    place: SnapshotPlace,
    highest: u64,
    progress: Progress,
    /// The name of the storage in which it has written objects.
    written_to: String,
    input_ended: bool,
    /// Whether its source is paused. It stays so without a JobMaster: the next one decides.
    paused: bool,
    /// How long saving the acknowledged snapshot took.
    times: pb::CheckpointTimes,
    life: Life,
    /// Whether its region takes part in checkpoints: heartbeats have its report.
    takes_part: bool,
    /// Its subtask was cancelled: it is forgotten once it has ended and the JobMaster knows its report.
    is_cancelled: bool,
}

impl Known {
    /// The report without what was saved: the state is reported as being written.
    fn brief_report(&self, execution: &ExecutionKey) -> pb::CheckpointReport {
        let progress = match &self.progress {
            Progress::Acknowledged(_) => Progress::Writing,
            other => other.clone(),
        };
        let brief = Known {
            place: self.place.clone(),
            written_to: self.written_to.clone(),
            progress,
            ..*self
        };
        brief.report(execution)
    }

    fn report(&self, execution: &ExecutionKey) -> pb::CheckpointReport {
        use pb::CheckpointProgress as Pb;
        let (mut snapshot, mut reason) = (None, String::new());
        let is_acknowledged = matches!(self.progress, Progress::Acknowledged(_));
        let progress = match &self.progress {
            Progress::Unheard => Pb::Unheard,
            Progress::Blocked { .. } => Pb::Blocked,
            Progress::Encoding | Progress::Writing => Pb::Writing,
            Progress::Acknowledged(saved) => {
                snapshot = Some((**saved).clone());
                Pb::Acknowledged
            }
            Progress::Declined(why) => {
                reason.clone_from(why);
                Pb::Declined
            }
            Progress::Aborted => Pb::Aborted,
        };
        pb::CheckpointReport {
            execution: Some(execution.message()),
            highest: self.highest,
            progress: progress.into(),
            snapshot,
            reason,
            paused: self.paused,
            input_ended: self.input_ended,
            times: is_acknowledged.then_some(self.times),
            storage: match is_acknowledged {
                true => self.written_to.clone(),
                false => String::new(),
            },
        }
    }
}

/// Work on objects that follows from a change of an execution.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Nothing.
    Nothing,
    /// What is being written for a lower number is not needed.
    Drop,
    /// These pieces are to be written as an object, in place of what is being written for a lower number.
    Write {
        number: u64,
        place: SnapshotPlace,
        snapshot: Arc<pb::SubtaskSnapshot>,
    },
}

/// Where a task writes the objects of what it saves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotPlace {
    /// The cluster of its deployment: whose objects they are.
    pub cluster: ClusterIncarnation,
    /// The name of the storage; empty: the JobMaster knew none.
    pub storage: String,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    known: BTreeMap<ExecutionKey, Known>,
    reports: Reports,
}

impl Checkpoints {
    /// Adds an execution. Older generations of its subtask are forgotten.
    pub(super) fn admit(&mut self, key: ExecutionKey, begins: Beginning) {
        self.forget_up_to(key.previous());
        let known = Known {
            place: begins.place,
            highest: begins.restored_from,
            progress: Progress::Unheard,
            written_to: String::new(),
            input_ended: false,
            paused: false,
            times: pb::CheckpointTimes::default(),
            life: Life::Runs,
            takes_part: begins.takes_checkpoints,
            is_cancelled: false,
        };
        self.known.insert(key, known);
    }

    /// Forgets generations of a subtask up to this one; those that still run are forgotten after their end.
    pub(super) fn forget_up_to(&mut self, up_to: ExecutionKey) {
        self.known.retain(|key, known| {
            known.is_cancelled |= up_to.covers(key);
            known.life == Life::Runs || !known.is_cancelled
        });
        self.reports.retain(|key| self.known.contains_key(key));
    }

    /// Records the checkpoint status of a task. `has_storage`: objects can be written.
    pub(super) fn update(
        &mut self,
        key: &ExecutionKey,
        status: CheckpointStatus,
        has_storage: bool,
    ) -> Step {
        let Some(known) = self.known.get_mut(key) else {
            return Step::Nothing;
        };
        if status.input_ended && !known.input_ended {
            known.input_ended = true;
            if known.takes_part {
                self.reports.add(*key);
            }
        }
        if status.paused != known.paused && known.life == Life::Runs {
            known.paused = status.paused;
            self.reports.add(*key);
        }
        let (before, number) = (known.highest, status.highest);
        if number < before || (number == before && known.progress.is_decided()) {
            return Step::Nothing;
        }
        known.takes_part |= number > before;
        let was_writing = known.progress == Progress::Writing;
        let mut step = match was_writing {
            true => Step::Drop,
            false => Step::Nothing,
        };
        let progress = match status.progress {
            CheckpointProgress::Unheard | CheckpointProgress::Written if number == before => {
                known.progress.clone()
            }
            CheckpointProgress::Unheard | CheckpointProgress::Written => Progress::Unheard,
            CheckpointProgress::Blocked => match known.progress {
                Progress::Blocked { is_declining } if number == before => {
                    Progress::Blocked { is_declining }
                }
                _ => Progress::Blocked {
                    is_declining: false,
                },
            },
            CheckpointProgress::Encoding => Progress::Encoding,
            CheckpointProgress::Declined(reason) => Progress::declined(reason),
            CheckpointProgress::Aborted => Progress::Aborted,
            CheckpointProgress::Saved(snapshot) => {
                let pieces = Pieces::of(&snapshot);
                if has_storage && pieces.need_object() {
                    step = Step::Write {
                        number,
                        place: known.place.clone(),
                        snapshot,
                    };
                    Progress::Writing
                } else if !has_storage && pieces.total() > MOST_WITHOUT_STORAGE {
                    Progress::declined(format!(
                        "its state has {} bytes, and without a place for checkpoints it can have \
                         {MOST_WITHOUT_STORAGE}: {NO_PLACE}",
                        pieces.total()
                    ))
                } else {
                    Progress::acknowledged(snapshot)
                }
            }
        };
        known.highest = number;
        known.progress = progress;
        known.times = status.times;
        if known.progress.is_awaited() {
            self.reports.add(*key);
        }
        step
    }

    /// Records how long writing the pieces of a snapshot took. Nothing is decided by it.
    pub(super) fn note_writing(&mut self, key: &ExecutionKey, number: u64, took: Duration) {
        let known = self.known.get_mut(key);
        if let Some(known) = known.filter(|known| known.highest == number) {
            known.times.writing_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        }
    }

    /// Records that the pieces of a snapshot were written, or why not.
    pub(super) fn written(
        &mut self,
        key: &ExecutionKey,
        number: u64,
        written: Result<(Arc<pb::SubtaskSnapshot>, String), String>,
    ) {
        let known = self.known.get_mut(key);
        let is_awaited =
            |known: &&mut Known| known.highest == number && known.progress == Progress::Writing;
        let Some(known) = known.filter(is_awaited) else {
            return;
        };
        known.progress = match written {
            Ok((snapshot, storage)) => {
                known.written_to = storage;
                Progress::acknowledged(snapshot)
            }
            Err(reason) => Progress::declined(reason),
        };
        self.reports.add(*key);
    }

    /// Records that a number is aborted. What was saved for it is not needed.
    pub(super) fn abort(&mut self, key: &ExecutionKey, number: u64) -> Step {
        let Some(known) = self.known.get_mut(key) else {
            return Step::Nothing;
        };
        // An execution that has ended without having received the number can't have saved anything for it.
        let is_new = number > known.highest && known.life == Life::Runs;
        if number != known.highest && !is_new {
            return Step::Nothing;
        }
        let was_writing = known.progress == Progress::Writing;
        known.highest = number;
        known.progress = Progress::Aborted;
        match was_writing {
            true => Step::Drop,
            false => Step::Nothing,
        }
    }

    /// Records the end of an execution. Returns the highest checkpoint that it knew.
    pub(super) fn end(&mut self, key: &ExecutionKey, is_finished: bool) -> u64 {
        let Some(known) = self.known.get_mut(key) else {
            return 0;
        };
        known.life = match is_finished {
            true => Life::Finished,
            false => Life::Ended,
        };
        known.paused = false;
        let highest = known.highest;
        // One that finishes has encoded its state before.
        if !is_finished && known.progress == Progress::Encoding {
            let reason = "it ended before its state was encoded";
            known.progress = Progress::declined(reason.to_owned());
            self.reports.add(*key);
        }
        self.forget_cancelled();
        highest
    }

    /// Forgets executions that were cancelled and have ended, once the JobMaster knows their reports.
    fn forget_cancelled(&mut self) {
        let reports = &self.reports;
        self.known.retain(|key, known| {
            !known.is_cancelled || known.life == Life::Runs || reports.holds(key)
        });
    }

    /// Whether an execution has finished here.
    pub(super) fn has_finished(&self, key: &ExecutionKey) -> bool {
        let known = self.known.get(key);
        known.is_some_and(|known| known.life == Life::Finished)
    }

    /// Whether any task blocks inputs and was not requested to decline.
    pub(super) fn has_blocked(&self) -> bool {
        self.known.values().any(is_blocked)
    }

    /// Takes the tasks that block inputs and were not requested to decline yet.
    pub(super) fn take_blocked(&mut self) -> Vec<ExecutionKey> {
        let blocked = self.known.iter_mut().filter(|(_, known)| is_blocked(known));
        let taken = blocked.map(|(key, known)| {
            known.progress = Progress::Blocked { is_declining: true };
            *key
        });
        taken.collect()
    }

    /// Reports for a heartbeat: of the executions whose regions take part, as many as fit in a message. The JobMaster
    /// knows the others, or receives them in calls.
    pub(super) fn reports(&self) -> Vec<pb::CheckpointReport> {
        let reports = self.with_room().into_iter();
        let reports = reports.filter(|(_, known, has_room)| *has_room && known.takes_part);
        reports.map(|(key, known, _)| known.report(key)).collect()
    }

    /// Reports of all executions, for a registration. Acknowledgements that do not fit are due in calls after it.
    pub(super) fn full_report(&mut self) -> Vec<pb::CheckpointReport> {
        let (mut reports, mut left) = (Vec::new(), Vec::new());
        for (key, known, has_room) in self.with_room() {
            reports.push(match has_room {
                true => known.report(key),
                false => known.brief_report(key),
            });
            left.extend((!has_room).then_some(*key));
        }
        self.reports.clear();
        left.into_iter().for_each(|key| self.reports.add(key));
        reports
    }

    /// All executions, and whether the report of each fits in a message beside those before it. Those that have ended
    /// come first: a new leader adopts a number that one of them has taken up only with its acknowledgement.
    fn with_room(&self) -> Vec<(&ExecutionKey, &Known, bool)> {
        let mut all: Vec<_> = self.known.iter().collect();
        all.sort_by_key(|(_, known)| known.life == Life::Runs);
        let mut bytes = 0;
        let mut with_room = Vec::new();
        for (key, known) in all {
            let size = match &known.progress {
                Progress::Acknowledged(snapshot) => snapshot.encoded_len(),
                Progress::Unheard
                | Progress::Blocked { .. }
                | Progress::Encoding
                | Progress::Writing
                | Progress::Declined(_)
                | Progress::Aborted => 0,
            };
            let has_room = size == 0 || bytes + size <= MOST_IN_MESSAGE;
            bytes += if has_room { size } else { 0 };
            with_room.push((key, known, has_room));
        }
        with_room
    }

    /// Forgets what is in flight: the connection has ended. It counts as not reported.
    pub(super) fn reset(&mut self) {
        self.reports.reset();
    }

    /// When failed reports are sent again.
    pub(super) fn retry_at(&self) -> Option<Uptime> {
        self.reports.retry_at()
    }

    /// Whether a report is not sent yet.
    #[cfg(test)]
    pub(super) fn is_due(&self, key: &ExecutionKey) -> bool {
        self.reports.is_due(key)
    }

    /// Sends the reports that the JobMaster does not know yet.
    pub(super) fn send(&mut self, now: Uptime, route: Route<'_>, output: &mut Output) {
        let known = &self.known;
        let report = |key: &ExecutionKey| known.get(key).map(|known| known.report(key));
        self.reports.send(now, route, &report, output);
    }

    /// Ends a call with reports. With `retry_at` it failed, and they are sent again then.
    pub(super) fn finish_report(&mut self, call: u64, retry_at: Option<Uptime>) {
        self.reports.finish(call, retry_at);
        self.reports.retain(|key| self.known.contains_key(key));
        self.forget_cancelled();
    }
}

fn is_blocked(known: &Known) -> bool {
    let is_declining = false;
    known.life == Life::Runs && known.progress == Progress::Blocked { is_declining }
}
