//! A file sink, its JobMaster, former attempts and a consumer, in any order: each record becomes visible once.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use tanist_proto::id::{Generation, JobId};
use tanist_proto::v1::{CheckpointBarrier, CheckpointCommittable, SubtaskSnapshot};

use super::with_checkpoints_tests::{barrier, checkpointed, ended, opened, rolling, saved, write};
use super::*;
use crate::faults::{Fault, plant};
use crate::testing::{context, texts};

const NEVER: Duration = Duration::from_secs(3600);

/// What happens to a sink.
#[derive(Debug, Clone, Copy)]
enum Step {
    Write,
    Barrier {
        savepoint: bool,
    },
    /// The last number becomes durable. Its first commit stops after this number of looks.
    Complete {
        stops_after: usize,
        forget: bool,
    },
    /// A consumer takes all that is visible.
    Take,
    /// The task fails and is restored. The former attempt does not hear of it.
    Restart,
    /// The former attempt goes on.
    Zombie,
    /// The former attempt ends.
    ZombieEnds,
    RemoveSuperseded,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Write),
        1 => Just(Step::Barrier { savepoint: true }),
        5 => Just(Step::Barrier { savepoint: false }),
        5 => (0_usize..4, any::<bool>())
            .prop_map(|(stops_after, forget)| Step::Complete { stops_after, forget }),
        2 => Just(Step::Take),
        2 => Just(Step::Restart),
        1 => Just(Step::Zombie),
        1 => Just(Step::ZombieEnds),
        2 => Just(Step::RemoveSuperseded),
    ]
}

/// A snapshot that the JobMaster knows, with the position of the source.
#[derive(Debug, Clone, Default)]
struct Known {
    number: u64,
    generation: u64,
    position: u64,
    snapshot: SubtaskSnapshot,
}

/// One subtask of a sink, its source, its JobMaster and its consumer.
struct World {
    directory: tempfile::TempDir,
    spec: operators::FileSink,
    sink: FileSink,
    zombies: Vec<FileSink>,
    generation: u64,
    /// The next record.
    position: u64,
    next: u64,
    in_flight: Option<Known>,
    durable: Known,
    /// What the consumer took, by name.
    taken: BTreeMap<String, String>,
}

impl World {
    fn new() -> World {
        let directory = tempfile::tempdir().expect("directory");
        let spec = rolling(directory.path(), 6, NEVER);
        World {
            sink: opened(&spec, &checkpointed(0), None).expect("open"),
            directory,
            spec,
            zombies: Vec::new(),
            generation: 1,
            position: 0,
            next: 1,
            in_flight: None,
            durable: Known::default(),
            taken: BTreeMap::new(),
        }
    }

    fn job(&self) -> (JobId, &'static str) {
        (context(2, 4).job, "")
    }

    fn write(&mut self) {
        write(&mut self.sink, &self.position.to_string());
        self.position += 1;
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn barrier(&mut self, savepoint: bool) {
        let number = self.number();
        let barrier = CheckpointBarrier {
            savepoint,
            ..barrier(number, self.durable.number)
        };
        self.in_flight = Some(Known {
            number,
            generation: self.generation,
            position: self.position,
            snapshot: saved(&mut self.sink, barrier),
        });
    }

    /// Commits what a manifest lists: the committables that the former snapshot has not.
    fn commit(
        &mut self,
        number: u64,
        committables: &[CheckpointCommittable],
        stops_after: usize,
        forget: bool,
    ) {
        let former = &self.durable.snapshot.committables;
        let listed = committables.iter().filter(|it| !former.contains(it));
        let listed: Vec<_> = listed.cloned().collect();
        let parts = sink::decoded(&listed).expect("of a file sink");
        let looks = std::cell::Cell::new(0);
        let is_awaited = || {
            looks.set(looks.get() + 1);
            looks.get() <= stops_after
        };
        // Whether it stops or not: the next leader repeats it, after a consumer came by.
        drop(sink::commit_checkpoint_while(number, &parts, &is_awaited));
        self.take();
        for _ in 0..2 {
            sink::commit_checkpoint_while(number, &parts, &|| true).expect("committed");
        }
        if forget {
            sink::forget_marks(self.directory.path(), self.job(), number, &|| true)
                .expect("forgotten");
        }
    }

    fn complete(&mut self, stops_after: usize, forget: bool) {
        if let Some(known) = self.in_flight.take() {
            self.commit(
                known.number,
                &known.snapshot.committables,
                stops_after,
                forget,
            );
            self.durable = known;
        }
    }

    fn take(&mut self) {
        for entry in fs::read_dir(self.directory.path()).expect("directory") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("part-") {
                let content = fs::read_to_string(entry.path()).expect("a part");
                fs::remove_file(entry.path()).expect("taken");
                let twice = self.taken.insert(name, content);
                assert_eq!(twice, None, "a name is used twice");
            }
        }
    }

