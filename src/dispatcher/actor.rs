//! The Dispatcher's loop. One task owns every job's entry; I/O runs in tasks and comes back as events.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::future::join_all;
use tanist_gateway::blobs::BlobFetcher;
use tanist_gateway::{GatewayResult, JobMasterLauncher, ResourceRequirementsGateway};
use tanist_ha::clock::Started;
use tanist_ha::election::LeaderSession;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::answers::Listing;
use super::cleanup::Cleaner;
use super::core::{
    self, Entry, JobMasterFailures, Known, ReadBarrier, Retention, Submission, state_key,
};
use super::descriptions::Dropped;
use super::graph_checks::GraphChecks;
use super::handle::{Command, DispatcherHandle, Reply, Subject};
use super::job_store::{JobStore, JobStoreError};
use super::kept_results::Unread;
use super::options::DispatcherOptions;
use super::quarantine::Sound;
use super::read_barrier;
use super::recovery::{RecoveredJob, RecoveredJobs};
use super::term_clock::TermClock;

/// What a Dispatcher gets from its term.
#[derive(Clone)]
pub struct DispatcherContext {
    /// Proof of leadership of the term.
    pub session: LeaderSession,
    /// Records of the jobs.
    pub store: Arc<JobStore>,
    /// Starts JobMasters.
    pub launcher: Arc<dyn JobMasterLauncher>,
    /// ResourceManager of the term.
    pub resources: Arc<dyn ResourceRequirementsGateway>,
    /// Removes what ended jobs leave behind.
    pub cleaner: Cleaner,
    /// Fetches graphs that submissions only refer to.
    pub blobs: BlobFetcher,
    /// Checks of graphs.
    pub checks: GraphChecks,
}

impl fmt::Debug for DispatcherContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DispatcherContext")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// Starts Dispatchers.
#[derive(Debug)]
pub struct Dispatcher;

impl Dispatcher {
    /// Starts a term's Dispatcher with the jobs from the store. They are recovered before any request is answered.
    pub fn start(
        options: DispatcherOptions,
        context: DispatcherContext,
        mut recovered: RecoveredJobs,
    ) -> DispatcherHandle {
        let (commands, mailbox) = mpsc::channel(options.mailbox);
        let (store_timeout, max_uploaded) = (options.store_timeout, options.max_uploaded);
        let (blobs, checks) = (context.blobs.clone(), context.checks);
        let clock = TermClock::start(&context.session, options.result_retention);
        let started = Started::now();
        let unread = Unread::of(std::mem::take(&mut recovered.kept));
        let mut actor = DispatcherActor {
            options,
            context,
            jobs: BTreeMap::new(),
            tasks: JoinSet::new(),
            read_barrier: ReadBarrier::default(),
            is_expiring: false,
            unread,
            retention: Retention::resume(started.uptime(), &mut recovered),
            started,
            clock: clock.clone(),
            job_master_failures: JobMasterFailures::default(),
            submissions: 0,
        };
        actor.recover(recovered);
        let stopped = CancellationToken::new();
        let guard = stopped.clone().drop_guard();
        tokio::spawn(async move {
            let _guard = guard;
            actor.run(mailbox).await;
        });
        DispatcherHandle {
            commands,
            stopped,
            blobs,
            store_timeout,
            max_uploaded,
            checks,
            clock,
        }
    }
}

