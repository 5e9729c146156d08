//! `tanist job subtasks`.

use tanist_proto::id::{JobId, JobVertexId};

use super::args::{GlobalArgs, OutputFormat};
use super::connect::connect;
use super::jobs::finish;
use super::output::{Table, answer, answer_json, time_if_known};
use crate::client::{ClientError, JobClient, VertexSubtasks};
use crate::config::Configuration;
use crate::telemetry::ExitCode;

pub(super) async fn subtasks(
    configuration: &Configuration,
    global: &GlobalArgs,
    job: JobId,
    vertex: Option<JobVertexId>,
) -> ExitCode {
    let showing = async {
        let connection = connect(configuration, &global.address).await?;
        let jobs = &connection.jobs;
        let wanted = match vertex {
            Some(vertex) => vec![vertex.to_string()],
            None => vertices_of(jobs, job).await?,
        };
        match global.output {
            OutputFormat::Json => {
                let mut vertices = Vec::with_capacity(wanted.len());
                for vertex in wanted {
                    let path = format!("/v1/jobs/{job}/vertices/{vertex}");
                    vertices.push(jobs.raw(&path).await?);
                }
                answer_json(&serde_json::json!({ "vertices": vertices }));
            }
            OutputFormat::Table => {
                let mut vertices = Vec::with_capacity(wanted.len());
                for vertex in wanted {
                    vertices.push(jobs.subtasks(job, &vertex).await?);
                }
                answer(listing(&vertices));
            }
        }
        Ok(())
    };
    finish(showing.await)
}

async fn vertices_of(jobs: &JobClient, job: JobId) -> Result<Vec<String>, ClientError> {
    let vertices = jobs.info(job).await?.vertices;
    Ok(vertices.into_iter().map(|vertex| vertex.id).collect())
}

/// Subtasks are counted from 1, as in the names of tasks.
fn listing(vertices: &[VertexSubtasks]) -> String {
    let headers = [
        "VERTEX",
        "SUBTASK",
        "ATTEMPT",
        "STATE",
        "SINCE",
        "HOST",
        "TASKMANAGER",
    ];
    let mut table = Table::new(headers);
    for vertex in vertices {
        for subtask in &vertex.subtasks {
            table.row([
                vertex.name.clone(),
                format!("{}/{}", subtask.subtask + 1, vertex.parallelism),
                subtask.attempt.to_string(),
                subtask.status.clone(),
                time_if_known(subtask.since().unwrap_or(-1)),
                subtask.host.clone(),
                subtask.taskmanager_id.clone(),
            ]);
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn subtasks_are_shown_with_their_states_and_where_they_run() -> Result<(), serde_json::Error> {
        let vertices: Vec<VertexSubtasks> = serde_json::from_value(json!([
            {"id": "a", "name": "lines", "parallelism": 1, "subtasks": [
                {"subtask": 0, "status": "RUNNING", "attempt": 3, "host": "b:9", "taskmanager-id": "tm-2",
                 "timestamps": {"CREATED": 1_600_000_000_000_i64, "RUNNING": 1_700_000_000_000_i64}}]},
            {"id": "b", "name": "counts -> out", "parallelism": 2, "subtasks": [
                {"subtask": 1, "status": "SCHEDULED", "attempt": 1, "host": "(unassigned)",
                 "taskmanager-id": "(unassigned)", "timestamps": {"SCHEDULED": 0}}]}
        ]))?;
        let expected = "\
VERTEX         SUBTASK  ATTEMPT  STATE      SINCE                    HOST          TASKMANAGER
lines          1/1      3        RUNNING    2023-11-14 22:13:20 UTC  b:9           tm-2
counts -> out  2/2      1        SCHEDULED  -                        (unassigned)  (unassigned)
";
        assert_eq!(listing(&vertices), expected);
        Ok(())
    }
}
