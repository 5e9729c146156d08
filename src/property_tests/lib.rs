//! Runs property tests until all cases of interest have occurred.
//!
//! A single run of random cases may miss rare ones. Without them the test would prove nothing, but that is not
//! a failure of the code under test. So the test is run again, and fails if a case has not occurred in `MAX_RUNS` runs.

use std::cell::RefCell;
use std::fmt::Debug;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

/// Maximum number of runs.
const MAX_RUNS: usize = 20;

/// Runs `cases` cases, or `PROPTEST_CASES`, repeatedly until each counter is above 0 or a case fails. A case
/// increments the counters of what it reached. `file` is the test's source file, for recording its failures: their
/// seeds are in `src/proptest-regressions/`, at the file's path inside its crate, and are run before other cases.
pub fn run_cases<T: Debug, const N: usize>(
    cases: u32,
    file: &'static str,
    inputs: impl Strategy<Value = T>,
    case: impl Fn(T, &mut [u32; N]) -> TestCaseResult,
) {
    let config = Config {
        cases: cases.max(Config::default().cases),
        max_shrink_iters: 20_000,
        source_file: Some(file),
        ..Config::default()
    };
    let reached = RefCell::new([0; N]);
    for _ in 0..MAX_RUNS {
        let run = |input| case(input, &mut reached.borrow_mut());
        if let Err(failure) = TestRunner::new(config.clone()).run(&inputs, run) {
            panic!("{failure}");
        }
        if reached.borrow().iter().all(|times| *times > 0) {
            return;
        }
    }
    panic!("not all was reached: {:?}", reached.into_inner());
}
