//! What operators save in a snapshot, and find there after a restore. Data only.
//!
//! An operator is saved between two elements: what it saves covers exactly the elements before the barrier. Its
//! state is named by the uid of the operator and by names that the operator chooses; these stay the same over
//! versions of a program.

use std::collections::BTreeMap;

use tanist_proto::v1::{OperatorState, SourcePosition, StateSegment, SubtaskSnapshot};

/// What an operator or source saves.
#[derive(Debug, Default)]
pub struct Snapshot {
    position: Option<Vec<u8>>,
    states: BTreeMap<&'static str, Vec<u8>>,
    segments: Vec<StateSegment>,
}

impl Snapshot {
    /// Saves how far a source has read. Only the source interprets the bytes.
    pub fn save_position(&mut self, position: Vec<u8>) {
        self.position = Some(position);
    }

    /// Saves a state that is not keyed, and small.
    pub fn save(&mut self, name: &'static str, content: Vec<u8>) {
        self.states.insert(name, content);
    }

    /// Saves keyed state: `content` counts for the key groups from `first` up to and without `end`.
    pub fn save_keyed(&mut self, name: &'static str, content: Vec<u8>, (first, end): (u32, u32)) {
        let segment = StateSegment {
            name: name.to_owned(),
            length: content.len() as u64,
            content,
            first_key_group: first,
            end_key_group: end,
            ..StateSegment::default()
        };
        self.segments.push(segment);
    }

    /// Adds it to the snapshot of the subtask, as the state of the operator with this uid.
    pub fn add_to(self, subtask: &mut SubtaskSnapshot, uid: &str) {
        let uid = || uid.to_owned();
        let position = self.position.map(|position| SourcePosition {
            uid: uid(),
            position,
        });
        subtask.positions.extend(position);
        let states = self
            .states
            .into_iter()
            .map(|(name, content)| OperatorState {
                uid: uid(),
                name: name.to_owned(),
                content,
            });
        subtask.operators.extend(states);
        let segments = self.segments.into_iter().map(|segment| StateSegment {
            uid: uid(),
            ..segment
        });
        subtask.segments.extend(segments);
    }
}

/// What an operator or source saved in the snapshot that it is restored from. The contents of all segments are here,
/// whether they were read from objects or came with the deployment.
#[derive(Debug, Clone, Copy)]
pub struct Restored<'a> {
    uid: &'a str,
    snapshot: &'a SubtaskSnapshot,
}

impl<'a> Restored<'a> {
    /// The part of the operator with this uid.
    pub fn of(uid: &'a str, snapshot: &'a SubtaskSnapshot) -> Restored<'a> {
        Restored { uid, snapshot }
    }

    /// How far a source had read; `None` if it saved nothing.
    pub fn position(&self) -> Option<&'a [u8]> {
        let mut positions = self.snapshot.positions.iter();
        let own = positions.find(|position| position.uid == self.uid)?;
        Some(&own.position)
    }

    /// A state that is not keyed; `None` if it was not saved.
    pub fn state(&self, name: &str) -> Option<&'a [u8]> {
        let mut states = self.snapshot.operators.iter();
        let own = states.find(|state| state.uid == self.uid && state.name == name)?;
        Some(&own.content)
    }

    /// The segments of a keyed state.
    pub fn segments(&self, name: &str) -> impl Iterator<Item = &'a StateSegment> {
        let segments = self.snapshot.segments.iter();
        segments.filter(move |segment| segment.uid == self.uid && segment.name == name)
    }
}
