//! The rules of chaining, one by one, and the partitioning of edges.

use tanist_model::{
    edges_into, edges_out_of, fed_subtasks, feeding_subtasks, regions, slots_needed,
};
use tanist_proto::v1::{JobGraph, Partitioning};

use super::{graph_of, options, with_steps};
use crate::{ChainingOptions, CompileOptions, Exchange, JobBuilder, Partition, Steps};

fn lines() -> Steps {
    JobBuilder::new("test").file_source("lines", ["a.txt"])
}

fn compiled(steps: Steps) -> JobGraph {
    match steps.build().compile(&options()) {
        Ok(graph) => graph,
        Err(error) => panic!("{error}"),
    }
}

fn vertices(steps: Steps) -> Vec<String> {
    compiled(steps)
        .vertices
        .into_iter()
        .map(|vertex| vertex.name)
        .collect()
}

fn partitionings(steps: Steps) -> Vec<Partitioning> {
    compiled(steps)
        .edges
        .iter()
        .map(|edge| edge.partitioning())
        .collect()
}

#[test]
fn steps_in_a_row_are_one_vertex() {
    let steps = lines().split_words("words", "line").discard("out");
    assert_eq!(vertices(steps), ["lines -> words -> out"]);
}

#[test]
fn a_key_by_ends_a_chain_and_is_no_operator() {
    let steps = lines().key_by("k", ["line"]).count("counts").discard("out");
    assert_eq!(vertices(steps.clone()), ["lines", "counts -> out"]);
    assert_eq!(compiled(steps).edges[0].key_columns, ["line"]);
}

#[test]
fn other_parallelism_ends_a_chain_and_rebalances() {
    let steps = lines().discard("out").with_parallelism(2);
    assert_eq!(vertices(steps.clone()), ["lines", "out"]);
    assert_eq!(partitionings(steps), [Partitioning::Rebalance]);
}

#[test]
fn who_wants_its_input_complete_ends_a_chain_and_a_region() {
    let steps = lines().discard("out").exchanged(Exchange::Blocking);
    assert_eq!(vertices(steps.clone()), ["lines", "out"]);
    assert_eq!(regions(&compiled(steps)).len(), 2);
}

#[test]
fn the_exchange_of_a_job_is_that_between_its_chains() {
    let job = JobBuilder::new("test").exchange(Exchange::Blocking);
    let steps = job
        .file_source("lines", ["a.txt"])
        .split_words("words", "line");
    let steps = steps.key_by("k", ["word"]).count("counts").discard("out");
    assert_eq!(vertices(steps.clone()), ["lines -> words", "counts -> out"]);
    let steps = steps.exchanged(Exchange::Pipelined);
    assert_eq!(regions(&compiled(steps)).len(), 2);
}

#[test]
fn a_partitioning_other_than_forward_ends_a_chain() {
    for (partition, expected) in [
        (Partition::Rebalance, Partitioning::Rebalance),
        (Partition::Broadcast, Partitioning::Broadcast),
        (Partition::Global, Partitioning::Global),
    ] {
        let steps = lines().discard("out").partitioned(partition);
        assert_eq!(partitionings(steps), [expected]);
    }
    let forward = lines().discard("out").partitioned(Partition::Forward);
    assert_eq!(vertices(forward), ["lines -> out"]);
}

#[test]
fn another_slot_sharing_group_ends_a_chain_and_is_inherited() {
    let steps = lines()
        .split_words("words", "line")
        .in_slot_sharing_group("heavy")
        .discard("out");
    assert_eq!(vertices(steps.clone()), ["lines", "words -> out"]);
    let graph = compiled(steps);
    assert_eq!(graph.vertices[1].slot_sharing_group, "heavy");
    assert_eq!(graph.edges[0].partitioning(), Partitioning::Forward);
    assert_eq!(slots_needed(&graph), 2);
}

#[test]
fn a_step_without_chaining_is_alone() {
    let steps = lines()
        .split_words("words", "line")
        .without_chaining()
        .discard("out");
    assert_eq!(vertices(steps), ["lines", "words", "out"]);
}

