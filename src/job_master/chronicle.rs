//! What happened to a job, and since when it is in each status. Decides nothing.
//!
//! The record has it as of its last write; what was noted since rides along with the next one, as nothing is written for its sake.
//! A status that follows from a write is in that write, with the time of the decision, and shown when the write is durable. So a
//! leader finds every status whose cause is in the record, and since when.
//!
//! Invariant: a status that a job returns to from RECONCILING was never left: it keeps its time.

use std::sync::Arc;

use tanist_proto::v1 as pb;
use tanist_proto::v1::{JobEvent, JobEventKind, JobStatus, StatusTimestamp};

use super::core::JobMasterCore;
use super::exceptions::shorten;
use super::status::{illegal, is_edge};

/// The record keeps so many events.
const KEPT_EVENTS: usize = 64;
/// So much of the text of each, in bytes.
const KEPT_TEXT: usize = 256;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Chronicle {
    /// The status that is shown.
    status: JobStatus,
    /// The last status that was noted, RECONCILING aside.
    noted: JobStatus,
    /// Entered since the last write.
    entered: Vec<StatusTimestamp>,
    /// Happened since the last write.
    events: Vec<JobEvent>,
    /// The term.
    epoch: u64,
    /// The last status in the record, if that is not durable yet.
    foreseen: Option<JobStatus>,
}

/// Notes when a status was entered, in place of an earlier time.
pub(super) fn enter(entered: &mut Vec<StatusTimestamp>, status: JobStatus, at_ms: u64) {
    entered.retain(|it| it.status() != status);
    let status = status.into();
    entered.push(StatusTimestamp { status, at_ms });
}

impl Chronicle {
    /// What the record knows. The job itself begins, or begins again, to be INITIALIZING.
    pub(super) fn of(
        state: &pb::JobState,
        is_recovered: bool,
        epoch: u64,
        now_ms: u64,
    ) -> Chronicle {
        let status = JobStatus::Initializing;
        let statuses = state.statuses.iter().rev().map(StatusTimestamp::status);
        let last = statuses
            .into_iter()
            .find(|it| *it != JobStatus::Reconciling);
        let mut chronicle = Chronicle {
            status,
            noted: last.unwrap_or(status),
            entered: Vec::new(),
            events: Vec::new(),
            epoch,
            foreseen: None,
        };
        if last.is_none() {
            let known = Some(state.submitted_at_ms).filter(|at_ms| is_recovered && *at_ms > 0);
            enter(&mut chronicle.entered, status, known.unwrap_or(now_ms));
        }
        if is_recovered {
            let number = state.job_incarnation.saturating_add(1);
            let text = format!("the leader of term {epoch} has it, its JobMaster number {number}");
            chronicle.tell(JobEventKind::Takeover, text, now_ms);
        }
        chronicle
    }

    /// Something happened.
    pub(super) fn tell(&mut self, kind: JobEventKind, text: String, at_ms: u64) {
        let epoch = self.epoch;
        self.add(JobEvent {
            at_ms,
            kind: kind.into(),
            epoch,
            text,
            ..JobEvent::default()
        });
    }

    /// The record has none of what was noted for it.
    pub(super) fn forget_foreseen(&mut self) {
        self.foreseen = None;
    }

    fn add(&mut self, mut event: JobEvent) {
        shorten(&mut event.text, KEPT_TEXT);
        // A text has grown to twice its length, and a list begins with room for four; the next news may be long in coming.
        event.text.shrink_to_fit();
        self.events.reserve_exact(1);
        self.events.push(event);
        keep_newest(&mut self.events);
    }

    /// Regions start anew. What starts at one moment is told together.
    fn tell_restart(&mut self, regions: u32, due_ms: u64, failure: &pb::FailureRecord, at_ms: u64) {
        let kind = JobEventKind::Restart;
        let last = self.events.last_mut();
        if let Some(last) = last.filter(|it| it.kind() == kind && it.at_ms == at_ms) {
            last.regions += regions;
            last.until_ms = last.until_ms.max(due_ms);
            return;
        }
        self.add(JobEvent {
            at_ms,
            kind: kind.into(),
            epoch: self.epoch,
            task: failure.task.clone(),
            text: failure.cause.clone(),
            until_ms: due_ms,
            regions,
            ..JobEvent::default()
        });
    }

    /// The status that is shown.
    pub(super) fn status(&self) -> JobStatus {
        self.status
    }

