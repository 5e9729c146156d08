//! Jobs that verify themselves run one after another, while leaders, standbys, TaskManagers and the store are killed,
//! paused and cut off, alone and in pairs. Each number of each job counts once (K7); after each fault the job goes on
//! and completes a checkpoint, and the record of its checkpoints agrees with its objects and with what it was (K2, K5,
//! K15); nothing of it is left after its result (K13); in the end no ended job has changed.
//!
//! Usually a few kills. `cargo xtask chaos` sets `TANIST_TEST_KILLS`; `TANIST_TEST_SEED` repeats the faults of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::wordcount::check_nothing_pending;
use tanist_chaos::{
    Cluster, ClusterBuilder, Faults, History, Observer, Store, StoreKind, wait_for,
};

use crate::checkpoint_records::CheckpointRecord;
use crate::job_lifecycles::addresses_of;
use crate::support::{PROGRAM, setting};
use crate::verified::{TwoRegions, Verified};

/// Number of kills without `TANIST_TEST_KILLS`.
const KILLS: u64 = 4;
/// Timeout until the job goes on after a fault: elections, registrations, restarts, a checkpoint.
const PROGRESS_BOUND: Duration = Duration::from_secs(120);
/// Timeout of the cleanup of a job.
const CLEANUP_BOUND: Duration = Duration::from_secs(60);
/// How long results are kept. A TaskManager that was frozen or cut off when the cleanup ran may have written a file
/// since, before it learned that the job has ended: it goes with the result.
const RESULTS_KEPT: &str = "2 min";
/// As short as that requires.
const CLIENT_TIMEOUT: &str = "12 s";
/// Timeout until the last result is removed. Only a run with such a file waits.
const REMOVAL_BOUND: Duration = Duration::from_secs(300);
/// Shorter than the longest faults, so that tasks are lost by them.
const HEARTBEAT_TIMEOUT: &str = "2500 ms";

const JOB: TwoRegions = TwoRegions {
    count: 20_000,
    rate: 2_000,
    keys: 1_000,
    interval_ms: 1_000,
};

on_networks! {
    embedded(Embedded) { every_number_counts_once_whatever_fails }
    etcd(Etcd) { every_number_counts_once_whatever_fails }
    zookeeper(ZooKeeper) { every_number_counts_once_whatever_fails }
}

async fn every_number_counts_once_whatever_fails(kind: StoreKind) -> anyhow::Result<()> {
    let wanted = setting("TANIST_TEST_KILLS")?.unwrap_or(KILLS);
    let seed = setting("TANIST_TEST_SEED")?.unwrap_or(1);
    println!("TANIST_TEST_SEED={seed}");
    let mut run = Run::start(kind, seed).await?;
    while run.faults.kills() < wanted {
        run.run_job().await?;
        println!("{}", run.summary());
    }
    run.check_end().await
}

struct Run {
    cluster: Cluster,
    faults: Faults,
    observer: Observer,
    /// How processes ended by themselves, with the number of times.
    ended: BTreeMap<String, u64>,
    jobs: Vec<Verified>,
    /// Number of ranges of objects that were compared with what retained checkpoints say of them.
    compared: usize,
    /// Number of jobs of which the cleanup has missed a file.
    late: u64,
    _blobs: tempfile::TempDir,
}

impl Run {
    async fn start(kind: StoreKind, seed: u64) -> anyhow::Result<Run> {
        let blobs = tempfile::tempdir()?;
        let path = blobs.path().to_string_lossy();
        let mut builder = ClusterBuilder::new(PROGRAM, Store::own(kind).await?)
            .jobmanagers(3)
            .taskmanagers(5)
            .slots(1)
            .on_hosts_of_their_own()
            .set("heartbeat.timeout", HEARTBEAT_TIMEOUT)
            .set("client.timeout", CLIENT_TIMEOUT)
            .set("jobstore.expiration-time", RESULTS_KEPT);
        if kind != StoreKind::Embedded {
            builder = builder
                .store_directory(blobs.path())
                .set("high-availability.storageDir", &path)
                .set("high-availability.storage-shared", "true");
        }
        let cluster = builder.start().await?;
        let observer = Observer::start(cluster.rest().clone(), addresses_of(&cluster));
        Ok(Run {
            cluster,
            faults: Faults::new(seed, kind),
            observer,
            ended: BTreeMap::new(),
            jobs: Vec::new(),
            compared: 0,
            late: 0,
            _blobs: blobs,
        })
    }

