//! Waits over REST for a condition, with intervals far below the measured times.

use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use serde_json::Value;
use tanist_chaos::wait::wait_for_every;
use tanist_proto::id::JobId;

use crate::http::Http;

/// Interval of checks: figures are late by at most this, plus one answer.
pub(crate) const INTERVAL: Duration = Duration::from_millis(1);
/// Timeout of all waits: enough for a default session, a large recovery, a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(180);

/// Waits until `poll` succeeds.
pub async fn until<T>(
    what: &str,
    poll: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    wait_for_every(INTERVAL, what, BOUND, poll).await
}

/// Waits until one of the JobManagers at these addresses leads with an epoch above `epoch`, and is confirmed;
/// returns which one. Each is asked only about itself, so that a JobManager without an answer delays nothing.
pub async fn until_led<'a>(
    http: &Http,
    addresses: &[&'a str],
    epoch: u64,
) -> anyhow::Result<&'a str> {
    until("a confirmed leader", async || {
        let mut last = anyhow!("no JobManager was asked");
        for address in addresses {
            match http.get(address, "/v1/ha/leader").await {
                Ok(leader) if leader["epoch"].as_u64() > Some(epoch) => return Ok(*address),
                Ok(leader) => last = anyhow!("still {leader}"),
                Err(error) => last = error,
            }
        }
        Err(last)
    })
    .await
}

/// Waits until the JobManager at `address` knows a confirmed leader of at least this epoch. All processes
/// should be healthy, because it asks them.
pub async fn until_known(http: &Http, address: &str, epoch: u64) -> anyhow::Result<()> {
    until("a JobManager to know the leader", async || {
        let status = http.get(address, "/v1/ha/status").await?;
        let found = status["leader"]["epoch"].as_u64();
        ensure!(found >= Some(epoch), "{status}");
        Ok(())
    })
    .await
}

/// Waits until every subtask of a job is running.
pub async fn until_running(http: &Http, address: &str, job: JobId) -> anyhow::Result<()> {
    let path = format!("/v1/jobs/{job}");
    until("all subtasks to run", async || {
        let body = http.get(address, &path).await?;
        ensure!(all_subtasks_run(&body), "{body}");
        Ok(())
    })
    .await
}

/// Waits until a job has finished; returns an error if it ends in another way.
pub async fn until_finished(http: &Http, address: &str, job: JobId) -> anyhow::Result<()> {
    let path = format!("/v1/jobs/{job}");
    let state = until("the end of the job", async || {
        let body = http.get(address, &path).await?;
        let state = body["state"].as_str().unwrap_or_default().to_owned();
        let over = matches!(state.as_str(), "FINISHED" | "FAILED" | "CANCELED");
        ensure!(over, "{state}");
        Ok(state)
    })
    .await?;
    ensure!(state == "FINISHED", "the job is {state}");
    Ok(())
}

/// Waits until this number of jobs is listed.
pub async fn until_listed(http: &Http, address: &str, count: usize) -> anyhow::Result<()> {
    until("all jobs to be listed", async || {
        let body = http.get(address, "/v1/jobs").await?;
        let found = body["jobs"].as_array().map_or(0, Vec::len);
        ensure!(found == count, "{found} of {count} jobs");
        Ok(())
    })
    .await
}

/// Waits until this number of jobs is running with all subtasks.
pub async fn until_all_run(http: &Http, address: &str, count: usize) -> anyhow::Result<()> {
    until("all jobs to run", async || {
        let body = http.get(address, "/v1/jobs/overview").await?;
        let jobs = body["jobs"].as_array().context("no jobs")?;
        let running = jobs.iter().filter(|job| {
            job["state"] == "RUNNING" && job["tasks"]["running"] == job["tasks"]["total"]
        });
        let running = running.count();
        ensure!(running == count, "{running} of {count} run");
        Ok(())
    })
    .await
}

/// Whether a job is running with all its subtasks, according to its description.
pub fn all_subtasks_run(job: &Value) -> bool {
    let vertices = job["vertices"].as_array();
    job["state"] == "RUNNING"
        && vertices.is_some_and(|vertices| {
            !vertices.is_empty()
                && vertices
                    .iter()
                    .all(|vertex| vertex["tasks"]["RUNNING"] == vertex["parallelism"])
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_runs_when_each_vertex_has_all_its_subtasks_running() {
        let job = |running: u64| {
            json!({"state": "RUNNING", "vertices": [
                {"parallelism": 2, "tasks": {"RUNNING": 2}},
                {"parallelism": 2, "tasks": {"RUNNING": running}},
            ]})
        };
        assert!(all_subtasks_run(&job(2)));
        assert!(!all_subtasks_run(&job(1)));
        assert!(!all_subtasks_run(
            &json!({"state": "RUNNING", "vertices": []})
        ));
    }
}
