//! Jobs whose tasks have all finished and whose output can't be made visible.

use std::sync::Arc;

use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::recovered::{Recovered, both, one_region, options};
use super::testing::submitted;
use crate::core::job_end::COMMIT_TIMEOUT_MS;
use crate::core::{CancelAnswer, CommitProgress, Effect, Event, RestorePoints};

/// All tasks have finished, and the first commit is in progress.
fn committing() -> Recovered {
    let graph = one_region();
    let mut job = Recovered::with_options(&graph, submitted(&graph), 2, options());
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    job.reports("tm0", both(0, 1, S::Finished));
    job.reports("tm1", both(1, 1, S::Finished));
    assert_eq!(commits(&job), 1);
    job
}

fn commits(job: &Recovered) -> usize {
    let commits = job.effects.iter();
    commits
        .filter(|effect| matches!(effect, Effect::CommitSinks(_)))
        .count()
}

fn answers(job: &Recovered) -> Vec<CancelAnswer> {
    let answers = job.effects.iter().filter_map(|effect| match effect {
        Effect::AnswerCancels(answer) => Some(answer.clone()),
        _ => None,
    });
    answers.collect()
}

fn fails(job: &mut Recovered) {
    job.hear(Event::SinksFailed("the directory is not there".to_owned()));
}

/// The commit that has just begun is not answered. The core is woken at each of its deadlines.
fn wait_out(job: &mut Recovered) {
    let until_ms = job.now_ms + COMMIT_TIMEOUT_MS;
    while job.now_ms < until_ms {
        let due_ms = job.core.next_deadline_ms();
        let due_ms = due_ms.filter(|due_ms| *due_ms <= until_ms);
        job.pass(due_ms.expect("the wait has a deadline") - job.now_ms);
    }
}

#[test]
fn output_that_can_not_be_made_visible_is_given_up_by_a_cancellation() {
    let mut job = committing();
    fails(&mut job);
    job.hear(Event::CancelRequested);
    assert_eq!(answers(&job), [CancelAnswer::Decided]);
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
    job.pass(60_000);
    assert_eq!(commits(&job), 1, "nothing is tried any more");
    let events = job.core.details().events;
    let told = events
        .iter()
        .any(|event| event.text.contains("the directory is not there"));
    assert!(told, "{events:?}");
}

#[test]
fn the_leader_after_a_cancellation_does_not_commit_either() {
    let mut former = committing();
    fails(&mut former);
    let before = former.stored.clone();
    former.hear(Event::CancelRequested);
    assert_ne!(former.stored, before, "it was decided in the record");
    let job = Recovered::with_options(&one_region(), former.stored, 3, options());
    assert_eq!(
        (commits(&job), job.ended_as()),
        (0, Some(JobStatus::Canceled))
    );
}

#[test]
fn a_cancellation_waits_for_the_outcome_of_a_running_commit() {
    let mut job = committing();
    fails(&mut job);
    job.pass(1_000);
    assert_eq!(commits(&job), 2);
    job.hear(Event::CancelRequested);
    assert_eq!(answers(&job), []);
    job.hear(Event::SinksCommitted);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));
    assert!(matches!(answers(&job)[..], [CancelAnswer::TooLate(_)]));

    let mut job = committing();
    fails(&mut job);
    job.pass(1_000);
    job.hear(Event::CancelRequested);
    fails(&mut job);
    assert_eq!(answers(&job), [CancelAnswer::Decided]);
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
}

#[test]
fn a_finished_job_without_a_failed_commit_is_not_cancelled() {
    let mut job = committing();
    job.hear(Event::CancelRequested);
    assert!(matches!(answers(&job)[..], [CancelAnswer::TooLate(_)]));
}

#[test]
fn the_blocked_reason_has_the_start_of_the_commit() {
    let mut job = committing();
    let since = |job: &Recovered| job.core.blocked_reasons()[0].since_ms;
    let began_ms = job.now_ms;
    job.pass(60_000);
    assert_eq!(since(&job), began_ms);
    fails(&mut job);
    assert_eq!(since(&job), 0, "until the next try nothing is under way");
    job.pass(1_000);
    assert_eq!(since(&job), job.now_ms);
}