pub(super) enum Event {
    Persisted {
        submission: Box<Submission>,
        state: Box<pb::JobState>,
        result: Result<(), JobStoreError>,
    },
    JobEnded {
        job: JobId,
        result: Option<Box<pb::JobResult>>,
    },
    ResultWritten {
        job: JobId,
        /// The result as written.
        written: Result<Box<pb::JobResult>, JobStoreError>,
    },
    CleanedUp {
        job: JobId,
    },
    /// The cleanup failed as often as is allowed in one term.
    CleanupGivenUp {
        job: JobId,
        reason: String,
    },
    MarkedClean {
        job: JobId,
        result: Result<(), JobStoreError>,
    },
    Expired {
        jobs: Vec<JobId>,
        result: Result<(), JobStoreError>,
    },
    /// Some or all surplus descriptions are dropped.
    DescriptionsDropped(Dropped),
    /// The retention count was written, or writing it failed.
    RetentionNoted {
        job: JobId,
        counted_ms: u64,
        result: Result<(), JobStoreError>,
    },
    /// A job whose JobMaster broke was read again.
    Reread {
        job: JobId,
        broken: u32,
        found: Result<RecoveredJob, JobStoreError>,
    },
    /// A job for which no JobMaster could be created was read again.
    Unfit {
        job: JobId,
        reason: String,
        found: Result<RecoveredJob, JobStoreError>,
    },
    /// The reason for the quarantine was written, or writing it failed.
    SetAside {
        job: JobId,
    },
    /// Suspect jobs whose turn has come were read.
    CrashSuspectsRead {
        found: Vec<(JobId, Result<RecoveredJob, JobStoreError>)>,
        reply: Reply<()>,
    },
    /// The result of an ended job, unreadable when the term began, was read; or it is certain that it can't be read.
    ResultRead {
        job: JobId,
        found: Result<Box<pb::JobResult>, (pb::QuarantineKind, String)>,
    },
    /// The results that existed when the term began were read.
    ResultsRead(Box<RecoveredJobs>),
    /// Timeout of the requests that wait for these results.
    WaitedForResults,
    /// A quarantined job was read again.
    ToRetry {
        job: JobId,
        found: Result<RecoveredJob, JobStoreError>,
        reply: Reply<pb::Ack>,
    },
    /// The removal of a job's quarantine was written, or writing it failed.
    Retried {
        job: JobId,
        sound: Box<Sound>,
        cleared: GatewayResult<()>,
        reply: Reply<pb::Ack>,
    },
    /// The removal of an unreadable result was written, or writing it failed.
    Forgotten {
        job: JobId,
        gone: Result<(), JobStoreError>,
        reply: Reply<pb::Ack>,
    },
    /// Timeout of the submissions that wait for the cleanup of a job.
    WaitedForCleanup {
        job: JobId,
    },
    /// All jobs were described for a list.
    Listed {
        listing: Listing,
        reply: Reply<pb::ListJobsResponse>,
    },
    /// The store was asked whether this term is the latest.
    TermConfirmed(Result<(), String>),
    Done,
}

pub(super) struct DispatcherActor {
    pub(super) options: DispatcherOptions,
    pub(super) context: DispatcherContext,
    pub(super) jobs: BTreeMap<JobId, Entry>,
    pub(super) tasks: JoinSet<Event>,
    read_barrier: ReadBarrier<Command>,
    pub(super) is_expiring: bool,
    /// Results that are not read yet, and the requests that wait for them.
    pub(super) unread: Option<Box<Unread>>,
    pub(super) retention: Retention,
    /// Converts between tokio's clock and the time of the core.
    pub(super) started: Started,
    pub(super) clock: TermClock,
    pub(super) job_master_failures: JobMasterFailures,
    /// Number of submissions that this term has accepted.
    pub(super) submissions: u64,
}

/// Whether the store has confirmed the term since the request arrived. Only then may "no such job" be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Term {
    Believed,
    Confirmed,
}

impl DispatcherActor {
    fn recover(&mut self, mut recovered: RecoveredJobs) {
        let jobs = std::mem::take(&mut recovered.jobs);
        self.take_up_results(recovered);
        for (job, recovered) in jobs {
            let is_unread = self.unread.as_ref().is_some_and(|unread| unread.has(job));
            if is_unread || self.jobs.contains_key(&job) {
                // It has a result, so it is never run again.
                continue;
            }
            self.take_up(job, recovered);
        }
    }

