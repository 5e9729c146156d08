//! Resources of steps and slot sharing groups, and which steps are guaranteed to share slots.

use tanist_model::resources::slot_profile;
use tanist_proto::resources::{CpuCores, Resources};
use tanist_proto::v1::JobGraph;

use super::{graph_of, message_of, options, with_steps};
use crate::{JobBuilder, Plan};

const MB: u64 = 1 << 20;

fn resources(cpu: &str, mb: u64, gpus: u64) -> Resources {
    let resources = Resources {
        cpu: cpu.parse::<CpuCores>().expect("cores"),
        task_memory: mb * MB,
        ..Resources::ZERO
    };
    resources.with_extended("gpu", gpus)
}

fn built(steps: crate::Steps) -> JobGraph {
    match steps.build().compile(&options()) {
        Ok(graph) => graph,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_job_file_says_what_the_builder_says() {
    let text = "\
version: 1
name: test
slot-sharing-groups:
  sinks: { cpu: 1, memory: 256 mb, managed-memory: 1 gb }
steps:
  - file-source: { paths: [a.txt] }
    name: lines
    resources: { cpu: 0.25, memory: 10 mb }
  - split-words: { column: line }
    name: words
    resources: { cpu: 0.5, memory: 20 mb, gpu: 2, network-memory: 1 mb }
  - discard: {}
    name: out
    slot-sharing-group: sinks
";
    let from_file = graph_of(text, &options());
    let sinks = Resources {
        managed_memory: 1024 * MB,
        ..resources("1", 256, 0)
    };
    let words = Resources {
        network_memory: MB,
        ..resources("0.5", 20, 2)
    };
    let steps = JobBuilder::new("test")
        .slot_sharing_group("sinks", sinks.clone())
        .file_source("lines", ["a.txt"])
        .with_resources(resources("0.25", 10, 0))
        .split_words("words", "line")
        .with_resources(words)
        .discard("out")
        .in_slot_sharing_group("sinks");
    assert_eq!(from_file, built(steps));
    // One task runs both steps.
    let both = Resources {
        network_memory: MB,
        ..resources("0.75", 30, 2)
    };
    assert_eq!(slot_profile(&from_file, "default"), both.into());
    assert_eq!(slot_profile(&from_file, "sinks"), sinks.into());
    let plan = Plan(&from_file).to_string();
    assert!(
        plan.contains("  needs 0.75 cores, 30 mb of task memory"),
        "{plan}"
    );
    assert!(
        plan.contains("slots of group sinks: 1 cores, 256 mb of task memory"),
        "{plan}"
    );
}

#[test]
fn resources_for_some_steps_only_are_refused() {
    let steps = [
        "  - file-source: { paths: [a.txt] }\n    name: lines\n",
        "  - split-words: { column: line }\n    name: words\n    resources: { cpu: 1 }\n",
        "  - discard: {}\n    name: out\n",
    ]
    .concat();
    let message = message_of(&with_steps(&steps), &options());
    assert!(
        message.contains("it states no resources, but `words` does: state them for all steps"),
        "{message}"
    );
    assert_eq!(
        message.matches("it states no resources").count(),
        2,
        "{message}"
    );
}

#[test]
fn amounts_that_say_nothing_and_names_that_are_none_are_refused() {
    for (resources, expected) in [
        ("{ gpu: 1 }", "neither CPU nor task memory"),
        ("{ cpu: one }", "write a number of cores"),
        ("{ memory: 5 }", "write a number and a unit"),
        ("{ cpu: 1, memory: 5 }", "write a number and a unit"),
        ("{ cpu: 1, Gpu: 1 }", "`Gpu` is no name"),
        ("{ cpu: 1, gpu: x }", "a whole number"),
        ("2", "for example `{ cpu: 1"),
    ] {
        let steps = format!(
            "  - file-source: {{ paths: [a.txt] }}\n    resources: {resources}\n  - discard: {{}}\n    resources: {{ cpu: 1 }}\n"
        );
        let message = message_of(&with_steps(&steps), &options());
        assert!(message.contains(expected), "{resources}: {message}");
        let says_neither = message.contains("neither CPU");
        assert_eq!(says_neither, expected.starts_with("neither"), "{message}");
    }
}

#[test]
fn a_key_by_has_no_resources_and_an_unused_group_is_told() {
    let text = "\
version: 1
name: test
slot-sharing-groups: { other: { cpu: 1 } }
steps:
  - file-source: { paths: [a.txt] }
    resources: { cpu: 1 }
  - key-by: { columns: [line] }
    co-location-group: here
  - count: {}
    resources: { cpu: 1 }
  - discard: {}
    resources: { cpu: 1 }
";
    let message = message_of(text, &options());
    assert!(message.contains("has no `co-location-group`"), "{message}");
    let message = message_of(
        &text.replace("    co-location-group: here\n", ""),
        &options(),
    );
    assert!(
        message.contains("slot sharing group `other` has no steps"),
        "{message}"
    );
}

#[test]
fn co_located_steps_are_told_when_they_can_not_be() {
    let lines = || JobBuilder::new("test").file_source("lines", ["a.txt"]);
    let steps = lines()
        .in_co_location_group("pairs")
        .discard("out")
        .without_chaining()
        .in_co_location_group("pairs");
    let graph = built(steps);
    let groups: Vec<&str> = graph
        .vertices
        .iter()
        .map(|it| it.co_location_group.as_str())
        .collect();
    assert_eq!(groups, ["pairs", "pairs"]);
    let apart = lines()
        .in_co_location_group("pairs")
        .discard("out")
        .in_co_location_group("pairs")
        .in_slot_sharing_group("other")
        .with_parallelism(2);
    let message = apart
        .build()
        .compile(&options())
        .expect_err("they can't")
        .to_string();
    for part in [
        "in the slot sharing groups `default` and `other`",
        "parallelism 1 and 2",
    ] {
        assert!(message.contains(part), "{message}");
    }
    // Only one of two steps in a chain would be in the group.
    let one = lines().discard("out").in_co_location_group("pairs");
    assert_eq!(built(one).vertices.len(), 2);
}