#[test]
fn a_cancellation_gives_up_output_whose_commit_has_no_answer() {
    let mut job = committing();
    wait_out(&mut job);
    assert!(
        job.core.blocked_reasons()[0].text.contains("no answer"),
        "{:?}",
        job.core.blocked_reasons()
    );
    job.hear(Event::CancelRequested);
    assert_eq!(answers(&job), [CancelAnswer::Decided]);
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
    assert_eq!(commits(&job), 1, "nothing else is tried beside it");
}

#[test]
fn a_cancellation_that_waits_for_a_commit_is_decided_by_its_timeout() {
    let mut job = committing();
    fails(&mut job);
    job.pass(1_000);
    assert_eq!(commits(&job), 2);
    job.hear(Event::CancelRequested);
    assert_eq!(answers(&job), []);
    wait_out(&mut job);
    assert_eq!(answers(&job), [CancelAnswer::Decided]);
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
}

#[test]
fn a_slow_commit_without_a_cancellation_finishes_the_job() {
    let mut job = committing();
    job.pass(3_600_000);
    assert_eq!(commits(&job), 1);
    job.hear(Event::SinksCommitted);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));
}

#[test]
fn a_finished_job_whose_checkpoint_can_not_be_committed_is_cancelled() {
    for is_unrecorded in [false, true] {
        let graph = one_region();
        let mut job = Recovered::with_options(&graph, submitted(&graph), 2, options());
        job.hear(Event::CheckpointsChanged(Arc::new(RestorePoints {
            numbers: vec![4],
            has_uncommitted: true,
            ..RestorePoints::default()
        })));
        job.register("tm0", "1", vec![]);
        job.register("tm1", "1", vec![]);
        job.reports("tm0", both(0, 1, S::Finished));
        job.reports("tm1", both(1, 1, S::Finished));
        job.hear(Event::CheckpointsChanged(Arc::new(RestorePoints {
            numbers: vec![5],
            has_uncommitted: true,
            ..RestorePoints::default()
        })));
        // What becomes visible at the end is visible, and the checkpoint's output is not.
        job.hear(Event::SinksCommitted);
        assert_eq!(job.ended_as(), None);
        let reason = "no space left".to_owned();
        let progress = match is_unrecorded {
            true => vec![CommitProgress::Unrecorded(reason)],
            false => vec![CommitProgress::Began, CommitProgress::Failed(reason)],
        };
        for progress in progress {
            job.hear(Event::CheckpointCommit(progress));
        }
        let told = job.core.blocked_reasons();
        let told = told.iter().any(|it| it.text.contains("no space left"));
        assert!(told, "{:?}", job.core.blocked_reasons());
        job.hear(Event::CancelRequested);
        assert_eq!(answers(&job), [CancelAnswer::Decided]);
        assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
    }
}

#[test]
fn a_cancellation_waits_for_a_record_that_is_being_written_again() {
    let graph = one_region();
    let mut job = Recovered::with_options(&graph, submitted(&graph), 2, options());
    let points = |held: &[usize], has_uncommitted| {
        Event::CheckpointsChanged(Arc::new(RestorePoints {
            numbers: vec![4],
            held: held.iter().copied().collect(),
            has_uncommitted,
            ..RestorePoints::default()
        }))
    };
    job.hear(points(&[], true));
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    job.reports("tm0", both(0, 1, S::Running));
    job.reports("tm1", both(1, 1, S::Running));
    let refused = CommitProgress::Unrecorded("too large".to_owned());
    job.hear(Event::CheckpointCommit(refused));
    job.hear(points(&[0], true));
    job.hear(Event::CancelRequested);
    job.reports("tm0", both(0, 1, S::Canceled));
    job.reports("tm1", both(1, 1, S::Canceled));
    assert_eq!(job.ended_as(), None, "it may be durable in a moment");
    job.hear(Event::CheckpointCommit(CommitProgress::Recorded));
    job.hear(points(&[], true));
    assert_eq!(job.ended_as(), None, "what it lists is to be committed");
    job.hear(points(&[], false));
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
}

#[test]
fn a_record_that_is_written_after_a_refusal_is_no_reason_to_cancel_a_finished_job() {
    let mut job = committing();
    let progress = CommitProgress::Unrecorded("too large".to_owned());
    job.hear(Event::CheckpointCommit(progress));
    job.hear(Event::CheckpointCommit(CommitProgress::Recorded));
    job.hear(Event::CancelRequested);
    assert!(matches!(answers(&job)[..], [CancelAnswer::TooLate(_)]));
}
