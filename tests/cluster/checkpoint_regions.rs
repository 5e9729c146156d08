//! Regions are independent: one that fails again and again, or has no slots, neither touches the attempts of the other
//! one nor delays its checkpoints.
//!
//! Usually a few failures; `TANIST_TEST_FLAPS` sets their number. `cargo xtask chaos` takes about an hour of them.

use anyhow::{Context as _, ensure};
use tanist_chaos::{Attempts, Cluster, StoreKind, dump, wait_for};
use tanist_proto::manifest;
use tanist_proto::v1::stored_manifest::Place;

use crate::support::{BOUND, cluster_on, setting, until_restarted as until_all_restarted};
use crate::verified::{TwoRegions, Verified};

/// How often the one region fails without `TANIST_TEST_FLAPS`.
const FAILURES: u64 = 4;
/// The vertices of the region that fails; all others are those of the other one.
const FAILING: [&str; 3] = ["counted", "counts", "counts-out"];

/// It lasts until it is finished.
const JOB: TwoRegions = TwoRegions {
    count: 200_000,
    rate: 1_000,
    keys: 1_000,
    interval_ms: 100,
};

on_stores! {
    usually on anywhere(Embedded) {
        a_region_that_fails_again_and_again_neither_restarts_nor_delays_another_one,
        all_regions_that_restart_together_begin_each_from_its_own_newest_snapshot,
    }
}

async fn a_region_that_fails_again_and_again_neither_restarts_nor_delays_another_one(
    kind: StoreKind,
) -> anyhow::Result<()> {
    // No TaskManager has tasks of both regions.
    let builder = cluster_on(kind).await?.taskmanagers(4).slots(1);
    let mut cluster = builder.start().await?;
    let failures = setting("TANIST_TEST_FLAPS")?.unwrap_or(FAILURES);
    let lasting = TwoRegions {
        count: JOB.count + 10_000 * failures,
        ..JOB
    };
    let job = Verified::submit(&mut cluster, lasting).await?;
    let [mut of_failing, of_other] = regions(&mut cluster, &job).await?;
    for _ in 0..failures {
        let number = job.until_completed_above(&mut cluster, 0).await?;
        let snapshot = job.until_completed_above(&mut cluster, number).await?;
        let (failing, _) = cluster.place_of(job.job, "counted").await?;
        cluster.taskmanager(failing).kill();
        // The region has too few slots meanwhile. What completes are checkpoints of the other one.
        let without = job
            .until_completed_above(&mut cluster, snapshot + 1)
            .await?;
        job.until_completed_above(&mut cluster, without).await?;
        cluster.taskmanager(failing).start()?;
        until_restarted(&mut cluster, &job, &of_failing).await?;
        cluster.check_untouched(job.job, &of_other).await?;
        [of_failing, _] = regions(&mut cluster, &job).await?;
    }
    let leader = cluster.leader().await?;
    check_aborts(&cluster.jobmanager(leader.index).log(), failures)?;
    job.finish(&mut cluster, lasting).await
}

/// With `full` as the failover strategy.
async fn all_regions_that_restart_together_begin_each_from_its_own_newest_snapshot(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind)
        .await?
        .set("jobmanager.execution.failover-strategy", "full")
        .taskmanagers(4)
        .slots(1);
    let mut cluster = builder.start().await?;
    let job = Verified::submit(&mut cluster, JOB).await?;
    for _ in 0..2 {
        let [of_failing, of_other] = regions(&mut cluster, &job).await?;
        let first = job.until_completed_above(&mut cluster, 0).await?;
        job.until_completed_above(&mut cluster, first + 1).await?;
        let durable = snapshots(&cluster, &job).await?;
        ensure!(durable.iter().all(|number| *number > 0), "{durable:?}");
        let (failing, _) = cluster.place_of(job.job, "counted").await?;
        cluster.taskmanager(failing).kill();
        cluster.taskmanager(failing).start()?;
        for before in [&of_failing, &of_other] {
            until_all_restarted(&mut cluster, job.job, before).await?;
        }
        let state = dump::state(&*cluster.records().await?, job.job).await?;
        let restored: Vec<u64> = state.regions.iter().map(|it| it.restored_from).collect();
        let is_behind = |(restored, durable): (&u64, &u64)| restored < durable;
        ensure!(
            restored.len() == durable.len() && !restored.iter().zip(&durable).any(is_behind),
            "of {durable:?} there were restored {restored:?}"
        );
    }
    job.finish(&mut cluster, JOB).await
}

/// The number of the newest durable snapshot of each region.
async fn snapshots(cluster: &Cluster, job: &Verified) -> anyhow::Result<Vec<u64>> {
    // The manifest may be removed before it is read: then there is a newer one.
    wait_for("a manifest", BOUND, async || {
        let record = dump::checkpoints(&*cluster.records().await?, job.job).await?;
        let newest = record.as_ref().and_then(|it| it.retained.last());
        let place = newest.and_then(|it| it.manifest.as_ref()?.place.as_ref());
        let bytes = match place.with_context(|| format!("no manifest in {record:?}"))? {
            Place::Inline(bytes) => bytes.clone(),
            Place::Object(object) => {
                let objects = cluster.objects(&format!("/{}/", job.job))?;
                let path = objects.iter().find(|it| it.ends_with(&object.name));
                std::fs::read(path.with_context(|| format!("no {}", object.name))?)?
            }
        };
        let regions = manifest::decode(&bytes)?.regions;
        anyhow::Ok(regions.iter().map(|region| region.number).collect())
    })
    .await
}

/// The attempts of the region that fails, and of the other one.
async fn regions(cluster: &mut Cluster, job: &Verified) -> anyhow::Result<[Attempts; 2]> {
    cluster.wait_until_running(job.job).await?;
    let all = cluster.attempts(job.job).await?;
    let is_failing = |vertex: &str| FAILING.contains(&vertex);
    let regions = [
        all.of_vertices(is_failing),
        all.of_vertices(|vertex| !is_failing(vertex)),
    ];
    let counts = regions.each_ref().map(Attempts::count);
    ensure!(counts == [6, 10], "{counts:?}");
    Ok(regions)
}

async fn until_restarted(
    cluster: &mut Cluster,
    job: &Verified,
    before: &Attempts,
) -> anyhow::Result<()> {
    wait_for("the region to run again", BOUND, async || {
        let after = cluster.attempts(job.job).await?;
        let changed = before.changed(&after);
        ensure!(changed == before.count(), "{before:?}, {after:?}");
        anyhow::Ok(())
    })
    .await
}

/// Checks that no checkpoint was aborted but that of the region which failed, once each time. They say how many regions
/// they are of.
fn check_aborts(log: &str, failures: u64) -> anyhow::Result<()> {
    let is_abort =
        |line: &&str| line.contains("checkpoint aborted") || line.contains("checkpoint failed");
    let aborts: Vec<&str> = log.lines().filter(is_abort).collect();
    let of_several = aborts.iter().find(|line| !line.contains(" regions=1 "));
    ensure!(of_several.is_none(), "{of_several:?}");
    ensure!(aborts.len() as u64 <= failures, "{aborts:?}");
    Ok(())
}
