//! Encoding for a program and decoding its output are inverse to each other.

use std::sync::Arc;

use arrow_array::{BooleanArray, Float64Array, StringArray};
use proptest::prelude::*;

use super::*;
use crate::testing::{batch, ints, texts};

/// Decodes the encoded batch in pieces of `piece` bytes, and collects the records as JSON lines.
fn through(format: ExecFormat, batch: &RecordBatch, piece: usize) -> Vec<u8> {
    let mut encoded = BytesMut::new();
    encode(format, batch, &mut encoded).expect("it can be encoded");
    let mut decoder = Decoder::new(format, batch.schema());
    let mut again = BytesMut::new();
    let mut take = |decoder: &mut Decoder| {
        while let Some(batch) = decoder.next_batch().expect("it was encoded here") {
            assert!(batch.num_rows() <= BATCH_ROWS);
            encode(ExecFormat::JsonLines, &batch, &mut again).expect("it can be encoded");
        }
    };
    for piece in encoded.chunks(piece) {
        decoder.buffer().extend_from_slice(piece);
        take(&mut decoder);
    }
    decoder.end();
    take(&mut decoder);
    again.to_vec()
}

fn as_json(batch: &RecordBatch) -> Vec<u8> {
    let mut encoded = BytesMut::new();
    encode(ExecFormat::JsonLines, batch, &mut encoded).expect("it can be encoded");
    encoded.to_vec()
}

proptest! {
    #[test]
    fn texts_come_back_as_they_went(
        values in prop::collection::vec("[a-zä \"\\\\]{0,9}", 1..50),
        piece in 1_usize..40,
        format in prop::sample::select(&ExecFormat::ALL[..]),
    ) {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let records = texts("line", &values);
        prop_assert_eq!(through(format, &records, piece), as_json(&records));
    }
}

#[test]
fn all_types_come_back_through_json() {
    let records = batch([
        (
            "word",
            Arc::new(StringArray::from(vec!["a\nb", "\0"])) as ArrayRef,
        ),
        ("count", ints(&[i64::MIN, i64::MAX])),
        ("share", Arc::new(Float64Array::from(vec![0.5, -2.0]))),
        ("seen", Arc::new(BooleanArray::from(vec![true, false]))),
    ]);
    for format in [ExecFormat::JsonLines, ExecFormat::JsonFrames] {
        assert_eq!(through(format, &records, 3), as_json(&records));
    }
}

#[test]
fn a_frame_holds_what_no_line_does() {
    let records = texts("line", &["a\nb"]);
    assert_eq!(through(ExecFormat::Frames, &records, 2), as_json(&records));
    let error = encode(ExecFormat::Lines, &records, &mut BytesMut::new()).expect_err("no line");
    assert!(error.to_string().contains("line break"), "{error}");
}

fn read(format: ExecFormat, schema: &RecordBatch, text: &[u8]) -> Result<usize, String> {
    let mut decoder = Decoder::new(format, schema.schema());
    decoder.buffer().extend_from_slice(text);
    decoder.end();
    let batch = decoder.next_batch().map_err(|error| error.to_string())?;
    Ok(batch.map_or(0, |batch| batch.num_rows()))
}

#[test]
fn what_can_not_be_read_is_said_with_the_record() {
    let texts = texts("line", &[]);
    let numbers = batch([("n", ints(&[]))]);
    assert_eq!(read(ExecFormat::Lines, &texts, b"a\r\n\nb"), Ok(3));
    for (format, columns, text, expected) in [
        (ExecFormat::Lines, &texts, &b"\xff\n"[..], "not UTF-8"),
        (ExecFormat::Frames, &texts, b"\0\0\0\x02a", "within a frame"),
        (ExecFormat::Frames, &texts, b"\x7f\0\0\0", "longer than"),
        (
            ExecFormat::JsonLines,
            &numbers,
            b"{\"n\": \"1\"}",
            "`n` is no int64, at record [{\"n\"",
        ),
        (ExecFormat::JsonLines, &numbers, b"{}", "`n` is missing"),
        (ExecFormat::JsonLines, &numbers, b"7", "no JSON object"),
    ] {
        let error = read(format, columns, text).expect_err("it can't be read");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_time_is_a_text_and_what_is_missing_is_null() {
    let times = arrow_array::TimestampMillisecondArray::from(vec![Some(5), None]);
    let columns = [("t", Arc::new(times) as ArrayRef, true)];
    let records = RecordBatch::try_from_iter_with_nullable(columns).expect("one column");
    let text = String::from_utf8(as_json(&records)).expect("JSON");
    assert_eq!(text, "{\"t\":\"1970-01-01T00:00:00.005Z\"}\n{\"t\":null}\n");
}
