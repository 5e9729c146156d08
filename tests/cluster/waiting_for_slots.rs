//! Jobs that wait for slots: their order after a change of the leader, that waiting is not a failure, and
//! that a large job is not starved by smaller ones.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::{Cluster, StoreKind, Submission, wait_for};
use tanist_proto::id::JobId;

use crate::support::{WordsAndTicks, cluster_on, job_file};

on_stores! {
    embedded(Embedded) {
        jobs_that_wait_are_served_by_age_also_after_their_leader_was_killed,
        a_large_job_waits_without_failing_and_is_not_passed_for_ever,
    }
    etcd(Etcd) { jobs_that_wait_are_served_by_age_also_after_their_leader_was_killed }
}

/// Number of slots that each job needs.
const SLOTS: usize = 2;

/// When a job first ran, in milliseconds since 1970.
async fn ran_at(cluster: &mut Cluster, job: JobId) -> anyhow::Result<i64> {
    let view = cluster.job(job).await?;
    let at = view.0["timestamps"]["RUNNING"].as_i64();
    at.filter(|at| *at > 0)
        .with_context(|| format!("it never ran: {}", view.0))
}

/// The ids are chosen so that an order by id would be the reverse.
async fn jobs_that_wait_are_served_by_age_also_after_their_leader_was_killed(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(2).taskmanagers(1);
    let mut cluster = builder.slots(SLOTS).start().await?;
    let mut jobs = Vec::new();
    for number in [9, 7, 5, 3] {
        let name = format!("job-{number}");
        // The first one has the slots until all others wait.
        let mut workload = match number {
            9 => WordsAndTicks::prepare_endless_in(&cluster, &name)?,
            _ => WordsAndTicks::prepare_in(&cluster, &name, 1)?,
        };
        workload.submission.job = JobId::from_bits(number << 64);
        cluster.submit(&workload.submission).await?;
        if number == 9 {
            workload.wait_until_ticking(&mut cluster).await?;
        }
        // The waiting jobs were accepted by different terms.
        if number == 7 || number == 3 {
            let former = cluster.kill_leader().await?;
            cluster.successor_of(&former).await?;
            cluster.jobmanager(former.index).start()?;
        }
        jobs.push(workload);
    }
    jobs[0].stop(&mut cluster).await?;
    let mut began = Vec::new();
    for workload in &jobs {
        cluster.wait_for_state(workload.job(), "FINISHED").await?;
        began.push(ran_at(&mut cluster, workload.job()).await?);
        workload.check_result()?;
    }
    ensure!(began.is_sorted(), "they began at {began:?}");
    let outputs: Vec<_> = jobs.iter().flat_map(WordsAndTicks::outputs).collect();
    cluster.check_nothing_left(&outputs).await
}

/// Small jobs keep coming, each before the last one has ended.
async fn a_large_job_waits_without_failing_and_is_not_passed_for_ever(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(2);
    let builder = builder
        .slots(SLOTS)
        .set("slot.request.timeout", "1 s")
        .set("slotmanager.reservation.delay", "2 s");
    let mut cluster = builder.start().await?;
    let output = cluster.directory().join("large");
    let large = Submission::new(job_file("large.yaml")).path("output", &output);
    let mut small: Vec<WordsAndTicks> = Vec::new();
    loop {
        ensure!(small.len() < 30, "the large job is starved");
        let name = format!("small-{}", small.len());
        let next = WordsAndTicks::prepare_in(&cluster, &name, 4)?;
        cluster.submit(&next.submission).await?;
        let last = small.last().map(WordsAndTicks::job);
        match last {
            // From the first one on there is always one that runs.
            None => {
                cluster.wait_until_running_or_finished(next.job()).await?;
                cluster.submit(&large).await?;
            }
            Some(last) => until_over(&mut cluster, last).await?,
        }
        small.push(next);
        let view = cluster.job(large.job).await?;
        ensure!(view.state() != "FAILED", "it only waited: {}", view.0);
        if ran_at(&mut cluster, large.job).await.is_ok() {
            break;
        }
    }
    cluster.wait_for_state(large.job, "FINISHED").await?;
    for workload in &small {
        cluster.wait_for_state(workload.job(), "FINISHED").await?;
    }
    let outputs = small.iter().flat_map(WordsAndTicks::outputs);
    let outputs: Vec<_> = outputs.chain([output]).collect();
    cluster.check_nothing_left(&outputs).await
}

async fn until_over(cluster: &mut Cluster, job: JobId) -> anyhow::Result<()> {
    wait_for("a small job to end", Duration::from_secs(60), async || {
        let view = cluster.job(job).await?;
        ensure!(view.is_over(), "{}", view.0);
        Ok(())
    })
    .await
}
