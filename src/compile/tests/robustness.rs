//! No input makes the code panic, and no graph that passes the checks violates an invariant.

use proptest::prelude::*;
use tanist_model::{fed_subtasks, feeding_subtasks, regions, slots_needed};
use tanist_proto::v1;

use super::{graph_of, options, options_with};
use crate::{CompileOptions, JobFile, Plan, compile, validate_job_graph};

const WORDCOUNT: &str = include_str!("../../../examples/wordcount.yaml");
const STREAM: &str = include_str!("../../../examples/stream.yaml");

fn wordcount() -> v1::JobGraph {
    graph_of(WORDCOUNT, &options_with([("input", "a"), ("output", "b")]))
}

/// Asserts that the check of a valid graph reports `expected` after `change`.
fn says(change: impl FnOnce(&mut v1::JobGraph), expected: &str) {
    let mut graph = wordcount();
    change(&mut graph);
    let error = validate_job_graph(&graph).expect_err(expected);
    assert!(
        error.to_string().contains(expected),
        "{error}\ndoes not say: {expected}"
    );
}

#[test]
fn a_foreign_graph_is_refused_with_the_reason() {
    says(|graph| graph.job_id = "1".into(), "\"1\" is not a job id");
    says(|graph| graph.vertices.clear(), "it has no vertices");
    says(
        |graph| graph.vertices[0].id = "x".into(),
        "\"x\" is not a vertex id",
    );
    says(
        |graph| graph.vertices[1].id = graph.vertices[0].id.clone(),
        "another vertex has its id",
    );
    says(
        |graph| graph.vertices.reverse(),
        "vertices must stand after those that they read",
    );
    says(
        |graph| graph.edges[0].source = "y".into(),
        "refers to a vertex that is not there",
    );
    says(
        |graph| graph.edges.push(graph.edges[0].clone()),
        "there are two of it",
    );
    says(
        |graph| graph.edges.clear(),
        "step `words`: no step reads its output",
    );
    says(
        |graph| graph.edges[0].partitioning = 9,
        "its partitioning is not known",
    );
    says(
        |graph| graph.edges[0].key_columns.clear(),
        "has no key columns",
    );
    says(
        |graph| graph.edges[0].key_columns = vec!["wrod".into()],
        "did you mean `word`?",
    );
    says(
        |graph| graph.edges[0].set_partitioning(v1::Partitioning::Global),
        "not partitioned by key",
    );
    says(
        |graph| graph.vertices[0].parallelism = 0,
        "its parallelism is 0",
    );
    says(
        |graph| graph.vertices[0].max_parallelism = 40_000,
        "its maximum parallelism is 40000",
    );
    says(
        |graph| graph.vertices[0].operators.clear(),
        "it has no operators",
    );
    says(
        |graph| graph.vertices[0].slot_sharing_group.clear(),
        "its slot sharing group is empty",
    );
    says(
        |graph| graph.vertices[0].operators[1].name = "lines".into(),
        "another step has this name too",
    );
    says(
        |graph| graph.vertices[0].operators[0].spec = r#"{"type":"teleport"}"#.into(),
        "its specification is not known: unknown variant `teleport`",
    );
    says(
        |graph| graph.vertices[0].operators[0].output.clear(),
        "its output must be (line: string)",
    );
    says(
        |graph| graph.vertices[0].operators.swap(0, 1),
        "step `words`: it has no input",
    );
    says(
        |graph| {
            graph.vertices[0].operators[1].spec = r#"{"type":"split-words","column":"l"}"#.into()
        },
        "column `l` is not in its input",
    );
    says(
        |graph| {
            graph.vertices[0].operators[0].spec = r#"{"type":"datagen","seed":1,"keys":0}"#.into();
        },
        "`keys` is 0",
    );
    says(
        |graph| {
            let strategy = v1::RestartStrategy { strategy: None };
            graph.options = Some(v1::JobOptions {
                restart_strategy: Some(strategy),
                ..v1::JobOptions::default()
            });
        },
        "the restart strategy is of no known type",
    );
    says(
        |graph| {
            let settings = v1::CheckpointSettings {
                interval_ms: Some(9),
                ..v1::CheckpointSettings::default()
            };
            graph.options = Some(v1::JobOptions {
                checkpoints: Some(settings),
                ..v1::JobOptions::default()
            });
        },
        "checkpoints: `interval` is 9 ms: write at least 10 ms",
    );
    says(
        |graph| {
            for operator in &mut graph.vertices[0].operators {
                operator.uid = "same".to_owned();
            }
        },
        "step `words`: another step has its uid too",
    );
    says(
        |graph| graph.vertices[0].operators[1].uid = "lines".to_owned(),
        "step `words`: its uid is the name of another step",
    );
    says(
        |graph| graph.vertices[0].operators[1].uid = "a\nb".to_owned(),
        "step `words`: its uid has control characters",
    );
    says(
        |graph| {
            graph.options = Some(v1::JobOptions {
                isolation: 7,
                ..v1::JobOptions::default()
            });
        },
        "its isolation is not known",
    );
    says(
        |graph| {
            for vertex in &mut graph.vertices {
                (vertex.parallelism, vertex.max_parallelism) = (32_768, 32_768);
            }
        },
        "channels between subtasks",
    );
    says(
        |graph| graph.vertices[0].operators[0].name = "a\nb".into(),
        "step `a?b`: its name has control characters",
    );
}

