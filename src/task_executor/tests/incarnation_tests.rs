//! A TaskExecutor that meets leaders of another cluster, or of another incarnation of this one. On paused time.

use std::time::Duration;

use tanist_proto::v1 as pb;

use super::scripted_leader::*;
use super::testing::*;
use crate::launcher::TaskStatus;
use crate::*;

#[tokio::test(start_paused = true)]
async fn another_clusters_leader_at_the_old_leaders_address_ends_nothing() {
    let (world, old, task) = running(false).await;
    drop(old);
    // The leader is gone, and its port belongs to another cluster's leader. The store still names the dead one.
    let (foreign, other) = Leader::start(&world.connector, "jm1:1", 7);
    *foreign.incarnation.lock() = "c2".to_owned();
    *foreign.rejection.lock() = Some("another cluster".to_owned());
    for _ in 0..3 {
        other.registered().await;
        other.registered_job().await;
    }
    world.connector.remove_job_master("jm1:1", JOB);
    pass(Duration::from_secs(120)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    let early = tokio::time::timeout(Duration::ZERO, world.executor.fatal()).await;
    assert!(early.is_err(), "{early:?}");
    // The next leader of its own cluster is followed as usual.
    let (_, next) = world.with_leader("jm2:1", 2).await;
    assert_eq!(next.registered_job().await.executions.len(), 1);
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn a_store_in_which_another_incarnation_of_the_cluster_is_led_is_fatal() {
    let (world, old, task) = running(false).await;
    let (_, other) = Leader::start(&world.connector, "jm2:1", 1);
    // An announcement alone has no effect.
    world.lead_in("c1", &old);
    let dial = pb::AnnounceLeaderRequest {
        jobs: Vec::new(),
        sender: Some(pb::Sender {
            cluster_incarnation: "c2".to_owned(),
            epoch: 9,
            process: "jm2".to_owned(),
            ..pb::Sender::default()
        }),
        leader_rpc_address: "jm2:1".to_owned(),
        process: "jm2".to_owned(),
    };
    let refused = old.task_executor().announce_leader(dial).await;
    assert!(refused.is_err(), "{refused:?}");
    pass(Duration::from_secs(1)).await;
    assert_eq!(*task.status.borrow(), TaskStatus::Running);
    world.lead_in("c2", &other);
    let fatal = tokio::time::timeout(BOUND, world.executor.fatal()).await;
    let Fatal::Refused(reason) = fatal.expect("it is fatal") else {
        panic!("it is refused");
    };
    assert!(reason.contains("c1") && reason.contains("c2"), "{reason}");
    assert!(reason.contains("start this process again"), "{reason}");
}
