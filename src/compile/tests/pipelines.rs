//! Parsing, event time, windows and connectors, from the job file to the graph or the message.

use std::time::Duration;

use tanist_model::operators::{
    AggregateFunction, Aggregation, DeclaredColumn, FlatMapRegex, FollowFiles, FormatCsv, OnError,
    ParseCsv, ParseJson, Reading, SocketSource, Watermarks, Windows,
};
use tanist_model::{ColumnType, Emit, OperatorSpec, Schema};

use super::{graph_of, message_of, options, options_with, with_steps};
use crate::{JobBuilder, Plan, validate_job_graph};

const ACCESS_LOG: &str = include_str!("../../../examples/access-log.yaml");

fn says(steps: &str, message: &str) {
    let said = message_of(&with_steps(steps), &options());
    assert!(said.contains(message), "{said}\ndoes not say\n{message}");
}

/// Steps after a source that reads a time, a user and a number, keyed by user.
fn after_key_by(steps: &str) -> String {
    format!(
        "- socket-source: {{address: 'h:1'}}
- parse-csv: {{column: line, columns: {{t: timestamp, u: string, n: int64, o: 'int64?', b: bool}}}}
- {{name: in-time, watermarks: {{column: t}}}}
- key-by: {{columns: [u]}}
{steps}
- discard: {{}}
"
    )
}

#[test]
fn the_access_log_is_two_vertices_that_meet_by_shop() {
    let graph = graph_of(ACCESS_LOG, &options_with([("output", "/tmp/traffic")]));
    assert_eq!(validate_job_graph(&graph), Ok(()));
    assert_eq!(
        Plan(&graph).to_string(),
        "job `access-log`: 2 vertices, 1 region, 2 slots

lines -> requests -> served -> in-time  (parallelism 2 of 128, slot sharing group default)
  lines: file-source emits (line: string)
  requests: parse-json emits (time: timestamp, shop: string, status: int64, bytes: int64, seconds: float64)
  served: filter emits (time: timestamp, shop: string, status: int64, bytes: int64, seconds: float64)
  in-time: watermarks emits (time: timestamp, shop: string, status: int64, bytes: int64, seconds: float64)

traffic -> as-json -> out  (parallelism 2 of 128, slot sharing group default)
  reads lines -> requests -> served -> in-time, hash by shop
  traffic: aggregate emits (shop: string, window_start: timestamp, window_end: timestamp, requests: int64, bytes: int64, mean: float64, slowest: float64)
  as-json: format-json emits (line: string)
  out: file-sink
"
    );
}

