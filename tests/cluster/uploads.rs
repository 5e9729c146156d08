//! A file that is too large for a job's graph is uploaded before the graph: it survives the leader that
//! accepted the job, is removed with the job, and also if the submission fails, then perhaps by a later
//! leader than the one that decided so.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::wordcount::visible_files;
use tanist_chaos::{StoreKind, Submission, wait_for};

use crate::support::{cluster_with_blobs, job_file, need_failpoints, until_standby};

const BOUND: Duration = Duration::from_secs(60);
/// More than a graph may contain.
const SIZE: usize = 50 * 1024 * 1024;

on_stores! {
    usually on embedded(Embedded) {
        a_large_file_outlives_the_leader_that_accepted_it_and_nothing_is_left_of_it,
    }
}

/// A job file next to the file that belongs to it.
fn job_with_a_file(directory: &Path) -> anyhow::Result<PathBuf> {
    let mut file = std::fs::File::create(directory.join("model.bin"))?;
    let piece = vec![b'x'; 1024 * 1024];
    for _ in 0..SIZE / piece.len() {
        file.write_all(&piece)?;
    }
    let job = directory.join("job.yaml");
    std::fs::copy(job_file("size-of-a-file.yaml"), &job)?;
    Ok(job)
}

async fn a_large_file_outlives_the_leader_that_accepted_it_and_nothing_is_left_of_it(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let blobs = tempfile::tempdir()?;
    let builder = cluster_with_blobs(kind, &blobs).await?;
    let builder = builder.jobmanagers(2).taskmanagers(1);
    let builder = builder
        .failpoints(0, "submit.persisted=kill")
        // The next leader dies when it has recorded that the unused upload will be deleted.
        .failpoints(1, "blob.tombstones-written=kill")
        // An unused upload is removed after ten times this.
        .set("client.timeout", "1 s")
        .set("blob.orphan-grace", "12 s");
    let mut cluster = builder.slots(2).start().await?;
    let former = cluster.leader().await?;
    let directory = tempfile::tempdir()?;
    let file = job_with_a_file(directory.path())?;
    let output = cluster.directory().join("sizes");
    let submission = Submission::new(file.clone()).path("output", &output);
    // A standby accepts the file; the leader accepts the job, and dies.
    let standby = cluster.rest_address(1 - former.index).to_owned();
    let said = cluster.submit_through(&standby, &submission).await?;
    let said = said.success()?;
    ensure!(said.contains(&submission.job.to_string()), "{said}");
    let next = cluster.successor_of(&former).await?;
    cluster.jobmanager(former.index).start()?;
    until_standby(&mut cluster, former.index, &next).await?;
    cluster.wait_for_state(submission.job, "FINISHED").await?;
    let parts = visible_files(&output)?;
    let part = parts.first().context("there is output")?;
    let text = std::fs::read_to_string(part)?;
    ensure!(text.trim() == SIZE.to_string(), "{text:?}");

    // Another job under the same id: its file is uploaded before it is refused.
    let standby = cluster.rest_address(former.index).to_owned();
    let other = Submission {
        job: submission.job,
        ..Submission::new(file).path("output", &cluster.directory().join("others"))
    };
    let refused = cluster.submit_through(&standby, &other).await?;
    ensure!(refused.success().is_err(), "another job took its id");
    cluster.jobmanager(next.index).ended(BOUND).await?;
    let killed = cluster.jobmanager(next.index);
    killed.reached("blob.tombstones-written", BOUND).await?;
    wait_for("the uploads to be removed", BOUND, async || {
        let left = cluster.objects("-upload-")?;
        ensure!(left.is_empty(), "{left:?}");
        anyhow::Ok(())
    })
    .await?;
    cluster.check_nothing_left(&[output]).await
}
