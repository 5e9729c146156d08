//! The key groups for which a segment of keyed state counts: its range, less what later segments have all entries of.
//!
//! A segment that was read from a manifest may name any numbers: [`problem`] comes first. The other functions need
//! memory and time for its ranges alone, not for the key groups in them.

use std::ops::Range;

use crate::v1::{KeyGroupRange, StateSegment};

/// Maximum number of ranges of key groups for which a segment does not count. Each is a range of slices, and a subtask
/// has fewer slices.
pub const MAX_SUPERSEDED: usize = 64;

/// Why the key groups of a segment are wrong for a state with these key groups; `None` if they are right.
pub fn problem(segment: &StateSegment, groups: Range<u32>) -> Option<String> {
    let (first, end) = (segment.first_key_group, segment.end_key_group);
    if first > end || first < groups.start || end > groups.end {
        let Range { start, end: last } = groups;
        return Some(format!(
            "a segment has the key groups {first}..{end}, and the state has {start}..{last}"
        ));
    }
    let superseded = segment.superseded.len();
    if superseded > MAX_SUPERSEDED {
        return Some(format!(
            "a segment does not count for {superseded} ranges of key groups, and {MAX_SUPERSEDED} are allowed"
        ));
    }
    let mut begin = first;
    for range in &segment.superseded {
        if range.first < begin || range.first >= range.end || range.end > end {
            return Some(format!(
                "a segment does not count for the key groups {}..{}, which are not in order or not its own",
                range.first, range.end
            ));
        }
        begin = range.end;
    }
    None
}

/// Why a segment is wrong in the snapshot of a subtask with these key groups: it counts for others, too. `None` if it
/// does not.
pub fn beyond(segment: &StateSegment, own: Range<u32>) -> Option<String> {
    let mut counted = counted(segment).into_iter();
    let other = counted.find(|range| range.start < own.start || range.end > own.end)?;
    Some(format!(
        "a segment counts for the key groups {}..{}, and its subtask has {}..{}",
        other.start, other.end, own.start, own.end
    ))
}

/// Number of key groups for which any of the segments counts.
pub fn covered<'s>(segments: impl IntoIterator<Item = &'s StateSegment>) -> u64 {
    let mut ranges: Vec<Range<u32>> = segments.into_iter().flat_map(counted).collect();
    ranges.sort_by_key(|range| range.start);
    let (mut covered, mut begin) = (0, 0);
    for range in ranges {
        covered += u64::from(range.end.saturating_sub(range.start.max(begin)));
        begin = begin.max(range.end);
    }
    covered
}

/// The ranges of key groups for which a segment counts, in order. None of them is empty.
pub fn counted(segment: &StateSegment) -> Vec<Range<u32>> {
    let mut begin = segment.first_key_group;
    let mut counted = Vec::new();
    for superseded in &segment.superseded {
        counted.push(begin..superseded.first.min(segment.end_key_group));
        begin = begin.max(superseded.end);
    }
    counted.push(begin..segment.end_key_group);
    counted.retain(|range| range.start < range.end);
    counted
}

/// Whether a segment counts for any of these key groups.
pub fn counts_for(segment: &StateSegment, groups: Range<u32>) -> bool {
    let mut counted = counted(segment).into_iter();
    counted.any(|range| range.start < groups.end && groups.start < range.end)
}

/// Excludes key groups from those for which a segment counts. Ranges that touch become one.
pub fn supersede(segment: &mut StateSegment, groups: Range<u32>) {
    let superseded = KeyGroupRange {
        first: groups.start,
        end: groups.end,
    };
    let mut all = std::mem::take(&mut segment.superseded);
    all.push(superseded);
    all.sort_by_key(|range| (range.first, range.end));
    for next in all {
        match segment.superseded.last_mut() {
            Some(last) if next.first <= last.end => last.end = last.end.max(next.end),
            _ => segment.superseded.push(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_counts_for_what_is_not_superseded() {
        let mut segment = StateSegment {
            first_key_group: 8,
            end_key_group: 24,
            ..StateSegment::default()
        };
        let mut model: Vec<u32> = (8..24).collect();
        for groups in [10..12, 22..24, 12..13, 8..9, 9..10, 13..22] {
            assert!(counts_for(&segment, groups.clone()));
            supersede(&mut segment, groups.clone());
            model.retain(|group| !groups.contains(group));
            let counted = counted(&segment).into_iter().flatten();
            assert_eq!(counted.collect::<Vec<_>>(), model);
            assert!(!counts_for(&segment, groups));
            for group in 0..30 {
                assert_eq!(
                    counts_for(&segment, group..group + 1),
                    model.contains(&group)
                );
            }
        }
        assert_eq!(segment.superseded.len(), 1, "neighbours are one range");
    }

    fn segment(first: u32, end: u32, superseded: &[(u32, u32)]) -> StateSegment {
        let superseded = superseded.iter();
        StateSegment {
            first_key_group: first,
            end_key_group: end,
            superseded: superseded
                .map(|(first, end)| KeyGroupRange {
                    first: *first,
                    end: *end,
                })
                .collect(),
            ..StateSegment::default()
        }
    }

    #[test]
    fn key_groups_that_no_snapshot_has_are_a_problem() {
        assert_eq!(problem(&segment(8, 24, &[(8, 9), (10, 24)]), 8..24), None);
        assert_eq!(problem(&segment(8, 8, &[]), 0..24), None);
        let many: Vec<(u32, u32)> = (0..1_000).map(|it| (2 * it, 2 * it + 1)).collect();
        for wrong in [
            segment(7, 24, &[]),
            segment(8, 25, &[]),
            segment(8, u32::MAX, &[]),
            segment(24, 8, &[]),
            segment(8, 24, &[(10, 12), (11, 13)]),
            segment(8, 24, &[(10, 12), (8, 9)]),
            segment(8, 24, &[(10, 10)]),
            segment(8, 24, &[(7, 10)]),
            segment(8, 24, &[(10, 25)]),
            segment(8, 24, &[(12, 10)]),
            segment(8, 24, &many),
        ] {
            assert!(problem(&wrong, 8..24).is_some(), "{wrong:?}");
        }
        assert!(problem(&segment(0, 2_000, &many), 0..2_000).is_some());
        assert!(problem(&segment(0, 2_000, &many[..MAX_SUPERSEDED]), 0..2_000).is_none());
    }

    #[test]
    fn covered_key_groups_are_counted_once_and_not_one_by_one() {
        let segments = [
            segment(8, 24, &[(10, 12)]),
            segment(0, 9, &[]),
            segment(11, 13, &[]),
        ];
        assert_eq!(covered(&segments), 23);
        let all = segment(0, u32::MAX, &[]);
        assert_eq!(covered([&all, &all]), u64::from(u32::MAX));
        assert_eq!(covered([]), 0);
    }
}
