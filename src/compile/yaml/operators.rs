//! Reads the fields of operators that declare columns, aggregations or windows, and of connectors.

use tanist_ha::clock::millis;
use tanist_model::problem::instead;
use tanist_model::spec::{
    AggregateFunction, Aggregation, DeclaredColumn, FlatMapRegex, FollowFiles, FormatCsv, OnError,
    ParseCsv, ParseJson, Reading, SocketSink, SocketSource, Watermarks,
};
use tanist_model::{ColumnType, Emit, OperatorSpec};

use super::node::{Key, Node, Value};
use super::reader::{Fields, Reader};
use crate::{Transformation, Windows};

const EMIT: [(&str, Emit); 2] = [("final", Emit::Final), ("updates", Emit::Updates)];

/// Reads `emit`.
pub(super) fn emit(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Emit> {
    fields.optional_value("emit", reader, |reader, field, node| {
        reader.one_of(field, node, &EMIT)
    })
}

/// Reads an operator whose specification is complete; `None` if it is another kind or a field can't be read.
pub(super) fn operator(
    kind: &str,
    fields: &mut Fields<'_>,
    reader: &mut Reader,
) -> Option<OperatorSpec> {
    let f = fields;
    Some(match kind {
        "stdin-source" => OperatorSpec::StdinSource {},
        "socket-source" => {
            let address = f.required("address", "localhost:9000", reader, Reader::text);
            let reconnect = f.optional_value("reconnect", reader, Reader::bool);
            OperatorSpec::SocketSource(SocketSource {
                address: address?,
                reconnect: reconnect.unwrap_or(true),
            })
        }
        "socket-sink" => OperatorSpec::SocketSink(SocketSink {
            address: f.required("address", "localhost:9000", reader, Reader::text)?,
        }),
        "parse-json" => {
            let column = f.required("column", "line", reader, Reader::text);
            let columns = f.required("columns", "{ user: string }", reader, columns);
            let reading = reading(f, reader, columns);
            OperatorSpec::ParseJson(ParseJson {
                column: column?,
                reading: reading?,
            })
        }
        "parse-csv" => {
            let column = f.required("column", "line", reader, Reader::text);
            let columns = f.required("columns", "{ user: string }", reader, columns);
            let reading = reading(f, reader, columns);
            let separator = separator(f, reader);
            let header = f.optional_value("header", reader, Reader::bool);
            OperatorSpec::ParseCsv(ParseCsv {
                column: column?,
                reading: reading?,
                separator: separator?,
                header: header.unwrap_or(false),
            })
        }
        "format-json" => OperatorSpec::FormatJson {},
        "format-csv" => OperatorSpec::FormatCsv(FormatCsv {
            separator: separator(f, reader)?,
        }),
        "flat-map-regex" => {
            let column = f.required("column", "line", reader, Reader::text);
            let pattern = f.required("pattern", "'(?<word>\\w+)'", reader, Reader::text);
            let columns = f.optional("columns", reader, columns);
            let reading = reading(f, reader, Some(columns.unwrap_or_default()));
            OperatorSpec::FlatMapRegex(FlatMapRegex {
                column: column?,
                pattern: pattern?,
                reading: reading?,
            })
        }
        "watermarks" => {
            let column = f.required("column", "time", reader, Reader::text);
            let late = f.optional_value("out-of-orderness", reader, Reader::duration);
            let idle = f.optional_value("idle-timeout", reader, Reader::duration);
            OperatorSpec::Watermarks(Watermarks {
                column: column?,
                out_of_orderness_ms: late.map_or(0, millis),
                idle_timeout_ms: idle.map(millis),
            })
        }
        _ => return None,
    })
}

/// Reads a file-source; with `follow` it is another operator.
pub(super) fn file_source(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let paths = fields.required("paths", "[\"books/*.txt\"]", reader, Reader::texts);
    let follow = fields.optional_value("follow", reader, Reader::bool);
    let interval = fields.optional_value("discovery-interval", reader, |reader, field, node| {
        if follow != Some(true) {
            let message = "`discovery-interval` has no effect without `follow: true`: remove it";
            reader.problem(Some(node.position), message);
        }
        reader.duration(field, node)
    });
    let paths = paths?;
    if follow != Some(true) {
        return Some(Transformation::FileSource { paths });
    }
    let follow = FollowFiles {
        paths,
        discovery_interval_ms: interval.map_or(FollowFiles::DISCOVERY_INTERVAL_MS, millis),
    };
    Some(Transformation::Operator(OperatorSpec::FollowFiles(follow)))
}

/// Reads the further fields of an aggregation of one function. A plain `count` or `sum` is read elsewhere.
pub(super) fn single_aggregate(
    function: AggregateFunction,
    fields: &mut Fields<'_>,
    reader: &mut Reader,
) -> Option<Transformation> {
    let counts = function == AggregateFunction::Count;
    let column = match counts {
        true => None,
        false => Some(fields.required("column", "value", reader, Reader::text)),
    };
    let emit = emit(fields, reader);
    let windows = windows(fields, reader, emit)?;
    let simple = windows.is_none();
    let column = match column {
        None => None,
        Some(read) => Some(read?),
    };
    Some(match (function, column) {
        (AggregateFunction::Count, _) if simple => Transformation::Count { emit },
        (AggregateFunction::Sum, Some(column)) if simple => Transformation::Sum { column, emit },
        (_, column) => Transformation::Aggregate {
            aggregations: vec![Aggregation {
                name: function.name().to_owned(),
                function,
                column,
            }],
            emit,
            windows,
        },
    })
}

/// Reads an `aggregate`: all its fields except `window` and `emit` are result columns.
pub(super) fn aggregate(node: &Node, reader: &mut Reader) -> Option<Transformation> {
    let mut fields = Fields::of(node, reader);
    let emit = emit(&mut fields, reader);
    let windows = windows(&mut fields, reader, emit);
    let mut aggregations = Vec::new();
    let mut complete = true;
    let results = match &node.value {
        Value::Map(results) => results.as_slice(),
        Value::Null | Value::Scalar { .. } | Value::List(_) | Value::Unreadable => &[],
    };
    for (key, node) in results {
        if !["emit", "window"].contains(&key.text.as_str()) {
            match aggregation(key, node, reader) {
                Some(aggregation) => aggregations.push(aggregation),
                None => complete = false,
            }
        }
    }
    let windows = windows?;
    complete.then_some(Transformation::Aggregate {
        aggregations,
        emit,
        windows,
    })
}

/// `count: {}`, `n: count`, `n: {count: {}}` or `total: {sum: amount}`.
fn aggregation(key: &Key, node: &Node, reader: &mut Reader) -> Option<Aggregation> {
    let name = key.text.clone();
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Map(fields) => fields.is_empty(),
        Value::Scalar { .. } | Value::List(_) | Value::Unreadable => false,
    };
    match &node.value {
        Value::Unreadable => return None,
        Value::Scalar { text, .. } if text == "count" => return Some(Aggregation::count(name)),
        value if is_empty(value) && name == "count" => return Some(Aggregation::count(name)),
        Value::Map(fields) => {
            if let [(function, argument)] = fields.as_slice() {
                let functions = AggregateFunction::ALL.map(|(name, _)| name);
                let found = AggregateFunction::ALL
                    .into_iter()
                    .find(|(name, _)| *name == function.text);
                return match found {
                    None => {
                        let instead = instead(&function.text, functions);
                        let message =
                            format!("there is no function `{}`; {instead}", function.text);
                        reader.problem(Some(function.position), message);
                        None
                    }
                    Some((_, AggregateFunction::Count)) => {
                        if is_empty(&argument.value) {
                            return Some(Aggregation::count(name));
                        }
                        let message = "a count has no column: write `count: {}`";
                        reader.problem(Some(argument.position), message);
                        None
                    }
                    Some((called, function)) => reader
                        .text(called, argument)
                        .map(|column| Aggregation::of(name, function, column)),
                };
            }
        }
        Value::Null | Value::Scalar { .. } | Value::List(_) => {}
    }
    let message = format!(
        "`{name}` is {}: write what it is computed by, such as `{name}: {{ sum: amount }}` or `{name}: count`",
        node.describe()
    );
    reader.problem(Some(node.position), message);
    None
}

