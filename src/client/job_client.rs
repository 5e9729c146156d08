//! Requests about jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Method;
use prost::Message as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::watch;

use super::drains::{DrainOptions, Drained};
use super::error::ClientError;
use super::model::{
    JobEventInfo, JobExceptionInfo, JobInfo, JobSummary, QuarantinedJob, TaskManagerList,
    TaskManagerSummary, VertexSubtasks, status_of,
};
use super::rest_client::{Answer, Request, RestClient};

/// First delay between two checks of a job that is waited for. Doubles up to [`LONGEST_PAUSE`], so that the end
/// of a short job is seen at once.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// An accepted submission: the job is in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// Id of the job.
    pub job: JobId,
    /// An earlier try of the same submission was accepted already.
    pub repeated: bool,
}

#[derive(Debug, Deserialize)]
struct SubmittedBody {
    jobid: JobId,
    #[serde(default)]
    repeated: bool,
}

#[derive(Debug, Deserialize)]
struct StatusBody {
    status: String,
}

#[derive(Debug, Deserialize)]
struct JobsBody {
    jobs: Vec<JobSummary>,
}

#[derive(Debug, Deserialize)]
struct QuarantineBody {
    jobs: Vec<QuarantinedJob>,
}

#[derive(Debug, Deserialize)]
struct EventsBody {
    events: Vec<JobEventInfo>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExceptionsBody {
    exception_history: ExceptionHistory,
}

#[derive(Debug, Deserialize)]
struct ExceptionHistory {
    entries: Vec<JobExceptionInfo>,
}

/// Submits, watches and cancels jobs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobClient {
    rest: RestClient,
    /// Maximum size, in bytes, of a file that is fetched for a job.
    most_artifacts: u64,
    /// A submission has been sent.
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

