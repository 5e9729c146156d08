//! The pieces of a snapshot, and which of them become an object. Pure.
//!
//! All large pieces of a snapshot are in one object, in the order of the snapshot; small ones travel in the report. So
//! that many small ones make no large report, the largest of them go into the object as well. Contents are never
//! copied: the object's bytes are those of the snapshots.

use std::cmp::Reverse;
use std::sync::Arc;

use bytes::Bytes;
use tanist_ha::blob::range_checksum;
use tanist_proto::pieces::{Piece, pieces};
use tanist_proto::v1 as pb;

/// Pieces up to this size travel in the report, in bytes.
const INLINE: usize = 4 * 1024;
/// Most bytes of pieces that travel in the report.
const MOST_INLINE: usize = 16 * 1024;
/// Pieces up to this size always travel in the report: the name of an object takes as many bytes.
const TINY: usize = 256;

/// The pieces of a snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pieces<'a> {
    snapshot: &'a Arc<pb::SubtaskSnapshot>,
}

impl<'a> Pieces<'a> {
    /// Of this snapshot.
    pub(crate) fn of(snapshot: &'a Arc<pb::SubtaskSnapshot>) -> Pieces<'a> {
        Pieces { snapshot }
    }

    /// Whether any piece has to be in an object.
    pub(crate) fn need_object(self) -> bool {
        self.in_object().contains(&true)
    }

    /// Bytes of all that was saved.
    pub(crate) fn total(self) -> u64 {
        let of = self.snapshot;
        let committables = of.committables.iter().map(|it| it.content.len() as u64);
        let output = of.output.iter();
        let output = output.map(|it| (it.pending_path.len() + it.final_path.len()) as u64);
        let files = of.files.iter().map(|it| it.len() as u64);
        let sizes = pieces(of).map(Piece::size).chain(committables);
        sizes.chain(output).chain(files).sum()
    }

    /// For each piece whether it is in the object.
    fn in_object(self) -> Vec<bool> {
        let sizes: Vec<usize> = pieces(self.snapshot).map(|it| it.content().len()).collect();
        let mut in_object: Vec<bool> = sizes.iter().map(|size| *size > INLINE).collect();
        let mut left: Vec<usize> = (0..sizes.len()).filter(|it| !in_object[*it]).collect();
        let mut inline: usize = left.iter().map(|it| sizes[*it]).sum();
        left.sort_by_key(|it| Reverse(sizes[*it]));
        for piece in left {
            if inline <= MOST_INLINE || sizes[piece] <= TINY {
                break;
            }
            in_object[piece] = true;
            inline -= sizes[piece];
        }
        in_object
    }

    /// The parts of an object of this name, in their order, and the snapshot with their places. The first part is at
    /// `offset`, behind the parts of other snapshots; `offset` is then the end of the last part.
    pub(crate) fn into_object(
        self,
        object: &str,
        offset: &mut u64,
    ) -> (Vec<Bytes>, pb::SubtaskSnapshot) {
        let mut parts = Vec::new();
        let in_object = self.in_object().into_iter().enumerate();
        let places: Vec<Option<pb::ObjectPlace>> = in_object
            .map(|(index, is_in_object)| {
                is_in_object.then(|| {
                    let part = Bytes::from_owner(Part::of(self.snapshot, index));
                    let place = pb::ObjectPlace {
                        object: object.to_owned(),
                        offset: *offset,
                        length: part.len() as u64,
                        checksum: range_checksum(&part),
                    };
                    *offset += place.length;
                    parts.push(part);
                    place
                })
            })
            .collect();
        (parts, with_places(self.snapshot, places))
    }
}

/// The bytes of a piece, which keep its snapshot.
struct Part {
    snapshot: Arc<pb::SubtaskSnapshot>,
    index: usize,
}

impl Part {
    fn of(snapshot: &Arc<pb::SubtaskSnapshot>, index: usize) -> Part {
        Part {
            snapshot: Arc::clone(snapshot),
            index,
        }
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        let piece = pieces(&self.snapshot).nth(self.index);
        piece.map(Piece::content).unwrap_or_default()
    }
}

/// The snapshot in which each piece names its place, if it has one, and has its bytes otherwise.
fn with_places(
    snapshot: &pb::SubtaskSnapshot,
    places: Vec<Option<pb::ObjectPlace>>,
) -> pb::SubtaskSnapshot {
    let pb::SubtaskSnapshot {
        vertex_id,
        subtask,
        ended,
        positions,
        operators,
        segments,
        channels,
        committables,
        output,
        files,
        from_start,
    } = snapshot;
    let mut places = places.into_iter();
    let mut next = || places.next().flatten();
    // In the order of `pieces`: each call of `next` takes the place of the next piece.
    let mut segment = |from: &pb::StateSegment| match next() {
        None => from.clone(),
        Some(place) => pb::StateSegment {
            uid: from.uid.clone(),
            name: from.name.clone(),
            object: place.object,
            offset: place.offset,
            length: place.length,
            checksum: place.checksum,
            content: Vec::new(),
            first_key_group: from.first_key_group,
            end_key_group: from.end_key_group,
            written_in: from.written_in,
            superseded: from.superseded.clone(),
        },
    };
    let segments = segments.iter().map(&mut segment).collect();
    let channels = channels.iter().map(&mut segment).collect();
    let position = |from: &pb::SourcePosition| match next() {
        None => from.clone(),
        place => pb::SourcePosition {
            uid: from.uid.clone(),
            position: Vec::new(),
            place,
            request: from.request,
            ended: from.ended,
        },
    };
    let positions = positions.iter().map(position).collect();
    let operator = |from: &pb::OperatorState| match next() {
        None => from.clone(),
        place => pb::OperatorState {
            uid: from.uid.clone(),
            name: from.name.clone(),
            content: Vec::new(),
            place,
            redistribution: from.redistribution,
        },
    };
    pb::SubtaskSnapshot {
        vertex_id: vertex_id.clone(),
        subtask: *subtask,
        ended: *ended,
        positions,
        operators: operators.iter().map(operator).collect(),
        segments,
        channels,
        committables: committables.clone(),
        output: output.clone(),
        files: files.clone(),
        from_start: *from_start,
    }
}

#[cfg(test)]
mod tests {
    use tanist_proto::pieces::pieces_mut;

