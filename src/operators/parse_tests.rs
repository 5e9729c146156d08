//! Formatted records are parsed to the same values, and unreadable ones are handled as declared.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::Schema;
use proptest::prelude::*;
use tanist_dataflow::record;
use tanist_model::operators::{DeclaredColumn, FormatCsv, OnError, Reading};
use tanist_model::{OperatorSpec, operators};

use super::*;
use crate::testing::{Harness, texts};
use crate::values::{ColumnBuilder, Value};

fn user_and_bytes(on_error: OnError) -> Reading {
    Reading {
        on_error,
        ..Reading::of([
            DeclaredColumn::new("user", ColumnType::String),
            DeclaredColumn::new("bytes", ColumnType::Int64),
        ])
    }
}

fn json_spec(reading: Reading) -> OperatorSpec {
    OperatorSpec::ParseJson(ParseJson {
        column: "line".into(),
        reading,
    })
}

fn csv_spec(reading: Reading, header: bool) -> OperatorSpec {
    OperatorSpec::ParseCsv(ParseCsv {
        column: "line".into(),
        reading,
        separator: ',',
        header,
    })
}

fn parsed(spec: &OperatorSpec, lines: &[&str]) -> Result<Vec<String>, String> {
    let input = texts("line", lines);
    let mut harness = Harness::new(spec, &input);
    harness
        .try_process(input)
        .map_err(|error| error.to_string())?;
    Ok(harness.lines())
}

#[test]
fn json_values_are_found_by_name_and_read_in_their_types() {
    let reading = Reading::of([
        DeclaredColumn::new("s", ColumnType::String),
        DeclaredColumn::new("i", ColumnType::Int64),
        DeclaredColumn::new("f", ColumnType::Float64),
        DeclaredColumn::new("b", ColumnType::Bool),
        DeclaredColumn::new("t", ColumnType::Timestamp),
    ]);
    assert_eq!(
        parsed(
            &json_spec(reading),
            &[
                r#"{"t": 0, "x": {"s": [1]}, "s": "a\u00e4", "i": -3, "f": 2, "b": true, "i": 4}"#,
                r#"{"t": "2026-01-02T03:04:05+01:00", "s": {"k":[1,"v"]}, "i": "7", "f": "0.5", "b": "false"}"#,
            ]
        ),
        Ok(vec![
            "aä 4 2.0 true 1970-01-01T00:00:00.000Z".to_owned(),
            r#"{"k":[1,"v"]} 7 0.5 false 2026-01-02T02:04:05.000Z"#.to_owned(),
        ])
    );
}

