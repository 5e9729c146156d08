//! What a term finds of its jobs in the store, and which of them it quarantines.
//!
//! A record that can't be read hides no other, and one that is unreadable *for now* delays no other
//! (`unavailable_records.rs`). Of crash suspects, and of a job that ended the processes that led it, only the
//! state is decoded: decoding the graph may have been the cause.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use tanist_gateway::persistence::{JobStateStore as _, PersistError};
use tanist_ha::jobs::store::{Record as _, Stored};
use tanist_ha::keys::{Kind, Name};
use tanist_ha::retry::Backoff;
use tanist_ha::store::cache::Records;
use tanist_ha::store::pipeline::CommitError;
use tanist_ha::{Error, Outcome};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use super::job_store::{
    FIRST_RETRY, GraphRecord, JobStore, JobStoreError, ResultRecord, SLOWEST_RETRY, StateRecord,
    may_pass, name_of,
};
use super::kept_results::kept_results;

/// The recovered jobs and results.
#[derive(Debug, Default)]
pub struct RecoveredJobs {
    /// Jobs that are not terminal.
    pub jobs: Vec<(JobId, RecoveredJob)>,
    /// Records of results that are not read yet.
    pub kept: Records,
    /// Ended jobs with their results, clean or dirty.
    pub results: Vec<(JobId, pb::JobResult)>,
    /// Ended jobs with unreadable results: the kind and the reason.
    pub unreadable_results: Vec<(JobId, pb::QuarantineKind, String)>,
    /// Ended jobs whose results may be readable later, with the reason.
    pub unavailable_results: Vec<(JobId, String)>,
}

/// A recovered job that is not terminal.
#[derive(Debug)]
pub enum RecoveredJob {
    /// Both records were read.
    Readable {
        /// The job graph to run.
        graph: Box<pb::JobGraph>,
        /// Progress of the job.
        state: Box<pb::JobState>,
    },
    /// A record is missing or can't be read.
    Unreadable {
        /// Kind of the problem.
        kind: pb::QuarantineKind,
        /// Reason.
        reason: String,
        /// The state, if it can be read.
        state: Option<Box<pb::JobState>>,
        /// The graph, if it can be read.
        graph: Option<Box<pb::JobGraph>>,
    },
    /// A record can't be read for now, which says nothing about it.
    Unavailable {
        /// The state, if it can be read. The graph is not kept.
        state: Option<Box<pb::JobState>>,
        /// Reason.
        reason: String,
    },
    /// Quarantined, by an earlier term or this one.
    SetAside {
        /// The state, which contains the quarantine.
        state: Box<pb::JobState>,
        /// `None` if decoding the graph is dangerous or failed.
        graph: Option<Box<pb::JobGraph>>,
    },
    /// A crash suspect: started later, once its start is recorded.
    Suspect {
        /// Progress of the job.
        state: Box<pb::JobState>,
    },
}

impl RecoveredJob {
    /// Returns the state, if it can be read.
    pub fn state(&self) -> Option<&pb::JobState> {
        match self {
            RecoveredJob::Readable { state, .. }
            | RecoveredJob::SetAside { state, .. }
            | RecoveredJob::Suspect { state } => Some(state),
            RecoveredJob::Unreadable { state, .. } | RecoveredJob::Unavailable { state, .. } => {
                state.as_deref()
            }
        }
    }
}

/// Jobs that are recovered differently.
#[derive(Debug, Clone, Default)]
pub struct Caution {
    /// Crash suspects: only their state is decoded.
    pub suspects: Option<RangeInclusive<JobId>>,
    /// A job to be quarantined.
    pub set_aside: Option<(JobId, pb::Quarantine)>,
}

impl Caution {
    fn suspects(&self, job: JobId) -> bool {
        self.suspects
            .as_ref()
            .is_some_and(|range| range.contains(&job))
    }
}

/// Whether decoding the job's graph may end the process.
pub(super) fn is_dangerous(state: &pb::JobState) -> bool {
    let quarantine = state.quarantine.as_ref();
    quarantine.is_some_and(|it| it.kind() == pb::QuarantineKind::EndedProcess)
}

/// Why a record could not be read.
struct Flaw {
    /// `None`: it may be readable later.
    kind: Option<pb::QuarantineKind>,
    reason: String,
}

impl Flaw {
    fn unreadable(reason: String) -> Flaw {
        let kind = Some(pb::QuarantineKind::Unreadable);
        Flaw { kind, reason }
    }

    fn of(error: &Error) -> Flaw {
        Flaw {
            kind: (!may_pass(error)).then(|| unreadable_kind(error)),
            reason: error.to_string(),
        }
    }
}

pub(super) fn unreadable_kind(error: &Error) -> pb::QuarantineKind {
    if matches!(error, Error::TooNew { .. }) {
        pb::QuarantineKind::TooNew
    } else {
        pb::QuarantineKind::Unreadable
    }
}

