//! Coordinators in the simulation: files that change between preparations, tasks that repeat requests,
//! answers that get lost. A split goes to one subtask of a generation, a request has one answer, and no task
//! receives an answer that is not stored.

use std::collections::BTreeMap;

use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tanist_proto::v1::coordinator_state::State;

use super::task_manager::TaskKey;
use super::world::World;
use crate::core::coordinator::{Coordinated, Unprepared};
use crate::core::execution_graph::execution::is_terminal;
use crate::core::{CoordinatorAnswer, CoordinatorRequest, Event};

const OPERATOR: &str = "lines";
/// Number of splits of each preparation.
const SPLITS: u64 = 5;

/// A request: (task, generation, number).
type Request = (TaskKey, u64, u64);

#[derive(Debug, Default)]
pub(super) struct Asking {
    pub(super) next_look_fails: bool,
    looks: u64,
    last_token: u64,
    /// By token.
    sent: BTreeMap<u64, Request>,
    /// All answers that were ever received.
    answered: BTreeMap<Request, Answer>,
    /// Number of answers that each execution has received.
    heard: BTreeMap<(TaskKey, u64), u64>,
    /// The subtask that owns each split: (vertex, preparation, start).
    owners: BTreeMap<(String, u64, u64), u32>,
    /// The answers of each subtask by preparation and number, across its executions.
    given: BTreeMap<Request, Answer>,
}

/// Makes the first vertex of a graph read files by splits.
pub(super) fn coordinate_first(graph: &mut pb::JobGraph) {
    graph.vertices[0].operators = vec![pb::Operator {
        uid: String::new(),
        name: OPERATOR.to_owned(),
        spec: r#"{"type":"file-source","paths":["f"]}"#.to_owned(),
        output: Vec::new(),
    }];
}

impl World {
    /// Prepares coordinators; the result arrives later.
    pub(super) fn look(&mut self, region: usize, generation: u64, operators: &[Coordinated]) {
        let first = self
            .built
            .regions_of(0)
            .map(|region| self.stored.regions.get(region));
        let stored: Vec<&pb::RegionState> = first.flatten().collect();
        let present: u64 = stored.iter().map(|it| it.generation.max(1)).sum();
        let is_any_placed = stored.iter().any(|it| !it.placements.is_empty());
        assert!(
            present < generation || !is_any_placed,
            "what is placed is looked at again"
        );
        self.asking.looks += 1;
        // Files grow between two preparations.
        let size = 100 + self.asking.looks;
        let state = |it: &Coordinated| pb::CoordinatorState {
            vertex_id: it.vertex_id.clone(),
            operator: it.operator.clone(),
            generation,
            state: Some(State::FileSplits(pb::FileSplits {
                files: vec![pb::SplitFile {
                    path: b"f".to_vec(),
                    size,
                }],
                ends: (1..=SPLITS).map(|it| size * it / SPLITS).collect(),
                assigned: Vec::new(),
                read: Vec::new(),
            })),
        };
        let outcome = match std::mem::take(&mut self.asking.next_look_fails) {
            true => Err(Unprepared {
                cause: "no such file".to_owned(),
                is_unrecoverable: false,
            }),
            false => Ok(operators.iter().map(state).collect()),
        };
        let event = Event::Prepared {
            region,
            generation,
            outcome,
        };
        self.events.push((self.epoch, event));
    }

    /// A task sends its next request, or repeats one.
    pub(super) fn ask(&mut self, pick: usize) {
        let first = self.graph.vertices[0].id.clone();
        let mut asking = Vec::new();
        for task_manager in &self.task_managers {
            for (key, running) in &task_manager.running {
                let live = running.iter().filter(|it| !is_terminal(it.state));
                let live = live.filter(|_| key.0 == first);
                asking
                    .extend(live.map(|it| (task_manager.connection(), key.clone(), it.generation)));
            }
        }
        if asking.is_empty() {
            return;
        }
        let index = pick % asking.len();
        let (connection, key, generation) = asking.swap_remove(index);
        let heard = self.asking.heard.get(&(key.clone(), generation)).copied();
        let next = heard.unwrap_or_default() + 1;
        let number = match pick % 5 {
            0 => 1,
            _ => next,
        };
        self.asking.last_token += 1;
        let token = self.asking.last_token;
        let request = CoordinatorRequest {
            token,
            execution: pb::ExecutionId {
                vertex_id: key.0.clone(),
                subtask: key.1,
                generation,
            },
            operator: OPERATOR.to_owned(),
            number,
        };
        self.asking.sent.insert(token, (key, generation, number));
        let event = Event::CoordinatorAsked {
            connection,
            request,
        };
        self.events.push((self.epoch, event));
    }

