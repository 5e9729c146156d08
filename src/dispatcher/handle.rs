//! The Dispatcher's handle: a [`DispatcherGateway`] in the same process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use prost::Message as _;
use tanist_gateway::blobs::BlobFetcher;
use tanist_gateway::{DispatcherGateway, GatewayError, GatewayResult, JobMasterGateway};
use tanist_ha::ask::{Unanswered, ask};
use tanist_model::{artifact, check_paths, has_expressions};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::core::{
    self, Deadline, GatewayRequest, Refuse, Replies, Submission, SubmissionKey, job_of,
};
use super::graph_checks::GraphChecks;
use super::term_clock::TermClock;

/// Encoded size, in bytes, from which a graph is checked on a thread of its own.
const LARGE: usize = 64 * 1024;

/// Channel for the answer to a command.
pub(super) type Reply<T> = oneshot::Sender<GatewayResult<T>>;

/// The channels of the callers in this process.
#[derive(Debug)]
pub(super) struct Channels;

impl Replies for Channels {
    type To<T: fmt::Debug> = Reply<T>;
}

pub(super) type Command = core::Command<Channels>;

/// Message to the actor.
#[derive(Debug)]
pub(super) enum Message {
    Command(Command),
    /// The term is over.
    Stop,
}

/// A cheap handle to a term's Dispatcher.
#[derive(Debug, Clone)]
pub struct DispatcherHandle {
    pub(super) commands: mpsc::Sender<Message>,
    /// Cancelled when all tasks of the Dispatcher have ended.
    pub(super) stopped: CancellationToken,
    /// See [`DispatcherOptions`](super::DispatcherOptions).
    pub(super) store_timeout: Duration,
    /// See [`DispatcherOptions`](super::DispatcherOptions).
    pub(super) max_uploaded: u64,
    pub(super) checks: GraphChecks,
    pub(super) blobs: BlobFetcher,
    pub(super) clock: TermClock,
}

impl Refuse<Channels> for Channels {
    fn refuse<T: fmt::Debug>(&mut self, reply: Reply<T>, error: GatewayError) {
        // The send fails only if the caller is gone; then no answer is needed.
        let _ = reply.send(Err(error));
    }
}

impl DispatcherHandle {
    pub(super) async fn ask<T: fmt::Debug>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> GatewayResult<T> {
        let message = |reply| Message::Command(command(reply));
        let answer = ask(&self.commands, message).await;
        answer.unwrap_or_else(|unanswered| {
            Err(match unanswered {
                Unanswered::NotSent => GatewayError::gone("the Dispatcher of this term"),
                // The request may have been written before the Dispatcher ended.
                Unanswered::Ended => {
                    GatewayError::Unknown("the Dispatcher of this term has stopped".to_owned())
                }
            })
        })
    }

    /// Reads the results of jobs that ended before this term, which must be confirmed. Returns when all are read.
    pub async fn read_results(&self) -> GatewayResult<()> {
        self.ask(|reply| Command::ReadResults { reply }).await
    }

    /// Sends a command that is answered once the store has it; limited by `store_timeout`.
    async fn write<T: fmt::Debug>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> GatewayResult<T> {
        let timeout = self.store_timeout;
        let answer = tokio::time::timeout(timeout, self.ask(command)).await;
        answer.unwrap_or_else(|_| {
            let text = format!("the store has not confirmed it within {timeout:?}");
            Err(GatewayError::Unknown(text))
        })
    }

    /// Sends a message of the gateway.
    async fn request<M: GatewayRequest<Channels>>(&self, message: M) -> GatewayResult<M::Answer> {
        let command = message.command()?;
        match M::IS_WRITTEN {
            true => self.write(command).await,
            false => self.ask(command).await,
        }
    }

    /// Returns the gateway of the job's JobMaster, for its TaskExecutors. `NotFound` if the job has ended or
    /// never existed.
    pub async fn job_master(&self, job: JobId) -> GatewayResult<Arc<dyn JobMasterGateway>> {
        self.ask(|reply| Command::JobMaster { job, reply }).await
    }

    /// Starts jobs that were recovered as suspects. Returns when their JobMasters run, or when it is known why not.
    pub async fn start_crash_suspects(&self, jobs: Vec<JobId>) -> GatewayResult<()> {
        self.ask(|reply| Command::StartCrashSuspects { jobs, reply })
            .await
    }

    /// Returns the JobMasters of several jobs, in order; `None` where [`DispatcherHandle::job_master`] would fail.
    pub async fn job_masters(
        &self,
        jobs: Vec<JobId>,
    ) -> GatewayResult<Vec<Option<Arc<dyn JobMasterGateway>>>> {
        self.ask(|reply| Command::JobMasters { jobs, reply }).await
    }

    /// Completes when the Dispatcher has processed the commands before this one.
    pub async fn turn(&self) -> GatewayResult<()> {
        self.ask(|reply| Command::Turn { reply }).await
    }

    /// Completes when the Dispatcher has ended. If its term still leads, the term must give up.
    pub async fn ended(&self) {
        self.commands.closed().await;
    }

    /// Stops it because the term is over; forgets all jobs. Returns when all its tasks have ended.
    pub async fn stop(&self) {
        // A closed mailbox means that it is already ending.
        let _ = self.commands.send(Message::Stop).await;
        self.stopped.cancelled().await;
    }
}

