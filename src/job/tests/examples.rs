//! The examples are valid, and what is written in YAML can be written in Rust.

use super::{graph_of, options, options_with};
use crate::job::{
    CompileOptions, Emit, JobBuilder, OperatorSpec, Plan, regions, slots_needed, validate_job_graph,
};

const WORDCOUNT: &str = include_str!("../../../examples/wordcount.yaml");
const STREAM: &str = include_str!("../../../examples/stream.yaml");

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
fn the_job_in_the_documentation_is_the_example() {
    let documentation = include_str!("../../../docs/jobs.md");
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
            OperatorSpec::Count { emit, .. } => emit,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        emit_of(&graph_of(WORDCOUNT, &wordcount_options())),
        Emit::Final
    );
    let stream = STREAM.replace("      emit: updates\n", "");
    assert_ne!(stream, STREAM);
    assert_eq!(emit_of(&graph_of(&stream, &options())), Emit::Updates);
    let bounded = stream.replace("      seed:", "      count: 10\n      seed:");
    assert_eq!(emit_of(&graph_of(&bounded, &options())), Emit::Final);
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

/// These ids stand in the stores of running clusters: if this test fails, vertices change their identity.
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