type Found<T> = Option<Result<Stored<T>, Error>>;

impl JobStore {
    /// Recovers every job from the records as proven at the start of the term. Results are left to
    /// [`JobStore::read_results`].
    pub async fn recover(
        &self,
        records: &Records,
        caution: &Caution,
    ) -> Result<RecoveredJobs, Error> {
        let states = self.records.decode::<StateRecord>(records).await?;
        let mut recovered = RecoveredJobs {
            kept: kept_results(records),
            ..RecoveredJobs::default()
        };
        for (name, _) in records.of(Kind::BlobTombstones) {
            self.ledger.note_tombstone(name.clone());
        }
        let mut states: BTreeMap<Name, Result<Stored<StateRecord>, Error>> =
            states.into_iter().collect();
        if let Some((job, quarantine)) = &caution.set_aside
            && let Some(Ok(stored)) = states.get_mut(&name_of(*job))
        {
            stored.record.0.quarantine = Some(quarantine.clone());
        }
        let passed_over = self.pass_over(&mut states, caution, &mut recovered);
        let graphs = if passed_over.is_empty() {
            self.records.decode::<GraphRecord>(records).await?
        } else {
            let kinds = JobStore::KINDS.into_iter();
            let all = kinds.flat_map(|kind| {
                let of_kind = records.of(kind);
                of_kind.map(move |(name, value)| (kind, name, value))
            });
            let is_read = |kind: Kind, name: &Name| {
                kind != GraphRecord::KIND || !passed_over.contains_key(name)
            };
            let rest =
                all.filter(|(kind, name, _)| is_read(*kind, name))
                    .map(|(kind, name, value)| {
                        (tanist_ha::keys::Key::new(kind, name.clone()), value.clone())
                    });
            self.records.decode::<GraphRecord>(&rest.collect()).await?
        };
        for (name, graph) in graphs {
            let state = states.remove(&name);
            let Ok(job) = name.as_str().parse::<JobId>() else {
                warn!(%name, "a graph is ignored: its name is not a job id");
                continue;
            };
            let found = self.recovered_job(job, Some(graph), state);
            recovered.jobs.push((job, found));
        }
        for (name, state) in states {
            let Ok(job) = name.as_str().parse::<JobId>() else {
                continue;
            };
            let unreadable = self.recovered_job(job, None, Some(state));
            recovered.jobs.push((job, unreadable));
        }
        Ok(recovered)
    }

    /// Takes out the jobs whose graph is not decoded.
    fn pass_over(
        &self,
        states: &mut BTreeMap<Name, Result<Stored<StateRecord>, Error>>,
        caution: &Caution,
        recovered: &mut RecoveredJobs,
    ) -> BTreeMap<Name, ()> {
        let mut passed_over = BTreeMap::new();
        for (name, stored) in std::mem::take(states) {
            let job = name.as_str().parse::<JobId>();
            if let (Ok(job), Err(error)) = (&job, &stored)
                && may_pass(error)
            {
                // Its unread state may say that decoding the graph is dangerous.
                self.ledger.note_unreadable_graph(*job);
                let later = RecoveredJob::Unavailable {
                    state: None,
                    reason: error.to_string(),
                };
                recovered.jobs.push((*job, later));
                passed_over.insert(name, ());
                continue;
            }
            let (Ok(job), Ok(found)) = (job, &stored) else {
                states.insert(name, stored);
                continue;
            };
            let state = &found.record.0;
            let is_suspect = caution.suspects(job) && state.quarantine.is_none();
            if !is_suspect && !is_dangerous(state) {
                states.insert(name, stored);
                continue;
            }
            let blob = found.blob.clone();
            self.ledger.note_blob(job, Kind::States, blob);
            self.ledger.note_unreadable_graph(job);
            let state = Box::new(state.clone());
            let job_found = if is_suspect {
                RecoveredJob::Suspect { state }
            } else {
                RecoveredJob::SetAside { state, graph: None }
            };
            recovered.jobs.push((job, job_found));
            passed_over.insert(name, ());
        }
        passed_over
    }