    /// `why`: it fails for that.
    fn note(&mut self, status: JobStatus, why: &str, at_ms: u64) {
        if self.noted == status {
            return;
        }
        enter(&mut self.entered, status, at_ms);
        // That the leader has changed is an event of its own.
        if status == JobStatus::Reconciling {
            return;
        }
        self.noted = status;
        let event = entering(status, why, self.epoch, at_ms);
        self.add(event);
    }
}

fn keep_newest(events: &mut Vec<JobEvent>) {
    let surplus = events.len().saturating_sub(KEPT_EVENTS);
    events.drain(..surplus);
}

/// The event that a status was entered. Only a job that fails says why.
pub(super) fn entering(status: JobStatus, why: &str, epoch: u64, at_ms: u64) -> JobEvent {
    let fails = matches!(status, JobStatus::Failing | JobStatus::Failed);
    let mut text = Some(why).filter(|_| fails).unwrap_or_default().to_owned();
    shorten(&mut text, KEPT_TEXT);
    JobEvent {
        at_ms,
        kind: JobEventKind::Status.into(),
        epoch,
        status: status.into(),
        text,
        ..JobEvent::default()
    }
}

impl JobMasterCore {
    /// Notes the status if it has changed.
    pub(super) fn note_status(&mut self, now_ms: u64) {
        let (from, to) = (self.chronicle.status, self.status());
        if to == from {
            return;
        }
        if !is_edge(from, to) {
            illegal(&self.record.job_id, &from, &to);
        }
        // A new leader tells of all jobs at once how they were recovered: ten thousand lines would hold up the takeover itself.
        let is_recovery = to == JobStatus::Reconciling
            || from == JobStatus::Reconciling && to == JobStatus::Running;
        if is_recovery {
            tracing::debug!(job = self.record.job_id, ?from, ?to, "job status changed");
        } else {
            tracing::info!(job = self.record.job_id, ?from, ?to, "job status changed");
        }
        self.chronicle.status = to;
        // If a write brought it, the record says since when.
        if self.chronicle.foreseen.take_if(|it| *it == to).is_none() {
            self.chronicle.note(to, &self.record.fatal_cause, now_ms);
        }
    }

    /// Puts into the record what was noted, and the status that the job has once the record is durable.
    pub(super) fn record_statuses(&mut self, now_ms: u64) {
        let next = self.status_by(&self.record, true);
        let chronicle = &mut self.chronicle;
        if next != JobStatus::Reconciling && next != chronicle.noted {
            chronicle.note(next, &self.record.fatal_cause, now_ms);
            chronicle.foreseen = Some(next).filter(|it| *it != chronicle.status);
        }
        if chronicle.entered.is_empty() && chronicle.events.is_empty() {
            return;
        }
        let record = Arc::make_mut(&mut self.record);
        // Taken, not drained: nothing more happens to most jobs for long, and they would keep the memory.
        let mut events = std::mem::take(&mut chronicle.events);
        record.events.reserve_exact(events.len());
        record.events.append(&mut events);
        keep_newest(&mut record.events);
        for it in std::mem::take(&mut chronicle.entered) {
            enter(&mut record.statuses, it.status(), it.at_ms);
        }
    }

    /// These regions start anew, after the failure that was noted last.
    pub(super) fn tell_restart(&mut self, regions: u32, due_ms: u64) {
        let failure = self.record.failures.last().cloned().unwrap_or_default();
        let now_ms = self.settled_at_ms;
        self.chronicle
            .tell_restart(regions, due_ms, &failure, now_ms);
    }

    /// The regions that start anew at this moment are moved off TaskManagers that are drained.
    pub(super) fn tell_move(&mut self, cause: String, now_ms: u64) {
        let failure = pb::FailureRecord {
            cause,
            ..pb::FailureRecord::default()
        };
        self.chronicle.tell_restart(0, now_ms, &failure, now_ms);
    }

    /// What happened to the job, the newest last.
    pub(super) fn events(&self) -> Vec<JobEvent> {
        let mut all = self.record.events.clone();
        if self.chronicle.foreseen.is_some() {
            all.pop();
        }
        all.extend(self.chronicle.events.iter().cloned());
        keep_newest(&mut all);
        all
    }

    /// When the job last entered each status.
    pub(super) fn timestamps(&self) -> Vec<StatusTimestamp> {
        let mut all = self.record.statuses.clone();
        if self.chronicle.foreseen.is_some() {
            all.pop();
        }
        for it in &self.chronicle.entered {
            enter(&mut all, it.status(), it.at_ms);
        }
        all
    }
}
