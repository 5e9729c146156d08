//! Stopping a job: the core's decisions and answers, with a cancellation at the same time, a failure
//! meanwhile, and a change of the leader.

use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus, WantedStatus};

use super::recovered::{
    RECONCILE_MS, Recovered, both, end, one_region, options, placed, two_regions,
};
use super::testing::{graph_of, submitted};
use crate::core::restart::RestartStrategy;
use crate::core::{CancelAnswer, CoreOptions, Effect, Event, SubmitOutcome};

/// A running job. No effects are recorded yet.
fn running() -> Recovered {
    let graph = one_region();
    let mut job = Recovered::new(&graph, placed(&graph, 3));
    job.register("tm0", "1", both(0, 3, S::Running));
    job.register("tm1", "1", both(1, 3, S::Running));
    job.effects.clear();
    job
}

/// A job that would be restarted immediately. All of it was deployed, and no answer has arrived.
fn deploying(graph: &pb::JobGraph) -> Recovered {
    let options = CoreOptions {
        restart_strategy: RestartStrategy::FixedDelay {
            attempts: 3,
            delay_ms: 0,
        },
        ..options()
    };
    let mut job = Recovered::with_options(graph, submitted(graph), 1, options);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    job
}

fn stop_answers(job: &Recovered) -> Vec<CancelAnswer> {
    let answer = |effect: &Effect| match effect {
        Effect::AnswerStops(answer) => Some(answer.clone()),
        _ => None,
    };
    job.effects.iter().filter_map(answer).collect()
}

/// The TaskManagers that receive the stop immediately.
fn told(job: &Recovered) -> Vec<String> {
    let told = |effect: &Effect| match effect {
        Effect::AskReport(connection) => Some(connection.task_manager.to_string()),
        _ => None,
    };
    job.effects.iter().filter_map(told).collect()
}

#[test]
fn a_stop_is_durable_before_it_is_sent_and_the_job_finishes() {
    let mut job = running();
    assert!(!job.core.tells_to_stop());
    let effects = job.core.handle(job.now_ms, Event::StopRequested);
    let effects = effects.expect("taken");
    let [Effect::Persist { number, state, .. }] = effects.as_slice() else {
        panic!("{effects:?}");
    };
    assert_eq!(state.wanted(), WantedStatus::Stopped);
    assert!(!job.core.tells_to_stop());
    job.hear(Event::Persisted(*number));
    assert!(job.core.tells_to_stop());
    assert_eq!(stop_answers(&job), [CancelAnswer::Decided]);
    assert_eq!(told(&job), ["tm0", "tm1"]);
    assert_eq!(job.core.status(), JobStatus::Running);
    assert!(
        job.core.details().blocked_reasons[0]
            .text
            .contains("is being stopped")
    );
    job.reports("tm0", both(0, 3, S::Finished));
    job.reports("tm1", both(1, 3, S::Finished));
    assert_eq!(told(&job).len(), 2, "each is told once");
    job.hear(Event::SinksCommitted);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));
    assert!(job.core.end.result().is_some_and(|it| it.drained));
    job.hear(Event::StopRequested);
    assert_eq!(stop_answers(&job)[1], CancelAnswer::Decided);
}

#[test]
fn the_next_leader_continues_the_stop_and_sends_it_to_each_task_manager_that_registers() {
    let graph = one_region();
    let mut state = placed(&graph, 3);
    state.set_wanted(WantedStatus::Stopped);
    let mut job = Recovered::new(&graph, state);
    job.register("tm0", "1", both(0, 3, S::Running));
    assert_eq!(told(&job), ["tm0"]);
    job.register("tm1", "1", both(1, 3, S::Finished));
    assert_eq!(told(&job), ["tm0", "tm1"]);
    job.reports("tm0", both(0, 3, S::Finished));
    assert!(job.deployed().is_empty() && job.cancelled().is_empty());
    job.hear(Event::SinksCommitted);
    assert_eq!(job.ended_as(), Some(JobStatus::Finished));
}

#[test]
fn a_cancellation_wins_before_a_stop_and_after_it() {
    let mut job = running();
    job.hear(Event::StopRequested);
    job.hear(Event::CancelRequested);
    assert_eq!(job.stored.wanted(), WantedStatus::Canceled);
    assert_eq!(job.cancelled().len(), 4);
    job.hear(Event::StopRequested);
    let answers = stop_answers(&job);
    assert!(
        matches!(answers[1], CancelAnswer::TooLate(_)),
        "{answers:?}"
    );
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.reports(name, both(subtask, 3, S::Canceled));
    }
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
}

