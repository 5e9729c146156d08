//! Reads the steps of a job file: the fields of each operator.

use serde_json::Value as Json;
use tanist_model::Comparison;
use tanist_model::problem::instead;
use tanist_model::spec::AggregateFunction;

use super::exec;
use super::expressions;
use super::node::{Node, Value};
use super::operators;
use super::reader::{Fields, Reader};
use super::resources;
use crate::{Partition, StreamNode, Transformation};

/// The operators of a step.
const OPERATORS: [&str; 29] = [
    "file-source",
    "datagen",
    "split-words",
    "filter",
    "map",
    "project",
    "key-by",
    "count",
    "sum",
    "print",
    "file-sink",
    "discard",
    "stdin-source",
    "socket-source",
    "parse-json",
    "parse-csv",
    "format-json",
    "format-csv",
    "flat-map-regex",
    "watermarks",
    "min",
    "max",
    "average",
    "aggregate",
    "socket-sink",
    "exec",
    "exec-source",
    "exec-sink",
    "custom",
];

/// The fields that a step can have besides its operator.
const STEP_FIELDS: [&str; 10] = [
    "name",
    "input",
    "inputs",
    "parallelism",
    "partition",
    "exchange",
    "chaining",
    "slot-sharing-group",
    "co-location-group",
    "resources",
];

/// Label of a step in messages: its name, else its operator, else its number.
pub(super) fn label(index: usize, node: &Node) -> String {
    let Value::Map(fields) = &node.value else {
        return format!("#{}", index + 1);
    };
    let name = fields.iter().find_map(|(key, node)| match &node.value {
        Value::Scalar { text, .. } if key.text == "name" => Some(text.clone()),
        _ => None,
    });
    name.or_else(|| {
        let operator = fields
            .iter()
            .find(|(key, _)| OPERATORS.contains(&key.text.as_str()));
        operator.map(|(key, _)| key.text.clone())
    })
    .unwrap_or_else(|| format!("#{}", index + 1))
}

/// Reads one step whose parameters have been substituted.
pub(super) fn read(index: usize, node: &Node, reader: &mut Reader) -> StreamNode {
    let mut step = StreamNode::new(label(index, node), None);
    step.position = Some(node.position);
    let Value::Map(all) = &node.value else {
        if node.value != Value::Unreadable {
            reader.problem(
                Some(node.position),
                format!(
                    "a step is a map with an operator, not {}: write for example `- split-words: {{ column: line }}`",
                    node.describe()
                ),
            );
        }
        return step;
    };
    let mut fields = Fields::of(node, reader);
    if let Some(name) = fields.optional("name", reader, Reader::text) {
        step.name = name;
    }
    step.inputs = inputs(&mut fields, reader);
    step.parallelism = fields.optional_value("parallelism", reader, Reader::u32);
    step.partition = fields.optional_value("partition", reader, |reader, field, node| {
        if matches!(&node.value, Value::Scalar { text, .. } if text == "hash") {
            let message = "`partition: hash` needs to know by what: put a `key-by: { columns: [...] }` step before it";
            reader.problem(Some(node.position), message);
            return None;
        }
        reader.one_of(field, node, &Partition::ALL.map(|partition| (partition.name(), partition)))
    });
    step.exchange = fields.optional_value("exchange", reader, |reader, field, node| {
        reader.one_of(field, node, &super::exchanges())
    });
    step.chaining = fields
        .optional_value("chaining", reader, Reader::bool)
        .unwrap_or(true);
    step.slot_sharing_group = fields.optional("slot-sharing-group", reader, Reader::text);
    step.co_location_group = fields.optional("co-location-group", reader, Reader::text);
    step.resources = fields.optional("resources", reader, resources::read);

    let others: Vec<_> = all
        .iter()
        .filter(|(key, _)| !STEP_FIELDS.contains(&key.text.as_str()))
        .collect();
    let mut operators = others
        .iter()
        .filter(|(key, _)| OPERATORS.contains(&key.text.as_str()));
    match (operators.next(), operators.next()) {
        (Some((key, node)), None) => {
            step.transformation = transformation(&key.text, node, reader);
            for (key, _) in others.iter().filter(|(other, _)| other.text != key.text) {
                let instead = instead(&key.text, STEP_FIELDS);
                let message = format!("a step has no field `{}`; {instead}", key.text);
                reader.problem(Some(key.position), message);
            }
        }
        (Some((first, _)), Some((second, _))) => reader.problem(
            Some(second.position),
            format!(
                "it has two operators, `{}` and `{}`: make two steps of it",
                first.text, second.text
            ),
        ),
        (None, _) => match others.as_slice() {
            [] => reader.problem(
                Some(node.position),
                format!("it has no operator: write one of {}", OPERATORS.join(", ")),
            ),
            unknown => {
                for (key, _) in unknown {
                    let known = OPERATORS.into_iter().chain(STEP_FIELDS);
                    let instead = match tanist_model::problem::nearest(&key.text, known) {
                        Some(meant) => format!("did you mean `{meant}`?"),
                        None => format!("there is: {}", OPERATORS.join(", ")),
                    };
                    let message = format!("there is no operator `{}`; {instead}", key.text);
                    reader.problem(Some(key.position), message);
                }
            }
        },
    }
    step
}

