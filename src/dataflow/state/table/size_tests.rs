//! How much snapshots write and name, beside the size of the state, by how much of it changes between them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tanist_proto::v1::{CheckpointBarrier, SubtaskSnapshot};

use super::*;
use crate::state::Restored;

const UID: &str = "count";
const MAX_PARALLELISM: u32 = 128;

/// A table whose snapshots are all durable at once.
struct World {
    table: StateTable<u64>,
    number: u64,
    base: Option<Arc<SubtaskSnapshot>>,
    /// Bytes of each segment, by its number.
    sizes: BTreeMap<u64, u64>,
    objects: BTreeMap<u64, Vec<u8>>,
}

/// What a snapshot has, in bytes.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    written: u64,
    /// All segments that it names.
    named: u64,
}

fn table() -> StateTable<u64> {
    let groups = KeyGroups::of_subtask(0, 1, MAX_PARALLELISM);
    StateTable::new("counts", "counts".to_owned(), groups, |value, bytes| {
        bytes.extend(value.to_le_bytes());
    })
}

impl World {
    fn with_keys(keys: Range<u64>) -> World {
        let mut world = World {
            table: table(),
            number: 0,
            base: None,
            sizes: BTreeMap::new(),
            objects: BTreeMap::new(),
        };
        world.set(keys);
        world
    }

    fn set(&mut self, keys: impl IntoIterator<Item = u64>) {
        for key in keys {
            self.table.insert(0, &key.to_le_bytes(), self.number);
        }
    }

    fn snapshot(&mut self) -> Sizes {
        let barrier = CheckpointBarrier {
            number: self.number + 1,
            newest: self.number,
            ..CheckpointBarrier::default()
        };
        self.number += 1;
        let mut snapshot = Snapshot::of(barrier).going_on_from(self.base.as_ref(), UID);
        self.table.freeze(&mut snapshot);
        let mut encoded = SubtaskSnapshot::default();
        snapshot.add_to(&mut encoded, UID).expect("its own keys");
        let mut written = 0;
        for segment in &mut encoded.segments {
            if segment.written_in == self.number {
                segment.object = format!("o{}", self.number);
                written = segment.length;
                self.sizes.insert(self.number, written);
                let content = std::mem::take(&mut segment.content);
                self.objects.insert(self.number, content);
            }
        }
        let named = encoded.segments.iter().map(|it| self.sizes[&it.written_in]);
        let named = named.sum();
        self.base = Some(Arc::new(encoded));
        Sizes { written, named }
    }

    /// Bytes of the state, if it is written alone.
    fn size(&mut self) -> u64 {
        let mut snapshot = Snapshot::of(CheckpointBarrier::default());
        let (last, known) = (self.table.last, self.table.known.clone());
        self.table.freeze(&mut snapshot);
        (self.table.last, self.table.known) = (last, known);
        let mut encoded = SubtaskSnapshot::default();
        snapshot.add_to(&mut encoded, UID).expect("its own keys");
        encoded.segments.iter().map(|it| it.length).sum()
    }

    /// What is restored is what there is.
    fn check(&self) {
        let base = self.base.as_ref().expect("a snapshot was taken");
        let mut snapshot = SubtaskSnapshot::clone(base);
        for segment in &mut snapshot.segments {
            segment
                .content
                .clone_from(&self.objects[&segment.written_in]);
        }
        let mut restored = table();
        let read = |entry: SavedEntry<'_>| {
            let value = entry.value().try_into().map_err(|_| "it is odd".to_owned());
            value.map(u64::from_le_bytes)
        };
        let loaded = restored.restore(&Restored::of(UID, &snapshot), read);
        loaded.expect("intact");
        assert_eq!(restored.len(), self.table.len());
        for (key, value) in self.table.entries(0) {
            assert_eq!(restored.get(0, key), Some(value));
        }
    }
}

