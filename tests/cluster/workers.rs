//! TaskManagers that the leader starts as processes of this host: none is started by hand, leaders die
//! while workers are being started, and in the end no process is left.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{Cluster, ClusterBuilder, Leader, StoreKind, Submission, wait_for, wordcount};

use crate::support::{PROGRAM, WordsAndTicks, cluster_on, example, job_file, need_failpoints};

/// Timeout for the start and the end of processes.
const BOUND: Duration = Duration::from_secs(60);
/// Longer than the `heartbeat.timeout` in this test, shorter than any lease.
const STANDSTILL: Duration = Duration::from_secs(5);

on_stores! {
    always(Embedded) {
        a_leader_killed_when_it_has_started_a_worker_costs_no_worker_and_no_surplus,
        workers_of_a_cluster_that_is_gone_end_by_themselves,
        a_job_tells_why_its_workers_do_not_start,
        a_slot_that_no_usual_worker_has_is_given_by_one_of_its_own_kind,
        a_leader_that_stood_still_keeps_its_workers_and_their_tasks,
    }
    on_etcd(Etcd) { a_leader_killed_when_it_has_started_a_worker_costs_no_worker_and_no_surplus }
}
on_stores! {
    usually on embedded(Embedded) { a_leader_killed_when_it_has_recorded_a_worker_leaves_no_record }
    usually on etcd(Etcd) { a_leader_killed_when_it_has_recorded_that_a_worker_is_to_leave_leaves_none }
    usually on zookeeper(ZooKeeper) { a_leader_killed_when_it_has_removed_the_record_of_a_worker_leaves_none }
}

async fn with_driver(kind: StoreKind, jobmanagers: usize) -> anyhow::Result<ClusterBuilder> {
    let builder = cluster_on(kind).await?;
    Ok(builder
        .jobmanagers(jobmanagers)
        .taskmanagers(0)
        .set("resourcemanager.driver", "local-process")
        .set("resourcemanager.taskmanager-timeout", "2 s")
        .set("job-manager-failover-timeout", "11 s")
        .set("taskmanager.numberOfTaskSlots", "1"))
}

/// The workers of a cluster: processes with its id in their environment.
fn workers_of(cluster: &Cluster) -> Vec<u32> {
    workers_with(&format!(
        "TANIST_HIGH_AVAILABILITY_CLUSTER_ID={}",
        cluster.id()
    ))
}

fn workers_with(mark: &str) -> Vec<u32> {
    let is_one = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|all| all.split(|byte| *byte == 0).any(|it| it == mark.as_bytes()))
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_one).collect()
}

