//! Quarantined jobs: when a job is quarantined, and with which evidence.
//!
//! A job is quarantined when its records can't be read, when this build lacks one of its operators, when its
//! JobMasters broke repeatedly, or when it ended the processes that led it. No JobMaster is started for it;
//! nothing of it is removed, and its tasks keep running. Each term checks again for problems with its records
//! or this build, so a term that can lead the job does; records that are unreadable only for now are no reason
//! (`unavailable_records.rs`). The other reasons are in the job's record (`JobState.quarantine`) and stay until
//! a user retries the job (`quarantine_requests.rs`). A job that was cancelled before ends as CANCELED at once,
//! because the cancellation was acknowledged.
//!
//! A record written by a newer version has no fault: this term gives way to a process that can read it
//! (`leadership/version_handover.rs`). Until then only an explicit delete of the job touches its records.

use tanist_gateway::persistence::PersistError;
use tanist_model::unsupported;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{DispatcherCore, Entry, LogLine, Quarantined, Replies, sink_directories};
use crate::RecoveredJob;

/// A job that was read and can't be led.
#[derive(Debug)]
pub(super) struct JobToQuarantine {
    quarantine: pb::Quarantine,
    /// Its state. If that can't be read: a state with its name, if that is known, and nothing else.
    state: pb::JobState,
    /// `None`: the graph was not read. The state may name them.
    sink_directories: Option<pb::SinkDirectories>,
}

impl JobToQuarantine {
    pub(super) fn of(
        quarantine: pb::Quarantine,
        state: pb::JobState,
        graph: Option<&pb::JobGraph>,
    ) -> JobToQuarantine {
        JobToQuarantine {
            quarantine,
            state,
            sink_directories: graph.map(sink_directories),
        }
    }

    pub(super) fn kind(&self) -> pb::QuarantineKind {
        self.quarantine.kind()
    }

    pub(super) fn reason(&self) -> &str {
        &self.quarantine.reason
    }

    /// Records that the job has been quarantined for longer, for the same reason.
    pub(super) fn lasts_since(&mut self, since_ms: u64) {
        self.quarantine.since_ms = since_ms;
    }
}

/// The records of a job that can be led.
#[derive(Debug)]
pub(crate) struct JobToRetry {
    /// The job graph to run.
    pub graph: Box<pb::JobGraph>,
    /// Progress of the job.
    pub state: Box<pb::JobState>,
}

impl<R: Replies> DispatcherCore<R> {
    /// Returns a quarantine found by this term itself.
    pub(super) fn found(&self, kind: pb::QuarantineKind, reason: String) -> pb::Quarantine {
        let now_ms = self.now.wall_ms;
        pb::Quarantine {
            kind: kind.into(),
            since_ms: now_ms,
            evidence: vec![pb::QuarantineEvidence {
                epoch: self.term.epoch.get(),
                process: self.term.process.clone(),
                at_ms: now_ms,
                what: reason.clone(),
            }],
            reason,
        }
    }