    /// Returns once the store has confirmed that the term continues, after all earlier writes of this process.
    /// Fails if the term is over.
    pub(super) async fn confirm_term(&self) -> Result<(), JobStoreError> {
        match self.pipeline.commit(Vec::new()).await {
            // Refused for lack of space, but ordered after all earlier writes.
            Ok(_) | Err(CommitError::OutOfSpace(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads all records of a job of this term again, after all pending writes. Waits for the store until the
    /// term ends.
    pub async fn reread(&self, job: JobId) -> Result<RecoveredJob, JobStoreError> {
        let name = name_of(job);
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        loop {
            // Writes in progress when a JobMaster ended come before this, or were never sent.
            self.confirm_term().await?;
            let graph = self.records.get::<GraphRecord>(&name).await;
            let state = self.records.get::<StateRecord>(&name).await;
            // Denied access may last: don't wait for it here, return the job as out of reach.
            let passes = |error: &Error| error.outcome() != Outcome::Fatal;
            let failure = graph.as_ref().err().or(state.as_ref().err());
            match failure.filter(|error| passes(error)) {
                Some(error) => warn!(%job, %error, "a job can't be read again; reading is retried"),
                None => return Ok(self.recovered_job(job, graph.transpose(), state.transpose())),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Writes that a job is quarantined; nothing if its state can't be read. No one else may write that state
    /// meanwhile.
    pub async fn set_aside(
        &self,
        job: JobId,
        quarantine: &pb::Quarantine,
    ) -> Result<(), PersistError> {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        let stored = loop {
            match self.records.get::<StateRecord>(&name_of(job)).await {
                Ok(stored) => break stored,
                Err(error) if may_pass(&error) => {
                    warn!(%job, %error, "a job to be quarantined can't be read; reading is retried");
                }
                Err(error) => return Err(PersistError::Refused(error.to_string())),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        };
        let Some(stored) = stored.filter(|it| it.record.0.job_id == job.to_string()) else {
            return Ok(());
        };
        let state = pb::JobState {
            quarantine: Some(quarantine.clone()),
            ..stored.record.0
        };
        self.put_state(&state).await
    }

    pub(super) fn recovered_job(
        &self,
        job: JobId,
        graph: Found<GraphRecord>,
        state: Found<StateRecord>,
    ) -> RecoveredJob {
        self.ledger.protect(job);
        let missing = |kind: &str| Flaw::unreadable(format!("{kind}/{job} is missing"));
        let unreadable = |error: &Error| {
            self.note_unreadable(error);
            Flaw::of(error)
        };
        // Writing the record of such a job would overwrite the other job's record.
        let of_another =
            |kind: &str, of: &str| Flaw::unreadable(format!("{kind}/{job} is of job {of}"));
        let state = match state {
            Some(Ok(stored)) if stored.record.0.job_id != job.to_string() => {
                Err(of_another("states", &stored.record.0.job_id))
            }
            Some(Ok(stored)) => {
                self.ledger.note_blob(job, Kind::States, stored.blob);
                Ok(Box::new(stored.record.0))
            }
            Some(Err(error)) => Err(unreadable(&error)),
            None => Err(missing("states")),
        };
        let graph = match graph {
            Some(Ok(stored)) if stored.record.0.job_id != job.to_string() => {
                self.ledger.note_unreadable_graph(job);
                Err(of_another("graphs", &stored.record.0.job_id))
            }
            Some(Ok(stored)) => {
                let graph = Box::new(stored.record.0);
                self.ledger.note_blob(job, Kind::Graphs, stored.blob);
                self.ledger.note_graph(job, stored.chunks, &graph);
                Ok(graph)
            }
            Some(Err(error)) => {
                self.ledger.note_unreadable_graph(job);
                Err(unreadable(&error))
            }
            None => Err(missing("graphs")),
        };
        match (graph, state) {
            (graph, Ok(state)) if state.quarantine.is_some() => {
                let graph = graph.ok();
                RecoveredJob::SetAside { state, graph }
            }
            (Ok(graph), Ok(state)) => RecoveredJob::Readable { graph, state },
            (Err(Flaw { kind: None, reason }), Ok(state)) => {
                let state = Some(state);
                RecoveredJob::Unavailable { state, reason }
            }
            (_, Err(Flaw { kind: None, reason })) => RecoveredJob::Unavailable {
                state: None,
                reason,
            },
            (
                Ok(graph),
                Err(Flaw {
                    kind: Some(kind),
                    reason,
                }),
            ) => RecoveredJob::Unreadable {
                kind,
                reason,
                state: None,
                graph: Some(graph),
            },
            (
                Err(Flaw {
                    kind: Some(kind),
                    reason,
                }),
                state,
            ) => RecoveredJob::Unreadable {
                kind,
                reason,
                state: state.ok(),
                graph: None,
            },
            // The problem of its state is permanent.
            (
                Err(Flaw { kind: None, .. }),
                Err(Flaw {
                    kind: Some(kind),
                    reason,
                }),
            ) => RecoveredJob::Unreadable {
                kind,
                reason,
                state: None,
                graph: None,
            },
        }
    }

    /// Records what a result that was read refers to, and returns it.
    pub(super) fn recovered_result(
        &self,
        job: JobId,
        stored: Stored<ResultRecord>,
    ) -> pb::JobResult {
        self.ledger.note_blob(job, Kind::Results, stored.blob);
        if let Some(kept) = &stored.record.0.description {
            self.note_kept(job, kept);
        }
        stored.record.0
    }
}
