//! The leader is killed by SIGKILL at the moments at which something could be lost or happen twice.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::{Cluster, Leader, StoreKind, Submission, wordcount};
use tanist_gateway::kinds;
use tanist_ha::keys::Name;
use tanist_proto::v1::JobResult;

use crate::support::{WordsAndTicks, cluster_on, job_file, need_failpoints};

/// Timeout until a failpoint is reached.
const REACH_BOUND: Duration = Duration::from_secs(60);

on_stores! {
    each {
        a_submission_that_was_not_persisted_is_made_again,
        a_submission_that_was_persisted_and_not_acknowledged_runs_once,
        an_acknowledged_job_survives_its_leader,
        a_running_job_survives_its_leader,
        a_word_count_survives_its_leader,
        a_cancellation_that_was_not_persisted_is_made_again,
        a_cancelled_job_stays_cancelled_and_shows_no_output,
        a_job_that_is_to_fail_has_failed_under_the_next_leader,
        an_ended_job_is_cleaned_up_after_by_the_next_leader_and_does_not_run_again,
        a_leader_killed_when_it_has_placed_tasks_costs_nothing,
        a_leader_killed_when_all_tasks_have_finished_costs_nothing,
        a_leader_killed_when_it_has_committed_sinks_costs_nothing,
        a_leader_killed_when_it_has_cleaned_up_costs_nothing,
        a_leader_killed_in_its_recovery_costs_nothing,
        a_leader_killed_before_it_has_read_results_runs_no_ended_job_again,
    }
}

/// A cluster whose first JobManager, which leads, is killed at this failpoint.
async fn cluster_killed_at(kind: StoreKind, failpoint: &str) -> anyhow::Result<(Cluster, Leader)> {
    need_failpoints()?;
    let builder = cluster_on(kind)
        .await?
        .failpoints(0, &format!("{failpoint}=kill"));
    let mut cluster = builder.start().await?;
    let leader = cluster.leader().await?;
    Ok((cluster, leader))
}

async fn a_submission_that_was_not_persisted_is_made_again(kind: StoreKind) -> anyhow::Result<()> {
    a_submission_runs_once_whose_leader_is_killed_at("submit.persisting", kind).await
}

async fn a_submission_that_was_persisted_and_not_acknowledged_runs_once(
    kind: StoreKind,
) -> anyhow::Result<()> {
    a_submission_runs_once_whose_leader_is_killed_at("submit.persisted", kind).await
}

async fn a_submission_runs_once_whose_leader_is_killed_at(
    failpoint: &str,
    kind: StoreKind,
) -> anyhow::Result<()> {
    let (mut cluster, former) = cluster_killed_at(kind, failpoint).await?;
    let workload = WordsAndTicks::prepare(&cluster, 2)?;
    // Through a standby, so that the client still has a JobManager to ask. It retries over the takeover.
    let standby = cluster.rest_address(1).to_owned();
    let said = cluster
        .submit_through(&standby, &workload.submission)
        .await?
        .success()?;
    ensure!(said.contains(&workload.job().to_string()), "{said:?}");
    cluster
        .jobmanager(0)
        .reached(failpoint, REACH_BOUND)
        .await?;
    cluster.successor_of(&former).await?;
    // A client that missed the answer asks again.
    cluster
        .submit_through(&standby, &workload.submission)
        .await?
        .success()?;
    let jobs = cluster.get("/v1/jobs").await?;
    ensure!(
        jobs["jobs"].as_array().is_some_and(|jobs| jobs.len() == 1),
        "not one job: {jobs}"
    );
    workload.check_finished(&mut cluster).await
}

async fn an_acknowledged_job_survives_its_leader(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let workload = WordsAndTicks::prepare(&cluster, 2)?;
    cluster.submit(&workload.submission).await?;
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    workload.check_finished(&mut cluster).await
}

