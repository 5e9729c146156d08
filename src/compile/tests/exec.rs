//! Steps that run programs, and the files that jobs ship for them, starting from the job file.

use std::path::PathBuf;

use tanist_model::operators::ExecSource;
use tanist_model::{
    ArtifactSpec, ColumnType, ExecColumn, ExecFormat, ExecLimits, ExecSpec, OperatorSpec,
};

use super::{graph_of, message_of, options, options_with, with_steps};
use crate::{CompileOptions, JobBuilder, validate_job_graph};

const EXAMPLE: &str = include_str!("../../../examples/exec.yaml");

fn here(options: CompileOptions) -> CompileOptions {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    CompileOptions {
        artifact_dir: Some(PathBuf::from(directory)),
        ..options
    }
}

#[test]
fn the_example_ships_its_program_and_is_what_the_builder_makes() {
    let written = graph_of(EXAMPLE, &here(options_with([("output", "/tmp/out")])));
    assert_eq!(validate_job_graph(&written), Ok(()));
    assert_eq!(written.artifacts[0].name, "lengths");
    assert!(written.artifacts[0].content.starts_with(b"#!/bin/sh\n"));
    let column = |name: &str, column_type| ExecColumn {
        name: name.to_owned(),
        column_type,
    };
    let numbers = ExecSpec {
        columns: vec![column("number", ColumnType::String)],
        ..ExecSpec::new(["seq", "1", "1000"])
    };
    let lengths = ExecSpec {
        input: ExecFormat::JsonLines,
        output: ExecFormat::JsonLines,
        columns: vec![
            column("number", ColumnType::Int64),
            column("digits", ColumnType::Int64),
        ],
        env: [("LANG".to_owned(), "C".to_owned())].into(),
        limits: ExecLimits {
            memory: Some(512 << 20),
            open_files: Some(64),
            ..ExecLimits::default()
        },
        ..ExecSpec::new(["${artifact:lengths}"])
    };
    let told = ExecSpec {
        grace_ms: 1000,
        ..ExecSpec::new(["wc", "-l"])
    };
    let built = JobBuilder::new("exec")
        .artifact(ArtifactSpec::new("lengths", "data/lengths.sh").executable())
        .exec_source("numbers", numbers)
        .exec("lengths", lengths)
        .with_parallelism(2)
        .key_by("by-digits", ["digits"])
        .count("counts")
        .file_sink("out", "/tmp/out")
        .exec_sink("told", told)
        .reading(["numbers"])
        .build();
    assert_eq!(built.compile(&here(options())).as_ref(), Ok(&written));
}

#[test]
fn a_specification_survives_the_way_through_a_job_graph() {
    let spec = OperatorSpec::from(ExecSource::new(ExecSpec {
        unbounded: true,
        ..ExecSpec::new(["a"])
    }));
    assert_eq!(OperatorSpec::from_json(&spec.to_json()).ok(), Some(spec));
    let minimal = r#"{"type":"exec-sink","command":["a"],"grace_ms":5}"#;
    assert!(OperatorSpec::from_json(minimal).is_ok());
    let unknown = r#"{"type":"exec-sink","command":["a"],"grace_ms":5,"sandbox":true}"#;
    assert!(OperatorSpec::from_json(unknown).is_err());
}

/// Asserts the message for a job with this program between a source and a sink.
fn says(exec: &str, message: &str) {
    let text = with_steps(&format!(
        "  - datagen: {{count: 9}}\n  - name: p\n    exec: {exec}\n  - discard: {{}}\n"
    ));
    let said = message_of(&text, &options());
    assert!(said.contains(message), "{exec}: {said}");
}

