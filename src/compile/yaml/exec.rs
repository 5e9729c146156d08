//! Reads the fields of `exec`, `exec-source` and `exec-sink`.

use std::collections::BTreeMap;

use tanist_ha::clock::millis;
use tanist_model::{ColumnType, ExecColumn, ExecFormat, ExecLimits, ExecSpec};
use tanist_proto::resources::CpuCores;

use super::node::{Node, Value};
use super::reader::{Fields, Reader};

const COLUMN_TYPES: [(&str, ColumnType); 4] = [
    ("string", ColumnType::String),
    ("int64", ColumnType::Int64),
    ("float64", ColumnType::Float64),
    ("bool", ColumnType::Bool),
];

/// The program's role in the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It has input and output.
    Between,
    /// It has no input.
    Source,
    /// It has no output.
    Sink,
}

/// Reads a program; `None` if it can't be read, which is reported.
pub(super) fn read(role: Role, f: &mut Fields<'_>, reader: &mut Reader) -> Option<Box<ExecSpec>> {
    let command = f.required("command", "[tr, a-z, A-Z]", reader, Reader::texts);
    let mut spec = ExecSpec::new(command.clone().unwrap_or_default());
    let formats = ExecFormat::ALL.map(|format| (format.name(), format));
    let format = |f: &mut Fields<'_>, name, reader: &mut Reader| {
        f.optional_value(name, reader, |reader, field, node| {
            reader.one_of(field, node, &formats)
        })
    };
    let both = format(f, "format", reader).unwrap_or_default();
    (spec.input, spec.output) = (both, both);
    if role == Role::Between {
        spec.input = format(f, "input-format", reader).unwrap_or(both);
        spec.output = format(f, "output-format", reader).unwrap_or(both);
    }
    if role == Role::Sink {
        spec.columns.clear();
    } else {
        let columns = f.optional("columns", reader, columns);
        match columns {
            Some(columns) => spec.columns = columns,
            None if spec.output.is_json() => spec.columns.clear(),
            None => {}
        }
    }
    if role == Role::Source {
        let bounded = f.optional_value("bounded", reader, Reader::bool);
        spec.unbounded = bounded == Some(false);
    }
    spec.env = f.optional("env", reader, texts_by_name).unwrap_or_default();
    if let Some(grace) = f.optional_value("grace", reader, Reader::duration) {
        spec.grace_ms = millis(grace);
    }
    if let Some(node) = f.node("limits") {
        spec.limits = limits(node, reader);
    }
    command.map(|_| Box::new(spec))
}

fn columns(reader: &mut Reader, field: &str, node: &Node) -> Option<Vec<ExecColumn>> {
    let fields = map(reader, field, node, "{ word: string, count: int64 }")?;
    let columns = fields.iter().map(|(key, node)| {
        Some(ExecColumn {
            name: key.text.clone(),
            column_type: reader.one_of(&key.text, node, &COLUMN_TYPES)?,
        })
    });
    columns.collect::<Vec<_>>().into_iter().collect()
}

fn texts_by_name(
    reader: &mut Reader,
    field: &str,
    node: &Node,
) -> Option<BTreeMap<String, String>> {
    let fields = map(reader, field, node, "{ NAME: value }")?;
    let texts = fields
        .iter()
        .map(|(key, node)| Some((key.text.clone(), reader.text(&key.text, node)?)));
    texts.collect::<Vec<_>>().into_iter().collect()
}

fn map<'n>(
    reader: &mut Reader,
    field: &str,
    node: &'n Node,
    example: &str,
) -> Option<&'n [(super::node::Key, Node)]> {
    match &node.value {
        Value::Map(fields) => Some(fields),
        Value::Unreadable => None,
        Value::Null | Value::List(_) | Value::Scalar { .. } => {
            let message = format!("`{field}` is {}: write `{example}`", node.describe());
            reader.problem(Some(node.position), message);
            None
        }
    }
}

fn limits(node: &Node, reader: &mut Reader) -> ExecLimits {
    let mut fields = Fields::of(node, reader);
    let limits = ExecLimits {
        memory: fields.optional_value("memory", reader, bytes),
        cpu_time: fields
            .optional_value("cpu-time", reader, Reader::duration)
            .map(|time| {
                time.as_millis()
                    .div_ceil(1000)
                    .try_into()
                    .unwrap_or(u64::MAX)
            }),
        open_files: fields.optional_value("open-files", reader, Reader::u64),
        cpu_millis: fields.optional_value("cpu", reader, cpu_millis),
        processes: fields.optional_value("processes", reader, Reader::u64),
    };
    fields.finish("limits", reader);
    limits
}

/// Reads a number of cores, in thousandths.
fn cpu_millis(reader: &mut Reader, field: &str, node: &Node) -> Option<u64> {
    let text = reader.text(field, node)?;
    match text.trim().parse::<CpuCores>() {
        Ok(cores) => Some(cores.millionths().div_ceil(1000)),
        Err(_) => {
            let message = format!(
                "`{field}` is {}: write a number of cores, such as `2` or `0.5`",
                node.describe()
            );
            reader.problem(Some(node.position), message);
            None
        }
    }
}

/// Reads a size with its unit.
pub(super) fn bytes(reader: &mut Reader, field: &str, node: &Node) -> Option<u64> {
    let text = reader.text(field, node)?;
    let size = parse_bytes(&text);
    if size.is_none() {
        let message = format!(
            "`{field}` is {}: write a number and a unit, such as `512 mb` or `2 gb`",
            node.describe()
        );
        reader.problem(Some(node.position), message);
    }
    size
}

fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        "t" | "tb" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("512 mb"), Some(512 << 20));
        assert_eq!(parse_bytes("2GB"), Some(2 << 30));
        assert_eq!(parse_bytes("7 b"), Some(7));
        assert_eq!(parse_bytes("7"), None);
        assert_eq!(parse_bytes("18446744073709551615 kb"), None);
    }
}
