//! Which segments a snapshot of a table names beside the one that it writes, and what that one has. Pure.
//!
//! - A snapshot goes on only from the segments of the newest snapshot that is durable. What was written for a number
//!   that was aborted is named by none.
//! - A *slice* of the key groups whose changes exceed half of what they change is written whole, and so is one with too
//!   many segments: one slice a snapshot, so that no checkpoint is much larger than others. Older segments do not count
//!   for its key groups from then on.
//! - Whatever does not fit together is written whole.
//! - Sizes of segments are those of bytes that were in memory: a segment whose footer says more is not opened. So sums
//!   of them do not overflow.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use tanist_proto::segments::{counts_for, supersede};
use tanist_proto::v1::StateSegment;

use super::faults::{Fault, is_planted};
use crate::state::KeyGroups;
use crate::state::segment::{Slice, Subject};

/// What a segment has of each slice. It is known once the segment is encoded.
pub(super) type KnownSlices = Arc<OnceLock<Vec<Slice>>>;

/// When segments are written whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// A state of at most this size is: to name its segments would take as much. In bytes.
    pub(super) small: u64,
    /// A slice with this number of segments is.
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

/// What a snapshot has of a table.
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
}

/// Plans the snapshot that `subject` is for, as if nothing was saved before. `base` has the segments of the newest
/// durable snapshot, which is `newest`; `known` what segments have, by the snapshot that they were written for.
pub(super) fn plan(
    subject: Subject,
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
    let bytes: u64 = slices.iter().map(|it| it.whole + it.changes).sum();
    if bytes <= limits.small {
        return whole(subject);
    }
    let rewritten = rewritten(&slices, limits);
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
    let first = groups.range();
    kept.retain(|segment| counts_for(segment, first.0..first.1));
    Plan { kept, subject }
}

/// The slices that are written whole.
fn rewritten(slices: &[SliceSegments], limits: Limits) -> Vec<bool> {
    // Those that reach the limit together take turns, the first ones early enough.
    let early = limits.segments.saturating_sub(slices.len()).max(1);
    let exceeds = |slice: &SliceSegments| {
        let excess = (2 * slice.changes).saturating_sub(slice.whole);
        let is_long = slice.count >= early;
        (is_long || excess > 0).then_some((is_long, slice.count, excess))
    };
    let most = slices.iter().enumerate();
    let most = most.filter_map(|(index, slice)| Some((exceeds(slice)?, index)));
    let most = most.max().map(|(_, index)| index);
    let slices = slices.iter().enumerate();
    slices
        .map(|(index, slice)| Some(index) == most || slice.count >= limits.segments)
        .collect()
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
        let mut begin = subject.groups.range().0;
        for (slice, counted) in of_segment.iter().zip(&mut slices) {
            if counts_for(segment, begin..slice.end) {
                let position = usize::try_from(slice.position).ok()?;
                if position != counted.count {
                    return None;
                }
                match position {
                    0 => counted.whole = slice.bytes,
                    _ => counted.changes += slice.bytes,
                }
                counted.count += 1;
            }
            begin = slice.end;
        }
    }
    slices.iter().all(|it| it.count > 0).then_some(slices)
}

/// The key groups of a subtask, in which a segment counts for its range less what is superseded.
pub(super) fn counted(own: KeyGroups, segment: &StateSegment) -> Vec<KeyGroups> {
    let ranges = tanist_proto::segments::counted(segment).into_iter();
    let ranges = ranges.map(|range| own.within((range.start, range.end)));
    ranges
        .filter(|groups| groups.range().0 < groups.range().1)
        .collect()
}
