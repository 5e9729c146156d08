//! The times of a job's statuses, across several leaders.

use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobEventKind, JobStatus};

use super::recovered::{Recovered, both, one_region, options, report};
use super::testing::submitted;
use crate::core::restart::RestartStrategy;
use crate::core::{CoreOptions, Effect, Event};

/// Restarts a second after each failure.
fn restarting() -> CoreOptions {
    CoreOptions {
        restart_strategy: RestartStrategy::FixedDelay {
            attempts: 99,
            delay_ms: 1_000,
        },
        ..options()
    }
}

/// A job that has run for a while. It was recovered at 1,000,000, like every job here.
fn running() -> Recovered {
    let graph = one_region();
    let mut job = Recovered::with_options(&graph, submitted(&graph), 2, restarting());
    job.pass(10);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    for state in [S::Initializing, S::Running] {
        job.pass(10);
        for (subtask, name) in (0..).zip(["tm0", "tm1"]) {
            job.reports(name, both(subtask, 1, state));
        }
    }
    assert_eq!(job.core.status(), JobStatus::Running);
    job
}

/// The next term of the job, `later_ms` later.
fn next_term(job: &Recovered, epoch: u64, later_ms: u64) -> Recovered {
    let mut next = Recovered::at(
        &one_region(),
        job.stored.clone(),
        epoch,
        restarting(),
        job.now_ms + later_ms,
    );
    next.pass(0);
    next
}

fn entered(job: &Recovered) -> Vec<(JobStatus, u64)> {
    let entered = job.core.details().timestamps;
    entered.iter().map(|it| (it.status(), it.at_ms)).collect()
}

fn since(job: &Recovered, status: JobStatus) -> u64 {
    let found = entered(job).into_iter().find(|it| it.0 == status);
    found.map_or(0, |it| it.1)
}

#[test]
fn the_next_leader_shows_a_restart_with_its_time() {
    let mut job = running();
    let failed = pb::ExecutionReport {
        cause: "broken".to_owned(),
        ..report(1, 0, 1, S::Failed)
    };
    let at = job.now_ms;
    job.reports("tm0", vec![failed]);
    assert_eq!(job.core.status(), JobStatus::Restarting);
    assert_eq!(since(&job, JobStatus::Restarting), at);
    let next = next_term(&job, 3, 500);
    assert_eq!(since(&next, JobStatus::Restarting), at);
    assert_eq!(
        since(&next, JobStatus::Initializing),
        since(&job, JobStatus::Initializing)
    );
}

#[test]
fn a_cancellation_is_shown_with_the_time_of_its_decision() {
    let mut job = running();
    let at = job.now_ms;
    let effects = job.core.handle(at, Event::CancelRequested).expect("taken");
    let write = effects.into_iter().find_map(|effect| match effect {
        Effect::Persist { number, state, .. } => Some((number, state)),
        _ => None,
    });
    let (number, state) = write.expect("it is written");
    assert_eq!(job.core.status(), JobStatus::Running, "nothing is durable");
    assert_eq!(since(&job, JobStatus::Cancelling), 0);
    job.stored = (*state).clone();
    job.now_ms += 300;
    job.hear(Event::Persisted(number));
    assert_eq!(job.core.status(), JobStatus::Cancelling);
    assert_eq!(since(&job, JobStatus::Cancelling), at);
    let next = next_term(&job, 3, 500);
    assert_eq!(next.core.status(), JobStatus::Cancelling);
    assert_eq!(since(&next, JobStatus::Cancelling), at);
    let order: Vec<JobStatus> = entered(&next).into_iter().map(|it| it.0).collect();
    assert_eq!(order.last(), Some(&JobStatus::Reconciling));
}

#[test]
fn a_job_whose_record_has_no_statuses_began_when_it_was_submitted() {
    let graph = one_region();
    let state = pb::JobState {
        submitted_at_ms: 77,
        ..submitted(&graph)
    };
    let job = Recovered::new(&graph, state);
    assert_eq!(since(&job, JobStatus::Initializing), 77);
}

