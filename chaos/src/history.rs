//! The observed states of many jobs during faults, in order, and their invariant: a terminal state never changes.
//!
//! Every observation requests a consistent answer, and begins after the one before was answered: it never
//! shows an older state.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use tanist_proto::id::JobId;
use tokio::task::JoinHandle;

use crate::rest::RestClient;

/// The pause between two observations: each lists all jobs.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(200);

/// The observed states of jobs.
#[derive(Debug, Default)]
pub struct History {
    /// The first terminal state that was observed of each job.
    ends: BTreeMap<JobId, String>,
    /// Number of observations.
    observations: u64,
    /// Violations of the invariant.
    wrong: Vec<String>,
}

impl History {
    /// Records the observed state of a job.
    pub fn note(&mut self, job: JobId, state: &str) {
        match self.ends.get(&job) {
            Some(end) if end != state => {
                self.wrong.push(format!("{job} was {end}, and is {state}"));
            }
            Some(_) => {}
            None if is_terminal(state) => {
                self.ends.insert(job, state.to_owned());
            }
            None => {}
        }
    }

    /// The terminal state of a job, if one was observed.
    pub fn end_of(&self, job: JobId) -> Option<&str> {
        self.ends.get(&job).map(String::as_str)
    }

    /// Number of observations.
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// Returns an error with all violations.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.wrong.is_empty(), "{:?}", self.wrong);
        Ok(())
    }
}

/// Whether a state is terminal.
pub fn is_terminal(state: &str) -> bool {
    matches!(state, "FINISHED" | "CANCELED" | "FAILED")
}

/// Observes all jobs repeatedly, until it is dropped.
#[derive(Debug)]
pub struct Observer {
    history: Arc<Mutex<History>>,
    polling: JoinHandle<()>,
}

impl Observer {
    /// Asks these JobManagers in turn. One that does not answer is skipped.
    pub fn start(rest: RestClient, addresses: Vec<String>) -> Observer {
        let history = Arc::<Mutex<History>>::default();
        let noted = history.clone();
        let polling = tokio::spawn(async move {
            for address in addresses.iter().cycle() {
                let Ok(seen) = list_jobs(&rest, address).await else {
                    tokio::time::sleep(POLL_INTERVAL).await;
                    continue;
                };
                note_all(&noted, seen);
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        Observer { history, polling }
    }

    /// Reads the observations so far.
    pub fn with<T>(&self, read: impl FnOnce(&History) -> T) -> T {
        read(&self.history.lock())
    }
}

fn note_all(noted: &Mutex<History>, seen: Vec<(JobId, String)>) {
    let mut history = noted.lock();
    history.observations += 1;
    for (job, state) in seen {
        history.note(job, &state);
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.polling.abort();
    }
}

async fn list_jobs(rest: &RestClient, address: &str) -> anyhow::Result<Vec<(JobId, String)>> {
    let body = rest.get(address, "/v1/jobs?consistent=true").await?;
    let jobs = body["jobs"].as_array().context("no jobs")?;
    let read = |job: &serde_json::Value| {
        let (id, status) = (job["id"].as_str()?, job["status"].as_str()?);
        Some((id.parse().ok()?, status.to_owned()))
    };
    Ok(jobs.iter().filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_has_ended_stays_as_it_ended() {
        let (job, other) = (JobId::from_bits(1), JobId::from_bits(2));
        let mut history = History::default();
        for state in ["RUNNING", "RESTARTING", "FINISHED", "FINISHED"] {
            history.note(job, state);
        }
        history.note(other, "RUNNING");
        history.check().expect("nothing is wrong");
        assert_eq!(history.end_of(job), Some("FINISHED"));
        assert_eq!(history.end_of(other), None);
        history.note(job, "RUNNING");
        let error = history.check().expect_err("it runs again").to_string();
        assert!(error.contains("was FINISHED, and is RUNNING"), "{error}");
    }
}
