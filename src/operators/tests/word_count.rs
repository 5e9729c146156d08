//! A whole job in one process over memory and TCP, at any parallelism: lines are read, cut into words,
//! shuffled, counted and written. The counts equal those of a single thread, each word is in one part, and
//! nothing is left in the exchange.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use tanist_dataflow::TaskStatus;
use tanist_model::{Emit, OperatorSpec, operators};
use tanist_proto::v1::{JobGraph, Partitioning};

use super::{
    GraphBuilder, Placement, TaskManager, count_by, deploy, file_sink, finish, spec, wait_until,
};
use crate::sink;

/// Builds a job that reads lines, cuts them into words, shuffles, counts, gathers and writes them.
fn word_count(input: &Path, output: &Path, parallelism: [u32; 3]) -> Arc<JobGraph> {
    let paths = vec![input.join("*.txt").to_string_lossy().into_owned()];
    let split = OperatorSpec::SplitWords(operators::SplitWords {
        column: "line".to_owned(),
    });
    GraphBuilder::new()
        .vertex(
            parallelism[0],
            &[OperatorSpec::FileSource(operators::FileSource { paths })],
            None,
        )
        .vertex(
            parallelism[1],
            &[split],
            Some((0, Partitioning::Rebalance, &[])),
        )
        .vertex(
            parallelism[2],
            &[count_by("word", Emit::Final), file_sink(output)],
            Some((1, Partitioning::Hash, &["word"])),
        )
        .build()
}

fn counted(texts: &[String]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for word in texts
        .iter()
        .flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric()))
    {
        if !word.is_empty() {
            *counts.entry(word.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Runs the word count and reads its output.
async fn run_word_count(
    texts: &[String],
    parallelism: [u32; 3],
    managers: &[TaskManager],
    placement: Placement,
) -> BTreeMap<String, u64> {
    let directory = tempfile::tempdir().expect("directory");
    for (index, text) in texts.iter().enumerate() {
        let path = directory.path().join(format!("{index}.txt"));
        std::fs::write(path, text).expect("written");
    }
    let output = directory.path().join("out");
    let graph = word_count(directory.path(), &output, parallelism);
    let tasks = deploy(&graph, managers, placement);
    let committables = finish(&tasks).await;
    assert_eq!(committables.len(), parallelism[2] as usize);
    sink::commit(&committables).expect("committed");
    sink::cleanup(&output, graph.job_id.parse().expect("an id"), "").expect("cleaned up");
    for manager in managers {
        let exchange = manager.runtime.exchange();
        wait_until("all partitions are consumed", || {
            exchange.partition_count() == 0
        })
        .await;
    }
    let mut counts = BTreeMap::new();
    for entry in std::fs::read_dir(&output).expect("output") {
        let path = entry.expect("entry").path();
        for line in std::fs::read_to_string(&path).expect("part").lines() {
            let (word, count) = line.split_once(' ').expect("word and count");
            let before = counts.insert(word.to_owned(), count.parse().expect("a count"));
            assert_eq!(before, None, "{word} is in two parts");
        }
    }
    counts
}

fn on_runtime<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_word_count_equals_a_single_threaded_one(
        texts in prop::collection::vec("([ab0]{1,3}[ .\n]|c\r\n|ä){0,60}", 1..4),
        parallelism in prop::array::uniform3(1_u32..5),
        over_tcp in any::<bool>(),
    ) {
        let placement: Placement = match over_tcp {
            true => |vertex, subtask| vertex + subtask as usize,
            false => |_, _| 0,
        };
        let counts = on_runtime(async {
            let managers = TaskManager::start_many::<2>().await;
            run_word_count(&texts, parallelism, &managers, placement).await
        });
        prop_assert_eq!(counts, counted(&texts));
    }
}

#[test]
fn a_larger_word_count_over_tcp_equals_a_single_threaded_one() {
    let texts: Vec<String> = (0..3)
        .map(|file| {
            (0..40_000)
                .map(|n| format!("w{} ", n * (file + 7) % 4099))
                .collect()
        })
        .map(|text: String| text.replace("w1 ", "w1\n"))
        .collect();
    let counts = on_runtime(async {
        let managers = TaskManager::start_many::<3>().await;
        run_word_count(&texts, [3, 2, 4], &managers, |vertex, subtask| {
            vertex + subtask as usize
        })
        .await
    });
    assert_eq!(counts, counted(&texts));
}

#[tokio::test]
async fn an_input_file_that_is_not_on_the_host_of_its_task_is_named() {
    let managers = [TaskManager::start("tm").await];
    let directory = tempfile::tempdir().expect("directory");
    let input = directory.path().join("a.txt");
    std::fs::write(&input, "a b\n").expect("written");
    let graph = word_count(directory.path(), &directory.path().join("out"), [1, 1, 1]);
    let spec = spec(&graph, &managers, |_, _| 0, (0, 0), 1);
    // The coordinator has seen it.
    std::fs::remove_file(&input).expect("removed");
    let TaskStatus::Failed {
        cause,
        unrecoverable,
        ..
    } = managers[0].runtime.start(spec).ended().await
    else {
        panic!("there is no input")
    };
    assert!(cause.contains("a.txt"), "{cause}");
    assert!(unrecoverable, "{cause}");
}
