//! `tanist job subtasks`: the state and the place of each subtask, of all vertices or of a named one.

use tanist_client::{ClientError, VertexInfo, VertexSubtasks};
use tanist_config::Configuration;
use tanist_proto::id::JobId;
use tanist_rest_model::paths;
use tanist_telemetry::{ExitCode, Printable};

use super::args::{GlobalArgs, OutputFormat};
use super::connect::{connect, reporting};
use super::jobs::finish;
use super::output::{Table, answer, answer_json, optional, time};

pub(super) async fn subtasks(
    configuration: &Configuration,
    global: &GlobalArgs,
    job: JobId,
    vertex: Option<&str>,
) -> ExitCode {
    let showing = async {
        let connection = connect(configuration, &global.address).await?;
        let jobs = &connection.jobs;
        let vertices = reporting(jobs.waits(), jobs.info(job)).await?.vertices;
        let wanted = wanted(&vertices, vertex)?;
        match global.output {
            OutputFormat::Json => {
                let mut vertices = Vec::with_capacity(wanted.len());
                for vertex in wanted {
                    vertices.push(jobs.raw(&paths::vertex(job, vertex)).await?);
                }
                answer_json(&serde_json::json!({ "vertices": vertices }));
            }
            OutputFormat::Table => {
                let mut vertices = Vec::with_capacity(wanted.len());
                for vertex in wanted {
                    vertices.push(jobs.subtasks(job, vertex).await?);
                }
                answer(listing(&vertices));
            }
        }
        Ok(())
    };
    finish(showing.await)
}

/// The ids of all vertices, or of those with this id, this name, or a step of this name.
fn wanted<'a>(vertices: &'a [VertexInfo], text: Option<&str>) -> Result<Vec<&'a str>, ClientError> {
    let is_meant = |vertex: &&VertexInfo| {
        text.is_none_or(|text| {
            let mut steps = vertex.name.split(" -> ");
            vertex.id == text || vertex.name == text || steps.any(|step| step == text)
        })
    };
    let found = vertices.iter().filter(is_meant);
    let found: Vec<&str> = found.map(|vertex| vertex.id.as_str()).collect();
    match text.filter(|_| found.is_empty()) {
        None => Ok(found),
        Some(text) => {
            let names: Vec<&str> = vertices.iter().map(|vertex| vertex.name.as_str()).collect();
            let all = names.join("`, `");
            let error =
                format!("the job has no vertex and no step `{text}`: its vertices are `{all}`");
            Err(ClientError::Refused {
                status: 404,
                errors: vec![error],
            })
        }
    }
}

/// Subtasks are counted from 1, as in the names of tasks. Those that can't read their state follow, with the reason.
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
    let mut unread = String::new();
    for vertex in vertices {
        for subtask in &vertex.subtasks {
            let number = format!("{}/{}", subtask.subtask + 1, vertex.parallelism);
            if let Some(reason) = &subtask.unread_state {
                let (vertex, reason) = (Printable(&vertex.name), Printable(reason));
                unread.push_str(&format!("\n{vertex} ({number}): {reason}\n"));
            }
            table.row([
                vertex.name.clone(),
                number,
                subtask.attempt.to_string(),
                subtask.status.to_string(),
                optional(subtask.since().map(time)),
                subtask.host.clone(),
                subtask.taskmanager_id.clone(),
            ]);
        }
    }
    format!("{table}{unread}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_vertex_is_found_by_its_id_its_name_or_a_step_of_it() -> Result<(), serde_json::Error> {
        let vertex = |id: &str, name: &str| json!({"id": id, "name": name, "parallelism": 1, "status": "RUNNING", "tasks": {"RUNNING": 1, "FINISHED": 0}, "metrics": {"read-records": 0, "write-records": 0}});
        let vertices: Vec<VertexInfo> = serde_json::from_value(json!([
            vertex("a1", "numbers"),
            vertex("b2", "counts -> out")
        ]))?;
        let found = |text| wanted(&vertices, text).map_err(|error| error.to_string());
        assert_eq!(found(None), Ok(vec!["a1", "b2"]));
        assert_eq!(found(Some("a1")), Ok(vec!["a1"]));
        for text in ["counts -> out", "counts", "out", "b2"] {
            assert_eq!(found(Some(text)), Ok(vec!["b2"]), "{text}");
        }
        let expected = "the job has no vertex and no step `count`: its vertices are `numbers`, `counts -> out`";
        assert_eq!(found(Some("count")), Err(expected.to_owned()));
        Ok(())
    }

    #[test]
    fn subtasks_are_shown_with_their_states_and_where_they_run() -> Result<(), serde_json::Error> {
        let vertices: Vec<VertexSubtasks> = serde_json::from_value(json!([
            {"id": "a", "name": "lines", "parallelism": 1, "subtasks": [
                {"subtask": 0, "status": "RUNNING", "attempt": 3, "host": "b:9", "taskmanager-id": "tm-2",
                 "unread-state": "checkpoint 7 can't be read by tm-2 at b:9",
                 "timestamps": {"CREATED": 1_600_000_000_000_i64, "RUNNING": 1_700_000_000_000_i64}}]},
            {"id": "b", "name": "counts -> out", "parallelism": 2, "subtasks": [
                {"subtask": 1, "status": "SCHEDULED", "attempt": 1, "host": "(unassigned)",
                 "taskmanager-id": "(unassigned)", "timestamps": {"SCHEDULED": 0}}]}
        ]))?;
        let expected = "\
VERTEX         SUBTASK  ATTEMPT  STATE      SINCE                    HOST          TASKMANAGER
lines          1/1      3        RUNNING    2023-11-14 22:13:20 UTC  b:9           tm-2
counts -> out  2/2      1        SCHEDULED  -                        (unassigned)  (unassigned)

lines (1/1): checkpoint 7 can't be read by tm-2 at b:9
";
        assert_eq!(listing(&vertices), expected);
        Ok(())
    }
}
