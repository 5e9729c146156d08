//! A job with SQL expressions, from its file to its output, in one process.

use tanist_compile::{CompileOptions, JobFile};
use tanist_dataflow::TaskStatus;

use super::{TaskManager, compiled, deploy, finish};
use crate::sink;

const JOB: &str = include_str!("../../../examples/slow-requests.yaml");

const LOG: &str = "get /Search 1250
GET /search 2000
POST /buy 99
POST /Buy 100
DELETE /buy 5000
GET /buy 150
GET /buy soon
";

#[tokio::test]
async fn the_example_keeps_the_slow_requests_and_adds_them_up() {
    let directory = tempfile::tempdir().expect("directory");
    std::fs::write(directory.path().join("a.log"), LOG).expect("written");
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    let parameters = [("input", path("*.log")), ("output", path("out"))];
    let options = CompileOptions {
        default_parallelism: 2,
        parameters: parameters
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        ..CompileOptions::default()
    };
    let graph = compiled(&JobFile::new("slow-requests.yaml", JOB), &options);
    let managers = TaskManager::start_many::<2>().await;
    let tasks = deploy(&graph, &managers, |vertex, subtask| {
        vertex + subtask as usize
    });
    let committables = finish(&tasks).await;
    sink::commit(&committables).expect("committed");
    let output = directory.path().join("out");
    sink::cleanup(&output, graph.job_id.parse().expect("an id"), "").expect("cleaned up");
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(&output).expect("output") {
        let part = std::fs::read_to_string(entry.expect("entry").path()).expect("part");
        lines.extend(part.lines().map(str::to_owned));
    }
    lines.sort();
    assert_eq!(lines, ["/buy slow 250", "/search very-slow 3250"]);
}

const NEVER: &str = "version: 1
name: never
steps:
  - name: numbers
    datagen: {count: 9}
  - name: shares
    map: {columns: {share: value / 0}}
  - name: out
    discard: {}
";

#[tokio::test]
async fn a_job_whose_expression_can_be_computed_of_no_record_fails_for_good_with_step_and_column() {
    let options = CompileOptions::default();
    let graph = compiled(&JobFile::new("never.yaml", NEVER), &options);
    let managers = [TaskManager::start("tm").await];
    let tasks = deploy(&graph, &managers, |_, _| 0);
    let TaskStatus::Failed {
        cause,
        unrecoverable,
        ..
    } = tasks[&(0, 0)].ended().await
    else {
        panic!("nothing is divided by zero")
    };
    assert!(unrecoverable, "{cause}");
    for part in ["shares", "column `share`", "`value / 0`: Divide by zero"] {
        assert!(cause.contains(part), "{part}: {cause}");
    }
}

const KEPT: &str = "version: 1
name: kept
parameters: {input: {}, output: {}}
steps:
  - name: lines
    file-source: {paths: \"${input}\"}
  - name: parsed
    parse-json: {column: line, columns: {id: int64, note: string?}}
  - name: notes
    project: {columns: [note, id]}
  - name: formatted
    format-json: {}
  - name: out
    file-sink: {path: \"${output}\"}
";

#[tokio::test]
async fn a_column_that_is_kept_has_no_value_where_it_had_none() {
    let directory = tempfile::tempdir().expect("directory");
    let input = "{\"id\": 1}\n{\"id\": 2, \"note\": \"b\"}\n";
    std::fs::write(directory.path().join("in"), input).expect("written");
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    let parameters = [("input", path("in")), ("output", path("out"))];
    let options = CompileOptions {
        parameters: parameters
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        ..CompileOptions::default()
    };
    let graph = compiled(&JobFile::new("kept.yaml", KEPT), &options);
    let managers = [TaskManager::start("tm").await];
    let committables = finish(&deploy(&graph, &managers, |_, _| 0)).await;
    sink::commit(&committables).expect("committed");
    sink::cleanup(
        &directory.path().join("out"),
        graph.job_id.parse().expect("an id"),
        "",
    )
    .expect("cleaned up");
    let parts = std::fs::read_dir(path("out")).expect("output");
    let parts = parts.map(|part| std::fs::read_to_string(part.expect("entry").path()));
    let written: String = parts.map(|part| part.expect("part")).collect();
    assert_eq!(
        written,
        "{\"note\":null,\"id\":1}\n{\"note\":\"b\",\"id\":2}\n"
    );
}
