//! What happened to a job: since when it is in each status. Decides nothing.
//!
//! The record has it as of its last write; what was noted since rides along with the next one, as nothing is written for its sake.
//! A status that follows from a write is in that write, with the time of the decision, and shown when the write is durable. So a
//! leader finds every status whose cause is in the record, and since when.
//!
//! Invariant: a status that a job returns to from RECONCILING was never left: it keeps its time.

use std::sync::Arc;

use tanist_proto::v1 as pb;
use tanist_proto::v1::{JobStatus, StatusTimestamp};

use super::core::JobMasterCore;
use super::status::{illegal, is_edge};

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Chronicle {
    /// The status that is shown.
    status: JobStatus,
    /// The last status that was noted, RECONCILING aside.
    noted: JobStatus,
    /// Entered since the last write.
    entered: Vec<StatusTimestamp>,
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
    pub(super) fn of(state: &pb::JobState, is_recovered: bool, now_ms: u64) -> Chronicle {
        let status = JobStatus::Initializing;
        let statuses = state.statuses.iter().rev().map(StatusTimestamp::status);
        let last = statuses.into_iter().find(|it| *it != JobStatus::Reconciling);
        let mut entered = Vec::new();
        if last.is_none() {
            let known = Some(state.submitted_at_ms).filter(|at_ms| is_recovered && *at_ms > 0);
            enter(&mut entered, status, known.unwrap_or(now_ms));
        }
        Chronicle {
            status,
            noted: last.unwrap_or(status),
            entered,
            foreseen: None,
        }
    }

    /// The status that is shown.
    pub(super) fn status(&self) -> JobStatus {
        self.status
    }

    fn note(&mut self, status: JobStatus, at_ms: u64) {
        if self.noted == status {
            return;
        }
        if status != JobStatus::Reconciling {
            self.noted = status;
        }
        enter(&mut self.entered, status, at_ms);
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
            self.chronicle.note(to, now_ms);
        }
    }

    /// Puts into the record what was noted, and the status that the job has once the record is durable.
    pub(super) fn record_statuses(&mut self, now_ms: u64) {
        let next = self.status_by(&self.record, true);
        let chronicle = &mut self.chronicle;
        if next != JobStatus::Reconciling && next != chronicle.noted {
            chronicle.note(next, now_ms);
            chronicle.foreseen = Some(next).filter(|it| *it != chronicle.status);
        }
        if chronicle.entered.is_empty() {
            return;
        }
        let record = Arc::make_mut(&mut self.record);
        for it in chronicle.entered.drain(..) {
            enter(&mut record.statuses, it.status(), it.at_ms);
        }
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
