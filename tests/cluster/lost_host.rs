//! The leader's host is lost with its disk and a TaskManager: the next leader has the graph of every acknowledged
//! job, small or large, and deploys lost tasks from it. Files of the job are still there, too: those in the graph,
//! and, if there is shared storage, those that were uploaded before it. A program reads them after the restart.
//!
//! On the embedded store the cluster has only one host: there the directories of the processes are lost,
//! not the store's.

use std::path::PathBuf;

use anyhow::ensure;
use tanist_chaos::wordcount::visible_files;
use tanist_chaos::{Cluster, ClusterBuilder, StoreKind, Submission};
use tanist_gateway::kinds;

use crate::large_graphs::{NOISE, make_large};
use crate::support::{ENDLESS, WordsAndTicks, cluster_on, job_file, stop_job, until_restarted};

/// One TaskManager must be enough for all jobs.
const SLOTS: usize = 6;
/// Sizes of files: part of the graph, and not part of it.
const INLINE: usize = 100 * 1024;
const UPLOADED: usize = 1024 * 1024;

on_stores! {
    embedded(Embedded) {
        graphs_survive_the_directories_of_the_leader,
    }
    etcd(Etcd) {
        graphs_in_the_store_survive_the_host_of_the_leader,
        a_graph_in_a_shared_directory_survives_the_host_of_the_leader,
    }
    zookeeper(ZooKeeper) {
        graphs_in_the_store_survive_the_host_of_the_leader,
        a_graph_in_a_shared_directory_survives_the_host_of_the_leader,
    }
}

async fn graphs_survive_the_directories_of_the_leader(kind: StoreKind) -> anyhow::Result<()> {
    check_survives(cluster_on(kind).await?, UPLOADED, |chunks| chunks == 0).await
}

async fn graphs_in_the_store_survive_the_host_of_the_leader(kind: StoreKind) -> anyhow::Result<()> {
    // There are directories for blobs, but each process has a different one.
    let builder = cluster_on(kind).await?;
    // Uploads would be lost with the host, so they are refused.
    check_survives(builder, INLINE, |chunks| chunks > 1).await
}

async fn a_graph_in_a_shared_directory_survives_the_host_of_the_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let blobs = tempfile::tempdir()?;
    let builder = cluster_on(kind)
        .await?
        .set(
            "high-availability.storageDir",
            &blobs.path().to_string_lossy(),
        )
        .set("high-availability.storage-shared", "true");
    check_survives(builder, UPLOADED, |chunks| chunks == 0).await
}

async fn check_survives(
    builder: ClusterBuilder,
    size_of_large: usize,
    split_as_meant: impl FnOnce(usize) -> bool,
) -> anyhow::Result<()> {
    let mut cluster = builder.slots(SLOTS).on_disks_of_their_own().start().await?;
    let small = WordsAndTicks::prepare_endless_in(&cluster, "small")?;
    let mut large = WordsAndTicks::prepare_endless_in(&cluster, "large")?;
    make_large(&cluster, &mut large, NOISE)?;
    let readers = [
        Reader::prepare(&cluster, "reads-inline", INLINE)?,
        Reader::prepare(&cluster, "reads-large", size_of_large)?,
    ];
    let leader = cluster.leader().await?;
    // All tasks are on the TaskManager that will be lost, and move to the other one.
    cluster.taskmanager(1).terminate().await?;
    for reader in &readers {
        cluster.submit(&reader.submission).await?;
    }
    for workload in [&small, &large] {
        cluster.submit(&workload.submission).await?;
    }
    let dump = cluster.store_dump().await?;
    let chunks = dump.items.get(&kinds::CHUNKS).map_or(0, Vec::len);
    ensure!(split_as_meant(chunks), "{chunks} chunks: {dump:?}");
    let mut lost = Vec::new();
    for workload in [&small, &large] {
        workload.wait_until_ticking(&mut cluster).await?;
        let attempts = workload.ticking_attempts(&mut cluster).await?;
        lost.push((workload.job(), attempts));
    }
    for reader in &readers {
        let job = reader.submission.job;
        cluster.wait_until_running(job).await?;
        lost.push((job, cluster.attempts(job).await?));
    }
    cluster.taskmanager(1).start()?;
    cluster.wait_until_complete().await?;
    cluster.jobmanager(leader.index).lose_host()?;
    cluster.taskmanager(0).lose_host()?;
    cluster.successor_of(&leader).await?;
    for (job, attempts) in &lost {
        until_restarted(&mut cluster, *job, attempts).await?;
    }
    for workload in [&small, &large] {
        workload.stop(&mut cluster).await?;
        workload.check_result()?;
    }
    for reader in &readers {
        reader.stop_and_check(&mut cluster).await?;
    }
    let mut outputs = [small.outputs(), large.outputs()].concat();
    outputs.extend(readers.map(|reader| reader.output));
    cluster.check_nothing_left(&outputs).await
}

/// A job whose program reads a file of the job when the job is stopped: after the loss of the hosts.
struct Reader {
    submission: Submission,
    output: PathBuf,
    expected: String,
}

impl Reader {
    /// Prepares the job with a file of about this size.
    fn prepare(cluster: &Cluster, name: &str, size: usize) -> anyhow::Result<Reader> {
        let directory = cluster.directory().join(name);
        std::fs::create_dir(&directory)?;
        let line = format!("{name}\n");
        let lines = size / line.len();
        std::fs::write(directory.join("model.bin"), line.repeat(lines))?;
        let file = directory.join("job.yaml");
        std::fs::copy(job_file("reads-a-file-late.yaml"), &file)?;
        let output = directory.join("output");
        let submission = Submission::new(file)
            .path("output", &output)
            .parameter("word", name)
            .parameter("count", ENDLESS);
        Ok(Reader {
            submission,
            output,
            expected: format!("{} bytes, {lines} lines", lines * line.len()),
        })
    }

    /// Stops it when it runs; checks that the program found the complete file.
    async fn stop_and_check(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        cluster.wait_until_running(self.submission.job).await?;
        stop_job(cluster, self.submission.job).await?;
        let mut read = String::new();
        for part in visible_files(&self.output)? {
            read += &std::fs::read_to_string(part)?;
        }
        let expected = &self.expected;
        ensure!(read.trim() == expected, "{read:?}, not {expected:?}");
        Ok(())
    }
}
