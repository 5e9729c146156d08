//! A task's snapshot whose keyed state is not encoded yet: the loop only freezes it, and the encoding follows on
//! another thread.

use std::fmt;

use tanist_proto::v1::{StateSegment, SubtaskSnapshot};

use super::Snapshot;
use super::error::StateError;

/// Encodes a state. The argument says whether the snapshot is still wanted; `None`: it is not.
type Encode = dyn FnOnce(&dyn Fn() -> bool) -> Result<Option<Vec<StateSegment>>, StateError> + Send;

/// A keyed state as it was when the snapshot was taken.
pub(super) struct FrozenState(pub(super) Box<Encode>);

impl fmt::Debug for FrozenState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FrozenState")
    }
}

/// A snapshot of a subtask: one part is encoded, the other one only frozen.
#[derive(Debug, Default)]
pub(crate) struct UnencodedSnapshot {
    encoded: SubtaskSnapshot,
    /// Each with the uid of its operator.
    frozen: Vec<(String, FrozenState)>,
}

impl From<SubtaskSnapshot> for UnencodedSnapshot {
    fn from(encoded: SubtaskSnapshot) -> UnencodedSnapshot {
        UnencodedSnapshot {
            encoded,
            frozen: Vec::new(),
        }
    }
}

impl UnencodedSnapshot {
    /// An empty snapshot of this subtask.
    pub(crate) fn of(vertex_id: &str, subtask: u32) -> UnencodedSnapshot {
        UnencodedSnapshot {
            encoded: SubtaskSnapshot {
                vertex_id: vertex_id.to_owned(),
                subtask,
                ..SubtaskSnapshot::default()
            },
            frozen: Vec::new(),
        }
    }

    /// Adds what the operator with this uid saved.
    pub(crate) fn add(&mut self, mut snapshot: Snapshot, uid: &str) {
        let frozen = snapshot.frozen.drain(..);
        self.frozen.extend(frozen.map(|it| (uid.to_owned(), it)));
        snapshot.add_encoded_to(&mut self.encoded, uid);
    }

    /// Returns the snapshot if there is nothing to encode, and otherwise itself.
    pub(crate) fn into_encoded(self) -> Result<SubtaskSnapshot, Box<UnencodedSnapshot>> {
        match self.frozen.is_empty() {
            true => Ok(self.encoded),
            false => Err(Box::new(self)),
        }
    }

    /// Encodes all of it. May take seconds. `None`: `is_wanted` has returned false.
    pub(crate) fn encode(
        self,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<SubtaskSnapshot>, StateError> {
        let mut encoded = self.encoded;
        for (uid, FrozenState(encode)) in self.frozen {
            let Some(segments) = encode(is_wanted)? else {
                return Ok(None);
            };
            let segments = segments.into_iter().map(|segment| StateSegment {
                uid: uid.clone(),
                ..segment
            });
            encoded.segments.extend(segments);
        }
        Ok(Some(encoded))
    }
}
