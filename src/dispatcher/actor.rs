//! The Dispatcher's loop: one task owns every job's entry; I/O runs in tasks and comes back as events.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use tanist_ha::election::LeaderSession;
use tanist_ha::failpoint::failpoint;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use super::cleanup::Cleaner;
use super::core::{self, Admission, Known, Submission, SubmissionKey};
use super::handle::{Command, DispatcherHandle, Reply};
use super::job_store::{JobStore, JobStoreError, RecoveredJob, RecoveredJobs};
use crate::gateway::{
    GatewayError, GatewayResult, JobMasterControl, JobMasterLauncher, ResourceRequirementsGateway,
};

/// How a Dispatcher behaves.
#[derive(Debug, Clone)]
pub struct DispatcherOptions {
    /// How long the result of an ended job is kept (`jobstore.expiration-time`).
    pub result_retention: Duration,
    /// How often expired results are looked for.
    pub expiration_interval: Duration,
    /// How many requests wait at most.
    pub mailbox: usize,
}

impl Default for DispatcherOptions {
    fn default() -> DispatcherOptions {
        DispatcherOptions {
            result_retention: Duration::from_secs(3600),
            expiration_interval: Duration::from_secs(30),
            mailbox: 1024,
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
        let mut actor = DispatcherActor {
            options,
            context,
            jobs: BTreeMap::new(),
            tasks: JoinSet::new(),
        };
        actor.recover(recovered);
        tokio::spawn(actor.run(mailbox));
        DispatcherHandle { commands }
    }
}

#[derive(Debug)]
enum Entry {
    Persisting {
        key: SubmissionKey,
        waiting: Vec<Reply<pb::SubmitJobResponse>>,
    },
    Running {
        key: SubmissionKey,
        control: Arc<dyn JobMasterControl>,
    },
    /// Globally terminal; the result is being written, cleaned up after, or clean.
    Ended {
        key: SubmissionKey,
        result: Box<pb::JobResult>,
    },
    /// Its records can't be read.
    Quarantined { job: Box<Quarantined> },
}

#[derive(Debug, Clone)]
struct Quarantined {
    key: SubmissionKey,
    name: String,
    reason: String,
}

enum Event {
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
        result: Box<pb::JobResult>,
        written: Result<(), JobStoreError>,
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
    Done,
}

struct DispatcherActor {
    options: DispatcherOptions,
    context: DispatcherContext,
    jobs: BTreeMap<JobId, Entry>,
    tasks: JoinSet<Event>,
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
        for (job, recovered) in recovered.jobs {
            if self.jobs.contains_key(&job) {
                // Its result is there: it is never run again.
                continue;
            }
            match recovered {
                RecoveredJob::Readable { graph, state } => self.launch(job, *graph, *state, true),
                RecoveredJob::Unreadable { reason, state } => {
                    error!(%job, reason, "a job is quarantined: its records can't be read");
                    let state = *state.unwrap_or_default();
                    let key = state_key(&state);
                    let quarantined = Quarantined {
                        key,
                        name: state.name,
                        reason,
                    };
                    self.jobs.insert(
                        job,
                        Entry::Quarantined {
                            job: Box::new(quarantined),
                        },
                    );
                }
            }
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
                    Err(failure) => error!(%failure, "a task of the Dispatcher panicked"),
                },
                command = mailbox.recv() => match command {
                    Some(Command::Stop { reply }) => break Some(reply),
                    Some(command) => self.on_command(command),
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
            Entry::Persisting { .. } | Entry::Ended { .. } | Entry::Quarantined { .. } => None,
        });
        join_all(controls.map(|control| async move { control.stop().await })).await;
        if let Some(reply) = stopped {
            let _ = reply.send(());
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Submit { submission, reply } => self.submit(*submission, reply),
            Command::Cancel { job, reply } => self.cancel(job, reply),
            Command::List { reply } => self.list(reply),
            Command::Describe { job, reply } => self.describe(job, reply),
            Command::JobMaster { job, reply } => {
                let _ = reply.send(self.job_master(job));
            }
            Command::Overview { reply } => self.overview(reply),
            Command::TaskManagers { reply } => {
                let resources = self.context.resources.clone();
                self.spawn_reply(reply, async move {
                    let overview = resources.resource_overview().await?;
                    Ok(pb::ListTaskManagersResponse {
                        task_managers: overview.task_managers,
                    })
                });
            }
            Command::Stop { reply } => {
                let _ = reply.send(());
            }
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
            Event::JobEnded { job, result: None } => {
                warn!(%job, "the JobMaster stopped without a result; the term is ending");
            }
            Event::ResultWritten {
                job,
                result,
                written,
            } => {
                self.on_result_written(job, result, written);
            }
            Event::CleanedUp { job } => self.on_cleaned_up(job),
            Event::MarkedClean { job, result } => match (result, self.jobs.get_mut(&job)) {
                (Ok(()), Some(Entry::Ended { result, .. })) => result.dirty = false,
                (Ok(()), _) => {}
                (Err(failure), _) => warn!(%job, %failure, "a result could not be marked clean"),
            },
            Event::Expired { jobs, result } => match result {
                Ok(()) => self.jobs.retain(|job, _| !jobs.contains(job)),
                Err(failure) => warn!(%failure, "expired results could not be removed"),
            },
            Event::Done => {}
        }
    }

    fn submit(&mut self, submission: Submission, reply: Reply<pb::SubmitJobResponse>) {
        let known = match self.jobs.get(&submission.job) {
            None => Known::Nothing,
            Some(Entry::Persisting { key, .. }) => Known::Persisting(key),
            Some(Entry::Running { key, .. } | Entry::Ended { key, .. }) => Known::Accepted(key),
            Some(Entry::Quarantined { job }) => Known::Accepted(&job.key),
        };
        let job = submission.job;
        match core::admit(&submission, known, now_ms()) {
            Err(refusal) => {
                let _ = reply.send(Err(refusal));
            }
            Ok(Admission::Repeated) => {
                let _ = reply.send(Ok(accepted(job, true)));
            }
            Ok(Admission::Join) => {
                if let Some(Entry::Persisting { waiting, .. }) = self.jobs.get_mut(&job) {
                    waiting.push(reply);
                }
            }
            Ok(Admission::Accept) => {
                let key = submission.key.clone();
                self.jobs.insert(
                    job,
                    Entry::Persisting {
                        key,
                        waiting: vec![reply],
                    },
                );
                self.persist(submission);
            }
        }
    }

    fn persist(&mut self, submission: Submission) {
        let store = self.context.store.clone();
        let state = core::first_state(&submission, now_ms());
        self.tasks.spawn(async move {
            let result = store.put_submission(&submission.graph, &state).await;
            if result.is_ok() {
                failpoint("submit.persisted").await;
            }
            Event::Persisted {
                submission: Box::new(submission),
                state: Box::new(state),
                result,
            }
        });
    }

    fn on_persisted(
        &mut self,
        submission: Submission,
        state: pb::JobState,
        result: Result<(), JobStoreError>,
    ) {
        let job = submission.job;
        let Some(Entry::Persisting { waiting, .. }) = self.jobs.remove(&job) else {
            return;
        };
        match result {
            Ok(()) => {
                info!(%job, name = submission.graph.name, "job submitted");
                self.launch(job, submission.graph, state, false);
                for (place, reply) in waiting.into_iter().enumerate() {
                    let _ = reply.send(Ok(accepted(job, place > 0)));
                }
            }
            Err(failure) => {
                let refusal = GatewayError::from(failure);
                for reply in waiting {
                    let _ = reply.send(Err(refusal.clone()));
                }
            }
        }
    }

    fn launch(&mut self, job: JobId, graph: pb::JobGraph, state: pb::JobState, recovered: bool) {
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
            let written = store.put_result(&result).await;
            if written.is_ok() {
                failpoint("job.result-written").await;
            }
            Event::ResultWritten {
                job,
                result,
                written,
            }
        });
    }

    fn on_result_written(
        &mut self,
        job: JobId,
        result: Box<pb::JobResult>,
        written: Result<(), JobStoreError>,
    ) {
        if let Err(failure) = written {
            error!(%job, %failure, "the result of a job could not be written");
            return;
        }
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
        self.tasks.spawn(async move {
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
            remove: None,
            ..(**result).clone()
        };
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let result = store.put_clean_result(&clean).await;
            Event::MarkedClean { job, result }
        });
    }

    fn spawn_reply<T: Send + 'static>(
        &mut self,
        reply: Reply<T>,
        answer: impl Future<Output = GatewayResult<T>> + Send + 'static,
    ) {
        self.tasks.spawn(async move {
            let _ = reply.send(answer.await);
            Event::Done
        });
    }

    fn cancel(&mut self, job: JobId, reply: Reply<pb::Ack>) {
        match self.jobs.get(&job) {
            None => {
                let _ = reply.send(Err(no_such_job(job)));
            }
            Some(Entry::Persisting { .. }) => {
                let _ = reply.send(Err(GatewayError::NotYet(format!(
                    "job {job} is being persisted"
                ))));
            }
            Some(Entry::Running { control, .. }) => {
                let control = control.clone();
                self.spawn_reply(
                    reply,
                    async move { control.cancel().await.map(|()| pb::Ack {}) },
                );
            }
            // Repeated because its answer was lost: it has what it wants.
            Some(Entry::Ended { result, .. }) if result.status() == pb::JobStatus::Canceled => {
                let _ = reply.send(Ok(pb::Ack {}));
            }
            Some(Entry::Ended { result, .. }) => {
                let status = status_name(result.status());
                let text = format!("job {job} has already ended: {status}");
                let _ = reply.send(Err(GatewayError::Conflict(text)));
            }
            Some(Entry::Quarantined { job: quarantined }) => {
                let result = quarantined.canceled_result(job);
                self.cancel_quarantined(job, result, reply);
            }
        }
    }

    /// Nothing of a quarantined job runs: its result takes the place of its records.
    fn cancel_quarantined(&mut self, job: JobId, result: pb::JobResult, reply: Reply<pb::Ack>) {
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let written = store.put_result(&result).await;
            let answer = match &written {
                Ok(()) => Ok(pb::Ack {}),
                Err(failure) => Err(GatewayError::from(failure.clone())),
            };
            let _ = reply.send(answer);
            Event::ResultWritten {
                job,
                result: Box::new(result),
                written,
            }
        });
    }

    fn job_master(&self, job: JobId) -> GatewayResult<Arc<dyn crate::gateway::JobMasterGateway>> {
        match self.jobs.get(&job) {
            Some(Entry::Running { control, .. }) => Ok(control.gateway()),
            Some(Entry::Persisting { .. } | Entry::Quarantined { .. }) => Err(
                GatewayError::NotYet(format!("job {job} has no JobMaster at present")),
            ),
            Some(Entry::Ended { .. }) => {
                Err(GatewayError::NotFound(format!("job {job} has ended")))
            }
            None => Err(no_such_job(job)),
        }
    }

    fn describe(&mut self, job: JobId, reply: Reply<pb::JobDetails>) {
        match self.jobs.get(&job) {
            None => {
                let _ = reply.send(Err(no_such_job(job)));
            }
            Some(entry) => {
                let described = describe(job, entry);
                self.spawn_reply(reply, described);
            }
        }
    }

    fn list(&mut self, reply: Reply<pb::ListJobsResponse>) {
        let described: Vec<_> = self
            .jobs
            .iter()
            .map(|(job, entry)| describe(*job, entry))
            .collect();
        let as_of = self.position();
        self.spawn_reply(reply, async move {
            let jobs = join_all(described)
                .await
                .into_iter()
                .filter_map(Result::ok)
                .collect();
            Ok(pb::ListJobsResponse {
                jobs,
                as_of: Some(as_of),
            })
        });
    }

    fn overview(&mut self, reply: Reply<pb::ClusterOverview>) {
        let ended = |wanted: pb::JobStatus| {
            let matches = |entry: &&Entry| matches!(entry, Entry::Ended { result, .. } if result.status() == wanted);
            u32::try_from(self.jobs.values().filter(matches).count()).unwrap_or(u32::MAX)
        };
        let running = self
            .jobs
            .values()
            .filter(|entry| matches!(entry, Entry::Running { .. }));
        let mut overview = pb::ClusterOverview {
            jobs_running: u32::try_from(running.count()).unwrap_or(u32::MAX),
            jobs_finished: ended(pb::JobStatus::Finished),
            jobs_cancelled: ended(pb::JobStatus::Canceled),
            jobs_failed: ended(pb::JobStatus::Failed),
            as_of: Some(self.position()),
            ..pb::ClusterOverview::default()
        };
        let resources = self.context.resources.clone();
        self.spawn_reply(reply, async move {
            let task_managers = resources.resource_overview().await?.task_managers;
            overview.task_managers = u32::try_from(task_managers.len()).unwrap_or(u32::MAX);
            overview.slots_total = task_managers.iter().map(|worker| worker.slots_number).sum();
            overview.slots_available = task_managers.iter().map(|worker| worker.free_slots).sum();
            Ok(overview)
        });
    }

    fn position(&self) -> pb::ReadPosition {
        pb::ReadPosition {
            epoch: self.context.session.epoch().get(),
            change: self.context.store.last_change().number,
        }
    }

    fn expire_results(&mut self) {
        let retention_ms =
            u64::try_from(self.options.result_retention.as_millis()).unwrap_or(u64::MAX);
        let now = now_ms();
        let is_expired = |entry: &Entry| match entry {
            Entry::Ended { result, .. } => core::is_expired(result, now, retention_ms),
            Entry::Persisting { .. } | Entry::Running { .. } | Entry::Quarantined { .. } => false,
        };
        let expired = self.jobs.iter().filter(|(_, entry)| is_expired(entry));
        let jobs: Vec<JobId> = expired.map(|(job, _)| *job).collect();
        if jobs.is_empty() {
            return;
        }
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let result = store.delete_results(&jobs).await;
            Event::Expired { jobs, result }
        });
    }
}

