//! Samples of what operators have saved: bytes that a version wrote stay readable, and are written as they were. A
//! format that changes gets another number, and a sample of its own beside this one.

use tanist_proto::v1::DatagenPosition;

use super::{restored, small};

/// `SmallState` in the frame of format 1.
const SMALL_STATE_1: &str = "746e53530100e1bf033f118f3aea0a0c6461746167656e2062792032120408071002";

fn position() -> DatagenPosition {
    DatagenPosition {
        next: 7,
        step: 2,
        rest: Vec::new(),
    }
}

fn bytes(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("digits")
    };
    digits.map(byte).collect()
}

#[test]
fn a_small_state_kept_from_format_one_is_still_read() {
    let read = restored::<DatagenPosition>(&bytes(SMALL_STATE_1), "datagen by 2");
    assert_eq!(read, Ok(position()));
}

#[test]
fn a_small_state_is_still_written_as_it_was_in_format_one() {
    let written = small("datagen by 2", &position());
    let text: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text, SMALL_STATE_1);
}
