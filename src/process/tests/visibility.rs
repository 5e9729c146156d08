//! The description of a job over changes of its leader.

use tanist_proto::v1::{self as pb, ExecutionState as S, JobStatus};
use tanist_task_executor::TaskStatus;

use crate::testing::cluster::TestCluster;
use crate::testing::running::{JOB, running};

async fn kill_leader(cluster: &mut TestCluster) {
    let epoch = cluster.epoch();
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(epoch).await;
    cluster.until_running(JOB, 4).await;
}

async fn describe(cluster: &TestCluster) -> pb::JobDetails {
    let described = cluster.client.describe(JOB).await;
    described.expect("it is there")
}

fn entered(job: &pb::JobDetails, status: JobStatus) -> u64 {
    let mut entered = job.timestamps.iter();
    let found = entered.find(|it| it.status() == status);
    found.map_or(0, |it| it.at_ms)
}

/// For each subtask, when it started and when it was deployed.
fn started(job: &pb::JobDetails) -> Vec<(u64, u64)> {
    let subtasks = job.vertices.iter().flat_map(|it| &it.subtasks);
    let times = subtasks.map(|it| {
        let mut entered = it.timestamps.iter();
        let deployed = entered.find(|it| it.state() == S::Deploying);
        (it.started_at_ms, deployed.map_or(0, |it| it.at_ms))
    });
    times.collect()
}

#[tokio::test(start_paused = true)]
async fn since_when_a_job_and_its_tasks_run_outlives_their_leaders() {
    let mut cluster = running(3, 2, 1).await;
    let before = describe(&cluster).await;
    let statuses = [
        JobStatus::Initializing,
        JobStatus::Created,
        JobStatus::Running,
    ];
    for status in statuses {
        assert!(entered(&before, status) > 0, "{status:?}");
    }
    assert!(
        started(&before)
            .iter()
            .all(|(at, deployed)| *at > 0 && at == deployed)
    );
    for _ in 0..2 {
        kill_leader(&mut cluster).await;
        let after = describe(&cluster).await;
        assert_eq!(after.status(), JobStatus::Running);
        for status in statuses {
            assert_eq!(
                entered(&after, status),
                entered(&before, status),
                "{status:?}"
            );
        }
        assert!(entered(&after, JobStatus::Reconciling) > 0);
        assert_eq!(started(&after), started(&before));
        let subtasks = after.vertices.iter().flat_map(|it| &it.subtasks);
        for subtask in subtasks {
            let states = subtask.timestamps.iter().map(|it| it.state());
            assert!(states.into_iter().any(|it| it == S::Running));
        }
    }
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    let ended = describe(&cluster).await;
    let of_kind = |kind: pb::JobEventKind| {
        let events = ended.events.iter();
        events.filter(|it| it.kind() == kind).count()
    };
    assert_eq!(of_kind(pb::JobEventKind::Takeover), 2, "{:?}", ended.events);
    let last = ended.events.last().expect("it has ended");
    assert_eq!(last.status(), JobStatus::Finished);
    for status in statuses {
        assert_eq!(
            entered(&ended, status),
            entered(&before, status),
            "{status:?}"
        );
    }
    assert_eq!(started(&ended), started(&before));
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn what_failed_and_what_followed_is_told_by_the_next_leader_too() {
    let mut cluster = running(2, 2, 1).await;
    let (failing, _) = cluster.world.tasks.of(JOB).remove(0);
    let broken = TaskStatus::failed("it broke");
    cluster.world.end_task(&failing, broken);
    cluster
        .until_stored("it is placed again", |stored| {
            let state = stored.states.get(&JOB);
            let mut regions = state.into_iter().flat_map(|it| &it.regions);
            regions.any(|it| it.generation == 2 && !it.placements.is_empty())
        })
        .await;
    assert_eq!(cluster.until_running(JOB, 4).await, 2);
    let before = describe(&cluster).await;
    let failure = before.failures.last().expect("it failed");
    assert_eq!(failure.cause, "it broke");
    assert!(
        !failure.task.is_empty() && !failure.host.is_empty(),
        "{failure:?}"
    );
    let is_restart = |it: &&pb::JobEvent| it.kind() == pb::JobEventKind::Restart;
    let restart = before.events.iter().find(is_restart);
    assert_eq!(restart.expect("it is told").task, failure.task);
    kill_leader(&mut cluster).await;
    let after = describe(&cluster).await;
    assert_eq!(after.failures, before.failures);
    let reported = before.events.len();
    assert_eq!(after.events[..reported], before.events);
    assert_eq!(
        after.events[reported].kind(),
        pb::JobEventKind::Takeover,
        "{:?}",
        after.events
    );
    cluster.world.finish_tasks(JOB);
    assert_eq!(cluster.until_clean(JOB).await, JobStatus::Finished);
    cluster.check();
}