#[test]
fn what_is_wrong_with_a_program_is_said() {
    for (exec, message) in [
        (
            "{}",
            "`command` is missing: write `command: [tr, a-z, A-Z]`",
        ),
        ("{command: ['']}", "`command` is empty"),
        ("{command: a, format: xml}", "`format` can't be `xml`"),
        ("{command: a, bounded: true}", "exec has no field `bounded`"),
        (
            "{command: a, format: frames}",
            "a record in frames is one text, but its input has (seq: int64",
        ),
        (
            "{command: a, output-format: json-lines}",
            "records in json-lines have columns",
        ),
        (
            "{command: a, columns: {n: int64}}",
            "a record in lines is one text",
        ),
        ("{command: a, columns: {n: int}}", "`n` can't be `int`"),
        (
            "{command: a, columns: [n]}",
            "`columns` is a list: write `{ word: string, count: int64 }`",
        ),
        ("{command: a, env: {TANIST_X: y}}", "`env` sets `TANIST_X`"),
        (
            "{command: a, limits: {memory: lots}}",
            "`memory` is `lots`: write a number and a unit",
        ),
        (
            "{command: a, limits: {cpu: 1 s}}",
            "`cpu` is `1 s`: write a number of cores",
        ),
        (
            "{command: a, limits: {disk: 1 gb}}",
            "limits has no field `disk`",
        ),
        ("{command: a, limits: {cpu: 0}}", "`cpu: 0`"),
        ("{command: a, limits: {open-files: 0}}", "`open-files: 0`"),
        ("{command: a, grace: 1 h}", "`grace` is too long"),
        (
            "{command: ['${artifact:m}']}",
            "step `p`: there is no artifact `m`",
        ),
    ] {
        says(exec, message);
    }
}

#[test]
fn a_program_gives_no_times_and_event_time_ends_before_it() {
    says(
        "{command: a, output-format: json-lines, columns: {t: timestamp}}",
        "`t` can't be `timestamp`",
    );
    let times = ExecSpec {
        output: ExecFormat::JsonLines,
        columns: vec![ExecColumn {
            name: "t".to_owned(),
            column_type: ColumnType::Timestamp,
        }],
        ..ExecSpec::new(["a"])
    };
    let built = JobBuilder::new("times").exec_source("p", times);
    let refused = built.discard("out").build().compile(&options());
    let said = refused.expect_err("a time").to_string();
    assert!(said.contains("`t` of type timestamp"), "{said}");

    let windows = |between: &str| {
        with_steps(&format!(
            "  - datagen: {{count: 9}}\n  - watermarks: {{column: seq}}\n{between}  - key-by: {{columns: [key]}}\n  \
             - count: {{window: {{tumbling: {{size: 1 s}}}}}}\n  - discard: {{}}\n",
        ))
    };
    graph_of(&windows(""), &options());
    let said = message_of(
        &windows(
            "  - exec: {command: cat, format: json-lines, columns: {seq: int64, key: int64}}\n",
        ),
        &options(),
    );
    assert!(said.contains("windows need event time"), "{said}");
}

#[test]
fn an_aggregation_can_not_wait_for_an_unbounded_program() {
    let text = with_steps(
        "  - name: s\n    exec-source: {command: yes, bounded: false}\n  - key-by: {columns: [line]}\n  \
         - count: {emit: final}\n  - discard: {}\n",
    );
    let said = message_of(&text, &options());
    assert!(said.contains("waits for the end of its input"), "{said}");
}

#[test]
fn artifacts_are_files_of_whoever_submits() {
    let job = |artifacts: &str| {
        format!(
            "version: 1\nname: a\nartifacts: {artifacts}\nsteps:\n  - datagen: {{count: 1}}\n  - discard: {{}}\n"
        )
    };
    for (artifacts, message) in [
        ("[a]", "`artifacts` is a list: write `{ NAME: path }`"),
        ("{m: {executable: true}}", "`path` is missing"),
        ("{m: none}", "line 3, column 16: artifact `m`:"),
        ("{m: hdfs://host/m}", "has the scheme `hdfs`"),
        (
            "{m: {path: exec.yaml, sha256: abc}}",
            "write 64 hexadecimal digits",
        ),
        ("{'../m': exec.yaml}", "no name of an artifact"),
    ] {
        let said = message_of(&job(artifacts), &here(options()));
        assert!(said.contains(message), "{artifacts}: {said}");
    }
    let elsewhere = message_of(&job("{m: exec.yaml}"), &options());
    assert!(
        elsewhere.contains("submit the job with `tanist run`"),
        "{elsewhere}"
    );
}
