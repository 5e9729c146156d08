//! Stopping a job with a savepoint: decided in the record, what is visible then, a cancellation at the same time, and
//! leaders that change at each step.

use std::sync::Arc;

use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus, WantedStatus};

use super::recovered::{Recovered, both, end, one_region, options, placed};
use crate::core::{CancelAnswer, CommitProgress, Effect, Event, RestorePoints};

const PATH: &str = "/savepoints/savepoint-1-2";

/// A running job of the term of this number.
fn running_in(epoch: u64, state: pb::JobState) -> Recovered {
    let mut job = Recovered::in_term(&one_region(), state, epoch);
    job.register("tm0", "1", both(0, 3, S::Running));
    job.register("tm1", "1", both(1, 3, S::Running));
    job.effects.clear();
    job
}

fn running() -> Recovered {
    running_in(2, placed(&one_region(), 3))
}

fn complete() -> Event {
    Event::CheckpointsChanged(Arc::new(RestorePoints {
        numbers: vec![4],
        stops_with: Some(PATH.to_owned()),
        ..RestorePoints::default()
    }))
}

fn uncommitted() -> Event {
    Event::CheckpointsChanged(Arc::new(RestorePoints {
        numbers: vec![4],
        has_uncommitted: true,
        stops_with: Some(PATH.to_owned()),
        ..RestorePoints::default()
    }))
}

/// All tasks end as they were asked to.
fn end_canceled(job: &mut Recovered) {
    job.reports("tm0", both(0, 3, S::Canceled));
    job.reports("tm1", both(1, 3, S::Canceled));
}

/// A TaskManager registers whose tasks have ended. If the record has their ends, the job may have ended without it.
fn register_unless_ended(job: &mut Recovered, name: &str, subtask: u32) {
    if job.ended_as().is_none() {
        job.register(name, "1", both(subtask, 3, S::Canceled));
    }
}

fn answers(job: &Recovered) -> Vec<CancelAnswer> {
    let answer = |effect: &Effect| match effect {
        Effect::AnswerCancels(answer) | Effect::AnswerStops(answer) => Some(answer.clone()),
        _ => None,
    };
    job.effects.iter().filter_map(answer).collect()
}

fn commits(job: &Recovered) -> bool {
    let is_commit = |effect: &Effect| matches!(effect, Effect::CommitSinks(_));
    job.effects.iter().any(is_commit)
}

#[test]
fn the_stop_is_durable_before_a_task_is_cancelled_and_the_job_is_finished() {
    let mut job = running();
    let effects = job.core.handle(job.now_ms, complete()).expect("taken");
    let [Effect::Persist { number, state, .. }] = effects.as_slice() else {
        panic!("{effects:?}");
    };
    assert_eq!(state.wanted(), WantedStatus::Canceled);
    assert_eq!(state.stopped_with, PATH);
    let (number, state) = (*number, state.clone());
    job.hear(Event::Persisted(number));
    job.stored = (*state).clone();
    assert_eq!(job.cancelled().len(), 4);
    assert_eq!(job.core.status(), JobStatus::Running);
    let reasons = job.core.details().blocked_reasons;
    assert!(reasons[0].text.contains(PATH), "{}", reasons[0].text);
    end_canceled(&mut job);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));
    assert!(job.core.end.result().is_some_and(|it| !it.drained));
    assert!(!commits(&job), "what is not in a checkpoint is not visible");
    let result = job.core.end.result().expect("it has ended");
    assert!(result.cause.is_empty());
    let events = &result.details.as_ref().expect("described").events;
    let is_told =
        |event: &pb::JobEvent| event.kind() == pb::JobEventKind::Stop && event.text.contains(PATH);
    assert!(events.iter().any(is_told), "{events:?}");
    let cleanup = result.remove.as_ref();
    assert!(cleanup.is_some(), "pending files are cleaned up");
    let of_result = result.details.clone().expect("described");
    for details in [of_result, job.core.details()] {
        let subtasks = details.vertices.iter().flat_map(|it| &it.subtasks);
        for subtask in subtasks {
            assert_eq!(subtask.state(), S::Finished, "as their job");
            let times = subtask.timestamps.iter().map(|it| it.state());
            let times: Vec<S> = times.collect();
            assert!(times.contains(&S::Finished), "{times:?}");
            assert!(!times.contains(&S::Canceled), "{times:?}");
        }
    }
}

#[test]
fn a_cancellation_that_is_durable_first_wins() {
    let mut job = running();
    job.hear(Event::CancelRequested);
    job.hear(complete());
    assert!(job.stored.stopped_with.is_empty());
    end_canceled(&mut job);
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
    let vertices = job.core.details().vertices;
    let mut subtasks = vertices.iter().flat_map(|it| &it.subtasks);
    assert!(subtasks.all(|subtask| subtask.state() == S::Canceled));
}

#[test]
fn a_cancellation_at_the_same_time_wins() {
    let mut job = running();
    // A write is in flight, so neither is decided.
    let failed = job.core.handle(job.now_ms, Event::StopRequested);
    let failed = failed.expect("taken");
    let [Effect::Persist { number, .. }] = failed.as_slice() else {
        panic!("{failed:?}");
    };
    for event in [complete(), Event::CancelRequested] {
        let effects = job.core.handle(job.now_ms, event).expect("taken");
        let writes = |effect: &Effect| matches!(effect, Effect::Persist { .. });
        assert!(!effects.iter().any(writes));
    }
    job.hear(Event::Persisted(*number));
    assert_eq!(job.stored.wanted(), WantedStatus::Canceled);
    assert!(job.stored.stopped_with.is_empty());
    end_canceled(&mut job);
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
}

