//! A job takes one checkpoint after another while leaders and TaskManagers are killed: its files, its records and, in a
//! long run, the memory of the processes are no larger in the end than they were after the beginning.
//!
//! Usually for some seconds. `cargo xtask soak` takes as many checkpoints as it is told, as far apart as it is told.

use std::fs;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use prost::Message as _;
use tanist_chaos::dump::checkpoints;
use tanist_chaos::{Cluster, StoreKind, wait_for};

use crate::support::{BOUND, cluster_with_blobs, setting};
use crate::verified::{TwoRegions, Verified};

/// Number of checkpoints of the usual run, and the time between two.
const FEW: u64 = 160;
const INTERVAL_MS: u64 = 100;
/// From this number on memory is compared, too: a process takes some until all of its parts were used.
const MANY: u64 = 1_000;
/// Number of processes that are killed.
const KILLS: u64 = 8;
/// Numbers a second.
const RATE: u64 = 1_000;

on_stores! {
    usually on etcd(Etcd) {
        what_a_job_has_stays_as_large_as_it_was_however_many_checkpoints_are_taken,
    }
}

/// What a job has at a moment.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    objects: u64,
    object_bytes: u64,
    record_bytes: u64,
    /// Items of the store, without the history of terms.
    items: u64,
    pending_files: u64,
    memory: u64,
}

impl Sizes {
    async fn look(cluster: &mut Cluster, job: &Verified) -> anyhow::Result<Sizes> {
        // A file may be removed meanwhile.
        let lengths = |paths: Vec<PathBuf>| -> Vec<u64> {
            let found = paths.iter().filter_map(|path| fs::metadata(path).ok());
            found.map(|it| it.len()).collect()
        };
        let objects = cluster.objects(&format!("/{}/", job.job))?;
        let objects = lengths(objects.into_iter().collect());
        let records = cluster.records().await?;
        let record = checkpoints(&*records, job.job).await?;
        let items = cluster.store_dump().await?.items;
        Ok(Sizes {
            objects: objects.len() as u64,
            object_bytes: objects.iter().sum(),
            record_bytes: record.map_or(0, |it| it.encoded_len() as u64),
            items: items.values().map(|names| names.len() as u64).sum(),
            pending_files: pending_files(job)?,
            memory: cluster.memory()?,
        })
    }

    fn min(self, other: Sizes) -> Sizes {
        Sizes {
            objects: self.objects.min(other.objects),
            object_bytes: self.object_bytes.min(other.object_bytes),
            record_bytes: self.record_bytes.min(other.record_bytes),
            items: self.items.min(other.items),
            pending_files: self.pending_files.min(other.pending_files),
            memory: self.memory.min(other.memory),
        }
    }

    /// Checks that none is larger than before by more than a quarter and some room. One object, file or record for each
    /// checkpoint is more than that.
    fn check_not_above(&self, before: &Sizes, total: u64) -> anyhow::Result<()> {
        let grown = |after: u64, before: u64, room: u64| after > before + before / 4 + room;
        let has_grown = grown(self.objects, before.objects, 16)
            || grown(self.object_bytes, before.object_bytes, 256 << 10)
            || grown(self.record_bytes, before.record_bytes, 32 << 10)
            || grown(self.items, before.items, 0)
            || grown(self.pending_files, before.pending_files, 8)
            || total >= MANY && grown(self.memory, before.memory, 32 << 20);
        ensure!(!has_grown, "at first at least {before:?}, later {self:?}");
        Ok(())
    }
}

fn pending_files(job: &Verified) -> anyhow::Result<u64> {
    let mut files = 0;
    for output in job.directories() {
        let runs = fs::read_dir(output.join(".tanist"));
        for run in runs.into_iter().flatten() {
            let pending = fs::read_dir(run?.path());
            files += pending.into_iter().flatten().count() as u64;
        }
    }
    Ok(files)
}

async fn what_a_job_has_stays_as_large_as_it_was_however_many_checkpoints_are_taken(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let total = setting("TANIST_TEST_CHECKPOINTS")?.unwrap_or(FEW);
    let interval_ms = setting("TANIST_TEST_INTERVAL_MS")?.unwrap_or(INTERVAL_MS);
    let job = TwoRegions {
        // It has not ended by then, although the machine may be busy.
        count: RATE * (total * interval_ms / 800 + 120),
        rate: RATE,
        keys: 2_000,
        interval_ms,
    };
    let directory = tempfile::tempdir()?;
    let builder = cluster_with_blobs(kind, &directory).await?;
    let mut cluster = builder.taskmanagers(4).slots(1).start().await?;
    let running = Verified::submit(&mut cluster, job).await?;
    // The smallest sizes after the first quarter, which fills what is retained, and after the last kill. What a kill
    // leaves is removed soon; what is never removed raises them.
    let (mut before, mut after) = (None, None);
    let (mut number, mut killed, mut last_kill) = (0, 0, 0);
    while killed < KILLS || number < last_kill + total / 4 {
        number = running.until_completed_above(&mut cluster, number).await?;
        let sizes = wait_for("the store and the files", BOUND, async || {
            Sizes::look(&mut cluster, &running).await
        });
        let sizes = sizes.await?;
        let smallest = match killed {
            KILLS => &mut after,
            _ if number >= total / 4 => &mut before,
            _ => &mut None,
        };
        *smallest = Some(smallest.map_or(sizes, |it: Sizes| it.min(sizes)));
        // In the first three quarters.
        if killed < KILLS && number >= (2 * killed + 1) * 3 * total / (8 * KILLS) {
            kill(&mut cluster, killed).await?;
            (killed, last_kill) = (killed + 1, number);
        }
    }
    println!("{number} checkpoints, at least {before:#?}, after the last kill {after:#?}");
    let (Some(before), Some(after)) = (before, after) else {
        bail!("too few checkpoints were seen");
    };
    after.check_not_above(&before, total)?;
    running.finish(&mut cluster, job).await
}

/// Kills the leader or a TaskManager, and starts it again.
async fn kill(cluster: &mut Cluster, number: u64) -> anyhow::Result<()> {
    if number.is_multiple_of(2) {
        let former = cluster.kill_leader().await?;
        cluster.successor_of(&former).await?;
        cluster.jobmanager(former.index).start()?;
        return Ok(());
    }
    let taskmanager = usize::try_from(number / 2)?;
    cluster.taskmanager(taskmanager).kill();
    cluster.taskmanager(taskmanager).start()?;
    cluster.wait_until_complete().await
}
