//! Each kind of state beside a plain model: with snapshots in between, and restores at another parallelism.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::{DataType, Field, Schema};
use proptest::prelude::*;
use tanist_model::restore::{redistribute, steps};
use tanist_model::{ColumnType, CustomSpec, OperatorSpec};
use tanist_proto::v1::{
    CheckpointManifest, JobGraph, JobVertex, Operator, RegionSnapshot, RegionSnapshotKind,
    SubtaskSnapshot,
};
use tokio::time::Instant;

use super::*;
use crate::operator::{OperatorContext, OperatorError};
use crate::state::{KeyGroups, Restored, Snapshot};
use crate::testing::context;
use crate::time::TimeSignal;

const MAX_PARALLELISM: u32 = 24;
const UID: &str = "step";

fn graph(parallelism: u32) -> JobGraph {
    let spec = CustomSpec::operator("states", [("n", ColumnType::Int64)]).saving_state();
    JobGraph {
        vertices: vec![JobVertex {
            id: context(0, 1).vertex.to_string(),
            operators: vec![Operator {
                name: UID.to_owned(),
                spec: OperatorSpec::from(spec).to_json(),
                ..Operator::default()
            }],
            parallelism,
            max_parallelism: MAX_PARALLELISM,
            ..JobVertex::default()
        }],
        ..JobGraph::default()
    }
}

/// The context of a subtask whose input is partitioned by a number.
fn keyed_context(subtask: u32, parallelism: u32) -> OperatorContext {
    let key = Field::new("k", DataType::Int64, false);
    OperatorContext {
        graph: graph(parallelism).into(),
        input: Some(Arc::new(Schema::new(vec![key]))),
        keys: ["k".to_owned()].into(),
        ..context(subtask, parallelism)
    }
}

/// The bytes of a key.
fn key(number: i64) -> [u8; 8] {
    number.to_le_bytes()
}

fn number(key: &[u8]) -> i64 {
    i64::from_le_bytes(key.try_into().expect("a key has 8 bytes"))
}

/// A subtask of an operator that has a state of each kind.
#[derive(Debug)]
struct Subtask {
    groups: KeyGroups,
    value: ValueState<i64>,
    list: ListState<String>,
    map: MapState<String, i64>,
    timers: EventTimers,
    elements: OperatorList<i64>,
    shared: BroadcastState<i64, String>,
}

impl Subtask {
    fn new(subtask: u32, parallelism: u32) -> Subtask {
        let context = keyed_context(subtask, parallelism);
        let keyed = KeyedStates::of(&context).expect("its input is partitioned by key");
        Subtask {
            groups: KeyGroups::of(&context),
            value: keyed.value("value", "numbers"),
            list: keyed.list("list", "texts"),
            map: keyed.map("map", "numbers by text"),
            timers: keyed.timers("timers"),
            elements: OperatorList::new("elements", "numbers"),
            shared: BroadcastState::new("shared", "texts by number"),
        }
    }

    fn restore(&mut self, saved: &SubtaskSnapshot) -> Result<(), OperatorError> {
        let restored = Restored::of(UID, saved);
        self.value.restore(&restored)?;
        self.list.restore(&restored)?;
        self.map.restore(&restored)?;
        self.timers.restore(&restored)?;
        self.elements.restore(&restored)?;
        self.shared.restore(&restored)
    }

    fn snapshot(&mut self, number: u64) -> SubtaskSnapshot {
        let mut snapshot = Snapshot::numbered(number);
        let mut save = || {
            self.value.snapshot(&mut snapshot)?;
            self.list.snapshot(&mut snapshot)?;
            self.map.snapshot(&mut snapshot)?;
            self.timers.snapshot(&mut snapshot)?;
            self.elements.snapshot(&mut snapshot)?;
            self.shared.snapshot(&mut snapshot)
        };
        save().expect("each has a name of its own");
        let mut saved = SubtaskSnapshot::default();
        snapshot.add_to(&mut saved, UID).expect("its own keys");
        saved
    }
}

/// All subtasks of the operator.
#[derive(Debug)]
struct Subtasks(Vec<Subtask>);