#[test]
fn the_times_of_adopted_tasks_are_those_that_their_task_managers_know() {
    let job = running();
    let placed_at = job.stored.regions[0].placed_at_ms;
    let mut next = next_term(&job, 3, 500);
    for (subtask, name) in (0..).zip(["tm0", "tm1"]) {
        let mut reports = both(subtask, 1, S::Running);
        for report in &mut reports {
            report.ages = [
                (S::Deploying, 9_000),
                (S::Initializing, 480),
                (S::Running, 470),
            ]
            .map(|(state, ms_ago)| pb::ExecutionAge {
                state: state.into(),
                ms_ago,
            })
            .to_vec();
        }
        next.register(name, "1", reports);
    }
    assert_eq!(next.core.status(), JobStatus::Running);
    assert_eq!(
        since(&next, JobStatus::Running),
        since(&job, JobStatus::Running)
    );
    let details = next.core.details();
    for subtask in details.vertices.iter().flat_map(|it| &it.subtasks) {
        let at = |state: S| {
            let mut entered = subtask.timestamps.iter();
            entered.find(|it| it.state() == state).map(|it| it.at_ms)
        };
        assert_eq!(subtask.started_at_ms, placed_at);
        // It has waited for its slots since the takeover.
        assert_eq!(at(S::Created), Some(1_000_000));
        assert_eq!(at(S::Scheduled), Some(1_000_000));
        assert_eq!(at(S::Deploying), Some(placed_at));
        assert_eq!(at(S::Initializing), Some(next.now_ms - 480));
        assert_eq!(at(S::Running), Some(next.now_ms - 470));
    }
}

#[test]
fn executions_that_were_never_placed_were_created_with_their_job() {
    let graph = one_region();
    let mut job = Recovered::with_options(&graph, submitted(&graph), 2, restarting());
    // The first status, as the first leader of a job notes it.
    job.stored.statuses.push(pb::StatusTimestamp {
        status: JobStatus::Created.into(),
        at_ms: 1_000_007,
    });
    let next = next_term(&job, 3, 500);
    let details = next.core.details();
    for subtask in details.vertices.iter().flat_map(|it| &it.subtasks) {
        let mut entered = subtask.timestamps.iter();
        let created = entered.find(|it| it.state() == S::Created);
        assert_eq!(created.map(|it| it.at_ms), Some(1_000_007), "{subtask:?}");
    }
}

#[test]
fn a_finished_task_keeps_all_its_times() {
    let mut job = running();
    job.pass(5);
    for (subtask, name) in (0..).zip(["tm0", "tm1"]) {
        job.reports(name, both(subtask, 1, S::Finished));
    }
    let times = |job: &Recovered| {
        let details = job.core.details();
        let subtasks = details.vertices.iter().flat_map(|it| it.subtasks.clone());
        let known = subtasks.map(|mut it| {
            it.timestamps.retain(|it| it.state() != S::Reconciling);
            (it.started_at_ms, it.ended_at_ms, it.timestamps)
        });
        known.collect::<Vec<_>>()
    };
    let before = times(&job);
    assert!(before.iter().all(|it| it.2.len() == 6), "{before:?}");
    assert_eq!(times(&next_term(&job, 3, 500)), before);
}

/// The job's events in order, each with its status or its text.
fn events(job: &Recovered) -> Vec<(JobEventKind, String)> {
    let events = job.core.details().events;
    let told = events.into_iter().map(|it| match it.kind() {
        JobEventKind::Status => (it.kind(), format!("{:?}", it.status())),
        kind => (kind, it.text),
    });
    told.collect()
}

fn kinds(job: &Recovered) -> Vec<JobEventKind> {
    events(job).into_iter().map(|it| it.0).collect()
}

