//! The job's events, and when it entered each status. Decides nothing.
//!
//! The record has them as of its last write. Later ones are added to the next write; no write is made only for them. A
//! status that follows from a write is part of that write, with the time of the decision, and is shown once the write
//! is durable. So a new leader finds every status whose cause is in the record, with its time. Events after the last
//! write of a leader are lost with it.
//!
//! Invariant: a status that a job returns to from RECONCILING was never left and keeps its time.

use tanist_gateway::shorten;
use tanist_proto::v1 as pb;
use tanist_proto::v1::{JobEvent, JobEventKind, JobStatus, StatusTimestamp};

use super::status::{illegal, is_edge};
use super::{Event, JobMasterCore, LogLine};

/// Number of events that the record keeps.
const KEPT_EVENTS: usize = 64;
/// Length to which the text of an event is cut, in bytes.
const KEPT_TEXT: usize = 256;

/// Events and status times of one job; see the module.
#[derive(Debug, Clone)]
pub(super) struct JobEvents {
    /// The status that is shown.
    status: JobStatus,
    /// The last status that was noted, except RECONCILING.
    noted: JobStatus,
    /// Statuses entered since the last write.
    entered: Vec<StatusTimestamp>,
    /// Events since the last write.
    events: Vec<JobEvent>,
    /// The epoch of this term.
    epoch: u64,
    /// The last status in `record`, if that is not durable yet.
    foreseen: Option<JobStatus>,
}

/// Notes when a status was entered and drops an earlier time of it.
pub(super) fn enter(entered: &mut Vec<StatusTimestamp>, status: JobStatus, at_ms: u64) {
    entered.retain(|it| it.status() != status);
    let status = status.into();
    entered.push(StatusTimestamp { status, at_ms });
}

impl JobEvents {
    /// Reads the record. The job itself enters INITIALIZING, for the first time or again.
    pub(super) fn of(
        state: &pb::JobState,
        is_recovered: bool,
        epoch: u64,
        now_ms: u64,
    ) -> JobEvents {
        let status = JobStatus::Initializing;
        let statuses = state.statuses.iter().rev().map(StatusTimestamp::status);
        let last = statuses
            .into_iter()
            .find(|it| *it != JobStatus::Reconciling);
        let mut job_events = JobEvents {
            status,
            noted: last.unwrap_or(status),
            entered: Vec::new(),
            events: Vec::new(),
            epoch,
            foreseen: None,
        };
        if last.is_none() {
            let known = Some(state.submitted_at_ms).filter(|at_ms| is_recovered && *at_ms > 0);
            enter(&mut job_events.entered, status, known.unwrap_or(now_ms));
        }
        if is_recovered {
            let number = state.job_incarnation.saturating_add(1);
            let text =
                format!("recovered by the leader of term {epoch}, as JobMaster number {number}");
            job_events.add(JobEventKind::Takeover, text, now_ms);
        }
        job_events
    }

    /// Adds an event.
    pub(super) fn add(&mut self, kind: JobEventKind, text: String, at_ms: u64) {
        let epoch = self.epoch;
        self.push(JobEvent {
            at_ms,
            kind: kind.into(),
            epoch,
            text,
            ..JobEvent::default()
        });
    }

    /// Forgets the status that was added to the record, as that record was discarded.
    pub(super) fn forget_foreseen(&mut self) {
        self.foreseen = None;
    }

    fn push(&mut self, mut event: JobEvent) {
        shorten(&mut event.text, KEPT_TEXT);
        // Saves memory: a text's capacity may be twice its length, a list starts with room for four, and the
        // next event may come much later.
        event.text.shrink_to_fit();
        self.events.reserve_exact(1);
        self.events.push(event);
        keep_newest(&mut self.events);
    }

