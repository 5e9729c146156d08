//! What else may happen at a step of a checkpoint: the next leader dies at a step of its own, the process is cut off
//! and goes on, or the store's server dies. Each number of the job counts once nevertheless.
//!
//! Each cluster runs one job a fault. Usually few of them; all with `TANIST_TEST_ALL=1` and in `cargo xtask chaos`.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use tanist_chaos::{Cluster, ClusterBuilder, Host, Link, Store, StoreKind, test_all, wait_for};
use tokio::time::Instant;

use crate::checkpoint_steps::{
    ARMED, BOUND, Checkpoint, Hold, JobManager, Kill, OTHER, SLOWLY, STEPS, Step, TaskManager,
    start_standby,
};
use crate::kill_at_every_step::until_leading;
use crate::support::{PROGRAM, cluster_with_blobs, is_chaos, need_failpoints, with_blobs};
use crate::verified::Verified;

/// Steps of two leaders, one after the other, that usually run: what the second one adopts, commits or removes is half
/// done when it dies.
const PAIRS: [(&str, &str); 3] = [
    ("checkpoint.triggered-some", "checkpoint.all-acknowledged"),
    ("checkpoint.some-committed", "checkpoint.some-committed"),
    ("checkpoint.manifest-written", "checkpoint.some-removed"),
];
/// The steps at which the others usually happen.
const SHORT: [&str; 2] = ["checkpoint.object-written", "checkpoint.manifest-written"];
/// Until a TaskManager that is cut off is lost.
const HEARTBEAT_TIMEOUT: &str = "3 s";
/// The TaskManager that runs its tasks then.
const SPARE: usize = 4;

on_stores! {
    each { two_leaders_die_at_steps_of_a_checkpoint_and_no_number_is_lost_or_counted_twice }
}

mod servers {
    use super::the_store_dies_at_a_step_of_a_checkpoint_and_no_number_is_lost_or_counted_twice;

    on_stores! {
        etcd(Etcd) {
            the_store_dies_at_a_step_of_a_checkpoint_and_no_number_is_lost_or_counted_twice,
        }
        zookeeper(ZooKeeper) {
            the_store_dies_at_a_step_of_a_checkpoint_and_no_number_is_lost_or_counted_twice,
        }
    }
}

mod networks {
    use super::a_process_is_cut_off_at_a_step_of_a_checkpoint_and_no_number_is_lost_or_counted_twice;

    on_networks! {
        etcd(Etcd) {
            a_process_is_cut_off_at_a_step_of_a_checkpoint_and_no_number_is_lost_or_counted_twice,
        }
        zookeeper(ZooKeeper) {
            a_process_is_cut_off_at_a_step_of_a_checkpoint_and_no_number_is_lost_or_counted_twice,
        }
    }
}

fn runs_all() -> bool {
    test_all() || is_chaos()
}

async fn two_leaders_die_at_steps_of_a_checkpoint_and_no_number_is_lost_or_counted_twice(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let directory = tempfile::tempdir()?;
    let builder = cluster_with_blobs(kind, &directory).await?;
    let mut cluster = builder.taskmanagers(4).slots(1).start().await?;
    let of_leaders = || {
        let steps = STEPS.into_iter();
        steps.filter(|(_, role, cause)| (*role, *cause) == (JobManager, Checkpoint))
    };
    let mut outputs = Vec::new();
    for first in of_leaders() {
        for second in of_leaders() {
            if !(runs_all() || PAIRS.contains(&(first.0, second.0))) {
                continue;
            }
            let [first, second] = [first, second].map(|it| Step::new(it, Kill, directory.path()));
            let what = format!("deaths at {} and {}", first.name, second.name);
            outputs.extend(reported(what, die_both(&mut cluster, first, second)).await?);
        }
    }
    cluster.wait_until_slots_are_free().await?;
    cluster.check_nothing_left(&outputs).await
}

/// Runs a job with a fault. Returns its output directories.
async fn reported(
    what: String,
    run: impl Future<Output = anyhow::Result<Verified>>,
) -> anyhow::Result<Vec<PathBuf>> {
    let began = Instant::now();
    let job = run.await.with_context(|| what.clone())?;
    println!("{what}: {:?}", began.elapsed());
    Ok(job.directories())
}

/// The first leader of a job dies at one step, and its successor at the other one.
async fn die_both(cluster: &mut Cluster, first: Step, second: Step) -> anyhow::Result<Verified> {
    first.start_armed(cluster, &first.armed()?).await?;
    let leader = cluster.leader().await?;
    start_standby(cluster, OTHER, &second.armed()?, &leader).await?;
    let job = Verified::submit(cluster, SLOWLY).await?;
    killed(cluster, ARMED).await?;
    until_leading(cluster, OTHER).await?;
    // It leads when the other one has died, and dies no more.
    cluster.jobmanager(ARMED).start()?;
    killed(cluster, OTHER).await?;
    cluster.leader().await?;
    cluster.jobmanager(OTHER).start()?;
    second.until_it_goes_on(cluster, &job).await?;
    check_no_restart(cluster, &job).await?;
    second.finish(cluster, job, None).await
}