#[test]
fn events_are_shown_in_order_also_by_the_next_leader() {
    use JobEventKind as K;
    let mut job = running();
    let before = events(&job).len();
    let failed = pb::ExecutionReport {
        cause: "broken".to_owned(),
        ..report(1, 0, 1, S::Failed)
    };
    let at = job.now_ms;
    job.reports("tm0", vec![failed]);
    let told = job.core.details().events.split_off(before);
    assert_eq!(told.len(), 2, "{told:?}");
    let restart = &told[0];
    assert_eq!(
        (restart.kind(), restart.at_ms, restart.epoch),
        (K::Restart, at, 2)
    );
    assert_eq!(
        (restart.task.as_str(), restart.text.as_str()),
        ("a (1/2)", "broken")
    );
    assert_eq!((restart.until_ms, restart.regions), (at + 1_000, 1));
    assert_eq!(told[1].status(), JobStatus::Restarting);
    let earlier = events(&job);
    let mut next = next_term(&job, 3, 500);
    assert_eq!(events(&next)[..earlier.len()], earlier);
    assert_eq!(kinds(&next)[earlier.len()..], [K::Takeover]);
    for name in ["tm0", "tm1"] {
        next.register(name, "1", vec![]);
    }
    assert_eq!(next.core.status(), JobStatus::Restarting);
    next.pass(500);
    assert_eq!(next.core.status(), JobStatus::Running);
    next.hear(Event::CancelRequested);
    let told = &events(&next)[earlier.len()..];
    let told: Vec<&str> = told.iter().map(|it| it.1.as_str()).collect();
    assert_eq!(told[1..], ["Running", "", "Cancelling"], "{told:?}");
    assert!(told[0].contains("term 3"), "{told:?}");
    let last = next_term(&next, 4, 500);
    assert_eq!(kinds(&last).last(), Some(&K::Takeover));
    assert_eq!(events(&last)[..earlier.len() + 4], events(&next));
}

#[test]
fn an_adoption_is_an_event_and_a_status_that_was_never_left_is_not() {
    let job = running();
    let before = events(&job).len();
    let mut next = next_term(&job, 3, 500);
    for (subtask, name) in (0..).zip(["tm0", "tm1"]) {
        next.register(name, "1", both(subtask, 1, S::Running));
    }
    let told = events(&next).split_off(before);
    assert_eq!(
        kinds(&next)[before..],
        [JobEventKind::Takeover, JobEventKind::Adoption]
    );
    assert_eq!(told[1].1, "4 tasks go on, 0 restart");
}

#[test]
fn of_very_many_events_the_newest_are_kept() {
    let mut job = running();
    for generation in 1..=40 {
        let failed = pb::ExecutionReport {
            cause: "x".repeat(2_000),
            ..report(1, 0, generation, S::Failed)
        };
        job.reports("tm0", vec![failed, report(2, 0, generation, S::Canceled)]);
        job.reports("tm1", both(1, generation, S::Canceled));
        job.pass(1_000);
        job.reports("tm0", both(0, generation + 1, S::Running));
        job.reports("tm1", both(1, generation + 1, S::Running));
        if job.core.status() != JobStatus::Running {
            break;
        }
    }
    assert_eq!(job.core.details().events.len(), 64);
    assert!(job.stored.events.len() <= 64);
    assert!(job.stored.events.iter().all(|it| it.text.len() < 300));
}

#[test]
fn a_notice_of_a_task_is_one_event_though_each_report_repeats_it() {
    let mut job = running();
    let said = |notices: &[&str]| pb::ExecutionReport {
        notices: notices.iter().map(|it| (*it).to_owned()).collect(),
        ..report(1, 0, 1, S::Running)
    };
    let notices = |job: &Recovered| -> Vec<String> {
        let events = job.core.details().events.into_iter();
        let notices = events.filter(|it| it.kind() == JobEventKind::Notice);
        notices.map(|it| it.text).collect()
    };
    let (first, second) = ("a (1/2) on tm0: one", "a (1/2) on tm0: two");
    job.reports("tm0", vec![said(&["one"])]);
    assert_eq!(notices(&job), [first]);
    job.reports("tm0", vec![said(&["one", "two"])]);
    assert_eq!(notices(&job), [first, second]);
    job.reports("tm0", vec![said(&["one", "two"])]);
    assert_eq!(notices(&job), [first, second]);
    // They become durable with the next write.
    job.hear(Event::StopRequested);
    let mut next = next_term(&job, 3, 500);
    let mut all = both(0, 1, S::Running);
    all[0] = said(&["one", "two"]);
    next.register("tm0", "1", all);
    assert_eq!(notices(&next), [first, second]);
}
