//! The body of `/jobs/:id/events`: what happened to a job, the newest first.

use serde::Serialize;
use tanist_proto::v1::{JobDetails, JobEvent, JobEventKind, SubtaskDetails, VertexDetails};

use super::states::{execution_state, job_status};

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
    /// `QUARANTINE`, `RETRY`; `TASK`, if they are asked for.
    pub kind: &'static str,
    /// The term in which it happened; not of `TASK`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Of `STATUS` and `TASK`: the one that was entered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<&'static str>,
    /// Of `RESTART`: the task that failed first. Of `TASK`: which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Of `TASK`: its generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// Of `RESTART`: how many regions start anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<u32>,
    /// Of `RESTART`: when that is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Why, or what follows; of `TASK`: where it runs. May be empty.
    pub text: String,
}

impl Events {
    /// At most `maximum` of the job's events.
    pub fn new(job: &JobDetails, maximum: usize) -> Events {
        Events::newest(job.events.iter().map(EventEntry::from).collect(), maximum)
    }

    /// The same with the states of the present attempt of each subtask. What happened in one millisecond is told in the order
    /// that is known: the job's own events, then each subtask's states.
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
