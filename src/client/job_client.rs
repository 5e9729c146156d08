//! Requests to a cluster, about its jobs and TaskManagers. Those about savepoints, uploads and leadership are in the
//! files of these names.
//!
//! A client and its clones share the connections, and whether a submission was sent. Each request is retried until it
//! has an answer, or fails with a [`ClientError`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Method;
use prost::Message as _;
use serde::de::DeserializeOwned;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_rest_model::{
    CheckpointStatistics, DrainOptions, JobEventInfo, JobEvents, JobExceptionInfo, JobExceptions,
    JobInfo, JobList, JobStatusBody, JobSummary, QuarantineList, QuarantinedJob, StopRequest,
    Submitted, TaskManagerList, VertexSubtasks, headers, paths,
};
use tokio::sync::watch;

use super::drains::Drained;
use super::error::ClientError;
use super::rest_client::{Answer, Request, RestClient};
use super::restore::Restore;

/// First delay between two checks of a job that is waited for. Doubles up to [`LONGEST_PAUSE`], so that the end
/// of a short job is seen at once.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Submits, watches and cancels jobs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobClient {
    rest: RestClient,
    /// Maximum size, in bytes, of a file that is fetched for a job.
    most_artifacts: u64,
    /// Whether a submission was sent. It is set before the submission is sent, so that none is forgotten.
    has_submitted: Arc<AtomicBool>,
}

impl JobClient {
    /// Creates a client that sends requests through `rest`.
    pub fn new(rest: RestClient) -> JobClient {
        JobClient {
            rest,
            most_artifacts: 4 << 30,
            has_submitted: Arc::default(),
        }
    }

    /// Sets the maximum size, in bytes, of files fetched for a job (`artifacts.max-size`).
    #[must_use]
    pub fn fetching_at_most(self, bytes: u64) -> JobClient {
        JobClient {
            most_artifacts: bytes,
            ..self
        }
    }

    /// Receives what a request waits for: why no JobManager has answered for a while, or which other requests
    /// come first.
    pub fn waits(&self) -> watch::Receiver<Option<String>> {
        self.rest.waits()
    }

    /// Whether a JobManager may have received a submission from this client or a clone of it. If so, and
    /// without an answer, it is unknown whether the job was accepted; otherwise it was not.
    pub fn may_have_submitted(&self) -> bool {
        self.has_submitted.load(Ordering::Relaxed)
    }

    pub(super) fn note_submission(&self) {
        self.has_submitted.store(true, Ordering::Relaxed);
    }

    pub(super) fn most_artifacts(&self) -> u64 {
        self.most_artifacts
    }

    pub(super) fn rest(&self) -> &RestClient {
        &self.rest
    }

    /// Submits a job exactly once, with retries. Files that the graph only names are uploaded first.
    pub async fn submit(&self, graph: &pb::JobGraph) -> Result<Submitted, ClientError> {
        let token = format!("{:032x}", rand::random::<u128>());
        self.submit_as(graph, &token).await
    }

    /// Submits a job as the submission `token`: with the same job and token it takes effect once.
    pub async fn submit_as(
        &self,
        graph: &pb::JobGraph,
        token: &str,
    ) -> Result<Submitted, ClientError> {
        self.submit_from(graph, token, None).await
    }

    /// The same for a job that begins from a savepoint. Refused: the savepoint can't be read, or its state does not fit
    /// the job.
    pub async fn submit_from(
        &self,
        graph: &pb::JobGraph,
        token: &str,
        restore: Option<&Restore>,
    ) -> Result<Submitted, ClientError> {
        // The time for uploads does not count for the submission.
        let graph = self.with_uploads(graph).await?;
        let request = Request {
            method: Method::POST,
            headers: vec![
                ("content-type", "application/x-protobuf".to_owned()),
                (headers::IDEMPOTENCY_KEY, token.to_owned()),
            ],
            body: graph.encode_to_vec().into(),
            ..Request::get(&match restore {
                None => paths::JOBS.to_owned(),
                Some(restore) => format!("{}?{}", paths::JOBS, restore.query()),
            })
        };
        let answer = self.send_with_deadline(&request).await?;
        parse(&request, &answer)
    }

    /// Returns the job's status.
    pub async fn status(&self, job: JobId) -> Result<pb::JobStatus, ClientError> {
        let body: JobStatusBody = self
            .fetch_json(&Request::get(&paths::job_status(job)))
            .await?;
        Ok(body.status)
    }

    /// Returns details of the job.
    pub async fn info(&self, job: JobId) -> Result<JobInfo, ClientError> {
        self.fetch_json(&Request::get(&paths::job(job))).await
    }

    /// Lists all jobs that the cluster knows.
    pub async fn list(&self) -> Result<Vec<JobSummary>, ClientError> {
        let body: JobList = self.fetch_json(&Request::get(paths::JOBS_OVERVIEW)).await?;
        Ok(body.jobs)
    }

    /// Lists the TaskManagers, and drains that match none of them.
    pub async fn task_managers(&self) -> Result<TaskManagerList, ClientError> {
        self.fetch_json(&Request::get(paths::TASK_MANAGERS)).await
    }

    /// Requests the cancellation of the job. An acknowledged request is durable, but the job ends later.
    pub async fn cancel(&self, job: JobId) -> Result<(), ClientError> {
        let path = format!("{}?mode=cancel", paths::job(job));
        self.change(Method::PATCH, &path).await
    }