async fn a_running_job_survives_its_leader(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let attempts = cluster.attempts(workload.job()).await?;
    let former = cluster.kill_leader().await?;
    let leader = cluster.successor_of(&former).await?;
    ensure!(
        leader.index != former.index,
        "the killed process leads: {leader:?}"
    );
    workload.check_adopted(&mut cluster, &attempts).await?;
    workload.check_nothing_visible()?;
    // The killed JobManager comes back as a standby.
    cluster.jobmanager(former.index).start()?;
    workload.stop_and_check(&mut cluster).await
}

async fn a_word_count_survives_its_leader(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let input = cluster.directory().join("input");
    let output = cluster.directory().join("output");
    let expected = wordcount::write_input(&input, 16, 1_000_000)?;
    let go_on = cluster.directory().join("go-on");
    let submission = Submission::new(job_file("words-slowly.yaml"))
        .path("input", &input.join("*.txt"))
        .path("output", &output)
        .path("go-on", &go_on);
    let job = cluster.submit(&submission).await?;
    cluster.wait_until_running(job).await?;
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    ensure!(
        wordcount::visible_files(&output)?.is_empty(),
        "the job finished before its leader was followed"
    );
    std::fs::write(go_on, "")?;
    cluster.wait_for_state(job, "FINISHED").await?;
    wordcount::check_counts(&expected, &wordcount::read_output(&output)?)?;
    cluster.check_nothing_left(&[output]).await
}

async fn a_cancellation_that_was_not_persisted_is_made_again(
    kind: StoreKind,
) -> anyhow::Result<()> {
    a_job_is_canceled_whose_leader_is_killed_at("job.cancel-persisting", kind).await
}

async fn a_cancelled_job_stays_cancelled_and_shows_no_output(
    kind: StoreKind,
) -> anyhow::Result<()> {
    a_job_is_canceled_whose_leader_is_killed_at("job.cancel-persisted", kind).await
}

async fn a_job_is_canceled_whose_leader_is_killed_at(
    failpoint: &str,
    kind: StoreKind,
) -> anyhow::Result<()> {
    let (mut cluster, former) = cluster_killed_at(kind, failpoint).await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    let job = cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let standby = cluster.rest_address(1).to_owned();
    cluster
        .cli()
        .run(&["cancel", &job.to_string(), "--address", &standby])
        .await?
        .success()?;
    cluster
        .jobmanager(0)
        .reached(failpoint, REACH_BOUND)
        .await?;
    cluster.successor_of(&former).await?;
    cluster.wait_for_state(job, "CANCELED").await?;
    workload.check_nothing_visible()?;
    cluster.check_nothing_left(&workload.outputs()).await?;
    workload.check_nothing_visible()
}

async fn an_ended_job_is_cleaned_up_after_by_the_next_leader_and_does_not_run_again(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let (mut cluster, former) = cluster_killed_at(kind, "job.result-written").await?;
    let workload = WordsAndTicks::prepare(&cluster, 1)?;
    let job = cluster.submit(&workload.submission).await?;
    cluster
        .jobmanager(0)
        .reached("job.result-written", REACH_BOUND)
        .await?;
    cluster.jobmanager(0).ended(REACH_BOUND).await?;
    // Sinks committed before the result was written.
    workload.check_result()?;
    let name = job.to_string().parse()?;
    cluster.successor_of(&former).await?;
    let view = cluster.wait_for_state(job, "FINISHED").await?;
    ensure!(
        view.0["vertices"].is_array(),
        "it is described as it ended: {}",
        view.0
    );
    let before = cluster.store_dump().await?;
    ensure!(
        !before.items.contains_key(&kinds::GRAPHS),
        "the graph is back: {before:?}"
    );
    let result = before.results.get(&name).context("the result is kept")?;
    let ended_at = result.ended_at_ms;
    workload.check_finished(&mut cluster).await?;
    let after = cluster.store_dump().await?;
    let result = after
        .results
        .get(&name)
        .context("the result is still kept")?;
    ensure!(
        result.ended_at_ms == ended_at,
        "it ended twice: {ended_at}, {result:?}"
    );
    Ok(())
}

async fn a_leader_killed_when_it_has_placed_tasks_costs_nothing(
    kind: StoreKind,
) -> anyhow::Result<()> {
    a_leader_killed_at("job.generation-persisted", kind).await
}