#[test]
fn later_requests_are_answered_with_the_end_of_the_job() {
    let mut job = running();
    job.hear(complete());
    job.hear(Event::CancelRequested);
    job.hear(Event::StopRequested);
    let answers = answers(&job);
    assert_eq!(answers.len(), 2, "{answers:?}");
    for answer in answers {
        let CancelAnswer::TooLate(why) = &answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains(PATH), "{why}");
    }
    end_canceled(&mut job);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));
}

#[test]
fn a_leader_that_finds_the_savepoint_complete_stops_the_job() {
    let former = running();
    let mut job = running_in(3, former.stored);
    job.hear(complete());
    assert_eq!(job.stored.stopped_with, PATH);
    end_canceled(&mut job);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));
}

#[test]
fn a_leader_that_finds_the_stop_goes_on_with_it() {
    let mut former = running();
    former.hear(complete());
    // No task has heard of it.
    let mut job = running_in(3, former.stored.clone());
    assert_eq!(job.core.status(), JobStatus::Running);
    assert!(job.deployed().is_empty());
    end_canceled(&mut job);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));

    // Some have ended by then.
    former.reports("tm0", both(0, 3, S::Canceled));
    let mut job = Recovered::in_term(&one_region(), former.stored.clone(), 3);
    job.register("tm1", "1", both(1, 3, S::Running));
    job.reports("tm1", both(1, 3, S::Canceled));
    register_unless_ended(&mut job, "tm0", 0);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));

    // All have.
    former.reports("tm1", both(1, 3, S::Canceled));
    assert_eq!(former.ended_as(), Some(JobStatus::Finished));
    let mut job = Recovered::in_term(&one_region(), former.stored, 3);
    register_unless_ended(&mut job, "tm0", 0);
    register_unless_ended(&mut job, "tm1", 1);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));
    assert!(!commits(&job));
}

#[test]
fn a_job_whose_tasks_have_all_finished_is_not_stopped() {
    let mut state = placed(&one_region(), 3);
    let tasks = [(1, 0), (1, 1), (2, 0), (2, 1)];
    let ends = tasks.map(|(vertex, subtask)| end(vertex, subtask, 3, S::Finished));
    state.terminal = ends.to_vec();
    let mut job = Recovered::with_options(&one_region(), state, 2, options());
    job.hear(complete());
    assert!(job.stored.stopped_with.is_empty());
    assert!(commits(&job));
}

#[test]
fn output_of_the_savepoint_that_can_never_be_committed_fails_the_job() {
    let mut job = running();
    job.hear(complete());
    job.hear(uncommitted());
    job.hear(Event::CheckpointCommit(CommitProgress::Began));
    end_canceled(&mut job);
    assert_eq!(job.ended_as(), None, "its output is awaited");
    let refused = CommitProgress::Refused("/out/a is there".to_owned());
    job.hear(Event::CheckpointCommit(refused));
    assert_eq!(job.ended_as(), Some(JobStatus::Failed));
    let result = job.core.end.result().expect("it has ended");
    assert!(result.cause.contains("/out/a is there"), "{}", result.cause);
}

#[test]
fn a_cancellation_gives_up_output_that_could_not_be_committed() {
    let mut job = running();
    job.hear(complete());
    job.hear(uncommitted());
    job.hear(Event::CheckpointCommit(CommitProgress::Began));
    let failed = CommitProgress::Failed("no space".to_owned());
    job.hear(Event::CheckpointCommit(failed));
    end_canceled(&mut job);
    assert_eq!(job.ended_as(), None, "it is tried again");
    job.hear(Event::CheckpointCommit(CommitProgress::Began));
    job.hear(Event::CancelRequested);
    assert!(answers(&job).is_empty(), "its outcome is not known");
    let failed = CommitProgress::Failed("no space".to_owned());
    job.hear(Event::CheckpointCommit(failed));
    assert_eq!(answers(&job), [CancelAnswer::Decided]);
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
}

#[test]
fn a_commit_that_hangs_counts_as_failed_and_does_not_keep_a_cancelled_job() {
    let mut job = running();
    job.hear(Event::CheckpointsChanged(Arc::new(RestorePoints {
        numbers: vec![4],
        has_uncommitted: true,
        ..RestorePoints::default()
    })));
    job.hear(Event::CheckpointCommit(CommitProgress::Began));
    job.hear(Event::CancelRequested);
    end_canceled(&mut job);
    assert_eq!(job.ended_as(), None, "its outcome is not known");
    let due_ms = job.core.next_deadline_ms().expect("it is bounded");
    job.pass(due_ms - job.now_ms);
    let cause = &job.core.details().failures[0].cause;
    assert!(cause.contains("may hang"), "{cause}");
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
}

#[test]
fn a_stop_without_a_savepoint_is_refused_while_one_with_a_savepoint_is_in_progress() {
    let request = |stop_request: Option<&str>| {
        Event::CheckpointsChanged(Arc::new(RestorePoints {
            numbers: vec![4],
            stop_request: stop_request.map(str::to_owned),
            ..RestorePoints::default()
        }))
    };
    let mut job = running();
    job.hear(request(Some("c0ffee")));
    job.hear(Event::StopRequested);
    let answered = answers(&job);
    let [CancelAnswer::TooLate(reason)] = answered.as_slice() else {
        panic!("{answered:?}");
    };
    assert!(reason.contains("c0ffee"), "{reason}");
    assert_ne!(job.stored.wanted(), WantedStatus::Stopped);
    // Once it has failed, the sources go on, and can be stopped.
    job.effects.clear();
    job.hear(request(None));
    job.hear(Event::StopRequested);
    assert_eq!(answers(&job), [CancelAnswer::Decided]);
    assert_eq!(job.stored.wanted(), WantedStatus::Stopped);
}
