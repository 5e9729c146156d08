//! Runs the core's effects: writes and reads of the store, calls to JobMasters, timers. Each that waits is a task,
//! whose outcome comes back as an event. `answers.rs` has the answers that wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use tanist_gateway::persistence::JobStateStore as _;
use tanist_gateway::{GatewayError, GatewayResult, JobMasterControl};
use tanist_ha::failpoint::failpoint;
use tanist_ha::store::cache::Records;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::task::{JoinError, JoinSet};
use tracing::warn;

use super::actor::DispatcherContext;
use super::core::{self, ReadNumber, Submission};
use super::descriptions::Dropped;
use super::handle::{Channels, Command, Reply};
use super::job_store::{JobStoreError, Retained, fits};
use super::{broken_job_masters, read_barrier};

pub(super) type Event = core::Event<Channels>;
pub(super) type Effect = core::Effect<Channels>;

/// Number of waiting jobs that are read at the same time.
const READ_AT_ONCE: usize = 16;
/// Pause after some results could not be removed.
const NEXT_TRY: Duration = Duration::from_secs(60);

/// The tasks of one term, and the JobMasters that it has started.
pub(super) struct Calls {
    context: DispatcherContext,
    tasks: JoinSet<Option<Event>>,
    job_masters: BTreeMap<JobId, Arc<dyn JobMasterControl>>,
    /// Records of results, until they are read.
    kept: Records,
}

impl Calls {
    pub(super) fn new(context: DispatcherContext, kept: Records) -> Calls {
        Calls {
            context,
            tasks: JoinSet::new(),
            job_masters: BTreeMap::new(),
            kept,
        }
    }

    pub(super) fn context(&self) -> &DispatcherContext {
        &self.context
    }

