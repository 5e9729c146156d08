//! What operators save in a snapshot ([`Snapshot`]), and find there after a restore ([`Restored`]). Data only: the task
//! decides when, and its TaskExecutor writes and reads.
//!
//! An operator is saved between two elements: what it saves covers exactly the elements before the barrier. Its
//! state is named by the uid of the operator and by names that the operator chooses; these stay the same over
//! versions of a program.
//!
//! Positions and states are messages or keyed entries, each with a *signature*: what it is the state of. They are
//! framed with a checksum (`sealed.rs`). So a restore reads what was saved for the same thing, or is an error that
//! names the state. An operator that saves raw bytes checks them itself.

mod api;
mod error;
mod frozen;
mod key_groups;
#[cfg(test)]
mod samples;
mod sealed;
mod segment;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;
use tanist_proto::v1::{
    CheckpointBarrier, CheckpointCommittable, OperatorState, SmallState, SourcePosition,
    StateRedistribution, StateSegment, SubtaskSnapshot,
};

pub use api::{
    BroadcastState, EntryKey, EventTimers, KeyedState, KeyedStates, ListState, MapState,
    OperatorList, ProcessingTimers, StateValue, ValueState,
};
pub use error::{StateError, StateProblem};
pub(crate) use frozen::UnencodedSnapshot;
pub use key_groups::KeyGroups;
pub use table::{NamespaceMut, SavedEntry, StateKey, StateTable, TakenEntries};

use crate::operator::OperatorError;

use frozen::FrozenState;
use sealed::Kind;

/// Name of a position in errors.
const POSITION: &str = "position";

/// What an operator or source saves.
#[derive(Debug, Default)]
pub struct Snapshot {
    barrier: CheckpointBarrier,
    /// The newest durable snapshot of the task, and the uid of the operator.
    base: Option<(Arc<SubtaskSnapshot>, String)>,
    position: Option<Vec<u8>>,
    request: u64,
    has_ended: bool,
    states: BTreeMap<&'static str, Vec<u8>>,
    /// States that say how they are divided, without the uid.
    divided: Vec<OperatorState>,
    /// Names of states that were begun.
    begun: BTreeSet<&'static str>,
    frozen: Vec<FrozenState>,
    /// Memory of the keyed state that is frozen.
    memory: u64,
    committables: Vec<(&'static str, Vec<u8>)>,
    files: Vec<Vec<u8>>,
}

impl Snapshot {
    /// Creates an empty snapshot for the checkpoint of this barrier.
    pub fn of(barrier: CheckpointBarrier) -> Snapshot {
        Snapshot {
            barrier,
            ..Snapshot::default()
        }
    }

    /// Sets the newest durable snapshot of the task as the base, from which keyed state of the operator with this uid
    /// goes on. Each segment of the base names its object, or has few bytes.
    pub(crate) fn going_on_from(
        mut self,
        base: Option<&Arc<SubtaskSnapshot>>,
        uid: &str,
    ) -> Snapshot {
        self.base = base.map(|base| (Arc::clone(base), uid.to_owned()));
        self
    }

    /// The segments of a keyed state in the newest durable snapshot. Empty if they are not known.
    fn base(&self, name: &str) -> Vec<StateSegment> {
        let Some((base, uid)) = &self.base else {
            return Vec::new();
        };
        let segments = base.segments.iter();
        let own = segments.filter(|segment| segment.uid == *uid && segment.name == name);
        own.cloned().collect()
    }

    /// Creates an empty snapshot for the checkpoint of this number.
    #[cfg(test)]
    fn numbered(number: u64) -> Snapshot {
        Snapshot::of(CheckpointBarrier {
            number,
            ..CheckpointBarrier::default()
        })
    }

    /// The number of the checkpoint.
    pub fn number(&self) -> u64 {
        self.barrier.number
    }

    /// The number of the task's newest snapshot that is durable; 0: it has none.
    pub fn newest(&self) -> u64 {
        self.barrier.newest
    }

    /// Whether a savepoint is taken: a sink gives all that it has written to be committed with it.
    pub fn is_savepoint(&self) -> bool {
        self.barrier.savepoint
    }

    /// Adds output that becomes visible once the checkpoint is durable. `kind` says what `content` is, for the process
    /// that commits it; the step of the operator declares it. A sink names the same output in each snapshot until one
    /// that has it is durable ([`Snapshot::newest`]).
    pub fn add_committable(&mut self, kind: &'static str, content: Vec<u8>) {
        self.committables.push((kind, content));
    }

    /// The kinds of the output that was added.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &str> {
        self.committables.iter().map(|(kind, _)| *kind)
    }