    /// Requests a stop of the job: its sources end, and it finishes with what they have read. An acknowledged
    /// request is durable, but the job ends later.
    pub async fn stop(&self, job: JobId) -> Result<(), ClientError> {
        // Without `drain` a cluster that has a directory for savepoints takes a savepoint.
        let body = StopRequest {
            drain: Some(true),
            ..StopRequest::default()
        };
        let request = Request::post(&paths::job_stop(job), &body);
        self.rest.send(&request).await.map(drop)
    }

    /// Retries a quarantined job.
    pub async fn retry_quarantined(&self, job: JobId) -> Result<(), ClientError> {
        let path = paths::job_quarantine_retry(job);
        self.change(Method::POST, &path).await
    }

    /// Retries a quarantined job from one of its retained checkpoints that is older than the newest. What the job has
    /// made visible since then may appear twice: without `accept_duplicates` that is refused.
    pub async fn retry_quarantined_from(
        &self,
        job: JobId,
        checkpoint: u64,
        accept_duplicates: bool,
    ) -> Result<(), ClientError> {
        let path = paths::job_quarantine_retry_from(job, checkpoint, accept_duplicates);
        self.change(Method::POST, &path).await
    }

    /// Cancels a quarantined job.
    pub async fn delete_quarantined(&self, job: JobId) -> Result<(), ClientError> {
        self.change(Method::DELETE, &paths::job_quarantine(job))
            .await
    }

    /// Lists the quarantined jobs.
    pub async fn quarantined(&self) -> Result<Vec<QuarantinedJob>, ClientError> {
        let body: QuarantineList = self
            .fetch_json(&Request::get(paths::QUARANTINED_JOBS))
            .await?;
        Ok(body.jobs)
    }

    /// Drains a TaskManager, or all of a host: they give no slots to jobs any more.
    pub async fn drain(&self, what: &Drained, how: &DrainOptions) -> Result<(), ClientError> {
        let request = Request::post(&paths::drain(&what.path()), how);
        self.rest.send(&request).await.map(drop)
    }

    /// Ends a drain: slots are given to jobs again.
    pub async fn undrain(&self, what: &Drained) -> Result<(), ClientError> {
        let path = paths::undrain(&what.path());
        self.change(Method::POST, &path).await
    }

    async fn change(&self, method: Method, path: &str) -> Result<(), ClientError> {
        let request = Request {
            method,
            ..Request::get(path)
        };
        self.rest.send(&request).await.map(drop)
    }

    /// Returns the job's latest failure, if any, as `task: cause`.
    pub async fn last_failure(&self, job: JobId) -> Result<Option<String>, ClientError> {
        let path = format!("{}?maxExceptions=1", paths::job_exceptions(job));
        let body: JobExceptions = self.fetch_json(&Request::get(&path)).await?;
        let newest = body.exception_history.entries.into_iter().next();
        Ok(newest.map(|entry| match entry.task_name {
            Some(task) => format!("{task}: {}", entry.stacktrace),
            None => entry.stacktrace,
        }))
    }

    /// Returns all recorded failures of the job, newest first.
    pub async fn exceptions(&self, job: JobId) -> Result<Vec<JobExceptionInfo>, ClientError> {
        let request = Request::get(&JobClient::path_of_exceptions(job));
        let body: JobExceptions = self.fetch_json(&request).await?;
        Ok(body.exception_history.entries)
    }

    /// Returns the checkpoints of the job. Refused if none are taken.
    pub async fn checkpoints(&self, job: JobId) -> Result<CheckpointStatistics, ClientError> {
        self.fetch_json(&Request::get(&paths::job_checkpoints(job)))
            .await
    }

    /// Path of all recorded failures of a job: without the parameter the server returns fewer.
    pub fn path_of_exceptions(job: JobId) -> String {
        format!("{}?maxExceptions={}", paths::job_exceptions(job), u32::MAX)
    }

    /// Returns a vertex of the job with its subtasks.
    pub async fn subtasks(&self, job: JobId, vertex: &str) -> Result<VertexSubtasks, ClientError> {
        self.fetch_json(&Request::get(&paths::vertex(job, vertex)))
            .await
    }

    /// Returns the events of the job, newest first; also state changes of its tasks, if wanted.
    pub async fn events(&self, job: JobId, tasks: bool) -> Result<Vec<JobEventInfo>, ClientError> {
        let request = Request::get(&JobClient::path_of_events(job, tasks));
        let body: JobEvents = self.fetch_json(&request).await?;
        Ok(body.events)
    }

    /// Path of the events of a job, with or without state changes of its tasks.
    pub fn path_of_events(job: JobId, tasks: bool) -> String {
        format!("{}?tasks={tasks}", paths::job_events(job))
    }

    /// Waits until the job has ended or is quarantined. Calls `seen` after each check.
    pub async fn wait_for_end(
        &self,
        job: JobId,
        mut seen: impl FnMut(&JobInfo),
    ) -> Result<JobInfo, ClientError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let info = self.info(job).await?;
            seen(&info);
            if info.has_ended() {
                return Ok(info);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns the body of an answer as JSON; `path` is one of the [`paths`].
    pub async fn raw(&self, path: &str) -> Result<serde_json::Value, ClientError> {
        self.fetch_json(&Request::get(path)).await
    }

    pub(super) async fn fetch_json<T: DeserializeOwned>(
        &self,
        request: &Request,
    ) -> Result<T, ClientError> {
        let answer = self.rest.send(request).await?;
        parse(request, &answer)
    }
}

pub(super) fn parse<T: DeserializeOwned>(
    request: &Request,
    answer: &Answer,
) -> Result<T, ClientError> {
    serde_json::from_slice(&answer.body).map_err(|error| ClientError::BadAnswer {
        address: answer.address.clone(),
        path: request.path.clone(),
        reason: error.to_string(),
    })
}
