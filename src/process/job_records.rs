//! Reads the stored generations of jobs for a TaskManager, over a read-only connection to the store that it opens
//! at the first query. It keeps what it read last.
//!
//! Bounded load: while no transaction is committed, as without a leader, a query costs one small read. After a
//! transaction the states of the queried jobs are read again, and results only where there is no state.
//!
//! Invariants: reads are linearizable and begin after the query. A missing state counts only if the store
//! belonged to the same cluster *after* the read: a store that was wiped or replaced says nothing about jobs. A
//! state that names another job counts as unreadable.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_config::HaOptions;
use tanist_dispatcher::StateRecord;
use tanist_gateway::kinds;
use tanist_gateway::{JobRecords, NoAnswer, StoredGenerations, StoredJobs};
use tanist_ha::Error;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_ha::keys::{Key, Name};
use tanist_ha::records::store::{RecordStore, Stored};
use tanist_leadership::ha;
use tanist_proto::id::{Generation, JobId};
use tokio::sync::OnceCell;
use tracing::debug;

/// Number of jobs whose records are read at once.
const BATCH: usize = 128;

/// See the module.
#[derive(Debug)]
pub(super) struct StoredJobRecords {
    options: Option<HaOptions>,
    opened: OnceCell<RecordStore>,
    known: Mutex<Known>,
}

/// What was read, and after which transaction.
#[derive(Debug, Default)]
struct Known {
    incarnation: Option<ClusterIncarnation>,
    change: u64,
    jobs: BTreeMap<JobId, StoredGenerations>,
}

impl StoredJobRecords {
    /// Opens the configured store at the first query.
    pub(super) fn of(options: HaOptions) -> StoredJobRecords {
        StoredJobRecords {
            options: Some(options),
            opened: OnceCell::new(),
            known: Mutex::default(),
        }
    }

    /// Reads from an open store.
    #[cfg(test)]
    pub(super) fn opened(records: RecordStore) -> StoredJobRecords {
        StoredJobRecords {
            options: None,
            opened: OnceCell::new_with(Some(records)),
            known: Mutex::default(),
        }
    }

    async fn records(&self) -> Result<&RecordStore, NoAnswer> {
        let open = || async {
            match &self.options {
                Some(options) => ha::open_records(options).await,
                None => Err(Error::Misconfigured("no store is configured".into())),
            }
        };
        self.opened.get_or_try_init(open).await.map_err(no_answer)
    }

    /// Removes from `jobs` those that are known as of this transaction and returns them; drops older knowledge,
    /// and jobs that are not queried.
    fn take_known(&self, term: &Term, jobs: &mut Vec<JobId>) -> BTreeMap<JobId, StoredGenerations> {
        let mut known = self.known.lock();
        let is_current =
            known.incarnation.as_ref() == Some(&term.incarnation) && known.change == term.change;
        if !is_current {
            *known = Known::default();
        }
        known.jobs.retain(|job, _| jobs.contains(job));
        jobs.retain(|job| !known.jobs.contains_key(job));
        known.jobs.clone()
    }

    fn keep(&self, term: &Term, jobs: &BTreeMap<JobId, StoredGenerations>) {
        let mut known = self.known.lock();
        *known = Known {
            incarnation: Some(term.incarnation.clone()),
            change: term.change,
            jobs: jobs.clone(),
        };
    }
}

#[async_trait]
impl JobRecords for StoredJobRecords {
    async fn stored_jobs(&self, jobs: &[JobId]) -> Result<StoredJobs, NoAnswer> {
        let records = self.records().await?;
        // Before the records: data that is read after the term is at least as young.
        let before = Term::read(records).await?;
        let mut unknown = jobs.to_vec();
        let mut stored_jobs = self.take_known(&before, &mut unknown);
        if unknown.is_empty() {
            return Ok(before.answer(stored_jobs));
        }
        for some in unknown.chunks(BATCH) {
            stored_jobs.extend(read(records, some).await?);
        }
        let after = Term::read(records).await?;
        if after.incarnation != before.incarnation || after.epoch < before.epoch {
            return Err(NoAnswer("the store was replaced meanwhile".to_owned()));
        }
        self.keep(&before, &stored_jobs);
        debug!(
            jobs = unknown.len(),
            change = before.change,
            "read the stored generations of jobs"
        );
        Ok(after.answer(stored_jobs))
    }
}

/// The content of the store's guards.
struct Term {
    incarnation: ClusterIncarnation,
    epoch: Epoch,
    change: u64,
}

impl Term {
    async fn read(records: &RecordStore) -> Result<Term, NoAnswer> {
        let guard = records.coordination_store().guard().await;
        let guard = guard.map_err(no_answer)?;
        let change = guard.change.number;
        let empty = || NoAnswer("the store is empty".to_owned());
        let (epoch, _, incarnation) = guard.epoch.ok_or_else(empty)?;
        Ok(Term {
            incarnation,
            epoch,
            change,
        })
    }

    fn answer(self, jobs: BTreeMap<JobId, StoredGenerations>) -> StoredJobs {
        StoredJobs {
            incarnation: self.incarnation,
            epoch: self.epoch,
            jobs,
        }
    }
}

/// Reads states, then results. A job's state is removed in the transaction that writes its result: if it is
/// missing, a later read finds the result, or the job is gone.
async fn read(
    records: &RecordStore,
    jobs: &[JobId],
) -> Result<Vec<(JobId, StoredGenerations)>, NoAnswer> {
    let names: Vec<Name> = jobs.iter().copied().map(name_of).collect();
    let states = records.get_all::<StateRecord>(&names).await;
    let states = states.map_err(no_answer)?;
    let mut stored_jobs = Vec::with_capacity(jobs.len());
    let mut missing = Vec::new();
    for (&job, state) in jobs.iter().zip(states) {
        match state {
            Some(state) => stored_jobs.push((job, stored_generations_of(job, state))),
            None => missing.push(job),
        }
    }
    let keys: Vec<Key> = missing
        .iter()
        .map(|&job| Key::new(kinds::RESULTS, name_of(job)))
        .collect();
    let results = records.coordination_store().get(&keys).await;
    for (job, result) in missing.into_iter().zip(results.map_err(no_answer)?) {
        let stored_generations = match result {
            Some(_) => StoredGenerations::Ended,
            None => StoredGenerations::Absent,
        };
        stored_jobs.push((job, stored_generations));
    }
    Ok(stored_jobs)
}

/// Another job's generations say nothing about this one's tasks.
fn stored_generations_of(
    job: JobId,
    state: Result<Stored<StateRecord>, Error>,
) -> StoredGenerations {
    match state {
        Ok(Stored { record, .. }) if record.0.job_id != job.to_string() => {
            StoredGenerations::Unreadable(format!("states/{job} is of job {}", record.0.job_id))
        }
        Ok(Stored { record, .. }) => {
            let regions = record.0.regions.iter();
            StoredGenerations::Present(
                regions
                    .map(|region| Generation::new(region.generation))
                    .collect(),
            )
        }
        Err(error) => StoredGenerations::Unreadable(error.to_string()),
    }
}

fn no_answer(error: Error) -> NoAnswer {
    NoAnswer(error.to_string())
}

fn name_of(job: JobId) -> Name {
    Name::new(job.to_string()).expect("32 hexadecimal digits are a name")
}