    fn restart(&mut self) {
        self.in_flight = None;
        self.generation += 1;
        let context = OperatorContext {
            generation: Generation::new(self.generation),
            ..checkpointed(self.durable.number)
        };
        let restored = (self.durable.number > 0).then_some(&self.durable.snapshot);
        let sink = opened(&self.spec, &context, restored).expect("restored");
        self.zombies.push(std::mem::replace(&mut self.sink, sink));
        self.position = self.durable.position;
    }

    fn zombie(&mut self) {
        let number = self.number();
        if let Some(zombie) = self.zombies.last_mut() {
            // Its files may be gone by now.
            let _ = zombie.process(texts("word", &["zombie"]), &mut Output::default());
            let _ = zombie.snapshot(&mut Snapshot::of(barrier(number, 0)));
        }
    }

    fn remove_superseded(&self) {
        let vertex = context(2, 4).vertex.to_string();
        let below = [((vertex, 2), self.durable.generation)].into();
        let snapshot = &self.durable.snapshot;
        let mut kept: BTreeSet<Vec<u8>> = snapshot.files.iter().cloned().collect();
        let parts = sink::decoded(&snapshot.committables).expect("of a file sink");
        kept.extend(
            parts
                .iter()
                .map(|it| Path::new(&it.pending_path).as_os_str().as_bytes().to_vec()),
        );
        let (directory, superseded) = (self.directory.path(), (&below, &kept));
        sink::remove_superseded(directory, self.job(), superseded, &|| true).expect("removed");
    }

    fn take_step(&mut self, step: Step) {
        match step {
            Step::Write => self.write(),
            Step::Barrier { savepoint } => self.barrier(savepoint),
            Step::Complete {
                stops_after,
                forget,
            } => self.complete(stops_after, forget),
            Step::Take => self.take(),
            Step::Restart => self.restart(),
            Step::Zombie => self.zombie(),
            Step::ZombieEnds => drop(self.zombies.pop()),
            Step::RemoveSuperseded => self.remove_superseded(),
        }
    }

    /// The source ends behind `records`, and with it the job. Returns all that became visible.
    fn end(mut self, records: u64) -> Vec<String> {
        while self.position < records {
            self.write();
        }
        let output = ended(&mut self.sink);
        let number = self.number();
        self.commit(number, &output, 1, false);
        self.take();
        sink::cleanup(self.directory.path(), self.job().0, "").expect("cleaned up");
        let lines = self.taken.values().flat_map(|content| content.lines());
        lines.map(str::to_owned).collect()
    }
}

/// Takes the steps, and then the job ends: each record is visible once.
fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut world = World::new();
    let mut records = 0;
    for step in steps {
        world.take_step(step);
        records = records.max(world.position);
    }
    let lines = world.end(records);
    let found: Result<Vec<u64>, _> = lines.iter().map(|line| line.parse()).collect();
    let mut found =
        found.map_err(|_| TestCaseError::fail("a former attempt's record is visible"))?;
    found.sort_unstable();
    prop_assert_eq!(found, (0..records).collect::<Vec<u64>>());
    Ok(())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn whatever_fails_each_record_is_visible_once(steps in steps()) {
        run(steps)?;
    }
}

#[test]
fn each_fault_that_is_planted_into_a_file_sink_is_found_within_48_cases() {
    for fault in [
        Fault::PendingFileAppended,
        Fault::PendingFileRemoved,
        Fault::OpenPartForgotten,
    ] {
        let config = ProptestConfig {
            failure_persistence: None,
            max_shrink_iters: 0,
            ..ProptestConfig::with_cases(48)
        };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let tried = std::cell::Cell::new(0);
        let failed = TestRunner::new_with_rng(config, rng).run(&steps(), |steps| {
            tried.set(tried.get() + 1);
            plant(Some(fault));
            // What is missing is a panic of the committer.
            let ran = std::panic::catch_unwind(|| run(steps));
            plant(None);
            ran.unwrap_or_else(|_| Err(TestCaseError::fail("a panic")))
        });
        println!("{fault:?}: found by case {}", tried.get());
        let is_found = matches!(failed, Err(TestError::Fail(..)));
        assert!(is_found, "{fault:?} is not found");
    }
}
