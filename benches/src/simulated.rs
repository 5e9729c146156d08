//! Simulated TaskExecutors for clusters that are larger than one host could run, and jobs for them.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::Cluster;
use tanist_chaos::wait::wait_for;
use tanist_config::{Configuration, LoadOptions};
use tanist_process::simulation::{SimulatedTaskManagers, TaskCounts};

use crate::http::Http;
use crate::jobs::{PAIR, Template};
use crate::watch::{until, until_all_run};

/// Number of open files for each TaskExecutor: its listener, the connections between it and the leader in both
/// directions, and its connection to the store; plus those of a takeover.
pub const FILES_A_TASK_EXECUTOR: u64 = 8;
/// Timeout of preparations: ten thousand deployments, and a cache that learns of each of them every ten seconds.
pub const PREPARATION_BOUND: Duration = Duration::from_secs(300);
/// Number of clients that submit while a cluster is prepared.
const CLIENTS: usize = 64;

/// Starts TaskExecutors of this cluster.
pub async fn simulate(
    cluster: &Cluster,
    count: usize,
    slots: usize,
) -> anyhow::Result<SimulatedTaskManagers> {
    let settings = cluster.settings();
    let load = LoadOptions {
        overrides: settings.into_iter().filter(|word| word != "-D").collect(),
        ..LoadOptions::default()
    };
    let load = load.with("taskmanager.numberOfTaskSlots", &slots.to_string());
    let configuration = Configuration::load(load)?;
    Ok(SimulatedTaskManagers::start(&configuration, count).await?)
}

/// Submits this number of jobs with two tasks that share a slot, and waits until all their tasks run.
pub async fn submit_pairs(
    http: &Http,
    cluster: &mut Cluster,
    tasks: &TaskCounts,
    count: usize,
) -> anyhow::Result<()> {
    let template = Template::of(PAIR)?;
    let leader = cluster.leader().await?;
    template.submit_many(&leader.rest, count, CLIENTS).await?;
    // Counted here first, so that the list of all jobs is not requested too early.
    let wanted = 2 * count as u64;
    wait_for("all tasks to run", PREPARATION_BOUND, async || {
        let running = tasks.running();
        ensure!(running == wanted, "{running} of {wanted}");
        Ok(())
    })
    .await?;
    until_all_run(http, &leader.rest, count).await
}

/// Waits until the leader counts this number of TaskExecutors.
pub async fn until_registered(http: &Http, address: &str, count: usize) -> anyhow::Result<()> {
    until("all TaskExecutors to be registered", async || {
        let overview = http.get(address, "/v1/overview").await?;
        let found = overview["taskmanagers"].as_u64();
        ensure!(found == Some(count as u64), "{overview}");
        Ok(())
    })
    .await
}
