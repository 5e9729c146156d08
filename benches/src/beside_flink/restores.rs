//! Times of a restore after the loss of a worker, of a stop with a savepoint, and of the start from that savepoint.
//! Both systems answer the same REST paths.

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{RATE, SOON, System, Timeouts, run_endless, until_all_run, until_finished, until_soon};
use crate::BenchOptions;
use crate::host::milliseconds;
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::all_subtasks_run;

/// The figures of one system.
pub(super) struct Restores {
    restored: Figure,
    stopped: Figure,
    started: Figure,
}

impl Restores {
    pub(super) fn of<S: System>() -> Restores {
        let figure = |what: &str| Figure::new(format!("{}: {what}", S::NAME), Unit::Milliseconds);
        Restores {
            restored: figure("worker SIGKILL -> restored, all RUNNING, short timeouts"),
            stopped: figure("stop with a savepoint -> it is complete"),
            started: figure("start from a savepoint -> all RUNNING"),
        }
    }

    /// Two workers, of which one has all tasks and is killed; then a stop with a savepoint, and a start from it.
    pub(super) async fn take<S: System>(
        &mut self,
        options: &BenchOptions,
        zookeeper: &str,
    ) -> anyhow::Result<()> {
        eprintln!("{}, restores ...", S::NAME);
        let mut cluster = S::prepare(options, Timeouts::Short, zookeeper).await?;
        cluster.start_leader().await?;
        cluster.start_the_rest().await?;
        run_endless(&mut cluster).await?;
        cluster.start_spare_worker().await?;
        let before = checkpoints(&cluster).await?;
        let killed = Instant::now();
        cluster.kill_worker()?;
        until_soon("the job to be restored and to run", async || {
            let now = checkpoints(&cluster).await?;
            let at = |body: &Value| body["latest"]["restored"]["restore_timestamp"].clone();
            ensure!(at(&now) != at(&before), "it has not been restored");
            let body = cluster.get_of_job("").await?;
            ensure!(all_subtasks_run(&body), "{body}");
            Ok(())
        })
        .await?;
        self.restored.push(milliseconds(killed.elapsed()));
        until_soon("a checkpoint after the restore", async || {
            let now = checkpoints(&cluster).await?;
            let number = |body: &Value| body["latest"]["completed"]["id"].as_u64();
            ensure!(number(&now) > number(&before), "{now}");
            Ok(())
        })
        .await?;

        let directory = cluster.savepoints();
        let body = json!({ "targetDirectory": directory, "drain": false });
        let asked = Instant::now();
        let answer = cluster.post_of_job("/stop", &body).await?;
        let request = answer["request-id"].as_str().context("a request")?;
        let path = format!("/savepoints/{request}");
        let savepoint = until_soon("the savepoint", async || {
            let body = cluster.get_of_job(&path).await?;
            let location = body["operation"]["location"].as_str();
            location
                .map(str::to_owned)
                .with_context(|| body.to_string())
        })
        .await?;
        self.stopped.push(milliseconds(asked.elapsed()));
        until_finished(&cluster, SOON).await?;

        let asked = Instant::now();
        cluster.submit_endless(RATE, Some(&savepoint)).await?;
        until_all_run(&cluster).await?;
        self.started.push(milliseconds(asked.elapsed()));
        let body = checkpoints(&cluster).await?;
        let is_from_it = body["latest"]["restored"]["is_savepoint"] == true;
        ensure!(is_from_it, "it did not start from the savepoint: {body}");
        cluster.end();
        Ok(())
    }

    pub(super) fn all(self) -> [Figure; 3] {
        [self.restored, self.stopped, self.started]
    }
}

async fn checkpoints<S: System>(cluster: &S) -> anyhow::Result<Value> {
    let body = cluster.get_of_job("/checkpoints").await?;
    let completed = body["counts"]["completed"].as_u64();
    completed.with_context(|| body.to_string())?;
    Ok(body)
}