    /// Adds an event that regions restart after a failure. Restarts at the same time become one event.
    pub(super) fn add_restart(
        &mut self,
        regions: u32,
        due_ms: u64,
        failure: &pb::FailureRecord,
        at_ms: u64,
    ) {
        let kind = JobEventKind::Restart;
        let last = self.events.last_mut();
        if let Some(last) = last.filter(|it| it.kind() == kind && it.at_ms == at_ms) {
            last.regions += regions;
            last.until_ms = last.until_ms.max(due_ms);
            return;
        }
        self.push(JobEvent {
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

    /// Adds the cause to the restart event of this moment: the regions are moved off TaskManagers that are
    /// drained.
    pub(super) fn add_move(&mut self, cause: String, now_ms: u64) {
        let failure = pb::FailureRecord {
            cause,
            ..pb::FailureRecord::default()
        };
        self.add_restart(0, now_ms, &failure, now_ms);
    }

    /// The status that is shown.
    pub(super) fn status(&self) -> JobStatus {
        self.status
    }

    /// `why`: the cause, if the job fails.
    fn note(&mut self, status: JobStatus, why: &str, at_ms: u64) {
        if self.noted == status {
            return;
        }
        enter(&mut self.entered, status, at_ms);
        // The takeover is an event of its own.
        if status == JobStatus::Reconciling {
            return;
        }
        self.noted = status;
        let event = entering(status, why, self.epoch, at_ms);
        self.push(event);
    }
}

/// Drops the oldest events that are too many.
pub(super) fn keep_newest(events: &mut Vec<JobEvent>) {
    let surplus = events.len().saturating_sub(KEPT_EVENTS);
    events.drain(..surplus);
}

/// The event of entering a status. Only a failing job has a cause.
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
    /// The notices for users that the tasks in a report have, with their names.
    pub(super) fn said_in(&self, event: &Event) -> Vec<String> {
        let (connection, executions) = match event {
            Event::Registered {
                connection,
                executions,
                ..
            }
            | Event::ExecutionsReported {
                connection,
                executions,
            }
            | Event::HeartbeatAnswered {
                connection,
                executions,
                ..
            } => (connection, executions),
            _ => return Vec::new(),
        };
        let reports = executions.iter();
        let said = reports.filter(|report| !report.notices.is_empty());
        let said = said.filter_map(|report| {
            let task = self.graph.find(&report.vertex_id, report.subtask)?;
            let name = self.graph.task_name(task);
            let place = &connection.task_manager;
            let notices = report.notices.iter();
            Some(notices.map(move |text| format!("{name} on {place}: {text}")))
        });
        said.flatten().collect()
    }

    /// Adds notices of tasks, unless they are events already: reports are repeated, also to the next leader.
    pub(super) fn note_said(&mut self, said: Vec<String>, now_ms: u64) {
        for mut text in said {
            shorten(&mut text, KEPT_TEXT);
            if !self.events().iter().any(|event| event.text == text) {
                self.job_events.add(JobEventKind::Notice, text, now_ms);
            }
        }
    }

    /// Notes the job's status if it changed.
    pub(super) fn note_status(&mut self, now_ms: u64) {
        let (from, to) = (self.job_events.status, self.status());
        if to == from {
            return;
        }
        if !is_edge(from, to) {
            self.out
                .log(illegal(&self.record.decided().job_id, &from, &to));
        }
        let is_recovery = to == JobStatus::Reconciling
            || from == JobStatus::Reconciling && to == JobStatus::Running;
        self.out.log(LogLine::StatusChanged {
            from,
            to,
            is_recovery,
        });
        self.job_events.status = to;
        // If a write made this status, the record already has its time.
        if self.job_events.foreseen.take_if(|it| *it == to).is_none() {
            self.job_events
                .note(to, &self.record.decided().fatal_cause, now_ms);
        }
    }

    /// Moves noted events and statuses into the record, with the status that the job will have once the
    /// record is durable.
    pub(super) fn record_statuses(&mut self, now_ms: u64) {
        let next = self.status_by(self.record.decided(), true);
        let job_events = &mut self.job_events;
        if next != JobStatus::Reconciling && next != job_events.noted {
            job_events.note(next, &self.record.decided().fatal_cause, now_ms);
            job_events.foreseen = Some(next).filter(|it| *it != job_events.status);
        }
        if job_events.entered.is_empty() && job_events.events.is_empty() {
            return;
        }
        // Taken, not drained: most jobs have no more events for a long time and would keep the memory.
        let events = std::mem::take(&mut job_events.events);
        let entered = std::mem::take(&mut job_events.entered);
        self.record.add_events(events, entered);
    }

    /// The job's events, the newest last.
    pub(super) fn events(&self) -> Vec<JobEvent> {
        let mut all = self.record.decided().events.clone();
        if self.job_events.foreseen.is_some() {
            all.pop();
        }
        all.extend(self.job_events.events.iter().cloned());
        keep_newest(&mut all);
        all
    }

    /// When the job last entered each status.
    pub(super) fn timestamps(&self) -> Vec<StatusTimestamp> {
        let mut all = self.record.decided().statuses.clone();
        if self.job_events.foreseen.is_some() {
            all.pop();
        }
        for it in &self.job_events.entered {
            enter(&mut all, it.status(), it.at_ms);
        }
        all
    }
}
