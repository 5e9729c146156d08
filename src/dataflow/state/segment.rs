//! Segments of keyed state: entries, ordered by the hash of their key, then by namespace, then by key. So the entries
//! of a range of key groups are one piece of the segment. All counts and lengths are those of protobuf; the frame has
//! the checksum (`sealed.rs`).
//!
//! ```text
//! SegmentHeader      length-delimited
//! SegmentEntry ...   length-delimited, as many as the header says
//! ```
//!
//! The reader trusts nothing that it can check: order, groups and number of the entries.

use prost::Message as _;
use tanist_proto::v1::{SegmentEntry, SegmentHeader};

use super::error::StateProblem;
use super::key_groups::KeyGroups;
use super::sealed::{self, Kind};
use crate::key::key_hash;

/// An entry that is to be saved: namespace, key, and what writes its value.
type Unsaved<'k, V> = (u64, i64, &'k [u8], V);

/// Takes an entry: namespace, key and value. Fails with the reason why it can't read the value.
type Take<'t> = dyn FnMut(i64, &[u8], &[u8]) -> Result<(), String> + 't;

/// Encodes entries, given in any order as namespace, key and value. `write` appends a value. Fails if a key belongs to
/// another subtask or is there twice in a namespace.
pub(super) fn encode<'k, V>(
    signature: &str,
    groups: KeyGroups,
    entries: impl Iterator<Item = (i64, &'k [u8], V)>,
    mut write: impl FnMut(V, &mut Vec<u8>),
) -> Result<Vec<u8>, StateProblem> {
    let entries = entries.map(|(namespace, key, value)| (key_hash(key), namespace, key, value));
    let mut entries: Vec<Unsaved<'k, V>> = entries.collect();
    if entries.iter().any(|(hash, ..)| !groups.contain_hash(*hash)) {
        return Err(StateProblem::damaged("a key belongs to another subtask"));
    }
    let place = |entry: &Unsaved<'k, V>| (entry.0, entry.1, entry.2);
    entries.sort_unstable_by_key(place);
    if entries.is_sorted_by(|one, next| place(one) < place(next)) {
        let header = SegmentHeader {
            signature: signature.to_owned(),
            max_parallelism: groups.max_parallelism(),
            entries: entries.len() as u64,
        };
        return Ok(sealed::seal(Kind::Segment, |bytes| {
            bytes.extend(header.encode_length_delimited_to_vec());
            let mut entry = SegmentEntry::default();
            for (_, namespace, key, value) in entries {
                entry.namespace = namespace;
                entry.key.clear();
                entry.key.extend_from_slice(key);
                entry.value.clear();
                write(value, &mut entry.value);
                let written = entry.encode_length_delimited(bytes);
                written.expect("a vector grows as needed");
            }
        }));
    }
    Err(StateProblem::damaged("a key is there twice"))
}

/// Passes on the entries of these key groups, in order: namespace, key and value. Checks all of the segment.
pub(super) fn decode(
    bytes: &[u8],
    signature: &str,
    groups: KeyGroups,
    each: &mut Take<'_>,
) -> Result<(), StateProblem> {
    let damaged = |error: prost::DecodeError| StateProblem::damaged(error.to_string());
    let mut rest = sealed::open(Kind::Segment, bytes)?;
    let header = SegmentHeader::decode_length_delimited(&mut rest).map_err(damaged)?;
    let found = described(&header.signature, header.max_parallelism);
    let expected = described(signature, groups.max_parallelism());
    if found != expected {
        return Err(StateProblem::Foreign { found, expected });
    }
    let mut last: Option<(u64, SegmentEntry)> = None;
    for _ in 0..header.entries {
        let entry = SegmentEntry::decode_length_delimited(&mut rest).map_err(damaged)?;
        let hash = key_hash(&entry.key);
        let follows = last.as_ref().is_none_or(|(before, last)| {
            (*before, last.namespace, &last.key) < (hash, entry.namespace, &entry.key)
        });
        if !follows {
            return Err(StateProblem::damaged("its entries are not in order"));
        }
        if groups.contain_hash(hash) {
            let taken = each(entry.namespace, &entry.key, &entry.value);
            taken.map_err(StateProblem::Damaged)?;
        }
        last = Some((hash, entry));
    }
    match rest.len() {
        0 => Ok(()),
        more => Err(StateProblem::damaged(format!(
            "{more} bytes follow its last entry"
        ))),
    }
}