    /// Names a file outside the state that a restore needs, by its path as the system has it. It is not removed while
    /// the checkpoint is retained.
    pub fn keep_file(&mut self, path: Vec<u8>) {
        self.files.push(path);
    }

    /// Saves how far a source has read. Only the source interprets the bytes.
    pub fn save_position(&mut self, position: Vec<u8>) {
        self.position = Some(position);
    }

    /// Saves how far a source has read, as a message. `signature` says what the position is of.
    pub fn save_position_message(&mut self, signature: &str, position: &impl Message) {
        self.save_position(small(signature, position));
    }

    /// Saves that a source has read all of its input.
    pub(crate) fn save_end(&mut self) {
        self.has_ended = true;
    }

    /// Says which answers of the operator's coordinator are in the position: up to that to the request with this
    /// number.
    pub fn save_request(&mut self, number: u64) {
        self.request = number;
    }

    /// Saves a state that is not keyed, and small, as a message. `signature` says what it is the state of.
    pub fn save_message(&mut self, name: &'static str, signature: &str, state: &impl Message) {
        self.save(name, small(signature, state));
    }

    /// Begins a state of this name. An error if the operator has begun one of the same name.
    fn begin(&mut self, name: &'static str) -> Result<(), OperatorError> {
        match self.begun.insert(name) {
            true => Ok(()),
            false => Err(OperatorError::specification(format!(
                "the state `{name}` is there twice: give each state of the operator a name of its own"
            ))),
        }
    }

    /// Adds an entry of a state that is not keyed, and says how it is divided among another number of subtasks.
    fn add_divided(
        &mut self,
        name: String,
        redistribution: StateRedistribution,
        signature: &str,
        entry: &impl Message,
    ) {
        self.divided.push(OperatorState {
            name,
            content: small(signature, entry),
            redistribution: redistribution.into(),
            ..OperatorState::default()
        });
    }

    /// Memory of the keyed state that was added.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// Adds a keyed state that is frozen and takes this memory. `encode` encodes it later, in another thread.
    fn freeze(
        &mut self,
        memory: u64,
        encode: impl FnOnce(&dyn Fn() -> bool) -> Result<Option<Vec<StateSegment>>, StateError>
        + Send
        + 'static,
    ) {
        self.memory += memory;
        self.frozen.push(FrozenState(Box::new(encode)));
    }

    /// Saves a state that is not keyed, and small.
    pub fn save(&mut self, name: &'static str, content: Vec<u8>) {
        self.states.insert(name, content);
    }

    /// Adds it to the snapshot of the subtask, as the state of the operator with this uid. Encodes keyed state: a task
    /// does that outside its loop.
    pub fn add_to(self, subtask: &mut SubtaskSnapshot, uid: &str) -> Result<(), StateError> {
        let mut unencoded = UnencodedSnapshot::from(std::mem::take(subtask));
        unencoded.add(self, uid);
        let encoded = unencoded.encode(&|| true)?;
        *subtask = encoded.expect("it is wanted");
        Ok(())
    }

    /// Adds all but the keyed state, which is frozen.
    fn add_encoded_to(self, subtask: &mut SubtaskSnapshot, uid: &str) {
        let uid = || uid.to_owned();
        let position = match self.has_ended {
            true => Some(Vec::new()),
            false => self.position,
        };
        let position = position.map(|position| SourcePosition {
            uid: uid(),
            position,
            place: None,
            request: self.request,
            ended: self.has_ended,
        });
        subtask.positions.extend(position);
        let states = self
            .states
            .into_iter()
            .map(|(name, content)| OperatorState {
                uid: uid(),
                name: name.to_owned(),
                content,
                ..OperatorState::default()
            });
        subtask.operators.extend(states);
        let divided = self.divided.into_iter();
        let divided = divided.map(|state| OperatorState {
            uid: uid(),
            ..state
        });
        subtask.operators.extend(divided);
        let committables = self.committables.into_iter();
        let committables = committables.map(|(kind, content)| CheckpointCommittable {
            uid: uid(),
            kind: kind.to_owned(),
            content,
        });
        subtask.committables.extend(committables);
        subtask.files.extend(self.files);
    }
}

/// Frames a small state with its signature: it can be restored only with the same one.
fn small(signature: &str, content: &impl Message) -> Vec<u8> {
    let state = SmallState {
        signature: signature.to_owned(),
        content: content.encode_to_vec(),
    };
    sealed::seal(Kind::Small, |bytes| bytes.extend(state.encode_to_vec()))
}

