//! Checks for what a change of the leader must not change: the attempt and the place of each task. Also
//! checks of the term records.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tanist_gateway::kinds;
use tanist_proto::id::JobId;

use crate::cluster::Cluster;
use crate::dump::items;
use crate::wait::wait_for;

/// Timeout until a new leader knows all tasks.
const KNOWN_BOUND: Duration = Duration::from_secs(30);
/// Timeout until the last term's record is written.
const HISTORY_BOUND: Duration = Duration::from_secs(10);

/// Attempt and host of each task of a job, by vertex and subtask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempts(BTreeMap<(String, u64), (u64, String)>);

impl Attempts {
    /// All deployed tasks of a job; `get` returns the body of a path of a JobManager.
    pub(crate) async fn read(
        job: JobId,
        mut get: impl AsyncFnMut(String) -> anyhow::Result<Value>,
    ) -> anyhow::Result<Attempts> {
        let view = get(format!("/v1/jobs/{job}")).await?;
        let mut attempts = BTreeMap::new();
        for vertex in view["vertices"].as_array().into_iter().flatten() {
            let (id, name) = (text(vertex, "id")?, text(vertex, "name")?);
            let body = get(format!("/v1/jobs/{job}/vertices/{id}")).await?;
            for subtask in body["subtasks"].as_array().into_iter().flatten() {
                // While a leader waits for reports, it does not know where a task is.
                if let ("RUNNING" | "FINISHED", Some(number), Some(attempt)) = (
                    text(subtask, "status")?,
                    subtask["subtask"].as_u64(),
                    subtask["attempt"].as_u64(),
                ) {
                    let host = text(subtask, "host")?.to_owned();
                    attempts.insert((name.to_owned(), number), (attempt, host));
                }
            }
        }
        Ok(Attempts(attempts))
    }

    /// Number of tasks that have another attempt or place in `later`. Tasks that `later` does not know are ignored.
    pub fn changed(&self, later: &Attempts) -> usize {
        let is_other = |(task, before): &(&_, &_)| {
            let after = later.0.get(*task);
            after.is_some_and(|after| after != *before)
        };
        self.0.iter().filter(is_other).count()
    }

    /// The tasks of the vertices with such a name.
    #[must_use]
    pub fn of_vertices(&self, is_meant: impl Fn(&str) -> bool) -> Attempts {
        let tasks = self.0.iter();
        let meant = tasks.filter(|((vertex, _), _)| is_meant(vertex));
        Attempts(meant.map(|(task, at)| (task.clone(), at.clone())).collect())
    }

    /// The highest number of an attempt; that of a task that never restarted is 1.
    pub fn highest(&self) -> u64 {
        let attempts = self.0.values().map(|(attempt, _)| *attempt);
        attempts.max().unwrap_or(0)
    }

    /// Number of tasks.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns an error if a task of `later` has another attempt or place. Tasks that `later` does not
    /// know are ignored.
    fn check_none_changed(&self, later: &Attempts) -> anyhow::Result<()> {
        for (task, before) in &self.0 {
            if let Some(after) = later.0.get(task)
                && after != before
            {
                let (vertex, subtask) = task;
                bail!("{vertex} ({subtask}) was attempt and host {before:?} and is {after:?}");
            }
        }
        Ok(())
    }
}

impl Cluster {
    /// All deployed tasks of a job.
    pub async fn attempts(&mut self, job: JobId) -> anyhow::Result<Attempts> {
        Attempts::read(job, async |path| self.get(&path).await).await
    }

    /// Waits until the leader knows all tasks of `before`; fails at once if one of them has another attempt.
    pub async fn check_untouched(&mut self, job: JobId, before: &Attempts) -> anyhow::Result<()> {
        let looked = wait_for("all tasks to be known", KNOWN_BOUND, async || {
            let after = self.attempts(job).await?;
            if let Err(changed) = before.check_none_changed(&after) {
                return Ok(Err(changed));
            }
            ensure!(
                after.0.len() >= before.0.len(),
                "only {after:?} of {before:?}"
            );
            anyhow::Ok(Ok(()))
        });
        looked.await?
    }

    /// The index of the TaskManager that runs subtask 0 of a vertex, and the attempt.
    pub async fn place_of(&mut self, job: JobId, vertex: &str) -> anyhow::Result<(usize, u64)> {
        let view = self.job(job).await?;
        let mut vertices = view.0["vertices"].as_array().into_iter().flatten();
        let found = vertices.find(|it| it["name"] == vertex);
        let id = text(
            found.with_context(|| format!("no {vertex} in {}", view.0))?,
            "id",
        )?;
        let body = self.get(&format!("/v1/jobs/{job}/vertices/{id}")).await?;
        let subtask = &body["subtasks"][0];
        let index = text(subtask, "taskmanager-id")?
            .strip_prefix("tm-")
            .and_then(|index| index.parse().ok());
        let index = index.with_context(|| format!("it is nowhere: {subtask}"))?;
        let attempt = subtask["attempt"].as_u64().context("no attempt")?;
        Ok((index, attempt))
    }

    /// The records of all terms, ordered by epoch, as soon as the last one is that of `epoch`.
    pub async fn terms_up_to(&self, epoch: u64) -> anyhow::Result<Vec<Value>> {
        let records = self.records().await?;
        let what = format!("the record of epoch {epoch}");
        wait_for(&what, HISTORY_BOUND, async || {
            let history = items(&*records, kinds::HISTORY).await?;
            let terms: Vec<Value> = history
                .iter()
                .map(|(_, value)| serde_json::from_slice(value))
                .collect::<Result<_, _>>()?;
            let last = terms.last().and_then(|term| term["epoch"].as_u64());
            ensure!(last == Some(epoch), "{terms:?}");
            anyhow::Ok(terms)
        })
        .await
    }
}

fn text<'a>(value: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    let text = value[field].as_str();
    text.with_context(|| format!("no {field} in {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(tasks: &[(&str, u64)]) -> Attempts {
        let task = |(vertex, attempt): &(&str, u64)| {
            (((*vertex).to_owned(), 0), (*attempt, "host".to_owned()))
        };
        Attempts(tasks.iter().map(task).collect())
    }

    #[test]
    fn another_attempt_is_a_change_and_a_task_that_is_not_known_is_none() {
        let before = attempts(&[("source", 0), ("sink", 1)]);
        assert!(before.check_none_changed(&before).is_ok());
        assert!(before.check_none_changed(&attempts(&[("sink", 1)])).is_ok());
        let changed = before.check_none_changed(&attempts(&[("sink", 2)]));
        let text = changed.expect_err("it changed").to_string();
        assert!(text.contains("sink"), "{text}");
    }
}
