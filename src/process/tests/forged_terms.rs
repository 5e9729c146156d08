//! Messages that name a term without a leader: no leader ends, no TaskManager leaves its leader, no task is
//! touched.

use std::time::Duration;

use tanist_gateway::fencing::sender_of;
use tanist_gateway::{Connector as _, GatewayError};
use tanist_ha::election::{Epoch, ProcessId, TermHolder};
use tanist_proto::v1 as pb;
use tanist_proto::v1::JobStatus;
use tanist_telemetry::ExitCode;

use crate::testing::cluster::TestCluster;
use crate::testing::running::{JOB, running};

/// Long enough for heartbeats to be missed and leaders to be deposed.
const A_WHILE: Duration = Duration::from_secs(180);

/// The sender of a forged message: everything that a status shows, with an epoch of choice.
fn forged(cluster: &TestCluster, epoch: u64) -> pb::Sender {
    let view = cluster.leader_view();
    let nobody = TermHolder::starting(ProcessId::new("nobody"));
    let incarnation = view.incarnation.expect("there is a leader");
    sender_of(
        &incarnation,
        Epoch::new(epoch),
        &nobody,
        view.store.as_ref(),
    )
}

fn announcement(sender: pb::Sender, address: &str) -> pb::AnnounceLeaderRequest {
    pb::AnnounceLeaderRequest {
        process: sender.process.clone(),
        sender: Some(sender),
        leader_rpc_address: address.to_owned(),
        jobs: Vec::new(),
    }
}

/// The leader is the same after a while, no attempt has changed, and the job ends as expected.
async fn nothing_has_happened(mut cluster: TestCluster, leader: &str) {
    let epoch = cluster.epoch();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(cluster.epoch(), epoch);
    assert_eq!(cluster.leader().await, leader);
    assert_eq!(
        cluster.until_running(JOB, 4).await,
        1,
        "no attempt has changed"
    );
    // Each JobManager can still take over.
    cluster.kill_job_manager(leader).await;
    cluster.leader_above(epoch).await;
    assert_eq!(cluster.until_running(JOB, 4).await, 1, "adopted");
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_forged_announcement_of_a_younger_epoch_ends_no_leader_and_no_connection() {
    let cluster = running(2, 2, 1).await;
    let leader = cluster.leader().await;
    for (above, address) in [(1000, ""), (1000, "nobody:1"), (1, "nobody:1")] {
        let sender = forged(&cluster, cluster.epoch() + above);
        let executor = cluster.connector().task_executor("tm1:1");
        let answer = executor
            .announce_leader(announcement(sender, address))
            .await;
        let is_refused = match address {
            "" => matches!(answer, Err(GatewayError::Invalid(_))),
            _ => matches!(answer, Err(GatewayError::NotYet(_))),
        };
        assert!(is_refused, "{answer:?}");
    }
    nothing_has_happened(cluster, &leader).await;
}

#[tokio::test(start_paused = true)]
async fn an_announcement_of_the_leaders_own_epoch_by_another_process_is_refused() {
    let cluster = running(2, 2, 1).await;
    let leader = cluster.leader().await;
    let sender = forged(&cluster, cluster.epoch());
    let executor = cluster.connector().task_executor("tm1:1");
    let answer = executor
        .announce_leader(announcement(sender, "nobody:1"))
        .await;
    assert!(
        matches!(answer, Err(GatewayError::Outdated { epoch: 0, .. })),
        "{answer:?}"
    );
    nothing_has_happened(cluster, &leader).await;
}

#[tokio::test(start_paused = true)]
async fn forged_registrations_in_a_younger_epoch_end_no_leader() {
    let cluster = running(2, 2, 1).await;
    let leader = cluster.leader().await;
    let address = format!("{leader}:1");
    let location = pb::TaskManagerLocation {
        resource_id: "nobody".to_owned(),
        incarnation: "1".to_owned(),
        rpc_address: "nobody:1".to_owned(),
        data_address: "nobody:2".to_owned(),
    };
    for above in [1, 1000] {
        let sender = Some(forged(&cluster, cluster.epoch() + above));
        let registration = pb::RegisterTaskExecutorRequest {
            sender: sender.clone(),
            location: Some(location.clone()),
            protocol_version: tanist_proto::PROTOCOL_VERSION,
            ..pb::RegisterTaskExecutorRequest::default()
        };
        let gateway = cluster.connector().resource_manager(&address);
        let answer = gateway.register_task_executor(registration).await;
        assert!(
            matches!(answer, Err(GatewayError::Outdated { epoch, .. }) if epoch == cluster.epoch()),
            "{answer:?}"
        );
        let registration = pb::RegisterTaskManagerRequest {
            sender,
            job_id: JOB.to_string(),
            location: Some(location.clone()),
            ..pb::RegisterTaskManagerRequest::default()
        };
        let gateway = cluster.connector().job_master(&address, JOB);
        let answer = gateway.register_task_manager(registration).await;
        assert!(
            matches!(answer, Err(GatewayError::Outdated { epoch, .. }) if epoch == cluster.epoch()),
            "{answer:?}"
        );
    }
    nothing_has_happened(cluster, &leader).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_accepted_while_the_store_is_silent_is_left_when_it_answers() {
    let cluster = running(1, 2, 1).await;
    let leader = cluster.leader().await;
    let cut_off = ProcessId::new("tm1");
    cluster.memory.partition(&cut_off);
    let sender = forged(&cluster, cluster.epoch() + 1000);
    let executor = cluster.connector().task_executor("tm1:1");
    let answer = executor
        .announce_leader(announcement(sender.clone(), "nobody:1"))
        .await;
    answer.expect("nothing tells it from the next leader");
    cluster.memory.heal(&cut_off);
    let by_leader = pb::HeartbeatFromResourceManagerRequest {
        sender: Some(cluster.leaders_sender()),
        ..pb::HeartbeatFromResourceManagerRequest::default()
    };
    // It follows the leader's epoch again: only the registration is another one.
    loop {
        let answer = executor
            .heartbeat_from_resource_manager(by_leader.clone())
            .await;
        match answer {
            Err(GatewayError::Outdated { epoch, .. }) if epoch == cluster.epoch() => break,
            Err(GatewayError::Outdated { epoch, .. }) => assert_eq!(epoch, sender.epoch),
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        cluster.until_running(JOB, 4).await,
        1,
        "no attempt has changed"
    );
    assert_eq!(cluster.leader().await, leader);
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
}

#[tokio::test(start_paused = true)]
async fn a_task_manager_whose_store_went_back_ends_by_itself() {
    let mut cluster = running(1, 2, 1).await;
    let backup = cluster.memory.backup();
    cluster.kill_job_manager("jm1").await;
    cluster.start_job_manager("jm1");
    cluster.leader_above(1).await;
    assert_eq!(cluster.until_running(JOB, 4).await, 1, "adopted");
    cluster.kill_job_manager("jm1").await;
    cluster.memory.restore(&backup);
    for name in ["tm1", "tm2"] {
        assert_eq!(cluster.end_of_task_manager(name).await, ExitCode::Refused);
    }
}