/// Reads `window`. The outer `None` means that it can't be read, which is reported.
fn windows(
    fields: &mut Fields<'_>,
    reader: &mut Reader,
    emit: Option<Emit>,
) -> Option<Option<Windows>> {
    let Some(node) = fields.node("window") else {
        return Some(None);
    };
    if emit.is_some() {
        let message =
            "`emit` has no effect with a `window`, which is emitted when it ends: remove it";
        reader.problem(Some(node.position), message);
    }
    let mut fields = Fields::of(node, reader);
    let (tumbling, sliding) = (fields.node("tumbling"), fields.node("sliding"));
    let lateness = fields.optional_value("allowed-lateness", reader, Reader::duration);
    fields.finish("window", reader);
    let windows = match (tumbling, sliding) {
        (Some(node), None) => {
            let mut fields = Fields::of(node, reader);
            let size = fields.required("size", "10 s", reader, Reader::duration);
            fields.finish("tumbling", reader);
            Windows::tumbling(size?)
        }
        (None, Some(node)) => {
            let mut fields = Fields::of(node, reader);
            let size = fields.required("size", "10 s", reader, Reader::duration);
            let slide = fields.required("slide", "1 s", reader, Reader::duration);
            fields.finish("sliding", reader);
            Windows::sliding(size?, slide?)
        }
        (Some(_), Some(_)) | (None, None) => {
            let message = "`window` is one of `tumbling: { size: 10 s }` and `sliding: { size: 10 s, slide: 1 s }`";
            reader.problem(Some(node.position), message);
            return None;
        }
    };
    Some(Some(lateness.map_or(windows, |lateness| {
        windows.allowing_lateness(lateness)
    })))
}

