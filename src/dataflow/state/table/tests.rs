//! The table beside a plain map.

use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message as _;
use tanist_proto::v1::{CheckpointBarrier, KeyGroupRange, SubtaskSnapshot};

use super::*;
use crate::state::segment::Segment;
use crate::state::{Restored, StateError};

const MAX_PARALLELISM: u32 = 16;

type Model = BTreeMap<(i64, Vec<u8>), u64>;

fn table(groups: KeyGroups) -> StateTable<u64> {
    StateTable::new("counts", "counts".to_owned(), groups, |value, bytes| {
        bytes.extend(value.to_le_bytes());
    })
}

fn read(entry: SavedEntry<'_>) -> Result<u64, String> {
    let bytes = entry
        .value()
        .try_into()
        .map_err(|_| "it is odd".to_owned())?;
    Ok(u64::from_le_bytes(bytes))
}

fn whole() -> KeyGroups {
    KeyGroups::of_subtask(0, 1, MAX_PARALLELISM)
}

/// All that the table says of its entries.
fn content(table: &StateTable<u64>) -> Model {
    let namespaces: Vec<i64> = table.namespaces().collect();
    let mut content = Model::new();
    for namespace in namespaces {
        for (key, value) in table.entries(namespace) {
            assert_eq!(table.get(namespace, key), Some(value));
            let before = content.insert((namespace, key.to_vec()), *value);
            assert_eq!(before, None, "it is there twice");
        }
    }
    assert_eq!(table.len(), content.len());
    assert_eq!(table.is_empty(), content.is_empty());
    content
}

fn encoded(snapshot: Snapshot) -> SubtaskSnapshot {
    let mut subtask = SubtaskSnapshot::default();
    snapshot
        .add_to(&mut subtask, "count")
        .expect("its own keys");
    subtask
}

fn restored(subtask: &SubtaskSnapshot, groups: KeyGroups) -> Result<StateTable<u64>, StateError> {
    let mut table = table(groups);
    table.restore(&Restored::of("count", subtask), read)?;
    Ok(table)
}

/// A key: short and long ones, of which some have the same hash in the lower bits of a page.
fn key(number: u16) -> Vec<u8> {
    match number % 5 {
        0 => [&number.to_le_bytes()[..], &[9; 30]].concat(),
        _ => number.to_le_bytes().to_vec(),
    }
}

#[derive(Debug, Clone)]
enum Step {
    Add(i64, u16, u64),
    /// Adds a range of keys, so that pages are divided.
    AddMany(i64, u16),
    Remove(i64, u16),
    Drop(i64),
    Take(i64),
    Freeze,
    /// Goes on with what the last snapshot has.
    Restore,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (-1_i64..3, 0_u16..60, any::<u64>()).prop_map(|(n, k, v)| Step::Add(n, k, v)),
        1 => (-1_i64..3, 0_u16..60_000).prop_map(|(n, k)| Step::AddMany(n, k)),
        4 => (-1_i64..3, 0_u16..60).prop_map(|(n, k)| Step::Remove(n, k)),
        1 => (-1_i64..3).prop_map(Step::Drop),
        1 => (-1_i64..3).prop_map(Step::Take),
        2 => Just(Step::Freeze),
        1 => Just(Step::Restore),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn it_is_a_map_and_what_is_frozen_never_changes(steps in steps()) {
        let (mut table, mut model) = (table(whole()), Model::new());
        // What was frozen, and what it has to be.
        let mut frozen: Vec<(Snapshot, Model)> = Vec::new();
        let mut last: Option<(SubtaskSnapshot, Model)> = None;
        for (number, step) in (1_u64..).zip(steps) {
            match step {
                Step::Add(namespace, number, by) => {
                    let value = table.get_or_insert_with(namespace, &key(number), || 7);
                    *value = value.wrapping_add(by);
                    let value = model.entry((namespace, key(number))).or_insert(7);
                    *value = value.wrapping_add(by);
                }
                Step::AddMany(namespace, first) => {
                    for number in first..first + 2_000 {
                        table.insert(namespace, &key(number), u64::from(number));
                        model.insert((namespace, key(number)), u64::from(number));
                    }
                }
                Step::Remove(namespace, number) => {
                    let removed = table.remove(namespace, &key(number));
                    prop_assert_eq!(removed, model.remove(&(namespace, key(number))));
                }
                Step::Drop(namespace) => {
                    table.drop_namespace(namespace);
                    model.retain(|(of, _), _| *of != namespace);
                }
                Step::Take(namespace) => {
                    let taken = table.take(namespace);
                    let taken = taken.map(|(key, value)| ((namespace, key.bytes().to_vec()), value));
                    let expected = model.extract_if(.., |(of, _), _| *of == namespace);
                    prop_assert_eq!(taken.collect::<Model>(), expected.collect::<Model>());
                }
                Step::Freeze => {
                    let mut snapshot = Snapshot::numbered(number);
                    table.freeze(&mut snapshot);
                    frozen.push((snapshot, model.clone()));
                }
                Step::Restore => {
                    if let Some((snapshot, expected)) = frozen.pop() {
                        last = Some((encoded(snapshot), expected));
                    }
                    if let Some((snapshot, expected)) = &last {
                        table = restored(snapshot, whole()).expect("intact");
                        model = expected.clone();
                    }
                }
            }
            prop_assert_eq!(table.len(), model.len());
        }
        prop_assert_eq!(content(&table), model);
        for (snapshot, expected) in frozen {
            let table = restored(&encoded(snapshot), whole()).expect("intact");
            prop_assert_eq!(content(&table), expected);
        }
    }