#[test]
fn whatever_a_job_file_says_of_pipelines_the_builder_says_too() {
    let text = "
version: 1
name: pipelines
steps:
  - name: log
    file-source: {paths: [a.log, b.log], follow: true, discovery-interval: 5 s}
  - name: parts
    flat-map-regex: {column: line, pattern: '(?<u>\\w+) (?<n>\\d+) (?<t>.+)', columns: {n: int64, t: timestamp}, on-error: skip, timestamp-format: '%d/%b %Y'}
  - name: in-time
    watermarks: {column: t, out-of-orderness: 2 s, idle-timeout: 1 min}
  - name: by-user
    key-by: {columns: [u]}
  - name: counts
    count: {window: {tumbling: {size: 10 s}}}
  - name: hours
    aggregate: {window: {sliding: {size: 1 h, slide: 5 min}, allowed-lateness: 1 s}, all: count, total: {sum: n}, last: {max: t}}
    input: by-user
  - name: least
    min: {column: n}
    input: by-user
  - name: mean
    average: {column: n, emit: updates}
    input: by-user
  - {name: show, print: {}, input: counts}
  - {name: as-csv, format-csv: {separator: ;}, input: hours}
  - {name: out, socket-sink: {address: 'host:99'}}
  - {name: drop, discard: {}, input: least}
  - {name: drop-too, discard: {}, input: mean}
  - name: in
    stdin-source: {}
  - name: json
    parse-json: {column: line, columns: {a: 'string?', b: {type: float64, default: 1}}, on-error: null}
  - {name: as-json, format-json: {}}
  - {name: shown, print: {}}
  - name: once
    socket-source: {address: 'host:98', reconnect: false}
  - name: csv
    parse-csv: {column: line, columns: {x: bool}, separator: tab, header: true}
  - {name: dropped, discard: {}}
";
    let follow = OperatorSpec::FollowFiles(FollowFiles {
        paths: vec!["a.log".into(), "b.log".into()],
        discovery_interval_ms: 5_000,
    });
    let parts = OperatorSpec::FlatMapRegex(FlatMapRegex {
        reading: Reading {
            columns: vec![
                DeclaredColumn::new("n", ColumnType::Int64),
                DeclaredColumn::new("t", ColumnType::Timestamp),
            ],
            on_error: OnError::Skip,
            timestamp_format: Some("%d/%b %Y".into()),
        },
        ..FlatMapRegex::new("line", r"(?<u>\w+) (?<n>\d+) (?<t>.+)")
    });
    let watermarks = OperatorSpec::Watermarks(Watermarks {
        column: "t".into(),
        out_of_orderness_ms: 2_000,
        idle_timeout_ms: Some(60_000),
    });
    let once = OperatorSpec::SocketSource(SocketSource {
        address: "host:98".into(),
        reconnect: false,
    });
    let csv = OperatorSpec::ParseCsv(ParseCsv {
        column: "line".into(),
        reading: Reading::of([DeclaredColumn::new("x", ColumnType::Bool)]),
        separator: '\t',
        header: true,
    });
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let hours = Windows::sliding(60 * minute, 5 * minute).allowing_lateness(second);
    let built = JobBuilder::new("pipelines")
        .step("log", follow)
        .step("parts", parts)
        .step("in-time", watermarks)
        .key_by("by-user", ["u"])
        .count("counts")
        .windowed(Windows::tumbling(10 * second))
        .aggregate(
            "hours",
            [
                Aggregation::count("all"),
                Aggregation::of("total", AggregateFunction::Sum, "n"),
                Aggregation::of("last", AggregateFunction::Max, "t"),
            ],
        )
        .windowed(hours)
        .reading(["by-user"])
        .min("least", "n")
        .reading(["by-user"])
        .average("mean", "n")
        .emitting(Emit::Updates)
        .reading(["by-user"])
        .print("show", "")
        .reading(["counts"])
        .step(
            "as-csv",
            OperatorSpec::FormatCsv(FormatCsv { separator: ';' }),
        )
        .reading(["hours"])
        .socket_sink("out", "host:99")
        .discard("drop")
        .reading(["least"])
        .discard("drop-too")
        .reading(["mean"])
        .stdin_source("in")
        .parse_json(
            "json",
            "line",
            [
                DeclaredColumn::new("a", ColumnType::String).or_null(),
                DeclaredColumn::new("b", ColumnType::Float64).or("1"),
            ],
        )
        .on_error(OnError::Null)
        .format_json("as-json")
        .print("shown", "")
        .step("once", once)
        .step("csv", csv)
        .discard("dropped")
        .build()
        .compile(&options())
        .expect("a valid job");
    let graph = graph_of(text, &options());
    assert_eq!(validate_job_graph(&graph), Ok(()));
    assert_eq!(built, graph);
}

#[test]
fn sources_that_can_only_run_once_do_whatever_the_job_says() {
    let steps = "- {name: in, stdin-source: {}}\n- print: {}\n";
    let text = with_steps(steps).replace("steps:", "parallelism: 4\nsteps:");
    let graph = graph_of(&text, &options());
    let parallelism: Vec<u32> = graph
        .vertices
        .iter()
        .map(|vertex| vertex.parallelism)
        .collect();
    assert_eq!(parallelism, [1, 4]);
    let mut wrong = graph;
    wrong.vertices[0].parallelism = 2;
    let said = validate_job_graph(&wrong).expect_err("twice").to_string();
    assert!(said.contains("step `in`: it can only run once"), "{said}");
    says(
        "- stdin-source: {}\n  parallelism: 2\n- print: {}\n",
        "line 4, column 3: step `stdin-source`: it can only run once: remove its `parallelism`",
    );
}