impl Subtasks {
    fn new(parallelism: u32) -> Subtasks {
        let subtasks = (0..parallelism).map(|subtask| Subtask::new(subtask, parallelism));
        Subtasks(subtasks.collect())
    }

    /// The subtask that has the state of a key.
    fn of(&mut self, key: &[u8]) -> &mut Subtask {
        let mut subtasks = self.0.iter_mut();
        let owner = subtasks.find(|it| it.groups.contain(key));
        owner.expect("each key has a subtask")
    }

    /// Goes on at a parallelism with what these subtasks save.
    fn restored(mut self, number: u64, parallelism: u32) -> Subtasks {
        let subtasks = self.0.iter_mut().map(|it| it.snapshot(number)).collect();
        let saved = redistributed(subtasks, parallelism);
        let mut restored = Subtasks::new(parallelism);
        for (subtask, saved) in restored.0.iter_mut().zip(&saved) {
            subtask.restore(saved).expect("its own state");
        }
        restored
    }

    /// What all subtasks have together.
    fn content(&mut self) -> Model {
        let mut content = Model::default();
        for subtask in &mut self.0 {
            for namespace in subtask.value.namespaces() {
                let entries = subtask.value.entries(namespace);
                let entries = entries.map(|(key, value)| ((namespace, number(key)), *value));
                content.value.extend(entries);
            }
            for namespace in subtask.list.namespaces() {
                let entries = subtask.list.entries(namespace);
                let entries = entries.map(|(key, list)| ((namespace, number(key)), list.to_vec()));
                content.list.extend(entries);
            }
            for namespace in subtask.map.namespaces() {
                let entries = subtask.map.entries(namespace);
                let entries = entries.map(|(key, map)| ((namespace, number(key)), map.clone()));
                content.map.extend(entries);
            }
            content.elements.extend(subtask.elements.elements());
            content.watermark = subtask.timers.watermark();
            content.shared.clone_from(subtask.shared.map());
            // All that are left.
            subtask.timers.end();
            while let Some((time, key)) = subtask.timers.next_due() {
                content.timers.insert((time, number(&key)));
            }
        }
        content.elements.sort_unstable();
        content
    }
}

/// What the tasks at another parallelism get of these snapshots, by subtask.
fn redistributed(mut subtasks: Vec<SubtaskSnapshot>, parallelism: u32) -> Vec<SubtaskSnapshot> {
    let before = graph(u32::try_from(subtasks.len()).expect("few"));
    for (number, subtask) in (0..).zip(&mut subtasks) {
        subtask.vertex_id.clone_from(&before.vertices[0].id);
        subtask.subtask = number;
    }
    let manifest = CheckpointManifest {
        regions: vec![RegionSnapshot {
            kind: RegionSnapshotKind::Taken.into(),
            subtasks,
            ..RegionSnapshot::default()
        }],
        steps: steps(&before),
        ..CheckpointManifest::default()
    };
    redistribute(&manifest, &graph(parallelism)).expect("each state can be divided")
}

/// What the subtasks should have, by namespace and key.
#[derive(Debug, Default, PartialEq)]
struct Model {
    value: BTreeMap<(i64, i64), i64>,
    list: BTreeMap<(i64, i64), Vec<String>>,
    map: BTreeMap<(i64, i64), BTreeMap<String, i64>>,
    timers: BTreeSet<(i64, i64)>,
    watermark: Option<i64>,
    elements: Vec<i64>,
    shared: BTreeMap<i64, String>,
}

/// A namespace and a key.
type At = (i64, i64);