fn reading(
    fields: &mut Fields<'_>,
    reader: &mut Reader,
    columns: Option<Vec<DeclaredColumn>>,
) -> Option<Reading> {
    let on_error = fields.optional_value("on-error", reader, |reader, field, node| {
        reader.one_of(field, node, &OnError::ALL)
    });
    // YAML parses `null` as an empty value.
    let on_error = match fields.is_null("on-error") {
        true => Some(OnError::Null),
        false => on_error,
    };
    let timestamp_format = fields.optional("timestamp-format", reader, Reader::text);
    Some(Reading {
        columns: columns?,
        on_error: on_error.unwrap_or_default(),
        timestamp_format,
    })
}

/// Reads columns by name: a type, with a `?` if it is nullable; or `type` and `default`.
fn columns(reader: &mut Reader, field: &str, node: &Node) -> Option<Vec<DeclaredColumn>> {
    let declared = match &node.value {
        Value::Map(declared) => declared,
        Value::Unreadable => return None,
        Value::Null | Value::Scalar { .. } | Value::List(_) => {
            let message = format!(
                "`{field}` is {}: write a map of names and types, such as `{{ user: string, bytes: int64 }}`",
                node.describe()
            );
            reader.problem(Some(node.position), message);
            return None;
        }
    };
    let columns: Vec<_> = declared
        .iter()
        .map(|(key, node)| column(key, node, reader))
        .collect();
    columns.into_iter().collect()
}

fn column(key: &Key, node: &Node, reader: &mut Reader) -> Option<DeclaredColumn> {
    let Value::Map(_) = &node.value else {
        let (column_type, nullable) = column_type(reader, &key.text, node)?;
        let column = DeclaredColumn::new(&key.text, column_type);
        return Some(if nullable { column.or_null() } else { column });
    };
    let mut fields = Fields::of(node, reader);
    let declared = fields.required("type", "int64", reader, column_type);
    let default = fields.optional("default", reader, Reader::text);
    fields.finish("a column", reader);
    let (column_type, nullable) = declared?;
    let mut column = DeclaredColumn::new(&key.text, column_type);
    column.nullable = nullable;
    Some(match default {
        Some(default) => column.or(default),
        None => column,
    })
}

fn column_type(reader: &mut Reader, field: &str, node: &Node) -> Option<(ColumnType, bool)> {
    let text = reader.text(field, node)?;
    let text = text.trim();
    let (name, nullable) = match text.strip_suffix('?') {
        Some(name) => (name, true),
        None => (text, false),
    };
    let found = ColumnType::ALL
        .into_iter()
        .find(|known| known.name() == name);
    if found.is_none() {
        let instead = instead(name, ColumnType::ALL.map(ColumnType::name));
        let message = format!("`{field}` has no type {}; {instead}", node.describe());
        reader.problem(Some(node.position), message);
    }
    found.map(|found| (found, nullable))
}

fn separator(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<char> {
    let Some(node) = fields.node("separator") else {
        return Some(',');
    };
    let text = reader.text("separator", node)?;
    let mut characters = text.chars();
    match (text.as_str(), characters.next(), characters.next()) {
        ("tab" | "\\t", ..) => Some('\t'),
        (_, Some(separator), None) => Some(separator),
        _ => {
            let message = format!(
                "`separator` is {}: write one character, or `tab`",
                node.describe()
            );
            reader.problem(Some(node.position), message);
            None
        }
    }
}