impl DispatcherHandle {
    /// Checks a submission, then sends it to the core.
    async fn submit(&self, request: pb::SubmitJobRequest) -> GatewayResult<pb::SubmitJobResponse> {
        let request = self.with_graph(request).await?;
        let graph = request.graph.as_ref();
        let (checks, max_uploaded) = (self.checks, self.max_uploaded);
        let submission = if graph.is_some_and(takes_time) {
            let checking =
                tokio::task::spawn_blocking(move || check(request, checks, max_uploaded));
            let failed =
                |error| GatewayError::Internal(format!("checking the graph failed: {error}"));
            checking.await.map_err(failed)??
        } else {
            check(request, checks, max_uploaded)?
        };
        let submission = Box::new(submission);
        self.write(|reply| Command::Submit { submission, reply })
            .await
    }

    /// Returns the submission with its graph. A graph that is only referred to is fetched from the JobManager
    /// that the client asked.
    async fn with_graph(
        &self,
        mut request: pb::SubmitJobRequest,
    ) -> GatewayResult<pb::SubmitJobRequest> {
        let Some(reference) = request.graph_reference.take() else {
            return Ok(request);
        };
        let fetched = self.blobs.fetch(&reference).await;
        let encoded = fetched.map_err(|error| match error {
            // The JobManager restarted or gave up: the client retries.
            GatewayError::NotFound(reason) => GatewayError::NotYet(reason),
            other => other,
        })?;
        let graph = tokio::task::spawn_blocking(move || pb::JobGraph::decode(encoded)).await;
        let invalid = |error: String| GatewayError::Invalid(format!("no job graph: {error}"));
        let graph = graph.map_err(|error| invalid(error.to_string()))?;
        request.graph = Some(graph.map_err(|error| invalid(error.to_string()))?);
        Ok(request)
    }
}

/// Whether checking and hashing a graph would block a runtime thread for too long.
fn takes_time(graph: &pb::JobGraph) -> bool {
    graph.encoded_len() > LARGE || has_expressions(graph)
}

/// Returns why this version and configuration refuse a graph as a job of its own. Others may have accepted it.
fn flaw(graph: &pb::JobGraph, checks: GraphChecks, max_uploaded: u64) -> Option<String> {
    if let Some(problem) = (checks.invalid)(graph).or_else(|| (checks.unknown_operators)(graph)) {
        return Some(problem);
    }
    if let Some(name) = artifact::not_uploaded(graph) {
        return Some(format!(
            "artifact `{name}` was not uploaded or fetched: `tanist run` does that"
        ));
    }
    let uploaded = artifact::uploaded_size(graph);
    if uploaded > max_uploaded {
        return Some(format!(
            "the job's files have {uploaded} bytes together, and {max_uploaded} are allowed (artifacts.max-size)"
        ));
    }
    check_paths(graph).err().map(|invalid| invalid.to_string())
}

/// Checks a submission. It is refused here only if it lacks a job id or a token. Any other problem is a flaw,
/// whose effect depends on whether the job was accepted before, perhaps by another version or under another
/// limit.
fn check(
    request: pb::SubmitJobRequest,
    checks: GraphChecks,
    max_uploaded: u64,
) -> GatewayResult<Submission> {
    if request.submission_token.is_empty() {
        let text = "the submission has no token: send the same one with every try";
        return Err(GatewayError::Invalid(text.to_owned()));
    }
    let deadline = Deadline::of(&request);
    let mut graph = request
        .graph
        .ok_or_else(|| GatewayError::Invalid("the submission has no job graph".to_owned()))?;
    let job = job_of(&graph.job_id)?;
    let flaw = flaw(&graph, checks, max_uploaded);
    let digest = artifact::digest(&graph);
    // Identifies the run: once this job's result is forgotten, the same id, token and graph may run again.
    graph.run = format!("{:016x}", rand::random::<u64>());
    let key = SubmissionKey {
        token: request.submission_token,
        digest,
    };
    Ok(Submission {
        job,
        graph,
        key,
        deadline,
        restore: request.restore,
        flaw,
    })
}

/// Implements the gateway: each method is a request to the core, but a submission, whose graph is checked before, and
/// the clock, which needs no decision.
macro_rules! requests {
    (
        $(#[$submit_doc:meta])* SubmitJob submit_job(SubmitJobRequest) -> SubmitJobResponse;
        $(#[$time_doc:meta])* TellTermTime tell_term_time(TermTimeRequest) -> TermTime;
        $($(#[$method_doc:meta])* $variant:ident $method:ident($request:ident) -> $answer:ident;)*
    ) => {
        #[async_trait]
        impl DispatcherGateway for DispatcherHandle {
            async fn submit_job(
                &self,
                request: pb::SubmitJobRequest,
            ) -> GatewayResult<pb::SubmitJobResponse> {
                self.submit(request).await
            }

            async fn tell_term_time(&self, _: pb::TermTimeRequest) -> GatewayResult<pb::TermTime> {
                Ok(self.clock.tell())
            }

            $(async fn $method(&self, request: pb::$request) -> GatewayResult<pb::$answer> {
                self.request(request).await
            })*
        }
    };
}

tanist_proto::dispatcher_methods! { requests! {} }
