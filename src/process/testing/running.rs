//! A test's cluster with a running job: the start of most tests.

use tanist_proto::id::JobId;

use super::cluster::{TestCluster, graph};
use super::world::process_of;

/// The job.
pub(crate) const JOB: JobId = JobId::from_bits(0xA);

/// Starts JobManagers, and TaskManagers with `slots` slots each; two slots run the four tasks of [`JOB`].
pub(crate) async fn running(job_managers: u32, task_managers: u32, slots: u32) -> TestCluster {
    let cluster = TestCluster::start(job_managers, task_managers, slots).await;
    let submitted = cluster.client.submit(&graph(JOB, 2), "t").await;
    submitted.expect("accepted");
    assert_eq!(cluster.until_running(JOB, 4).await, 1);
    cluster
}

/// A TaskManager that runs some of [`JOB`].
pub(crate) fn used_task_manager(cluster: &TestCluster) -> String {
    let (_, life) = cluster.world.tasks.of(JOB).remove(0);
    process_of(&life).to_owned()
}

/// The number of tasks of a job that a TaskManager runs.
pub(crate) fn tasks_on(cluster: &TestCluster, job: JobId, task_manager: &str) -> usize {
    let tasks = cluster.world.tasks.of(job);
    let there = tasks
        .iter()
        .filter(|(_, life)| process_of(life) == task_manager);
    there.count()
}