    #[test]
    fn segments_together_have_each_key_once_at_any_parallelism(
        keys in prop::collection::btree_set(any::<u16>(), 0..200), before in 1_u32..6, after in 1_u32..6,
    ) {
        let mut subtask = SubtaskSnapshot::default();
        for number in 0..before {
            let groups = KeyGroups::of_subtask(number, before, MAX_PARALLELISM);
            let mut table = table(groups);
            let own = keys.iter().filter(|it| groups.contain(&key(**it)));
            own.for_each(|it| table.insert(0, &key(*it), u64::from(*it)));
            let mut snapshot = Snapshot::numbered(1);
            table.freeze(&mut snapshot);
            snapshot.add_to(&mut subtask, "count").expect("its own keys");
        }
        let mut found = Model::new();
        for number in 0..after {
            let groups = KeyGroups::of_subtask(number, after, MAX_PARALLELISM);
            found.extend(content(&restored(&subtask, groups).expect("intact")));
        }
        let expected = keys.iter().map(|it| ((0, key(*it)), u64::from(*it)));
        prop_assert_eq!(found, expected.collect::<Model>());
    }
}

#[test]
fn an_entry_of_int64_by_int64_takes_48_bytes() {
    for entries in [20_000_u64, 25_000, 30_000, 35_000] {
        let mut table = table(whole());
        let allocated = allocation_counter::measure(|| {
            for key in 0..entries {
                table.insert(0, &key.to_le_bytes(), key);
            }
        });
        let bytes = allocated.bytes_current / i64::try_from(entries).expect("few");
        assert!(
            (40..=48).contains(&bytes),
            "{bytes} bytes of {entries} entries"
        );
        let copied = allocation_counter::measure(|| {
            for key in (0..entries).step_by(100) {
                table.insert(0, &key.to_le_bytes(), 0);
            }
        });
        assert_eq!(copied.bytes_total, 0, "nothing is frozen");
    }
}

#[test]
fn a_restore_divides_no_page_and_moves_no_entry() {
    let mut before = table(whole());
    for key in 0..30_000_u64 {
        before.insert(i64::from(key % 3 == 0), &key.to_le_bytes(), key);
    }
    let mut snapshot = Snapshot::numbered(1);
    before.freeze(&mut snapshot);
    let subtask = encoded(snapshot);
    let mut after = None;
    let allocated = allocation_counter::measure(|| {
        after = Some(restored(&subtask, whole()).expect("intact"));
    });
    let after = after.expect("restored");
    assert_eq!(content(&after), content(&before));
    // With pages that are divided it is 300.
    let bytes = allocated.bytes_total / 30_000;
    assert!(bytes <= 56, "{bytes} bytes an entry");
    let half = KeyGroups::of_subtask(1, 2, MAX_PARALLELISM);
    let allocated = allocation_counter::measure(|| {
        restored(&subtask, half).expect("intact");
    });
    let bytes = allocated.bytes_max / 15_000;
    assert!(bytes <= 56, "{bytes} bytes an entry of half of them");
}

