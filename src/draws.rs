//! Cases that are drawn until they have got to all that a test is about.
//!
//! What is rare is not in each draw of cases. Without it they would prove nothing, and that is no failure of what is tested.

use std::cell::RefCell;
use std::fmt::Debug;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

/// How often cases are drawn.
const MOST_DRAWS: usize = 20;

/// Runs so many cases, or `PROPTEST_CASES`, and as many again until they have got to all that is counted, or one fails. A case adds to the
/// counts what it got to. `file` is the test's own, by which its failures are remembered.
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
    for _ in 0..MOST_DRAWS {
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