    use super::*;

    fn content(name: &str, size: usize) -> Vec<u8> {
        name.bytes().cycle().take(size).collect()
    }

    fn segment(name: &str, size: usize) -> pb::StateSegment {
        pb::StateSegment {
            name: name.to_owned(),
            length: size as u64,
            content: content(name, size),
            end_key_group: 8,
            ..pb::StateSegment::default()
        }
    }

    fn state(name: &str, size: usize) -> pb::OperatorState {
        pb::OperatorState {
            name: name.to_owned(),
            content: content(name, size),
            ..pb::OperatorState::default()
        }
    }

    fn position(name: &str, size: usize) -> pb::SourcePosition {
        pb::SourcePosition {
            uid: name.to_owned(),
            position: content(name, size),
            ..pb::SourcePosition::default()
        }
    }

    /// Reads the object back, and returns the pieces that were in it.
    fn in_object(snapshot: &Arc<pb::SubtaskSnapshot>) -> Vec<usize> {
        let (parts, mut written) = Pieces::of(snapshot).into_object("3-1-aa", &mut 7);
        let object = [&[0; 7], &*parts.concat()].concat();
        let mut moved = Vec::new();
        for (index, mut piece) in pieces_mut(&mut written).enumerate() {
            let Some(place) = piece.as_ref().place() else {
                continue;
            };
            assert_eq!(piece.as_ref().content(), b"");
            assert_eq!(place.object, "3-1-aa");
            let range = place.offset as usize..(place.offset + place.length) as usize;
            let bytes = &object[range];
            assert_eq!(place.checksum, range_checksum(bytes));
            piece.set_content(bytes.to_vec());
            moved.push(index);
        }
        let read = pieces(&written).map(Piece::content);
        assert!(read.eq(pieces(snapshot).map(Piece::content)));
        for piece in pieces_mut(&mut written) {
            match piece {
                tanist_proto::pieces::PieceMut::Segment(segment) => {
                    segment.object = String::new();
                    (segment.offset, segment.checksum) = (0, 0);
                }
                tanist_proto::pieces::PieceMut::Position(position) => position.place = None,
                tanist_proto::pieces::PieceMut::State(state) => state.place = None,
            }
        }
        assert_eq!(written, **snapshot, "all else is the same");
        moved
    }

    #[test]
    fn large_pieces_of_any_kind_become_one_object_and_small_ones_stay() {
        let snapshot = Arc::new(pb::SubtaskSnapshot {
            vertex_id: "v".to_owned(),
            subtask: 3,
            segments: vec![segment("ab", 5_000), segment("c", INLINE)],
            channels: vec![segment("e", 4_097)],
            positions: vec![position("p", 10), position("q", 4_097)],
            operators: vec![state("s", 70_000), state("t", 1)],
            committables: vec![pb::CheckpointCommittable {
                content: vec![1; 9],
                ..pb::CheckpointCommittable::default()
            }],
            files: vec![vec![1; 3]],
            ..pb::SubtaskSnapshot::default()
        });
        let of = Pieces::of(&snapshot);
        assert!(of.need_object());
        let sizes = [5_000, 4_096, 4_097, 10, 4_097, 70_000, 1, 9, 3];
        assert_eq!(of.total(), sizes.iter().sum::<u64>());
        assert_eq!(in_object(&snapshot), [0, 2, 4, 5]);
    }

    #[test]
    fn many_small_pieces_go_into_the_object_the_largest_first() {
        let few = Arc::new(pb::SubtaskSnapshot {
            segments: vec![segment("a", INLINE); 4],
            ..pb::SubtaskSnapshot::default()
        });
        assert!(!Pieces::of(&few).need_object());
        let many = Arc::new(pb::SubtaskSnapshot {
            segments: vec![segment("a", INLINE); 3],
            operators: vec![state("a", 3_000), state("b", 2_000), state("c", 4_000)],
            ..pb::SubtaskSnapshot::default()
        });
        assert_eq!(in_object(&many), [0, 1]);
        let tiny = Arc::new(pb::SubtaskSnapshot {
            operators: vec![state("a", TINY); 1_000],
            ..pb::SubtaskSnapshot::default()
        });
        assert_eq!(in_object(&tiny), Vec::<usize>::new());
    }

    #[test]
    fn contents_are_not_copied() {
        let snapshot = Arc::new(pb::SubtaskSnapshot {
            operators: vec![state("s", 70_000)],
            ..pb::SubtaskSnapshot::default()
        });
        let (parts, _) = Pieces::of(&snapshot).into_object("3-1-aa", &mut 0);
        let [part] = &parts[..] else {
            panic!("{} parts", parts.len());
        };
        assert_eq!(part.as_ptr(), snapshot.operators[0].content.as_ptr());
    }
}
