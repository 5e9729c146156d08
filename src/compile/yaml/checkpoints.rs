//! Reads the section `checkpoints` of a job file.

use std::time::Duration;

use tanist_ha::clock;
use tanist_model::job_file::{Fields, Node, Reader, Value};
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
    fields.finish("checkpoints", reader);
    settings
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