/// What an operator or source saved in the snapshot that it is restored from. The contents of all segments are here,
/// whether they were read from objects or came with the deployment.
#[derive(Debug, Clone, Copy)]
pub struct Restored<'a> {
    uid: &'a str,
    snapshot: &'a SubtaskSnapshot,
    own_number: Option<u64>,
}

impl<'a> Restored<'a> {
    /// The part of the operator with this uid.
    pub fn of(uid: &'a str, snapshot: &'a SubtaskSnapshot) -> Restored<'a> {
        Restored {
            uid,
            snapshot,
            own_number: None,
        }
    }

    /// Sets the number of the checkpoint if the task itself saved the snapshot: then the next snapshots of the task may
    /// name its segments. `None`: it comes from another place, such as a savepoint.
    pub(crate) fn with_own_number(self, own_number: Option<u64>) -> Restored<'a> {
        Restored { own_number, ..self }
    }

    fn own_number(&self) -> Option<u64> {
        self.own_number
    }

    /// How far sources had read: of this subtask, or of several if the parallelism was another one. Empty if nothing
    /// was saved.
    pub fn positions(&self) -> impl Iterator<Item = &'a [u8]> {
        let positions = self.snapshot.positions.iter();
        let own = positions.filter(|position| position.uid == self.uid && !position.ended);
        own.map(|position| &*position.position)
    }

    /// A state that is not keyed: of this subtask, or of several if the parallelism was another one. Empty if it was
    /// not saved.
    pub fn states(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let states = self.snapshot.operators.iter();
        let own = states.filter(move |state| state.uid == self.uid && state.name == name);
        own.map(|state| &*state.content)
    }

    /// The first of [`Restored::positions`]. There are no others for an operator that keeps its parallelism.
    pub fn position(&self) -> Option<&'a [u8]> {
        self.positions().next()
    }

    /// The first of [`Restored::states`]. There are no others for an operator that keeps its parallelism.
    pub fn state(&self, name: &str) -> Option<&'a [u8]> {
        self.states(name).next()
    }

    /// Number of the last request to the operator's coordinator whose answer is in the position; 0: none is, or the
    /// coordinator counts from the start.
    pub fn request(&self) -> u64 {
        let positions = self.snapshot.positions.iter();
        let own = positions.filter(|position| position.uid == self.uid);
        own.map(|position| position.request).max().unwrap_or(0)
    }

    /// Whether the source had read all of its input, although other operators of its task have something left.
    pub(crate) fn has_ended(&self) -> bool {
        let positions = self.snapshot.positions.iter();
        let mut own = positions
            .filter(|position| position.uid == self.uid)
            .peekable();
        own.peek().is_some() && own.all(|position| position.ended)
    }

    /// How far sources had read, as [`Snapshot::save_position_message`] saved it.
    pub fn position_messages<M: Message + Default>(
        &self,
        signature: &str,
    ) -> Result<Vec<M>, StateError> {
        let positions = self.positions().map(|bytes| restored(bytes, signature));
        let positions: Result<Vec<M>, StateProblem> = positions.collect();
        positions.map_err(|problem| problem.of(POSITION))
    }

    /// A state that is not keyed, as [`Snapshot::save_message`] saved it.
    pub fn messages<M: Message + Default>(
        &self,
        name: &str,
        signature: &str,
    ) -> Result<Vec<M>, StateError> {
        let states = self.states(name).map(|bytes| restored(bytes, signature));
        let states: Result<Vec<M>, StateProblem> = states.collect();
        states.map_err(|problem| problem.of(name))
    }

    /// How far the source had read, as [`Snapshot::save_position_message`] saved it; `None` if it saved nothing. Those
    /// of several subtasks are an error.
    pub fn position_message<M: Message + Default>(
        &self,
        signature: &str,
    ) -> Result<Option<M>, StateError> {
        only(self.position_messages(signature)?).map_err(|problem| problem.of(POSITION))
    }

    /// A state that is not keyed, as [`Snapshot::save_message`] saved it; `None` if it was not saved. Those of several
    /// subtasks are an error.
    pub fn message<M: Message + Default>(
        &self,
        name: &str,
        signature: &str,
    ) -> Result<Option<M>, StateError> {
        only(self.messages(name, signature)?).map_err(|problem| problem.of(name))
    }

    /// The error for a state whose content can't be read.
    fn damaged(name: &str, reason: String) -> StateError {
        StateProblem::Damaged(reason).of(name)
    }

    /// The segments of a keyed state.
    fn segments(&self, name: &str) -> impl Iterator<Item = &'a StateSegment> {
        let segments = self.snapshot.segments.iter();
        segments.filter(move |segment| segment.uid == self.uid && segment.name == name)
    }
}

