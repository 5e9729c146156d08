//! An isolated job: the next generation waits until executions of the last one that may still run have
//! stopped.

use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use super::recovered::*;
use crate::core::Event;

fn isolated() -> pb::JobGraph {
    let mut graph = one_region();
    let options = graph.options.get_or_insert_default();
    options.set_isolation(pb::Isolation::StopFirst);
    graph
}

/// A job in generation 1 that the next term has adopted.
fn adopted() -> Recovered {
    let graph = isolated();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    for (subtask, name) in [(0, "tm0"), (1, "tm1")] {
        job.register(name, "1", both(subtask, 1, S::Running));
    }
    assert_eq!(job.generations(), [1]);
    job
}

/// Asserts that the next generation is deployed when the wait is over, and not before.
fn assert_waits(job: &mut Recovered) {
    assert_eq!(job.deployed(), vec![]);
    let until = job.core.next_deadline_ms().expect("something is due");
    assert_eq!(until, job.now_ms + RECONCILE_MS);
    job.pass(RECONCILE_MS - 1);
    assert_eq!(job.deployed(), vec![]);
    job.pass(1);
    assert_eq!(job.deployed().len(), 4);
}

#[test]
fn executions_of_unknown_end_have_stopped_when_the_next_generation_starts() {
    let graph = isolated();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    assert_eq!(job.stored.stop_first_wait_ms, RECONCILE_MS);
    job.register("tm0", "1", both(0, 1, S::Running));
    job.pass(RECONCILE_MS);
    assert_eq!(job.generations(), [2], "tm1 did not come back");
    job.reports("tm0", both(0, 1, S::Canceled));
    job.register("tm1", "2", vec![]);
    assert_waits(&mut job);
}

#[test]
fn reported_ends_are_followed_by_the_next_generation_at_once() {
    let graph = isolated();
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    job.register("tm0", "1", both(0, 1, S::Running));
    // The same process: tasks that it does not report don't run.
    job.register("tm1", "1", vec![]);
    assert_eq!(job.generations(), [2]);
    assert_eq!(job.deployed(), vec![]);
    job.reports("tm0", both(0, 1, S::Canceled));
    assert_eq!(job.deployed().len(), 4);
}

#[test]
fn a_generation_that_a_former_term_gave_up_may_still_run_somewhere() {
    let graph = isolated();
    let mut state = placed(&graph, 3);
    state.regions[0].placements.clear();
    state.regions[0].placed_before = true;
    let mut job = Recovered::new(&graph, state);
    assert_eq!(job.generations(), [4]);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    assert_waits(&mut job);
}

#[test]
fn a_generation_that_was_never_placed_is_not_waited_for() {
    let graph = isolated();
    let mut state = placed(&graph, 3);
    state.regions[0].placements.clear();
    let mut job = Recovered::new(&graph, state);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    assert_eq!(job.generations(), [4]);
    assert_eq!(job.deployed().len(), 4);
}

#[test]
fn the_longest_wait_that_was_ever_promised_counts() {
    let graph = isolated();
    let mut state = placed(&graph, 3);
    state.regions[0].placements.clear();
    state.regions[0].placed_before = true;
    state.stop_first_wait_ms = 2 * RECONCILE_MS;
    let mut job = Recovered::new(&graph, state);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    job.pass(2 * RECONCILE_MS - 1);
    assert_eq!(job.deployed(), vec![]);
    job.pass(1);
    assert_eq!(job.deployed().len(), 4);
}

#[test]
fn a_goodbye_without_tasks_is_proof_and_one_with_tasks_is_none() {
    for is_proof in [true, false] {
        let mut job = adopted();
        let (connection, cause) = (job.connection("tm1"), "a test".to_owned());
        job.hear(match is_proof {
            true => Event::TaskManagerLeft { connection, cause },
            false => Event::TaskManagerLost { connection, cause },
        });
        let region = &job.core.graph.region(0);
        assert_eq!(region.is_end_unknown, !is_proof);
    }
}