    /// Runs one job to its end among faults, and checks it.
    async fn run_job(&mut self) -> anyhow::Result<()> {
        let job = Verified::submit(&mut self.cluster, JOB).await?;
        let mut record = CheckpointRecord::new(job.job);
        let mut number = 0;
        let mut done = String::from("no fault");
        while let Some(newest) = self
            .until_progress(&job, number)
            .await
            .with_context(|| format!("after {done}"))?
        {
            number = newest;
            let looked = record.look(&self.cluster).await;
            looked.with_context(|| format!("after {done}"))?;
            done = self.faults.strike(&mut self.cluster).await?;
        }
        job.check_output()
            .with_context(|| format!("after {done}"))?;
        self.compared += record.compared;
        self.check_cleaned_up(&job).await?;
        self.jobs.push(job);
        Ok(())
    }

    /// Waits until the job runs with all its tasks and has completed a checkpoint above this number, which is returned.
    /// None: it has finished.
    async fn until_progress(&mut self, job: &Verified, number: u64) -> anyhow::Result<Option<u64>> {
        let what = format!("a checkpoint above {number}, or the end");
        let seen = wait_for(&what, PROGRESS_BOUND, async || {
            for ended in self.cluster.restart_ended()? {
                *self.ended.entry(ended).or_default() += 1;
            }
            let view = self.cluster.job(job.job).await?;
            if view.is_over() {
                return Ok(Err(view));
            }
            ensure!(view.all_tasks_run(), "{}", view.0);
            let checkpoints = job.checkpoints(&mut self.cluster).await?;
            let newest = checkpoints["latest"]["completed"]["id"].as_u64();
            let newest = newest.filter(|newest| *newest > number);
            Ok(Ok(newest.with_context(|| checkpoints.to_string())?))
        })
        .await?;
        match seen {
            Ok(newest) => Ok(Some(newest)),
            Err(view) => {
                ensure!(view.state() == "FINISHED", "{}", view.0);
                Ok(None)
            }
        }
    }

    /// Waits until the cleanup of an ended job is done. What it has missed is noted.
    async fn check_cleaned_up(&mut self, job: &Verified) -> anyhow::Result<()> {
        wait_for("a clean end", CLEANUP_BOUND, async || {
            self.cluster.restart_ended()?;
            self.cluster.store_dump().await?.check_empty()
        })
        .await?;
        if let Err(left) = self.check_no_file_of(job) {
            println!("left for the removal of the result: {left}");
            self.late += 1;
        }
        Ok(())
    }

    /// Checks that a job has no pending file, and no object in the storage.
    fn check_no_file_of(&self, job: &Verified) -> anyhow::Result<()> {
        for output in job.directories() {
            check_nothing_pending(&output)?;
        }
        let objects = self.cluster.objects(&format!("/{}/", job.job))?;
        ensure!(objects.is_empty(), "objects are left: {objects:?}");
        Ok(())
    }

    fn summary(&self) -> String {
        let injected = self.faults.injected().iter();
        let injected: Vec<String> = injected.map(|(fault, n)| format!("{n} {fault}")).collect();
        format!(
            "{} jobs verified ({} with a late file), {} ranges of objects compared, {} kills, {} pairs of faults: {}; ended by themselves: {:?}",
            self.jobs.len(),
            self.late,
            self.compared,
            self.faults.kills(),
            self.faults.pairs(),
            injected.join(", "),
            self.ended
        )
    }

    /// Checks once more what no later fault may have changed.
    async fn check_end(mut self) -> anyhow::Result<()> {
        for job in &self.jobs {
            let job_is_there = job.check_output();
            job_is_there.context("a later fault changed the output of an ended job")?;
        }
        ensure!(self.compared > 0, "no checkpoint had an object");
        self.observer.with(History::check)?;
        self.cluster.wait_until_complete().await?;
        self.cluster.wait_until_slots_are_free().await?;
        wait_for("all late files to be gone", REMOVAL_BOUND, async || {
            let mut jobs = self.jobs.iter();
            jobs.try_for_each(|job| self.check_no_file_of(job))
        })
        .await?;
        let outputs: Vec<_> = self.jobs.iter().flat_map(Verified::directories).collect();
        self.cluster.check_nothing_left(&outputs).await?;
        self.cluster.check_no_local_files(&outputs)
    }
}
