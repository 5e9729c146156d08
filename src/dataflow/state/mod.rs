//! What operators save in a snapshot, and find there after a restore. Data only.
//!
//! An operator is saved between two elements: what it saves covers exactly the elements before the barrier. Its
//! state is named by the uid of the operator and by names that the operator chooses; these stay the same over
//! versions of a program.
//!
//! Positions and states are messages or keyed entries, each with a *signature*: what it is the state of. They are
//! framed with a checksum (`sealed.rs`). So a restore reads what was saved for the same thing, or is an error that
//! names the state. An operator that saves raw bytes checks them itself.

mod error;
mod key_groups;
#[cfg(test)]
mod samples;
mod sealed;
mod segment;

use std::collections::BTreeMap;

use prost::Message;
use tanist_proto::v1::{
    CheckpointBarrier, CheckpointCommittable, OperatorState, SmallState, SourcePosition,
    StateSegment, SubtaskSnapshot,
};

pub use error::{StateError, StateProblem};
pub use key_groups::KeyGroups;

use sealed::Kind;

/// What errors call a position.
const POSITION: &str = "position";

/// What an operator or source saves.
#[derive(Debug, Default)]
pub struct Snapshot {
    barrier: CheckpointBarrier,
    position: Option<Vec<u8>>,
    request: u64,
    has_ended: bool,
    states: BTreeMap<&'static str, Vec<u8>>,
    segments: Vec<StateSegment>,
    committables: Vec<(&'static str, Vec<u8>)>,
    files: Vec<Vec<u8>>,
}

impl Snapshot {
    /// An empty one, for a checkpoint.
    pub fn of(barrier: CheckpointBarrier) -> Snapshot {
        Snapshot {
            barrier,
            ..Snapshot::default()
        }
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
    /// that commits it. A sink names the same output in each snapshot until one that has it is durable.
    pub fn add_committable(&mut self, kind: &'static str, content: Vec<u8>) {
        self.committables.push((kind, content));
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

    /// Saves keyed state: entries of the subtask's key groups, in any order, as namespace, key and value. `write`
    /// appends a value. `signature` says what it is the state of.
    pub fn save_entries<'k, V>(
        &mut self,
        name: &'static str,
        signature: &str,
        groups: KeyGroups,
        entries: impl Iterator<Item = (i64, &'k [u8], V)>,
        write: impl FnMut(V, &mut Vec<u8>),
    ) -> Result<(), StateError> {
        let content = segment::encode(signature, groups, entries, write);
        let content = content.map_err(|problem| problem.of(name))?;
        self.save_keyed(name, content, groups.range());
        Ok(())
    }

    /// Saves a state that is not keyed, and small.
    pub fn save(&mut self, name: &'static str, content: Vec<u8>) {
        self.states.insert(name, content);
    }

    /// Saves keyed state that is encoded already: `content` counts for the key groups from `first` up to and without
    /// `end`.
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
                place: None,
            });
        subtask.operators.extend(states);
        let segments = self.segments.into_iter().map(|segment| StateSegment {
            uid: uid(),
            ..segment
        });
        subtask.segments.extend(segments);
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

/// A small state that can be restored only as what it is.
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
}

impl<'a> Restored<'a> {
    /// The part of the operator with this uid.
    pub fn of(uid: &'a str, snapshot: &'a SubtaskSnapshot) -> Restored<'a> {
        Restored { uid, snapshot }
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

    /// Passes on the entries of keyed state that [`Snapshot::save_entries`] saved and that are of these key groups:
    /// namespace, key and value. `each` fails with the reason why it can't read a value. There are none if the state
    /// was not saved.
    pub fn entries(
        &self,
        name: &str,
        signature: &str,
        groups: KeyGroups,
        mut each: impl FnMut(i64, &[u8], &[u8]) -> Result<(), String>,
    ) -> Result<(), StateError> {
        let mut counting = Vec::new();
        for segment in self.segments(name) {
            let counts = groups.within((segment.first_key_group, segment.end_key_group));
            // Nothing was saved of these key groups, as their subtask had ended.
            if segment.length > 0 {
                segment::decode(&segment.content, signature, counts, &mut each)
                    .map_err(|problem| problem.of(name))?;
            }
            counting.push(counts.range());
        }
        if counting.is_empty() || groups.are_covered_by(counting) {
            return Ok(());
        }
        let missing = StateProblem::damaged("not each key group is in exactly one segment");
        Err(missing.of(name))
    }

    /// The segments of a keyed state.
    pub fn segments(&self, name: &str) -> impl Iterator<Item = &'a StateSegment> {
        let segments = self.snapshot.segments.iter();
        segments.filter(move |segment| segment.uid == self.uid && segment.name == name)
    }
}

/// What an operator takes that can't merge the states of several subtasks.
fn only<M>(mut saved: Vec<M>) -> Result<Option<M>, StateProblem> {
    match saved.len() {
        0 | 1 => Ok(saved.pop()),
        found => Err(StateProblem::Several { found }),
    }
}