#[test]
fn columns_that_can_not_be_read() {
    let parse = |fields: &str| {
        format!("- stdin-source: {{}}\n- parse-json: {{column: line, {fields}}}\n- print: {{}}\n")
    };
    says(
        &parse("columns: {a: int}"),
        "`a` has no type `int`; there is: string, int64, float64, bool, timestamp",
    );
    says(
        &parse("columns: [a, b]"),
        "`columns` is a list: write a map of names and types",
    );
    says(
        &parse("columns: {}"),
        "`columns` is empty: declare at least one",
    );
    says(
        &parse("columns: {a: {type: int64, default: x}}"),
        "step `parse-json`: the default of column `a` is \"x\", which is no int64",
    );
    says(
        &parse("columns: {a: string}, on-error: drop"),
        "`on-error` can't be `drop`",
    );
    says(
        &parse("columns: {a: string}, timestamp-format: '%'"),
        "`timestamp-format` \"%\" is no format",
    );
    says(
        &parse("columns: {a: timestamp}, timestamp-format: '%H:%M'"),
        "`timestamp-format` \"%H:%M\" does not determine a time: write at least a date",
    );
    // A job that another version accepted before continues.
    let lines = Schema::of([("line", ColumnType::String)]);
    let reading = Reading {
        timestamp_format: Some("%H:%M".into()),
        ..Reading::of([DeclaredColumn::new("a", ColumnType::Timestamp)])
    };
    let recorded = OperatorSpec::ParseJson(ParseJson {
        column: "line".into(),
        reading,
    });
    assert!(recorded.field_problems().is_empty());
    assert!(crate::output(&recorded, &lines).is_ok());
    says(
        "- stdin-source: {}\n- parse-csv: {column: text, columns: {a: string}}\n- print: {}\n",
        "step `parse-csv`: column `text` is not in its input (line: string); there is: line",
    );
    says(
        "- datagen: {}\n- parse-csv: {column: seq, columns: {a: string}, separator: ab}\n- print: {}\n",
        "`separator` is `ab`: write one character, or `tab`",
    );
    says(
        "- datagen: {}\n- parse-csv: {column: seq, columns: {a: string}, separator: x}\n- print: {}\n",
        "column `seq` is int64, but string is needed",
    );
    for (pattern, message) in [
        ("(", "`pattern` is no regular expression"),
        ("a", "`pattern` has no named group"),
        ("(?<a>x){1000000}", "`pattern`"),
    ] {
        let steps = format!(
            "- stdin-source: {{}}\n- flat-map-regex: {{column: line, pattern: '{pattern}'}}\n- print: {{}}\n"
        );
        says(&steps, message);
    }
    says(
        "- stdin-source: {}\n- flat-map-regex: {column: line, pattern: '(?<a>x)', columns: {b: int64}}\n- print: {}\n",
        "`pattern` has no group `b`; did you mean `a`?",
    );
}

#[test]
fn a_column_without_a_value_in_each_record_is_neither_key_nor_added_up() {
    says(
        &after_key_by("- sum: {column: o}"),
        "step `sum`: column `o` is int64?, but a value is needed in each record",
    );
    let keyed = after_key_by("- count: {}").replace("[u]", "[o]");
    says(&keyed, "step `key-by`: column `o` is int64?");
}

#[test]
fn aggregations_that_can_not_be() {
    says(
        &after_key_by("- average: {column: u}"),
        "step `average`: column `u` is string, but a number is needed; use one of: n",
    );
    says(
        &after_key_by("- max: {column: b}"),
        "column `b` is bool, but a number, a timestamp or a string",
    );
    says(&after_key_by("- aggregate: {}"), "it computes nothing");
    says(
        &after_key_by("- aggregate: {u: count}"),
        "its result is a column `u`, but there is one called `u` already",
    );
    says(
        &after_key_by("- aggregate: {x: {median: n}}"),
        "there is no function `median`; there is: count, sum, min, max, average",
    );
    says(
        &after_key_by("- aggregate: {x: {count: n}}"),
        "a count has no column",
    );
    says(
        &after_key_by("- aggregate: {x: 5}"),
        "`x` is `5`: write what it is computed by",
    );
    says(
        "- datagen: {}\n- max: {column: seq}\n- print: {}\n",
        "step `max`: max works by key: put a `key-by",
    );
    says(
        &after_key_by("- aggregate: {emit: final, x: count}"),
        "`emit: final` waits for the end of its input",
    );
}

#[test]
fn windows_that_can_not_be() {
    let window = |window: &str| after_key_by(&format!("- count: {{window: {window}}}"));
    says(
        &window("{sliding: {size: 1 s, slide: 2 s}}"),
        "`slide` is longer than `size`",
    );
    says(
        &window("{sliding: {size: 1 d, slide: 1 ms}}"),
        "each record is in 86400000 windows",
    );
    says(&window("{tumbling: {size: 0 s}}"), "must be more than 0");
    says(
        &window("{tumbling: {size: 5}}"),
        "`size` is `5`: write a number and a unit",
    );
    says(
        &window("{session: {gap: 5 s}}"),
        "window has no field `session`",
    );
    says(
        &window("{}"),
        "`window` is one of `tumbling: { size: 10 s }`",
    );
    says(
        &after_key_by("- count: {emit: updates, window: {tumbling: {size: 1 s}}}"),
        "`emit` has no effect with a `window`",
    );
    let without = window("{tumbling: {size: 1 s}}")
        .replace("- {name: in-time, watermarks: {column: t}}\n", "");
    says(
        &without,
        "step `count`: windows need event time: put a `watermarks: { column: ... }`",
    );
    says(
        &window("{tumbling: {size: 1 s}}").replace("column: t}", "column: u}"),
        "step `in-time`: column `u` is string, but timestamp or int64 (milliseconds) is needed; use one of: t, n",
    );
}

