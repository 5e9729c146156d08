//! The blob directory is mounted on every host, and the mount is lost: nothing is acknowledged that relies on
//! it, nothing is written to the empty directory below, and when it is mounted again everything works as before.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::{StoreKind, small_file_system, wait_for};

use crate::large_graphs::make_large;
use crate::support::{WordsAndTicks, cluster_on};

const BOUND: Duration = Duration::from_secs(30);

on_networks! {
    etcd(Etcd) {
        a_storage_that_loses_its_mount_refuses_large_jobs_until_it_is_back,
    }
}

/// The mount point of the storage, and the mounted disk.
struct Mount {
    disk: PathBuf,
    at: PathBuf,
}

impl Mount {
    fn new() -> anyhow::Result<Mount> {
        let disk = small_file_system("disk", 64 * 1024 * 1024)?;
        let at = small_file_system("hosts-own", 1024 * 1024)?.join("mnt");
        std::fs::create_dir(&at)?;
        let mount = Mount { disk, at };
        mount.mount()?;
        Ok(mount)
    }

    fn mount(&self) -> anyhow::Result<()> {
        run(&["mount", "--bind"], &[&self.disk, &self.at])
    }

    fn unmount(&self) -> anyhow::Result<()> {
        run(&["umount", "--lazy"], &[&self.at])
    }

    fn count(&self) -> anyhow::Result<usize> {
        Ok(std::fs::read_dir(&self.at)?.count())
    }
}

fn run(command: &[&str], paths: &[&Path]) -> anyhow::Result<()> {
    let (program, arguments) = command.split_first().context("a command")?;
    let ended = Command::new(program).args(arguments).args(paths).status()?;
    ensure!(ended.success(), "{command:?} {paths:?}: {ended}");
    Ok(())
}

async fn a_storage_that_loses_its_mount_refuses_large_jobs_until_it_is_back(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mount = Mount::new()?;
    // A directory inside the mount, as operators would configure it: it exists only while the disk is mounted.
    let storage = mount.at.join("tanist");
    let mut cluster = cluster_on(kind)
        .await?
        .set("high-availability.storageDir", &storage.to_string_lossy())
        .set("high-availability.storage-shared", "true")
        .set("client.timeout", "3 s")
        .start()
        .await?;
    let mut before = WordsAndTicks::prepare_in(&cluster, "before", 1)?;
    make_large(&cluster, &mut before, 200_000)?;
    cluster.submit(&before.submission).await?;
    ensure!(storage.exists(), "the storage was never begun");

    mount.unmount()?;
    let mut during = WordsAndTicks::prepare_in(&cluster, "during", 1)?;
    make_large(&cluster, &mut during, 200_000)?;
    // The client repeats a refused submission until this timeout.
    during.submission = during.submission.arguments(&["-D", "client.timeout=3 s"]);
    let leader = cluster.leader().await?;
    let said = during
        .submission
        .submit(cluster.cli(), &leader.rest)
        .await?;
    ensure!(
        said.stderr.contains("mount it again"),
        "the refusal does not say why: {}",
        said.stderr
    );
    ensure!(mount.count()? == 0, "something was written, or made");
    let warned = |status: &serde_json::Value| {
        let warnings = status["warnings"].to_string();
        warnings.contains("mount it again")
    };
    cluster
        .wait_for_rest("the warning", BOUND, "/v1/ha/status", warned)
        .await?;
    // The next leader does not initialize the storage again either.
    cluster.kill_leader().await?;
    let second = cluster.successor_of(&leader).await?;
    let said = during
        .submission
        .submit(cluster.cli(), &second.rest)
        .await?;
    ensure!(said.stderr.contains("mount it again"), "{}", said.stderr);
    ensure!(mount.count()? == 0, "something was written, or made");

    mount.mount()?;
    wait_for("the storage to be taken again", BOUND, async || {
        let said = during
            .submission
            .submit(cluster.cli(), &second.rest)
            .await?;
        said.success()
    })
    .await?;
    for job in [&before, &during] {
        cluster.wait_for_state(job.job(), "FINISHED").await?;
        job.check_result()?;
    }
    let outputs = [before.outputs(), during.outputs()].concat();
    cluster.check_nothing_left(&outputs).await
}
