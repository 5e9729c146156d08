//! The part of a task in checkpoints, shared by its loop and the TaskExecutor. The TaskExecutor triggers and aborts
//! numbers, and declines blocked ones; the loop takes numbers up, and declines those that can't be saved.
//!
//! Invariants: a number is taken up at most once, in rising order, and none once the input has ended. What the
//! TaskExecutor says holds at once, also while the loop waits for room or credit; the loop asks before it acts. The
//! number in the status never falls: a lower one that is still being saved is over once a channel is blocked for a
//! higher one.
//!
//! A task is *paused* from the moment at which it has sent a barrier with `pause`. Five events end that: the abort of
//! this number or a higher one, a higher number without `pause`, input that arrives behind the barrier, the end of the
//! input, and the end of the task. Neither a stop of the job nor the absence of a JobMaster does.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tanist_proto::v1::trigger_answer::Answer;
use tanist_proto::v1::{Ack, CheckpointBarrier, CheckpointTimes, SubtaskSnapshot};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::alignment::{Arrival, BarrierAlignment};
use super::checkpoint::{CheckpointProgress, CheckpointStatus};
use super::saved_snapshots::SavedSnapshots;

/// What a task does for checkpoints; see the module.
#[derive(Debug)]
pub(super) struct CheckpointControl {
    state: Mutex<ControlState>,
    status: watch::Sender<CheckpointStatus>,
    /// The loop may have something to do.
    changed: Notify,
}

#[derive(Debug)]
struct ControlState {
    phase: Phase,
    alignment: BarrierAlignment,
    /// A number that the source still has to take up.
    triggered: Option<CheckpointBarrier>,
    /// The number that was taken up and is neither saved nor over.
    saving: Option<CheckpointBarrier>,
    /// The number behind whose barrier the task is paused; `None`: it is not paused.
    paused: Option<u64>,
    /// The number for which a channel was blocked last, and when its first channel was. `None`: none was blocked
    /// since the last number was taken up.
    blocked_since: Option<(u64, Instant)>,
    /// When a number was taken up last, and the time that its alignment took before. `None`: none was, or these times
    /// are in the status already.
    taken_up: Option<(Instant, Duration)>,
    /// What later snapshots may name.
    saved: SavedSnapshots,
}

/// How far the task is. It decides how a trigger is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its operators are not open yet.
    Opening,
    /// It reads its input, or polls its source.
    Running { has_source: bool },
    /// Its input has ended; the task too, perhaps.
    InputEnded { has_source: bool },
    /// It has ended before its input did.
    Over,
}

fn refused(reason: impl Into<String>) -> Answer {
    Answer::Refused(reason.into())
}

impl CheckpointControl {
    /// For a task that is restored from this number; 0: from none.
    pub(super) fn above(restored: u64) -> CheckpointControl {
        let status = CheckpointStatus {
            highest: restored,
            ..CheckpointStatus::default()
        };
        CheckpointControl {
            state: Mutex::new(ControlState {
                phase: Phase::Opening,
                alignment: BarrierAlignment::above(restored),
                triggered: None,
                saving: None,
                paused: None,
                blocked_since: None,
                taken_up: None,
                saved: SavedSnapshots::default(),
            }),
            status: watch::channel(status).0,
            changed: Notify::new(),
        }
    }

    /// What the task has done. The last value stays.
    pub(super) fn status(&self) -> watch::Receiver<CheckpointStatus> {
        self.status.subscribe()
    }

    /// The highest number that the task knows; before it runs, the one that it is restored from.
    pub(super) fn highest(&self) -> u64 {
        self.status.borrow().highest
    }

    /// Waits until the TaskExecutor may have said something.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn publish(&self, highest: u64, progress: CheckpointProgress) {
        self.status.send_modify(|status| {
            status.highest = highest;
            status.progress = progress;
        });
    }
}

