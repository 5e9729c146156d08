//! Jobs from the view of a client: submitted with the program, observed over REST.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;
use tanist_proto::id::JobId;

use crate::cli::{Cli, CliOutput};
use crate::cluster::Cluster;
use crate::wait::wait_for;

/// Timeout until a job reaches the expected state, including takeovers and restarts.
const JOB_BOUND: Duration = Duration::from_secs(90);

/// A job to submit. Submitting the same values again repeats the submission.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The job id, chosen here.
    pub job: JobId,
    /// The job file.
    pub file: PathBuf,
    /// Its parameters.
    pub parameters: Vec<(String, String)>,
    /// Further arguments of the client.
    pub arguments: Vec<String>,
}

impl Submission {
    /// A submission of that file, with a new job id.
    pub fn new(file: impl Into<PathBuf>) -> Submission {
        Submission {
            job: JobId::random(),
            file: file.into(),
            parameters: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// Adds arguments of the client.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Submission {
        let arguments = arguments.iter().map(|it| (*it).to_owned());
        self.arguments.extend(arguments);
        self
    }

    /// Sets a parameter.
    #[must_use]
    pub fn parameter(mut self, name: &str, value: impl ToString) -> Submission {
        self.parameters.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets a parameter to a path.
    #[must_use]
    pub fn path(self, name: &str, value: &Path) -> Submission {
        let value = value.to_string_lossy().into_owned();
        self.parameter(name, value)
    }

    /// Submits the job through the JobManager at `address`; returns when the client ends.
    pub async fn submit(&self, cli: &Cli, address: &str) -> anyhow::Result<CliOutput> {
        let arguments = self.detached_arguments(address);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        cli.run(&arguments).await
    }

    /// The arguments of a client that waits for the job. The caller adds the options that select the cluster.
    pub fn attached_arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "run".to_owned(),
            "--job-id".to_owned(),
            self.job.to_string(),
        ];
        for (name, value) in &self.parameters {
            arguments.extend(["--param".to_owned(), format!("{name}={value}")]);
        }
        arguments.extend(self.arguments.iter().cloned());
        arguments.push(self.file.to_string_lossy().into_owned());
        arguments
    }

    fn detached_arguments(&self, address: &str) -> Vec<String> {
        let mut arguments = self.attached_arguments();
        arguments.extend(["--detached", "--address", address].map(str::to_owned));
        arguments
    }
}

/// The body of `/v1/jobs/:id`.
#[derive(Debug, Clone)]
pub struct JobView(pub Value);

impl JobView {
    /// Its state: `RUNNING`, `FINISHED` and so on.
    pub fn state(&self) -> &str {
        self.0["state"].as_str().unwrap_or("?")
    }

    /// Whether the state is terminal.
    pub fn is_over(&self) -> bool {
        matches!(self.state(), "FINISHED" | "CANCELED" | "FAILED")
    }

    /// Whether the vertex with that name is running.
    pub fn runs(&self, vertex: &str) -> bool {
        let mut vertices = self.0["vertices"].as_array().into_iter().flatten();
        vertices.any(|found| found["name"] == vertex && found["status"] == "RUNNING")
    }

    /// Whether the job is running, and every task of it is running or has finished.
    pub fn all_tasks_run(&self) -> bool {
        let is_deployed = |vertex: &Value| {
            let tasks = &vertex["tasks"];
            let deployed = [&tasks["RUNNING"], &tasks["FINISHED"]];
            let deployed: u64 = deployed.iter().filter_map(|count| count.as_u64()).sum();
            Some(deployed) == vertex["parallelism"].as_u64()
        };
        let vertices = self.0["vertices"].as_array();
        self.state() == "RUNNING"
            && vertices
                .is_some_and(|vertices| !vertices.is_empty() && vertices.iter().all(is_deployed))
    }

    /// Number of tasks.
    pub fn tasks(&self) -> u64 {
        let vertices = self.0["vertices"].as_array().into_iter().flatten();
        vertices
            .filter_map(|vertex| vertex["parallelism"].as_u64())
            .sum()
    }

    /// Number of records that the vertex whose name begins with `vertex` has sent to others.
    pub fn records_sent(&self, vertex: &str) -> u64 {
        let vertices = self.0["vertices"].as_array().into_iter().flatten();
        let begins = |found: &&Value| {
            let name = found["name"].as_str();
            name.is_some_and(|name| name.starts_with(vertex))
        };
        vertices
            .filter(begins)
            .filter_map(|found| found["metrics"]["write-records"].as_u64())
            .sum()
    }