    /// Waits for the next event. Never ends while there is no task. An event is lost if its task panicked.
    pub(super) async fn next(&mut self) -> Result<Event, JoinError> {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Some(event))) => return Ok(event),
                Some(Ok(None)) => {}
                Some(Err(failure)) => return Err(failure),
                None => std::future::pending().await,
            }
        }
    }

    /// Ends all tasks and JobMasters. Only forgets the jobs; no client is informed.
    pub(super) async fn stop(mut self) {
        self.tasks.abort_all();
        // The JobMasters are stopped before any task is awaited.
        let job_masters = self.job_masters.into_values();
        join_all(job_masters.map(|control| async move { control.stop().await })).await;
        self.tasks.shutdown().await;
    }

    /// Starts an effect.
    pub(super) fn run(&mut self, effect: Effect) {
        match effect {
            // A send fails only if the caller is gone; then no answer is needed.
            Effect::AnswerSubmission { reply, answer } => drop(reply.send(answer)),
            Effect::Acknowledge { reply, answer } => {
                drop(reply.send(answer.map(|()| pb::Ack {})));
            }
            Effect::AnswerDone { reply } => drop(reply.send(Ok(()))),
            Effect::Refuse { command, error } => Command::refuse(command, error),
            Effect::AnswerJobMaster { reply, answer } => {
                let job_master = answer.and_then(|job| started(job, self.job_master(job)));
                drop(reply.send(job_master.map(|control| control.gateway())));
            }
            Effect::AnswerJobMasters { reply, jobs } => {
                let gateway = |job| Some(self.job_master(job?)?.gateway());
                drop(reply.send(Ok(jobs.into_iter().map(gateway).collect())));
            }
            Effect::Describe { reply, described } => self.describe(reply, described),
            Effect::List { reply, jobs } => self.list(reply, jobs),
            Effect::AnswerList { reply, jobs, as_of } => self.answer_list(reply, jobs, as_of),
            Effect::AnswerOverview { reply, jobs } => self.answer_overview(reply, *jobs),
            Effect::ListTaskManagers { reply } => self.list_task_managers(reply),
            Effect::DrainTaskManager { request, reply } => {
                let resources = self.context.resources.clone();
                self.spawn_reply(reply, async move {
                    resources.drain_task_manager(*request).await?;
                    Ok(pb::Ack {})
                });
            }
            Effect::ConfirmTerm => {
                let store = self.context.store.coordination_store().clone();
                let fence = self.context.session.fence().clone();
                self.spawn(async move {
                    Event::TermConfirmed(read_barrier::confirm(store, fence).await)
                });
            }
            Effect::WriteSubmission { submission, state } => {
                self.write_submission(submission, state);
            }
            Effect::StartJobMaster {
                job,
                graph,
                state,
                is_recovered,
            } => self.start_job_master(job, *graph, *state, is_recovered),
            Effect::CancelByJobMaster { job, reply } => {
                let job_master = self.job_master(job);
                self.spawn_reply(reply, async move {
                    started(job, job_master)?.cancel().await?;
                    Ok(pb::Ack {})
                });
            }
            Effect::StopByJobMaster { job, reply } => {
                let job_master = self.job_master(job);
                self.spawn_reply(reply, async move {
                    started(job, job_master)?.stop_job().await?;
                    Ok(pb::Ack {})
                });
            }
            Effect::TriggerSavepoint {
                job,
                request,
                reply,
            } => {
                let job_master = self.job_master(job);
                self.spawn_reply(reply, async move {
                    let job_master = started(job, job_master)?;
                    job_master.trigger_savepoint(*request).await?;
                    Ok(pb::Ack {})
                });
            }
            Effect::DisposeSavepoint { path, reply } => {
                // Ends also if no caller waits for the answer any more.
                let store = self.context.store.clone();
                self.tasks.spawn(async move {
                    let disposed = store.dispose_savepoint(&path).await;
                    let _ = reply.send(disposed.map(|()| pb::Ack {}));
                    None
                });
            }
            Effect::AnswerRetried { job, reply } => self.answer_retried(job, reply),
            Effect::RemoveJobMaster {
                job,
                broken,
                unfit,
                pause,
            } => {
                let control = self.job_masters.remove(&job);
                let (context, is_fit) = (self.context.clone(), unfit.is_none());
                self.spawn(async move {
                    let removing =
                        broken_job_masters::remove(job, broken, is_fit, control, context, pause);
                    Event::JobMasterRemoved {
                        job,
                        broken,
                        unfit,
                        found: removing.await,
                    }
                });
            }
            Effect::WriteResult {
                job,
                result,
                is_retried,
                reply,
            } => self.write_result(job, *result, is_retried, reply),
            Effect::ReleaseJobMaster { job } => {
                if let Some(control) = self.job_masters.remove(&job) {
                    self.tasks.spawn(async move {
                        control.result_written().await;
                        None
                    });
                }
            }
            Effect::CleanUp { job, remove } => self.clean_up(job, remove),
            Effect::WriteCleanResult { job, result } => {
                let store = self.context.store.clone();
                self.spawn(async move {
                    let marked = store.put_clean_result(&result).await;
                    Event::MarkedClean { job, marked }
                });
            }
            Effect::DeleteResults { jobs, leftovers } => self.delete_results(jobs, leftovers),
            Effect::DropDescriptions { results } => {
                let store = self.context.store.clone();
                self.spawn(async move {
                    let Dropped { left, failure } = store.drop_descriptions(results).await;
                    let results = left;
                    Event::DescriptionsDropped { results, failure }
                });
            }
            Effect::NoteRetention { job, result } => {
                let store = self.context.store.clone();
                self.spawn(async move {
                    Event::RetentionNoted {
                        job,
                        counted_ms: result.counted_ms,
                        noted: store.try_clean_result(&result).await,
                    }
                });
            }
            Effect::WriteQuarantine { job, state } => {
                let store = self.context.store.clone();
                self.spawn(async move {
                    let written = store.put_state(&state).await;
                    Event::QuarantineWritten { job, written }
                });
            }
            Effect::ReadWaitingJobs {
                jobs,
                number,
                reply,
            } => self.read_waiting_jobs(jobs, number, reply),
            Effect::AwaitRecords { job, number } => {
                let store = self.context.store.clone();
                self.spawn(async move {
                    let found = vec![(job, store.await_job(job).await)];
                    Event::WaitingJobsRead {
                        found,
                        number,
                        reply: None,
                    }
                });
            }
            Effect::AwaitResult { job } => {
                let store = self.context.store.clone();
                self.spawn(async move {
                    let found = store.await_result(job).await.map(Box::new);
                    Event::ResultRead { job, found }
                });
            }
            Effect::ReadResults => {
                let records = std::mem::take(&mut self.kept);
                let store = self.context.store.clone();
                self.spawn(async move {
                    failpoint("results.reading").await;
                    let read = store.read_results_until_answered(&records).await;
                    Event::ResultsRead(Box::new(read))
                });
            }
            Effect::ReadQuarantined {
                job,
                from_checkpoint,
                reply,
            } => {
                let store = self.context.store.clone();
                self.spawn(async move {
                    let found = store.reread(job).await;
                    Event::QuarantinedRead {
                        job,
                        found,
                        from_checkpoint,
                        reply,
                    }
                });
            }
            Effect::RemoveQuarantine {
                job,
                mut to_retry,
                from_checkpoint,
                reply,
            } => {
                let store = self.context.store.clone();
                self.spawn(async move {
                    let written = match from_checkpoint {
                        None => store.put_state(&to_retry.state).await,
                        Some(number) => store.go_back(job, &mut to_retry.state, number).await,
                    };
                    Event::QuarantineRemoved {
                        job,
                        to_retry,
                        goes_back: from_checkpoint.is_some(),
                        written,
                        reply,
                    }
                });
            }
            Effect::DeleteUnreadableResult { job, reply } => {
                let store = self.context.store.clone();
                self.spawn(async move {
                    let deleted = store.delete_results(&[job]).await;
                    Event::UnreadableResultDeleted {
                        job,
                        deleted,
                        reply,
                    }
                });
            }
            Effect::StartTimer { timer, after } => self.spawn(async move {
                tokio::time::sleep(after).await;
                Event::TimedOut(timer)
            }),
        }
    }

    fn write_submission(&mut self, submission: Box<Submission>, mut state: Box<pb::JobState>) {
        let store = self.context.store.clone();
        let sinks = self.context.cleaner.sinks.clone();
        self.spawn(async move {
            failpoint("submit.persisting").await;
            let written = match &submission.restore {
                None => store.put_submission(&submission.graph, &state).await,
                Some(request) => {
                    let graph = &submission.graph;
                    let how = (fits as _, &*sinks);
                    let putting = store.put_restored_submission(graph, &mut state, request, how);
                    putting.await
                }
            };
            if written.is_ok() {
                failpoint("submit.persisted").await;
            }
            Event::SubmissionWritten {
                submission,
                state,
                written,
            }
        });
    }

    fn start_job_master(
        &mut self,
        job: JobId,
        graph: pb::JobGraph,
        state: pb::JobState,
        is_recovered: bool,
    ) {
        let control = self.context.launcher.launch(graph, state, is_recovered);
        self.job_masters.insert(job, control.clone());
        self.spawn(async move {
            match control.ended().await {
                Some(result) => Event::JobEnded {
                    job,
                    result: Box::new(result),
                },
                None => Event::JobMasterBroke {
                    job,
                    unfit: control.unfit(),
                },
            }
        });
    }

    fn write_result(
        &mut self,
        job: JobId,
        mut result: pb::JobResult,
        is_retried: bool,
        reply: Option<Reply<pb::Ack>>,
    ) {
        let store = self.context.store.clone();
        let job_master = self.job_master(job);
        let of_job_master = job_master.map(|control| control.retained_checkpoints());
        self.spawn(async move {
            let retained = match of_job_master {
                Some(record) => Ok(record.map_or(Retained::Nothing, Retained::Record)),
                None => store.retained_without_job_master(job, &mut result).await,
            };
            let written = match retained {
                Ok(retained) if is_retried => {
                    let written = store.put_result_until_written(result, &retained).await;
                    if written.is_ok() {
                        failpoint("job.result-written").await;
                    }
                    written
                }
                Ok(retained) => store.put_result_with(result, &retained).await,
                Err(failure) => Err(failure),
            };
            Event::ResultWritten {
                job,
                written: written.map(Box::new),
                reply,
            }
        });
    }

    fn clean_up(&mut self, job: JobId, remove: pb::Cleanup) {
        let cleaner = self.context.cleaner.clone();
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            if let Err(failure) = store.clean_chunks(job, &remove.chunks).await {
                // The term is over: the next one resumes the cleanup.
                warn!(%job, %failure, "the chunks of a graph could not be removed");
                return None;
            }
            let kept = match store.kept_objects(job).await {
                Ok(kept) => kept,
                Err(failure) => {
                    warn!(%job, %failure, "the cleanup of a job is left to the next term");
                    return None;
                }
            };
            let storage_trouble = store.storage().trouble();
            if let Err(reason) = cleaner.run(job, &remove, &kept, storage_trouble).await {
                return Some(Event::CleanupGivenUp { job, reason });
            }
            failpoint("job.cleaned-up").await;
            Some(Event::CleanedUp { job })
        });
    }

    fn delete_results(&mut self, jobs: Vec<JobId>, leftovers: Vec<(JobId, pb::Cleanup)>) {
        let context = self.context.clone();
        self.spawn(async move {
            // Before the results are removed: while they exist, no job runs under these ids. After a crash in
            // between, the next term does the removal.
            let looking = context.cleaner.look_once_more(&leftovers, &context.session);
            let Some(left) = looking.await else {
                let deleted = Err(JobStoreError::NotWritten);
                return Event::ResultsDeleted { jobs, deleted };
            };
            // Nothing else remembers the hidden output of a retained checkpoint: such a job is forgotten another time.
            let with_output = context.store.with_retained(&left).await;
            let (kept, jobs): (Vec<_>, Vec<_>) =
                jobs.into_iter().partition(|job| with_output.contains(job));
            let deleted = context.store.delete_results(&jobs).await;
            if !kept.is_empty() {
                tokio::time::sleep(NEXT_TRY).await;
            }
            Event::ResultsDeleted { jobs, deleted }
        });
    }

    fn read_waiting_jobs(
        &mut self,
        jobs: Vec<JobId>,
        number: ReadNumber,
        reply: Option<Reply<()>>,
    ) {
        let store = self.context.store.clone();
        self.spawn(async move {
            let reads = jobs.into_iter().map(|job| {
                let store = store.clone();
                async move { (job, store.reread(job).await) }
            });
            let found = stream::iter(reads).buffered(READ_AT_ONCE).collect().await;
            Event::WaitingJobsRead {
                found,
                number,
                reply,
            }
        });
    }

    /// Returns the JobMaster that was started for the job.
    pub(super) fn job_master(&self, job: JobId) -> Option<Arc<dyn JobMasterControl>> {
        self.job_masters.get(&job).cloned()
    }

    pub(super) fn spawn(&mut self, task: impl Future<Output = Event> + Send + 'static) {
        self.tasks.spawn(async move { Some(task.await) });
    }

    /// Answers a request when the answer is there, unless the caller is gone.
    pub(super) fn spawn_reply<T: Send + 'static>(
        &mut self,
        reply: Reply<T>,
        answer: impl Future<Output = GatewayResult<T>> + Send + 'static,
    ) {
        self.tasks.spawn(async move {
            if let Some((reply, answer)) = unless_closed(reply, answer).await {
                let _ = reply.send(answer);
            }
            None
        });
    }

    /// The same for an answer that needs another decision.
    pub(super) fn spawn_event<T: Send + 'static, A: Send + 'static>(
        &mut self,
        reply: Reply<T>,
        answer: impl Future<Output = A> + Send + 'static,
        event: impl FnOnce(Reply<T>, A) -> Event + Send + 'static,
    ) {
        self.tasks.spawn(async move {
            let (reply, answer) = unless_closed(reply, answer).await?;
            Some(event(reply, answer))
        });
    }
}

/// Returns the JobMaster that the core says there is.
pub(super) fn started(
    job: JobId,
    job_master: Option<Arc<dyn JobMasterControl>>,
) -> GatewayResult<Arc<dyn JobMasterControl>> {
    job_master.ok_or_else(|| GatewayError::gone(format!("the JobMaster of job {job}")))
}

/// Waits for an answer, which may never come; `None` if the caller is gone before.
async fn unless_closed<T, A>(
    mut reply: Reply<T>,
    answer: impl Future<Output = A>,
) -> Option<(Reply<T>, A)> {
    let answer = tokio::select! {
        biased;
        answer = answer => answer,
        () = reply.closed() => return None,
    };
    Some((reply, answer))
}
