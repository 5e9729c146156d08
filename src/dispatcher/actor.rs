//! The Dispatcher's loop: one task owns every job's entry; I/O runs in tasks and comes back as events.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::LeaderSession;
use tanist_ha::failpoint::failpoint;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use super::breakage::{self, Breakages};
use super::cleanup::Cleaner;
use super::core::{self, Known, Submission};
use super::denials::{self, Denials};
use super::entry::{Entry, Quarantined, result_key, state_key};
use super::handle::{Command, DispatcherHandle, Reply};
use super::job_store::{JobStore, JobStoreError, RecoveredJob, RecoveredJobs};
use crate::dataflow::operator::custom::unknown_operators;
use crate::dataflow::sink;
use crate::gateway::blobs::BlobFetcher;
use crate::gateway::{GatewayResult, JobMasterLauncher, ResourceRequirementsGateway};
use crate::job::unsupported;

/// How a Dispatcher behaves.
#[derive(Debug, Clone)]
pub struct DispatcherOptions {
    /// How long the result of an ended job is kept (`jobstore.expiration-time`).
    pub result_retention: Duration,
    /// How often expired results are looked for.
    pub expiration_interval: Duration,
    /// How many requests wait at most.
    pub mailbox: usize,
    /// How long a submission or cancellation waits for the store before it is answered that its fate is unknown.
    pub store_patience: Duration,
}

impl Default for DispatcherOptions {
    fn default() -> DispatcherOptions {
        DispatcherOptions {
            result_retention: Duration::from_secs(3600),
            expiration_interval: Duration::from_secs(30),
            mailbox: 1024,
            store_patience: Duration::from_secs(5),
        }
    }
}

/// What a term gives its Dispatcher.
#[derive(Clone)]
pub struct DispatcherContext {
    /// The term.
    pub session: LeaderSession,
    /// Where jobs are kept.
    pub store: Arc<JobStore>,
    /// Starts JobMasters.
    pub launcher: Arc<dyn JobMasterLauncher>,
    /// The term's ResourceManager.
    pub resources: Arc<dyn ResourceRequirementsGateway>,
    /// Removes what ended jobs leave.
    pub cleaner: Cleaner,
    /// Fetches graphs that submissions only name.
    pub blobs: BlobFetcher,
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
    /// Starts a term's Dispatcher with the jobs that the store holds. They are recovered before anything is answered.
    pub fn start(
        options: DispatcherOptions,
        context: DispatcherContext,
        recovered: RecoveredJobs,
    ) -> DispatcherHandle {
        let (commands, mailbox) = mpsc::channel(options.mailbox);
        let store_patience = options.store_patience;
        let blobs = context.blobs.clone();
        let mut actor = DispatcherActor {
            options,
            context,
            jobs: BTreeMap::new(),
            tasks: JoinSet::new(),
            denials: Denials::default(),
            is_expiring: false,
            breakages: Breakages::default(),
        };
        actor.recover(recovered);
        tokio::spawn(actor.run(mailbox));
        DispatcherHandle {
            commands,
            blobs,
            store_patience,
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
        /// As it was written.
        written: Result<Box<pb::JobResult>, JobStoreError>,
    },
    CleanedUp {
        job: JobId,
    },
    MarkedClean {
        job: JobId,
        result: Result<(), JobStoreError>,
    },
    Expired {
        jobs: Vec<JobId>,
        result: Result<(), JobStoreError>,
    },
    /// A job whose JobMaster broke was read again.
    Reread {
        job: JobId,
        broken: u32,
        found: Result<RecoveredJob, JobStoreError>,
    },
    /// The store was asked whether this term is the youngest.
    TermConfirmed(Result<(), String>),
    Done,
}

pub(super) struct DispatcherActor {
    options: DispatcherOptions,
    pub(super) context: DispatcherContext,
    pub(super) jobs: BTreeMap<JobId, Entry>,
    pub(super) tasks: JoinSet<Event>,
    denials: Denials,
    is_expiring: bool,
    breakages: Breakages,
}

/// Whether the store has confirmed the term since a request came, so that it may be told that there is no such job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Term {
    Believed,
    Confirmed,
}

/// Where the sinks of a graph write, for whoever cleans up after it.
fn directories_of(graph: &pb::JobGraph) -> Vec<String> {
    let directories = sink::directories(graph);
    let texts = directories
        .iter()
        .map(|it| it.to_string_lossy().into_owned());
    texts.collect()
}