    /// Whether the job is running, every task of it is running or has finished, and no vertex has finished. The status
    /// of a vertex does not say it alone: it is RUNNING while another subtask is still being deployed.
    pub fn all_vertices_run(&self) -> bool {
        let mut vertices = self.0["vertices"].as_array().into_iter().flatten();
        self.all_tasks_run() && vertices.all(|vertex| vertex["status"] == "RUNNING")
    }
}

impl Cluster {
    /// Submits a job through the JobManager at `address`.
    pub async fn submit_through(
        &self,
        address: &str,
        submission: &Submission,
    ) -> anyhow::Result<CliOutput> {
        submission.submit(self.cli(), address).await
    }

    /// Submits a job through the leader; the submission is acknowledged when this returns.
    pub async fn submit(&mut self, submission: &Submission) -> anyhow::Result<JobId> {
        let leader = self.leader().await?;
        let said = self
            .submit_through(&leader.rest, submission)
            .await?
            .success()?;
        ensure!(
            said.contains(&submission.job.to_string()),
            "it does not say the job's id: {said:?}"
        );
        Ok(submission.job)
    }

    /// The current state of a job.
    pub async fn job(&mut self, job: JobId) -> anyhow::Result<JobView> {
        Ok(JobView(self.get(&format!("/v1/jobs/{job}")).await?))
    }

    /// Waits until a job satisfies the condition; fails at once if it has ended without that.
    pub async fn wait_for_job(
        &mut self,
        job: JobId,
        what: &str,
        mut wanted: impl FnMut(&JobView) -> bool,
    ) -> anyhow::Result<JobView> {
        let what = format!("job {job} {what}");
        let found = wait_for(&what, JOB_BOUND, async || {
            let view = self.job(job).await?;
            if wanted(&view) {
                return Ok(Ok(view));
            }
            if view.is_over() {
                return Ok(Err(view));
            }
            anyhow::bail!("{}", view.0)
        })
        .await?;
        match found {
            Ok(view) => Ok(view),
            Err(view) => {
                let path = format!("/v1/jobs/{job}/exceptions");
                let exceptions = self
                    .get(&path)
                    .await
                    .unwrap_or_else(|error| error.to_string().into());
                anyhow::bail!(
                    "waited for {what}, and it is over: {}; exceptions: {exceptions}",
                    view.0
                )
            }
        }
    }

    /// Waits until a job is in `state`.
    pub async fn wait_for_state(&mut self, job: JobId, state: &str) -> anyhow::Result<JobView> {
        self.wait_for_job(job, &format!("to be {state}"), |view| view.state() == state)
            .await
    }

    /// Waits until every task of a job is running or has finished.
    pub async fn wait_until_running_or_finished(&mut self, job: JobId) -> anyhow::Result<JobView> {
        self.wait_for_job(job, "to run", JobView::all_tasks_run)
            .await
    }

    /// Waits until all tasks of a job are running.
    pub async fn wait_until_running(&mut self, job: JobId) -> anyhow::Result<JobView> {
        self.wait_for_job(job, "to run with all its tasks", JobView::all_vertices_run)
            .await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(state: &str, running: u64) -> JobView {
        JobView(json!({"state": state, "vertices": [
            {"name": "lines -> words", "parallelism": 2, "tasks": {"RUNNING": running, "FINISHED": 1},
             "metrics": {"write-records": 7}},
            {"name": "counts", "parallelism": 1, "tasks": {"RUNNING": 1, "FINISHED": 0},
             "metrics": {"write-records": 5}},
        ]}))
    }

    #[test]
    fn all_tasks_run_if_each_is_running_or_has_finished() {
        assert!(view("RUNNING", 1).all_tasks_run());
        assert!(!view("RUNNING", 0).all_tasks_run());
        assert!(!view("FAILING", 1).all_tasks_run());
        assert!(!JobView(json!({"state": "RUNNING", "vertices": []})).all_tasks_run());
    }

    #[test]
    fn all_vertices_run_if_none_is_being_deployed_or_has_finished() {
        let with_status = |view: JobView, status: &str| {
            let mut body = view.0;
            for at in 0..2 {
                body["vertices"][at]["status"] = json!("RUNNING");
            }
            body["vertices"][1]["status"] = json!(status);
            JobView(body)
        };
        assert!(with_status(view("RUNNING", 1), "RUNNING").all_vertices_run());
        assert!(!with_status(view("RUNNING", 0), "RUNNING").all_vertices_run());
        assert!(!with_status(view("RUNNING", 1), "FINISHED").all_vertices_run());
        assert!(!JobView(json!({"state": "RUNNING", "vertices": []})).all_vertices_run());
    }

    #[test]
    fn tasks_and_records_are_counted() {
        let view = view("RUNNING", 1);
        assert_eq!(view.tasks(), 3);
        assert_eq!(view.records_sent("lines"), 7);
        assert_eq!(view.records_sent("nothing"), 0);
    }
}