    async fn run(mut self, mut mailbox: mpsc::Receiver<Command>) {
        let mut expiration = tokio::time::interval(self.options.expiration_interval);
        expiration.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let session = self.context.session.clone();
        loop {
            tokio::select! {
                biased;
                () = session.over() => break,
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => match done {
                    Ok(event) => self.on_event(event),
                    // The lost event is unknown, so this state can't be trusted any more.
                    Err(failure) => {
                        error!(%failure, "a task of the Dispatcher panicked");
                        break;
                    }
                },
                command = mailbox.recv() => match command {
                    Some(Command::Stop) | None => break,
                    Some(command) => self.take_command(command),
                },
                _ = expiration.tick() => {
                    self.expire_results();
                    self.bound_descriptions();
                    self.note_retention();
                }
            }
        }
        // Stopping only forgets the jobs; no client is informed. The JobMasters are stopped before any task is
        // awaited.
        drop(mailbox);
        self.tasks.abort_all();
        let controls = self.jobs.values().filter_map(|entry| match entry {
            Entry::Running { control, .. } => Some(control.clone()),
            Entry::Persisting { .. }
            | Entry::Rebuilding { .. }
            | Entry::Ended { .. }
            | Entry::Quarantined { .. } => None,
        });
        join_all(controls.map(|control| async move { control.stop().await })).await;
        self.tasks.shutdown().await;
    }

    pub(super) fn take_command(&mut self, command: Command) {
        if let Some(command) = self.or_wait_for_results(command) {
            self.on_command(command, Term::Believed);
        }
    }

    fn on_command(&mut self, command: Command, term: Term) {
        if term == Term::Believed && self.needs_confirmation(&command) {
            if self.read_barrier.take(command) {
                self.confirm_term();
            }
            return;
        }
        match command {
            Command::Consistent(command) => self.on_command(*command, term),
            Command::Submit { submission, reply } => self.submit(*submission, reply),
            Command::Cancel { job, reply } => self.cancel(job, reply),
            Command::StopJob { job, reply } => self.stop_job(job, reply),
            Command::List { reply } => self.list(reply),
            Command::Describe { job, brief, reply } => self.describe(job, brief, reply),
            Command::JobMaster { job, reply } => {
                let _ = reply.send(self.job_master(job));
            }
            Command::JobMasters { jobs, reply } => {
                let found = jobs.into_iter().map(|job| self.job_master(job).ok());
                let _ = reply.send(Ok(found.collect()));
            }
            Command::Overview { reply } => self.overview(reply),
            Command::TaskManagers { reply } => {
                let resources = self.context.resources.clone();
                let as_of = Some(self.position());
                self.spawn_reply(reply, async move {
                    let overview = resources.resource_overview().await?;
                    Ok(pb::ListTaskManagersResponse {
                        task_managers: overview.task_managers,
                        unmatched_drains: overview.unmatched_drains,
                        workers: overview.workers,
                        as_of,
                    })
                });
            }
            Command::DrainTaskManager { request, reply } => {
                let resources = self.context.resources.clone();
                self.spawn_reply(reply, async move {
                    resources.drain_task_manager(*request).await?;
                    Ok(pb::Ack {})
                });
            }
            Command::ResolveQuarantine { job, action, reply } => {
                self.resolve_quarantine(job, action, reply);
            }
            Command::StartCrashSuspects { jobs, reply } => self.read_crash_suspects(jobs, reply),
            Command::ReadResults { reply } => self.read_results(reply),
            Command::Turn { reply } => {
                let _ = reply.send(Ok(()));
            }
            Command::Stop => {}
        }
    }

    /// Whether the answer says, or depends on, that a job does not exist; or the request asked for consistency.
    fn needs_confirmation(&self, command: &Command) -> bool {
        if matches!(command, Command::Consistent(_)) {
            return true;
        }
        match command.subject() {
            Subject::Job(job) => !self.jobs.contains_key(&job),
            Subject::Submission(submission) => {
                !self.jobs.contains_key(&submission.job)
                    && core::admit(submission, Known::Nothing, &self.clock.times()).is_err()
            }
            Subject::AllJobs | Subject::Other => false,
        }
    }