    /// A request is answered. The answer may get lost.
    pub(super) fn hear_answer(&mut self, token: u64, answer: CoordinatorAnswer) {
        let request = self.asking.sent[&token].clone();
        let answer = match answer {
            CoordinatorAnswer::Decided(answer) => answer,
            CoordinatorAnswer::NotServed(_) => {
                self.reached.not_served += 1;
                return;
            }
            CoordinatorAnswer::Invalid(why) => panic!("{request:?} is never answered: {why}"),
        };
        let (key, generation, number) = request.clone();
        assert_eq!(
            stored_answer(&self.stored, &request, self.is_whole),
            Some(answer.clone()),
            "{request:?} has an answer that is not stored"
        );
        if let Answer::FileSplit(split) = &answer {
            let start = split.ranges[0].start;
            let look = stored_look(&self.stored, &key.0);
            let place = (key.0.clone(), look, start);
            let owner = *self.asking.owners.entry(place).or_insert(key.1);
            assert_eq!(owner, key.1, "{split:?} has two owners");
        }
        self.reached.given += 1;
        let look = stored_look(&self.stored, &key.0);
        let of_subtask = (key.clone(), look, number);
        let first = self
            .asking
            .given
            .entry(of_subtask)
            .or_insert(answer.clone());
        assert_eq!(*first, answer, "a subtask loses what it was given");
        if let Some(before) = self.asking.answered.insert(request, answer.clone()) {
            self.reached.given_again += 1;
            assert_eq!(
                before, answer,
                "{key:?} has two answers to request {number}"
            );
        }
        let is_lost = token.is_multiple_of(3);
        if !is_lost && answer != Answer::Exhausted(pb::Ack {}) {
            let heard = self.asking.heard.entry((key, generation)).or_default();
            *heard = (*heard).max(number);
        }
    }
}

/// Generation of a vertex's coordinator state in a record.
fn stored_look(stored: &pb::JobState, vertex: &str) -> u64 {
    let mut all = stored.coordinators.iter();
    let state = all.find(|it| it.vertex_id == vertex);
    state.expect("what is answered is stored").generation
}

/// The listing of files that a record has for a vertex: each one finds more bytes.
pub(super) fn stored_listing(stored: &pb::JobState, vertex: &str) -> u64 {
    let mut all = stored.coordinators.iter();
    let state = all.find(|it| it.vertex_id == vertex);
    let state = state.and_then(|it| it.state.as_ref());
    let Some(State::FileSplits(splits)) = state else {
        panic!("what is deployed is prepared: {state:?}");
    };
    splits.files[0].size
}

/// Computes the answer to a request from a record. `None` if the record has none.
fn stored_answer(
    stored: &pb::JobState,
    (key, generation, number): &Request,
    is_whole: bool,
) -> Option<Answer> {
    let mut all = stored.coordinators.iter();
    let state = all.find(|it| it.vertex_id == key.0)?;
    assert!(!is_whole || state.generation == *generation);
    let Some(State::FileSplits(splits)) = &state.state else {
        panic!("{state:?} is of no file source");
    };
    let lists = splits.assigned.iter();
    let given: Vec<u32> = lists.flat_map(|it| it.splits.iter().copied()).collect();
    let mut lists = splits.assigned.iter();
    let list = lists
        .find(|it| it.subtask == key.1)
        .map(|it| it.splits.as_slice())
        .unwrap_or_default();
    let index = usize::try_from(number - 1).expect("few");
    let Some(split) = list.get(index) else {
        return (given.len() == splits.ends.len()).then_some(Answer::Exhausted(pb::Ack {}));
    };
    let split = *split as usize;
    let range = pb::FileRange {
        path: splits.files[0].path.clone(),
        start: split.checked_sub(1).map_or(0, |before| splits.ends[before]),
        end: splits.ends[split],
        size: splits.files[0].size,
    };
    let ranges = vec![range];
    Some(Answer::FileSplit(pb::FileSplit { ranges }))
}

/// Asserts that the record has the coordinator states of a deployed task.
pub(super) fn assert_prepared(
    graph: &pb::JobGraph,
    stored: &pb::JobState,
    task: &pb::TaskDeployment,
    is_whole: bool,
) {
    let is_coordinated = graph.vertices[0].id == task.vertex_id;
    let mut all = stored.coordinators.iter();
    let is_stored = all.any(|it| {
        it.vertex_id == task.vertex_id && (!is_whole || it.generation == task.generation)
    });
    assert!(!is_coordinated || is_stored, "not prepared: {task:?}");
}

/// Asserts that the splits and their owners don't change within a generation.
pub(super) fn assert_decisions_stay(before: &pb::JobState, after: &pb::JobState) {
    for after in &after.coordinators {
        let Some(State::FileSplits(splits)) = &after.state else {
            panic!("{after:?} is of no file source");
        };
        let lists = splits.assigned.iter();
        let mut given: Vec<u32> = lists.flat_map(|it| it.splits.iter().copied()).collect();
        let count = given.len();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), count, "a split has two owners: {splits:?}");
        let mut all = before.coordinators.iter();
        let same =
            all.find(|it| (&it.vertex_id, it.generation) == (&after.vertex_id, after.generation));
        let Some(State::FileSplits(before)) = same.and_then(|it| it.state.as_ref()) else {
            continue;
        };
        assert_eq!(before.files, splits.files);
        assert_eq!(before.ends, splits.ends);
        for list in &before.assigned {
            let mut lists = splits.assigned.iter();
            let grown = lists.find(|it| it.subtask == list.subtask);
            let is_kept = grown.is_some_and(|it| it.splits.starts_with(&list.splits));
            assert!(is_kept, "{list:?} was forgotten: {splits:?}");
        }
    }
}
