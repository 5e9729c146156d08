//! The pieces of state in a subtask's snapshot: each has its bytes, or names the object that has them.
//!
//! What counts, reads, copies, renames or removes objects goes through these, so that no kind of piece is forgotten.

use crate::v1::{ObjectPlace, OperatorState, SourcePosition, StateSegment, SubtaskSnapshot};

/// A piece of state.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// Keyed state, or batches of a channel.
    Segment(&'a StateSegment),
    /// How far a source had read.
    Position(&'a SourcePosition),
    /// State without keys.
    State(&'a OperatorState),
}

impl<'a> Piece<'a> {
    /// Its bytes; empty if an object has them and they were not read.
    pub fn content(self) -> &'a [u8] {
        match self {
            Piece::Segment(segment) => &segment.content,
            Piece::Position(position) => &position.position,
            Piece::State(state) => &state.content,
        }
    }

    /// The object that has it. None: it has its bytes itself.
    pub fn object(self) -> Option<&'a str> {
        let place = |place: &'a Option<ObjectPlace>| Some(&*place.as_ref()?.object);
        match self {
            Piece::Segment(segment) => Some(&*segment.object).filter(|it| !it.is_empty()),
            Piece::Position(position) => place(&position.place),
            Piece::State(state) => place(&state.place),
        }
    }

    /// Its range in the object that has it.
    pub fn place(self) -> Option<ObjectPlace> {
        match self {
            Piece::Segment(segment) => self.object().map(|object| ObjectPlace {
                object: object.to_owned(),
                offset: segment.offset,
                length: segment.length,
                checksum: segment.checksum,
            }),
            Piece::Position(position) => position.place.clone(),
            Piece::State(state) => state.place.clone(),
        }
    }

    /// Its size, wherever its bytes are.
    pub fn size(self) -> u64 {
        let in_object = match self {
            Piece::Segment(segment) if segment.object.is_empty() => None,
            Piece::Segment(segment) => Some(segment.length),
            Piece::Position(position) => position.place.as_ref().map(|it| it.length),
            Piece::State(state) => state.place.as_ref().map(|it| it.length),
        };
        in_object.unwrap_or(self.content().len() as u64)
    }
}

/// A piece of state that may be changed.
#[derive(Debug)]
pub enum PieceMut<'a> {
    /// Keyed state, or batches of a channel.
    Segment(&'a mut StateSegment),
    /// How far a source had read.
    Position(&'a mut SourcePosition),
    /// State without keys.
    State(&'a mut OperatorState),
}

impl PieceMut<'_> {
    /// The piece as it is.
    pub fn as_ref(&self) -> Piece<'_> {
        match self {
            PieceMut::Segment(segment) => Piece::Segment(segment),
            PieceMut::Position(position) => Piece::Position(position),
            PieceMut::State(state) => Piece::State(state),
        }
    }

    /// Gives it its bytes. It still names its object.
    pub fn set_content(&mut self, content: Vec<u8>) {
        match self {
            PieceMut::Segment(segment) => segment.content = content,
            PieceMut::Position(position) => position.position = content,
            PieceMut::State(state) => state.content = content,
        }
    }

    /// Makes it name the object that has its bytes. Bytes that it has itself stay.
    pub fn set_place(&mut self, place: ObjectPlace) {
        match self {
            PieceMut::Segment(segment) => {
                let ObjectPlace {
                    object,
                    offset,
                    length,
                    checksum,
                } = place;
                segment.object = object;
                segment.offset = offset;
                segment.length = length;
                segment.checksum = checksum;
            }
            PieceMut::Position(position) => position.place = Some(place),
            PieceMut::State(state) => state.place = Some(place),
        }
    }
}

/// All pieces of a snapshot.
pub fn pieces(snapshot: &SubtaskSnapshot) -> impl Iterator<Item = Piece<'_>> {
    let segments = snapshot.segments.iter().chain(&snapshot.channels);
    let positions = snapshot.positions.iter().map(Piece::Position);
    let states = snapshot.operators.iter().map(Piece::State);
    segments.map(Piece::Segment).chain(positions).chain(states)
}

/// All pieces of a snapshot, in the order of [`pieces`].
pub fn pieces_mut(snapshot: &mut SubtaskSnapshot) -> impl Iterator<Item = PieceMut<'_>> {
    let segments = snapshot.segments.iter_mut().chain(&mut snapshot.channels);
    let positions = snapshot.positions.iter_mut().map(PieceMut::Position);
    let states = snapshot.operators.iter_mut().map(PieceMut::State);
    segments
        .map(PieceMut::Segment)
        .chain(positions)
        .chain(states)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_piece_has_its_bytes_or_names_their_object() {
        let mut snapshot = SubtaskSnapshot {
            segments: vec![StateSegment::default()],
            channels: vec![StateSegment::default()],
            positions: vec![SourcePosition::default()],
            operators: vec![OperatorState::default()],
            ..SubtaskSnapshot::default()
        };
        assert_eq!(pieces(&snapshot).count(), 4);
        for mut piece in pieces_mut(&mut snapshot) {
            piece.set_content(vec![7; 3]);
            let piece = piece.as_ref();
            assert_eq!((piece.content(), piece.size()), (&[7; 3][..], 3));
            assert_eq!((piece.object(), piece.place()), (None, None));
        }
        for (index, mut piece) in pieces_mut(&mut snapshot).enumerate() {
            let place = ObjectPlace {
                object: format!("7-1-{index}"),
                offset: 5,
                length: 9,
                checksum: 11,
            };
            piece.set_content(Vec::new());
            piece.set_place(place.clone());
            assert_eq!(piece.as_ref().place(), Some(place));
        }
        let objects: Vec<_> = pieces(&snapshot).filter_map(Piece::object).collect();
        assert_eq!(objects, ["7-1-0", "7-1-1", "7-1-2", "7-1-3"]);
        assert_eq!(pieces(&snapshot).map(Piece::size).sum::<u64>(), 36);
    }
}