/// The signature and the content of a position or another small state of this name, for display.
pub fn opened_state(name: &str, bytes: &[u8]) -> Result<(String, Vec<u8>), StateError> {
    let state = small_state(bytes).map_err(|problem| problem.of(name))?;
    Ok((state.signature, state.content))
}

/// Returns the saved state of an operator that can't merge the states of several subtasks.
fn only<M>(mut saved: Vec<M>) -> Result<Option<M>, StateProblem> {
    match saved.len() {
        0 | 1 => Ok(saved.pop()),
        found => Err(StateProblem::Several { found }),
    }
}

/// The message of a small state with this signature.
fn restored<M: Message + Default>(bytes: &[u8], signature: &str) -> Result<M, StateProblem> {
    let state = small_state(bytes)?;
    if state.signature != signature {
        return Err(StateProblem::Foreign {
            found: state.signature,
            expected: signature.to_owned(),
        });
    }
    decoded(&state.content)
}

/// The small state in a frame.
fn small_state(bytes: &[u8]) -> Result<SmallState, StateProblem> {
    decoded(sealed::open(Kind::Small, bytes)?)
}

fn decoded<M: Message + Default>(bytes: &[u8]) -> Result<M, StateProblem> {
    M::decode(bytes).map_err(|error| StateProblem::damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use tanist_proto::v1::DatagenPosition;

    use super::*;

    #[test]
    fn states_of_several_subtasks_are_taken_or_are_an_error_that_says_so() {
        let mut subtask = SubtaskSnapshot::default();
        for next in [3, 5] {
            let position = DatagenPosition {
                next,
                ..DatagenPosition::default()
            };
            let mut snapshot = Snapshot::default();
            snapshot.save_position_message("numbers", &position);
            snapshot.save_request(next);
            snapshot.save_message("other", "numbers", &position);
            snapshot
                .add_to(&mut subtask, "source")
                .expect("nothing is keyed");
        }
        let restored = Restored::of("source", &subtask);
        let nexts = |found: Result<Vec<DatagenPosition>, StateError>| {
            let found = found.expect("intact").into_iter();
            found.map(|it| it.next).collect::<Vec<_>>()
        };
        assert_eq!(nexts(restored.position_messages("numbers")), [3, 5]);
        assert_eq!(nexts(restored.messages("other", "numbers")), [3, 5]);
        assert_eq!(restored.request(), 5);
        assert!(!restored.has_ended());
        let error = restored.message::<DatagenPosition>("other", "numbers");
        assert_eq!(
            error.expect_err("of two").to_string(),
            "the state `other` was saved by 2 subtasks, and the operator takes that of one: keep its parallelism"
        );
        restored
            .position_message::<DatagenPosition>("numbers")
            .expect_err("of two");
        let mut end = Snapshot::default();
        end.save_end();
        end.add_to(&mut subtask, "source")
            .expect("nothing is keyed");
        end = Snapshot::default();
        end.save_end();
        end.add_to(&mut subtask, "ended").expect("nothing is keyed");
        assert_eq!(Restored::of("source", &subtask).positions().count(), 2);
        assert!(!Restored::of("source", &subtask).has_ended());
        assert!(Restored::of("ended", &subtask).has_ended());
        assert!(!Restored::of("none", &subtask).has_ended());
    }

    #[test]
    fn a_message_is_restored_as_what_it_was_saved() {
        let position = DatagenPosition {
            next: 7,
            ..DatagenPosition::default()
        };
        let mut snapshot = Snapshot::default();
        snapshot.save_position_message("numbers", &position);
        snapshot.save_message("other", "more numbers", &position);
        let mut subtask = SubtaskSnapshot::default();
        snapshot
            .add_to(&mut subtask, "source")
            .expect("nothing is keyed");
        let restored = Restored::of("source", &subtask);
        assert_eq!(
            restored.position_message("numbers"),
            Ok(Some(position.clone()))
        );
        assert_eq!(
            restored.message("other", "more numbers"),
            Ok(Some(position))
        );
        assert_eq!(
            restored.message::<DatagenPosition>("none", "numbers"),
            Ok(None)
        );
        let foreign = restored.position_message::<DatagenPosition>("files");
        assert_eq!(
            foreign.expect_err("foreign").to_string(),
            "the state `position` is that of numbers, and the operator needs that of files"
        );
        let elsewhere = Restored::of("another", &subtask);
        assert_eq!(
            elsewhere.position_message::<DatagenPosition>("numbers"),
            Ok(None)
        );
    }
}