async fn until_no_worker_is_left(cluster: &Cluster) -> anyhow::Result<()> {
    wait_for("all workers to be gone", BOUND, async || {
        let left = workers_of(cluster);
        ensure!(left.is_empty(), "{left:?} are there");
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// Two JobManagers with a driver; the first one leads, and dies at this failpoint.
async fn led_until(kind: StoreKind, failpoint: &str) -> anyhow::Result<(Cluster, Leader)> {
    need_failpoints()?;
    let builder = with_driver(kind, 2).await?;
    let builder = builder.failpoints(0, &format!("{failpoint}=kill"));
    let mut cluster = builder.start().await?;
    let former = cluster.leader().await?;
    Ok((cluster, former))
}

/// The first leader dies at this failpoint; the job runs under the next one, on the workers that it needs.
async fn the_job_runs_though_the_leader_dies_at(
    kind: StoreKind,
    failpoint: &str,
) -> anyhow::Result<()> {
    let (mut cluster, former) = led_until(kind, failpoint).await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    let standby = cluster.rest_address(1).to_owned();
    cluster
        .submit_through(&standby, &workload.submission)
        .await?
        .success()?;
    cluster.jobmanager(0).reached(failpoint, BOUND).await?;
    cluster.successor_of(&former).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let at_work = cluster
        .wait_for_rest(
            "two registered workers",
            BOUND,
            "/v1/taskmanagers",
            |body| {
                let registered = body["taskmanagers"].as_array();
                registered.is_some_and(|all| all.len() == 2)
            },
        )
        .await?;
    let running = workers_of(&cluster);
    ensure!(
        running.len() == 2,
        "{running:?} run for two slots: {at_work}"
    );
    // No started worker is given up under a running job.
    workload.stop_and_check(&mut cluster).await?;
    until_no_worker_is_left(&cluster).await
}

async fn a_leader_killed_when_it_has_started_a_worker_costs_no_worker_and_no_surplus(
    kind: StoreKind,
) -> anyhow::Result<()> {
    the_job_runs_though_the_leader_dies_at(kind, "worker.started").await
}

async fn a_leader_killed_when_it_has_recorded_a_worker_leaves_no_record(
    kind: StoreKind,
) -> anyhow::Result<()> {
    the_job_runs_though_the_leader_dies_at(kind, "worker.recorded").await
}

/// The first leader dies at this failpoint when a job has ended and its workers are no longer needed.
async fn no_worker_is_left_though_the_leader_dies_at(
    kind: StoreKind,
    failpoint: &str,
) -> anyhow::Result<()> {
    let (mut cluster, former) = led_until(kind, failpoint).await?;
    let workload = WordsAndTicks::prepare(&cluster, 1)?;
    let job = cluster.submit(&workload.submission).await?;
    cluster.wait_for_state(job, "FINISHED").await?;
    cluster.jobmanager(0).reached(failpoint, BOUND).await?;
    cluster.successor_of(&former).await?;
    until_no_worker_is_left(&cluster).await?;
    workload.check_finished(&mut cluster).await
}

async fn a_leader_killed_when_it_has_recorded_that_a_worker_is_to_leave_leaves_none(
    kind: StoreKind,
) -> anyhow::Result<()> {
    no_worker_is_left_though_the_leader_dies_at(kind, "worker.release-recorded").await
}

async fn a_leader_killed_when_it_has_removed_the_record_of_a_worker_leaves_none(
    kind: StoreKind,
) -> anyhow::Result<()> {
    no_worker_is_left_though_the_leader_dies_at(kind, "worker.stop-recorded").await
}

async fn workers_of_a_cluster_that_is_gone_end_by_themselves(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = with_driver(kind, 1).await?;
    let builder = builder
        .set("slotmanager.number-of-slots.min", "2")
        .set("heartbeat.timeout", "3 s");
    let mut cluster = builder.start().await?;
    let both = |body: &serde_json::Value| {
        let registered = body["taskmanagers"].as_array();
        registered.is_some_and(|all| all.len() == 2)
    };
    cluster
        .wait_for_rest("the minimum", BOUND, "/v1/taskmanagers", both)
        .await?;
    let running = workers_of(&cluster);
    ensure!(running.len() == 2, "{running:?}");
    cluster.kill_leader().await?;
    until_no_worker_is_left(&cluster).await?;
    cluster.discard();
    Ok(())
}

#[tokio::test]
async fn a_job_with_a_cluster_of_its_own_takes_its_workers_along() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    wordcount::write_input(&directory.path().join("input"), 2, 1000)?;
    let settings = [
        format!("high-availability.embedded.dir={}", path("store")),
        format!("io.tmp.dirs={}", directory.path().display()),
        "resourcemanager.driver=local-process".to_owned(),
    ];
    let mut command = tokio::process::Command::new(PROGRAM);
    command.args(["run", "--target", "per-job"]);
    for setting in &settings {
        command.args(["-D", setting]);
    }
    for (name, value) in [("input", path("input/*.txt")), ("output", path("output"))] {
        command.args(["--param", &format!("{name}={value}")]);
    }
    let ran = command
        .arg(example("wordcount.yaml"))
        .kill_on_drop(true)
        .output();
    let ran = tokio::time::timeout(BOUND, ran).await??;
    ensure!(ran.status.success(), "{ran:?}");
    let visible = wordcount::visible_files(&directory.path().join("output"))?;
    ensure!(!visible.is_empty(), "nothing was written");
    let user = rustix::process::geteuid().as_raw();
    let logs = std::fs::read_dir(directory.path().join(format!("tanist-{user}/workers")))?;
    ensure!(logs.count() == 1, "not one worker ran");
    let mark = format!("TANIST_HIGH_AVAILABILITY_EMBEDDED_DIR={}", path("store"));
    wait_for("its worker to be gone", BOUND, async || {
        let left = workers_with(&mark);
        ensure!(left.is_empty(), "{left:?} are there");
        Ok::<_, anyhow::Error>(())
    })
    .await
}

async fn a_job_tells_why_its_workers_do_not_start(kind: StoreKind) -> anyhow::Result<()> {
    let builder = with_driver(kind, 1).await?;
    // An address that this host does not have.
    let builder = builder
        .set("taskmanager.bind-host", "192.0.2.1")
        .set("security.insecure", "true")
        .set("taskmanager.host", "127.0.0.1");
    let mut cluster = builder.start().await?;
    let workload = WordsAndTicks::prepare(&cluster, 1)?;
    let job = cluster.submit(&workload.submission).await?;
    let path = format!("/v1/jobs/{job}");
    cluster
        .wait_for_rest("the reason", BOUND, &path, |body| {
            let text = body["blocked-by"][0]["text"].as_str().unwrap_or_default();
            text.contains("2 of 2 slots are missing")
                && text.contains("could not be started")
                && text.contains("exit status: 11")
        })
        .await?;
    let leader = cluster.leader().await?.rest;
    let arguments = ["cancel", &job.to_string(), "--address", &leader];
    cluster.cli().run(&arguments).await?.success()?;
    cluster.wait_for_state(job, "CANCELED").await?;
    cluster.check_nothing_left(&workload.outputs()).await?;
    until_no_worker_is_left(&cluster).await
}

/// Its host has more memory than the workers that are usually started there.
async fn a_slot_that_no_usual_worker_has_is_given_by_one_of_its_own_kind(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = with_driver(kind, 1).await?;
    let builder = builder.set("taskmanager.memory.task.size", "64 mb");
    let mut cluster = builder.start().await?;
    let output = cluster.directory().join("output");
    let submission = Submission::new(job_file("roomy.yaml")).path("output", &output);
    let job = cluster.submit(&submission).await?;
    cluster.wait_for_state(job, "FINISHED").await?;
    let records: u64 = wordcount::read_output(&output)?.values().sum();
    ensure!(records == 1000, "{records} were counted");
    cluster.check_nothing_left(&[output]).await?;
    until_no_worker_is_left(&cluster).await
}

/// It is not deposed. It has heard none of its workers for longer than the heartbeat timeout, and they
/// have registered again in the meantime.
async fn a_leader_that_stood_still_keeps_its_workers_and_their_tasks(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = with_driver(kind, 1).await?.with_default_settings();
    let builder = builder
        .set("heartbeat.interval", "500 ms")
        .set("heartbeat.timeout", "3 s");
    let mut cluster = builder.start().await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    let job = cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let leader = cluster.leader().await?;
    let (before, attempts) = (workers_of(&cluster), cluster.attempts(job).await?);
    cluster.jobmanager(leader.index).stop()?;
    tokio::time::sleep(STANDSTILL).await;
    cluster.jobmanager(leader.index).cont()?;
    // A worker that was given up would have ended by then.
    tokio::time::sleep(STANDSTILL).await;
    workload.wait_until_ticking(&mut cluster).await?;
    cluster.check_untouched(job, &attempts).await?;
    let after = workers_of(&cluster);
    ensure!(before == after, "{before:?} ran, {after:?} do");
    let leads = cluster.leader().await?;
    ensure!(leads == leader, "{leads:?} leads, not {leader:?}");
    workload.stop_and_check(&mut cluster).await?;
    until_no_worker_is_left(&cluster).await
}