/// Waits until a JobManager has died at its step.
async fn killed(cluster: &mut Cluster, index: usize) -> anyhow::Result<()> {
    let status = cluster.jobmanager(index).ended(BOUND).await?;
    ensure!(status.signal() == Some(9), "jm-{index} ended: {status}");
    Ok(())
}

async fn check_no_restart(cluster: &mut Cluster, job: &Verified) -> anyhow::Result<()> {
    let attempts = cluster.attempts(job.job).await?;
    ensure!(
        attempts.highest() <= 1,
        "tasks were restarted: {attempts:?}"
    );
    Ok(())
}

/// The steps at which one process is held while something else happens.
fn held_steps(directory: &Path) -> Vec<Step> {
    let steps = STEPS.into_iter();
    let chosen = steps
        .filter(|(name, _, cause)| *cause == Checkpoint && (runs_all() || SHORT.contains(name)));
    chosen
        .map(|step| Step::new(step, Hold, directory))
        .collect()
}

async fn the_store_dies_at_a_step_of_a_checkpoint_and_no_number_is_lost_or_counted_twice(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let directory = tempfile::tempdir()?;
    let builder = ClusterBuilder::new(PROGRAM, Store::own(kind).await?);
    let builder = with_blobs(builder, &directory);
    let mut cluster = builder.taskmanagers(4).slots(1).start().await?;
    let mut outputs = Vec::new();
    for step in held_steps(directory.path()) {
        let what = format!("the store dies at {}", step.name);
        outputs.extend(reported(what, die_with_the_store(&mut cluster, step)).await?);
    }
    cluster.wait_until_slots_are_free().await?;
    cluster.check_nothing_left(&outputs).await
}

/// All JobManagers and TaskManagers go on without their store.
async fn die_with_the_store(cluster: &mut Cluster, step: Step) -> anyhow::Result<Verified> {
    let step = step.counted(cluster);
    step.start_armed(cluster, &step.armed()?).await?;
    let job = Verified::submit(cluster, SLOWLY).await?;
    step.reached(cluster).await?;
    cluster.store().kill_server()?;
    step.let_go()?;
    cluster.store().restart_server().await?;
    step.until_it_goes_on(cluster, &job).await?;
    check_no_restart(cluster, &job).await?;
    step.finish(cluster, job, None).await
}

async fn a_process_is_cut_off_at_a_step_of_a_checkpoint_and_no_number_is_lost_or_counted_twice(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let directory = tempfile::tempdir()?;
    let builder = ClusterBuilder::new(PROGRAM, Store::own(kind).await?).on_hosts_of_their_own();
    let builder = with_blobs(builder, &directory).set("heartbeat.timeout", HEARTBEAT_TIMEOUT);
    let mut cluster = builder.taskmanagers(SPARE + 1).slots(1).start().await?;
    let mut outputs = Vec::new();
    for step in held_steps(directory.path()) {
        let what = format!("cut off at {}", step.name);
        outputs.extend(reported(what, go_on_cut_off(&mut cluster, step)).await?);
    }
    cluster.wait_until_slots_are_free().await?;
    cluster.check_nothing_left(&outputs).await
}

/// What the process does next is done beside that of its successor.
async fn go_on_cut_off(cluster: &mut Cluster, step: Step) -> anyhow::Result<Verified> {
    let step = step.counted(cluster);
    step.start_armed(cluster, &step.armed()?).await?;
    // The armed one gets tasks because there is no other slot.
    cluster.taskmanager(SPARE).terminate().await?;
    let job = Verified::submit(cluster, SLOWLY).await?;
    step.reached(cluster).await?;
    cluster.taskmanager(SPARE).start()?;
    let former = cluster.leader().await?;
    let host = match step.role {
        JobManager => Host::JobManager(ARMED),
        TaskManager => Host::TaskManager(ARMED),
    };
    cut_off(cluster, host)?;
    step.let_go()?;
    match step.role {
        JobManager => {
            cluster.successor_of(&former).await?;
            step.until_it_goes_on(cluster, &job).await?;
            cluster.network()?.heal()?;
            check_no_restart(cluster, &job).await?;
        }
        TaskManager => {
            wait_for("its tasks to run elsewhere", BOUND, async || {
                let attempts = cluster.attempts(job.job).await?;
                ensure!(attempts.highest() > 1, "{attempts:?}");
                anyhow::Ok(())
            })
            .await?;
            step.until_it_goes_on(cluster, &job).await?;
            cluster.network()?.heal()?;
        }
    }
    let job = step.finish(cluster, job, None).await?;
    cluster.wait_until_complete().await?;
    Ok(job)
}

/// Cuts a host off from all others but the clients'.
fn cut_off(cluster: &Cluster, host: Host) -> anyhow::Result<()> {
    let network = cluster.network()?;
    let jobmanagers = (0..cluster.jobmanagers()).map(Host::JobManager);
    let taskmanagers = (0..cluster.taskmanagers()).map(Host::TaskManager);
    let others = jobmanagers.chain(taskmanagers).chain([Host::Store]);
    for other in others.filter(|other| *other != host) {
        network.set_both(host, other, Link::Silent)?;
    }
    Ok(())
}
