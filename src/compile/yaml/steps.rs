//! Reads the steps of a job file. The fields of its operator are read by the operator's declaration.

use tanist_model::Transformation;
use tanist_model::job_file::{Fields, Node, Reader, Value};
use tanist_model::operators;
use tanist_model::problem::{instead, nearest};

use super::resources;
use crate::{Partition, StreamNode};

/// The fields that a step can have besides its operator.
const STEP_FIELDS: [&str; 12] = [
    "name",
    "uid",
    "checkpoint",
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
            .find(|(key, _)| operators::step(&key.text).is_some());
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
    step.uid = fields.optional("uid", reader, Reader::text);
    step.checkpoint = fields.optional_value("checkpoint", reader, Reader::bool);
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
        .filter(|(key, _)| operators::step(&key.text).is_some());
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
                format!("it has no operator: write one of {}", list()),
            ),
            unknown => {
                for (key, _) in unknown {
                    let known = names().chain(STEP_FIELDS);
                    let instead = match nearest(&key.text, known) {
                        Some(meant) => format!("did you mean `{meant}`?"),
                        None => format!("there is: {}", list()),
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
    let step = operators::step(kind)?;
    let mut fields = Fields::of(node, reader);
    let read = (step.read)(&mut fields, reader);
    fields.finish(step.name, reader);
    read
}

/// The names of all operators.
fn names() -> impl Iterator<Item = &'static str> + Clone {
    operators::steps().map(|step| step.name)
}

/// The names of all operators, for a message.
fn list() -> String {
    names().collect::<Vec<_>>().join(", ")
}
