//! Reads the records of jobs and results, says what each job is found to be, and enters into the ledger which objects
//! the records name.

use std::collections::{BTreeMap, BTreeSet};

use tanist_gateway::kinds;
use tanist_ha::keys::{Key, Name};
use tanist_ha::records::store::{Record as _, Stored};
use tanist_ha::store::cache::Records;
use tanist_ha::{Error, Outcome};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::{debug, warn};

use super::JobStore;
use super::blob_ledger::BlobLedger;
use super::error::JobStoreError;
use super::job_records::{JobRecords, store_backoff};
use super::records::{GraphRecord, ResultRecord, StateRecord, name_of};
use crate::recovery::{Caution, RecoveredJob, RecoveredJobs, is_dangerous};

/// Why a record could not be read.
enum Flaw {
    /// It may be readable later.
    Transient(String),
    Permanent(pb::QuarantineKind, String),
}

impl Flaw {
    fn unreadable(reason: String) -> Flaw {
        Flaw::Permanent(pb::QuarantineKind::Unreadable, reason)
    }
}

type Found<T> = Option<Result<Stored<T>, Error>>;
type States = BTreeMap<Name, Result<Stored<StateRecord>, Error>>;

/// Reads the records of jobs and results.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobReader<'a> {
    records: &'a JobRecords,
    ledger: &'a BlobLedger,
}