/// For the TaskExecutor.
impl CheckpointControl {
    /// Makes the source take a number up. Idempotent: the answer to a number that is under way or saved is the same.
    pub(super) fn trigger(&self, barrier: CheckpointBarrier) -> Answer {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Opening => return refused("it does not run yet"),
            Phase::Over => return refused("it has ended"),
            Phase::Running { has_source: false } | Phase::InputEnded { has_source: false } => {
                return refused("it has no source");
            }
            Phase::InputEnded { has_source: true }
                if self.has_saved(barrier.number) || state.is_saving(barrier.number) =>
            {
                return Answer::Injected(Ack {});
            }
            Phase::InputEnded { has_source: true } => return Answer::SourceEnded(Ack {}),
            Phase::Running { has_source: true } => {}
        }
        let number = barrier.number;
        if state.is_under_way(number) || self.has_saved(number) {
            return Answer::Injected(Ack {});
        }
        let triggered = state.triggered.map_or(0, |triggered| triggered.number);
        let highest = state.alignment.highest().max(triggered);
        if number <= highest {
            return refused(format!("it knows checkpoint {highest}"));
        }
        if let Some(lower) = state.triggered.replace(barrier) {
            state.alignment.resolve(lower.number);
        }
        self.changed.notify_one();
        Answer::Injected(Ack {})
    }

    /// A number is aborted, and all below are over.
    pub(super) fn abort(&self, number: u64) {
        let mut state = self.state.lock();
        let is_over = number <= state.alignment.resolved();
        let was_under_way = state.is_under_way(number);
        state.triggered.take_if(|it| it.number <= number);
        state.saving.take_if(|it| it.number <= number);
        state.alignment.resolve(number);
        if state.paused.is_some_and(|paused| paused <= number) {
            self.resume(&mut state);
        }
        let is_highest = state.alignment.highest() == number;
        if is_highest && (was_under_way || !is_over) {
            self.publish(number, CheckpointProgress::Aborted);
        }
        self.changed.notify_one();
    }

    /// Declines the number for which channels are blocked, if there is one.
    pub(super) fn decline_blocked(&self, reason: &str) {
        let mut state = self.state.lock();
        if let Some(number) = state.alignment.blocked_for() {
            state.alignment.resolve(number);
            self.publish(number, CheckpointProgress::Declined(reason.to_owned()));
            self.changed.notify_one();
        }
    }

    /// The task goes on behind the barrier for which it was paused.
    fn resume(&self, state: &mut ControlState) {
        state.paused = None;
        self.status
            .send_if_modified(|status| std::mem::take(&mut status.paused));
    }

    fn has_saved(&self, number: u64) -> bool {
        let status = self.status.borrow();
        let is_saved = match status.progress {
            CheckpointProgress::Saved(_) | CheckpointProgress::Written => true,
            CheckpointProgress::Unheard
            | CheckpointProgress::Blocked
            | CheckpointProgress::Encoding
            | CheckpointProgress::Declined(_)
            | CheckpointProgress::Aborted => false,
        };
        is_saved && status.highest == number
    }

    /// What was saved for a number is written, or not needed: it is not kept here. `written` names the objects.
    /// Watchers of the status are not woken: the only one is the TaskExecutor, which has called this.
    pub(super) fn release(&self, number: u64, written: Option<Arc<SubtaskSnapshot>>) {
        self.state.lock().saved.release(number, written);
        self.status.send_if_modified(|status| {
            let is_saved = matches!(status.progress, CheckpointProgress::Saved(_));
            if is_saved && status.highest == number {
                status.progress = CheckpointProgress::Written;
            }
            false
        });
    }
}

/// For the loop.
impl CheckpointControl {
    /// The task runs from here on: triggers are accepted if it has a source.
    pub(super) fn begin(&self, has_source: bool) {
        self.state.lock().phase = Phase::Running { has_source };
    }

    /// The task reads this number of channels.
    pub(super) fn open(&self, channels: usize) {
        self.state.lock().alignment.open(channels);
    }

    /// Calls `read` with the check whether a channel is blocked. No channel is blocked or released meanwhile.
    pub(super) fn reading<T>(&self, read: impl FnOnce(&dyn Fn(usize) -> bool) -> T) -> T {
        let state = self.state.lock();
        read(&|channel| state.alignment.is_blocked(channel))
    }

    /// Returns the number that the source has to take up.
    pub(super) fn take_trigger(&self) -> Option<CheckpointBarrier> {
        let mut state = self.state.lock();
        let barrier = state.triggered.take()?;
        state.alignment.resolve(barrier.number);
        self.begin_saving(&mut state, barrier);
        Some(barrier)
    }