#[test]
fn a_restore_of_a_state_that_was_written_slice_by_slice_divides_no_page() {
    const KEYS: u64 = 30_000;
    let mut before = table(whole());
    before.write_changes_always();
    let mut subtask = None;
    for number in 1..40 {
        for key in (0..KEYS).filter(|key| key % 10 == number % 10 || number == 1) {
            before.insert(0, &key.to_le_bytes(), key + number);
        }
        subtask = Some(going_on(&mut before, number, subtask));
    }
    let subtask = subtask.expect("snapshots were taken");
    let whole_slices = |segment: &StateSegment| {
        let segment = Segment::open(&segment.content, "counts", MAX_PARALLELISM).expect("intact");
        let slices = segment.subject().slices.iter();
        slices.filter(|slice| slice.position == 0).count()
    };
    let of_segments = subtask.segments.iter().map(whole_slices);
    let most = of_segments.max().expect("it has some");
    assert!(most < 8, "no segment has all of it");
    let mut after = None;
    let allocated = allocation_counter::measure(|| {
        after = Some(restored(&subtask, whole()).expect("intact"));
    });
    assert_eq!(content(&after.expect("restored")), content(&before));
    let bytes = allocated.bytes_total / KEYS;
    assert!(bytes <= 60, "{bytes} bytes an entry");
}

#[test]
fn a_state_that_is_loaded_in_parts_is_the_one_that_is_loaded_whole() {
    let mut saved = table(whole());
    saved.write_changes_always();
    for number in 0..u16::MAX {
        saved.insert(7, &key(number), number.into());
    }
    // Namespaces with few keys, some of which are in one part only.
    for number in 0..300 {
        saved.insert(8 + i64::from(number), &key(number), 1);
    }
    let first = going_on(&mut saved, 1, None);
    for number in (0..u16::MAX).step_by(3) {
        saved.insert(7, &key(number), 5);
        saved.remove(7, &key(number + 1));
    }
    saved.drop_namespace(9);
    let subtask = going_on(&mut saved, 2, Some(first));
    assert!(subtask.segments.len() > 1, "it goes on from the first one");
    for groups in [whole(), KeyGroups::of_subtask(1, 3, MAX_PARALLELISM)] {
        let expected = restored(&subtask, groups).expect("intact");
        let mut table = table(groups);
        table.load_in_parts();
        let loaded = table.restore(&Restored::of("count", &subtask), read);
        loaded.expect("intact");
        assert_eq!(content(&table), content(&expected));
        // Its pages are divided further, and have each key once.
        let mut model = content(&table);
        for number in 0..20_000_u32 {
            let key = [&number.to_le_bytes()[..], b"more"].concat();
            if groups.contain(&key) {
                table.insert(7, &key, 1);
                model.insert((7, key), 1);
            }
        }
        assert_eq!(content(&table), model);
    }
    let mut damaged = subtask;
    let last = damaged.segments.len() - 1;
    damaged.segments[last].superseded.clear();
    damaged.segments.remove(0);
    let mut table = table(whole());
    table.load_in_parts();
    let problem = table.restore(&Restored::of("count", &damaged), read);
    problem.expect_err("a segment is missing");
}

/// The snapshot of this number, which goes on from the one before it.
fn going_on(
    table: &mut StateTable<u64>,
    number: u64,
    base: Option<SubtaskSnapshot>,
) -> SubtaskSnapshot {
    let barrier = CheckpointBarrier {
        number,
        newest: number - 1,
        ..CheckpointBarrier::default()
    };
    let base = base.map(Arc::new);
    let mut snapshot = Snapshot::of(barrier).going_on_from(base.as_ref(), "count");
    table.freeze(&mut snapshot);
    encoded(snapshot)
}

fn halves() -> SubtaskSnapshot {
    let mut subtask = SubtaskSnapshot::default();
    for number in 0..2 {
        let groups = KeyGroups::of_subtask(number, 2, MAX_PARALLELISM);
        let mut table = table(groups);
        for key in (0..=u8::MAX).map(|byte| [byte]) {
            if groups.contain(&key) {
                table.insert(0, &key, 1);
            }
        }
        let mut snapshot = Snapshot::numbered(1);
        table.freeze(&mut snapshot);
        snapshot
            .add_to(&mut subtask, "count")
            .expect("its own keys");
    }
    subtask
}

#[test]
fn key_groups_that_no_segment_or_two_segments_have_are_an_error_that_names_the_state() {
    let mut subtask = halves();
    assert_eq!(restored(&subtask, whole()).expect("intact").len(), 256);
    let second = subtask.segments.pop().expect("two");
    let error = restored(&subtask, whole()).expect_err("half is missing");
    assert!(error.to_string().contains("`counts` is damaged"), "{error}");
    subtask.segments.extend([second.clone(), second]);
    restored(&subtask, whole()).expect_err("half is there twice");
    let nothing = restored(&SubtaskSnapshot::default(), whole());
    assert!(nothing.expect("nothing was saved").is_empty());
}