impl DispatcherActor {
    fn recover(&mut self, recovered: RecoveredJobs) {
        for (job, result) in recovered.results {
            let key = result_key(&result);
            let dirty = result.dirty;
            self.jobs.insert(
                job,
                Entry::Ended {
                    key,
                    result: Box::new(result),
                },
            );
            if dirty {
                info!(%job, "the cleanup of an ended job is resumed");
                self.start_cleanup(job);
            }
        }
        for (job, reason) in recovered.unreadable_results {
            // It has ended, however: it is never run again.
            let reason = format!("it has ended, and its result can't be read: {reason}");
            self.quarantine(job, &pb::JobState::default(), Vec::new(), reason);
            if let Some(Entry::Quarantined { job }) = self.jobs.get_mut(&job) {
                job.has_ended = true;
            }
        }
        for (job, recovered) in recovered.jobs {
            if self.jobs.contains_key(&job) {
                // Its result is there: it is never run again.
                continue;
            }
            self.take_up(job, recovered);
        }
    }

    /// Goes on with a job as its records have it.
    fn take_up(&mut self, job: JobId, recovered: RecoveredJob) {
        match recovered {
            RecoveredJob::Readable { graph, state } => {
                match unsupported(&graph).or_else(|| unknown_operators(&graph)) {
                    None => self.launch(job, *graph, *state, true),
                    // Another program may lead it: nothing is wrong with its records.
                    Some(reason) => {
                        let reason = format!("this JobManager can't lead it: {reason}");
                        self.quarantine(job, &state, directories_of(&graph), reason);
                    }
                }
            }
            RecoveredJob::Unreadable { reason, state } => {
                let reason = format!("its records can't be read: {reason}");
                self.quarantine(job, &state.unwrap_or_default(), Vec::new(), reason);
            }
        }
    }

    fn quarantine(
        &mut self,
        job: JobId,
        state: &pb::JobState,
        sink_directories: Vec<String>,
        reason: String,
    ) {
        error!(%job, reason, "a job is quarantined");
        let quarantined = Box::new(Quarantined {
            key: state_key(state),
            name: state.name.clone(),
            sink_directories,
            has_ended: false,
            is_canceling: false,
            reason,
        });
        let entry = Entry::Quarantined { job: quarantined };
        self.jobs.insert(job, entry);
    }