fn described(signature: &str, max_parallelism: u32) -> String {
    format!("{signature} in {max_parallelism} key groups")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Entries = BTreeMap<(i64, Vec<u8>), Vec<u8>>;

    fn encoded(entries: &Entries, groups: KeyGroups) -> Result<Vec<u8>, StateProblem> {
        let entries = entries.iter();
        let entries = entries.map(|((namespace, key), value)| (*namespace, &key[..], value));
        encode("counts", groups, entries, |value, bytes| {
            bytes.extend_from_slice(value);
        })
    }

    fn decoded(bytes: &[u8], groups: KeyGroups) -> Result<Entries, StateProblem> {
        let mut entries = Entries::new();
        decode(bytes, "counts", groups, &mut |namespace, key, value| {
            entries.insert((namespace, key.to_vec()), value.to_vec());
            Ok(())
        })?;
        Ok(entries)
    }

    fn all(max_parallelism: u32) -> KeyGroups {
        KeyGroups::of_subtask(0, 1, max_parallelism)
    }

    fn sample() -> Entries {
        let keys = ["a", "b", "", "longer"].map(|key| key.as_bytes().to_vec());
        let entries = keys.into_iter().zip([-5, 0, 7, 0]);
        entries
            .map(|(key, start)| ((start, key.clone()), key))
            .collect()
    }

    proptest! {
        #[test]
        fn each_range_of_key_groups_has_exactly_its_entries(
            entries in prop::collection::btree_map(
                (-3_i64..3, prop::collection::vec(any::<u8>(), 0..6)),
                prop::collection::vec(any::<u8>(), 0..6),
                0..60,
            ),
            parallelism in 1_u32..6,
        ) {
            let segment = encoded(&entries, all(16)).expect("all are its own");
            prop_assert_eq!(&decoded(&segment, all(16)).expect("intact"), &entries);
            let mut found = Entries::new();
            for subtask in 0..parallelism {
                let groups = KeyGroups::of_subtask(subtask, parallelism, 16);
                let part = decoded(&segment, groups).expect("intact");
                prop_assert!(part.keys().all(|(_, key)| groups.contain(key)));
                found.extend(part);
            }
            prop_assert_eq!(found, entries);
        }
    }

    #[test]
    fn each_damaged_or_missing_byte_is_noticed() {
        let intact = encoded(&sample(), all(8)).expect("encoded");
        for index in 0..intact.len() {
            for bit in 0..8 {
                let mut damaged = intact.clone();
                damaged[index] ^= 1 << bit;
                decoded(&damaged, all(8)).expect_err("damaged");
            }
            decoded(&intact[..index], all(8)).expect_err("truncated");
        }
        let mut longer = intact;
        longer.push(0);
        decoded(&longer, all(8)).expect_err("too long");
    }

    #[test]
    fn entries_that_a_wrong_writer_sealed_are_noticed() {
        let entry = |key: &[u8]| SegmentEntry {
            key: key.to_vec(),
            ..SegmentEntry::default()
        };
        let (a, b) = (entry(b"a"), entry(b"b"));
        let ordered = match key_hash(b"a") < key_hash(b"b") {
            true => [a.clone(), b.clone()],
            false => [b.clone(), a.clone()],
        };
        let [first, second] = ordered.clone();
        let sealed = |entries: &[SegmentEntry], count: u64| {
            let header = SegmentHeader {
                signature: "counts".to_owned(),
                max_parallelism: 8,
                entries: count,
            };
            sealed::seal(Kind::Segment, |bytes| {
                bytes.extend(header.encode_length_delimited_to_vec());
                let entries = entries
                    .iter()
                    .map(SegmentEntry::encode_length_delimited_to_vec);
                entries.for_each(|entry| bytes.extend(entry));
            })
        };
        decoded(&sealed(&ordered, 2), all(8)).expect("intact");
        decoded(&sealed(&ordered, 1), all(8)).expect_err("one more");
        decoded(&sealed(&ordered, 3), all(8)).expect_err("one is missing");
        decoded(&sealed(&[second, first.clone()], 2), all(8)).expect_err("not in order");
        decoded(&sealed(&[first.clone(), first], 2), all(8)).expect_err("twice");
    }

    #[test]
    fn keys_of_another_subtask_and_keys_that_are_there_twice_are_not_saved() {
        let half = KeyGroups::of_subtask(0, 2, 8);
        let key = (0..=u8::MAX)
            .map(|byte| vec![byte])
            .find(|key| !half.contain(key));
        let foreign = Entries::from([((0, key.expect("one of many")), Vec::new())]);
        encoded(&foreign, half).expect_err("of another subtask");
        let twice = [(0, &b"a"[..], ()), (0, b"a", ())];
        encode("counts", all(8), twice.into_iter(), |(), _| {}).expect_err("twice");
    }

    #[test]
    fn the_state_of_something_else_is_named() {
        let segment = encoded(&sample(), all(8)).expect("encoded");
        let problem = decode(&segment, "sums", all(8), &mut |_, _, _| Ok(()));
        let problem = problem.expect_err("foreign").to_string();
        assert_eq!(
            problem,
            "is that of counts in 8 key groups, and the operator needs that of sums in 8 key groups"
        );
        let problem = decoded(&segment, all(16)).expect_err("other groups");
        assert!(matches!(problem, StateProblem::Foreign { .. }), "{problem}");
    }
}
