//! The examples are valid, and jobs in YAML can also be written in Rust.

use std::time::Duration;

use tanist_model::{Comparison, Emit, OperatorSpec, regions, restart, slots_needed};

use super::{graph_of, options, options_with};
use crate::{CompileOptions, JobBuilder, Partition, Plan, validate_job_graph};

const WORDCOUNT: &str = include_str!("../../../examples/wordcount.yaml");
const STREAM: &str = include_str!("../../../examples/stream.yaml");
const CHECKPOINTS: &str = include_str!("../../../examples/checkpoints.yaml");

fn wordcount_options() -> CompileOptions {
    CompileOptions {
        default_parallelism: 2,
        ..options_with([("input", "books/*.txt"), ("output", "/tmp/counts")])
    }
}

#[test]
fn the_word_count_is_two_vertices_that_meet_by_key() {
    let graph = graph_of(WORDCOUNT, &wordcount_options());
    assert_eq!(validate_job_graph(&graph), Ok(()));
    assert_eq!(
        Plan(&graph).to_string(),
        "job `wordcount`: 2 vertices, 1 region, 2 slots

lines -> words  (parallelism 2 of 128, slot sharing group default)
  lines: file-source emits (line: string)
  words: split-words emits (word: string)

counts -> out  (parallelism 2 of 128, slot sharing group default)
  reads lines -> words, hash by word
  counts: count emits (word: string, count: int64)
  out: file-sink
"
    );
    assert_eq!(slots_needed(&graph), 2);
    assert_eq!(regions(&graph).len(), 1);
}

#[test]
fn the_job_with_checkpoints_has_one_region_that_takes_part_and_no_warning() {
    let options = options_with([("output", "/tmp/counts")]);
    let graph = graph_of(CHECKPOINTS, &options);
    assert_eq!(validate_job_graph(&graph), Ok(()));
    assert_eq!(crate::warnings(&graph), Vec::<String>::new());
    assert_eq!(regions(&graph).len(), 1);
    let settings = graph.options.as_ref().and_then(|it| it.checkpoints);
    assert_eq!(settings.and_then(|it| it.interval_ms), Some(1_000));
}

