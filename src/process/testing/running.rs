//! A cluster of a test with a job that runs on it: how most tests begin.

use tanist_proto::id::JobId;

use super::cluster::{TestCluster, graph};
use super::world::process_of;

/// The job.
pub const JOB: JobId = JobId::from_bits(0xA);

/// JobManagers, and TaskManagers with so many slots each, of which two run the four tasks of [`JOB`].
pub async fn running(job_managers: u32, task_managers: u32, slots: u32) -> TestCluster {
    let cluster = TestCluster::start(job_managers, task_managers, slots).await;
    let submitted = cluster.client.submit(&graph(JOB, 2), "t").await;
    submitted.expect("accepted");
    assert_eq!(cluster.until_running(JOB, 4).await, 1);
    cluster
}

/// A TaskManager that runs some of [`JOB`].
pub fn used_task_manager(cluster: &TestCluster) -> String {
    let (_, life) = cluster.world.tasks.of(JOB).remove(0);
    process_of(&life).to_owned()
}

/// How many tasks of a job a TaskManager runs.
pub fn tasks_on(cluster: &TestCluster, job: JobId, task_manager: &str) -> usize {
    let tasks = cluster.world.tasks.of(job);
    let there = tasks
        .iter()
        .filter(|(_, life)| process_of(life) == task_manager);
    there.count()
}
