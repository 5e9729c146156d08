//! The commit of the sinks, without the rest of the job.

use crate::core::job_end::{COMMIT_TIMEOUT_MS, Commit, JobEnd};
use crate::core::output::Output;

#[test]
fn a_failed_commit_is_tried_again_after_growing_delays() {
    let mut end = JobEnd::default();
    let (mut now_ms, mut delays) = (0, Vec::new());
    for _ in 0..10 {
        assert!(end.begin_commit(now_ms), "it is due");
        assert!(!end.begin_commit(now_ms), "one is in progress");
        end.commit_failed("a test", now_ms);
        let due_ms = end.commit_due_ms().expect("a retry");
        assert!(!end.begin_commit(due_ms - 1));
        delays.push(due_ms - now_ms);
        now_ms = due_ms;
    }
    assert_eq!(delays[..3], [100, 200, 400]);
    assert_eq!(delays[9], 10_000);
}

#[test]
fn a_commit_without_an_answer_counts_as_failed_and_stays_in_progress() {
    let (mut end, mut out) = (JobEnd::default(), Output::default());
    assert!(end.begin_commit(5));
    end.check_commit_timeout(4 + COMMIT_TIMEOUT_MS, &mut out);
    assert!(end.commit_failure().is_none());
    for _ in 0..2 {
        end.check_commit_timeout(5 + COMMIT_TIMEOUT_MS, &mut out);
    }
    assert_eq!(out.take_log().len(), 1, "it is logged once");
    assert!(end.commit_failure().is_some() && !end.begin_commit(u64::MAX));
    end.commit_done();
    assert_eq!(end.commit(), Commit::Done);
}

#[test]
fn a_refusal_counts_only_while_a_commit_is_in_progress() {
    let mut end = JobEnd::default();
    assert!(!end.commit_refused());
    assert!(end.begin_commit(1));
    assert!(end.commit_refused());
    assert_eq!(end.commit(), Commit::NotYet);
}
