//! Quarantined jobs: when a job is quarantined, with which evidence, and how it gets out.
//!
//! A job is quarantined when its records can't be read, when this build lacks one of its operators, when its
//! JobMasters broke repeatedly, or when it ended the processes that led it. No JobMaster is started for it;
//! nothing of it is removed, and its tasks keep running. Each term checks again for problems with its records
//! or this build, so a term that can lead the job does; records that are unreadable only for now are no reason
//! (`unavailable_records.rs`). The other reasons are in the job's record (`JobState.quarantine`) and stay until
//! a user retries the job. A job that was cancelled before ends as CANCELED at once, because the cancellation
//! was acknowledged.
//!
//! *Retry*: all records are read again, the reason is removed from the record, then the JobMaster is started.
//! After a crash before the write the job is still quarantined; after the write it is recovered like any other
//! job. *Delete*: the result CANCELED replaces its records in one transaction, then the request is
//! acknowledged; TaskExecutors stop its tasks once the store says that it has ended. A *cancellation* does the
//! same, except for a job whose tasks have all finished: part of its output may be visible, and only its
//! JobMaster puts a cancellation and a finish in order.
//!
//! A record written by a newer version has no fault: this term gives way to a process that can read it
//! (`leadership/version_handover.rs`). Until then only an explicit delete of the job touches its records.

use tanist_gateway::persistence::{JobStateStore as _, PersistError};
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::wall_clock_ms;
use tanist_model::unsupported;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::actor::{DispatcherActor, Event};
use super::broken_job_masters;
use super::core::{Entry, Quarantined, event, no_such_job, sink_directories};
use super::handle::Reply;
use super::job_store::{JobStore, JobStoreError};
use super::recovery::RecoveredJob;
use super::submissions::suspended;

/// What is wrong with a job that was read.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) quarantine: pb::Quarantine,
    pub(super) state: pb::JobState,
    /// `None`: the graph was not read. The state may name them.
    pub(super) sink_directories: Option<pb::SinkDirectories>,
}

/// A job that can be led.
#[derive(Debug)]
pub(super) struct Sound {
    pub(super) graph: pb::JobGraph,
    pub(super) state: pb::JobState,
}

impl DispatcherActor {
    /// Returns a quarantine found by this term itself.
    pub(super) fn found(&self, kind: pb::QuarantineKind, reason: String) -> pb::Quarantine {
        let now_ms = wall_clock_ms();
        let session = &self.context.session;
        pb::Quarantine {
            kind: kind.into(),
            since_ms: now_ms,
            evidence: vec![pb::QuarantineEvidence {
                epoch: session.epoch().get(),
                process: session.process().to_string(),
                at_ms: now_ms,
                what: reason.clone(),
            }],
            reason,
        }
    }

    /// Decides whether a job can be led. If `retried`, the recorded reason of its quarantine is ignored.
    pub(super) fn judge(
        &self,
        found: RecoveredJob,
        retried: bool,
    ) -> Result<Box<Sound>, Box<Fault>> {
        let (graph, mut state) = match found {
            RecoveredJob::Unreadable {
                kind,
                reason,
                state,
                graph,
            } => {
                let reason = match kind {
                    pb::QuarantineKind::TooNew => {
                        format!("a newer version is needed to read its records: {reason}")
                    }
                    _ => format!("its records can't be read: {reason}"),
                };
                let graph = graph.as_deref();
                let only_graph = || pb::JobState {
                    name: graph.map(|it| it.name.clone()).unwrap_or_default(),
                    ..pb::JobState::default()
                };
                return Err(Box::new(Fault {
                    quarantine: self.found(kind, reason),
                    state: state.map_or_else(only_graph, |state| *state),
                    sink_directories: graph.map(sink_directories),
                }));
            }
            RecoveredJob::Unavailable { state, reason } => {
                let reason = format!("its records can't be read at present: {reason}");
                return Err(Box::new(Fault {
                    quarantine: self.found(pb::QuarantineKind::Unreadable, reason),
                    state: state.map_or_else(pb::JobState::default, |state| *state),
                    sink_directories: None,
                }));
            }
            RecoveredJob::Suspect { state } => {
                let reason = "its turn to be recovered has not come".to_owned();
                return Err(Box::new(Fault {
                    quarantine: self.found(pb::QuarantineKind::Unspecified, reason),
                    state: *state,
                    sink_directories: None,
                }));
            }
            RecoveredJob::SetAside {
                state,
                graph: Some(graph),
            } if retried => (graph, state),
            RecoveredJob::SetAside { state, graph } => {
                return Err(Box::new(Fault {
                    quarantine: state.quarantine.clone().unwrap_or_default(),
                    state: *state,
                    sink_directories: graph.as_deref().map(sink_directories),
                }));
            }
            RecoveredJob::Readable { graph, state } => (graph, state),
        };
        if let Some(reason) =
            unsupported(&graph).or_else(|| (self.context.checks.unknown_operators)(&graph))
        {
            // Another program may be able to lead it: its records are sound.
            let reason = format!("this JobManager can't lead it: {reason}");
            return Err(Box::new(Fault {
                quarantine: self.found(pb::QuarantineKind::UnknownOperator, reason),
                sink_directories: Some(sink_directories(&graph)),
                state: *state,
            }));
        }
        state.quarantine = None;
        Ok(Box::new(Sound {
            graph: *graph,
            state: *state,
        }))
    }

