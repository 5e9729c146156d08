//! Jobs whose leaders die at one step after another, from the submission to the end of the cleanup: each new
//! leader dies as soon as it reaches the next step of the list. The jobs end as if nothing had happened.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{Cluster, StoreKind, wait_for};

use crate::job_lifecycles::{Kind, Life, addresses_of, client};
use crate::support::{cluster_on, need_failpoints};

/// Timeout until a step is reached and the leader has died.
const BOUND: Duration = Duration::from_secs(60);

on_stores! {
    usually on embedded(Embedded) {
        a_job_finishes_whose_leaders_die_at_its_placement_and_at_the_commit_of_its_sinks,
        a_job_in_stages_finishes_though_its_leaders_die_at_every_step,
        a_job_in_stages_that_is_stopped_finishes_though_its_leaders_die_at_every_step,
    }
    usually on etcd(Etcd) { a_job_that_is_stopped_finishes_though_its_leaders_die_at_every_step }
    usually on zookeeper(ZooKeeper) { a_job_that_is_canceled_ends_though_its_leaders_die_at_every_step }
}

async fn a_job_finishes_whose_leaders_die_at_its_placement_and_at_the_commit_of_its_sinks(
    store: StoreKind,
) -> anyhow::Result<()> {
    let steps = ["job.generation-persisted", "job.sinks-committed"];
    survives(store, Kind::Finishes, &steps).await
}

async fn a_job_in_stages_finishes_though_its_leaders_die_at_every_step(
    store: StoreKind,
) -> anyhow::Result<()> {
    let steps = [
        "submit.persisting",
        "job.all-finished-persisted",
        "job.result-written",
    ];
    survives(store, Kind::InStages, &steps).await
}

async fn a_job_that_is_stopped_finishes_though_its_leaders_die_at_every_step(
    store: StoreKind,
) -> anyhow::Result<()> {
    let steps = [
        "submit.persisted",
        "job.stop-persisted",
        "job.sinks-committed",
        "job.cleaned-up",
    ];
    survives(store, Kind::Stopped, &steps).await
}

/// The second placement is that of the second stage, which starts while the job is being stopped.
async fn a_job_in_stages_that_is_stopped_finishes_though_its_leaders_die_at_every_step(
    store: StoreKind,
) -> anyhow::Result<()> {
    let steps = [
        "job.stop-persisted",
        "job.generation-persisted",
        "job.all-finished-persisted",
        "job.result-written",
    ];
    survives(store, Kind::StoppedInStages, &steps).await
}

async fn a_job_that_is_canceled_ends_though_its_leaders_die_at_every_step(
    store: StoreKind,
) -> anyhow::Result<()> {
    let steps = [
        "job.cancel-persisting",
        "job.cancel-persisted",
        "job.result-written",
        "job.cleaned-up",
    ];
    survives(store, Kind::CanceledRunning, &steps).await
}

/// Two JobManagers lead in turns: each dies at the step after the other's step, and is started again to
/// die at the one after that.
async fn survives(store: StoreKind, kind: Kind, steps: &[&str]) -> anyhow::Result<()> {
    need_failpoints()?;
    let mut builder = cluster_on(store).await?;
    for (jobmanager, step) in steps.iter().take(2).enumerate() {
        builder = builder.failpoints(jobmanager, &kill_at(step));
    }
    let mut cluster = builder.start().await?;
    let first = cluster.leader().await?;
    let life = Life::of(kind, &cluster.directory().join("job"))?;
    let client = client(&cluster, &addresses_of(&cluster), 1).await?;
    let deaths = die_in_turns(&mut cluster, 0, steps);
    let (status, ()) = tokio::try_join!(life.live(client.jobs()), deaths)?;
    let last = cluster.leader().await?;
    ensure!(
        last.epoch >= first.epoch + steps.len() as u64,
        "{first:?} led first and {last:?} in the end"
    );
    let output = life.directory.join("output");
    cluster.check_nothing_left(&[output]).await?;
    let dump = cluster.store_dump().await?;
    let results: Vec<_> = dump.results.into_values().collect();
    ensure!(
        results.len() == 1 && results[0].status() == status,
        "{status:?}, and in the store {results:?}"
    );
    Ok(())
}

/// The failpoint that kills a process at a step.
pub(crate) fn kill_at(step: &str) -> String {
    format!("{step}=kill")
}

/// Waits for the deaths of two JobManagers in turns, one a step, and starts them again. The first one and the other one
/// are armed for the first two steps; the later ones are armed here.
pub(crate) async fn die_in_turns(
    cluster: &mut Cluster,
    first: usize,
    steps: &[&str],
) -> anyhow::Result<()> {
    for (number, step) in steps.iter().enumerate() {
        let dying = (first + number) % 2;
        let jobmanager = cluster.jobmanager(dying);
        jobmanager.ended(BOUND).await?;
        jobmanager.reached(step, BOUND).await?;
        until_leading(cluster, 1 - dying).await?;
        let jobmanager = cluster.jobmanager(dying);
        if let Some(next) = steps.get(number + 2) {
            jobmanager.arm(kill_at(next));
        }
        jobmanager.start()?;
    }
    Ok(())
}

/// Waits until this JobManager leads, or has died at its step: otherwise a restarted one could be faster.
pub(crate) async fn until_leading(cluster: &mut Cluster, jobmanager: usize) -> anyhow::Result<()> {
    let address = cluster.rest_address(jobmanager).to_owned();
    wait_for("the other JobManager to lead", BOUND, async || {
        if cluster.jobmanager(jobmanager).runs() {
            let own = cluster.rest().get(&address, "/v1/ha/self").await?;
            let leads = own["role"] == "recovering" || own["role"] == "leading";
            ensure!(leads, "{own}");
        }
        anyhow::Ok(())
    })
    .await
}