#[test]
fn a_stop_and_a_cancellation_at_the_same_time_are_a_cancellation() {
    for first in [Event::StopRequested, Event::CancelRequested] {
        let mut job = running();
        let second = match first {
            Event::StopRequested => Event::CancelRequested,
            _ => Event::StopRequested,
        };
        // The second request arrives while the write of the first is in flight.
        let mut effects = job.core.handle(job.now_ms, first).expect("taken");
        effects.extend(job.core.handle(job.now_ms, second).expect("taken"));
        let written = |effect: &Effect| match effect {
            Effect::Persist { number, .. } => Some(*number),
            _ => None,
        };
        let number = effects
            .iter()
            .find_map(written)
            .expect("something is written");
        job.hear(Event::Persisted(number));
        assert_eq!(job.core.status(), JobStatus::Cancelling);
        assert_eq!(stop_answers(&job).len(), 1);
    }
}

#[test]
fn a_stopped_job_that_would_lose_read_records_fails() {
    let graph = one_region();
    let mut state = placed(&graph, 3);
    state.set_wanted(WantedStatus::Stopped);
    let mut job = Recovered::new(&graph, state);
    job.register("tm0", "1", both(0, 3, S::Running));
    // Its tasks are gone: without the stop the region would be placed again.
    job.register("tm1", "1", vec![]);
    assert_eq!(job.core.status(), JobStatus::Failing);
    assert!(
        job.stored.fatal_cause.contains("without a checkpoint"),
        "{}",
        job.stored.fatal_cause
    );
    assert_eq!(job.generations(), [3]);
    job.reports("tm0", both(0, 3, S::Canceled));
    assert_eq!(job.ended_as(), Some(JobStatus::Failed));
}

#[test]
fn a_stopped_job_whose_sources_are_lost_with_the_leader_fails() {
    let graph = one_region();
    let mut state = placed(&graph, 3);
    state.set_wanted(WantedStatus::Stopped);
    let mut job = Recovered::new(&graph, state);
    // No TaskManager comes back, so it is unknown whether any task ran.
    job.now_ms += RECONCILE_MS;
    job.hear(Event::TimePassed);
    assert_eq!(job.generations(), [3]);
    assert!(
        job.stored.fatal_cause.contains("without a checkpoint"),
        "{}",
        job.stored.fatal_cause
    );
    assert_eq!(job.ended_as(), Some(JobStatus::Failed));
}

#[test]
fn a_stopped_job_with_a_deployment_of_unknown_outcome_fails() {
    let graph = one_region();
    let mut job = deploying(&graph);
    let deployed = both(0, 1, S::Running).into_iter();
    let tasks = deployed.map(|report| pb::ExecutionId {
        vertex_id: report.vertex_id,
        subtask: report.subtask,
        generation: report.generation,
    });
    job.hear(Event::StopRequested);
    job.hear(Event::TasksSubmitted {
        connection: job.connection("tm0"),
        tasks: tasks.collect(),
        outcome: SubmitOutcome::Unknown("the answer was lost".to_owned()),
    });
    // It may have read since before the stop.
    job.reports("tm0", both(0, 1, S::Running));
    assert_eq!(job.generations(), [1]);
    assert!(
        job.stored.fatal_cause.contains("without a checkpoint"),
        "{}",
        job.stored.fatal_cause
    );
}

#[test]
fn a_stopped_job_whose_task_manager_is_lost_before_its_answer_fails() {
    // Each subtask is a region of its own.
    let graph = graph_of(&[("a", 2)], &[]);
    let mut job = deploying(&graph);
    assert_eq!(job.deployed().len(), 2);
    job.hear(Event::StopRequested);
    // The TaskManager is replaced by another process; the answer to the deployment never arrives.
    job.register("tm0", "2", vec![]);
    assert_eq!(job.generations(), [1, 1]);
    assert!(
        job.stored.fatal_cause.contains("without a checkpoint"),
        "{}",
        job.stored.fatal_cause
    );
}