#[test]
fn a_huge_or_deep_file_is_refused_and_not_worked_on_for_ever() {
    let refused = |text: String| {
        let error = compile(&JobFile::new("job.yaml", text), &options()).expect_err("refused");
        error.to_string()
    };
    refused("[".repeat(100_000));
    refused(
        "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\n".to_owned()
            + "c: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\n"
            + "e: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e]\n"
            + "g: [*f, *f, *f, *f, *f, *f, *f, *f]\n",
    );
    let unread = super::with_steps(&"  - datagen: {}\n".repeat(1_000));
    assert!(refused(unread).ends_with("\n  there are more problems: fix these first"));
    let many = super::with_steps(&"  - datagen: {}\n".repeat(1_001));
    assert!(refused(many).contains("it has 1001 steps: write at most 1000"));
    let steps = format!(
        "  - datagen:\n{}  - discard:\n",
        "  - filter: {column: seq, op: ge, value: 0}\n".repeat(998)
    );
    let named = (0..)
        .zip(steps.lines())
        .fold(String::new(), |text, (number, line)| {
            format!("{text}{line}\n    name: s{number}\n")
        });
    let graph = graph_of(&super::with_steps(&named), &options());
    assert_eq!(graph.vertices[0].operators.len(), 1_000);
}

#[test]
fn a_specification_with_unknown_fields_is_refused() {
    says(
        |graph| graph.vertices[1].operators[1].spec = r#"{"type":"discard","x":1}"#.into(),
        "its specification is not known: unknown field `x`",
    );
}