    /// Receives what a request waits for; see [`RestClient::waits`].
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
        // The time for uploads does not count for the submission.
        let graph = self.with_uploads(graph).await?;
        let request = Request {
            method: Method::POST,
            path: "/v1/jobs".to_owned(),
            headers: vec![
                ("content-type", "application/x-protobuf".to_owned()),
                ("idempotency-key", token.to_owned()),
            ],
            body: graph.encode_to_vec().into(),
        };
        let answer = self.send_with_deadline(&request).await?;
        let body: SubmittedBody = parse(&request, &answer)?;
        Ok(Submitted {
            job: body.jobid,
            repeated: body.repeated,
        })
    }

    /// Returns the job's status.
    pub async fn status(&self, job: JobId) -> Result<pb::JobStatus, ClientError> {
        let request = Request::get(format!("/v1/jobs/{job}/status"));
        let answer = self.rest.send(&request).await?;
        let body: StatusBody = parse(&request, &answer)?;
        let unknown = || ClientError::BadAnswer {
            address: answer.address.clone(),
            path: request.path.clone(),
            reason: format!("there is no job status {}", body.status),
        };
        status_of(&body.status).ok_or_else(unknown)
    }

    /// Returns details of the job.
    pub async fn info(&self, job: JobId) -> Result<JobInfo, ClientError> {
        self.ask(&Request::get(format!("/v1/jobs/{job}"))).await
    }

    /// Lists all jobs that the cluster knows.
    pub async fn list(&self) -> Result<Vec<JobSummary>, ClientError> {
        let body: JobsBody = self.ask(&Request::get("/v1/jobs/overview")).await?;
        Ok(body.jobs)
    }

    /// Lists the registered TaskManagers.
    pub async fn task_managers(&self) -> Result<Vec<TaskManagerSummary>, ClientError> {
        Ok(self.task_manager_list().await?.registered)
    }

    /// The same, with drains that match none of them.
    pub async fn task_manager_list(&self) -> Result<TaskManagerList, ClientError> {
        self.ask(&Request::get("/v1/taskmanagers")).await
    }

    /// Requests the cancellation of the job. An acknowledged request is durable, but the job ends later.
    pub async fn cancel(&self, job: JobId) -> Result<(), ClientError> {
        let request = Request {
            method: Method::PATCH,
            ..Request::get(format!("/v1/jobs/{job}?mode=cancel"))
        };
        self.rest.send(&request).await.map(drop)
    }

    /// Requests a stop of the job: its sources end, and it finishes with what they have read. An acknowledged
    /// request is durable, but the job ends later.
    pub async fn stop(&self, job: JobId) -> Result<(), ClientError> {
        let request = Request {
            method: Method::POST,
            ..Request::get(format!("/v1/jobs/{job}/stop"))
        };
        self.rest.send(&request).await.map(drop)
    }

    /// Retries a quarantined job.
    pub async fn retry_quarantined(&self, job: JobId) -> Result<(), ClientError> {
        let request = Request {
            method: Method::POST,
            ..Request::get(format!("/v1/jobs/{job}/quarantine/retry"))
        };
        self.rest.send(&request).await.map(drop)
    }

    /// Cancels a quarantined job.
    pub async fn delete_quarantined(&self, job: JobId) -> Result<(), ClientError> {
        let request = Request {
            method: Method::DELETE,
            ..Request::get(format!("/v1/jobs/{job}/quarantine"))
        };
        self.rest.send(&request).await.map(drop)
    }

    /// Lists the quarantined jobs.
    pub async fn quarantined(&self) -> Result<Vec<QuarantinedJob>, ClientError> {
        let body: QuarantineBody = self.ask(&Request::get("/v1/jobs/quarantine")).await?;
        Ok(body.jobs)
    }

    /// Drains a TaskManager, or all of a host: they give no slots to jobs any more.
    pub async fn drain(&self, what: &Drained, how: &DrainOptions) -> Result<(), ClientError> {
        let body = serde_json::to_vec(how).expect("flags and texts are always JSON");
        self.post(format!("{}/drain", what.path()), body).await
    }

    /// Ends a drain: slots are given to jobs again.
    pub async fn undrain(&self, what: &Drained) -> Result<(), ClientError> {
        self.post(format!("{}/undrain", what.path()), Vec::new())
            .await
    }

    async fn post(&self, path: String, body: Vec<u8>) -> Result<(), ClientError> {
        let request = Request {
            method: Method::POST,
            body: body.into(),
            ..Request::get(path)
        };
        self.rest.send(&request).await.map(drop)
    }

    /// Returns the job's latest failure, if any, as `task: cause`.
    pub async fn last_failure(&self, job: JobId) -> Result<Option<String>, ClientError> {
        let path = format!("/v1/jobs/{job}/exceptions?maxExceptions=1");
        let body: ExceptionsBody = self.ask(&Request::get(path)).await?;
        let newest = body.exception_history.entries.into_iter().next();
        Ok(newest.map(|entry| match entry.task_name {
            Some(task) => format!("{task}: {}", entry.stacktrace),
            None => entry.stacktrace,
        }))
    }

    /// Returns all recorded failures of the job, newest first.
    pub async fn exceptions(&self, job: JobId) -> Result<Vec<JobExceptionInfo>, ClientError> {
        let request = Request::get(JobClient::path_of_exceptions(job));
        let body: ExceptionsBody = self.ask(&request).await?;
        Ok(body.exception_history.entries)
    }

    /// Path of all recorded failures of a job: without the parameter the server returns fewer.
    pub(crate) fn path_of_exceptions(job: JobId) -> String {
        format!("/v1/jobs/{job}/exceptions?maxExceptions={}", u32::MAX)
    }

    /// Returns a vertex of the job with its subtasks.
    pub async fn subtasks(&self, job: JobId, vertex: &str) -> Result<VertexSubtasks, ClientError> {
        let path = format!("/v1/jobs/{job}/vertices/{vertex}");
        self.ask(&Request::get(path)).await
    }

    /// Returns the events of the job, newest first; also state changes of its tasks, if wanted.
    pub async fn events(&self, job: JobId, tasks: bool) -> Result<Vec<JobEventInfo>, ClientError> {
        let request = Request::get(JobClient::path_of_events(job, tasks));
        let body: EventsBody = self.ask(&request).await?;
        Ok(body.events)
    }

    /// Path of the events of a job, with or without state changes of its tasks.
    pub(crate) fn path_of_events(job: JobId, tasks: bool) -> String {
        format!("/v1/jobs/{job}/events?tasks={tasks}")
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

    /// Returns the body of an answer as JSON.
    pub async fn raw(&self, path: &str) -> Result<serde_json::Value, ClientError> {
        self.ask(&Request::get(path)).await
    }

    pub(super) async fn ask<T: DeserializeOwned>(
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
