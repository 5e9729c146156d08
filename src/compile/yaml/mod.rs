//! Reads a job file (YAML, `version: 1`) into a [`StreamGraph`]. `docs/reference/job-file.md` documents its fields,
//! `docs/reference/steps.md` those of the operators, which their declarations read.
//!
//! Reading reports all problems of the file itself; the same validator as for jobs built in Rust checks whether
//! the steps fit together.

mod artifacts;
mod checkpoints;
mod parameters;
mod parse;
mod resources;
mod steps;

use std::collections::BTreeMap;

use tanist_ha::clock;
use tanist_model::job_file::{Fields, Key, Node, Reader, Value};
use tanist_model::problem::Problem;
use tanist_model::restart;
use tanist_proto::v1;

use parameters::Parameters;

use crate::{Exchange, StreamGraph};
use crate::{JobFile, JobFileError};

/// Returns the job and the problems of its file.
pub(super) fn read(
    file: &JobFile,
    given: &BTreeMap<String, String>,
) -> Result<(StreamGraph, Vec<Problem>), JobFileError> {
    let mut root = parse::parse(file)?;
    let mut reader = Reader::default();
    if !matches!(root.value, Value::Map(_)) {
        let message = format!(
            "a job file is a map of fields, but this is {}: begin with `version: 1`",
            root.describe()
        );
        reader.problem(Some(root.position), message);
        return Ok((StreamGraph::new("job"), reader.finish()));
    }
    substitute_parameters(&mut root, given, &mut reader);
    let graph = job(&root, &mut reader);
    Ok((graph, reader.finish()))
}

fn substitute_parameters(root: &mut Node, given: &BTreeMap<String, String>, reader: &mut Reader) {
    let Value::Map(fields) = &mut root.value else {
        return;
    };
    let section = fields
        .iter()
        .find(|(key, _)| key.text == "parameters")
        .map(|(_, node)| node);
    let mut parameters = Parameters::declare(given, section, reader);
    for (Key { text: key, .. }, node) in fields.iter_mut() {
        // The steps are named, so that a problem of a parameter is reported for its step.
        match (key.as_str(), &mut node.value) {
            ("version" | "parameters", _) => {}
            ("steps", Value::List(steps)) => {
                for (index, step) in steps.iter_mut().enumerate() {
                    reader.begin_step(Some(steps::label(index, step)));
                    parameters.substitute(step, reader);
                }
                reader.begin_step(None);
            }
            _ => parameters.substitute(node, reader),
        }
    }
    parameters.finish(reader);
}

fn job(root: &Node, reader: &mut Reader) -> StreamGraph {
    let mut fields = Fields::of(root, reader);
    let version = fields.required("version", "1", reader, Reader::text);
    if let Some(version) = version.filter(|version| version.trim() != "1") {
        reader.problem(
            fields.node("version").map(|node| node.position),
            format!("`version` is `{version}`, which is not known here: write `version: 1`"),
        );
    }
    // A missing or unreadable name has been reported; this one replaces it.
    let name = fields.required("name", "my-job", reader, Reader::text);
    let mut graph = StreamGraph::new(name.unwrap_or_else(|| "job".into()));
    let _ = fields.optional("description", reader, Reader::text);
    let _ = fields.node("parameters");
    graph.parallelism = fields.optional_value("parallelism", reader, Reader::u32);
    graph.max_parallelism = fields.optional_value("max-parallelism", reader, Reader::u32);
    graph.chaining = fields.optional_value("chaining", reader, Reader::bool);
    graph.exchange = fields.optional_value("exchange", reader, |reader, field, node| {
        reader.one_of(field, node, &exchanges())
    });
    graph.restart_strategy = fields
        .node("restart-strategy")
        .and_then(|node| restart_strategy(node, reader));
    if let Some(node) = fields.node("checkpoints") {
        graph.checkpoints = Some(checkpoints::read(node, reader));
        graph.checkpoint_positions = checkpoints::positions(node);
    }
    let isolation = fields.optional_value("isolation", reader, |reader, field, node| {
        reader.one_of(field, node, &ISOLATIONS)
    });
    graph.isolation = isolation.unwrap_or(v1::Isolation::None);
    if let Some(node) = fields.node("slot-sharing-groups") {
        graph.slot_sharing_groups = resources::groups(node, reader);
    }
    if let Some(node) = fields.node("artifacts") {
        graph.artifacts = artifacts::read(node, reader);
    }
    match fields.node("steps") {
        Some(Node {
            value: Value::List(steps),
            ..
        }) => {
            for (index, node) in steps.iter().enumerate() {
                reader.begin_step(Some(steps::label(index, node)));
                graph.nodes.push(steps::read(index, node, reader));
            }
            reader.begin_step(None);
        }
        Some(other) => {
            let message = format!(
                "`steps` is {}: write a list, each step beginning with `- `",
                other.describe()
            );
            reader.problem(Some(other.position), message);
        }
        None => {
            let message = "it has no steps: write at least a source and a sink under `steps`";
            reader.problem(Some(root.position), message);
        }
    }
    fields.finish("a job", reader);
    graph
}

