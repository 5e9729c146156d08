//! Samples of what operators have saved: bytes that a version wrote stay readable, and are written as they were. A
//! format that changes gets another number, and a sample of its own beside this one.

use std::sync::Arc;

use tanist_proto::v1::{CheckpointBarrier, DatagenPosition, SubtaskSnapshot};

use super::{KeyGroups, Restored, SavedEntry, Snapshot, StateError, StateTable, restored, small};

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

/// A segment of format 1 with all entries, and one with changes of it: an entry, a removal and a dropped namespace.
const SEGMENTS_1: [&str; 2] = [
    concat!(
        "746e5347010043a7f585109c05f9020104770101020004620103046301049003787878787878787878787878",
        "7878787878787878787878787878787878787878787878787878787878787878787878787878787878787878",
        "7878787878787878787878787878787878787878787878787878787878787878787878787878787878787878",
        "0105046101020a0c636f756e74206279206b6579100218013206080118042001320608021874200422000000",
    ),
    concat!(
        "746e5347010041cb305700d0bc8f030102000562046101060a0c636f756e74206279206b6579100218022001",
        "320808011001180220013208080210011804200128000000",
    ),
];

fn table() -> StateTable<u8> {
    let groups = KeyGroups::of_subtask(0, 1, 2);
    StateTable::new(
        "counts",
        "count by key".to_owned(),
        groups,
        |value, bytes| {
            bytes.push(*value);
        },
    )
}

fn snapshot(
    table: &mut StateTable<u8>,
    number: u64,
    base: Option<&SubtaskSnapshot>,
) -> SubtaskSnapshot {
    let barrier = CheckpointBarrier {
        number,
        newest: number - 1,
        ..CheckpointBarrier::default()
    };
    let base = base.map(|base| Arc::new(base.clone()));
    let mut snapshot = Snapshot::of(barrier).going_on_from(base.as_ref(), "count");
    table.freeze(&mut snapshot);
    let mut subtask = SubtaskSnapshot::default();
    snapshot
        .add_to(&mut subtask, "count")
        .expect("its own keys");
    subtask
}

/// Snapshots 1 and 2, of which the second one goes on from the first.
fn snapshots() -> [SubtaskSnapshot; 2] {
    let mut table = table();
    table.write_changes_always();
    table.insert(-1, b"w", 1);
    for (key, value) in [(b"a", 2), (b"b", 3), (b"c", 4)] {
        table.insert(0, key, value);
    }
    table.insert(0, &[b'x'; 100], 5);
    let first = snapshot(&mut table, 1, None);
    table.drop_namespace(-1);
    table.insert(0, b"a", 6);
    table.remove(0, b"b");
    let second = snapshot(&mut table, 2, Some(&first));
    [first, second]
}

fn restored_from(snapshot: &SubtaskSnapshot) -> Result<StateTable<u8>, StateError> {
    let mut table = table();
    let read = |entry: SavedEntry<'_>| match entry.value() {
        [value] => Ok(*value),
        _ => Err("it is odd".to_owned()),
    };
    table.restore(&Restored::of("count", snapshot), read)?;
    Ok(table)
}

/// The snapshot, with the segments that were kept.
fn kept() -> SubtaskSnapshot {
    let [_, mut second] = snapshots();
    for (segment, kept) in second.segments.iter_mut().zip(SEGMENTS_1) {
        segment.content = hex::decode(kept).expect("digits");
    }
    second
}

#[test]
fn segments_kept_from_format_one_are_still_read() {
    let table = restored_from(&kept()).expect("intact");
    let of = |key: &[u8]| table.get(0, key).copied();
    assert_eq!(table.len(), 3);
    assert_eq!(
        [of(b"a"), of(b"b"), of(b"c"), of(&[b'x'; 100])],
        [Some(6), None, Some(4), Some(5)]
    );
    assert_eq!(table.get(-1, b"w"), None);
}

#[test]
fn segments_are_still_written_as_they_were_in_format_one() {
    let [first, second] = snapshots();
    let written: Vec<String> = second
        .segments
        .iter()
        .map(|it| hex::encode(&it.content))
        .collect();
    assert_eq!(first.segments.len(), 1);
    assert_eq!(written, SEGMENTS_1);
}

#[test]
fn segments_are_refused_wherever_a_byte_is_changed_or_the_end_is_missing() {
    let intact = kept();
    for segment in 0..SEGMENTS_1.len() {
        let length = intact.segments[segment].content.len();
        for at in 0..length {
            for mask in [1, 0x80, 0xff] {
                let mut damaged = intact.clone();
                damaged.segments[segment].content[at] ^= mask;
                let error = restored_from(&damaged).expect_err("damaged").to_string();
                assert!(error.contains("`counts` is damaged"), "{at}: {error}");
            }
            let mut cut = intact.clone();
            cut.segments[segment].content.truncate(at);
            restored_from(&cut).expect_err("cut");
        }
    }
}
