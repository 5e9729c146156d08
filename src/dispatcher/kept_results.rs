//! Results of jobs that ended before the term. They are read after the term is confirmed, as leading does not
//! need them (`docs/adr/0049`).

use std::collections::BTreeSet;

use tanist_ha::Error;
use tanist_ha::jobs::store::Stored;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::retry::Backoff;
use tanist_ha::store::cache::Records;
use tanist_proto::id::JobId;
use tracing::warn;

use super::job_store::{FIRST_RETRY, JobStore, ResultRecord, SLOWEST_RETRY, may_pass};
use super::recovery::{RecoveredJobs, unreadable_kind};

/// Returns the records of results among all records.
pub(super) fn kept_results(records: &Records) -> Records {
    let kept = records.of(Kind::Results);
    kept.map(|(name, value)| (Key::new(Kind::Results, name.clone()), value.clone()))
        .collect()
}

/// Returns the jobs that have such records; `None` if there are no records.
pub(super) fn jobs_of(kept: &Records) -> Option<BTreeSet<JobId>> {
    let names = kept.of(Kind::Results).map(|(name, _)| name);
    let jobs = names.filter_map(|name| name.as_str().parse().ok());
    (!kept.is_empty()).then(|| jobs.collect())
}

impl JobStore {
    /// Retries until the coordination store has returned all of them.
    pub(super) async fn read_results_surely(&self, records: &Records) -> RecoveredJobs {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        loop {
            match self.read_results(records).await {
                Ok(read) => return read,
                Err(error) => warn!(%error, "the results can't be read; reading is retried"),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Decodes the records of results as proven at the start of the term.
    pub async fn read_results(&self, records: &Records) -> Result<RecoveredJobs, Error> {
        let results = self.records.decode::<ResultRecord>(records).await?;
        let mut read = RecoveredJobs::default();
        for (name, result) in results {
            match name.as_str().parse() {
                Ok(job) => self.sort_result(job, result, &mut read),
                Err(error) => ignore(&name, &error),
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
        self.lock_chunks().note_unreadable(job);
        self.lock_holdings().note_unreadable_result(job);
        if may_pass(&error) {
            read.unavailable_results.push((job, error.to_string()));
            return;
        }
        self.note_unreadable(&error);
        let unreadable = (job, unreadable_kind(&error), error.to_string());
        read.unreadable_results.push(unreadable);
    }
}

fn ignore(name: &Name, error: &dyn std::fmt::Display) {
    warn!(%name, %error, "a result is ignored: its name is not a job id");
}