fn inputs(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Vec<String>> {
    let one = fields.node("input");
    let many = fields.node("inputs");
    if let (Some(_), Some(many)) = (one, many) {
        reader.problem(
            Some(many.position),
            "it has both `input` and `inputs`: write one of them",
        );
    }
    let from_one = one
        .and_then(|node| reader.text("input", node))
        .map(|name| vec![name]);
    from_one.or_else(|| many.and_then(|node| reader.texts("inputs", node)))
}

/// Reads an operator; `None` if a required field is missing or can't be read, which is reported.
fn transformation(kind: &str, node: &Node, reader: &mut Reader) -> Option<Transformation> {
    let mut fields = Fields::of(node, reader);
    let f = &mut fields;
    let read = match kind {
        "file-source" => operators::file_source(f, reader),
        "datagen" => {
            let rate = f.optional_value("rate", reader, Reader::u64);
            let count = f.optional_value("count", reader, Reader::u64);
            let seed = f.optional_value("seed", reader, Reader::u64).unwrap_or(0);
            let keys = f.optional_value("keys", reader, Reader::u64).unwrap_or(100);
            Some(Transformation::Datagen {
                rate,
                count,
                seed,
                keys,
            })
        }
        "split-words" => f
            .required("column", "line", reader, Reader::text)
            .map(|column| Transformation::SplitWords { column }),
        "filter" => match f.optional("where", reader, Reader::text) {
            Some(condition) => Some(Transformation::Where { condition }),
            None => comparison(f, reader),
        },
        "map" => f
            .required(
                "columns",
                "{ total: price * amount }",
                reader,
                expressions::map,
            )
            .map(|columns| Transformation::Map { columns }),
        "project" => f
            .required("columns", "[word, count]", reader, expressions::list)
            .map(|columns| Transformation::Project { columns }),
        "key-by" => f
            .required("columns", "[word]", reader, Reader::texts)
            .map(|columns| Transformation::KeyBy { columns }),
        "aggregate" => return operators::aggregate(node, reader),
        "print" => {
            let prefix = f
                .optional("prefix", reader, Reader::text)
                .unwrap_or_default();
            Some(Transformation::Print { prefix })
        }
        "file-sink" => f
            .required("path", "out", reader, Reader::text)
            .map(|path| Transformation::FileSink { path }),
        "discard" => Some(Transformation::Discard),
        "custom" => super::custom::read(f, reader).map(Transformation::Custom),
        "exec" => exec::read(exec::Role::Between, f, reader).map(Transformation::Exec),
        "exec-source" => exec::read(exec::Role::Source, f, reader).map(Transformation::ExecSource),
        "exec-sink" => exec::read(exec::Role::Sink, f, reader).map(Transformation::ExecSink),
        _ => {
            let function = AggregateFunction::ALL
                .into_iter()
                .find(|(name, _)| *name == kind);
            match function {
                Some((_, function)) => operators::single_aggregate(function, f, reader),
                None => operators::operator(kind, f, reader).map(Transformation::Operator),
            }
        }
    };
    fields.finish(kind, reader);
    read
}

/// A filter without SQL.
fn comparison(f: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let column = f.required("column", "word", reader, Reader::text);
    let comparisons = Comparison::ALL.map(|comparison| (comparison.name(), comparison));
    let op = f.required("op", "eq", reader, |reader, field, node| {
        reader.one_of(field, node, &comparisons)
    });
    let value = f.required("value", "\"the\"", reader, Reader::text);
    Some(Transformation::Filter {
        column: column?,
        op: op?,
        value: Json::String(value?),
    })
}