    /// Continues with a job according to its records.
    pub(super) fn take_up(&mut self, job: JobId, found: RecoveredJob) {
        let found = match found {
            RecoveredJob::Suspect { state } => return self.suspect(job, *state),
            RecoveredJob::Unavailable { state, reason } => {
                return self.await_records(job, state, &reason);
            }
            found => found,
        };
        match self.judge(found, false) {
            Ok(sound) => self.launch(job, sound.graph, sound.state, true),
            Err(fault) => self.quarantine(job, *fault),
        }
    }

    pub(super) fn quarantine(&mut self, job: JobId, mut fault: Fault) {
        let reason = &fault.quarantine.reason;
        error!(%job, reason, "a job is quarantined");
        // Its cancellation was acknowledged, and needs no JobMaster.
        let is_canceled = fault.state.wanted() == pb::WantedStatus::Canceled
            && fault.quarantine.kind() != pb::QuarantineKind::TooNew;
        let known = Quarantined::of(&mut fault.state, fault.quarantine, fault.sink_directories);
        let mut quarantined = Box::new(known);
        if let Some(before) = self.jobs.get(&job) {
            quarantined.recall(before);
        }
        quarantined.is_busy = is_canceled;
        let epoch = self.context.session.epoch().get();
        let result = is_canceled.then(|| canceled_result(&quarantined, job, epoch));
        let entry = Entry::Quarantined { job: quarantined };
        self.jobs.insert(job, entry);
        if let Some(result) = result {
            info!(%job, "it was cancelled before");
            self.cancel_quarantined(job, result, oneshot::channel().0);
        }
    }

    /// Quarantines an ended job whose result can't be read. It is never run again.
    pub(super) fn quarantine_ended(&mut self, job: JobId, kind: pb::QuarantineKind, reason: &str) {
        let reason = match kind {
            pb::QuarantineKind::TooNew => {
                format!("it has ended, and a newer version is needed to read its result: {reason}")
            }
            _ => format!("it has ended, and its result can't be read: {reason}"),
        };
        let quarantine = self.found(kind, reason);
        let fault = Fault {
            quarantine,
            state: pb::JobState::default(),
            sink_directories: None,
        };
        self.quarantine(job, fault);
        if let Some(Entry::Quarantined { job }) = self.jobs.get_mut(&job) {
            job.has_ended = true;
        }
    }