const ISOLATIONS: [(&str, v1::Isolation); 2] = [
    ("none", v1::Isolation::None),
    ("stop-first", v1::Isolation::StopFirst),
];

fn exchanges() -> [(&'static str, Exchange); 2] {
    Exchange::ALL.map(|exchange| (exchange.name(), exchange))
}

/// The sub-keys are those of Flink's configuration, without their prefix.
fn restart_strategy(node: &Node, reader: &mut Reader) -> Option<v1::RestartStrategy> {
    const TYPES: [(&str, &str); 6] = [
        ("exponential-delay", "exponential-delay"),
        ("fixed-delay", "fixed-delay"),
        ("failure-rate", "failure-rate"),
        ("none", "none"),
        ("off", "none"),
        ("disable", "none"),
    ];
    let field = "restart-strategy";
    if let Value::Scalar { .. } = &node.value {
        // Only the type, with its defaults.
        let kind = reader.one_of(field, node, &TYPES)?;
        let nothing = Node {
            position: node.position,
            value: Value::Null,
        };
        return strategy(kind, &mut Fields::of(&nothing, reader), reader);
    }
    let mut fields = Fields::of(node, reader);
    let Some(kind) = fields.node("type") else {
        reader.problem(
            Some(node.position),
            "`restart-strategy` has no `type`: write for example `type: exponential-delay`",
        );
        return None;
    };
    let kind = reader.one_of("restart-strategy.type", kind, &TYPES)?;
    let strategy = strategy(kind, &mut fields, reader);
    fields.finish(&format!("restart-strategy `{kind}`"), reader);
    strategy
}

fn strategy(
    kind: &str,
    fields: &mut Fields<'_>,
    reader: &mut Reader,
) -> Option<v1::RestartStrategy> {
    let second = std::time::Duration::from_secs(1);
    Some(match kind {
        "none" => restart::none(),
        "fixed-delay" => restart::fixed_delay(
            fields
                .optional_value("attempts", reader, Reader::u32)
                .unwrap_or(1),
            fields
                .optional_value("delay", reader, Reader::duration)
                .unwrap_or(second),
        ),
        "failure-rate" => restart::failure_rate(
            fields
                .optional_value("max-failures-per-interval", reader, Reader::u32)
                .unwrap_or(1),
            fields
                .optional_value("failure-rate-interval", reader, Reader::duration)
                .unwrap_or(second * 60),
            fields
                .optional_value("delay", reader, Reader::duration)
                .unwrap_or(second),
        ),
        "exponential-delay" => {
            let mut delay = restart::default_exponential_delay();
            let mut millis = |name, default: &mut u64| {
                if let Some(time) = fields.optional_value(name, reader, Reader::duration) {
                    *default = clock::millis(time);
                }
            };
            millis("initial-backoff", &mut delay.initial_backoff_ms);
            millis("max-backoff", &mut delay.max_backoff_ms);
            millis(
                "reset-backoff-threshold",
                &mut delay.reset_backoff_threshold_ms,
            );
            if let Some(by) = fields.optional_value("backoff-multiplier", reader, Reader::f64) {
                delay.backoff_multiplier = by;
            }
            if let Some(jitter) = fields.optional_value("jitter-factor", reader, Reader::f64) {
                delay.jitter_factor = jitter;
            }
            let attempts = "attempts-before-reset-backoff";
            let attempts =
                fields.optional_value(attempts, reader, |reader, field, node| match &node.value {
                    Value::Scalar { text, .. } if text.trim() == "infinite" => Some(0),
                    _ => reader.u32(field, node),
                });
            delay.attempts_before_reset_backoff = attempts.unwrap_or(0);
            restart::exponential_delay(delay)
        }
        _ => return None,
    })
}
