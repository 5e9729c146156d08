//! Jobs with graphs too large for a transaction of the store, with only a local directory for blobs: the
//! graphs are split over keys of the store, and TaskManagers fetch them from the leader.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::{Cluster, ClusterBuilder, StoreKind};
use tanist_gateway::kinds;

use crate::support::{WordsAndTicks, cluster_on, job_file, need_failpoints};

/// Timeout until a failpoint is reached.
const REACH_BOUND: Duration = Duration::from_secs(60);
/// More than a transaction can hold, even compressed: 62 different characters compress to three quarters.
pub(crate) const NOISE: usize = 3_000_000;

on_stores! {
    etcd(Etcd) {
        a_large_job_accepted_by_a_standby_survives_its_leader,
        a_leader_killed_between_the_parts_and_the_graph_leaves_nothing,
        a_job_above_the_limit_is_refused,
    }
    zookeeper(ZooKeeper) {
        a_large_job_accepted_by_a_standby_survives_its_leader,
        a_leader_killed_between_the_parts_and_the_graph_leaves_nothing,
        a_job_above_the_limit_is_refused,
    }
}

/// With a directory for blobs that only this host has.
async fn cluster_with_local_blobs(
    kind: StoreKind,
    directory: &tempfile::TempDir,
) -> anyhow::Result<ClusterBuilder> {
    let path = directory.path().to_string_lossy();
    let builder = cluster_on(kind).await?;
    Ok(builder.set("high-availability.storageDir", &path))
}

/// The job of the other tests, a short one, with a filter that keeps all records and compares with a very long text.
fn prepare(cluster: &Cluster) -> anyhow::Result<WordsAndTicks> {
    let mut workload = WordsAndTicks::prepare(cluster, 1)?;
    make_large(cluster, &mut workload, NOISE)?;
    Ok(workload)
}

/// Adds such a filter to a job, with a text of this number of bytes.
pub(crate) fn make_large(
    cluster: &Cluster,
    workload: &mut WordsAndTicks,
    noise_bytes: usize,
) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(job_file("words-and-ticks.yaml"))?;
    let filter = format!(
        "  - name: unlike\n    filter:\n      column: word\n      op: ne\n      value: {}\n\n",
        noise(noise_bytes)
    );
    let (before, after) = text
        .split_once("  - name: by-word")
        .context("the step is there")?;
    let file = cluster.directory().join("large.yaml");
    std::fs::write(&file, format!("{before}{filter}  - name: by-word{after}"))?;
    workload.submission.file = file;
    Ok(())
}

fn noise(bytes: usize) -> String {
    const CHARACTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let character = |_| {
        // xorshift
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let index = usize::try_from(state % CHARACTERS.len() as u64).unwrap_or(0);
        char::from(CHARACTERS[index])
    };
    let text: String = (0..bytes).map(character).collect();
    format!("x{text}")
}

async fn a_large_job_accepted_by_a_standby_survives_its_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let blobs = tempfile::tempdir()?;
    let mut cluster = cluster_with_local_blobs(kind, &blobs)
        .await?
        .start()
        .await?;
    let mut workload = WordsAndTicks::prepare_endless(&cluster)?;
    make_large(&cluster, &mut workload, NOISE)?;
    let standby = cluster.rest_address(1).to_owned();
    cluster
        .submit_through(&standby, &workload.submission)
        .await?
        .success()?;
    let dump = cluster.store_dump().await?;
    let chunks = dump.items.get(&kinds::CHUNKS).map_or(0, Vec::len);
    ensure!(chunks > 1, "the graph is not split: {dump:?}");
    workload.wait_until_ticking(&mut cluster).await?;
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    workload.stop_and_check(&mut cluster).await
}

async fn a_leader_killed_between_the_parts_and_the_graph_leaves_nothing(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let blobs = tempfile::tempdir()?;
    let mut cluster = cluster_with_local_blobs(kind, &blobs)
        .await?
        .failpoints(0, "submit.chunks-written=kill")
        .start()
        .await?;
    let former = cluster.leader().await?;
    let workload = prepare(&cluster)?;
    // The client retries over the takeover.
    let standby = cluster.rest_address(1).to_owned();
    cluster
        .submit_through(&standby, &workload.submission)
        .await?
        .success()?;
    cluster
        .jobmanager(0)
        .reached("submit.chunks-written", REACH_BOUND)
        .await?;
    cluster.successor_of(&former).await?;
    workload.check_finished(&mut cluster).await
}

async fn a_job_above_the_limit_is_refused(kind: StoreKind) -> anyhow::Result<()> {
    let blobs = tempfile::tempdir()?;
    let mut cluster = cluster_with_local_blobs(kind, &blobs)
        .await?
        .set("high-availability.store.max-graph-size", "2 mb")
        .start()
        .await?;
    let workload = prepare(&cluster)?;
    let leader = cluster.leader().await?;
    let refused = cluster
        .submit_through(&leader.rest, &workload.submission)
        .await?;
    let said = format!("{refused:?}");
    ensure!(refused.success().is_err(), "it was accepted: {said}");
    for key in ["store.max-graph-size", "storageDir"] {
        ensure!(
            said.contains(&format!("high-availability.{key}")),
            "the refusal does not name {key}: {said}"
        );
    }
    let dump = cluster.store_dump().await?;
    ensure!(dump.items.is_empty(), "something was written: {dump:?}");
    cluster.check_nothing_left(&[]).await
}