#[test]
fn the_job_in_the_documentation_is_the_example() {
    let documentation = include_str!("../../../docs/reference/job-file.md");
    let job = documentation
        .split_once("```yaml\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(job, _)| job)
        .expect("a job");
    assert_eq!(
        graph_of(job, &wordcount_options()),
        graph_of(WORDCOUNT, &wordcount_options())
    );
}

#[test]
fn a_bounded_count_emits_at_the_end_and_an_unbounded_one_as_it_goes() {
    let emit_of = |graph: &tanist_proto::v1::JobGraph| {
        let count = &graph.vertices[1].operators[0];
        match OperatorSpec::from_json(&count.spec).expect("a specification") {
            OperatorSpec::Count(count) => count.emit,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        emit_of(&graph_of(WORDCOUNT, &wordcount_options())),
        Some(Emit::Final)
    );
    let stream = STREAM.replace("      emit: updates\n", "");
    assert_ne!(stream, STREAM);
    assert_eq!(emit_of(&graph_of(&stream, &options())), Some(Emit::Updates));
    let bounded = stream.replace("      seed:", "      count: 10\n      seed:");
    assert_eq!(emit_of(&graph_of(&bounded, &options())), Some(Emit::Final));
}

#[test]
fn the_stream_is_two_vertices_at_parallelism_two() {
    let graph = graph_of(STREAM, &options());
    let shape: Vec<_> = graph
        .vertices
        .iter()
        .map(|vertex| (vertex.name.as_str(), vertex.parallelism))
        .collect();
    assert_eq!(shape, [("numbers", 2), ("counts -> out", 2)]);
    let numbers = &graph.vertices[0].operators[0];
    assert_eq!(
        numbers.spec,
        r#"{"type":"datagen","rate":1000,"seed":1,"keys":100}"#
    );
    let faster = graph_of(STREAM, &options_with([("rate", "5"), ("parallelism", "3")]));
    assert_eq!(faster.vertices[0].parallelism, 3);
    assert!(faster.vertices[0].operators[0].spec.contains("\"rate\":5,"));
}

#[test]
fn a_job_file_and_the_builder_give_equal_graphs() {
    let built = JobBuilder::new("wordcount")
        .file_source("lines", ["books/*.txt"])
        .split_words("words", "line")
        .key_by("by-word", ["word"])
        .count("counts")
        .file_sink("out", "/tmp/counts")
        .build()
        .compile(&wordcount_options())
        .expect("a valid job");
    assert_eq!(built, graph_of(WORDCOUNT, &wordcount_options()));
}

#[test]
fn whatever_a_job_file_says_the_builder_says_too() {
    let text = "
version: 1
name: everything
parallelism: 2
max-parallelism: 64
restart-strategy: {type: failure-rate, max-failures-per-interval: 3, failure-rate-interval: 5 min, delay: 500 ms}
isolation: stop-first
steps:
  - name: some
    datagen: {rate: 1_000, count: 50, seed: 7, keys: 10}
  - name: more
    datagen: {count: 50}
    parallelism: 3
  - name: large
    inputs: [some, more]
    filter: {column: value, op: ge, value: 10}
    partition: rebalance
  - name: by-key
    key-by: {columns: [key]}
  - name: sums
    sum: {column: value, emit: updates}
    slot-sharing-group: sums
  - name: show
    print: {prefix: '> '}
    chaining: false
  - name: out
    file-sink: {path: out}
    input: large
";
    let strategy = restart::failure_rate(3, Duration::from_secs(300), Duration::from_millis(500));
    let built = JobBuilder::new("everything")
        .parallelism(2)
        .max_parallelism(64)
        .restart_strategy(strategy)
        .isolation(tanist_proto::v1::Isolation::StopFirst)
        .datagen("some", Some(1_000), Some(50), 7, 10)
        .datagen("more", None, Some(50), 0, 100)
        .with_parallelism(3)
        .filter("large", "value", Comparison::Ge, 10)
        .reading(["some", "more"])
        .partitioned(Partition::Rebalance)
        .key_by("by-key", ["key"])
        .sum("sums", "value")
        .emitting(Emit::Updates)
        .in_slot_sharing_group("sums")
        .print("show", "> ")
        .without_chaining()
        .file_sink("out", "out")
        .reading(["large"])
        .build()
        .compile(&options())
        .expect("a valid job");
    assert_eq!(built, graph_of(text, &options()));
    assert_eq!(
        Plan(&built).to_string(),
        "job `everything`: 6 vertices, 1 region, 5 slots
restart strategy: failure-rate, 3 failures in 300000 ms, delay 500 ms
isolation: stop-first

some  (parallelism 2 of 64, slot sharing group default)
  some: datagen emits (seq: int64, key: int64, value: int64)

more  (parallelism 3 of 64, slot sharing group default)
  more: datagen emits (seq: int64, key: int64, value: int64)

large  (parallelism 2 of 64, slot sharing group default)
  reads some, rebalance
  reads more, rebalance
  large: filter emits (seq: int64, key: int64, value: int64)

sums  (parallelism 2 of 64, slot sharing group sums)
  reads large, hash by key
  sums: sum emits (key: int64, sum: int64)

show  (parallelism 2 of 64, slot sharing group sums)
  reads sums, forward
  show: print

out  (parallelism 2 of 64, slot sharing group default)
  reads large, forward
  out: file-sink
"
    );
}

#[test]
fn restart_strategies_have_defaults() {
    let strategy_of = |strategy: &str| {
        let text = format!(
            "version: 1\nname: a\nrestart-strategy: {strategy}\nsteps:\n  - datagen:\n  - discard:\n"
        );
        graph_of(&text, &options())
            .options
            .and_then(|options| options.restart_strategy)
    };
    assert_eq!(strategy_of("none"), Some(restart::none()));
    assert_eq!(strategy_of("~"), None);
    assert_eq!(
        strategy_of("fixed-delay"),
        Some(restart::fixed_delay(1, Duration::from_secs(1)))
    );
    let mut delay = restart::default_exponential_delay();
    assert_eq!(
        strategy_of("exponential-delay"),
        Some(restart::exponential_delay(delay))
    );
    (delay.initial_backoff_ms, delay.jitter_factor) = (20, 0.0);
    assert_eq!(
        strategy_of(
            "{type: exponential-delay, initial-backoff: 20 ms, jitter-factor: 0, attempts-before-reset-backoff: infinite}"
        ),
        Some(restart::exponential_delay(delay))
    );
}

/// The stores of running clusters contain these ids: if this test fails, vertices change their identity.
#[test]
fn vertex_ids_are_the_same_in_every_version() {
    let ids = |graph: tanist_proto::v1::JobGraph| -> Vec<String> {
        graph.vertices.into_iter().map(|vertex| vertex.id).collect()
    };
    assert_eq!(
        ids(graph_of(WORDCOUNT, &wordcount_options())),
        [
            "e2049079f5d33bdc713cf67c945c7308",
            "b5e83d8fc9a7e1576373995061bfa587"
        ]
    );
    assert_eq!(
        ids(graph_of(STREAM, &options())),
        [
            "970f028f8c87eebf431798787dbc2073",
            "48c46e2192917076c194e0306dd81efb"
        ]
    );
}