/// Runs snapshots between which this percentage of the keys changes. Returns the bytes that a snapshot writes on
/// average, the most that one writes, and the most that one names, each in thousandths of the state.
fn run(percent: u64, snapshots: u64) -> [u64; 3] {
    const KEYS: u64 = 20_000;
    let mut world = World::with_keys(0..KEYS);
    let state = world.snapshot().written;
    let (mut written, mut most, mut named) = (0, 0, 0);
    let changed = KEYS * percent / 100;
    for number in 0..snapshots {
        // A step that has no common divisor with the number of keys: all change equally often.
        world.set((0..changed).map(|it| (number * changed + it) * 7_919 % KEYS));
        let sizes = world.snapshot();
        written += sizes.written;
        most = most.max(sizes.written);
        named = named.max(sizes.named);
    }
    world.check();
    [written / snapshots, most, named].map(|bytes| bytes * 1_000 / state)
}

#[test]
fn what_is_named_is_in_proportion_to_the_state_whatever_share_of_the_keys_changes() {
    for (percent, snapshots) in [(100, 20), (60, 20), (40, 20), (20, 30), (10, 40), (3, 60)] {
        let [written, most, named] = run(percent, snapshots);
        println!("{percent} % changed: {written} ‰ written, at most {most} ‰, {named} ‰ named");
        // The state, half of it in changes, and what is written again before the first segment is free.
        assert!(named <= 2_600, "{percent} % changed: {named} ‰ named");
        let average = (30 * percent).min(1_010);
        assert!(
            written <= average,
            "{percent} % changed: {written} ‰ written"
        );
    }
}

#[test]
fn with_one_percent_of_the_keys_changed_three_percent_of_the_state_are_written() {
    let [written, most, named] = run(1, 150);
    println!("{written} ‰ written, at most {most} ‰, {named} ‰ named");
    assert!(
        written <= 30 && most <= 160 && named <= 2_600,
        "{written} ‰, {most} ‰, {named} ‰"
    );
}

#[test]
fn a_state_that_has_become_smaller_soon_names_little() {
    let mut world = World::with_keys(0..20_000);
    let before = world.snapshot().named;
    // A tenth is left: written whole at once.
    for key in 2_000..20_000_u64 {
        world.table.remove(0, &key.to_le_bytes());
    }
    world.snapshot();
    let sizes = world.snapshot();
    assert!(sizes.named < before / 8, "{sizes:?} of {before}");
    world.check();
    // A quarter is left: slice by slice.
    let mut world = World::with_keys(0..20_000);
    world.snapshot();
    for key in 5_000..20_000_u64 {
        world.table.remove(0, &key.to_le_bytes());
    }
    let mut named = u64::MAX;
    for _ in 0..20 {
        world.set([1]);
        named = world.snapshot().named;
    }
    let size = world.size();
    assert!(named <= 3 * size, "{named} bytes for {size}");
    world.check();
}

#[test]
fn a_namespace_that_is_dropped_is_not_named_for_long() {
    let mut world = World::with_keys(0..500);
    for key in 0..20_000_u64 {
        world.table.insert(1, &key.to_le_bytes(), 1);
    }
    let before = world.snapshot().named;
    world.table.drop_namespace(1);
    let sizes = world.snapshot();
    assert!(sizes.named < before / 20, "{sizes:?} of {before}");
    world.check();
}

#[test]
fn a_segment_of_which_little_counts_is_freed_although_its_last_slices_never_change() {
    let mut world = World::with_keys(0..20_000);
    let state = world.snapshot().written;
    let groups = KeyGroups::of_subtask(0, 1, MAX_PARALLELISM);
    let whole = Subject::whole(String::new(), groups, 1);
    let keys = (0..20_000_u64).filter(|key| {
        let slice = whole.slice_of(key_hash(&key.to_le_bytes()));
        slice.is_some_and(|slice| slice < 6)
    });
    let changing: Vec<u64> = keys.collect();
    let mut named = 0;
    for number in 0..30 {
        let share = changing.iter().skip(number % 3).step_by(3).copied();
        world.set(share.collect::<Vec<_>>());
        named = world.snapshot().named;
    }
    world.check();
    let base = world.base.as_ref().expect("taken");
    assert!(
        base.segments.iter().all(|it| it.written_in != 1),
        "the first one is freed"
    );
    assert!(named < 3 * state, "{named} bytes for {state}");
}