async fn a_leader_killed_when_all_tasks_have_finished_costs_nothing(
    kind: StoreKind,
) -> anyhow::Result<()> {
    a_leader_killed_at("job.all-finished-persisted", kind).await
}

async fn a_leader_killed_when_it_has_committed_sinks_costs_nothing(
    kind: StoreKind,
) -> anyhow::Result<()> {
    a_leader_killed_at("job.sinks-committed", kind).await
}

async fn a_leader_killed_when_it_has_cleaned_up_costs_nothing(
    kind: StoreKind,
) -> anyhow::Result<()> {
    a_leader_killed_at("job.cleaned-up", kind).await
}

async fn a_job_that_is_to_fail_has_failed_under_the_next_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let failpoint = "job.failure-persisted";
    let (mut cluster, former) = cluster_killed_at(kind, failpoint).await?;
    let output = cluster.directory().join("output");
    let submission = Submission::new(job_file("stubborn.yaml"))
        .path("input", &cluster.directory().join("no-such-file"))
        .path("output", &output);
    let job = cluster.submit(&submission).await?;
    cluster
        .jobmanager(0)
        .reached(failpoint, REACH_BOUND)
        .await?;
    cluster.successor_of(&former).await?;
    cluster.wait_for_state(job, "FAILED").await?;
    cluster.check_nothing_left(&[output]).await
}

async fn a_leader_killed_at(failpoint: &str, kind: StoreKind) -> anyhow::Result<()> {
    let (mut cluster, former) = cluster_killed_at(kind, failpoint).await?;
    let workload = WordsAndTicks::prepare(&cluster, 1)?;
    cluster.submit(&workload.submission).await?;
    cluster
        .jobmanager(0)
        .reached(failpoint, REACH_BOUND)
        .await?;
    cluster.successor_of(&former).await?;
    workload.check_finished(&mut cluster).await
}

async fn a_leader_killed_in_its_recovery_costs_nothing(kind: StoreKind) -> anyhow::Result<()> {
    need_failpoints()?;
    let builder = cluster_on(kind).await?.failpoints(1, "term.recovered=kill");
    let mut cluster = builder.start().await?;
    let workload = WordsAndTicks::prepare(&cluster, 2)?;
    cluster.submit(&workload.submission).await?;
    let first = cluster.kill_leader().await?;
    cluster.jobmanager(1).ended(REACH_BOUND).await?;
    cluster
        .jobmanager(1)
        .reached("term.recovered", REACH_BOUND)
        .await?;
    cluster.jobmanager(0).start()?;
    let third = cluster.successor_of(&first).await?;
    ensure!(
        third.epoch > first.epoch + 1,
        "the second one never led: {first:?}, {third:?}"
    );
    workload.check_finished(&mut cluster).await
}

async fn a_leader_killed_before_it_has_read_results_runs_no_ended_job_again(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let builder = cluster_on(kind)
        .await?
        .failpoints(1, "results.reading=kill");
    let mut cluster = builder.start().await?;
    let workload = WordsAndTicks::prepare(&cluster, 1)?;
    let job = cluster.submit(&workload.submission).await?;
    cluster.wait_for_state(job, "FINISHED").await?;
    let ended = |results: &BTreeMap<Name, JobResult>| -> Vec<u64> {
        results.values().map(|result| result.ended_at_ms).collect()
    };
    let before = ended(&cluster.store_dump().await?.results);
    let first = cluster.kill_leader().await?;
    let second = cluster.jobmanager(1);
    second.ended(REACH_BOUND).await?;
    second.reached("results.reading", REACH_BOUND).await?;
    cluster.jobmanager(0).start()?;
    let third = cluster.successor_of(&first).await?;
    ensure!(
        third.epoch > first.epoch + 1,
        "the second one never led: {first:?}, {third:?}"
    );
    // The client gets the stored answer.
    cluster.submit(&workload.submission).await?;
    workload.check_finished(&mut cluster).await?;
    let after = ended(&cluster.store_dump().await?.results);
    ensure!(
        before.len() == 1 && after == before,
        "{before:?}, {after:?}"
    );
    Ok(())
}
