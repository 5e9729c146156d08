//! A TaskExecutor that drains, on paused time.

use tanist_proto::v1 as pb;
use tanist_proto::v1::request_slot_response::Answer;

use super::launcher::TaskStatus;
use super::scripted_leader::*;
use super::testing::*;
use super::*;

const A1: &str = "000000000000000000000000000000a1";
const A2: &str = "000000000000000000000000000000a2";

#[tokio::test(start_paused = true)]
async fn it_takes_no_slot_any_more_and_leaves_when_the_last_one_is_free() {
    let mut world = World::start(false);
    let (_, leader) = world.with_leader("jm1:1", 1).await;
    leader.request_slot(0, A1).await;
    leader.registered_job().await;
    leader.offered().await;
    leader.submit(1, A1).await.expect("is registered");
    let task = world.next_started().await;
    task.status.send_replace(TaskStatus::Running);

    leader.drain().await;
    let refused = leader.request_slot(1, A2).await;
    assert!(
        matches!(refused.answer, Some(Answer::Refused(_))),
        "{refused:?}"
    );
    let repeated = leader.request_slot(0, A1).await;
    assert_eq!(repeated.answer, Some(Answer::Allocated(pb::Ack {})));

    // The next leader is told by the TaskExecutor itself.
    let (_, next) = Leader::start(&world.connector, "jm2:1", 2);
    world.lead(&next);
    assert!(next.registered().await.draining);
    next.registered_job().await;
    pass(Duration::from_secs(30)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    task.status.send_replace(TaskStatus::Canceled);
    next.free(A1).await;
    next.freed(0).await;
    let early = tokio::time::timeout(Duration::from_secs(30), world.executor.fatal()).await;
    assert!(early.is_err(), "an end is not acknowledged: {early:?}");
    next.acknowledge(1).await;
    assert_eq!(world.executor.fatal().await, Fatal::Drained);
}
