//! Cases from seeds: first with random faults, then without. No step may break an invariant, each region goes on to
//! complete checkpoints, and the job ends with all of its output.
//!
//! `CHECKPOINT_CASES` sets the number of cases, `CHECKPOINT_SEED` the first seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tanist_proto::v1 as pb;

use super::{Reached, assert_holds};
use crate::core::Event;
use crate::core::checkpoints::tests::simulation::invariants::{
    k9_only_leaders_changed, k10_blocked_number_is_in_flight, k13_only_retained_objects_are_left,
};
use crate::core::checkpoints::tests::simulation::random::Random;
use crate::core::failover::FailoverStrategy;
use crate::core::faults::{Fault, plant};
use crate::core::restart::RestartStrategy;
use crate::core::tests::simulation::steps::Fails;
use crate::core::tests::simulation::world::World;

/// Number of rounds within which each region that reads completes a checkpoint.
const ROUNDS: usize = 200;

/// Number of rounds within which a task hears of the abort of a number for which it blocks.
const STRAY_ROUNDS: usize = 4;

fn setting(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

/// A job of sources and sinks, in one region or several, perhaps beside stages that take no part.
fn world(random: &mut Random) -> World {
    type Shape<'a> = (&'a [(&'a str, u32)], &'a [(usize, usize)], &'a [usize]);
    let shapes: [Shape<'_>; 5] = [
        (&[("a", 2), ("b", 2)], &[(0, 1)], &[]),
        (
            &[("a", 1), ("b", 3), ("c", 2), ("d", 1)],
            &[(0, 1), (2, 3)],
            &[],
        ),
        (&[("a", 3), ("b", 2)], &[], &[]),
        (&[("a", 1), ("b", 1)], &[(0, 1)], &[]),
        (
            &[("a", 1), ("b", 2), ("c", 1), ("d", 1)],
            &[(0, 1), (2, 3)],
            &[1],
        ),
    ];
    let (vertices, edges, blocking) = shapes[random.below(shapes.len())];
    let strategy = match random.below(6) {
        0 => RestartStrategy::None,
        1 => RestartStrategy::FixedDelay {
            attempts: 3,
            delay_ms: 700,
        },
        _ => RestartStrategy::FixedDelay {
            attempts: u32::MAX,
            delay_ms: random.between(0, 800),
        },
    };
    let mut world = World::new(vertices, edges, blocking, strategy);
    if random.one_in(4) {
        world.fail_over_by(FailoverStrategy::Full);
    }
    let seed = random.next();
    world.with_checkpoints(seed)
}

impl World {
    fn is_to_end(&self) -> bool {
        self.result.is_some()
            || self.stored.wanted() != pb::WantedStatus::Running
            || !self.stored.fatal_cause.is_empty()
    }

    /// Without faults each region that reads completes two more checkpoints, no task blocks for a number that nothing
    /// continues, and what was garbage before is gone.
    fn complete_checkpoints(&mut self) {
        let garbage = self.objects();
        let mut stray_for: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        for _ in 0..2 {
            let before = self.checkpoints.as_ref().map_or(0, |at| at.record.next);
            let mut rounds = 0;
            loop {
                self.fail_while_stopping(8);
                self.round(false);
                let at = self.checkpoints.as_ref().expect("it takes checkpoints");
                if self.is_to_end() {
                    return;
                }
                let core = at.core.as_ref().expect("the term has one");
                // A barrier may arrive after the abort: then a heartbeat tells, and the abort is told again.
                let stray = at.blocked(&self.stored).into_iter();
                let stray =
                    stray.filter(|(region, number)| core.in_flight(*region) != Some(*number));
                let stray: Vec<(usize, u64)> = stray.collect();
                stray_for.retain(|it, _| stray.contains(it));
                for (region, number) in stray {
                    let rounds = stray_for.entry((region, number)).or_insert(0);
                    *rounds += 1;
                    if *rounds > STRAY_ROUNDS {
                        let in_flight = core.in_flight(region);
                        assert_holds(k10_blocked_number_is_in_flight(number, in_flight));
                    }
                }
                let missing = at.reading(&self.stored).into_iter();
                let missing = missing.filter(|it| at.newest_snapshot(*it).0 < before);
                let missing: Vec<usize> = missing.collect();
                if missing.is_empty() {
                    break;
                }
                rounds += 1;
                assert!(
                    rounds < ROUNDS,
                    "no checkpoint of regions {missing:?} completes: {core:#?}"
                );
            }
        }
        for _ in 0..30 {
            self.round(false);
        }
        if self.is_to_end() {
            return;
        }
        let at = self.checkpoints.as_ref().expect("it takes checkpoints");
        at.assert_goes_on(&self.stored);
        let left = at.objects.intersection(&garbage).cloned().collect();
        assert_holds(k13_only_retained_objects_are_left(
            at.retained_manifests().iter(),
            at.record.floor,
            &left,
        ));
    }

    /// The objects that there are: each either stays named or is removed.
    fn objects(&self) -> BTreeSet<String> {
        self.checkpoints
            .as_ref()
            .map(|at| at.objects.clone())
            .unwrap_or_default()
    }
}

/// Runs one case.
fn run(seed: u64) -> Reached {
    run_with(seed, Asks::Nothing)
}

/// Runs one case in which clients ask for many savepoints, and TaskManagers are drained.
fn run_savepoints(seed: u64) -> Reached {
    run_with(seed, Asks::ForSavepoints)
}

/// What clients and operators of the cluster ask for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Asks {
    Nothing,
    ForSavepoints,
}

impl World {
    /// Perhaps a client asks for a savepoint, or a drain begins or ends.
    fn ask_for_savepoints(&mut self) {
        let at = self.checkpoints.as_mut().expect("it takes checkpoints");
        let random = &mut at.savepoints.random;
        let (asks, drains) = (random.one_in(60), random.one_in(150));
        let (kind, pick) = (random.below(8) as u8, random.below(usize::from(u16::MAX)));
        if asks {
            self.ask_savepoint();
        }
        if drains {
            self.step(105 + kind, pick);
        }
        self.fail_while_stopping(60);
    }

    /// Perhaps a task fails while its job stops with a savepoint. A region that begins again then is where most may go
    /// wrong.
    fn fail_while_stopping(&mut self, rarity: usize) {
        let at = self.checkpoints.as_mut().expect("it takes checkpoints");
        if at.is_to_stop() && at.savepoints.random.one_in(rarity) {
            let pick = at.savepoints.random.below(usize::from(u16::MAX));
            let index = pick % self.task_managers.len();
            self.progress(index, pick / 3, Fails::Yes);
        }
    }
}

fn run_with(seed: u64, asks: Asks) -> Reached {
    let mut random = Random::new(seed);
    let mut world = world(&mut random);
    if !random.one_in(4) {
        world.come_to_run();
    }
    for _ in 0..=random.below(2) {
        let rarity = 8 + random.below(120);
        for _ in 0..100 + random.below(700) {
            let pick = random.below(usize::from(u16::MAX));
            if asks == Asks::ForSavepoints {
                world.ask_for_savepoints();
            }
            if random.one_in(rarity) && random.one_in(2) {
                let index = pick % world.task_managers.len();
                world.progress(index, pick / 3, Fails::Yes);
            } else if random.one_in(rarity) {
                world.step(84 + random.below(21) as u8, pick);
            } else if random.one_in(3) {
                world.step(random.below(84) as u8, pick);
            } else {
                world.work_on_checkpoints();
            }
        }
        world.undrain_all();
        world.come_to_run();
        if random.one_in(2) {
            world.end_a_source_early(random.below(usize::from(u16::MAX)));
        }
        for _ in 0..2 {
            for index in 0..world.task_managers.len() {
                world.end_what_has_ended(index);
            }
            world.round(false);
        }
        world.complete_checkpoints();
    }
    // Some jobs are drained, perhaps while a savepoint is being taken.
    let is_drained = asks == Asks::ForSavepoints && seed.is_multiple_of(3);
    world.come_to_an_end(is_drained.then_some((0, Event::StopRequested)));
    let mut reached = world.checkpoints.expect("it takes checkpoints").reached;
    reached.moved = u64::from(world.reached.moved);
    reached.drained = u64::from(world.reached.stopped_finished);
    reached
}

/// Runs one case in which only leaders change, and TaskManagers find the next one at once.
fn run_leaders_alone(seed: u64) -> Reached {
    let mut random = Random::new(seed);
    let mut world = world(&mut random);
    if let Some(at) = &mut world.checkpoints {
        at.records = 1_000_000;
        at.options.timeout_ms = 600_000;
        at.options.tolerable_failures = None;
        at.fails = false;
    }
    world.begin_term();
    world.come_to_run();
    if let Some(at) = &mut world.checkpoints {
        at.aborts.clear();
    }
    for _ in 0..40 {
        for _ in 0..random.below(40) {
            let pick = random.below(usize::from(u16::MAX));
            match random.below(60) {
                0 => world.step(92, pick),
                1 => world.step(96, pick),
                2..20 => world.step(random.below(60) as u8, pick),
                _ => world.work_on_checkpoints(),
            }
        }
        world.round(false);
    }
    let at = world.checkpoints.as_ref().expect("it takes checkpoints");
    assert!(at.aborts.is_empty(), "K9: {:?}", at.aborts);
    let placed = world.stored.regions.iter();
    let placed = placed.filter(|it| !it.placements.is_empty());
    let generations: Vec<u64> = placed.map(|it| it.generation).collect();
    assert_holds(k9_only_leaders_changed(at.aborts.len(), &generations));
    at.reached
}

fn run_all(cases: u64, case: impl Fn(u64) -> Reached) -> Reached {
    let first = setting("CHECKPOINT_SEED", 0);
    let mut reached = Reached::default();
    for seed in first..first + setting("CHECKPOINT_CASES", cases) {
        let of_case = catch_unwind(AssertUnwindSafe(|| case(seed)));
        match of_case {
            Ok(of_case) => reached.add(&of_case),
            Err(_) => panic!("seed {seed}"),
        }
    }
    println!("{reached:?}");
    reached
}

#[test]
fn no_order_of_events_and_faults_breaks_an_invariant_of_checkpoints_and_every_job_ends() {
    let reached = run_all(150, run);
    assert!(reached.wanted().iter().all(|it| *it > 0), "{reached:?}");
}

#[test]
fn each_savepoint_of_a_job_completes_or_says_why_and_a_job_that_stops_has_shown_what_it_has() {
    let reached = run_all(60, run_savepoints);
    let wanted = [
        reached.copied,
        reached.stopped,
        reached.resumed,
        reached.finished,
        reached.moved,
        reached.drained,
    ];
    assert!(wanted.iter().all(|it| *it > 0), "{reached:?}");
}

#[test]
fn a_change_of_leaders_alone_aborts_no_checkpoint_and_restarts_no_region() {
    let reached = run_all(60, run_leaders_alone);
    assert!(reached.adopted > 0 && reached.completed > 0, "{reached:?}");
}

/// The first of the seeds whose cases find a planted fault, and what it finds.
fn found(fault: Fault, mut seeds: Range<u64>) -> Option<(u64, String)> {
    plant(Some(fault));
    let of_savepoints = matches!(
        fault,
        Fault::CopyBeforeCommit
            | Fault::PinnedSubsumed
            | Fault::ResumedWhileStopping
            | Fault::CheckpointAfterStop
    );
    let case = if of_savepoints { run_savepoints } else { run };
    let found = seeds.find_map(|seed| {
        let broken = catch_unwind(AssertUnwindSafe(|| case(seed))).err()?;
        let text = broken.downcast_ref::<String>().cloned();
        let text = text.unwrap_or_default();
        Some((seed, text.chars().take(160).collect()))
    });
    plant(None);
    found
}

#[test]
fn each_planted_fault_is_found_by_jobs_with_checkpoints() {
    // Each with the seeds within which it is found. Three are found by one case in 100 or 200: their seeds begin
    // shortly before it. One that the simulation of the checkpoints alone finds is missing: a number below the floor
    // is adopted only after a TaskManager was isolated for long.
    let table = [
        (Fault::NumberGivenOutTwice, 0..10),
        (Fault::OlderGenerationCounted, 0..10),
        (Fault::SnapshotAfterFailure, 0..60),
        (Fault::LastButOneRestored, 0..10),
        (Fault::EndedTaskNotCounted, 0..30),
        (Fault::EndWithoutLastSnapshot, 160..200),
        (Fault::DeletionBeforeFloor, 0..30),
        (Fault::CarriedOverObjectDeleted, 0..10),
        (Fault::CommitBeforeWrite, 0..5),
        (Fault::CommitForgotten, 180..220),
        (Fault::CopyBeforeCommit, 0..15),
        (Fault::PinnedSubsumed, 0..30),
        (Fault::ResumedWhileStopping, 0..15),
        (Fault::CheckpointAfterStop, 70..110),
        (Fault::FilesListedAgain, 0..10),
    ];
    let mut missed = Vec::new();
    for (fault, seeds) in table {
        let found = found(fault, seeds);
        println!("{fault:?}: {found:?}");
        if found.is_none() {
            missed.push(fault);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