/// The message of a small state with this signature.
fn restored<M: Message + Default>(bytes: &[u8], signature: &str) -> Result<M, StateProblem> {
    let damaged = |error: prost::DecodeError| StateProblem::damaged(error.to_string());
    let state = SmallState::decode(sealed::open(Kind::Small, bytes)?).map_err(damaged)?;
    if state.signature != signature {
        return Err(StateProblem::Foreign {
            found: state.signature,
            expected: signature.to_owned(),
        });
    }
    M::decode(&*state.content).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use tanist_proto::v1::DatagenPosition;

    use super::*;

    const HALVES: [KeyGroups; 2] = [KeyGroups::test(0, 4, 8), KeyGroups::test(4, 8, 8)];

    /// What both halves of a keyed state saved, by one uid.
    fn halves() -> SubtaskSnapshot {
        let mut subtask = SubtaskSnapshot::default();
        for groups in HALVES {
            let keys: Vec<[u8; 1]> = (0..=u8::MAX).map(|byte| [byte]).collect();
            let own = keys.iter().filter(|key| groups.contain(&key[..]));
            let entries = own.map(|key| (0, &key[..], ()));
            let mut snapshot = Snapshot::default();
            snapshot
                .save_entries("counts", "counts", groups, entries, |(), _| {})
                .expect("its own keys");
            snapshot.add_to(&mut subtask, "count");
        }
        subtask
    }

    fn keys(subtask: &SubtaskSnapshot, groups: KeyGroups) -> Result<usize, StateError> {
        let mut keys = 0;
        let restored = Restored::of("count", subtask);
        restored.entries("counts", "counts", groups, |_, _, _| {
            keys += 1;
            Ok(())
        })?;
        Ok(keys)
    }

    #[test]
    fn segments_together_have_each_key_once() {
        let subtask = halves();
        let whole = KeyGroups::test(0, 8, 8);
        assert_eq!(keys(&subtask, whole), Ok(256));
        let parts = HALVES.map(|groups| keys(&subtask, groups).expect("intact"));
        assert_eq!(parts.iter().sum::<usize>(), 256);
        assert_eq!(keys(&SubtaskSnapshot::default(), whole), Ok(0));
    }

    #[test]
    fn key_groups_that_no_segment_or_two_segments_have_are_an_error_that_names_the_state() {
        let whole = KeyGroups::test(0, 8, 8);
        let mut subtask = halves();
        let second = subtask.segments.pop().expect("two");
        let error = keys(&subtask, whole).expect_err("half is missing");
        assert!(error.to_string().contains("`counts` is damaged"), "{error}");
        subtask.segments.extend([second.clone(), second]);
        keys(&subtask, whole).expect_err("half is there twice");
    }

    #[test]
    fn parts_of_segments_and_key_groups_without_entries_are_taken_at_another_parallelism() {
        let mut subtask = halves();
        let thirds = [(0, 3), (3, 6), (6, 8)].map(|(first, end)| KeyGroups::test(first, end, 8));
        let found = thirds.map(|groups| {
            let mut own = subtask.clone();
            // As it is redistributed: those that meet.
            own.segments.retain(|it| {
                let (first, end) = groups.range();
                it.first_key_group < end && first < it.end_key_group
            });
            keys(&own, groups).expect("each group once")
        });
        assert_eq!(found.iter().sum::<usize>(), 256);
        let first_half = keys(&subtask, HALVES[0]).expect("intact");
        subtask.segments[1].content.clear();
        keys(&subtask, KeyGroups::test(0, 8, 8)).expect_err("it is damaged");
        subtask.segments[1].length = 0;
        assert_eq!(keys(&subtask, KeyGroups::test(0, 8, 8)), Ok(first_half));
    }

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
            snapshot.add_to(&mut subtask, "source");
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
        end.add_to(&mut subtask, "source");
        end = Snapshot::default();
        end.save_end();
        end.add_to(&mut subtask, "ended");
        assert_eq!(Restored::of("source", &subtask).positions().count(), 2);
        assert!(!Restored::of("source", &subtask).has_ended());
        assert!(Restored::of("ended", &subtask).has_ended());
        assert!(!Restored::of("none", &subtask).has_ended());
    }

    #[test]
    fn a_value_that_can_t_be_read_is_an_error_that_names_the_state() {
        let subtask = halves();
        let restored = Restored::of("count", &subtask);
        let groups = KeyGroups::test(0, 8, 8);
        let unreadable = restored.entries("counts", "counts", groups, |_, _, _| {
            Err("it is odd".to_owned())
        });
        assert_eq!(
            unreadable.expect_err("unreadable").to_string(),
            "the state `counts` is damaged: it is odd"
        );
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
        snapshot.add_to(&mut subtask, "source");
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