    /// Decides whether a job can be led. If `retried`, the recorded reason of its quarantine is ignored. The arms for
    /// `SetAside` stand in this order: a retry can ignore that reason only if the graph was read.
    pub(super) fn judge(
        &self,
        found: RecoveredJob,
        retried: bool,
    ) -> Result<JobToRetry, Box<JobToQuarantine>> {
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
                let state = state.map_or_else(only_graph, |state| *state);
                return Err(Box::new(JobToQuarantine::of(
                    self.found(kind, reason),
                    state,
                    graph,
                )));
            }
            RecoveredJob::Unavailable { state, reason } => {
                let reason = format!("its records can't be read at present: {reason}");
                let quarantine = self.found(pb::QuarantineKind::Unreadable, reason);
                let state = state.map_or_else(pb::JobState::default, |state| *state);
                return Err(Box::new(JobToQuarantine::of(quarantine, state, None)));
            }
            RecoveredJob::Suspect { state } => {
                let reason = "its turn to be recovered has not come".to_owned();
                let quarantine = self.found(pb::QuarantineKind::Unspecified, reason);
                return Err(Box::new(JobToQuarantine::of(quarantine, *state, None)));
            }
            RecoveredJob::SetAside {
                state,
                graph: Some(graph),
            } if retried => (graph, state),
            RecoveredJob::SetAside { state, graph } => {
                let quarantine = state.quarantine.clone().unwrap_or_default();
                return Err(Box::new(JobToQuarantine::of(
                    quarantine,
                    *state,
                    graph.as_deref(),
                )));
            }
            RecoveredJob::Readable { graph, state } => (graph, state),
        };
        let lacks = self.checks.unknown_operators;
        if let Some(reason) = unsupported(&graph).or_else(|| lacks(&graph)) {
            // Another program may be able to lead it: its records are sound.
            let reason = format!("this JobManager can't lead it: {reason}");
            let quarantine = self.found(pb::QuarantineKind::UnknownOperator, reason);
            return Err(Box::new(JobToQuarantine::of(
                quarantine,
                *state,
                Some(&graph),
            )));
        }
        state.quarantine = None;
        Ok(JobToRetry { graph, state })
    }

    /// Continues with a job according to its records.
    pub(super) fn take_up(&mut self, job: JobId, found: RecoveredJob) {
        let found = match found {
            RecoveredJob::Suspect { state } => return self.suspect(job, *state),
            RecoveredJob::Unavailable { state, reason } => {
                return self.await_records(job, state, reason);
            }
            found => found,
        };
        match self.judge(found, false) {
            Ok(sound) => self.start_job_master(job, sound.graph, sound.state, true),
            Err(to_quarantine) => self.quarantine(job, *to_quarantine),
        }
    }

    /// Makes this the job's entry. A job whose cancellation was acknowledged ends instead: that needs no JobMaster.
    pub(super) fn quarantine(&mut self, job: JobId, mut found: JobToQuarantine) {
        let reason = found.quarantine.reason.clone();
        self.out.log(LogLine::Quarantined { job, reason });
        let is_canceled = found.state.wanted() == pb::WantedStatus::Canceled
            && found.quarantine.kind() != pb::QuarantineKind::TooNew;
        let mut known = Quarantined::of(&mut found.state, found.quarantine, found.sink_directories);
        if let Some(before) = self.jobs.get(job) {
            known.recall(before);
        }
        self.jobs.set(job, Entry::Quarantined(Box::new(known)));
        if is_canceled {
            self.out.log(LogLine::WasCancelled { job });
            self.end_quarantined(job, None);
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
        self.quarantine(
            job,
            JobToQuarantine::of(quarantine, pb::JobState::default(), None),
        );
        if let Some(quarantined) = self.jobs.quarantined_mut(job) {
            quarantined.note_ended();
        }
    }

    /// Ends a quarantined job as CANCELED.
    pub(super) fn end_quarantined(&mut self, job: JobId, reply: Option<R::To<pb::Ack>>) {
        let Some(quarantined) = self.jobs.quarantined_mut(job) else {
            return;
        };
        quarantined.set_busy(true);
        if quarantined.lacks_directories() {
            self.out.log(LogLine::DirectoriesUnknown { job });
        }
        let epoch = self.term.epoch.get();
        let result = quarantined.canceled_result(job, epoch, self.now.wall_ms);
        self.end_canceled(job, Box::new(result), reply);
    }

    pub(super) fn on_quarantine_written(&mut self, job: JobId, written: Result<(), PersistError>) {
        if let Err(failure) = written {
            self.out.log(LogLine::QuarantineNotWritten { job, failure });
        }
        self.set_busy(job, false);
    }

    pub(super) fn set_busy(&mut self, job: JobId, is_busy: bool) {
        if let Some(quarantined) = self.jobs.quarantined_mut(job) {
            quarantined.set_busy(is_busy);
        }
    }
}