    fn confirm_term(&mut self) {
        let store = self.context.store.coordination_store().clone();
        let fence = self.context.session.fence().clone();
        self.tasks
            .spawn(async move { Event::TermConfirmed(read_barrier::confirm(store, fence).await) });
    }

    fn on_term_confirmed(&mut self, confirmed: &Result<(), String>) {
        for command in self.read_barrier.end() {
            match confirmed {
                Ok(()) => self.on_command(command, Term::Confirmed),
                Err(reason) => command.refuse(read_barrier::not_confirmed(reason)),
            }
        }
        if self.read_barrier.begin() {
            self.confirm_term();
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Persisted {
                submission,
                state,
                result,
            } => {
                self.on_persisted(*submission, *state, result);
            }
            Event::JobEnded {
                job,
                result: Some(result),
            } => self.on_job_ended(job, result),
            Event::JobEnded { job, result: None } => self.on_job_broken(job),
            Event::Reread { job, broken, found } => self.on_reread(job, broken, found),
            Event::Unfit { job, reason, found } => self.on_unfit(job, &reason, found),
            Event::ResultWritten { job, written } => self.on_result_written(job, written),
            Event::SetAside { job } => self.set_busy(job, false),
            Event::CrashSuspectsRead { found, reply } => self.start_crash_suspects(found, reply),
            Event::ResultRead { job, found } => self.on_result_read(job, found),
            Event::ResultsRead(read) => self.on_results_read(*read),
            Event::WaitedForResults => self.on_waited_for_results(),
            Event::ToRetry { job, found, reply } => self.on_retry(job, found, reply),
            Event::Retried {
                job,
                sound,
                cleared,
                reply,
            } => self.on_retried(job, *sound, cleared, reply),
            Event::Forgotten { job, gone, reply } => self.on_forgotten(job, gone, reply),
            Event::WaitedForCleanup { job } => self.answer_waiting(job),
            Event::CleanedUp { job } => self.on_cleaned_up(job),
            Event::CleanupGivenUp { job, reason } => self.on_cleanup_given_up(job, reason),
            Event::MarkedClean { job, result } => self.on_marked_clean(job, result),
            Event::Expired { jobs, result } => self.on_expired(&jobs, result),
            Event::RetentionNoted {
                job,
                counted_ms,
                result,
            } => self.on_retention_noted(job, counted_ms, result),
            Event::DescriptionsDropped(dropped) => self.on_descriptions_dropped(dropped),
            Event::Listed { listing, reply } => self.on_listed(listing, reply),
            Event::TermConfirmed(confirmed) => self.on_term_confirmed(&confirmed),
            Event::Done => {}
        }
    }

    pub(super) fn launch(
        &mut self,
        job: JobId,
        graph: pb::JobGraph,
        state: pb::JobState,
        recovered: bool,
    ) {
        let (key, name) = (state_key(&state), state.name.clone());
        let control = self.context.launcher.launch(graph, state, recovered);
        self.jobs.insert(
            job,
            Entry::Running {
                key,
                name,
                control: control.clone(),
            },
        );
        self.tasks.spawn(async move {
            let result = control.ended().await.map(Box::new);
            Event::JobEnded { job, result }
        });
    }

    pub(super) fn spawn_reply<T: Send + 'static>(
        &mut self,
        reply: Reply<T>,
        answer: impl Future<Output = GatewayResult<T>> + Send + 'static,
    ) {
        self.tasks.spawn(async move {
            let mut reply = reply;
            let answered = tokio::select! {
                biased;
                answer = answer => Some(answer),
                // The answer may never come.
                () = reply.closed() => None,
            };
            if let Some(answer) = answered {
                let _ = reply.send(answer);
            }
            Event::Done
        });
    }
}