#[derive(Debug, Clone)]
enum Step {
    Set(At, i64),
    Add(At, i64),
    Remove(At),
    Push(At, String),
    SetList(At, Vec<String>),
    RemoveList(At),
    Insert(At, String, i64),
    RemoveEntry(At, String),
    Clear(At),
    DropNamespace(i64),
    SetTimer(At),
    RemoveTimer(At),
    Watermark(i64),
    Element(prop::sample::Index, i64),
    Share(i64, Option<String>),
    /// All subtasks are restored at this parallelism.
    Restore(u32),
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    use Step::*;
    let at = || (-1_i64..2, 0_i64..12);
    let timer = || (0_i64..30, 0_i64..12);
    let text = || "[ab]{0,2}";
    let step = prop_oneof![
        3 => (at(), any::<i64>()).prop_map(|(at, value)| Set(at, value)),
        3 => (at(), any::<i64>()).prop_map(|(at, value)| Add(at, value)),
        2 => at().prop_map(Remove),
        3 => (at(), text()).prop_map(|(at, text)| Push(at, text)),
        1 => (at(), prop::collection::vec(text(), 0..3)).prop_map(|(at, list)| SetList(at, list)),
        1 => at().prop_map(RemoveList),
        4 => (at(), text(), any::<i64>()).prop_map(|(at, entry, value)| Insert(at, entry, value)),
        2 => (at(), text()).prop_map(|(at, entry)| RemoveEntry(at, entry)),
        1 => at().prop_map(Clear),
        1 => (-1_i64..2).prop_map(DropNamespace),
        6 => timer().prop_map(SetTimer),
        2 => timer().prop_map(RemoveTimer),
        2 => (0_i64..30).prop_map(Watermark),
        3 => (any::<prop::sample::Index>(), any::<i64>()).prop_map(|(at, value)| Element(at, value)),
        2 => (0_i64..4, prop::option::of(text())).prop_map(|(key, text)| Share(key, text)),
        2 => (1_u32..9).prop_map(Restore),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn each_state_is_what_a_plain_model_is_at_any_parallelisms(steps in any_steps()) {
        let (mut subtasks, mut model) = (Subtasks::new(1), Model::default());
        for (number, step) in (1..).zip(steps) {
            match step {
                Step::Restore(parallelism) => subtasks = subtasks.restored(number, parallelism),
                step => take(&mut subtasks, &mut model, step)?,
            }
        }
        subtasks = subtasks.restored(1_000, 5);
        model.elements.sort_unstable();
        for subtask in &subtasks.0 {
            prop_assert_eq!(subtask.shared.map(), &model.shared, "each has all of it");
            prop_assert_eq!(subtask.timers.watermark(), model.watermark);
        }
        prop_assert_eq!(subtasks.content(), model);
    }
}

fn take(subtasks: &mut Subtasks, model: &mut Model, step: Step) -> Result<(), TestCaseError> {
    match step {
        Step::Set(at, value) => {
            let key = key(at.1);
            subtasks.of(&key).value.set((at.0, &key[..]), value);
            model.value.insert(at, value);
        }
        Step::Add(at, value) => {
            let key = key(at.1);
            let state = &mut subtasks.of(&key).value;
            let place = state.get_or_insert_with((at.0, &key[..]), || 7);
            *place = place.wrapping_add(value);
            let place = model.value.entry(at).or_insert(7);
            *place = place.wrapping_add(value);
        }
        Step::Remove(at) => {
            let key = key(at.1);
            let removed = subtasks.of(&key).value.clear((at.0, &key[..]));
            prop_assert_eq!(removed, model.value.remove(&at));
            prop_assert_eq!(subtasks.of(&key).value.get((at.0, &key[..])), None);
        }
        Step::Push(at, text) => {
            let key = key(at.1);
            let state = &mut subtasks.of(&key).list;
            state.push((at.0, &key[..]), text.clone());
            let list = model.list.entry(at).or_default();
            list.push(text);
            prop_assert_eq!(state.get((at.0, &key[..])), &**list);
        }
        Step::SetList(at, list) => {
            let key = key(at.1);
            subtasks.of(&key).list.set((at.0, &key[..]), list.clone());
            model.list.remove(&at);
            if !list.is_empty() {
                model.list.insert(at, list);
            }
        }
        Step::RemoveList(at) => {
            let key = key(at.1);
            let removed = subtasks.of(&key).list.clear((at.0, &key[..]));
            prop_assert_eq!(removed, model.list.remove(&at).unwrap_or_default());
        }
        Step::Insert(at, entry, value) => {
            let key = key(at.1);
            let state = &mut subtasks.of(&key).map;
            let before = state.insert((at.0, &key[..]), entry.clone(), value);
            prop_assert_eq!(state.get((at.0, &key[..]), &entry), Some(&value));
            let of_model = model.map.entry(at).or_default();
            prop_assert_eq!(before, of_model.insert(entry, value));
        }
        Step::RemoveEntry(at, entry) => {
            let key = key(at.1);
            let removed = subtasks.of(&key).map.remove((at.0, &key[..]), &entry);
            let of_model = model.map.get_mut(&at);
            prop_assert_eq!(removed, of_model.and_then(|map| map.remove(&entry)));
            model.map.retain(|_, map| !map.is_empty());
        }
        Step::Clear(at) => {
            let key = key(at.1);
            let cleared = subtasks.of(&key).map.clear((at.0, &key[..]));
            prop_assert_eq!(cleared, model.map.remove(&at).unwrap_or_default());
        }
        Step::DropNamespace(namespace) => {
            for subtask in &mut subtasks.0 {
                subtask.value.drop_namespace(namespace);
                subtask.list.drop_namespace(namespace);
                subtask.map.drop_namespace(namespace);
            }
            model.value.retain(|at, _| at.0 != namespace);
            model.list.retain(|at, _| at.0 != namespace);
            model.map.retain(|at, _| at.0 != namespace);
        }
        Step::SetTimer((time, number)) => {
            let key = key(number);
            subtasks.of(&key).timers.set(time, &key);
            model.timers.insert((time, number));
        }
        Step::RemoveTimer((time, number)) => {
            let key = key(number);
            subtasks.of(&key).timers.remove(time, &key);
            model.timers.remove(&(time, number));
        }
        Step::Watermark(watermark) => {
            model.watermark = model.watermark.max(Some(watermark));
            let mut due = BTreeSet::new();
            for subtask in &mut subtasks.0 {
                subtask.timers.advance(TimeSignal::Watermark(watermark));
                while let Some((time, key)) = subtask.timers.next_due() {
                    prop_assert!(due.insert((time, number(&key))), "it is due once");
                }
            }
            let is_due = |timer: &(i64, i64)| Some(timer.0) <= model.watermark;
            let expected: BTreeSet<_> = model.timers.iter().copied().filter(is_due).collect();
            model.timers.retain(|timer| !expected.contains(timer));
            prop_assert_eq!(due, expected);
        }
        Step::Element(subtask, value) => {
            let subtask = subtask.index(subtasks.0.len());
            subtasks.0[subtask].elements.elements_mut().push(value);
            model.elements.push(value);
        }
        Step::Share(key, text) => {
            let maps = subtasks.0.iter_mut().map(|it| it.shared.map_mut());
            for map in maps.chain([&mut model.shared]) {
                match &text {
                    Some(text) => map.insert(key, text.clone()),
                    None => map.remove(&key),
                };
            }
        }
        Step::Restore(_) => {}
    }
    Ok(())
}

#[test]
fn timers_are_due_in_their_order_also_those_that_are_set_meanwhile() {
    let mut timers = Subtask::new(0, 1).timers;
    for (time, number) in [(5, 2), (3, 9), (5, 1), (5, 1), (8, 1), (5, 4)] {
        timers.set(time, &key(number));
    }
    timers.advance(TimeSignal::Watermark(2));
    assert_eq!(timers.next_due(), None);
    timers.advance(TimeSignal::Idle);
    timers.advance(TimeSignal::Watermark(6));
    // It is not late to go back.
    timers.advance(TimeSignal::Watermark(1));
    assert_eq!(timers.watermark(), Some(6));
    let mut due = Vec::new();
    while let Some((time, key)) = timers.next_due() {
        let number = number(&key);
        due.push((time, number));
        if number == 1 && time == 5 {
            timers.remove(5, &self::key(2));
            timers.set(6, &key);
            timers.set(7, &key);
            // It is set already.
            timers.set(5, &self::key(4));
        }
    }
    assert_eq!(due, [(3, 9), (5, 1), (5, 4), (6, 1)]);
    timers.end();
    let left: Vec<i64> = std::iter::from_fn(|| timers.next_due())
        .map(|(time, _)| time)
        .collect();
    assert_eq!(left, [7, 8]);
}

#[test]
fn a_key_that_could_not_be_restored_fails_the_snapshot_and_names_its_state() {
    let error_of = |change: fn(&mut Subtask)| {
        let mut subtask = Subtask::new(0, 2);
        change(&mut subtask);
        let mut snapshot = Snapshot::numbered(1);
        let states = [
            subtask.value.snapshot(&mut snapshot),
            subtask.list.snapshot(&mut snapshot),
            subtask.timers.snapshot(&mut snapshot),
        ];
        let errors: Vec<_> = states.into_iter().filter_map(Result::err).collect();
        errors.iter().map(ToString::to_string).collect::<String>()
    };
    assert_eq!(error_of(|_| {}), "");
    let short = error_of(|it| it.value.set(b"total".as_slice(), 1));
    let of_another = error_of(|it| {
        let mut keys = (0..1_000).map(key);
        let other = keys.find(|key| !it.groups.contain(key)).expect("another's");
        it.list.push(&other[..], "a".to_owned());
    });
    let timer = error_of(|it| it.timers.set(7, b"total"));
    for (error, state) in [(short, "value"), (of_another, "list"), (timer, "timers")] {
        let named = format!("the state `{state}` has a key");
        assert!(error.contains(&named), "{error}");
    }
}

#[test]
fn keys_and_timers_that_were_removed_leave_no_namespace() {
    let mut subtask = Subtask::new(0, 1);
    for time in 0..1_000 {
        subtask.timers.set(time, &key(1));
        subtask.value.set((time, &key(1)[..]), 1);
        subtask.timers.remove(time, &key(1));
        subtask.value.clear((time, &key(1)[..]));
    }
    assert_eq!(subtask.value.namespaces().count(), 0);
    assert_eq!(subtask.value.table_namespaces(), 0);
}

#[test]
fn timers_that_an_operator_has_not_taken_are_due_after_a_restore() {
    let mut first = Subtask::new(0, 1);
    for number in 0..3 {
        first.timers.set(4, &key(number));
    }
    first.timers.advance(TimeSignal::Watermark(4));
    assert_eq!(first.timers.next_due(), Some((4, key(0).into())));
    let saved = first.snapshot(1);
    for subtask in [&mut first, &mut Subtask::new(0, 1)] {
        if subtask.timers.watermark().is_none() {
            subtask.restore(&saved).expect("its own state");
        }
        for number in 1..3 {
            assert_eq!(subtask.timers.next_due(), Some((4, key(number).into())));
        }
        assert_eq!(subtask.timers.next_due(), None);
    }
}

/// The time of a clock that goes on with the task's.
#[tokio::test(start_paused = true)]
async fn timers_of_processing_time_are_due_with_the_first_tick_at_or_after_their_time() {
    let timers = || {
        let keyed = KeyedStates::of(&keyed_context(0, 1));
        let keyed = keyed.expect("its input is partitioned by key");
        keyed.processing_timers("pauses")
    };
    let all = |timers: &mut ProcessingTimers| {
        let due = std::iter::from_fn(|| timers.next_due());
        due.map(|(time, key)| (time, number(&key)))
            .collect::<Vec<_>>()
    };
    let tick = async |timers: &mut ProcessingTimers, ms: u64| {
        tokio::time::advance(Duration::from_millis(ms)).await;
        timers.advance(Instant::now());
        all(timers)
    };
    let mut first = timers();
    let began = first.now();
    assert_eq!(first.next_tick(), None);
    for (after, number) in [(50, 2), (30, 9), (50, 1), (50, 1), (80, 1), (90, 3)] {
        first.set(began + after, &key(number));
    }
    first.remove(began + 90, &key(3));
    assert_eq!(all(&mut first), [], "no tick was there");
    let in_30_ms = Instant::now() + Duration::from_millis(30);
    assert_eq!(first.next_tick(), Some(in_30_ms));
    assert_eq!(tick(&mut first, 29).await, []);
    assert_eq!(tick(&mut first, 1).await, [(began + 30, 9)]);
    first.set(began - 1, &key(7));
    assert_eq!(
        first.next_tick(),
        Some(Instant::now() - Duration::from_millis(30))
    );
    assert_eq!(tick(&mut first, 0).await, [(began - 1, 7)]);
    let mut snapshot = Snapshot::numbered(1);
    first.snapshot(&mut snapshot).expect("saved");
    let mut saved = SubtaskSnapshot::default();
    snapshot.add_to(&mut saved, UID).expect("its own keys");
    let left = [(began + 50, 1), (began + 50, 2), (began + 80, 1)];
    assert_eq!(tick(&mut first, 50).await, left);
    // Nothing ran meanwhile: the wall clock of the host goes on by itself.
    let mut restored = timers();
    restored
        .restore(&Restored::of(UID, &saved))
        .expect("its own state");
    assert_eq!(all(&mut restored), []);
    assert!(restored.next_tick().is_some());
    assert_eq!(tick(&mut restored, 80).await, left);
    restored.set(i64::MAX, &key(1));
    assert!(restored.next_tick().is_some_and(|at| at > Instant::now()));
    restored.set(i64::MIN, &key(1));
    assert_eq!(tick(&mut restored, 0).await, [(i64::MIN, 1)]);
}

#[test]
fn the_elements_of_a_union_go_to_each_subtask_and_to_its_own_if_nothing_changes() {
    let list = || OperatorList::<String>::union("partitions", "names");
    let saved = |names: &[&str]| {
        let mut list = list();
        let names = names.iter().map(|name| (*name).to_owned());
        list.elements_mut().extend(names);
        let (mut snapshot, mut saved) = (Snapshot::numbered(1), SubtaskSnapshot::default());
        list.snapshot(&mut snapshot).expect("it has a name");
        snapshot.add_to(&mut saved, UID).expect("nothing is keyed");
        saved
    };
    for (parallelism, expected) in [
        (2, vec![vec!["a", "b"], vec!["c"]]),
        (1, vec![vec!["a", "b", "c"]]),
        (3, vec![vec!["a", "b", "c"]; 3]),
    ] {
        let tasks = redistributed(vec![saved(&["a", "b"]), saved(&["c"])], parallelism);
        let found = tasks.iter().map(|task| {
            let mut list = list();
            list.restore(&Restored::of(UID, task)).expect("intact");
            list.elements().to_vec()
        });
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_state_of_something_else_is_not_restored() {
    let keyed = KeyedStates::of(&keyed_context(0, 1)).expect("keyed");
    let mut numbers: ValueState<i64> = keyed.value("state", "numbers");
    numbers.set(&key(1)[..], 600);
    let mut snapshot = Snapshot::numbered(1);
    numbers.snapshot(&mut snapshot).expect("it has a name");
    let twice = numbers.snapshot(&mut snapshot).expect_err("the same name");
    let mut saved = SubtaskSnapshot::default();
    snapshot.add_to(&mut saved, UID).expect("its own keys");
    let restored = Restored::of(UID, &saved);
    let problem = |restored: Result<(), OperatorError>| {
        let error = restored.expect_err("it is not that state");
        (error.to_string(), error.is_damaged_state())
    };
    let (foreign, is_damaged) = problem(keyed.list::<i64>("state", "numbers").restore(&restored));
    assert_eq!(
        foreign,
        "the state `state` is that of value of numbers by k: int64 in 24 key groups, and the operator needs that of list of \
         numbers by k: int64 in 24 key groups"
    );
    assert!(!is_damaged);
    // The same signature promises the same encoding.
    let (damaged, is_damaged) =
        problem(keyed.value::<String>("state", "numbers").restore(&restored));
    assert!(is_damaged, "{damaged}");
    assert!(
        twice.to_string().contains("`state` is there twice"),
        "{twice}"
    );
}

#[test]
fn state_by_key_needs_an_input_that_is_partitioned_by_key() {
    let context = OperatorContext {
        keys: Arc::default(),
        ..keyed_context(0, 1)
    };
    let error = KeyedStates::of(&context).expect_err("there are no keys");
    assert!(
        error
            .to_string()
            .contains("put a key-by directly before it"),
        "{error}"
    );
    assert!(error.is_unrecoverable());
}
