//! Segments of keyed state: what a subtask wrote of a state for one snapshot. By namespace, then by the hash of the
//! key, then by key, a segment has entries, removals of keys, and namespaces that were dropped.
//!
//! ```text
//! items              length of the key * 4 + kind, as a varint, and then:
//!                      0  entry: the key, the length of the value (varint), the value
//!                      1  removal: the key
//!                      2  namespace of what follows: zigzag varint
//!                      3  namespace of what follows, which was dropped before: the same
//! SegmentFooter
//! its length         u32, little endian
//! ```
//!
//! The key groups are divided into *slices*. Of each, a segment has all entries, or the changes since another snapshot,
//! its *base*. The frame has the checksum (`sealed.rs`). The reader trusts nothing that it can check: order, key
//! groups, number and size of the entries; what does not fit is damaged state. A number of the footer is compared with
//! the length of the items before it is used, so that a damaged one reserves no memory.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Range, RangeInclusive};

use prost::Message as _;
use tanist_proto::segments::MAX_SUPERSEDED;
use tanist_proto::v1::{SegmentFooter, SegmentSlice};

use super::error::StateProblem;
use super::key_groups::KeyGroups;
use super::sealed::{self, Kind};
use crate::key::{group_of_hash, key_hash};

const ENTRY: u64 = 0;
const REMOVAL: u64 = 1;
const NAMESPACE: u64 = 2;
const DROPPED: u64 = 3;

/// A range of key groups in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slice {
    /// The first key group that is not included.
    pub(super) end: u32,
    /// Number of segments that it goes on from; 0: it has all entries.
    pub(super) position: u32,
    /// Bytes of its entries and removals.
    pub(super) bytes: u64,
    /// Their number.
    pub(super) entries: u64,
}

/// Describes a segment: which state, key groups and snapshot it is of. The footer has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) signature: String,
    pub(super) groups: KeyGroups,
    /// The snapshot that it is written for.
    pub(super) number: u64,
    /// The snapshot that slices with a position go on from.
    pub(super) base: u64,
    /// In order, together all key groups.
    pub(super) slices: Vec<Slice>,
}

impl Subject {
    /// The subject of a segment with all entries of a state.
    pub(super) fn whole(signature: String, groups: KeyGroups, number: u64) -> Subject {
        let slices = slices_of(groups).into_iter().map(|end| Slice {
            end,
            position: 0,
            bytes: 0,
            entries: 0,
        });
        Subject {
            signature,
            groups,
            number,
            base: 0,
            slices: slices.collect(),
        }
    }

    /// The number of the slice that has this hash. None: it belongs to another subtask.
    pub(super) fn slice_of(&self, hash: u64) -> Option<usize> {
        self.slice_of_group(group_of_hash(hash, self.groups.max_parallelism()))
    }

    pub(super) fn slice_of_group(&self, group: u32) -> Option<usize> {
        if group < self.groups.range().0 {
            return None;
        }
        self.slices.iter().position(|slice| group < slice.end)
    }

    /// The key groups of a slice.
    pub(super) fn groups_of(&self, slice: usize) -> Range<u32> {
        let before = slice.checked_sub(1).map(|before| self.slices[before].end);
        before.unwrap_or(self.groups.range().0)..self.slices[slice].end
    }
}

/// Most slices of a subtask's key groups.
const SLICES: u32 = 8;
/// Most slices of a segment that is read.
const MOST_SLICES: usize = 64;
// Neighbours among the slices that are superseded are one range.
const _: () = assert!(SLICES as usize <= MAX_SUPERSEDED && SLICES as usize <= MOST_SLICES);

/// The ends of the slices of key groups. There are fewer than [`SLICES`] if there are fewer groups.
pub(super) fn slices_of(groups: KeyGroups) -> Vec<u32> {
    let (first, end) = groups.range();
    let count = end.saturating_sub(first);
    let slices = SLICES.min(count).max(1);
    (1..=slices)
        .map(|slice| first + count * slice / slices)
        .collect()
}

/// Writes a segment: items are added in order.
#[derive(Debug)]
pub(super) struct SegmentWriter<'b> {
    bytes: &'b mut Vec<u8>,
    subject: Subject,
    value: Vec<u8>,
}

