//! Reads the section `checkpoints` of a job file.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_ha::clock;
use tanist_model::job_file::{Fields, Node, Reader, Value};
use tanist_model::problem::Position;
use tanist_proto::v1;

pub(super) fn read(node: &Node, reader: &mut Reader) -> v1::CheckpointSettings {
    let mut fields = Fields::of(node, reader);
    let mut time = |name, reader: &mut Reader| {
        let time = fields.optional_value(name, reader, |reader, field, node| {
            duration(&format!("checkpoints.{field}"), node, reader)
        });
        time.map(clock::millis)
    };
    let interval_ms = time("interval", reader);
    let min_pause_ms = time("min-pause", reader);
    let timeout_ms = time("timeout", reader);
    let settings = v1::CheckpointSettings {
        interval_ms,
        min_pause_ms,
        timeout_ms,
        tolerable_failures: fields.optional_value("tolerable-failed", reader, tolerable),
        retained: fields.optional_value("retained", reader, |reader, field, node| {
            reader.u32(&format!("checkpoints.{field}"), node)
        }),
        retention: fields
            .optional_value("retention", reader, retention)
            .map(Into::into),
    };
    let _ = fields.optional_value("mode", reader, mode);
    for (name, instead) in OF_FLINK {
        if has(node, name) {
            let _: Option<()> = fields.optional_value(name, reader, |reader, field, node| {
                let message = format!("`checkpoints.{field}`: {instead}");
                reader.problem(Some(node.position), message);
                None
            });
        }
    }
    if has(node, MAX_CONCURRENT) {
        let _ = fields.optional_value(MAX_CONCURRENT, reader, one_at_a_time);
    }
    fields.finish("checkpoints", reader);
    settings
}

/// Where the values of the section's fields are.
pub(super) fn positions(node: &Node) -> BTreeMap<String, Position> {
    match &node.value {
        Value::Map(fields) => {
            let fields = fields.iter();
            let position = fields.map(|(key, value)| (key.text.clone(), value.position));
            position.collect()
        }
        Value::Scalar { .. } | Value::Null | Value::List(_) | Value::Unreadable => BTreeMap::new(),
    }
}

/// Flink's names of settings that are called otherwise here, or that there are not, with what to do.
const OF_FLINK: [(&str, &str); 7] = [
    ("tolerable-failed-checkpoints", "write `tolerable-failed`"),
    ("num-retained", "write `retained`"),
    ("externalized-checkpoint-retention", "write `retention`"),
    ("unaligned", "barriers are always aligned: leave it out"),
    (
        "unaligned.enabled",
        "barriers are always aligned: leave it out",
    ),
    (
        "dir",
        "the cluster's configuration says where checkpoints are, with `execution.checkpointing.dir`: leave it out",
    ),
    (
        "savepoint-dir",
        "name the directory with the request, or set `execution.checkpointing.savepoint-dir` in the configuration of the \
         JobManagers",
    ),
];

const MAX_CONCURRENT: &str = "max-concurrent-checkpoints";

fn has(node: &Node, name: &str) -> bool {
    match &node.value {
        Value::Map(fields) => fields.iter().any(|(key, _)| key.text == name),
        Value::Scalar { .. } | Value::Null | Value::List(_) | Value::Unreadable => false,
    }
}

/// There is one at a time; another number is reported.
fn one_at_a_time(reader: &mut Reader, field: &str, node: &Node) -> Option<()> {
    if reader.u32(&format!("checkpoints.{field}"), node)? == 1 {
        return Some(());
    }
    let message = format!(
        "`checkpoints.{field}` is {}, which is not supported: a region has one checkpoint in progress at most; write 1 or \
         leave it out",
        node.describe()
    );
    reader.problem(Some(node.position), message);
    None
}

/// A duration, or a 0, which needs no unit.
fn duration(field: &str, node: &Node, reader: &mut Reader) -> Option<Duration> {
    match &node.value {
        Value::Scalar { text, .. } if text.trim() == "0" => Some(Duration::ZERO),
        _ => reader.duration(field, node),
    }
}

fn tolerable(reader: &mut Reader, field: &str, node: &Node) -> Option<i64> {
    match &node.value {
        Value::Scalar { text, .. } if text.trim() == "-1" => Some(-1),
        Value::Scalar { text, .. } if text.trim().starts_with('-') => {
            let wanted = "a whole number from 0, or -1, which tolerates any number";
            reader.wrong(&format!("checkpoints.{field}"), node, wanted);
            None
        }
        _ => reader
            .u32(&format!("checkpoints.{field}"), node)
            .map(i64::from),
    }
}

/// There is one mode; another one is reported.
fn mode(reader: &mut Reader, _field: &str, node: &Node) -> Option<()> {
    let text = reader.text("checkpoints.mode", node)?;
    match text.trim().to_ascii_uppercase().replace('-', "_").as_str() {
        "EXACTLY_ONCE" => Some(()),
        "AT_LEAST_ONCE" => {
            reader.problem(
                Some(node.position),
                "`checkpoints.mode` is `AT_LEAST_ONCE`, which is not supported: barriers are always aligned, so that no \
                 record counts twice; write `EXACTLY_ONCE` or leave it out",
            );
            None
        }
        _ => {
            let message = format!(
                "`checkpoints.mode` can't be {}: write `EXACTLY_ONCE` or leave it out",
                node.describe()
            );
            reader.problem(Some(node.position), message);
            None
        }
    }
}

fn retention(reader: &mut Reader, _field: &str, node: &Node) -> Option<v1::CheckpointRetention> {
    let text = reader.text("checkpoints.retention", node)?;
    match text.trim().to_ascii_uppercase().replace('-', "_").as_str() {
        "DELETE_ON_CANCELLATION" => Some(v1::CheckpointRetention::DeleteOnCancellation),
        "RETAIN_ON_CANCELLATION" => Some(v1::CheckpointRetention::RetainOnCancellation),
        "NO_EXTERNALIZED_CHECKPOINTS" => {
            reader.problem(
                Some(node.position),
                "`checkpoints.retention` is `NO_EXTERNALIZED_CHECKPOINTS`, which is not supported: the newest checkpoint of a \
                 job that FAILED is always kept; write `DELETE_ON_CANCELLATION` to have that of a cancelled job removed",
            );
            None
        }
        _ => {
            let wanted = "`DELETE_ON_CANCELLATION` or `RETAIN_ON_CANCELLATION`";
            reader.wrong("checkpoints.retention", node, wanted);
            None
        }
    }
}