#[test]
fn key_groups_of_a_subtask_that_had_ended_have_no_entries() {
    let mut subtask = halves();
    let half = KeyGroups::of_subtask(0, 2, MAX_PARALLELISM);
    let first = restored(&subtask, half).expect("intact").len();
    subtask.segments[1].content.clear();
    restored(&subtask, whole()).expect_err("it is damaged");
    subtask.segments[1].length = 0;
    let table = restored(&subtask, whole()).expect("half has ended");
    assert_eq!(table.len(), first);
}

#[test]
fn a_value_that_can_t_be_read_and_a_key_of_another_subtask_are_errors_that_name_the_state() {
    let mut odd = table(whole());
    let subtask = halves();
    let restored = Restored::of("count", &subtask);
    let unreadable = odd.restore(&restored, |_| Err("it is odd".to_owned()));
    assert_eq!(
        unreadable.expect_err("unreadable").to_string(),
        "the state `counts` is damaged: it is odd"
    );
    let half = KeyGroups::of_subtask(0, 2, MAX_PARALLELISM);
    let mut table = table(half);
    let key = (0..=u8::MAX)
        .map(|byte| [byte])
        .find(|it| !half.contain(it));
    table.insert(0, &key.expect("one of many"), 1);
    let mut snapshot = Snapshot::numbered(1);
    table.freeze(&mut snapshot);
    let error = snapshot.add_to(&mut SubtaskSnapshot::default(), "count");
    let error = error.expect_err("foreign").to_string();
    assert!(error.contains("another subtask"), "{error}");
}

#[test]
fn key_groups_that_no_snapshot_has_are_an_error_that_names_the_state_and_the_object() {
    let refused = |change: fn(&mut StateSegment)| {
        let mut subtask = halves();
        subtask.segments[1].object = "7-1-abc".to_owned();
        change(&mut subtask.segments[1]);
        let allocated = allocation_counter::measure(|| {
            let error = restored(&subtask, whole())
                .expect_err("damaged")
                .to_string();
            assert!(
                error.contains("`counts` is damaged: in object 7-1-abc: "),
                "{error}"
            );
        });
        let size: usize = subtask.segments.iter().map(|it| it.encoded_len()).sum();
        assert!(
            allocated.bytes_max < 4096 + 32 * size as u64,
            "{allocated:?}"
        );
    };
    refused(|it| it.end_key_group = u32::MAX);
    refused(|it| (it.first_key_group, it.length) = (u32::MAX, 0));
    refused(|it| {
        let ranges = (0..1_000_000).map(|it| KeyGroupRange {
            first: it % 16,
            end: it % 16 + 1,
        });
        it.superseded = ranges.collect();
    });
    refused(|it| it.content.truncate(40));
    refused(|it| it.written_in = 5);
}

proptest! {
    #[test]
    fn a_restore_of_changed_bytes_is_no_panic_and_needs_no_more_than_a_multiple_of_their_number(
        keys in prop::collection::btree_set(any::<u16>(), 0..200),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut table = table(whole());
        keys.iter().for_each(|it| table.insert(i64::from(*it % 3), &key(*it), u64::from(*it)));
        let mut snapshot = Snapshot::numbered(1);
        table.freeze(&mut snapshot);
        let mut subtask = encoded(snapshot);
        let segment = &mut subtask.segments[0];
        let mut content = segment.content.split_off(14);
        for (at, to) in changes {
            let at = at.index(content.len());
            content[at] = to;
        }
        segment.content = crate::state::segment::seal(|bytes| bytes.extend(&content));
        // A namespace needs two bytes, and a page.
        let allocated = allocation_counter::measure(|| drop(restored(&subtask, whole())));
        prop_assert!(allocated.bytes_max < 4096 + 512 * content.len() as u64, "{:?}", allocated);
    }
}

#[test]
fn what_is_not_wanted_any_more_is_not_encoded() {
    let mut table = table(whole());
    table.insert(0, b"a", 1);
    let mut snapshot = Snapshot::numbered(1);
    table.freeze(&mut snapshot);
    let mut unencoded = crate::state::UnencodedSnapshot::of("v", 0);
    unencoded.add(snapshot, "count");
    let unencoded = unencoded.into_encoded().expect_err("it is frozen");
    assert_eq!(unencoded.encode(&|| false), Ok(None));
}
