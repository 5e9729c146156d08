//! Event time across tasks: watermarks over memory and TCP, idle subtasks, and a whole pipeline.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_compile::{CompileOptions, JobFile};
use tanist_model::operators::{
    Aggregate, Aggregation, DeclaredColumn, FollowFiles, ParseCsv, Reading, Trigger, Watermarks,
    Windows,
};
use tanist_model::{ColumnType, OperatorSpec, operators};
use tanist_proto::v1::{JobGraph, Partitioning};

use super::{GraphBuilder, Placement, TaskManager, compiled, deploy, finish, spec, wait_until};
use crate::sink;

const APART: Placement = |vertex, subtask| vertex + subtask as usize;
const TOGETHER: Placement = |_, _| 0;

fn datagen(rate: Option<u64>, count: Option<u64>) -> OperatorSpec {
    OperatorSpec::Datagen(operators::Datagen {
        rate,
        count,
        seed: 7,
        keys: 10,
    })
}

fn watermarks(column: &str, idle_timeout_ms: Option<u64>) -> OperatorSpec {
    OperatorSpec::Watermarks(Watermarks {
        column: column.into(),
        // Subtasks of one source are not equally fast.
        out_of_orderness_ms: 0,
        idle_timeout_ms,
    })
}

fn counts_in_windows(time: &str) -> OperatorSpec {
    OperatorSpec::Aggregate(Aggregate {
        keys: vec!["key".into()],
        aggregations: vec![Aggregation::count("count")],
        trigger: Some(Trigger::Window(Windows {
            size_ms: 100,
            slide_ms: 100,
            time: time.into(),
            allowed_lateness_ms: 0,
        })),
    })
}

/// Builds a job whose `makers` subtasks make `records` records each, and whose two further subtasks count them
/// by key in windows.
fn counting_in_windows(makers: u32, records: u64, output: &std::path::Path) -> GraphBuilder {
    let sink = OperatorSpec::FileSink(operators::FileSink::new(
        output.to_string_lossy().into_owned(),
    ));
    GraphBuilder::new()
        .vertex(
            makers,
            &[datagen(None, Some(records)), watermarks("seq", None)],
            None,
        )
        .vertex(
            2,
            &[counts_in_windows("seq"), sink],
            Some((0, Partitioning::Hash, &["key"])),
        )
}

fn lines_of(directory: &std::path::Path) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(directory).expect("output") {
        let text = std::fs::read_to_string(entry.expect("entry").path()).expect("part");
        lines.extend(text.lines().map(str::to_owned));
    }
    lines
}

