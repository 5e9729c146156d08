//! Snapshots of several subtasks that go on from each other, beside a plain map: numbers that are aborted, durable
//! snapshots of which the tasks hear late, restores at the same and at another parallelism. Whatever is restored is
//! what the map had when the snapshot was taken.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tanist_proto::pieces::{Piece, pieces};
use tanist_proto::segments::counts_for;
use tanist_proto::v1::{CheckpointBarrier, ObjectPlace, SubtaskSnapshot};

use super::faults::plant;
use super::*;
use crate::state::Restored;

const MAX_PARALLELISM: u32 = 32;
const UID: &str = "count";

type Model = BTreeMap<(i64, u16), u32>;

/// What becomes of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    Durable,
    /// Written, and aborted.
    Aborted,
    /// Aborted before it was encoded.
    Dropped,
}

#[derive(Debug, Clone)]
enum Step {
    /// Sets keys from the first one on.
    Set(i64, u16, u16, u32),
    Remove(i64, u16, u16),
    Drop(i64),
    Snapshot(Outcome),
    /// The tasks hear of all durable snapshots up to here: those that follow go on from the newest.
    Tell,
    /// Goes on with the newest durable snapshot, at this parallelism. The bool: as one of another job.
    Restore(u32, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcome = prop_oneof![
        6 => Just(Outcome::Durable),
        2 => Just(Outcome::Aborted),
        1 => Just(Outcome::Dropped),
    ];
    let step = prop_oneof![
        8 => (0_i64..3, 0_u16..400, 1_u16..40, any::<u32>()).prop_map(|(n, k, c, v)| Step::Set(n, k, c, v)),
        1 => (0_i64..3, any::<u32>()).prop_map(|(n, v)| Step::Set(n, 0, 400, v)),
        4 => (0_i64..3, 0_u16..400, 1_u16..20).prop_map(|(n, k, c)| Step::Remove(n, k, c)),
        1 => (0_i64..3).prop_map(Step::Drop),
        8 => outcome.prop_map(Step::Snapshot),
        6 => Just(Step::Tell),
        2 => prop_oneof![3 => Just(None), 1 => (1_u32..5).prop_map(Some)]
            .prop_flat_map(|to| (Just(to.unwrap_or(0)), prop::bool::weighted(0.1)))
            .prop_map(|(to, is_foreign)| Step::Restore(to, is_foreign)),
    ];
    prop::collection::vec(step, 0..70)
}

/// A durable snapshot.
#[derive(Debug, Clone)]
struct Durable {
    number: u64,
    /// By subtask, as the manifest has it.
    subtasks: Vec<Arc<SubtaskSnapshot>>,
    model: Model,
}

struct World {
    tables: Vec<StateTable<u32>>,
    model: Model,
    objects: BTreeMap<String, Vec<u8>>,
    number: u64,
    /// Those of the present tasks, and the one that they were restored from.
    durable: Vec<Durable>,
    /// How many of them the tasks have heard of.
    told: usize,
    /// Slices that were written whole beside changes of others, and segments that were named again.
    rewritten: usize,
    named: usize,
}

fn key(number: u16) -> [u8; 2] {
    number.to_le_bytes()
}

fn table(subtask: u32, parallelism: u32) -> StateTable<u32> {
    let groups = KeyGroups::of_subtask(subtask, parallelism, MAX_PARALLELISM);
    let mut table = StateTable::new(
        "counts",
        "counts".to_owned(),
        groups,
        |value: &u32, bytes| {
            bytes.extend(value.to_le_bytes());
        },
    );
    table.limits = Limits {
        small: 0,
        segments: 10,
    };
    if subtask % 2 == 1 {
        table.load_in_parts();
    }
    table
}

fn read(entry: SavedEntry<'_>) -> Result<u32, String> {
    let bytes = entry
        .value()
        .try_into()
        .map_err(|_| "it is odd".to_owned())?;
    Ok(u32::from_le_bytes(bytes))
}

impl World {
    fn of(parallelism: u32) -> World {
        World {
            tables: (0..parallelism).map(|it| table(it, parallelism)).collect(),
            model: Model::new(),
            objects: BTreeMap::new(),
            number: 0,
            durable: Vec::new(),
            told: 0,
            rewritten: 0,
            named: 0,
        }
    }