impl<'b> SegmentWriter<'b> {
    pub(super) fn new(bytes: &'b mut Vec<u8>, subject: Subject) -> SegmentWriter<'b> {
        SegmentWriter {
            bytes,
            subject,
            value: Vec::new(),
        }
    }

    /// Begins a namespace: the items that follow are of it.
    pub(super) fn namespace(&mut self, namespace: i64, is_dropped: bool) {
        put(self.bytes, if is_dropped { DROPPED } else { NAMESPACE });
        let zigzag = (namespace << 1) ^ (namespace >> 63);
        put(self.bytes, u64::from_ne_bytes(zigzag.to_ne_bytes()));
    }

    /// Adds an entry of a slice. `write` appends the value.
    pub(super) fn entry(&mut self, slice: usize, key: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let begin = self.bytes.len();
        self.key(key, ENTRY);
        self.value.clear();
        write(&mut self.value);
        put(self.bytes, self.value.len() as u64);
        self.bytes.extend_from_slice(&self.value);
        self.count(slice, begin);
    }

    /// Adds the removal of a key of a slice.
    pub(super) fn removal(&mut self, slice: usize, key: &[u8]) {
        let begin = self.bytes.len();
        self.key(key, REMOVAL);
        self.count(slice, begin);
    }

    fn key(&mut self, key: &[u8], kind: u64) {
        put(self.bytes, (key.len() as u64) << 2 | kind);
        self.bytes.extend_from_slice(key);
    }

    fn count(&mut self, slice: usize, begin: usize) {
        let slice = &mut self.subject.slices[slice];
        slice.bytes += (self.bytes.len() - begin) as u64;
        slice.entries += 1;
    }

    /// Bytes up to here.
    pub(super) fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Adds the footer. Returns the slices with their sizes.
    pub(super) fn finish(self) -> Vec<Slice> {
        let Subject {
            signature,
            groups,
            number,
            base,
            slices,
        } = self.subject;
        let saved = slices.iter().map(|slice| SegmentSlice {
            end_key_group: slice.end,
            position: slice.position,
            bytes: slice.bytes,
            entries: slice.entries,
        });
        let footer = SegmentFooter {
            signature,
            max_parallelism: groups.max_parallelism(),
            number,
            base,
            first_key_group: groups.range().0,
            slices: saved.collect(),
        };
        let length = footer.encoded_len();
        footer.encode(self.bytes).expect("a vector grows as needed");
        let length = u32::try_from(length).expect("a signature and few slices");
        self.bytes.extend_from_slice(&length.to_le_bytes());
        slices
    }
}

/// Frames the segment that `write` appends.
pub(super) fn seal(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    sealed::seal(Kind::Segment, write)
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7F | 0x80).expect("8 bits"));
        number >>= 7;
    }
    bytes.push(u8::try_from(number).expect("7 bits"));
}

/// An item of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item<'s> {
    /// A namespace was dropped before what follows.
    Dropped(i64),
    Entry {
        namespace: i64,
        hash: u64,
        key: &'s [u8],
        value: &'s [u8],
        /// Its slice has all entries: no segment before this one counts for its key group.
        is_of_whole_slice: bool,
    },
    Removal {
        namespace: i64,
        hash: u64,
        key: &'s [u8],
    },
}

/// Items of a piece, with the namespaces.
const PIECE: usize = 1024;

/// A run of items of a segment, which can be read without the items before it.
#[derive(Debug)]
pub(super) struct Piece<'s> {
    /// The namespace at its beginning, which a piece before it has begun. Its first item may begin another one.
    namespace: Option<i64>,
    /// Whether no namespace begins in it.
    has_one_namespace: bool,
    /// Its first key, with the namespace and the hash.
    first: Option<(i64, u64, &'s [u8])>,
    /// The first key of the next piece.
    next: Option<(i64, u64, &'s [u8])>,
    items: &'s [u8],
}

impl Piece<'_> {
    fn beginning(namespace: Option<i64>) -> Self {
        Piece {
            namespace,
            has_one_namespace: true,
            first: None,
            next: None,
            items: &[],
        }
    }

    /// A range that has the hashes of all its keys.
    pub(super) fn hashes(&self) -> RangeInclusive<u64> {
        match (self.has_one_namespace, self.first, self.next) {
            (true, Some((of, first, _)), Some((next_of, next, _))) if of == next_of => first..=next,
            (true, Some((_, first, _)), _) => first..=u64::MAX,
            _ => 0..=u64::MAX,
        }
    }
}

/// Entries and removals that were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    entries: u64,
    bytes: u64,
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Sums) {
        self.entries += other.entries;
        self.bytes += other.bytes;
    }
}

/// An item as the bytes of a segment have it.
enum Raw<'s> {
    Namespace { namespace: i64, is_dropped: bool },
    Entry { key: &'s [u8], value: &'s [u8] },
    Removal { key: &'s [u8] },
}

/// Takes the next item from bytes.
#[inline]
fn next_item<'s>(rest: &mut &'s [u8]) -> Result<Raw<'s>, StateProblem> {
    let tag = number(rest)?;
    let kind = tag & 3;
    if kind == NAMESPACE || kind == DROPPED {
        let zigzag = number(rest)?;
        let magnitude = i64::from_ne_bytes((zigzag >> 1).to_ne_bytes());
        return Ok(Raw::Namespace {
            namespace: magnitude ^ -i64::from(zigzag & 1 == 1),
            is_dropped: kind == DROPPED,
        });
    }
    let key = bytes(rest, tag >> 2)?;
    if kind == REMOVAL {
        return Ok(Raw::Removal { key });
    }
    let length = number(rest)?;
    let value = bytes(rest, length)?;
    Ok(Raw::Entry { key, value })
}

