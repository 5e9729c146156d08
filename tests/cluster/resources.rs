//! A job in slots that are cut to its requests, with devices: its leader is killed, and the next one knows
//! exactly which resources of the TaskManager are in use. Also a job that needs more slots than there are.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tanist_chaos::wordcount::visible_files;
use tanist_chaos::{Cluster, StoreKind, Submission, wordcount};

use crate::support::{ENDLESS, cluster_on, job_file, stop_job};

on_stores! {
    embedded(Embedded) {
        slots_with_devices_are_adopted_exactly_and_given_back,
        parts_of_a_job_run_one_after_the_other_in_the_only_slot,
        jobs_that_hold_what_each_of_them_lacks_run_one_after_the_other,
    }
}

async fn slots_with_devices_are_adopted_exactly_and_given_back(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(2).taskmanagers(1);
    let builder = builder
        .slots(2)
        .set("taskmanager.cpu.cores", "4")
        .set("external-resources", "gpu:2:DEVICES");
    let mut cluster = builder.start().await?;
    let output = cluster.directory().join("output");
    let submission = Submission::new(job_file("devices.yaml"))
        .path("output", &output)
        .parameter("count", ENDLESS);
    let job = cluster.submit(&submission).await?;
    cluster.wait_until_running(job).await?;
    let before = cluster.attempts(job).await?;
    until_free(&mut cluster, 1.5, &json!({})).await?;

    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    until_free(&mut cluster, 1.5, &json!({})).await?;
    cluster.wait_until_running(job).await?;
    stop_job(&mut cluster, job).await?;
    let after = cluster.attempts(job).await?;
    ensure!(
        before.changed(&after) == 0,
        "{before:?} before, {after:?} after"
    );
    let mut lines = Vec::new();
    for part in visible_files(&output)? {
        let text = std::fs::read_to_string(part)?;
        lines.extend(text.lines().map(str::to_owned));
    }
    lines.sort();
    ensure!(lines == ["device 0", "device 1"], "{lines:?}");
    until_free(&mut cluster, 4.0, &json!({"gpu": 2})).await?;
    cluster.check_nothing_left(&[output]).await
}

/// Each part runs for longer than the timeout of slot requests.
async fn parts_of_a_job_run_one_after_the_other_in_the_only_slot(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(1);
    let builder = builder.slots(1).set("slot.request.timeout", "1 s");
    let mut cluster = builder.start().await?;
    let outputs = ["first", "second"].map(|name| cluster.directory().join(name));
    let submission = Submission::new(job_file("two-parts.yaml"))
        .path("first", &outputs[0])
        .path("second", &outputs[1]);
    let job = cluster.submit(&submission).await?;
    cluster.wait_for_state(job, "FINISHED").await?;
    for output in &outputs {
        let records: u64 = wordcount::read_output(output)?.values().sum();
        ensure!(records == 3000, "{records} were counted in {output:?}");
    }
    cluster.check_nothing_left(&outputs).await
}

/// Each of them runs its first stage in one of the two slots, and needs both for its second.
async fn jobs_that_hold_what_each_of_them_lacks_run_one_after_the_other(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(1);
    let builder = builder.slots(2).set("slot.idle.timeout", "1 s");
    let mut cluster = builder.start().await?;
    let outputs = ["one", "other"].map(|name| cluster.directory().join(name));
    let submission = |output| Submission::new(job_file("widening.yaml")).path("output", output);
    let jobs = [
        cluster.submit(&submission(&outputs[0])).await?,
        cluster.submit(&submission(&outputs[1])).await?,
    ];
    for job in jobs {
        cluster.wait_for_state(job, "FINISHED").await?;
    }
    for output in &outputs {
        let records: u64 = wordcount::read_output(output)?.values().sum();
        ensure!(records == 1000, "{records} were counted in {output:?}");
    }
    cluster.check_nothing_left(&outputs).await
}

/// Waits until the leader reports this number of cores and devices of the TaskManager as free.
async fn until_free(cluster: &mut Cluster, cores: f64, devices: &Value) -> anyhow::Result<()> {
    let bound = Duration::from_secs(30);
    let is_free = |body: &Value| {
        let free = &body["taskmanagers"][0]["freeResource"];
        free["cpuCores"].as_f64() == Some(cores) && free["extendedResources"] == *devices
    };
    let what = "what is taken to be known";
    cluster
        .wait_for_rest(what, bound, "/v1/taskmanagers", is_free)
        .await?;
    Ok(())
}
