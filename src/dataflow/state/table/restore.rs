//! Loads the segments of a state into a table: those of each key group from the oldest to the newest.
//!
//! Each own key group has one segment with all of its entries, and then all that go on from that one, in their order.
//! Anything else is damaged state: if a segment is missing, or counts where it should not, the result would be a state
//! that never was.
//!
//! A large state is loaded in parts: equal ranges of hashes, which have no page in common. Threads take one part after
//! the other. All segments of a part are applied before the next part, while its pages are in the processor's cache.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{iter, thread};

use tanist_proto::segments;
use tanist_proto::v1::StateSegment;

use super::StateTable;
use super::directory::{Directory, HashRange};
use super::faults::{Fault, is_planted};
use super::lineage::{KnownSlices, counted};
use crate::key::key_hash;
use crate::state::error::{StateError, StateProblem};
use crate::state::segment::{Item, Segment, Sums};
use crate::state::{KeyGroups, Restored};

/// An entry of a keyed state, as a segment has it.
#[derive(Debug, Clone, Copy)]
pub struct SavedEntry<'s> {
    namespace: i64,
    key: &'s [u8],
    value: &'s [u8],
}

impl<'s> SavedEntry<'s> {
    /// Its namespace.
    pub fn namespace(&self) -> i64 {
        self.namespace
    }

    /// Its key. Any bytes may be in a segment: an operator that decodes keys checks them.
    pub fn key(&self) -> &'s [u8] {
        self.key
    }

    /// Its value, as it was written.
    pub fn value(&self) -> &'s [u8] {
        self.value
    }
}

/// A segment, and the own key groups for which it counts.
struct Counting<'s> {
    /// Where it is; empty: in the snapshot.
    object: &'s str,
    /// The snapshot that it was written for.
    number: u64,
    /// `None`: its subtask had ended, so there are no entries.
    segment: Option<Segment<'s>>,
    groups: Vec<KeyGroups>,
}

impl Counting<'_> {
    /// Forgets the last key group: a fault that tests plant.
    fn skip_last_group(&mut self) {
        let Some(last) = self.groups.pop() else {
            return;
        };
        let (first, end) = last.range();
        self.groups.push(last.within((first, end - 1)));
    }

    fn counts_for(&self, hash: u64) -> bool {
        self.groups.iter().any(|groups| groups.contain_hash(hash))
    }
}

