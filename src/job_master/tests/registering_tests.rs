//! TaskManagers that register again while messages of the job to them are in flight.

use std::time::Duration;

use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::scripted::{Fixture, Mood, options};
use crate::RestartStrategy;
use crate::core::tests::recovered::{Recovered, both, id, location, one_region};
use crate::core::tests::testing::submitted;
use crate::core::{Connection, Event, Registration, SubmitOutcome};

#[test]
fn a_slow_registration_whose_deployment_came_to_nothing_counts_as_no_failure() {
    let graph = one_region();
    let ids = |subtask| {
        let vertices = graph.vertices.iter();
        let id = vertices.map(|vertex| pb::ExecutionId {
            vertex_id: vertex.id.clone(),
            subtask,
            generation: 1,
        });
        id.collect::<Vec<_>>()
    };
    let refused_after = |is_answered_first: bool| {
        let mut job = Recovered::new(&graph, submitted(&graph));
        job.register("tm0", "1", vec![]);
        job.register("tm1", "1", vec![]);
        assert_eq!(job.deployed().len(), 4);
        let answer = Event::TasksSubmitted {
            connection: job.connection("tm0"),
            tasks: ids(0),
            outcome: SubmitOutcome::Outdated,
        };
        // It did not receive the answer to its registration, has sent another one, and refuses messages under
        // the first.
        if is_answered_first {
            job.hear(answer.clone());
            assert_eq!(job.generations(), [1], "that is open");
            job.register("tm0", "1", vec![]);
        } else {
            job.register("tm0", "1", vec![]);
            assert!(job.try_hear(answer).is_err(), "of the former registration");
        }
        job
    };
    for is_answered_first in [true, false] {
        let mut job = refused_after(is_answered_first);
        assert_eq!(job.generations(), [2]);
        job.reports("tm1", both(1, 1, S::Canceled));
        assert_eq!(job.deployed().len(), 8, "all of it, again");
        let details = job.core.details();
        assert_eq!(
            (details.restarts, details.status()),
            (0, JobStatus::Running)
        );
        let cause = &details.failures.last().expect("it is told").cause;
        assert!(cause.contains("never started"), "{cause}");
    }
}

#[test]
fn a_deployment_that_was_refused_as_outdated_and_is_there_all_the_same_runs_on() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, submitted(&graph));
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    job.register("tm0", "1", both(0, 1, S::Running));
    assert_eq!((job.generations(), job.deployed().len()), (vec![1], 4));
    // A TaskManager that lost a task which it was known to run has failed it.
    job.register("tm0", "1", vec![]);
    assert_eq!(job.core.status(), JobStatus::Failing);
}

#[test]
fn a_slot_that_was_freed_while_its_task_manager_registered_counts_as_no_failure() {
    let graph = one_region();
    let mut job = Recovered::new(&graph, submitted(&graph));
    job.register("tm0", "1", vec![]);
    let registration = Registration::new(job.registrations + 1);
    job.registrations += 1;
    job.hear(Event::Registered {
        connection: Connection {
            task_manager: id("tm0"),
            registration,
        },
        location: location("tm0", "1"),
        executions: vec![],
        slots: vec![],
        outputs: vec![],
    });
    job.register("tm1", "1", vec![]);
    assert_eq!(job.deployed().len(), 0, "one slot is gone");
    job.register("tm0", "1", vec![]);
    assert_eq!(job.deployed().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_that_registers_again_for_long_is_not_lost_by_what_it_answers_meanwhile() {
    let (fixture, task_executor) = Fixture::running(options(RestartStrategy::None)).await;
    *task_executor.mood.lock() = Mood::RegistersAgain;
    tokio::time::sleep(Duration::from_secs(35)).await;
    *task_executor.mood.lock() = Mood::Well;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let details = fixture.details().await;
    assert_eq!(
        (details.status(), details.restarts),
        (JobStatus::Running, 0)
    );
    // A TaskManager that never completes its registration exceeds the heartbeat timeout: it can't report how
    // its tasks end.
    *task_executor.mood.lock() = Mood::RegistersAgain;
    let result = fixture.job_master.ended().await.expect("it ends");
    assert!(result.cause.contains("no heartbeat"), "{}", result.cause);
}
