//! `exec`: a program between records. The program itself is an [`ExecSpec`]; this file also has the fields that it
//! shares with `exec-source` and `exec-sink`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tanist_ha::clock::millis;
use tanist_proto::resources::CpuCores;

use super::{Declaration, EventTime, ExpressionTypes, Section, StateUse, Step, Transformation};
use crate::exec::{ExecColumn, ExecFormat, ExecLimits, ExecSpec};
use crate::job_file::{Fields, Node, Reader};
use crate::{ColumnType, Schema};

/// Why no checkpoint saves a program.
pub(super) const PROGRAM: &str = "what a program has in memory is unknown";

/// Runs a program that reads and writes records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Exec(Box<ExecSpec>);

impl Exec {
    /// Runs this program.
    pub fn new(program: ExecSpec) -> Exec {
        Exec(Box::new(program))
    }

    /// The program.
    pub fn program(&self) -> &ExecSpec {
        &self.0
    }
}

impl Declaration for Exec {
    fn kind(&self) -> &'static str {
        "exec"
    }

    fn state(&self) -> StateUse {
        StateUse::NotSaved(PROGRAM)
    }

    fn runs_program(&self) -> bool {
        true
    }

    fn problems(&self) -> Vec<String> {
        self.0.problems(true)
    }

    fn uses_artifacts(&self) -> bool {
        true
    }

    /// A program emits its records at any time.
    fn event_time(&self, _input: Option<&EventTime>) -> Option<EventTime> {
        None
    }

    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        self.0.check_input(input)?;
        Ok(self.0.schema())
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "exec",
    section: Section::Transformations,
    text: "\
Runs a program in each subtask. The program reads records from its standard input and writes records to its standard
output. See [Programs](programs.md).",
    fields: &[
        FIELDS,
        &[
            "`input-format` | as `format` | `format` | format of records in its input",
            "`output-format` | as `format` | `format` | format of records in its output",
        ],
        COLUMNS,
    ],
    checkpoints: "None is taken of its region: what a program has in memory is unknown.",
    example: "\
- file-source: { paths: [\"books/*.txt\"] }
- exec:
    command: [tr, a-z, A-Z]
    limits: { memory: 512 mb, cpu: 0.5 }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let program = read_program(fields, reader, |program, fields, reader| {
        if let Some(input) = read_format("input-format", fields, reader) {
            program.input = input;
        }
        if let Some(output) = read_format("output-format", fields, reader) {
            program.output = output;
        }
        read_columns(program, fields, reader);
    })?;
    Some(Exec::new(program).into())
}

/// The fields of all programs.
pub(super) const FIELDS: &[&str] = &[
    "`command` | a list of texts | required | the program and its arguments; no shell is used unless the program is one: `[sh, -c, \"...\"]`",
    "`format` | `lines`, `frames`, `json-lines`, `json-frames` | `lines` | [format](programs.md) of records in its input and output",
    "`env` | a map from names to texts | none | environment variables: `{ LANG: C }`",
    "`grace` | a duration, at most `1 min` | `5 s` | time between SIGTERM and SIGKILL",
    "`limits` | a map of the following | those of the TaskManager | [limits](programs.md) that the operating system enforces",
    "`limits.memory` | a size | no limit | memory of the program; without control groups, the address space of each process",
    "`limits.cpu` | cores, such as `0.5` | no limit | processor time of the program; only with control groups",
    "`limits.processes` | a number | no limit | processes and threads of the program; without control groups, of the user",
    "`limits.cpu-time` | a duration | no limit | processor time of each process in total",
    "`limits.open-files` | a number | no limit | open files of each process",
];

/// The field with the columns of a program's output.
pub(super) const COLUMNS: &[&str] = &[
    "`columns` | a map from names to `string`, `int64`, `float64`, `bool` | `{ line: string }`; required for JSON | columns of its output: `{ word: string, count: int64 }`",
];

const COLUMN_TYPES: [(&str, ColumnType); 4] = [
    ("string", ColumnType::String),
    ("int64", ColumnType::Int64),
    ("float64", ColumnType::Float64),
    ("bool", ColumnType::Bool),
];

/// Reads a program; `None` if it can't be read, which is reported. `further` reads what only some programs have.
pub(super) fn read_program(
    fields: &mut Fields<'_>,
    reader: &mut Reader,
    further: impl FnOnce(&mut ExecSpec, &mut Fields<'_>, &mut Reader),
) -> Option<ExecSpec> {
    let command = fields.required("command", "[tr, a-z, A-Z]", reader, Reader::texts);
    let mut program = ExecSpec::new(command.clone().unwrap_or_default());
    let both = read_format("format", fields, reader).unwrap_or_default();
    (program.input, program.output) = (both, both);
    further(&mut program, fields, reader);
    let env = fields.optional("env", reader, texts_by_name);
    program.env = env.unwrap_or_default();
    if let Some(grace) = fields.optional_value("grace", reader, Reader::duration) {
        program.grace_ms = millis(grace);
    }
    if let Some(node) = fields.node("limits") {
        program.limits = limits(node, reader);
    }
    command.map(|_| program)
}

fn read_format(
    name: &'static str,
    fields: &mut Fields<'_>,
    reader: &mut Reader,
) -> Option<ExecFormat> {
    let formats = ExecFormat::ALL.map(|format| (format.name(), format));
    fields.optional_value(name, reader, |reader, field, node| {
        reader.one_of(field, node, &formats)
    })
}

/// Reads the columns of a program's output.
pub(super) fn read_columns(program: &mut ExecSpec, fields: &mut Fields<'_>, reader: &mut Reader) {
    match fields.optional("columns", reader, columns) {
        Some(columns) => program.columns = columns,
        None if program.output.is_json() => program.columns.clear(),
        None => {}
    }
}

fn columns(reader: &mut Reader, field: &str, node: &Node) -> Option<Vec<ExecColumn>> {
    let fields = reader.map(field, node, "`{ word: string, count: int64 }`")?;
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
    let fields = reader.map(field, node, "`{ NAME: value }`")?;
    let texts = fields
        .iter()
        .map(|(key, node)| Some((key.text.clone(), reader.text(&key.text, node)?)));
    texts.collect::<Vec<_>>().into_iter().collect()
}

fn limits(node: &Node, reader: &mut Reader) -> ExecLimits {
    let mut fields = Fields::of(node, reader);
    let limits = ExecLimits {
        memory: fields.optional_value("memory", reader, Reader::bytes),
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
    let cores = reader.text(field, node)?.trim().parse::<CpuCores>();
    if cores.is_err() {
        reader.wrong(field, node, "a number of cores, such as `2` or `0.5`");
    }
    Some(cores.ok()?.millionths().div_ceil(1000))
}