#[test]
fn a_job_whose_stage_is_lost_while_it_is_being_stopped_fails() {
    let mut graph = one_region();
    graph.edges[0].set_exchange(pb::Exchange::Blocking);
    let mut state = placed(&graph, 3);
    state.regions = placed(&two_regions(), 3).regions;
    state.regions[1] = pb::RegionState::default();
    state.terminal = vec![end(1, 0, 3, S::Finished), end(1, 1, 3, S::Finished)];
    state.set_wanted(WantedStatus::Stopped);
    let mut job = Recovered::new(&graph, state);
    // The TaskManager was restarted, without the outputs of its tasks.
    job.register("tm0", "2", vec![]);
    assert!(
        job.stored.fatal_cause.contains("its output was lost"),
        "{}",
        job.stored.fatal_cause
    );
    assert_eq!(job.ended_as(), Some(JobStatus::Failed));
}

#[test]
fn a_region_that_has_not_begun_is_deployed_with_the_stop() {
    let graph = one_region();
    let mut state = submitted(&graph);
    state.set_wanted(WantedStatus::Stopped);
    let mut job = Recovered::new(&graph, state);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    assert_eq!(job.deployed().len(), 4);
    assert!(job.core.tells_to_stop());
    // A region that was given up before it was placed is placed all the same.
    let mut state = placed(&graph, 1);
    state.set_wanted(WantedStatus::Stopped);
    state.regions[0] = pb::RegionState {
        generation: 2,
        epoch: 1,
        ..pb::RegionState::default()
    };
    let mut job = Recovered::new(&graph, state);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    assert_eq!(job.deployed().len(), 4);
}

#[test]
fn a_stopped_job_that_was_never_placed_is_cancelled_and_requests_no_slots() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, submitted(&graph));
    job.hear(Event::StopRequested);
    assert_eq!(stop_answers(&job), [CancelAnswer::Decided]);
    assert_eq!(job.stored.wanted(), WantedStatus::Canceled);
    assert_eq!(job.ended_as(), Some(JobStatus::Canceled));
    assert!(job.deployed().is_empty());
    // The answer was lost, and the request is sent again to another leader.
    let mut state = submitted(&graph);
    state.set_wanted(WantedStatus::Canceled);
    let mut job = Recovered::new(&graph, state);
    job.hear(Event::StopRequested);
    assert_ne!(job.ended_as(), Some(JobStatus::Finished));
    assert!(
        !stop_answers(&job)
            .iter()
            .any(|answer| matches!(answer, CancelAnswer::Refused(_))),
    );
}

#[test]
fn a_stop_is_refused_while_sources_that_have_read_restart() {
    let graph = one_region();
    let options = || CoreOptions {
        restart_strategy: RestartStrategy::FixedDelay {
            attempts: 10,
            delay_ms: 4_000,
        },
        ..options()
    };
    let mut job = Recovered::with_options(&graph, placed(&graph, 3), 2, options());
    job.register("tm0", "1", both(0, 3, S::Running));
    job.register("tm1", "1", both(1, 3, S::Running));
    let mut failed = both(0, 3, S::Running);
    failed[0].set_state(S::Failed);
    job.reports("tm0", failed);
    assert_eq!(job.generations(), [4]);
    job.hear(Event::StopRequested);
    let refused = |job: &Recovered| match stop_answers(job).as_slice() {
        [CancelAnswer::TooLate(why)] => why.contains("is being restarted"),
        _ => false,
    };
    assert!(refused(&job), "{:?}", stop_answers(&job));
    assert_eq!(job.stored.wanted(), WantedStatus::Running);
    // A request to the next leader does not stop it either.
    let mut next = Recovered::with_options(&graph, job.stored.clone(), 3, options());
    next.hear(Event::StopRequested);
    assert!(refused(&next), "{:?}", stop_answers(&next));
    for name in ["tm0", "tm1"] {
        next.register(name, "2", vec![]);
    }
    next.now_ms += RECONCILE_MS;
    next.hear(Event::TimePassed);
    let [generation] = next.generations()[..] else {
        panic!("{:?}", next.generations());
    };
    next.reports("tm0", both(0, generation, S::Running));
    next.reports("tm1", both(1, generation, S::Running));
    next.effects.clear();
    next.hear(Event::StopRequested);
    assert_eq!(stop_answers(&next), [CancelAnswer::Decided]);
    assert_eq!(next.stored.wanted(), WantedStatus::Stopped);
}