impl<'a> JobReader<'a> {
    pub(super) fn new(records: &'a JobRecords, ledger: &'a BlobLedger) -> JobReader<'a> {
        JobReader { records, ledger }
    }

    /// Recovers every job from the records as proven at the start of the term. Results are left to
    /// [`JobReader::read_results`].
    pub(super) async fn recover(
        &self,
        records: &Records,
        caution: &Caution,
    ) -> Result<RecoveredJobs, Error> {
        let states = self.records.decode::<StateRecord>(records).await?;
        let mut recovered = RecoveredJobs {
            kept: only_results(records),
            ..RecoveredJobs::default()
        };
        for (name, _) in records.of(kinds::BLOB_TOMBSTONES) {
            self.ledger.note_tombstone(name.clone());
        }
        let mut states: States = states.into_iter().collect();
        if let Some((job, quarantine)) = &caution.set_aside
            && let Some(Ok(stored)) = states.get_mut(&name_of(*job))
        {
            stored.record.0.quarantine = Some(quarantine.clone());
        }
        let without_graph = self.take_undecodable(&mut states, caution, &mut recovered);
        let graphs = if without_graph.is_empty() {
            self.records.decode::<GraphRecord>(records).await?
        } else {
            let rest = without_graphs_of(records, &without_graph);
            self.records.decode::<GraphRecord>(&rest).await?
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
            if let Ok(job) = name.as_str().parse::<JobId>() {
                let found = self.recovered_job(job, None, Some(state));
                recovered.jobs.push((job, found));
            }
        }
        Ok(recovered)
    }

    /// Takes out the jobs whose graph must not be decoded, and returns their names.
    fn take_undecodable(
        &self,
        states: &mut States,
        caution: &Caution,
        recovered: &mut RecoveredJobs,
    ) -> BTreeSet<Name> {
        let mut taken = BTreeSet::new();
        states.retain(|name, stored| {
            let Ok(job) = name.as_str().parse::<JobId>() else {
                return true;
            };
            let found = match &*stored {
                // Its unread state may say that decoding the graph is dangerous.
                Err(error) if error.may_pass() => RecoveredJob::Unavailable {
                    state: None,
                    reason: error.to_string(),
                },
                Err(_) => return true,
                Ok(stored) => {
                    let state = &stored.record.0;
                    let is_suspect = caution.suspects(job) && state.quarantine.is_none();
                    if !is_suspect && !is_dangerous(state) {
                        return true;
                    }
                    let blob = stored.blob.clone();
                    self.ledger.note_blob(job, kinds::STATES, blob);
                    let state = Box::new(state.clone());
                    match is_suspect {
                        true => RecoveredJob::Suspect { state },
                        false => RecoveredJob::SetAside { state, graph: None },
                    }
                }
            };
            self.ledger.note_unread_graph(job);
            recovered.jobs.push((job, found));
            taken.insert(name.clone());
            false
        });
        taken
    }

    /// Reads all records of a job of this term again, after all pending writes. Waits for the store until the
    /// term ends.
    pub(super) async fn reread(&self, job: JobId) -> Result<RecoveredJob, JobStoreError> {
        let mut backoff = store_backoff();
        loop {
            // Writes in progress when a JobMaster ended come before this, or were never sent.
            self.records.confirm_term().await?;
            let graph = self.records.get::<GraphRecord>(job).await;
            let state = self.records.get::<StateRecord>(job).await;
            // Denied access may last: don't wait for it here, return the job as unavailable.
            let passes = |error: &&Error| error.outcome() != Outcome::Fatal;
            let failure = graph.as_ref().err().or(state.as_ref().err());
            match failure.filter(passes) {
                Some(error) => warn!(%job, %error, "a job can't be read again; reading is retried"),
                None => return Ok(self.recovered_job(job, graph.transpose(), state.transpose())),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Reads a job once. Does not decode its graph if that is dangerous.
    pub(super) async fn try_read(&self, job: JobId) -> RecoveredJob {
        let unavailable = |error: &Error| RecoveredJob::Unavailable {
            state: None,
            reason: error.to_string(),
        };
        let state = self.records.get::<StateRecord>(job).await;
        match &state {
            Err(error) if error.may_pass() => return unavailable(error),
            Ok(Some(stored)) if is_dangerous(&stored.record.0) => {
                let blob = stored.blob.clone();
                self.ledger.note_blob(job, kinds::STATES, blob);
                let state = Box::new(stored.record.0.clone());
                return RecoveredJob::SetAside { state, graph: None };
            }
            Ok(_) | Err(_) => {}
        }
        let graph = self.records.get::<GraphRecord>(job).await;
        match &graph {
            Err(error) if error.may_pass() => unavailable(error),
            Ok(_) | Err(_) => self.recovered_job(job, graph.transpose(), state.transpose()),
        }
    }

    /// Says what a job is found to be.
    pub(super) fn recovered_job(
        &self,
        job: JobId,
        graph: Found<GraphRecord>,
        state: Found<StateRecord>,
    ) -> RecoveredJob {
        self.ledger.protect(job);
        let missing = |kind: &str| Flaw::unreadable(format!("{kind}/{job} is missing"));
        // Writing the record of such a job would overwrite the other job's record.
        let of_another =
            |kind: &str, of: &str| Flaw::unreadable(format!("{kind}/{job} is of job {of}"));
        let state = match state {
            Some(Ok(stored)) if stored.record.0.job_id != job.to_string() => {
                Err(of_another("states", &stored.record.0.job_id))
            }
            Some(Ok(stored)) => {
                self.ledger.note_blob(job, kinds::STATES, stored.blob);
                Ok(Box::new(stored.record.0))
            }
            Some(Err(error)) => Err(self.flaw(&error)),
            None => Err(missing("states")),
        };
        let graph = match graph {
            Some(Ok(stored)) if stored.record.0.job_id != job.to_string() => {
                self.ledger.note_unread_graph(job);
                Err(of_another("graphs", &stored.record.0.job_id))
            }
            Some(Ok(stored)) => {
                let graph = Box::new(stored.record.0);
                self.ledger.note_blob(job, kinds::GRAPHS, stored.blob);
                self.ledger.note_graph(job, stored.chunks, &graph);
                Ok(graph)
            }
            Some(Err(error)) => {
                self.ledger.note_unread_graph(job);
                Err(self.flaw(&error))
            }
            None => Err(missing("graphs")),
        };
        // The first arm that fits: a recorded quarantine counts, whatever the graph is. And a state that is unreadable
        // for now counts before a missing or damaged graph.
        match (graph, state) {
            (graph, Ok(state)) if state.quarantine.is_some() => RecoveredJob::SetAside {
                state,
                graph: graph.ok(),
            },
            (Ok(graph), Ok(state)) => RecoveredJob::Readable { graph, state },
            (Err(Flaw::Transient(reason)), Ok(state)) => RecoveredJob::Unavailable {
                state: Some(state),
                reason,
            },
            (_, Err(Flaw::Transient(reason))) => RecoveredJob::Unavailable {
                state: None,
                reason,
            },
            (Err(Flaw::Permanent(kind, reason)), state) => RecoveredJob::Unreadable {
                kind,
                reason,
                state: state.ok(),
                graph: None,
            },
            // A graph that is unreadable for now does not matter: the problem of the state is permanent.
            (graph, Err(Flaw::Permanent(kind, reason))) => RecoveredJob::Unreadable {
                kind,
                reason,
                state: None,
                graph: graph.ok(),
            },
        }
    }

    fn flaw(&self, error: &Error) -> Flaw {
        self.records.note_unreadable(error);
        match error.may_pass() {
            true => Flaw::Transient(error.to_string()),
            false => Flaw::Permanent(unreadable_kind(error), error.to_string()),
        }
    }

    /// Decodes the records of results as proven at the start of the term.
    pub(super) async fn read_results(&self, records: &Records) -> Result<RecoveredJobs, Error> {
        let results = self.records.decode::<ResultRecord>(records).await?;
        let mut read = RecoveredJobs::default();
        for (name, result) in results {
            match name.as_str().parse::<JobId>() {
                Ok(job) => self.sort_result(job, result, &mut read),
                Err(error) => {
                    warn!(%name, %error, "a result is ignored: its name is not a job id");
                }
            }
        }
        Ok(read)
    }

    fn sort_result(
        &self,
        job: JobId,
        result: Result<Stored<ResultRecord>, Error>,
        read: &mut RecoveredJobs,
    ) {
        let error = match result {
            Ok(stored) => {
                let result = self.recovered_result(job, stored);
                read.results.push((job, result));
                return;
            }
            Err(error) => error,
        };
        self.ledger.note_unreadable_result(job);
        if error.may_pass() {
            read.unavailable_results.push((job, error.to_string()));
            return;
        }
        self.records.note_unreadable(&error);
        let unreadable = (job, unreadable_kind(&error), error.to_string());
        read.unreadable_results.push(unreadable);
    }

    /// Reads a result that could not be read before. `None`: it can't be read for now.
    pub(super) async fn try_read_result(
        &self,
        job: JobId,
    ) -> Option<Result<pb::JobResult, (pb::QuarantineKind, String)>> {
        match self.records.get::<ResultRecord>(job).await {
            Ok(Some(stored)) => {
                let result = self.recovered_result(job, stored);
                // The objects that it names are known now.
                self.ledger.forget_results(&[job]);
                Some(Ok(result))
            }
            Ok(None) => {
                let reason = format!("results/{job} is missing");
                Some(Err((pb::QuarantineKind::Unreadable, reason)))
            }
            Err(error) if error.may_pass() => {
                debug!(%job, %error, "the result of an ended job can't be read yet");
                None
            }
            Err(error) => {
                self.records.note_unreadable(&error);
                Some(Err((unreadable_kind(&error), error.to_string())))
            }
        }
    }

    /// Enters into the ledger which objects a result names, and returns it.
    fn recovered_result(&self, job: JobId, stored: Stored<ResultRecord>) -> pb::JobResult {
        self.ledger.note_blob(job, kinds::RESULTS, stored.blob);
        if let Some(kept) = &stored.record.0.description {
            self.ledger.note_kept_description(job, kept);
        }
        stored.record.0
    }
}

fn unreadable_kind(error: &Error) -> pb::QuarantineKind {
    if matches!(error, Error::TooNew { .. }) {
        pb::QuarantineKind::TooNew
    } else {
        pb::QuarantineKind::Unreadable
    }
}

/// Returns the records of results among all records.
fn only_results(records: &Records) -> Records {
    let results = records.of(kinds::RESULTS);
    results
        .map(|(name, value)| (Key::new(kinds::RESULTS, name.clone()), value.clone()))
        .collect()
}

/// Returns all records but these graphs.
fn without_graphs_of(records: &Records, names: &BTreeSet<Name>) -> Records {
    let all = JobStore::KINDS.into_iter().flat_map(|kind| {
        let of_kind = records.of(kind);
        of_kind.map(move |(name, value)| (Key::new(kind, name.clone()), value.clone()))
    });
    all.filter(|(key, _)| key.kind != GraphRecord::KIND || !names.contains(&key.name))
        .collect()
}

#[cfg(test)]
#[path = "tests/job_reader_tests.rs"]
mod tests;