    /// A JobMaster ended without a result. If the term is over, that is the reason and nothing is done.
    pub(super) fn on_job_broken(&mut self, job: JobId) {
        let Some(Entry::Running { key, name, control }) = self.jobs.get(&job) else {
            return;
        };
        if self.context.session.is_over() {
            return;
        }
        let unfit = control.unfit();
        let broken = match &unfit {
            // Another JobMaster would fail in the same way.
            Some(_) => broken_job_masters::TOLERATED + 1,
            None => self.job_master_failures.note(job, wall_clock_ms()),
        };
        let (key, name, control) = (key.clone(), name.clone(), control.clone());
        let why = "its JobMaster broke, and another one is started";
        let entry = Entry::Rebuilding {
            key,
            name,
            why,
            suspect: None,
        };
        self.jobs.insert(job, entry);
        let resources = self.context.resources.clone();
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let found = broken_job_masters::clear_away(
                job,
                broken,
                unfit.is_none(),
                control,
                resources,
                store,
            )
            .await;
            match unfit {
                Some(reason) => Event::Unfit { job, reason, found },
                None => Event::Reread { job, broken, found },
            }
        });
    }

    /// The records of a job can be read, but no JobMaster can be created from them. They stay untouched.
    pub(super) fn on_unfit(
        &mut self,
        job: JobId,
        reason: &str,
        found: Result<RecoveredJob, JobStoreError>,
    ) {
        match found {
            Err(failure) => info!(%job, %failure, "the term is ending"),
            Ok(RecoveredJob::Readable { graph, state }) => {
                let reason = format!("its records can't be executed: {reason}");
                let quarantine = self.found(pb::QuarantineKind::Unreadable, reason);
                let fault = Fault {
                    quarantine,
                    state: *state,
                    sink_directories: Some(sink_directories(&graph)),
                };
                self.quarantine(job, fault);
            }
            Ok(found) => self.take_up(job, found),
        }
    }

    pub(super) fn on_reread(
        &mut self,
        job: JobId,
        broken: u32,
        found: Result<RecoveredJob, JobStoreError>,
    ) {
        match found {
            Err(failure) => info!(%job, %failure, "the term is ending"),
            Ok(RecoveredJob::Readable { graph, mut state })
                if broken > broken_job_masters::TOLERATED =>
            {
                let reason = format!("its JobMaster broke {broken} times in this term");
                let mut quarantine = self.found(pb::QuarantineKind::Broke, reason);
                let one = quarantine.evidence.pop().unwrap_or_default();
                let times = self.job_master_failures.times(job).iter();
                quarantine.evidence = times
                    .map(|at_ms| pb::QuarantineEvidence {
                        at_ms: *at_ms,
                        what: "its JobMaster broke".to_owned(),
                        ..one.clone()
                    })
                    .collect();
                state.quarantine = Some(quarantine.clone());
                // A cancelled job ends now, so it has no record to keep that in.
                if state.wanted() != pb::WantedStatus::Canceled {
                    self.keep_set_aside(job, (*state).clone());
                }
                self.quarantine(
                    job,
                    Fault {
                        quarantine,
                        state: *state,
                        sink_directories: Some(sink_directories(&graph)),
                    },
                );
                self.set_busy(job, true);
            }
            Ok(found) => self.take_up(job, found),
        }
    }

    /// Writes why a job is quarantined, for later terms.
    fn keep_set_aside(&mut self, job: JobId, state: pb::JobState) {
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            if let Err(failure) = store.put_state(&state).await {
                warn!(%job, %failure, "the quarantine of this job could not be written: the next term recovers the job again");
            }
            Event::SetAside { job }
        });
    }

    pub(super) fn set_busy(&mut self, job: JobId, is_busy: bool) {
        if let Some(Entry::Quarantined { job }) = self.jobs.get_mut(&job) {
            job.is_busy = is_busy;
        }
    }

    /// Retries a quarantined job, or deletes it.
    pub(super) fn resolve_quarantine(
        &mut self,
        job: JobId,
        action: pb::QuarantineAction,
        reply: Reply<pb::Ack>,
    ) {
        let is_retry = action == pb::QuarantineAction::Retry;
        let refusal = match self.jobs.get(&job) {
            None => no_such_job(job),
            Some(Entry::Running { control, .. }) if is_retry => {
                let control = control.clone();
                self.spawn_reply(reply, async move {
                    let details = control.describe().await?;
                    // The job runs and its record has a retry: this is the same request, repeated after a takeover.
                    let is_retried = |event: &pb::JobEvent| event.kind() == pb::JobEventKind::Retry;
                    if details.events.iter().any(is_retried) {
                        return Ok(pb::Ack {});
                    }
                    Err(GatewayError::Conflict(format!(
                        "job {job} is not quarantined"
                    )))
                });
                return;
            }
            // It is being read again anyway, as a retry would do.
            Some(Entry::Rebuilding { .. }) if is_retry => {
                let _ = reply.send(Ok(pb::Ack {}));
                return;
            }
            Some(Entry::Ended { result, .. })
                if !is_retry && result.status() == pb::JobStatus::Canceled =>
            {
                let _ = reply.send(Ok(pb::Ack {}));
                return;
            }
            Some(Entry::Quarantined { .. }) if self.is_suspended() => suspended(),
            Some(Entry::Quarantined { job: known }) if known.is_busy => {
                GatewayError::NotYet(format!("something is being written about job {job}"))
            }
            Some(Entry::Quarantined { job: known }) if known.has_ended && is_retry => {
                GatewayError::Conflict(format!("job {job}: {}", known.quarantine.reason))
            }
            Some(Entry::Quarantined { job: known }) => {
                let known = known.clone();
                self.set_busy(job, true);
                match action {
                    pb::QuarantineAction::Delete if known.has_ended => {
                        self.forget_unreadable(job, reply);
                    }
                    pb::QuarantineAction::Delete => {
                        let epoch = self.context.session.epoch().get();
                        self.cancel_quarantined(job, canceled_result(&known, job, epoch), reply);
                    }
                    pb::QuarantineAction::Retry | pb::QuarantineAction::Unspecified => {
                        self.retry(job, reply);
                    }
                }
                return;
            }
            Some(_) => GatewayError::Conflict(format!("job {job} is not quarantined")),
        };
        let _ = reply.send(Err(refusal));
    }

    fn retry(&mut self, job: JobId, reply: Reply<pb::Ack>) {
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let found = store.reread(job).await;
            Event::ToRetry { job, found, reply }
        });
    }

    /// The job was read again: removes the quarantine from its record.
    pub(super) fn on_retry(
        &mut self,
        job: JobId,
        found: Result<RecoveredJob, JobStoreError>,
        reply: Reply<pb::Ack>,
    ) {
        let judged = match found {
            Ok(RecoveredJob::Unavailable { reason, .. }) => {
                self.set_busy(job, false);
                let text = format!("the records of job {job} can't be read at present: {reason}");
                let _ = reply.send(Err(GatewayError::NotYet(text)));
                return;
            }
            Ok(found) => self.judge(found, true),
            Err(failure) => {
                self.set_busy(job, false);
                let _ = reply.send(Err(failure.into()));
                return;
            }
        };
        let known = match self.jobs.get(&job) {
            Some(Entry::Quarantined { job }) => Some((job.set_aside(), job.quarantine.clone())),
            _ => None,
        };
        match judged {
            Ok(mut sound) => {
                let epoch = self.context.session.epoch().get();
                let retried = event(pb::JobEventKind::Retry, epoch, wall_clock_ms());
                let told = known.map(|(set_aside, _)| set_aside).into_iter();
                sound.state.events.extend(told.chain([retried]));
                let store = self.context.store.clone();
                self.tasks.spawn(async move {
                    let cleared = clear(&store, &sound.state).await;
                    Event::Retried {
                        job,
                        sound,
                        cleared,
                        reply,
                    }
                });
            }
            Err(mut fault) => {
                if let Some((_, before)) = known.filter(|it| it.1.kind == fault.quarantine.kind) {
                    fault.quarantine.since_ms = before.since_ms;
                }
                let text = format!("job {job} stays quarantined: {}", fault.quarantine.reason);
                self.quarantine(job, *fault);
                let _ = reply.send(Err(GatewayError::Conflict(text)));
            }
        }
    }

    pub(super) fn on_retried(
        &mut self,
        job: JobId,
        sound: Sound,
        cleared: GatewayResult<()>,
        reply: Reply<pb::Ack>,
    ) {
        let answer = match cleared {
            Ok(()) => {
                info!(%job, "a quarantined job is led again");
                self.job_master_failures.forget(job);
                self.launch(job, sound.graph, sound.state, true);
                Ok(pb::Ack {})
            }
            Err(error) => {
                self.set_busy(job, false);
                Err(error)
            }
        };
        let _ = reply.send(answer);
    }

    /// Forgets an ended job whose result can't be read.
    fn forget_unreadable(&mut self, job: JobId, reply: Reply<pb::Ack>) {
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let gone = store.delete_results(&[job]).await;
            Event::Forgotten { job, gone, reply }
        });
    }

    pub(super) fn on_forgotten(
        &mut self,
        job: JobId,
        gone: Result<(), JobStoreError>,
        reply: Reply<pb::Ack>,
    ) {
        self.set_busy(job, false);
        if gone.is_ok() {
            self.jobs.remove(&job);
        }
        let _ = reply.send(gone.map(|()| pb::Ack {}).map_err(GatewayError::from));
    }
}

async fn clear(store: &JobStore, state: &pb::JobState) -> GatewayResult<()> {
    store.put_state(state).await.map_err(|error| match error {
        PersistError::TermOver => GatewayError::Unknown(error.to_string()),
        PersistError::TooLarge { .. } | PersistError::Refused(_) => {
            GatewayError::Internal(error.to_string())
        }
    })
}

/// The result CANCELED of a quarantined job, written in the term `epoch`.
pub(super) fn canceled_result(job: &Quarantined, id: JobId, epoch: u64) -> pb::JobResult {
    if job.sink_directories.is_none() {
        warn!(job = %id, "the sink directories of a quarantined job are unknown: its files may be left behind");
    }
    job.canceled_result(id, epoch, wall_clock_ms())
}