#[test]
fn a_json_value_that_becomes_a_text_is_what_stands_there() {
    for (value, expected) in [
        ("12345678901234567890123", "12345678901234567890123"),
        ("1.10", "1.10"),
        ("-1E5", "-1E5"),
        ("true", "true"),
        (
            r#"{"b": 1.10, "a": [2, 1], "a": 0}"#,
            r#"{"b": 1.10, "a": [2, 1], "a": 0}"#,
        ),
        ("[ 1e400 , null ]", "[ 1e400 , null ]"),
        (r#""plain ä""#, "plain ä"),
        (r#""""#, ""),
        (r#""\"""#, "\""),
        (r#""\u00e4 \\ \"""#, "ä \\ \""),
    ] {
        let reading = Reading::of([DeclaredColumn::new("s", ColumnType::String)]);
        let line = format!("{{\"s\" : {value} , \"other\": 1}}");
        assert_eq!(
            parsed(&json_spec(reading), &[&line]),
            Ok(vec![expected.to_owned()]),
            "{line}"
        );
    }
    for (value, expected) in [
        ("null", "column `s` has no value"),
        (r#""\ud800""#, "no JSON object: "),
        ("tru", "no JSON object: "),
        ("[1", "no JSON object: "),
    ] {
        let reading = Reading::of([DeclaredColumn::new("s", ColumnType::String)]);
        let line = format!("{{\"s\": {value}}}");
        let failed = parsed(&json_spec(reading), &[&line]).expect_err("refused");
        assert!(failed.starts_with(expected), "{line}: {failed}");
    }
}

#[test]
fn a_record_that_can_not_be_read_fails_the_job_or_is_left_out_or_has_no_values() {
    let lines = [
        r#"{"user": "a", "bytes": 1}"#,
        r#"{"user": "b", "bytes": "many"}"#,
        r#"{"user": "c"}"#,
        "nonsense",
        r#"{"user": "d", "bytes": 4} {"#,
        r#"{"user": "e", "bytes": 5}"#,
    ];
    assert_eq!(
        parsed(&json_spec(user_and_bytes(OnError::Fail)), &lines),
        Err(
            r#"column `bytes`: "many" is no int64, at record [{"user": "b", "bytes": "many"}]"#
                .into()
        )
    );
    let skipped = parsed(&json_spec(user_and_bytes(OnError::Skip)), &lines);
    assert_eq!(skipped.expect("skipped"), ["a 1", "e 5"]);
    let nulls = parsed(&json_spec(user_and_bytes(OnError::Null)), &lines);
    assert_eq!(
        nulls.expect("nulls"),
        ["a 1", "b null", "c null", "null null", "null null", "e 5"]
    );
    let error = parsed(&json_spec(user_and_bytes(OnError::Fail)), &["[1]"]);
    assert!(
        error
            .expect_err("no object")
            .starts_with("no JSON object: ")
    );
}

#[test]
fn a_byte_order_mark_belongs_to_no_value() {
    let lines = ["\u{feff}user,bytes", "a,1", "\u{feff}b,2"];
    let read = parsed(&csv_spec(user_and_bytes(OnError::Fail), true), &lines);
    assert_eq!(read.expect("read"), ["a 1", "b 2"]);
    let lines = ["\u{feff}{\"user\": \"a\", \"bytes\": 1}"];
    let read = parsed(&json_spec(user_and_bytes(OnError::Fail)), &lines);
    assert_eq!(read.expect("read"), ["a 1"]);
}

#[test]
fn skipped_records_are_counted() {
    let input = texts("line", &["", "{}", r#"{"user": "a", "bytes": 1}"#]);
    let mut operator =
        crate::testing::operator(&json_spec(user_and_bytes(OnError::Skip)), input.schema())
            .expect("built");
    let mut output = Output::default();
    operator.process(input, &mut output).expect("processed");
    assert_eq!(output.dropped(), (0, 2));
}

#[test]
fn what_is_missing_is_the_default_or_null() {
    let reading = Reading::of([
        DeclaredColumn::new("user", ColumnType::String).or("nobody"),
        DeclaredColumn::new("bytes", ColumnType::Int64).or("7"),
        DeclaredColumn::new("note", ColumnType::String).or_null(),
    ]);
    let json = parsed(&json_spec(reading.clone()), &[r#"{"bytes": null}"#]);
    assert_eq!(json.expect("read"), ["nobody 7 null"]);
    let csv = parsed(&csv_spec(reading, false), &[",,", "\"\",1,\"\""]);
    assert_eq!(csv.expect("read"), ["nobody 7 null", " 1 "]);
}

#[test]
fn csv_values_are_found_by_their_places() {
    let spec = csv_spec(user_and_bytes(OnError::Fail), true);
    let lines = ["user,bytes", "\"a, b\",1", "user, bytes", "c,2"];
    assert_eq!(parsed(&spec, &lines).expect("read"), ["a, b 1", "c 2"]);
    assert_eq!(
        parsed(&spec, &["a"]),
        Err("it has 1 values where 2 columns are declared, at record [a]".into())
    );
}

/// A record: an optional value for each column.
type Values = (
    Option<String>,
    Option<i64>,
    Option<f64>,
    Option<bool>,
    Option<i64>,
);

/// One NaN represents all: formats don't keep its bits.
fn numbers() -> impl Strategy<Value = f64> {
    let of_all = any::<f64>().prop_map(|f| if f.is_nan() { f64::NAN } else { f });
    prop_oneof![
        4 => of_all,
        1 => prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
    ]
}

fn values() -> impl Strategy<Value = Values> {
    (
        prop::option::of("\u{feff}?[a\",;{}\n\\\\ßé]{0,8}"),
        prop::option::of(any::<i64>()),
        prop::option::of(numbers()),
        prop::option::of(any::<bool>()),
        prop::option::of(-tanist_model::timestamp::FARTHEST..=tanist_model::timestamp::FARTHEST),
    )
}

fn batch_of(records: &[Values], schema: &Arc<Schema>) -> RecordBatch {
    let fields = schema.fields().iter();
    let mut builders: Vec<_> = fields.map(|f| ColumnBuilder::new(f.data_type())).collect();
    for (text, int, float, truth, time) in records {
        let text = text.as_deref();
        let row = [
            text.map_or(Value::Null, |text| Value::Text(text.into())),
            int.map_or(Value::Null, Value::Int),
            float.map_or(Value::Null, Value::Float),
            truth.map_or(Value::Null, Value::Bool),
            time.map_or(Value::Null, Value::Int),
        ];
        for (builder, value) in builders.iter_mut().zip(&row) {
            builder.append(value);
        }
    }
    let columns: Vec<ArrayRef> = builders.iter_mut().map(ColumnBuilder::finish).collect();
    RecordBatch::try_new(Arc::clone(schema), columns).expect("fits")
}

proptest! {
    #[test]
    fn what_is_formatted_is_parsed_again(
        records in prop::collection::vec(values(), 0..8), as_json: bool,
    ) {
        let columns = [
            ("s\" ", ColumnType::String),
            ("i", ColumnType::Int64),
            ("f", ColumnType::Float64),
            ("b", ColumnType::Bool),
            ("t", ColumnType::Timestamp),
        ];
        let columns = columns.map(|(name, of)| DeclaredColumn::new(name, of).or_null());
        let reading = Reading::of(columns);
        let (format, parse) = match as_json {
            true => (OperatorSpec::FormatJson(operators::FormatJson {}), json_spec(reading)),
            false => (
                OperatorSpec::FormatCsv(FormatCsv { separator: ',' }),
                csv_spec(reading, false),
            ),
        };
        let lines = texts("line", &[]);
        let schema = crate::schema::output_schema(&parse, Some(&lines.schema()));
        let schema = schema.expect("fits").expect("no sink");
        let input = batch_of(&records, &schema);
        let mut formatting = Harness::new(&format, &input);
        formatting.process(input.clone());
        let mut parsing = Harness::new(&parse, &lines);
        for batch in formatting.emitted() {
            parsing.process(batch.clone());
        }
        let read = parsing.emitted().first().cloned().unwrap_or(input.slice(0, 0));
        prop_assert_eq!(read, input);
    }

    #[test]
    fn no_text_makes_parsing_panic(text in ".{0,40}") {
        let _ = parsed(&json_spec(user_and_bytes(OnError::Null)), &[&text]);
        let _ = parsed(&csv_spec(user_and_bytes(OnError::Skip), true), &[&text]);
        let _ = record::shorten(&text);
    }
}
