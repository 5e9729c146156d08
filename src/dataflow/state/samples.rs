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

#[test]
fn a_small_state_kept_from_format_one_is_still_read() {
    let bytes = hex::decode(SMALL_STATE_1).expect("digits");
    let read = restored::<DatagenPosition>(&bytes, "datagen by 2");
    assert_eq!(read, Ok(position()));
}

#[test]
fn a_small_state_is_still_written_as_it_was_in_format_one() {
    let written = small("datagen by 2", &position());
    assert_eq!(hex::encode(written), SMALL_STATE_1);
}
