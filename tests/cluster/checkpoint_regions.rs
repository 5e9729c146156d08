//! Regions are independent: one that fails again and again, or has no slots, neither touches the attempts of the other
//! one nor delays its checkpoints.
//!
//! Usually a few failures; `TANIST_TEST_FLAPS` sets their number. `cargo xtask chaos` takes about an hour of them.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use tanist_chaos::{Attempts, Cluster, StoreKind, wait_for};

use crate::support::{BOUND, cluster_on, setting};
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
    interval: "100ms",
};

on_stores! {
    usually on anywhere(Embedded) {
        a_region_that_fails_again_and_again_neither_restarts_nor_delays_another_one,
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
    check_aborts(&cluster.jobmanager(leader.index).log())?;
    job.finish(&mut cluster, lasting).await
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

/// Checks that at most one region's checkpoints were aborted: that of the one that failed.
fn check_aborts(log: &str) -> anyhow::Result<()> {
    let aborts = log
        .lines()
        .filter(|line| line.contains("checkpoint aborted"));
    let region = |line: &str| {
        let region = line.split("region=").nth(1);
        let region = region.and_then(|rest| rest.split(' ').next());
        region.map(str::to_owned).with_context(|| line.to_owned())
    };
    let regions: BTreeSet<String> = aborts.map(region).collect::<anyhow::Result<_>>()?;
    ensure!(
        regions.len() <= 1,
        "checkpoints of regions {regions:?} were aborted"
    );
    Ok(())
}
