//! The leader's report of its TaskManagers: slots and tasks of jobs, and resources that are blocked by a drain.

use std::time::Duration;

use tanist_gateway::{Connector as _, DispatcherGateway};
use tanist_proto::v1 as pb;

use crate::testing::cluster::{TestCluster, graph};
use crate::testing::running::JOB;

async fn task_manager(dispatcher: &dyn DispatcherGateway) -> pb::TaskManagerInfo {
    let request = pb::ListTaskManagersRequest::default();
    let listed = dispatcher.list_task_managers(request).await;
    let mut listed = listed.expect("it leads").task_managers;
    assert_eq!(listed.len(), 1, "{listed:?}");
    listed.remove(0)
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_names_the_slots_and_tasks_of_jobs_and_counts_as_blocked_once_drained() {
    let cluster = TestCluster::start(1, 1, 2).await;
    let submitted = cluster.client.submit(&graph(JOB, 1), "t").await;
    submitted.expect("accepted");
    cluster.until_running(JOB, 2).await;
    let leader = cluster.leader().await;
    let dispatcher = cluster.connector().dispatcher(&format!("{leader}:1"));
    // The next heartbeat reports the tasks.
    let reported = async {
        loop {
            let slots = task_manager(&*dispatcher).await.allocated_slots;
            if slots.iter().map(|slot| slot.tasks).sum::<u32>() == 2 {
                return slots;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let slots = tokio::time::timeout(Duration::from_secs(60), reported).await;
    let slots = slots.expect("a heartbeat tells of the tasks");
    assert_eq!(slots.len(), 1, "{slots:?}");
    assert_eq!(slots[0].job_id, JOB.to_string());
    assert!(slots[0].profile.is_some());

    let blocked = async || {
        let request = pb::DescribeClusterRequest::default();
        let overview = dispatcher.describe_cluster(request).await;
        let overview = overview.expect("it leads");
        let free = overview.slots_available;
        let blocked = overview.slots_free_and_blocked;
        (overview.task_managers_blocked, blocked, free)
    };
    assert_eq!(blocked().await, (0, 0, 1));
    let location = task_manager(&*dispatcher).await.location;
    let resource_id = location.expect("it has one").resource_id;
    let request = pb::DrainTaskManagerRequest {
        resource_id,
        ..pb::DrainTaskManagerRequest::default()
    };
    let drained = dispatcher.drain_task_manager(request).await;
    drained.expect("it heard");
    assert_eq!(blocked().await, (1, 1, 0));
    cluster.check();
}