#[test]
fn chaining_can_be_switched_off_by_the_options_and_by_the_job() {
    let off = CompileOptions {
        chaining: ChainingOptions { enabled: false },
        ..options()
    };
    let graph = lines()
        .discard("out")
        .build()
        .compile(&off)
        .expect("a valid job");
    assert_eq!(graph.vertices.len(), 2);
    let steps = JobBuilder::new("test")
        .chaining(false)
        .file_source("lines", ["a"])
        .discard("out");
    assert_eq!(vertices(steps), ["lines", "out"]);
}

#[test]
fn a_step_with_two_readers_or_two_inputs_is_not_chained() {
    let two_readers = lines().discard("a").print("b", "").reading(["lines"]);
    assert_eq!(vertices(two_readers), ["lines", "a", "b"]);
    let union = lines()
        .file_source("more", ["b.txt"])
        .discard("out")
        .reading(["lines", "more"]);
    assert_eq!(vertices(union.clone()), ["lines", "more", "out"]);
    assert_eq!(
        partitionings(union),
        [Partitioning::Forward, Partitioning::Forward]
    );
}

#[test]
fn the_parallelism_of_a_step_goes_before_the_submission_the_job_and_the_default() {
    let text = with_steps("  - datagen:\n  - discard:\n    parallelism: 5\n");
    let of = |text: &str, options: &CompileOptions| -> Vec<u32> {
        graph_of(text, options)
            .vertices
            .iter()
            .map(|vertex| vertex.parallelism)
            .collect()
    };
    let default = CompileOptions {
        default_parallelism: 2,
        ..options()
    };
    assert_eq!(of(&text, &default), [2, 5]);
    let job = text.replace("steps:", "parallelism: 3\nsteps:");
    assert_eq!(of(&job, &default), [3, 5]);
    let submission = CompileOptions {
        parallelism: Some(4),
        ..default
    };
    assert_eq!(of(&job, &submission), [4, 5]);
}

#[test]
fn steps_may_stand_in_any_order_and_vertices_stand_in_topological_order() {
    let text = with_steps(
        "  - name: out\n    discard:\n    input: words\n  - name: words\n    split-words: {column: line}\n    input: lines\n  - name: lines\n    file-source: {paths: a}\n",
    );
    let graph = graph_of(&text, &options());
    assert_eq!(graph.vertices[0].name, "lines -> words -> out");
    let apart = CompileOptions {
        chaining: ChainingOptions { enabled: false },
        ..options()
    };
    let graph = graph_of(&text, &apart);
    let names: Vec<&str> = graph
        .vertices
        .iter()
        .map(|vertex| vertex.name.as_str())
        .collect();
    assert_eq!(names, ["lines", "words", "out"]);
}

#[test]
fn unconnected_parts_are_regions_of_their_own() {
    let steps = lines()
        .key_by("k", ["line"])
        .count("counts")
        .discard("out")
        .datagen("numbers", None, None, 0, 1)
        .print("show", "");
    let graph = compiled(steps);
    let names: Vec<&str> = graph
        .vertices
        .iter()
        .map(|vertex| vertex.name.as_str())
        .collect();
    assert_eq!(names, ["lines", "counts -> out", "numbers -> show"]);
    let sizes: Vec<usize> = regions(&graph).iter().map(Vec::len).collect();
    assert_eq!(sizes, [2, 1]);
    let counts = regions(&graph)[0][1];
    assert_eq!(edges_into(&graph, counts).count(), 1);
    assert_eq!(edges_out_of(&graph, counts).count(), 0);
}

#[test]
fn forward_channels_join_equal_subtasks_and_all_others_join_all() {
    let steps = lines()
        .with_parallelism(2)
        .discard("out")
        .with_parallelism(3);
    let graph = compiled(steps);
    assert_eq!(feeding_subtasks(&graph, &graph.edges[0], 2), 0..2);
    assert_eq!(fed_subtasks(&graph, &graph.edges[0], 1), 0..3);
    let graph = compiled(
        lines()
            .with_parallelism(3)
            .discard("out")
            .with_parallelism(3)
            .without_chaining(),
    );
    assert_eq!(feeding_subtasks(&graph, &graph.edges[0], 1), 1..2);
    assert_eq!(feeding_subtasks(&graph, &graph.edges[0], 7), 0..0);
}
