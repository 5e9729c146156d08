//! What a term finds of its jobs in the store, and what it sets aside there.
//!
//! A record that can't be read hides no other, and one that can't be read *at present* holds none up (`out_of_reach.rs`). Of suspects, and of a job that ended the processes that led it, only the state is
//! decoded: the graph may be what did it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

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
use crate::gateway::persistence::{JobStateStore as _, PersistError};

/// What recovery finds.
#[derive(Debug, Default)]
pub struct RecoveredJobs {
    /// Jobs that are not terminal.
    pub jobs: Vec<(JobId, RecoveredJob)>,
    /// The records of results that nobody has read yet.
    pub kept: Records,
    /// Jobs that ended, clean or not.
    pub results: Vec<(JobId, pb::JobResult)>,
    /// Jobs that ended, with results that can't be read: in which way, and why.
    pub unreadable_results: Vec<(JobId, pb::QuarantineKind, String)>,
    /// Jobs that ended, with results that may be read later, and why not yet.
    pub results_out_of_reach: Vec<(JobId, String)>,
}

/// A job that is not terminal.
#[derive(Debug)]
pub enum RecoveredJob {
    /// Both records are there.
    Readable {
        /// What is to run.
        graph: Box<pb::JobGraph>,
        /// How far it is.
        state: Box<pb::JobState>,
    },
    /// One of them is missing or can't be read.
    Unreadable {
        /// In which way.
        kind: pb::QuarantineKind,
        /// Why.
        reason: String,
        /// The state, if at least that can be read.
        state: Option<Box<pb::JobState>>,
        /// Or the graph.
        graph: Option<Box<pb::JobGraph>>,
    },
    /// One of them can't be read at present: that says nothing about it.
    OutOfReach {
        /// The state, if at least that can be read. Nothing of the graph.
        state: Option<Box<pb::JobState>>,
        /// Why.
        reason: String,
    },
    /// An earlier term, or this one, set it aside.
    SetAside {
        /// With the reason.
        state: Box<pb::JobState>,
        /// Nothing where that had better not be read.
        graph: Option<Box<pb::JobGraph>>,
    },
    /// It is started later, when that is written down.
    Suspect {
        /// How far it is.
        state: Box<pb::JobState>,
    },
}

impl RecoveredJob {
    /// How far it is, if that can be read.
    pub fn state(&self) -> Option<&pb::JobState> {
        match self {
            RecoveredJob::Readable { state, .. }
            | RecoveredJob::SetAside { state, .. }
            | RecoveredJob::Suspect { state } => Some(state),
            RecoveredJob::Unreadable { state, .. } | RecoveredJob::OutOfReach { state, .. } => {
                state.as_deref()
            }
        }
    }
}

/// Which jobs are not recovered like the others.
#[derive(Debug, Clone, Default)]
pub struct Caution {
    /// Only their state is decoded.
    pub suspects: Option<RangeInclusive<JobId>>,
    /// This one is set aside.
    pub set_aside: Option<(JobId, pb::Quarantine)>,
}

impl Caution {
    fn suspects(&self, job: JobId) -> bool {
        self.suspects
            .as_ref()
            .is_some_and(|range| range.contains(&job))
    }
}

/// Whether a job's graph had better not be decoded.
pub(super) fn is_dangerous(state: &pb::JobState) -> bool {
    let quarantine = state.quarantine.as_ref();
    quarantine.is_some_and(|it| it.kind() == pb::QuarantineKind::EndedProcess)
}

/// Why a record was not read.
struct Flaw {
    /// None: it may be read later.
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
    /// Every job, from the records as they were proven to be at the beginning of the term. Results are left to
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
        for (name, _) in records.of(Kind::Doomed) {
            self.lock_holdings().doom(name.clone());
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
                warn!(%name, "a graph that is no job's is ignored");
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
                // What its state says of the graph is not known.
                self.lock_parts().note_unreadable(*job);
                self.lock_holdings().hold(*job);
                let later = RecoveredJob::OutOfReach {
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
            self.note_blob(job, Kind::States, found.blob.clone());
            self.lock_parts().note_unreadable(job);
            let state = Box::new(state.clone());
            self.lock_holdings().hold(job);
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

    /// Returns when the store has said that the term goes on, after all that this process wrote before; an error: it is over.
    pub(super) async fn confirm_term(&self) -> Result<(), JobStoreError> {
        match self.pipeline.commit(Vec::new()).await {
            // Refused after all that came before it.
            Ok(_) | Err(CommitError::OutOfSpace(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a job of this term again, all of it, after all that was to be written before. Waits for the store as long as
    /// the term lasts.
    pub async fn reread(&self, job: JobId) -> Result<RecoveredJob, JobStoreError> {
        let name = name_of(job);
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        loop {
            // What a JobMaster had under way when it ended is before this, or was never sent.
            self.confirm_term().await?;
            let graph = self.records.get::<GraphRecord>(&name).await;
            let state = self.records.get::<StateRecord>(&name).await;
            // What is denied may stay so for long: that is no answer to wait for here, and leaves the job out of reach.
            let passes = |error: &Error| error.outcome() != Outcome::Fatal;
            let failure = graph.as_ref().err().or(state.as_ref().err());
            match failure.filter(|error| passes(error)) {
                Some(error) => warn!(%job, %error, "a job can't be read again at present"),
                None => return Ok(self.recovered_job(job, graph.transpose(), state.transpose())),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Writes that a job is set aside; nothing where its state can't be read. Nobody else may write that state.
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
                    warn!(%job, %error, "a job that is to be set aside can't be read, this is tried again");
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
        self.lock_holdings().hold(job);
        let missing = |kind: &str| Flaw::unreadable(format!("{kind}/{job} is missing"));
        let unreadable = |error: &Error| {
            self.note_unreadable(error);
            Flaw::of(error)
        };
        // What is written of such a job would be written over the other one's.
        let of_another =
            |kind: &str, of: &str| Flaw::unreadable(format!("{kind}/{job} is of job {of}"));
        let state = match state {
            Some(Ok(stored)) if stored.record.0.job_id != job.to_string() => {
                Err(of_another("states", &stored.record.0.job_id))
            }
            Some(Ok(stored)) => {
                self.note_blob(job, Kind::States, stored.blob);
                Ok(Box::new(stored.record.0))
            }
            Some(Err(error)) => Err(unreadable(&error)),
            None => Err(missing("states")),
        };
        let graph = match graph {
            Some(Ok(stored)) if stored.record.0.job_id != job.to_string() => {
                self.lock_parts().note_unreadable(job);
                Err(of_another("graphs", &stored.record.0.job_id))
            }
            Some(Ok(stored)) => {
                self.note_blob(job, Kind::Graphs, stored.blob);
                self.lock_parts().note(job, stored.parts);
                self.note_uploads(job, &stored.record.0);
                Ok(Box::new(stored.record.0))
            }
            Some(Err(error)) => {
                self.lock_parts().note_unreadable(job);
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
                RecoveredJob::OutOfReach { state, reason }
            }
            (_, Err(Flaw { kind: None, reason })) => RecoveredJob::OutOfReach {
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
            // What is wrong with its state does not pass.
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

    /// What is known of the result of a job once it is read.
    pub(super) fn recovered_result(
        &self,
        job: JobId,
        stored: Stored<ResultRecord>,
    ) -> pb::JobResult {
        self.note_blob(job, Kind::Results, stored.blob);
        if let Some(kept) = &stored.record.0.description {
            self.note_kept(job, kept);
        }
        stored.record.0
    }
}
