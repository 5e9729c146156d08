//! The description of an ended job that is too large for the store: a leader that is killed between writing it and
//! writing the result loses nothing and leaves nothing, every JobManager serves it, and it is removed with the result.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{StoreKind, Submission, wait_for};

use crate::support::{cluster_with_blobs, job_file, need_failpoints};

const BOUND: Duration = Duration::from_secs(60);

on_stores! {
    usually on embedded(Embedded) {
        a_leader_killed_between_description_and_result_loses_nothing_and_leaves_nothing,
    }
}

async fn a_leader_killed_between_description_and_result_loses_nothing_and_leaves_nothing(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let blobs = tempfile::tempdir()?;
    let builder = cluster_with_blobs(kind, &blobs).await?;
    let mut cluster = builder
        .failpoints(0, "job.description-prepared=kill")
        // All records but the smallest become blobs.
        .set("high-availability.inline-threshold", "1 kb")
        .set("client.timeout", "1 s")
        .set("jobstore.expiration-time", "15 s")
        .set("blob.orphan-grace", "10 s")
        .start()
        .await?;
    let former = cluster.leader().await?;
    let job = cluster
        .submit(&Submission::new(job_file("wordy.yaml")))
        .await?;
    let killed = cluster.jobmanager(0);
    killed.reached("job.description-prepared", BOUND).await?;
    cluster.successor_of(&former).await?;
    cluster.wait_for_state(job, "FINISHED").await?;
    // The third leader has never seen the job run.
    let second = cluster.leader().await?;
    cluster.jobmanager(0).start()?;
    cluster.jobmanager(second.index).kill();
    cluster.successor_of(&second).await?;
    for path in ["", "/plan", "/exceptions"] {
        let body = cluster.get(&format!("/v1/jobs/{job}{path}")).await?;
        let vertices = match path {
            "/plan" => &body["plan"]["nodes"],
            "" => &body["vertices"],
            _ => continue,
        };
        let count = vertices.as_array().map_or(0, Vec::len);
        ensure!(count == 1, "not all is described: {body}");
    }
    let id = job.to_string();
    ensure!(
        !cluster.objects(&id)?.is_empty(),
        "its description is no blob"
    );
    wait_for("everything to be forgotten", BOUND, async || {
        let left = cluster.objects(&id)?;
        ensure!(left.is_empty(), "{left:?}");
        let dump = cluster.store_dump().await?;
        ensure!(dump.items.is_empty(), "{dump:?}");
        anyhow::Ok(())
    })
    .await?;
    cluster.check_nothing_left(&[]).await
}
