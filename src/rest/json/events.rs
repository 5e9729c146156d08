//! The body of `/jobs/:id/events`: what happened to a job, the newest first.

use serde::Serialize;
use tanist_proto::v1::{JobDetails, JobEvent, JobEventKind};

use super::states::job_status;

/// `/jobs/:id/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Events {
    /// The newest first.
    pub events: Vec<EventEntry>,
    /// There were more.
    pub truncated: bool,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventEntry {
    /// When.
    pub timestamp: u64,
    /// `STATUS`, `RESTART`, `TAKEOVER`, `ADOPTION`, `CANCEL`, `STOP`,
    /// `QUARANTINE`, `RETRY`.
    pub kind: &'static str,
    /// The term in which it happened.
    pub epoch: u64,
    /// Of `STATUS`: the one that was entered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<&'static str>,
    /// Of `RESTART`: the task that failed first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Of `RESTART`: how many regions start anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<u32>,
    /// Of `RESTART`: when that is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Why, or what follows; may be empty.
    pub text: String,
}

impl Events {
    /// At most `maximum` of the job's events.
    pub fn new(job: &JobDetails, maximum: usize) -> Events {
        let newest = job.events.iter().rev().take(maximum);
        Events {
            events: newest.map(EventEntry::from).collect(),
            truncated: job.events.len() > maximum,
        }
    }
}

impl From<&JobEvent> for EventEntry {
    fn from(event: &JobEvent) -> EventEntry {
        let kind = event.kind();
        let is_restart = kind == JobEventKind::Restart;
        EventEntry {
            timestamp: event.at_ms,
            kind: kind.as_str_name().trim_start_matches("JOB_EVENT_KIND_"),
            epoch: event.epoch,
            status: (kind == JobEventKind::Status).then(|| job_status(event.status())),
            task: Some(event.task.clone()).filter(|task| !task.is_empty()),
            regions: is_restart.then_some(event.regions),
            until: is_restart.then_some(event.until_ms),
            text: event.text.clone(),
        }
    }
}
