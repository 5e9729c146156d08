//! Plans a snapshot of a table: which older segments it names, and what the segment that it writes has. Pure.
//!
//! - A snapshot goes on only from the segments of the newest durable snapshot. No snapshot names a segment that was
//!   written for an aborted number.
//! - A *slice* of the key groups is written whole if its changes reach half of the size of its entries, or if it has
//!   too many segments. From then on older segments do not count for its key groups. A snapshot writes only as many
//!   slices whole as are needed to keep up with the changes, so that no checkpoint is much larger than others.
//! - The size of the named segments stays in proportion to the state: slices are written whole too if the state has
//!   become much smaller, or to free a segment of which little counts and that is larger than the slices.
//! - If the segments of the base don't fit together, all slices are written whole.
//! - Sizes of segments are those of bytes that were in memory: a segment whose footer says more is not opened. So sums
//!   of them do not overflow.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use tanist_proto::segments::{counts_for, supersede};
use tanist_proto::v1::StateSegment;

use super::faults::{Fault, is_planted};
use crate::state::KeyGroups;
use crate::state::segment::{Slice, Subject};

/// The slices of a segment. They are known once the segment is encoded.
pub(super) type KnownSlices = Arc<OnceLock<Vec<Slice>>>;

/// When segments are written whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// A state of at most this size, in bytes, is written whole: to name its segments would take as much.
    pub(super) small: u64,
    /// A slice with this number of segments is written whole.
    pub(super) segments: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            small: 32 * 1024,
            segments: 64,
        }
    }
}

/// The segments of a snapshot of a table.
#[derive(Debug)]
pub(super) struct Plan {
    /// The segments of the base that still count, oldest first.
    pub(super) kept: Vec<StateSegment>,
    /// The segment to be written.
    pub(super) subject: Subject,
}

/// The segments of one slice.
#[derive(Debug, Clone, Copy, Default)]
struct SliceSegments {
    /// Their number.
    count: usize,
    /// Bytes of the one that has all entries.
    whole: u64,
    /// Bytes of those that follow.
    changes: u64,
    /// Bytes of the last one that follows.
    last: u64,
    /// Entries and removals of all.
    entries: u64,
    /// Whether a segment is freed once the slice is written whole.
    frees: bool,
}

impl SliceSegments {
    fn bytes(&self) -> u64 {
        self.whole + self.changes
    }
}

/// Plans a snapshot. `subject` is that of a segment with all entries, from which slices are turned into changes. `base`
/// has the segments of the newest durable snapshot, which is `newest`; `known` the slices of segments, by the snapshot
/// that they were written for; `entries` is the number of entries in the table.
pub(super) fn plan(
    subject: Subject,
    entries: u64,
    newest: u64,
    base: Vec<StateSegment>,
    known: &BTreeMap<u64, KnownSlices>,
    limits: Limits,
) -> Plan {
    let whole = |subject| Plan {
        kept: Vec::new(),
        subject,
    };
    if newest == 0 || newest >= subject.number {
        return whole(subject);
    }
    let Some(slices) = slices_of_base(&subject, &base, known) else {
        return whole(subject);
    };
    let bytes: u64 = slices.iter().map(SliceSegments::bytes).sum();
    let live = live_bytes(&slices, bytes, entries);
    if bytes <= limits.small || live <= bytes / 8 {
        return whole(subject);
    }
    let rewritten = rewritten(&slices, live <= bytes / 3, limits);
    let Subject { groups, .. } = subject;
    let mut subject = Subject {
        base: newest,
        ..subject
    };
    let mut kept = base;
    let mut begin = groups.range().0;
    for (index, (slice, of_base)) in subject.slices.iter_mut().zip(&slices).enumerate() {
        if rewritten[index] {
            let superseded = kept.iter_mut();
            let superseded = superseded.filter(|_| !is_planted(Fault::SliceCountsAfterRewrite));
            superseded.for_each(|segment| supersede(segment, begin..slice.end));
        } else {
            slice.position = u32::try_from(of_base.count).unwrap_or(u32::MAX);
        }
        begin = slice.end;
    }
    let (first, end) = groups.range();
    kept.retain(|segment| counts_for(segment, first..end));
    Plan { kept, subject }
}

/// Estimates the bytes of a segment with this number of entries and nothing else, from the mean size of saved ones.
fn live_bytes(slices: &[SliceSegments], bytes: u64, entries: u64) -> u64 {
    let saved: u64 = slices.iter().map(|it| it.entries).sum();
    let live = u128::from(bytes) * u128::from(entries) / u128::from(saved.max(1));
    u64::try_from(live).unwrap_or(u64::MAX)
}