/// Generates texts that are often valid.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("word".to_owned()),
        Just("00000000000000000000000000000001".to_owned()),
        Just("00000000000000000000000000000002".to_owned()),
        Just(r#"{"type":"file-source","paths":["a"]}"#.to_owned()),
        Just(r#"{"type":"count","keys":["line"],"emit":"final"}"#.to_owned()),
        Just(r#"{"type":"discard"}"#.to_owned()),
        ".{0,20}",
    ]
}

fn operator() -> impl Strategy<Value = v1::Operator> {
    let column =
        (text(), -1..7_i32, any::<bool>()).prop_map(|(name, r#type, nullable)| v1::Column {
            name,
            r#type,
            nullable,
        });
    (text(), text(), prop::collection::vec(column, 0..3)).prop_map(|(name, spec, output)| {
        v1::Operator {
            name,
            spec,
            output,
            uid: String::new(),
        }
    })
}

fn vertex() -> impl Strategy<Value = v1::JobVertex> {
    let operators = prop::collection::vec(operator(), 0..4);
    (
        text(),
        text(),
        operators,
        any::<u32>(),
        any::<u32>(),
        text(),
    )
        .prop_map(
            |(id, name, operators, parallelism, max_parallelism, slot_sharing_group)| {
                v1::JobVertex {
                    id,
                    name,
                    operators,
                    parallelism,
                    max_parallelism,
                    slot_sharing_group,
                    ..v1::JobVertex::default()
                }
            },
        )
}

fn edge() -> impl Strategy<Value = v1::JobEdge> {
    (
        text(),
        text(),
        -1..8_i32,
        prop::collection::vec(text(), 0..3),
        -1..3_i32,
    )
        .prop_map(
            |(source, target, partitioning, key_columns, exchange)| v1::JobEdge {
                exchange,
                source,
                target,
                partitioning,
                key_columns,
            },
        )
}

fn job_graph() -> impl Strategy<Value = v1::JobGraph> {
    let vertices = prop::collection::vec(vertex(), 0..5);
    (
        text(),
        text(),
        vertices,
        prop::collection::vec(edge(), 0..6),
    )
        .prop_map(|(job_id, name, vertices, edges)| v1::JobGraph {
            job_id,
            name,
            vertices,
            edges,
            options: None,
            artifacts: Vec::new(),
            slot_sharing_groups: Vec::new(),
            run: String::new(),
        })
}

/// Calls every function that accepts any graph.
fn use_everything(graph: &v1::JobGraph) {
    let _ = validate_job_graph(graph);
    let _ = Plan(graph).to_string();
    let _ = (regions(graph), slots_needed(graph));
    for edge in &graph.edges {
        let _ = (
            feeding_subtasks(graph, edge, u32::MAX),
            fed_subtasks(graph, edge, u32::MAX),
        );
    }
}

/// Generates a step of a job file from words that are often valid.
fn step() -> impl Strategy<Value = String> {
    let word = || {
        prop::sample::select(vec![
            "a", "b", "c", "line", "key", "word", "", "[a, b]", "~", "${p}",
        ])
    };
    let operator = prop::sample::select(vec![
        "datagen",
        "file-source",
        "split-words",
        "filter",
        "map",
        "project",
        "key-by",
        "count",
        "sum",
        "print",
        "discard",
        "what",
    ]);
    let field = prop::sample::select(vec![
        "paths", "column", "columns", "rate", "emit", "op", "value", "where",
    ]);
    let of_step = prop::sample::select(vec![
        "input",
        "inputs",
        "parallelism",
        "partition",
        "chaining",
    ]);
    (word(), operator, field, word(), of_step, word()).prop_map(
        |(name, operator, field, value, of_step, other)| {
            format!("  - name: {name}\n    {operator}: {{{field}: \"{value}\"}}\n    {of_step}: \"{other}\"\n")
        },
    )
}

proptest! {
    #[test]
    fn no_graph_makes_the_check_panic(graph in job_graph()) {
        use_everything(&graph);
    }

    #[test]
    fn no_change_of_one_part_of_a_valid_graph_makes_the_check_panic(
        vertex in vertex(), operator in operator(), edge in edge(), which in 0..4,
    ) {
        let mut graph = wordcount();
        match which {
            0 => graph.vertices[0] = vertex,
            1 => graph.vertices[1].operators[0] = operator,
            2 => graph.vertices[0].operators.push(operator),
            _ => graph.edges[0] = edge,
        }
        use_everything(&graph);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,200}") {
        let _ = compile(&JobFile::new("job.yaml", text), &options());
    }

    #[test]
    fn no_change_of_a_job_file_makes_the_reader_panic(
        at in 0..STREAM.len(), length in 0..30_usize, put_in in "[a-z0-9:${}\\[\\]\n -]{0,8}",
    ) {
        let mut text = STREAM.to_owned();
        text.replace_range(at..(at + length).min(STREAM.len()), &put_in);
        if let Ok(graph) = compile(&JobFile::new("job.yaml", text), &options()) {
            prop_assert_eq!(validate_job_graph(&graph), Ok(()));
        }
    }

    #[test]
    fn whatever_steps_there_are_the_graph_is_valid_or_there_is_a_message(
        steps in prop::collection::vec(step(), 0..6),
    ) {
        let text = super::with_steps(&steps.concat());
        match compile(&JobFile::new("job.yaml", text), &CompileOptions { ..options() }) {
            Ok(graph) => prop_assert_eq!(validate_job_graph(&graph), Ok(())),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
