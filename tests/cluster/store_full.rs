//! The store is full: its disk, or etcd's quota, which it reaches long before. No task and no leader is
//! affected; writes that can't be stored are refused or wait, and continue when there is space again.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{Cluster, ClusterBuilder, Store, StoreKind, small_file_system, wait_for};
use tanist_gateway::kinds;
use tanist_ha::etcd::test_servers::EtcdServerOptions;
use tanist_ha::zookeeper::test_servers::ZooKeeperServerOptions;

use crate::large_graphs::make_large;
use crate::support::{
    PROCESS_GONE, PROGRAM, RunningOn, WordsAndTicks, cluster_on, process_gone_or,
};

/// Timeout of other steps on a busy machine.
const BOUND: Duration = Duration::from_secs(30);
/// Longer than the sessions of these tests.
const OUTAGE: Duration = Duration::from_secs(2);

on_stores! {
    etcd(Etcd) {
        a_full_etcd_is_led_on_but_taken_over_by_nobody_until_there_is_room,
    }
}

on_networks! {
    embedded(Embedded) {
        a_full_embedded_store_deletes_is_led_and_refuses_submissions,
    }
    zookeeper(ZooKeeper) {
        a_zookeeper_that_ends_as_its_disk_is_full_changes_no_leader,
    }
}

/// A file that takes all space of a file system.
struct Ballast(PathBuf);

impl Ballast {
    fn fill(disk: &Path) -> anyhow::Result<Ballast> {
        let path = disk.join("ballast");
        let mut file = std::fs::File::create(&path)?;
        for size in [64 * 1024, 4096, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
        Ok(Ballast(path))
    }

    fn remove(self) -> anyhow::Result<()> {
        Ok(std::fs::remove_file(self.0)?)
    }
}

async fn a_full_embedded_store_deletes_is_led_and_refuses_submissions(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let disk = small_file_system("store", 32 * 1024 * 1024)?;
    let mut cluster = cluster_on(kind)
        .await?
        .store_directory(&disk)
        .slots(4)
        .set("jobstore.expiration-time", "6 s")
        .set("client.timeout", "600 ms")
        // The large graph below is a record too.
        .set("high-availability.inline-threshold", "512 kb")
        .start()
        .await?;
    let ended = WordsAndTicks::prepare_in(&cluster, "ended", 1)?;
    let running = RunningOn::start(&mut cluster).await?;
    cluster.submit(&ended.submission).await?;
    cluster.wait_for_state(ended.job(), "FINISHED").await?;
    let stored = async |cluster: &Cluster| {
        let dump = cluster.store_dump().await?;
        let count = |kind| dump.items.get(&kind).map_or(0, Vec::len);
        anyhow::Ok((count(kinds::RESULTS), count(kinds::GRAPHS)))
    };
    ensure!(stored(&cluster).await? == (1, 1), "its result is kept");

    let ballast = Ballast::fill(&disk)?;
    // The client retries, through the JobManager that survives. Expired results free space in the store,
    // but not enough.
    let mut waiting = WordsAndTicks::prepare_in(&cluster, "waiting", 1)?;
    make_large(&cluster, &mut waiting, 600_000)?;
    let standby = cluster.rest_address(1 - running.first.index).to_owned();
    let (cli, submission) = (cluster.cli().clone(), waiting.submission.clone());
    // No submission may take longer than half of the retention time of results, which is short here.
    let submitting = tokio::spawn(async move {
        loop {
            let said = submission.submit(&cli, &standby).await?;
            if !said.stderr.contains("after its deadline") {
                return anyhow::Ok(said);
            }
        }
    });
    let full = |status: &serde_json::Value| status["warnings"].to_string().contains("is full");
    cluster
        .wait_for_rest("the warning", BOUND, "/v1/ha/status", full)
        .await?;
    wait_for("the result to expire", BOUND, async || {
        let (results, _) = stored(&cluster).await?;
        ensure!(results == 0, "{results} results");
        anyhow::Ok(())
    })
    .await?;

    // Elections have space reserved, too.
    cluster.jobmanager(running.first.index).kill();
    let second = cluster.successor_of(&running.first).await?;
    running.check_untouched(&mut cluster).await?;
    ensure!(
        stored(&cluster).await? == (0, 1) && !submitting.is_finished(),
        "the submission waits for space"
    );
    ballast.remove()?;
    submitting.await??.success()?;
    cluster.wait_for_state(waiting.job(), "FINISHED").await?;
    waiting.check_result()?;
    running
        .check_finished_under(&mut cluster, &[(second, &PROCESS_GONE)])
        .await
}

async fn a_zookeeper_that_ends_as_its_disk_is_full_changes_no_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let disk = small_file_system("zookeeper", 16 * 1024 * 1024)?;
    let options = ZooKeeperServerOptions {
        data: Some(disk.clone()),
        // Log files are preallocated in units of this number of KiB; the default is 64 MiB.
        extra: vec!["preAllocSize=64".to_owned()],
        ..ZooKeeperServerOptions::default()
    };
    ensure!(kind == StoreKind::ZooKeeper, "{kind} has no such disk");
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own_zookeeper(options).await?)
        .slots(4)
        .start()
        .await?;
    let running = RunningOn::start(&mut cluster).await?;
    let ballast = Ballast::fill(&disk)?;
    // A server that can't write its log ends; the client retries.
    let waiting = WordsAndTicks::prepare_in(&cluster, "waiting", 1)?;
    let (cli, submission) = (cluster.cli().clone(), waiting.submission.clone());
    let address = running.first.rest.clone();
    let submitting = tokio::spawn(async move { submission.submit(&cli, &address).await });
    wait_for("the end of ZooKeeper", BOUND, async || {
        let ended = cluster.store().has_server_ended()?;
        ensure!(ended, "it runs");
        anyhow::Ok(())
    })
    .await?;
    tokio::time::sleep(OUTAGE).await;
    let suspended = |status: &serde_json::Value| status["term"]["state"] == "suspended";
    cluster
        .wait_for_rest("a suspended term", BOUND, "/v1/ha/status", suspended)
        .await?;
    running.check_untouched(&mut cluster).await?;

    ballast.remove()?;
    cluster.store().restart_server().await?;
    submitting.await??.success()?;
    cluster.wait_for_state(waiting.job(), "FINISHED").await?;
    waiting.check_result()?;
    running.check_finished_under_the_first(&mut cluster).await
}

