//! A TaskExecutor that drains, and its report of the outputs that keep it from leaving, on paused time.

use std::time::Duration;

use tanist_proto::v1 as pb;
use tanist_proto::v1::request_slot_response::Answer;

use super::scripted_leader::*;
use super::testing::*;
use crate::launcher::TaskStatus;
use crate::*;

#[tokio::test(start_paused = true)]
async fn it_takes_no_slot_any_more_and_leaves_when_the_last_one_is_free() {
    let (world, leader, task) = running(false).await;
    leader.drain().await;
    let refused = leader.request_slot(1, A2).await;
    assert!(
        matches!(refused.answer, Some(Answer::Refused(_))),
        "{refused:?}"
    );
    let repeated = leader.request_slot(0, A1).await;
    assert_eq!(repeated.answer, Some(Answer::Allocated(pb::Ack {})));

    // The TaskExecutor itself informs the next leader.
    let (_, next) = Leader::start(&world.connector, "jm2:1", 2);
    world.lead(&next);
    assert!(next.registered().await.draining);
    next.registered_job().await;
    pass(Duration::from_secs(30)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    task.status.send_replace(TaskStatus::Canceled);
    next.updated(pb::ExecutionState::Canceled).await;
    next.free(A1).await;
    next.freed(0).await;
    let early = tokio::time::timeout(Duration::from_secs(30), world.executor.fatal()).await;
    assert!(early.is_err(), "an end is not acknowledged: {early:?}");
    next.acknowledge(1).await;
    assert_eq!(world.executor.fatal().await, Fatal::Drained);
}

#[tokio::test(start_paused = true)]
async fn it_stays_until_all_output_of_its_finished_tasks_was_read_or_released() {
    let (world, leader, task) = running(false).await;
    world.launcher.kept_outputs.send_replace(2);
    leader.drain().await;
    let committables = Vec::new();
    task.status.send_replace(TaskStatus::finished(committables));
    leader.updated(pb::ExecutionState::Finished).await;
    leader.acknowledge(1).await;
    leader.free(A1).await;
    leader.freed(0).await;
    for unread in [2, 1] {
        world.launcher.kept_outputs.send_replace(unread);
        let early = tokio::time::timeout(Duration::from_secs(30), world.executor.fatal()).await;
        assert!(early.is_err(), "{unread} outputs are unread: {early:?}");
    }
    // The next leader may still send consumers.
    let (_, next) = world.with_leader("jm2:1", 2).await;
    next.registered_job().await;
    world.launcher.kept_outputs.send_replace(0);
    assert_eq!(world.executor.fatal().await, Fatal::Drained);
}

#[tokio::test(start_paused = true)]
async fn its_heartbeats_count_outputs_of_blocking_edges_until_they_are_released() {
    let mut world = World::start(false);
    let (_, leader) = world.with_leader("jm1:1", 1).await;
    leader.request_slot(0, A1).await;
    leader.registered_job().await;
    leader.offered().await;
    let mut blocking = graph();
    blocking.edges.push(pb::JobEdge {
        source: VERTEX.to_owned(),
        target: "00000000000000000000000000000002".to_owned(),
        exchange: pb::Exchange::Blocking.into(),
        ..pb::JobEdge::default()
    });
    let submitted = leader.submit_graph(&blocking, 1, A1).await;
    assert_eq!(submitted.expect("is registered").refused, []);
    let task = world.next_started().await;
    let kept = async || {
        let answer = leader.heartbeat().await;
        answer.expect("is registered").kept_outputs
    };
    assert_eq!(kept().await, 0);
    let committables = Vec::new();
    task.status.send_replace(TaskStatus::finished(committables));
    leader.updated(pb::ExecutionState::Finished).await;
    leader.acknowledge(1).await;
    leader.free(A1).await;
    leader.freed(0).await;
    assert_eq!(kept().await, 1);
    // Those of pipelined edges are added.
    world.launcher.kept_outputs.send_replace(2);
    assert_eq!(kept().await, 3);
    world.launcher.kept_outputs.send_replace(0);
    leader.cancel(1).await;
    assert_eq!(kept().await, 0);
}