    /// The table that has a key.
    fn table(&mut self, key: &[u8]) -> &mut StateTable<u32> {
        let mut tables = self.tables.iter_mut();
        tables
            .find(|it| it.groups.contain(key))
            .expect("one has it")
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Set(namespace, first, count, value) => {
                for number in first..first + count {
                    self.table(&key(number))
                        .insert(namespace, &key(number), value);
                    self.model.insert((namespace, number), value);
                }
            }
            Step::Remove(namespace, first, count) => {
                for number in first..first + count {
                    let removed = self.table(&key(number)).remove(namespace, &key(number));
                    prop_assert_eq!(removed, self.model.remove(&(namespace, number)));
                }
            }
            Step::Drop(namespace) => {
                let tables = self.tables.iter_mut();
                tables.for_each(|it| it.drop_namespace(namespace));
                self.model.retain(|(of, _), _| *of != namespace);
            }
            Step::Snapshot(outcome) => self.snapshot(outcome)?,
            Step::Tell => self.told = self.durable.len(),
            Step::Restore(parallelism, is_foreign) => self.restore(parallelism, is_foreign)?,
        }
        Ok(())
    }

    fn snapshot(&mut self, outcome: Outcome) -> Result<(), TestCaseError> {
        self.number += 1;
        let number = self.number;
        let told = self.durable[..self.told].last().cloned();
        let barrier = CheckpointBarrier {
            number,
            newest: told.as_ref().map_or(0, |it| it.number),
            ..CheckpointBarrier::default()
        };
        let mut subtasks = Vec::new();
        let mut tables = std::mem::take(&mut self.tables);
        for (subtask, table) in tables.iter_mut().enumerate() {
            let base = told.as_ref().map(|it| &it.subtasks[subtask]);
            let mut snapshot = Snapshot::of(barrier).going_on_from(base, UID);
            table.freeze(&mut snapshot);
            if outcome == Outcome::Dropped {
                continue;
            }
            let mut encoded = SubtaskSnapshot::default();
            let added = snapshot.add_to(&mut encoded, UID);
            prop_assert!(added.is_ok(), "{:?}", added);
            subtasks.push(Arc::new(self.written(encoded, number, subtask, base)?));
        }
        self.tables = tables;
        if outcome == Outcome::Durable {
            self.durable.push(Durable {
                number,
                subtasks,
                model: self.model.clone(),
            });
        }
        Ok(())
    }

    /// What the TaskExecutor makes of a snapshot: larger pieces are in an object.
    fn written(
        &mut self,
        mut snapshot: SubtaskSnapshot,
        number: u64,
        subtask: usize,
        base: Option<&Arc<SubtaskSnapshot>>,
    ) -> Result<SubtaskSnapshot, TestCaseError> {
        let own = |segment: &StateSegment| segment.written_in == number;
        prop_assert!(snapshot.segments.iter().filter(|it| own(it)).count() <= 1);
        self.named += snapshot.segments.iter().filter(|it| !own(it)).count();
        for segment in &mut snapshot.segments {
            if segment.written_in == number {
                let before = crate::state::segment::Segment::open(
                    &segment.content,
                    "counts",
                    MAX_PARALLELISM,
                );
                let before = before.expect("intact");
                let wholes = before
                    .subject()
                    .slices
                    .iter()
                    .filter(|it| it.position == 0)
                    .count();
                self.rewritten += usize::from(wholes == 1 && before.subject().base > 0);
                if segment.content.len() > 100 {
                    segment.object = format!("{number}-{subtask}");
                    let content = std::mem::take(&mut segment.content);
                    self.objects.insert(segment.object.clone(), content);
                }
                continue;
            }
            // Nothing but what the base has may be named.
            let base = base.expect("it goes on from a snapshot");
            let places: Vec<Option<ObjectPlace>> = pieces(base).map(Piece::place).collect();
            let named = Piece::Segment(segment).place();
            prop_assert!(named.is_none() || places.contains(&named), "{:?}", segment);
        }
        Ok(snapshot)
    }

