//! The core against a simulated world, from seeds: first with random faults, then without. No step may break an
//! invariant, each region goes on to complete checkpoints, and what is named is committed.
//!
//! The faults that `core/faults.rs` lists show that the simulation would find them: each has the number of seeds within
//! which it is found. `CHECKPOINT_CASES` sets the number of cases, `CHECKPOINT_SEED` the first seed.

pub(in crate::core) mod execution;
mod faults;
mod healing;
pub(in crate::core) mod invariants;
mod leading;
pub(in crate::core) mod random;
mod savepoints;
mod steps;
mod store;
mod tasks;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use self::invariants::{Checked, k9_only_leaders_changed};
use self::world::{Reached, World};
use super::super::requests::stop_of;
use crate::core::faults::{Fault, plant};

fn setting(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

/// Runs one case. The error says which invariant is broken.
fn run(seed: u64) -> Result<Reached, String> {
    let mut world = World::new(seed);
    world.draw_origin();
    live(&mut world)?;
    Ok(world.reached)
}

fn live(world: &mut World) -> Checked {
    world.has_older = world.versions.one_in(3);
    world.take_over();
    for te in 0..world.tes.len() {
        world.register(te)?;
    }
    if world.random.one_in(2) {
        world.settle(false)?;
    }
    let steps = 200 + world.random.below(1_000);
    let rarity = 15 + world.random.below(200);
    let asks = world.extra.one_in(2);
    for _ in 0..steps {
        if asks && world.extra.one_in(80) {
            world.ask_savepoint(true)?;
        }
        if world.random.one_in(rarity) {
            world.suffer()?;
        } else if world.random.one_in(20) {
            let ms = world.random.between(0, 300);
            world.pass(ms)?;
        } else {
            world.work()?;
        }
    }
    world.heal()?;
    world.go_on()?;
    let is_canceled = world.random.one_in(4) || world.is_end_decided;
    world.come_to_an_end(is_canceled)
}

/// Runs one case in which only leaders change, and their TaskExecutors find the next one at once.
fn run_leaders_alone(seed: u64) -> Result<Reached, String> {
    let mut world = World::new(seed);
    world.records = 1_000_000;
    world.options.timeout_ms = 600_000;
    world.draw_origin();
    world.take_over();
    world.settle(false)?;
    for _ in 0..600 {
        if world.extra.one_in(100) {
            world.ask_savepoint(false)?;
        }
        if world.random.one_in(100) {
            world.change_leader()?;
        } else if world.random.one_in(12) {
            // Within the timeout of a trigger, everything is answered.
            for te in 0..world.tes.len() {
                world.register(te)?;
            }
            while !world.messages.is_empty() {
                world.deliver(world.messages.len() - 1)?;
            }
            let ms = world.random.between(0, 400);
            world.pass(ms)?;
        } else {
            world.work()?;
        }
    }
    let generations: Vec<u64> = world.stored.iter().map(|it| it.generation).collect();
    let aborted = usize::try_from(world.reached.aborted).unwrap_or(usize::MAX);
    k9_only_leaders_changed(aborted, &generations)?;
    Ok(world.reached)
}

fn run_all(cases: u64, case: impl Fn(u64) -> Result<Reached, String>) -> Reached {
    let first = setting("CHECKPOINT_SEED", 0);
    let mut reached = Reached::default();
    for seed in first..first + setting("CHECKPOINT_CASES", cases) {
        match case(seed) {
            Ok(of_case) => reached.add(&of_case),
            Err(broken) => panic!("seed {seed}: {broken}"),
        }
    }
    reached
}

#[test]
fn no_order_of_events_and_faults_breaks_an_invariant_and_checkpoints_go_on() {
    let reached = run_all(80, run);
    println!("{reached:?}");
    assert!(reached.wanted().iter().all(|it| *it > 0), "{reached:?}");
}

#[test]
fn a_change_of_leaders_alone_aborts_no_number_and_restarts_nothing() {
    let reached = run_all(100, run_leaders_alone);
    println!("{reached:?}");
    assert!(reached.adopted > 0 && reached.completed > 0, "{reached:?}");
}

/// Runs one case in which TaskExecutors and leaders stop hearing each other, one after another.
fn run_isolated(seed: u64) -> Result<Reached, String> {
    let mut world = World::new(seed);
    world.records += 300;
    world.take_over();
    world.settle(false)?;
    for _ in 0..4 {
        for _ in 0..world.random.below(150) {
            world.work()?;
        }
        let ms = world.options.interval_ms;
        world.pass(ms)?;
        for _ in 0..world.random.below(40) {
            world.work()?;
        }
        let te = world.random.below(world.tes.len());
        world.isolate(te)?;
    }
    world.heal()?;
    world.go_on()?;
    Ok(world.reached)
}

#[test]
fn no_isolation_of_task_executors_breaks_an_invariant_and_checkpoints_go_on() {
    let reached = run_all(15, run_isolated);
    assert!(reached.adopted > 0 && reached.aborted > 0, "{reached:?}");
}

/// Runs one case in which clients ask for many savepoints, and copies take long.
fn run_savepoints(seed: u64) -> Result<Reached, String> {
    let mut world = World::new(seed);
    world.records += 300;
    world.copies_slowly = true;
    world.draw_origin();
    world.take_over();
    world.settle(false)?;
    for _ in 0..500 {
        if world.extra.one_in(50) {
            world.ask_savepoint(true)?;
        }
        // A region that begins again while its job stops is where most may go wrong.
        if stop_of(&world.record.requests).is_some() && world.extra.one_in(60) {
            let pick = world.extra.below(usize::MAX);
            world.fail_task(pick);
        }
        if world.random.one_in(60) {
            world.suffer()?;
        } else if world.random.one_in(20) {
            let ms = world.random.between(0, 300);
            world.pass(ms)?;
        } else {
            world.work()?;
        }
        if world.is_end_decided {
            break;
        }
    }
    world.heal()?;
    world.go_on()?;
    let is_canceled = world.is_end_decided || world.extra.one_in(3);
    world.come_to_an_end(is_canceled)?;
    Ok(world.reached)
}

#[test]
fn each_acknowledged_savepoint_completes_or_says_why() {
    let reached = run_all(30, run_savepoints);
    println!("{reached:?}");
    let wanted = [
        reached.copied,
        reached.stopped,
        reached.resumed,
        reached.from_origin,
    ];
    assert!(wanted.iter().all(|it| *it > 0), "{reached:?}");
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
    let found = seeds.find_map(|seed| {
        let case = || match of_savepoints {
            true => run_savepoints(seed),
            false => run_isolated(seed).and_then(|_| run(seed)),
        };
        let result = catch_unwind(AssertUnwindSafe(case));
        let broken = result.unwrap_or_else(|_| Err("a panic".to_owned())).err();
        broken.map(|broken| (seed, broken))
    });
    plant(None);
    found
}

#[test]
fn each_planted_fault_is_found() {
    // Each with the number of seeds, from 0, within which it is found.
    let table = [
        (Fault::NumberGivenOutTwice, 5),
        (Fault::OlderGenerationCounted, 30),
        (Fault::SnapshotAfterFailure, 5),
        (Fault::LastButOneRestored, 5),
        (Fault::EndedTaskNotCounted, 5),
        (Fault::EndWithoutLastSnapshot, 150),
        (Fault::DeletionBeforeFloor, 10),
        (Fault::NumberBelowFloorAdopted, 150),
        (Fault::CarriedOverObjectDeleted, 10),
        (Fault::CommitBeforeWrite, 5),
        (Fault::CommitForgotten, 100),
        (Fault::CopyBeforeCommit, 5),
        (Fault::PinnedSubsumed, 30),
        (Fault::ResumedWhileStopping, 5),
        (Fault::CheckpointAfterStop, 250),
    ];
    let at_least = setting("CHECKPOINT_SEEDS", 0);
    let mut missed = Vec::new();
    for (fault, seeds) in table {
        let found = found(fault, 0..seeds.max(at_least));
        println!("{fault:?}: {found:?}");
        if found.is_none() {
            missed.push(fault);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
