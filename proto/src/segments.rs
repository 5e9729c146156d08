//! The key groups for which a segment of keyed state counts: its range, less what later segments have all entries of.

use std::ops::Range;

use crate::v1::{KeyGroupRange, StateSegment};

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

/// A segment no longer counts for these key groups.
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
}