/// Enough for the writes of a cluster in a test, and quickly filled.
const QUOTA: u64 = 16 * 1024 * 1024;

async fn a_full_etcd_is_led_on_but_taken_over_by_nobody_until_there_is_room(
    kind: StoreKind,
) -> anyhow::Result<()> {
    ensure!(kind == StoreKind::Etcd, "{kind} has no quota");
    let options = EtcdServerOptions {
        quota_bytes: Some(QUOTA),
        ..EtcdServerOptions::default()
    };
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::own_etcd(options).await?)
        .slots(4)
        .set("high-availability.etcd.quota-backend-bytes", "16 mb")
        .set("jobstore.expiration-time", "10 s")
        .set("client.timeout", "600 ms")
        .set("rest.await-leader-timeout", "1 s")
        .start()
        .await?;
    let ended = WordsAndTicks::prepare_in(&cluster, "ended", 1)?;
    let running = RunningOn::start(&mut cluster).await?;
    cluster.submit(&ended.submission).await?;
    cluster.wait_for_state(ended.job(), "FINISHED").await?;

    cluster.store().fill().await?;
    let results = async |cluster: &Cluster| {
        let dump = cluster.store_dump().await?;
        anyhow::Ok(dump.items.get(&kinds::RESULTS).map_or(0, Vec::len))
    };
    ensure!(results(&cluster).await? == 1, "its result is kept");
    let full = |status: &serde_json::Value| {
        let warnings = status["warnings"].to_string();
        warnings.contains("etcdctl alarm disarm") && status["term"]["state"] == "leading"
    };
    cluster
        .wait_for_rest("the warning", BOUND, "/v1/ha/status", full)
        .await?;
    let metrics = cluster.rest().get(&running.first.rest, "/metrics").await?;
    let metrics = metrics.as_str().unwrap_or_default();
    ensure!(
        metrics.contains("tanist_store_alarm{alarm=\"NOSPACE\"} 1"),
        "{metrics}"
    );
    // The client gets an error that says why, and that it should retry.
    let refused = WordsAndTicks::prepare_in(&cluster, "refused", 1)?;
    let arguments = refused.submission.attached_arguments();
    let mut line: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let address = running.first.rest.clone();
    line.extend([
        "--detached",
        "--address",
        &address,
        "-D",
        "client.timeout=3 s",
    ]);
    let answer = cluster.cli().run(&line).await?;
    ensure!(
        answer.code != Some(0) && answer.stderr.contains("out of space"),
        "{answer:?}"
    );
    // Records that are no longer needed are still removed.
    wait_for("the result to expire", BOUND, async || {
        let left = results(&cluster).await?;
        ensure!(left == 0, "{left} results");
        anyhow::Ok(())
    })
    .await?;
    running.check_untouched(&mut cluster).await?;
    let leads = cluster.leader().await?;
    ensure!(leads == running.first, "{leads:?} leads");

    // No process can take over, and the log says so.
    let standby = 1 - running.first.index;
    cluster.jobmanager(running.first.index).kill();
    cluster
        .jobmanager(standby)
        .logs("leadership can't be taken", BOUND)
        .await?;
    let nobody = |status: &serde_json::Value| {
        let warnings = status["warnings"].to_string();
        let says = |text: &str| warnings.contains(text);
        says("no standby can take over")
            && says("etcdctl compact")
            && status["term"]["state"] == "none"
    };
    cluster
        .wait_for_rest("what to do", BOUND, "/v1/ha/status", nobody)
        .await?;
    cluster.store().make_room().await?;
    let second = cluster.successor_of(&running.first).await?;
    ensure!(second.index == standby, "{second:?}");
    let detections = process_gone_or(&["lease-expired"]);
    running
        .check_finished_under(&mut cluster, &[(second, &detections)])
        .await
}