/// A segment that is read.
#[derive(Debug)]
pub(super) struct Segment<'s> {
    subject: Subject,
    /// Number of entries of each namespace.
    entries: BTreeMap<i64, usize>,
    pieces: Vec<Piece<'s>>,
}

impl<'s> Segment<'s> {
    /// Opens the segment of a state. Checks its frame and its footer, and divides its items into pieces: that takes a
    /// small part of the time to read them, as only the first key of each piece is hashed.
    pub(super) fn open(
        bytes: &'s [u8],
        signature: &str,
        max_parallelism: u32,
    ) -> Result<Segment<'s>, StateProblem> {
        let damaged = |reason: &str| StateProblem::damaged(reason);
        let content = sealed::open(Kind::Segment, bytes)?;
        let Some((content, length)) = content.split_last_chunk::<4>() else {
            return Err(damaged("it has no footer"));
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some(footer) = content.len().checked_sub(length) else {
            return Err(damaged("its footer is not complete"));
        };
        let (items, footer) = content.split_at(footer);
        let footer = SegmentFooter::decode(footer)
            .map_err(|error| StateProblem::damaged(error.to_string()))?;
        let found = described(&footer.signature, footer.max_parallelism);
        let expected = described(signature, max_parallelism);
        if found != expected {
            return Err(StateProblem::Foreign { found, expected });
        }
        let slices = footer.slices.iter().map(|slice| Slice {
            end: slice.end_key_group,
            position: slice.position,
            bytes: slice.bytes,
            entries: slice.entries,
        });
        if slices.len() > MOST_SLICES {
            return Err(damaged("it has too many slices"));
        }
        let slices: Vec<Slice> = slices.collect();
        let first = footer.first_key_group;
        let ends = std::iter::once(first).chain(slices.iter().map(|slice| slice.end));
        let end = slices.last().map_or(first, |slice| slice.end);
        if !ends.is_sorted() || end > max_parallelism {
            return Err(damaged("its key groups are not in order"));
        }
        let mut sizes = slices.iter().map(|slice| slice.bytes);
        let size = sizes.try_fold(0, u64::checked_add);
        let is_possible = size.is_some_and(|size| size <= items.len() as u64);
        // Each entry or removal has at least one byte, its tag.
        if !is_possible || slices.iter().any(|slice| slice.entries > slice.bytes) {
            return Err(damaged("its footer says more than it has"));
        }
        let has_base = slices.iter().any(|slice| slice.position > 0);
        if has_base && footer.base >= footer.number {
            return Err(damaged("it goes on from a later snapshot"));
        }
        let (entries, pieces) = divided(items)?;
        Ok(Segment {
            subject: Subject {
                signature: footer.signature,
                groups: KeyGroups::between(first, end, max_parallelism),
                number: footer.number,
                base: footer.base,
                slices,
            },
            entries,
            pieces,
        })
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Number of entries of each namespace.
    pub(super) fn entries(&self) -> &BTreeMap<i64, usize> {
        &self.entries
    }

    pub(super) fn pieces(&self) -> &[Piece<'s>] {
        &self.pieces
    }

    /// Passes the items whose hash is wanted to `take`, and all dropped namespaces. `pieces` are in order. Checks each
    /// item. Returns the number and size of the entries and removals that were passed.
    pub(super) fn read<'p>(
        &self,
        pieces: impl Iterator<Item = &'p Piece<'s>>,
        is_wanted: impl Fn(u64) -> bool,
        mut take: impl FnMut(Item<'s>) -> Result<(), StateProblem>,
    ) -> Result<Sums, StateProblem>
    where
        's: 'p,
    {
        let subject = &self.subject;
        let max_parallelism = subject.groups.max_parallelism();
        // The key groups of the slice of the last item, and whether it has all entries.
        let (mut groups, mut is_of_whole_slice) = (0..0, false);
        let mut sums = Sums::default();
        for piece in pieces {
            let mut rest = piece.items;
            let mut namespace = piece.namespace;
            let mut last: Option<(u64, &[u8])> = None;
            while !rest.is_empty() {
                let left = rest.len();
                let (key, value) = match next_item(&mut rest)? {
                    Raw::Namespace {
                        namespace: next,
                        is_dropped,
                    } => {
                        (namespace, last) = (Some(next), None);
                        if is_dropped {
                            take(Item::Dropped(next))?;
                        }
                        continue;
                    }
                    Raw::Entry { key, value } => (key, Some(value)),
                    Raw::Removal { key } => (key, None),
                };
                let Some(namespace) = namespace else {
                    return Err(StateProblem::damaged("an entry has no namespace"));
                };
                let hash = key_hash(key);
                check_order(last, (hash, key))?;
                last = Some((hash, key));
                if !is_wanted(hash) {
                    continue;
                }
                let group = group_of_hash(hash, max_parallelism);
                if !groups.contains(&group) {
                    let Some(slice) = subject.slice_of_group(group) else {
                        return Err(StateProblem::damaged("an entry is not of its key groups"));
                    };
                    groups = subject.groups_of(slice);
                    is_of_whole_slice = subject.slices[slice].position == 0;
                }
                sums.entries += 1;
                sums.bytes += (left - rest.len()) as u64;
                take(match value {
                    Some(value) => Item::Entry {
                        namespace,
                        hash,
                        key,
                        value,
                        is_of_whole_slice,
                    },
                    None => Item::Removal {
                        namespace,
                        hash,
                        key,
                    },
                })?;
            }
            if let Some((of, hash, key)) = piece.next
                && namespace == Some(of)
            {
                check_order(last, (hash, key))?;
            }
        }
        Ok(sums)
    }

    /// Checks that `found` is the number and size of all entries and removals.
    pub(super) fn check(&self, found: Sums) -> Result<(), StateProblem> {
        let Sums {
            entries,
            bytes: size,
        } = found;
        let slices = self.subject.slices.iter();
        let (expected, expected_size) = slices.fold((0, 0), |(entries, size), slice| {
            (entries + slice.entries, size + slice.bytes)
        });
        match (entries, size) == (expected, expected_size) {
            true => Ok(()),
            false => {
                let reason = format!(
                    "it has {entries} entries of {size} bytes instead of {expected} of {expected_size}"
                );
                Err(StateProblem::damaged(reason))
            }
        }
    }
}

/// Divides items into pieces, and counts the entries of each namespace.
fn divided(items: &[u8]) -> Result<(BTreeMap<i64, usize>, Vec<Piece<'_>>), StateProblem> {
    let (mut entries, mut rest) = (BTreeMap::new(), items);
    let (mut namespace, mut count) = (None, None::<&mut usize>);
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    let (mut number, mut from) = (0, rest);
    while !rest.is_empty() {
        if number % PIECE == 0 {
            pieces.push(Piece::beginning(namespace));
            from = rest;
        }
        let item = next_item(&mut rest)?;
        number += 1;
        let before = pieces.len().checked_sub(2);
        let piece = pieces.last_mut().expect("one was begun");
        piece.items = &from[..from.len() - rest.len()];
        let key = match item {
            Raw::Namespace {
                namespace: next, ..
            } => {
                if namespace.is_some_and(|before| before >= next) {
                    return Err(StateProblem::damaged("its namespaces are not in order"));
                }
                namespace = Some(next);
                piece.has_one_namespace = false;
                count = Some(entries.entry(next).or_insert(0));
                continue;
            }
            Raw::Entry { key, .. } => {
                count.iter_mut().for_each(|count| **count += 1);
                key
            }
            Raw::Removal { key } => key,
        };
        let Some(namespace) = namespace else {
            return Err(StateProblem::damaged("an entry has no namespace"));
        };
        if piece.first.is_none() {
            let first = Some((namespace, key_hash(key), key));
            piece.first = first;
            if let Some(before) = before {
                pieces[before].next = first;
            }
        }
    }
    Ok((entries, pieces))
}

/// Checks that a key, with its hash, may follow the one before it.
#[inline]
fn check_order(before: Option<(u64, &[u8])>, next: (u64, &[u8])) -> Result<(), StateProblem> {
    match before.is_some_and(|before| before >= next) {
        true => Err(StateProblem::damaged("its entries are not in order")),
        false => Ok(()),
    }
}

#[inline]
fn number(rest: &mut &[u8]) -> Result<u64, StateProblem> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let Some((byte, behind)) = rest.split_first() else {
            break;
        };
        *rest = behind;
        number |= u64::from(byte & 0x7F) << shift;
        if *byte < 0x80 {
            return Ok(number);
        }
    }
    Err(StateProblem::damaged("a number does not end"))
}

#[inline]
fn bytes<'s>(rest: &mut &'s [u8], length: u64) -> Result<&'s [u8], StateProblem> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let Some((bytes, behind)) = rest.split_at_checked(length) else {
        return Err(StateProblem::damaged("an entry is not complete"));
    };
    *rest = behind;
    Ok(bytes)
}

fn described(signature: &str, max_parallelism: u32) -> String {
    format!("{signature} in {max_parallelism} key groups")
}

#[cfg(test)]
mod tests;
