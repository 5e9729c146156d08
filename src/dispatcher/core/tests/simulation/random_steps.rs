//! Random steps, then an end without faults.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::steps::KINDS;
use super::world::{SITUATIONS, World};
use crate::core::faults::{Fault, plant};

/// The kinds of the steps, each with what it is about; and how the case ends.
type Case = (Vec<(u8, u16)>, u16);

fn cases() -> impl Strategy<Value = Case> {
    let steps = prop::collection::vec((0..KINDS, any::<u16>()), 0..300);
    (steps, any::<u16>())
}

fn run((steps, last): Case) -> World {
    let mut world = World::new();
    for (kind, pick) in steps {
        world.step(kind, pick);
    }
    world.come_to_an_end(last);
    world
}

#[test]
fn no_order_of_requests_and_faults_breaks_an_invariant_and_every_job_ends() {
    tanist_property_tests::run_cases(
        1000,
        file!(),
        cases(),
        |case, reached: &mut [u32; SITUATIONS]| {
            let world = run(case);
            let all = reached.iter_mut().zip(world.reached);
            all.for_each(|(all, of_case)| *all += of_case);
            Ok(())
        },
    );
}

/// Number of cases, from one seed, within which each fault is found.
const CASES: usize = 50;

/// Whether a case fails with a fault.
fn is_found(fault: Fault) -> bool {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    plant(Some(fault));
    let found = (0..CASES).any(|_| {
        let case = cases().new_tree(&mut runner).expect("any is a case");
        let case = case.current();
        catch_unwind(AssertUnwindSafe(|| run(case))).is_err()
    });
    plant(None);
    found
}

#[test]
fn planted_faults_are_found() {
    for fault in [
        Fault::FailedWriteAcknowledged,
        Fault::RepeatedAcceptedAsNew,
        Fault::WaitingSubmissionForgotten,
        Fault::DecidedWhileSuspended,
        Fault::ReleasedBeforeResult,
        Fault::CleanBeforeCleanup,
        Fault::RemovedTooEarly,
        Fault::FailedCancellationAcknowledged,
        Fault::LedWithoutWrite,
        Fault::RecordsNotAwaited,
    ] {
        assert!(is_found(fault), "{fault:?} is not found in {CASES} cases");
    }
}