impl Quarantined {
    fn canceled_result(&self, job: JobId) -> pb::JobResult {
        pb::JobResult {
            job_id: job.to_string(),
            name: self.name.clone(),
            status: pb::JobStatus::Canceled.into(),
            cause: self.reason.clone(),
            ended_at_ms: now_ms(),
            dirty: true,
            submission_token: self.key.token.clone(),
            graph_digest: self.key.digest.clone(),
            details: Some(self.details(job)),
            ..pb::JobResult::default()
        }
    }

    fn details(&self, job: JobId) -> pb::JobDetails {
        pb::JobDetails {
            job_id: job.to_string(),
            name: self.name.clone(),
            status: pb::JobStatus::Suspended.into(),
            quarantine: self.reason.clone(),
            ..pb::JobDetails::default()
        }
    }
}

/// The description of a job, whatever its entry.
fn describe(
    job: JobId,
    entry: &Entry,
) -> impl Future<Output = GatewayResult<pb::JobDetails>> + Send + use<> {
    let (known, control) = match entry {
        Entry::Running { control, .. } => (None, Some(control.clone())),
        Entry::Persisting { .. } => {
            let status = pb::JobStatus::Initializing.into();
            let job_id = job.to_string();
            (
                Some(pb::JobDetails {
                    job_id,
                    status,
                    ..pb::JobDetails::default()
                }),
                None,
            )
        }
        Entry::Ended { result, .. } => (Some(ended_details(result)), None),
        Entry::Quarantined { job: quarantined } => (Some(quarantined.details(job)), None),
    };
    async move {
        match (known, control) {
            (_, Some(control)) => control.describe().await,
            (Some(details), None) => Ok(details),
            (None, None) => Err(no_such_job(job)),
        }
    }
}

fn ended_details(result: &pb::JobResult) -> pb::JobDetails {
    let mut details = result.details.clone().unwrap_or_default();
    details.job_id = result.job_id.clone();
    details.name = result.name.clone();
    details.status = result.status;
    details.ended_at_ms = result.ended_at_ms;
    details
}

fn no_such_job(job: JobId) -> GatewayError {
    GatewayError::NotFound(format!("there is no job {job}"))
}

fn accepted(job: JobId, repeated: bool) -> pb::SubmitJobResponse {
    pb::SubmitJobResponse {
        job_id: job.to_string(),
        repeated,
    }
}

fn state_key(state: &pb::JobState) -> SubmissionKey {
    SubmissionKey {
        token: state.submission_token.clone(),
        digest: state.graph_digest.clone(),
    }
}

fn result_key(result: &pb::JobResult) -> SubmissionKey {
    SubmissionKey {
        token: result.submission_token.clone(),
        digest: result.graph_digest.clone(),
    }
}

/// A status as REST and people write it.
fn status_name(status: pb::JobStatus) -> &'static str {
    status.as_str_name().trim_start_matches("JOB_STATUS_")
}

/// Milliseconds since 1970, by the wall clock: for people and retention, never for safety.
fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