/// Number of records that each window has counted.
fn windows_of(directory: &std::path::Path) -> BTreeMap<String, u64> {
    let mut windows: BTreeMap<String, u64> = BTreeMap::new();
    for line in lines_of(directory) {
        let columns: Vec<&str> = line.split(' ').collect();
        *windows.entry(columns[1].to_owned()).or_default() +=
            columns[3].parse::<u64>().expect("a count");
    }
    windows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_over_several_producers_miss_nothing_and_drop_nothing() {
    for placement in [TOGETHER, APART] {
        let managers = TaskManager::start_many::<2>().await;
        let directory = tempfile::tempdir().expect("directory");
        let output = directory.path().join("out");
        let graph = counting_in_windows(3, 30_000, &output).build();
        let tasks = deploy(&graph, &managers, placement);
        let committables = finish(&tasks).await;
        sink::commit(&committables).expect("committed");
        sink::cleanup(&output, graph.job_id.parse().expect("an id"), "").expect("cleaned up");
        let late: u64 = tasks
            .values()
            .map(|task| task.metrics().late_records_dropped)
            .sum();
        let windows = windows_of(&output);
        assert_eq!(late, 0);
        assert_eq!(windows.len(), 300);
        assert!(windows.values().all(|count| *count == 100), "{windows:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_behind_a_blocking_exchange_are_emitted_at_its_end() {
    let managers = TaskManager::start_many::<2>().await;
    let directory = tempfile::tempdir().expect("directory");
    let output = directory.path().join("out");
    let graph = counting_in_windows(2, 3_000, &output).blocking().build();
    let start = |vertex: usize| -> BTreeMap<_, _> {
        let places = [(vertex, 0), (vertex, 1)];
        let start = |(vertex, subtask)| {
            let spec = spec(&graph, &managers, APART, (vertex, subtask), 1);
            let manager = &managers[APART(vertex, subtask) % managers.len()];
            ((vertex, subtask), manager.runtime.start(spec))
        };
        places.map(start).into()
    };
    finish(&start(0)).await;
    let reading = start(1);
    let committables = finish(&reading).await;
    sink::commit(&committables).expect("committed");
    sink::cleanup(&output, graph.job_id.parse().expect("an id"), "").expect("cleaned up");
    let late = reading.values().map(|task| task.metrics());
    assert_eq!(late.map(|task| task.late_records_dropped).sum::<u64>(), 0);
    let windows = windows_of(&output);
    assert_eq!(windows.len(), 30);
    assert!(windows.values().all(|count| *count == 100), "{windows:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_are_emitted_while_the_input_goes_on() {
    let managers = TaskManager::start_many::<2>().await;
    let graph = GraphBuilder::new()
        .vertex(
            2,
            &[datagen(Some(20_000), None), watermarks("seq", None)],
            None,
        )
        .vertex(
            2,
            &[counts_in_windows("seq")],
            Some((0, Partitioning::Hash, &["key"])),
        )
        .vertex(
            1,
            &[OperatorSpec::Discard(operators::Discard {})],
            Some((1, Partitioning::Rebalance, &[])),
        )
        .build();
    let tasks = deploy(&graph, &managers, APART);
    wait_until("windows arrive at the sink", || {
        tasks[&(2, 0)].metrics().records_in >= 500
    })
    .await;
}

/// Builds a job that reads records of key and time from files that may grow.
fn followed(directory: &std::path::Path, idle_timeout_ms: Option<u64>) -> Arc<JobGraph> {
    let follow = FollowFiles {
        paths: vec![directory.join("*.csv").to_string_lossy().into_owned()],
        discovery_interval_ms: 20,
    };
    let parse = ParseCsv {
        column: "line".into(),
        reading: Reading::of([
            DeclaredColumn::new("key", ColumnType::String),
            DeclaredColumn::new("time", ColumnType::Timestamp),
        ]),
        separator: ',',
        header: false,
    };
    GraphBuilder::new()
        .vertex(
            2,
            &[
                OperatorSpec::FollowFiles(follow),
                OperatorSpec::ParseCsv(parse),
                watermarks("time", idle_timeout_ms),
            ],
            None,
        )
        .vertex(
            1,
            &[counts_in_windows("time")],
            Some((0, Partitioning::Hash, &["key"])),
        )
        .vertex(
            1,
            &[OperatorSpec::Discard(operators::Discard {})],
            Some((1, Partitioning::Rebalance, &[])),
        )
        .build()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_subtask_holds_windows_back_only_without_a_timeout() {
    for idle_timeout_ms in [Some(50), None] {
        let managers = TaskManager::start_many::<1>().await;
        let directory = tempfile::tempdir().expect("directory");
        // One file: one of the two subtasks has nothing to read.
        let path = directory.path().join("a.csv");
        std::fs::write(&path, "a,0\nb,50\na,100\n").expect("written");
        let graph = followed(directory.path(), idle_timeout_ms);
        let tasks = deploy(&graph, &managers, TOGETHER);
        wait_until("the records arrive at the windows", || {
            tasks[&(1, 0)].metrics().records_in == 3
        })
        .await;
        if idle_timeout_ms.is_some() {
            wait_until("the first window is emitted", || {
                tasks[&(2, 0)].metrics().records_in == 2
            })
            .await;
            // Records that arrive after their window are dropped and counted.
            let late = "a,10\nb,500\n";
            let text = std::fs::read_to_string(&path).expect("read") + late;
            std::fs::write(directory.path().join("b.csv"), text).expect("written");
            wait_until("late records are counted", || {
                tasks[&(1, 0)].metrics().late_records_dropped >= 3
            })
            .await;
        } else {
            assert_eq!(tasks[&(2, 0)].metrics().records_in, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_of_an_access_log_adds_up() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let text = std::fs::read_to_string(root.join("examples/access-log.yaml")).expect("there");
    let directory = tempfile::tempdir().expect("directory");
    let output = directory.path().join("out");
    let input = root.join("examples/data/access-log.jsonl");
    let parameters = [("input", &input), ("output", &output)];
    let options = CompileOptions {
        parameters: parameters
            .map(|(name, path)| (name.to_owned(), path.to_string_lossy().into_owned()))
            .into(),
        ..CompileOptions::default()
    };
    let graph = compiled(&JobFile::new("access-log.yaml", text), &options);
    let managers = TaskManager::start_many::<2>().await;
    let tasks = deploy(&graph, &managers, APART);
    let committables = finish(&tasks).await;
    sink::commit(&committables).expect("committed");
    sink::cleanup(&output, graph.job_id.parse().expect("an id"), "").expect("cleaned up");
    let skipped: u64 = tasks
        .values()
        .map(|task| task.metrics().records_skipped)
        .sum();
    assert_eq!(skipped, 1, "one line is no JSON");
    let lines = lines_of(&output);
    let records: Vec<serde_json::Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let sum = |name: &str| -> i64 {
        let values = records.iter().map(|record| &record[name]);
        values.map(|value| value.as_i64().expect("a number")).sum()
    };
    assert_eq!(
        (records.len(), sum("requests"), sum("bytes")),
        (9, 52, 139_625)
    );
    assert!(
        records
            .iter()
            .all(|record| record["window_end"].is_string())
    );
}