impl<V: Clone + Send + Sync + 'static> StateTable<V> {
    /// Loads what a snapshot has of the state, into an empty table. `read` reads the value of an entry, or says why it
    /// can't; several threads call it. Nothing is loaded if the state was not saved.
    pub fn restore(
        &mut self,
        restored: &Restored<'_>,
        read: impl Fn(SavedEntry<'_>) -> Result<V, String> + Sync,
    ) -> Result<(), StateError> {
        let loaded = self.load_all(restored, read);
        loaded.map_err(|problem| problem.of(self.name))
    }

    fn load_all(
        &mut self,
        restored: &Restored<'_>,
        read: impl Fn(SavedEntry<'_>) -> Result<V, String> + Sync,
    ) -> Result<(), StateProblem> {
        let saved: Vec<&StateSegment> = restored.segments(self.name).collect();
        let mut counting = self.open_all(&saved)?;
        // Each key group gets its segments in the order of their numbers. Segments of different subtasks have no key
        // group in common, so their order does not matter.
        counting.sort_by_key(|it| it.number);
        if !counting.is_empty() {
            check(self.groups, &counting)?;
        }
        if is_planted(Fault::KeyGroupSkipped) {
            counting.iter_mut().for_each(Counting::skip_last_group);
        }
        self.namespaces = self.load(&counting, &read)?;
        if let Some(number) = restored.own_number() {
            self.last = number;
            self.durable = number;
            let segments = counting.iter().filter_map(|it| it.segment.as_ref());
            self.known = segments
                .map(|it| {
                    let known = KnownSlices::new(it.subject().slices.clone().into());
                    (it.subject().number, known)
                })
                .collect();
        }
        Ok(())
    }

    /// Opens the segments that a snapshot names; many bytes in threads.
    fn open_all<'s>(&self, saved: &[&'s StateSegment]) -> Result<Vec<Counting<'s>>, StateProblem> {
        let bytes: usize = saved.iter().map(|it| it.content.len()).sum();
        let open = |number: usize| {
            let saved = saved[number];
            let segment = self.open(saved);
            Ok(Counting {
                object: &saved.object,
                number: saved.written_in,
                segment: segment.map_err(|problem| problem.in_object(&saved.object))?,
                groups: counted(self.groups, saved),
            })
        };
        let opened = in_threads(saved.len(), threads_for(bytes / OPENED), open);
        opened.into_iter().collect()
    }

    /// Opens the segment that a snapshot names. `None`: its subtask had ended.
    fn open<'s>(&self, saved: &'s StateSegment) -> Result<Option<Segment<'s>>, StateProblem> {
        let max = self.groups.max_parallelism();
        if let Some(problem) = segments::problem(saved, 0..max) {
            return Err(StateProblem::Damaged(problem));
        }
        if saved.length == 0 {
            return Ok(None);
        }
        let segment = Segment::open(&saved.content, &self.signature, max)?;
        let subject = segment.subject();
        let groups = (saved.first_key_group, saved.end_key_group);
        if (subject.number, subject.groups.range()) != (saved.written_in, groups) {
            let reason = "a segment is not the one that the snapshot names";
            return Err(StateProblem::damaged(reason));
        }
        Ok(Some(segment))
    }

    /// Applies segments, in their order, to the key groups for which they count.
    fn load(
        &self,
        counting: &[Counting<'_>],
        read: &(impl Fn(SavedEntry<'_>) -> Result<V, String> + Sync),
    ) -> Result<BTreeMap<i64, Directory<V>>, StateProblem> {
        let problem_in = |it: &Counting<'_>, problem: StateProblem| problem.in_object(it.object);
        let segments = counting
            .iter()
            .filter_map(|it| Some((it, it.segment.as_ref()?)));
        let segments: Vec<_> = segments.collect();
        let pieces = segments.iter().map(|(_, segment)| segment.pieces().len());
        let pieces = pieces.sum();
        let namespaces = segments.iter().map(|(_, segment)| segment.entries().len());
        let mut room = BTreeMap::new();
        for (counting, segment) in &segments {
            add_entries(&mut room, counting, segment);
        }
        let threads = match self.parts {
            Some(bits) => 1 << bits,
            None => threads_for(pieces / PART),
        };
        let parts = parts_of(pieces, namespaces.sum()).max(threads);
        let bits = self.parts.unwrap_or(parts.ilog2());
        let load = |number: usize| {
            let mut part = Part::new(self.groups, self.range, bits, number as u64);
            part.make_room(&room);
            let mut sums = Vec::with_capacity(segments.len());
            for (counting, segment) in &segments {
                let loaded = part.load(counting, segment, read);
                sums.push(loaded.map_err(|problem| problem_in(counting, problem))?);
            }
            Ok((part.namespaces, sums))
        };
        let mut parts = Vec::new();
        let mut sums = vec![Sums::default(); segments.len()];
        for loaded in in_threads(1 << bits, threads, load) {
            let (part, found) = loaded?;
            sums.iter_mut().zip(found).for_each(|(sum, it)| *sum += it);
            parts.push(part);
        }
        for ((counting, segment), sums) in segments.iter().zip(sums) {
            let checked = segment.check(sums);
            checked.map_err(|problem| problem_in(counting, problem))?;
        }
        Ok(join(self.range, bits, parts))
    }
}

/// Adds an estimate of the entries of each namespace: how many a segment has in slices that it has whole, in the key
/// groups for which it counts.
fn add_entries(entries: &mut BTreeMap<i64, f64>, counting: &Counting<'_>, segment: &Segment<'_>) {
    let subject = segment.subject();
    let (mut whole, mut all) = (0.0, 0.0);
    for (number, slice) in subject.slices.iter().enumerate() {
        let groups = subject.groups_of(number);
        let count = |range: (u32, u32)| f64::from(range.1.saturating_sub(range.0));
        let within = |own: &KeyGroups| count(own.within((groups.start, groups.end)).range());
        let counted: f64 = counting.groups.iter().map(within).sum();
        let share = counted / count((groups.start, groups.end)).max(1.0);
        all += slice.entries as f64;
        if slice.position == 0 {
            whole += slice.entries as f64 * share;
        }
    }
    if whole > 0.0 {
        for (namespace, count) in segment.entries() {
            *entries.entry(*namespace).or_default() += *count as f64 * whole / all;
        }
    }
}

/// Most threads that restore a state.
const MOST_THREADS: usize = 8;
/// Most parts of a state.
const MOST_PARTS: usize = 1024;
/// Pieces of segments that are worth a part, and a thread: the pages of their entries fit a processor's cache.
const PART: usize = 64;
/// Bytes of segments that are worth a thread to open them.
const OPENED: usize = 1 << 20;

/// The number of parts of a state. Each part reads the pieces in which a namespace begins: not more of them than there
/// are pieces.
fn parts_of(pieces: usize, namespaces: usize) -> usize {
    let most = pieces / namespaces.max(1);
    (pieces / PART).min(most).clamp(1, MOST_PARTS)
}

/// How many of the threads that are worth their cost can run at the same time; at least one.
fn threads_for(worth: usize) -> usize {
    if worth < 2 {
        return 1;
    }
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    worth.min(MOST_THREADS).min(processors)
}

/// Calls `run` with each number below `count`, in threads, and returns what it returned, in order. If there are no more
/// threads, those that there are do all of it.
fn in_threads<R: Send>(count: usize, threads: usize, run: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let run_some = || {
        let numbers = iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        let own = numbers.take_while(|number| *number < count);
        own.map(|number| (number, run(number))).collect::<Vec<_>>()
    };
    let mut done = thread::scope(|scope| {
        let spawn = |_| {
            let thread = thread::Builder::new().name("restore".to_owned());
            thread.spawn_scoped(scope, run_some).ok()
        };
        let others: Vec<_> = (1..threads.min(count)).filter_map(spawn).collect();
        let mut done = run_some();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, returned)| returned).collect()
}

/// Joins the namespaces of 2^`bits` parts.
fn join<V: Clone>(
    range: HashRange,
    bits: u32,
    mut parts: Vec<BTreeMap<i64, Directory<V>>>,
) -> BTreeMap<i64, Directory<V>> {
    if bits == 0 {
        return parts.pop().unwrap_or_default();
    }
    let namespaces = parts.iter().flat_map(BTreeMap::keys).copied();
    let namespaces: BTreeSet<i64> = namespaces.collect();
    let joined = namespaces.into_iter().map(|namespace| {
        let parts = parts.iter_mut().map(|part| {
            let own = part.remove(&namespace);
            own.unwrap_or_else(|| Directory::with_room(range.part(bits), 0))
        });
        (namespace, Directory::join(range, parts.collect()))
    });
    joined.collect()
}

/// The entries of one part of the hashes.
struct Part<V> {
    groups: KeyGroups,
    range: HashRange,
    bits: u32,
    number: u64,
    namespaces: BTreeMap<i64, Directory<V>>,
}

impl<V: Clone> Part<V> {
    fn new(groups: KeyGroups, range: HashRange, bits: u32, number: u64) -> Part<V> {
        Part {
            groups,
            range,
            bits,
            number,
            namespaces: BTreeMap::new(),
        }
    }

    /// Applies the items of a segment that are of this part.
    fn load(
        &mut self,
        counting: &Counting<'_>,
        segment: &Segment<'_>,
        read: &impl Fn(SavedEntry<'_>) -> Result<V, String>,
    ) -> Result<Sums, StateProblem> {
        let (range, bits, number) = (self.range, self.bits, self.number);
        let part_of = |hash: &u64| range.part_of(*hash, bits);
        let pieces = segment.pieces().iter().filter(|piece| {
            let hashes = piece.hashes();
            (part_of(hashes.start())..=part_of(hashes.end())).contains(&number)
        });
        let subject = segment.subject();
        let is_all = counting.groups == [self.groups] && subject.groups == self.groups;
        let range = range.part(bits);
        segment.read(
            pieces,
            |hash| part_of(&hash) == number,
            |item| {
                match item {
                    Item::Dropped(namespace) => self.unload(namespace, counting, is_all),
                    Item::Entry {
                        namespace,
                        hash,
                        key,
                        value,
                        is_of_whole_slice,
                    } if is_all || counting.counts_for(hash) => {
                        let saved = SavedEntry {
                            namespace,
                            key,
                            value,
                        };
                        let value = read(saved).map_err(StateProblem::Damaged)?;
                        let directory = self.namespaces.entry(namespace);
                        let directory = directory.or_insert_with(|| Directory::with_room(range, 0));
                        // A segment has each key once, and none before this one counts for the key group.
                        match is_of_whole_slice {
                            true => directory.load_new(hash, key, value),
                            false => directory.load(hash, key, value),
                        }
                    }
                    Item::Removal {
                        namespace,
                        hash,
                        key,
                    } if is_all || counting.counts_for(hash) => {
                        if let Some(directory) = self.namespaces.get_mut(&namespace) {
                            directory.remove(hash, key, 0, false);
                        }
                    }
                    Item::Entry { .. } | Item::Removal { .. } => {}
                }
                Ok(())
            },
        )
    }

    /// Makes room for the entries of each namespace.
    fn make_room(&mut self, entries: &BTreeMap<i64, f64>) {
        let range = self.range.part(self.bits);
        for (namespace, entries) in entries {
            // A number above the range becomes the largest usize.
            let entries = *entries as usize >> self.bits;
            // A namespace with few entries gets its directory with the first of them.
            if entries > 0 {
                let directory = Directory::with_room(range, entries);
                self.namespaces.insert(*namespace, directory);
            }
        }
    }

    /// Removes the entries of a namespace that are of the key groups of a segment.
    fn unload(&mut self, namespace: i64, counting: &Counting<'_>, is_all: bool) {
        if is_all {
            self.namespaces.remove(&namespace);
            return;
        }
        let Some(directory) = self.namespaces.get_mut(&namespace) else {
            return;
        };
        let pages = directory.share().into_pages();
        for entry in pages.iter().flat_map(|page| page.entries().iter()) {
            let key = entry.key.bytes();
            let hash = key_hash(key);
            if counting.counts_for(hash) {
                directory.remove(hash, key, 0, false);
            }
        }
    }
}

/// Checks that the segments of each own key group are complete. They are in the order of their numbers.
fn check(own: KeyGroups, counting: &[Counting<'_>]) -> Result<(), StateProblem> {
    let (first, end) = own.range();
    let mut bounds = vec![first, end];
    for counting in counting {
        let ranges = counting.groups.iter().map(KeyGroups::range);
        bounds.extend(ranges.flat_map(|(first, end)| [first, end]));
        let slices = counting.segment.iter().flat_map(|it| &it.subject().slices);
        bounds.extend(slices.map(|slice| slice.end));
    }
    bounds.retain(|group| (first..=end).contains(group));
    bounds.sort_unstable();
    bounds.dedup();
    // From one bound to the next all key groups have the same segments.
    for group in bounds.into_iter().filter(|group| *group < end) {
        check_group(group, counting)?;
    }
    Ok(())
}

fn check_group(group: u32, counting: &[Counting<'_>]) -> Result<(), StateProblem> {
    let wrong = |problem: &str| {
        let reason = format!("key group {group}: {problem}");
        Err(StateProblem::damaged(reason))
    };
    let (mut expected, mut last) = (0, None);
    for counting in counting {
        let contains = |it: &KeyGroups| (it.range().0..it.range().1).contains(&group);
        if !counting.groups.iter().any(contains) {
            continue;
        }
        let subject = counting.segment.as_ref().map(Segment::subject);
        let (position, base) = match subject {
            None => (0, 0),
            Some(subject) => {
                let slice = subject.slice_of_group(group);
                let position = slice.map_or(0, |slice| subject.slices[slice].position);
                (position, subject.base)
            }
        };
        if position != expected {
            return wrong("its segments are not all of a state, and each once");
        }
        let follows = last.is_none_or(|last| last < counting.number && last <= base);
        if !follows {
            return wrong("its segments do not follow each other");
        }
        last = Some(counting.number);
        expected += 1;
    }
    match expected {
        0 => wrong("no segment has it"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_as_many_parts_as_are_worth_it() {
        assert_eq!(
            [10, 127, 128, 22_000].map(|it| parts_of(it, 1)),
            [1, 1, 2, 343]
        );
        assert_eq!(parts_of(usize::MAX, 1), MOST_PARTS);
        // Several segments of one namespace, and of many.
        assert_eq!(
            [20, 1_000, 100_000].map(|it| parts_of(22_000, it)),
            [343, 22, 1]
        );
    }

    #[test]
    fn what_threads_return_is_in_order() {
        let squares = |count, threads| in_threads(count, threads, |number| number * number);
        assert_eq!(squares(0, 4), [0; 0]);
        for threads in 1..5 {
            assert_eq!(squares(5, threads), [0, 1, 4, 9, 16]);
        }
    }
}
