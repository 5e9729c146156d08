//! Runs the core's effects. Each that waits is a task, whose outcome comes back as an event. `job_masters` has what
//! is done with JobMasters, `records` the writes and reads of the store, `answers.rs` the answers that wait.

mod job_masters;
mod records;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use tanist_gateway::{GatewayResult, JobMasterControl};
use tanist_ha::store::cache::Records;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::task::{JoinError, JoinSet};

use super::actor::DispatcherContext;
use super::handle::{Channels, Reply};
use super::{core, read_barrier};

pub(super) use self::job_masters::started;

pub(super) type Event = core::Event<Channels>;
pub(super) type Effect = core::Effect<Channels>;

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

    /// Ends all tasks and JobMasters. The jobs stay in the store; no client is informed.
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
            Effect::Acknowledge { reply, answer } => drop(reply.send(answer.map(|()| pb::Ack {}))),
            Effect::AnswerDone { reply } => drop(reply.send(Ok(()))),
            Effect::Refuse { command, error } => command.refuse(error, &mut Channels),
            Effect::AnswerJobMaster { reply, answer } => self.answer_job_master(reply, answer),
            Effect::AnswerJobMasters { reply, jobs } => self.answer_job_masters(reply, jobs),
            Effect::Describe { reply, described } => self.describe(reply, described),
            Effect::List { reply, jobs } => self.list(reply, jobs),
            Effect::AnswerList { reply, jobs, as_of } => self.answer_list(reply, jobs, as_of),
            Effect::AnswerOverview { reply, jobs } => self.answer_overview(reply, *jobs),
            Effect::ListTaskManagers { reply } => self.list_task_managers(reply),
            Effect::DrainTaskManager { request, reply } => {
                self.drain_task_manager(*request, reply);
            }
            Effect::ConfirmTerm => self.confirm_term(),
            Effect::WriteSubmission { submission, state } => {
                self.write_submission(submission, state);
            }
            Effect::StartJobMaster {
                job,
                graph,
                state,
                is_recovered,
            } => self.start_job_master(job, *graph, *state, is_recovered),
            Effect::CancelByJobMaster { job, reply } => self.cancel_by_job_master(job, reply),
            Effect::StopByJobMaster { job, reply } => self.stop_by_job_master(job, reply),
            Effect::TriggerSavepoint {
                job,
                request,
                reply,
            } => self.trigger_savepoint(job, *request, reply),
            Effect::DisposeSavepoint { path, reply } => self.dispose_savepoint(path, reply),
            Effect::AnswerRetried { job, reply } => self.answer_retried(job, reply),
            Effect::RemoveJobMaster {
                job,
                broken,
                unfit,
                pause,
            } => self.remove_job_master(job, broken, unfit, pause),
            Effect::WriteResult {
                job,
                result,
                is_retried,
                reply,
            } => self.write_result(job, *result, is_retried, reply),
            Effect::ReleaseJobMaster { job } => self.release_job_master(job),
            Effect::CleanUp { job, remove } => self.clean_up(job, remove),
            Effect::WriteCleanResult { job, result } => self.write_clean_result(job, result),
            Effect::DeleteResults { jobs, leftovers } => self.delete_results(jobs, leftovers),
            Effect::DropDescriptions { results } => self.drop_descriptions(results),
            Effect::NoteRetention { job, result } => self.note_retention(job, result),
            Effect::WriteQuarantine { job, state } => self.write_quarantine(job, state),
            Effect::ReadWaitingJobs {
                jobs,
                number,
                reply,
            } => self.read_waiting_jobs(jobs, number, reply),
            Effect::AwaitRecords { job, number } => self.await_records(job, number),
            Effect::AwaitResult { job } => self.await_result(job),
            Effect::ReadResults => self.read_results(),
            Effect::ReadQuarantined {
                job,
                from_checkpoint,
                reply,
            } => self.read_quarantined(job, from_checkpoint, reply),
            Effect::RemoveQuarantine {
                job,
                to_retry,
                from_checkpoint,
                reply,
            } => self.remove_quarantine(job, to_retry, from_checkpoint, reply),
            Effect::DeleteUnreadableResult { job, reply } => {
                self.delete_unreadable_result(job, reply);
            }
            Effect::StartTimer { timer, after } => self.spawn(async move {
                tokio::time::sleep(after).await;
                Event::TimedOut(timer)
            }),
        }
    }

    fn drain_task_manager(&mut self, request: pb::DrainTaskManagerRequest, reply: Reply<pb::Ack>) {
        let resources = self.context.resources.clone();
        self.spawn_reply(reply, async move {
            resources.drain_task_manager(request).await?;
            Ok(pb::Ack {})
        });
    }

    fn confirm_term(&mut self) {
        let store = self.context.store.coordination_store().clone();
        let fence = self.context.session.fence().clone();
        self.spawn(async move { Event::TermConfirmed(read_barrier::confirm(store, fence).await) });
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

    /// Like [`Calls::spawn_reply`], but hands reply and answer to the core as an event.
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
