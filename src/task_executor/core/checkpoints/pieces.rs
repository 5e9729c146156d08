//! The pieces of a snapshot, and which of them become an object. Pure.
//!
//! All large pieces of a snapshot are one object, in the order of the snapshot; small ones travel in the report.

use tanist_ha::blob::range_checksum;
use tanist_proto::v1 as pb;

/// Pieces up to this size travel in the report, in bytes.
const INLINE: usize = 4 * 1024;

/// The pieces of a snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Pieces<'a> {
    snapshot: &'a pb::SubtaskSnapshot,
}

impl<'a> Pieces<'a> {
    /// Of this snapshot.
    pub fn of(snapshot: &'a pb::SubtaskSnapshot) -> Pieces<'a> {
        Pieces { snapshot }
    }

    /// Whether any piece is too large for the report.
    pub fn has_large(self) -> bool {
        let mut all = self.snapshot.segments.iter().chain(&self.snapshot.channels);
        all.any(is_large)
    }

    /// Bytes of all that was saved.
    pub fn total(self) -> u64 {
        let of = self.snapshot;
        let segments = of.segments.iter().chain(&of.channels);
        let segments = segments.map(|it| it.content.len());
        let positions = of.positions.iter().map(|it| it.position.len());
        let operators = of.operators.iter().map(|it| it.content.len());
        let committables = of.committables.iter().map(|it| it.content.len());
        let sizes = segments.chain(positions).chain(operators);
        sizes.chain(committables).map(|size| size as u64).sum()
    }

    /// The content of an object of this name, and the snapshot that names it.
    pub fn into_object(self, object: &str) -> (Vec<u8>, pb::SubtaskSnapshot) {
        let mut snapshot = self.snapshot.clone();
        let segments = snapshot.segments.iter_mut();
        let large = segments.chain(&mut snapshot.channels);
        let mut content = Vec::new();
        for piece in large.filter(|piece| is_large(piece)) {
            let bytes = std::mem::take(&mut piece.content);
            object.clone_into(&mut piece.object);
            piece.offset = content.len() as u64;
            piece.length = bytes.len() as u64;
            piece.checksum = range_checksum(&bytes);
            content.extend(bytes);
        }
        (content, snapshot)
    }
}

fn is_large(piece: &pb::StateSegment) -> bool {
    piece.content.len() > INLINE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(name: &str, size: usize) -> pb::StateSegment {
        pb::StateSegment {
            name: name.to_owned(),
            length: size as u64,
            content: name.bytes().cycle().take(size).collect(),
            ..pb::StateSegment::default()
        }
    }

    #[test]
    fn large_pieces_become_one_object_and_small_ones_stay() {
        let snapshot = pb::SubtaskSnapshot {
            segments: vec![piece("ab", 5_000), piece("c", INLINE), piece("d", 6_000)],
            channels: vec![piece("e", 4_097)],
            ..pb::SubtaskSnapshot::default()
        };
        let pieces = Pieces::of(&snapshot);
        assert!(pieces.has_large());
        assert_eq!(pieces.total(), 5_000 + 4_096 + 6_000 + 4_097);
        let (content, written) = pieces.into_object("3-1-aa");
        assert_eq!(content.len(), 5_000 + 6_000 + 4_097);
        let of =
            |it: &pb::StateSegment| (it.object.clone(), it.offset, it.length, it.content.len());
        let in_object = |offset, length| ("3-1-aa".to_owned(), offset, length, 0);
        assert_eq!(of(&written.segments[0]), in_object(0, 5_000));
        assert_eq!(written.segments[1], snapshot.segments[1]);
        assert_eq!(of(&written.segments[2]), in_object(5_000, 6_000));
        assert_eq!(of(&written.channels[0]), in_object(11_000, 4_097));
        let range = &content[5_000..11_000];
        assert_eq!(range, snapshot.segments[2].content);
        assert_eq!(written.segments[2].checksum, range_checksum(range));
    }

    #[test]
    fn a_snapshot_of_small_pieces_needs_no_object() {
        let snapshot = pb::SubtaskSnapshot {
            segments: vec![piece("a", INLINE); 10],
            ..pb::SubtaskSnapshot::default()
        };
        assert!(!Pieces::of(&snapshot).has_large());
    }
}