    /// Goes on at this parallelism; 0: at the present one.
    fn restore(&mut self, parallelism: u32, is_foreign: bool) -> Result<(), TestCaseError> {
        let present = u32::try_from(self.tables.len()).expect("few");
        let to = if parallelism == 0 {
            present
        } else {
            parallelism
        };
        let Some(durable) = self.durable.last().cloned() else {
            self.tables = (0..to).map(|it| table(it, to)).collect();
            self.model.clear();
            return Ok(());
        };
        let is_own = to == present && !is_foreign;
        let mut tables = Vec::new();
        for subtask in 0..to {
            let mut table = table(subtask, to);
            let (first, end) = table.groups.range();
            let all = durable.subtasks.iter().enumerate();
            let own = all.filter(|(of, _)| !is_own || *of == tables.len());
            let segments = own.flat_map(|(_, it)| &it.segments);
            let segments = segments.filter(|it| counts_for(it, first..end)).cloned();
            let mut snapshot = SubtaskSnapshot {
                segments: segments.collect(),
                ..SubtaskSnapshot::default()
            };
            for segment in &mut snapshot.segments {
                if !segment.object.is_empty() {
                    segment.content.clone_from(&self.objects[&segment.object]);
                }
            }
            let restored =
                Restored::of(UID, &snapshot).with_own_number(is_own.then_some(durable.number));
            let restored = table.restore(&restored, read);
            prop_assert!(restored.is_ok(), "{:?}", restored);
            tables.push(table);
        }
        self.tables = tables;
        self.model = durable.model.clone();
        self.check()?;
        match is_own {
            true => {
                self.durable = vec![durable];
                self.told = 1;
            }
            // It stays the newest, and the tasks have no snapshot of their own.
            false => {
                self.snapshot_of_restored()?;
            }
        }
        Ok(())
    }

    /// The first snapshot of tasks that were restored from that of others: it names none of it.
    fn snapshot_of_restored(&mut self) -> Result<(), TestCaseError> {
        (self.durable, self.told) = (Vec::new(), 0);
        let named = self.named;
        self.snapshot(Outcome::Durable)?;
        prop_assert_eq!(self.named, named);
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut found = Model::new();
        for table in &self.tables {
            let namespaces: Vec<i64> = table.namespaces().collect();
            for namespace in namespaces {
                for (key, value) in table.entries(namespace) {
                    let number = u16::from_le_bytes(key.try_into().expect("two bytes"));
                    prop_assert!(found.insert((namespace, number), *value).is_none());
                }
            }
        }
        prop_assert_eq!(&found, &self.model);
        Ok(())
    }
}

fn run(parallelism: u32, steps: Vec<Step>) -> Result<(usize, usize), TestCaseError> {
    let mut world = World::of(parallelism);
    for step in steps {
        world.take(step)?;
    }
    world.check()?;
    world.restore(0, false)?;
    world.restore(parallelism % 4 + 1, false)?;
    Ok((world.rewritten, world.named))
}

fn runner(cases: u32) -> TestRunner {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Config::default()
    };
    let rng = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    TestRunner::new_with_rng(config, rng)
}

proptest! {
    #![proptest_config(Config::with_cases(256))]

    #[test]
    fn what_is_restored_is_what_was_saved(parallelism in 1_u32..5, steps in steps()) {
        run(parallelism, steps)?;
    }
}

/// Number of the case that finds a fault. Not shrunk: what matters is that one does.
fn found_by(fault: Option<Fault>, cases: u32) -> Option<u32> {
    let tried = std::cell::Cell::new(0);
    let failed = runner(cases).run(&(1_u32..5, steps()), |(parallelism, steps)| {
        tried.set(tried.get() + 1);
        plant(fault);
        let outcome = run(parallelism, steps);
        plant(None);
        outcome.map(|_| ())
    });
    match failed {
        Ok(()) => None,
        Err(TestError::Fail(..)) => Some(tried.get()),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

#[test]
fn each_planted_fault_is_found() {
    assert_eq!(found_by(None, 100), None);
    for fault in [
        Fault::RemovalForgottenTooEarly,
        Fault::ChangesSinceAnAbortedNumber,
        Fault::SliceCountsAfterRewrite,
        Fault::KeyGroupSkipped,
    ] {
        let found = found_by(Some(fault), 500);
        println!("{fault:?}: found by case {found:?}");
        assert!(found.is_some(), "{fault:?} is not found");
    }
}

#[test]
fn snapshots_name_older_segments_and_rewrite_slices() {
    let (mut rewritten, mut named) = (0, 0);
    let cells = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let ran = runner(50).run(&(1_u32..5, steps()), |(parallelism, steps)| {
        let (rewritten, named) = run(parallelism, steps)?;
        cells.0.set(cells.0.get() + rewritten);
        cells.1.set(cells.1.get() + named);
        Ok(())
    });
    ran.expect("none fails");
    rewritten += cells.0.get();
    named += cells.1.get();
    assert!(
        rewritten > 50 && named > 500,
        "{rewritten} slices, {named} segments"
    );
}