/// The slices that are written whole. `is_shrunk`: the state is much smaller than what is named for it.
fn rewritten(slices: &[SliceSegments], is_shrunk: bool, limits: Limits) -> Vec<bool> {
    // Slices that would reach the limit in the same snapshot take turns: the first one as many snapshots before it as
    // there are slices.
    let early = limits.segments.saturating_sub(slices.len()).max(1);
    let candidate = |slice: &SliceSegments| {
        let excess = (2 * slice.changes).saturating_sub(slice.whole);
        // Whether its changes reach half of it with the next snapshot, if they go on as before.
        let is_half = slice.changes > 0 && 2 * (slice.changes + slice.last) >= slice.whole;
        let is_long = slice.count >= early;
        let is_due = is_long || is_half || slice.frees || is_shrunk;
        is_due.then_some((is_long, slice.count, excess))
    };
    let numbered = slices.iter().enumerate();
    let mut candidates: Vec<_> = numbered
        .filter_map(|(index, slice)| Some((candidate(slice)?, index)))
        .collect();
    candidates.sort_unstable_by(|one, other| other.cmp(one));
    candidates.truncate(turns(slices));
    let is_candidate = |index| candidates.iter().any(|(_, it)| *it == index);
    let slices = slices.iter().enumerate();
    slices
        .map(|(index, slice)| is_candidate(index) || slice.count >= limits.segments)
        .collect()
}

/// How many slices a snapshot writes whole. If changes go on as before, those of a slice reach half of its size in
/// `whole / (2 * last)` snapshots. In that time it is the turn of each slice.
fn turns(slices: &[SliceSegments]) -> usize {
    let last: u64 = slices.iter().map(|it| it.last).sum();
    let whole: u64 = slices.iter().map(|it| it.whole).sum();
    let all = slices.len();
    let turns = (u128::from(last) * 2 * all as u128).div_ceil(u128::from(whole.max(1)));
    usize::try_from(turns).unwrap_or(all).clamp(1, all.max(1))
}

/// The segments of each slice in the base. `None`: not all of them are known, or they don't fit together.
fn slices_of_base(
    subject: &Subject,
    base: &[StateSegment],
    known: &BTreeMap<u64, KnownSlices>,
) -> Option<Vec<SliceSegments>> {
    let mut slices = vec![SliceSegments::default(); subject.slices.len()];
    for segment in base {
        if (segment.first_key_group, segment.end_key_group) != subject.groups.range() {
            return None;
        }
        let of_segment = known.get(&segment.written_in)?.get()?;
        let ends = of_segment.iter().map(|it| it.end);
        if !ends.eq(subject.slices.iter().map(|it| it.end)) {
            return None;
        }
        for index in counting(subject, segment) {
            let (slice, counted) = (&of_segment[index], &mut slices[index]);
            let position = usize::try_from(slice.position).ok()?;
            if position != counted.count {
                return None;
            }
            match position {
                0 => counted.whole = slice.bytes,
                _ => {
                    counted.changes += slice.bytes;
                    counted.last = slice.bytes;
                }
            }
            counted.entries += slice.entries;
            counted.count += 1;
        }
    }
    for segment in base {
        let of_segment = known.get(&segment.written_in)?.get()?;
        let counting: Vec<usize> = counting(subject, segment).collect();
        let bytes: u64 = of_segment.iter().map(|it| it.bytes).sum();
        let counted: u64 = counting.iter().map(|index| of_segment[*index].bytes).sum();
        let cost: u64 = counting.iter().map(|index| slices[*index].bytes()).sum();
        if counted < bytes / 10 * 3 && cost < bytes {
            counting
                .iter()
                .for_each(|index| slices[*index].frees = true);
        }
    }
    slices.iter().all(|it| it.count > 0).then_some(slices)
}

/// The numbers of the slices for which a segment counts.
fn counting(subject: &Subject, segment: &StateSegment) -> impl Iterator<Item = usize> {
    let ends = subject.slices.iter().map(|slice| slice.end);
    let begins = std::iter::once(subject.groups.range().0).chain(ends.clone());
    let ranges = begins.zip(ends).enumerate();
    let counting = ranges.filter(|(_, (begin, end))| counts_for(segment, *begin..*end));
    counting.map(|(index, _)| index)
}

/// The key groups of a subtask for which a segment counts: those of its range that are not superseded.
pub(super) fn counted(own: KeyGroups, segment: &StateSegment) -> Vec<KeyGroups> {
    let ranges = tanist_proto::segments::counted(segment).into_iter();
    let ranges = ranges.map(|range| own.within((range.start, range.end)));
    ranges
        .filter(|groups| groups.range().0 < groups.range().1)
        .collect()
}
