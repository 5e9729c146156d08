//! The body of `/jobs/:id/events`: the events of a job, newest first.

use serde::Serialize;
use tanist_proto::v1::{JobDetails, JobEvent, JobEventKind, SubtaskDetails, VertexDetails};

use super::states::{execution_state, job_status};

/// `/jobs/:id/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Events {
    /// The events, newest first.
    pub events: Vec<EventEntry>,
    /// Whether there were more.
    pub truncated: bool,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventEntry {
    /// Time of the event.
    pub timestamp: u64,
    /// `STATUS`, `RESTART`, `TAKEOVER`, `ADOPTION`, `CANCEL`, `STOP`, `QUARANTINE`, `RETRY`; `TASK` only on
    /// request.
    pub kind: &'static str,
    /// The term in which it happened; not for `TASK`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// For `STATUS` and `TASK`: the status that was entered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<&'static str>,
    /// For `RESTART`: the task that failed first. For `TASK`: the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// For `TASK`: its generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// For `RESTART`: the number of regions that start again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<u32>,
    /// For `RESTART`: the time at which they start again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// The cause or the consequence; for `TASK`: where it runs. May be empty.
    pub text: String,
}

impl Events {
    /// At most `maximum` of the job's events.
    pub fn new(job: &JobDetails, maximum: usize) -> Events {
        Events::newest(job.events.iter().map(EventEntry::from).collect(), maximum)
    }

    /// Like [`new`](Self::new), with the states of the current attempt of each subtask. Events of one
    /// millisecond are listed in the order that is known: the job's own events, then each subtask's states.
    pub fn with_tasks(job: &JobDetails, maximum: usize) -> Events {
        let subtasks = job.vertices.iter().flat_map(|vertex| {
            let subtasks = vertex.subtasks.iter();
            subtasks.flat_map(move |subtask| states_of(vertex, subtask))
        });
        let all = job.events.iter().map(EventEntry::from).chain(subtasks);
        let mut all: Vec<EventEntry> = all.collect();
        all.sort_by_key(|event| event.timestamp);
        Events::newest(all, maximum)
    }

    fn newest(mut all: Vec<EventEntry>, maximum: usize) -> Events {
        let truncated = all.len() > maximum;
        all.reverse();
        all.truncate(maximum);
        Events {
            events: all,
            truncated,
        }
    }
}

fn states_of(vertex: &VertexDetails, subtask: &SubtaskDetails) -> impl Iterator<Item = EventEntry> {
    let task = format!(
        "{} ({}/{})",
        vertex.name,
        subtask.subtask + 1,
        vertex.parallelism
    );
    subtask.timestamps.iter().map(move |entered| EventEntry {
        timestamp: entered.at_ms,
        kind: "TASK",
        epoch: None,
        status: Some(execution_state(entered.state())),
        task: Some(task.clone()),
        attempt: Some(subtask.attempt),
        regions: None,
        until: None,
        text: subtask.host.clone(),
    })
}

impl From<&JobEvent> for EventEntry {
    fn from(event: &JobEvent) -> EventEntry {
        let kind = event.kind();
        let is_restart = kind == JobEventKind::Restart;
        EventEntry {
            timestamp: event.at_ms,
            kind: kind.as_str_name().trim_start_matches("JOB_EVENT_KIND_"),
            epoch: Some(event.epoch),
            status: (kind == JobEventKind::Status).then(|| job_status(event.status())),
            task: Some(event.task.clone()).filter(|task| !task.is_empty()),
            attempt: None,
            regions: is_restart.then_some(event.regions),
            until: is_restart.then_some(event.until_ms),
            text: event.text.clone(),
        }
    }
}