    /// Whether the task is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.state.lock().paused.is_some()
    }

    /// Whether the source is paused and has no number to take up.
    pub(super) fn is_held(&self) -> bool {
        let state = self.state.lock();
        state.paused.is_some() && state.triggered.is_none()
    }

    /// Input arrived behind the barrier for which the task is paused: a source was resumed, and the task does not know
    /// it yet.
    pub(super) fn take_input(&self) {
        self.resume(&mut self.state.lock());
    }

    /// The task takes a number up. It goes on behind it, unless the barrier has it pause.
    fn begin_saving(&self, state: &mut ControlState, barrier: CheckpointBarrier) {
        let now = Instant::now();
        let blocked = state.blocked_since.take();
        let blocked = blocked.filter(|(number, _)| *number == barrier.number);
        let alignment = blocked.map_or(Duration::ZERO, |(_, since)| now - since);
        state.taken_up = Some((now, alignment));
        state.saving = Some(barrier);
        if !barrier.pause {
            self.resume(state);
        }
    }

    /// A channel has delivered a barrier. Returns it if the task has to take it up.
    pub(super) fn arrive(
        &self,
        channel: usize,
        barrier: CheckpointBarrier,
    ) -> Option<CheckpointBarrier> {
        let mut state = self.state.lock();
        match state.alignment.arrive(channel, barrier) {
            Arrival::Ignored => None,
            Arrival::Blocked => {
                let number = barrier.number;
                let blocked = state.blocked_since.take().filter(|it| it.0 == number);
                state.blocked_since = blocked.or_else(|| Some((number, Instant::now())));
                // The barrier of a higher number says that the lower one was aborted. If the lower one were saved after
                // this, its status would replace `Blocked`, and the TaskExecutor would not release the channel.
                state.saving.take_if(|lower| lower.number < number);
                self.publish(barrier.number, CheckpointProgress::Blocked);
                None
            }
            Arrival::Complete => {
                self.begin_saving(&mut state, barrier);
                Some(barrier)
            }
        }
    }

    /// A channel has ended. Returns the barrier that the task has to take up because of that.
    pub(super) fn end_channel(&self, channel: usize) -> Option<CheckpointBarrier> {
        let mut state = self.state.lock();
        let barrier = state.alignment.end(channel)?;
        self.begin_saving(&mut state, barrier);
        Some(barrier)
    }

    /// The task is restored from a snapshot of its own.
    pub(super) fn restore(&self, number: u64, snapshot: &SubtaskSnapshot) {
        self.state.lock().saved.restore(number, snapshot);
    }

    /// The newest durable snapshot of the task, which has the number `newest`. `None`: there is none, or it is not
    /// known where its segments were written.
    pub(super) fn base(&self, newest: u64) -> Option<Arc<SubtaskSnapshot>> {
        self.state.lock().saved.take_base(newest)
    }

    /// Whether a number that was taken up is not aborted.
    pub(super) fn is_wanted(&self, number: u64) -> bool {
        self.state.lock().is_saving(number)
    }

    /// The barrier of a number is sent, and its state is frozen. The task is paused if the barrier says so.
    pub(super) fn freeze(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some(barrier) = state.saving.filter(|saving| saving.number == number) {
            self.pass(&mut state, barrier, CheckpointProgress::Encoding);
        }
    }

    /// The state for a number is saved and its barrier sent.
    pub(super) fn save(&self, number: u64, snapshot: SubtaskSnapshot) {
        let mut state = self.state.lock();
        if let Some(barrier) = state.saving.take_if(|saving| saving.number == number) {
            let snapshot = Arc::new(snapshot);
            state.saved.add(number, Arc::clone(&snapshot));
            let saved = CheckpointProgress::Saved(snapshot);
            let is_frozen = {
                let status = self.status.borrow();
                status.highest == number && status.progress == CheckpointProgress::Encoding
            };
            match is_frozen {
                true => self.publish(number, saved),
                false => self.pass(&mut state, barrier, saved),
            }
        }
    }

    /// The barrier of a number is sent.
    fn pass(
        &self,
        state: &mut ControlState,
        barrier: CheckpointBarrier,
        progress: CheckpointProgress,
    ) {
        if barrier.pause {
            state.paused = Some(barrier.number);
        }
        let has_source = state.phase == Phase::Running { has_source: true };
        let times = state.times();
        self.status.send_modify(|status| {
            status.highest = barrier.number;
            status.progress = progress;
            status.paused = barrier.pause && has_source;
            status.times = times;
        });
    }

    /// The state for a number can't be saved.
    pub(super) fn decline(&self, number: u64, reason: String) {
        let mut state = self.state.lock();
        if state.is_saving(number) {
            state.saving = None;
            self.publish(number, CheckpointProgress::Declined(reason));
        }
    }

    /// The input has ended: no number is taken up from here on. One that was triggered is dropped; the end of the
    /// outputs counts in its place.
    pub(super) fn end_input(&self) {
        let mut state = self.state.lock();
        if let Phase::Running { has_source } = state.phase {
            state.phase = Phase::InputEnded { has_source };
        }
        state.triggered = None;
        state.paused = None;
        self.status.send_modify(|status| {
            status.input_ended = true;
            status.paused = false;
        });
    }

    /// The task has ended, by itself or not. A task whose input had ended stays in that phase: a trigger of its source
    /// is still answered with `SourceEnded`.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.triggered = None;
        self.resume(&mut state);
        match state.phase {
            Phase::Opening | Phase::Running { .. } | Phase::Over => state.phase = Phase::Over,
            Phase::InputEnded { .. } => {}
        }
    }
}

impl ControlState {
    /// The times of the number that is saved or frozen by now. Zero if they were taken before.
    fn times(&mut self) -> CheckpointTimes {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let taken_up = self.taken_up.take();
        taken_up.map_or_else(CheckpointTimes::default, |(at, alignment)| {
            CheckpointTimes {
                alignment_us: micros(alignment),
                saving_us: micros(at.elapsed()),
                writing_us: 0,
            }
        })
    }

    /// Whether the source has to take a number up, or does so.
    fn is_under_way(&self, number: u64) -> bool {
        let triggered = self.triggered.map(|barrier| barrier.number);
        triggered == Some(number) || self.is_saving(number)
    }

    fn is_saving(&self, number: u64) -> bool {
        self.saving.is_some_and(|barrier| barrier.number == number)
    }
}

#[cfg(test)]
#[path = "checkpoint_control_tests.rs"]
mod tests;
