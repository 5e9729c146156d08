//! The body of `/jobs/:id/events`: the events of a job, newest first.

use tanist_proto::v1::{JobDetails, JobEvent, JobEventKind, SubtaskDetails, VertexDetails};
use tanist_rest_model::{JobEventInfo, JobEvents, execution_state_name, job_status_name};

use super::known;

/// At most `maximum` of the job's events.
pub(crate) fn events_of(job: &JobDetails, maximum: usize) -> JobEvents {
    newest(job.events.iter().map(event_info).collect(), maximum)
}

/// Like [`events_of`], with the states of the current attempt of each subtask. Events of one millisecond are listed in
/// the order that is known: the job's own events, then each subtask's states.
pub(crate) fn events_with_tasks(job: &JobDetails, maximum: usize) -> JobEvents {
    let subtasks = job.vertices.iter().flat_map(|vertex| {
        let subtasks = vertex.subtasks.iter();
        subtasks.flat_map(move |subtask| states_of(vertex, subtask))
    });
    let all = job.events.iter().map(event_info).chain(subtasks);
    let mut all: Vec<JobEventInfo> = all.collect();
    all.sort_by_key(|event| event.timestamp);
    newest(all, maximum)
}

fn newest(mut all: Vec<JobEventInfo>, maximum: usize) -> JobEvents {
    let truncated = all.len() > maximum;
    all.reverse();
    all.truncate(maximum);
    JobEvents {
        events: all,
        truncated,
    }
}

fn states_of(
    vertex: &VertexDetails,
    subtask: &SubtaskDetails,
) -> impl Iterator<Item = JobEventInfo> {
    let task = format!(
        "{} ({}/{})",
        vertex.name,
        subtask.subtask + 1,
        vertex.parallelism
    );
    subtask.timestamps.iter().map(move |entered| JobEventInfo {
        timestamp: entered.at_ms,
        kind: "TASK".into(),
        epoch: None,
        status: Some(execution_state_name(entered.state()).into()),
        task: Some(task.clone()),
        attempt: Some(subtask.attempt),
        regions: None,
        until: None,
        text: subtask.host.clone(),
    })
}

fn event_info(event: &JobEvent) -> JobEventInfo {
    let kind = event.kind();
    let is_restart = kind == JobEventKind::Restart;
    let name = kind.as_str_name().trim_start_matches("JOB_EVENT_KIND_");
    JobEventInfo {
        timestamp: event.at_ms,
        kind: name.into(),
        epoch: Some(event.epoch),
        status: (kind == JobEventKind::Status).then(|| job_status_name(event.status()).into()),
        task: known(&event.task),
        attempt: None,
        regions: is_restart.then_some(event.regions),
        until: is_restart.then_some(event.until_ms),
        text: event.text.clone(),
    }
}