#[test]
fn event_time_reaches_windows_only_on_all_ways_and_windows_only_whole_ones() {
    says(
        "- {name: a, datagen: {}}
- {name: timed, watermarks: {column: seq}}
- {name: b, datagen: {}}
- {name: keyed, key-by: {columns: [key]}, inputs: [timed, b]}
- count: {window: {tumbling: {size: 1 s}}}
- discard: {}
",
        "step `count`: windows need event time",
    );
    let twice = |size: &str| {
        after_key_by(&format!(
            "- {{name: first, count: {{window: {{tumbling: {{size: 10 s}}}}}}}}
- {{name: again, key-by: {{columns: [u]}}}}
- sum: {{column: count, window: {{tumbling: {{size: {size}}}}}}}"
        ))
    };
    graph_of(&with_steps(&twice("1 min")), &options());
    says(
        &twice("15 s"),
        "step `sum`: it reads results of windows of 10000 ms, which its own windows would cut",
    );
    let graph = graph_of(&with_steps(&twice("1 min")), &options());
    let mut foreign = graph.clone();
    for vertex in &mut foreign.vertices {
        for operator in &mut vertex.operators {
            operator.spec = operator
                .spec
                .replace("\"size_ms\":10000", "\"size_ms\":7000");
            operator.spec = operator
                .spec
                .replace("\"slide_ms\":10000", "\"slide_ms\":7000");
        }
    }
    let said = validate_job_graph(&foreign).expect_err("cut").to_string();
    assert!(said.contains("windows of 7000 ms"), "{said}");
}

#[test]
fn a_column_that_takes_the_place_of_the_event_time_ends_it() {
    let steps = |between: &str| {
        with_steps(&format!(
            "- stdin-source: {{}}
- {{name: read, parse-json: {{column: line, columns: {{t: timestamp, payload: string}}}}}}
- {{name: timed, watermarks: {{column: t}}}}
{between}
- key-by: {{columns: [payload]}}
- count: {{window: {{tumbling: {{size: 1 s}}}}}}
- discard: {{}}
"
        ))
    };
    let read = "columns: {t: timestamp, payload: string}}";
    let mut replacing = vec![
        format!("- parse-json: {{column: payload, {read}"),
        format!("- parse-csv: {{column: payload, {read}"),
        "- flat-map-regex: {column: payload, pattern: '(?<t>.) (?<payload>.)', columns: {t: int64}}".to_owned(),
    ];
    let mut keeping = vec!["- filter: {column: payload, op: eq, value: a}"];
    if cfg!(feature = "sql") {
        replacing.push("- map: {columns: {t: \"date_trunc('day', t)\"}}".to_owned());
        replacing.push(
            "- project: {columns: [payload, {name: t, expression: to_timestamp(0)}]}".to_owned(),
        );
        keeping.extend([
            "- map: {columns: {payload: upper(payload)}}",
            "- map: {columns: {t: t}}",
            "- project: {columns: [payload, t]}",
        ]);
    }
    for between in replacing {
        let said = message_of(&steps(&between), &options());
        assert!(
            said.contains("windows need event time"),
            "{between}: {said}"
        );
        let again = format!("{between}\n- watermarks: {{column: t}}");
        graph_of(&steps(&again), &options());
    }
    for between in keeping {
        graph_of(&steps(between), &options());
    }
}

#[test]
fn connectors_that_can_not_be() {
    for address in ["host", ":1", "host:0", "host:99999", "a b:1", "http://h:1"] {
        says(
            &format!("- socket-source: {{address: '{address}'}}\n- print: {{}}\n"),
            &format!("`address` is {address:?}: write `host:port`"),
        );
    }
    says(
        "- file-source: {paths: a, discovery-interval: 1 s}\n- print: {}\n",
        "`discovery-interval` has no effect without `follow: true`",
    );
    says(
        "- file-source: {paths: a, follow: true, discovery-interval: 1 ms}\n- print: {}\n",
        "`discovery-interval` must be from 10 ms to 1 d",
    );
    says(
        "- file-source: {paths: a, follow: true}\n- key-by: {columns: [line]}\n- count: {emit: final}\n- print: {}\n",
        "`emit: final` waits for the end of its input, which never ends",
    );
}