    /// Its JobMaster ended without a result. Where the term ends that is why.
    fn on_job_broken(&mut self, job: JobId) {
        let Some(Entry::Running { key, control }) = self.jobs.get(&job) else {
            return;
        };
        if self.context.session.is_over() {
            return;
        }
        let broken = self.breakages.note(job);
        error!(%job, broken, "a JobMaster broke");
        let (key, control) = (key.clone(), control.clone());
        self.jobs.insert(job, Entry::Rebuilding { key });
        let resources = self.context.resources.clone();
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let found = breakage::clear_away(job, broken, control, resources, store).await;
            Event::Reread { job, broken, found }
        });
    }

    fn on_reread(&mut self, job: JobId, broken: u32, found: Result<RecoveredJob, JobStoreError>) {
        match found {
            Err(failure) => warn!(%job, %failure, "the term is ending"),
            Ok(RecoveredJob::Readable { graph, state }) if broken > breakage::TOLERATED => {
                let reason = format!("its JobMaster broke {broken} times in this term");
                self.quarantine(job, &state, directories_of(&graph), reason);
            }
            Ok(found) => self.take_up(job, found),
        }
    }

    async fn run(mut self, mut mailbox: mpsc::Receiver<Command>) {
        let mut expiration = tokio::time::interval(self.options.expiration_interval);
        expiration.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let session = self.context.session.clone();
        let stopped = loop {
            tokio::select! {
                biased;
                () = session.over() => break None,
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => match done {
                    Ok(event) => self.on_event(event),
                    // Which event was lost is unknown, so nothing can be built on this state any more.
                    Err(failure) => {
                        error!(%failure, "a task of the Dispatcher panicked");
                        break None;
                    }
                },
                command = mailbox.recv() => match command {
                    Some(Command::Stop { reply }) => break Some(reply),
                    Some(command) => self.on_command(command, Term::Believed),
                    None => break None,
                },
                _ = expiration.tick() => self.expire_results(),
            }
        };
        // Stopping is forgetting: nobody is told.
        drop(mailbox);
        self.tasks.shutdown().await;
        let controls = self.jobs.values().filter_map(|entry| match entry {
            Entry::Running { control, .. } => Some(control.clone()),
            Entry::Persisting { .. }
            | Entry::Rebuilding { .. }
            | Entry::Ended { .. }
            | Entry::Quarantined { .. } => None,
        });
        join_all(controls.map(|control| async move { control.stop().await })).await;
        if let Some(reply) = stopped {
            let _ = reply.send(());
        }
    }

    fn on_command(&mut self, command: Command, term: Term) {
        if term == Term::Believed && self.needs_confirmation(&command) {
            if self.denials.take(command) {
                self.confirm_term();
            }
            return;
        }
        match command {
            Command::Consistent(command) => self.on_command(*command, term),
            Command::Submit { submission, reply } => self.submit(*submission, reply),
            Command::Cancel { job, reply } => self.cancel(job, reply),
            Command::List { reply } => self.list(reply),
            Command::Describe { job, reply } => self.describe(job, reply),
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
                    let task_managers = resources.resource_overview().await?.task_managers;
                    Ok(pb::ListTaskManagersResponse {
                        task_managers,
                        as_of,
                    })
                });
            }
            Command::DrainTaskManager { resource_id, reply } => {
                let resources = self.context.resources.clone();
                self.spawn_reply(reply, async move {
                    resources.drain_task_manager(resource_id).await?;
                    Ok(pb::Ack {})
                });
            }
            Command::Turn { reply } => {
                let _ = reply.send(Ok(()));
            }
            Command::Stop { reply } => {
                let _ = reply.send(());
            }
        }
    }

    /// Whether the answer is that there is no such job, or rests on it, or was asked to be consistent.
    fn needs_confirmation(&self, command: &Command) -> bool {
        match command {
            Command::Consistent(_) => true,
            Command::Cancel { job, .. }
            | Command::Describe { job, .. }
            | Command::JobMaster { job, .. } => !self.jobs.contains_key(job),
            Command::Submit { submission, .. } => {
                !self.jobs.contains_key(&submission.job)
                    && core::admit(submission, Known::Nothing, wall_clock_ms()).is_err()
            }
            Command::List { .. }
            | Command::JobMasters { .. }
            | Command::Overview { .. }
            | Command::TaskManagers { .. }
            | Command::DrainTaskManager { .. }
            | Command::Turn { .. }
            | Command::Stop { .. } => false,
        }
    }

    fn confirm_term(&mut self) {
        let store = self.context.store.coordination_store().clone();
        let fence = self.context.session.fence().clone();
        self.tasks
            .spawn(async move { Event::TermConfirmed(denials::confirm(store, fence).await) });
    }

    fn on_term_confirmed(&mut self, confirmed: &Result<(), String>) {
        for command in self.denials.end() {
            match confirmed {
                Ok(()) => self.on_command(command, Term::Confirmed),
                Err(reason) => command.refuse(denials::not_confirmed(reason)),
            }
        }
        if self.denials.begin() {
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
            Event::ResultWritten { job, written } => self.on_result_written(job, written),
            Event::CleanedUp { job } => self.on_cleaned_up(job),
            Event::MarkedClean { job, result } => match (result, self.jobs.get_mut(&job)) {
                (Ok(()), Some(Entry::Ended { result, .. })) => {
                    result.dirty = false;
                    // Blobs are gone for good; see `on_cleaned_up` for what is kept.
                    if let Some(remove) = &mut result.remove {
                        remove.blobs.clear();
                        remove.parts.clear();
                    }
                }
                (Ok(()), _) => {}
                (Err(failure), _) => warn!(%job, %failure, "a result could not be marked clean"),
            },
            Event::Expired { jobs, result } => match result {
                Ok(()) => self.forget(&jobs),
                Err(failure) => {
                    self.is_expiring = false;
                    warn!(%failure, "expired results could not be removed");
                }
            },
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
        let key = state_key(&state);
        let control = self.context.launcher.launch(graph, state, recovered);
        self.jobs.insert(
            job,
            Entry::Running {
                key,
                control: control.clone(),
            },
        );
        self.tasks.spawn(async move {
            let result = control.ended().await.map(Box::new);
            Event::JobEnded { job, result }
        });
    }

    /// The job is globally terminal. Until the result is written its JobMaster goes on describing it.
    fn on_job_ended(&mut self, job: JobId, result: Box<pb::JobResult>) {
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let written = store.put_result(*result).await.map(Box::new);
            if written.is_ok() {
                failpoint("job.result-written").await;
            }
            Event::ResultWritten { job, written }
        });
    }

    fn on_result_written(
        &mut self,
        job: JobId,
        written: Result<Box<pb::JobResult>, JobStoreError>,
    ) {
        let result = match written {
            Ok(result) => result,
            Err(failure) => {
                error!(%job, %failure, "the result of a job could not be written");
                if let Some(Entry::Quarantined { job }) = self.jobs.get_mut(&job) {
                    job.is_canceling = false;
                }
                return;
            }
        };
        info!(%job, status = result.status().as_str_name(), "job ended");
        let key = result_key(&result);
        let before = self.jobs.insert(job, Entry::Ended { key, result });
        if let Some(Entry::Running { control, .. }) = before {
            self.tasks.spawn(async move {
                control.result_written().await;
                Event::Done
            });
        }
        self.start_cleanup(job);
    }

    fn start_cleanup(&mut self, job: JobId) {
        let Some(Entry::Ended { result, .. }) = self.jobs.get(&job) else {
            return;
        };
        let remove = result.remove.clone().unwrap_or_default();
        let cleaner = self.context.cleaner.clone();
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            if let Err(failure) = store.clean_parts(job, &remove.parts).await {
                // The term is over: the next one resumes the cleanup.
                warn!(%job, %failure, "the parts of a graph could not be removed");
                return Event::Done;
            }
            cleaner.run(job, &remove).await;
            Event::CleanedUp { job }
        });
    }

    fn on_cleaned_up(&mut self, job: JobId) {
        let Some(Entry::Ended { result, .. }) = self.jobs.get(&job) else {
            return;
        };
        let clean = pb::JobResult {
            dirty: false,
            // A TaskExecutor that was cut off may still write there: looked at once more when the result goes.
            remove: result.remove.as_ref().map(|remove| pb::Cleanup {
                blobs: Vec::new(),
                parts: Vec::new(),
                sink_directories: remove.sink_directories.clone(),
            }),
            ..(**result).clone()
        };
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let result = store.put_clean_result(&clean).await;
            Event::MarkedClean { job, result }
        });
    }

    pub(super) fn spawn_reply<T: Send + 'static>(
        &mut self,
        reply: Reply<T>,
        answer: impl Future<Output = GatewayResult<T>> + Send + 'static,
    ) {
        self.tasks.spawn(async move {
            let _ = reply.send(answer.await);
            Event::Done
        });
    }

    /// The results of these jobs are gone.
    fn forget(&mut self, expired: &[JobId]) {
        self.is_expiring = false;
        for job in expired {
            self.jobs.remove(job);
        }
    }

    /// One removal at a time: a second one could come after another job with the same id.
    fn expire_results(&mut self) {
        if self.is_expiring {
            return;
        }
        let retention_ms =
            u64::try_from(self.options.result_retention.as_millis()).unwrap_or(u64::MAX);
        let now = wall_clock_ms();
        let is_expired = |entry: &Entry| match entry {
            Entry::Ended { result, .. } => core::is_expired(result, now, retention_ms),
            Entry::Persisting { .. }
            | Entry::Running { .. }
            | Entry::Rebuilding { .. }
            | Entry::Quarantined { .. } => false,
        };
        let expired = self.jobs.iter().filter(|(_, entry)| is_expired(entry));
        let jobs: Vec<JobId> = expired.map(|(job, _)| *job).collect();
        if jobs.is_empty() {
            return;
        }
        self.is_expiring = true;
        let leftovers: Vec<(JobId, pb::Cleanup)> = jobs
            .iter()
            .filter_map(|job| match self.jobs.get(job) {
                Some(Entry::Ended { result, .. }) => Some((*job, result.remove.clone()?)),
                Some(
                    Entry::Persisting { .. }
                    | Entry::Running { .. }
                    | Entry::Rebuilding { .. }
                    | Entry::Quarantined { .. },
                )
                | None => None,
            })
            .collect();
        let cleaner = self.context.cleaner.clone();
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            for (job, remove) in &leftovers {
                cleaner.run_once(*job, remove).await;
            }
            let result = store.delete_results(&jobs).await;
            Event::Expired { jobs, result }
        });
    }
}
