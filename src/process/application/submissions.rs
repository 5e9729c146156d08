//! Which jobs the program of an application has submitted, as its record says: what was submitted once and is gone was removed by
//! somebody, and nobody can say how it ended. It is never submitted anew.
//!
//! A job is noted after the cluster has it. A crash between the two leaves a job that is there: the next run of the program is
//! given it, and notes it then.

use tanist_proto::id::JobId;
use tokio::sync::Mutex;

use super::bootstrap::ApplicationTerm;
use super::record::ApplicationRecord;

/// See the module.
#[derive(Debug)]
pub(super) struct Submissions {
    term: ApplicationTerm,
    record: Mutex<ApplicationRecord>,
}

impl Submissions {
    pub(super) fn new(term: ApplicationTerm, record: ApplicationRecord) -> Submissions {
        let record = Mutex::new(record);
        Submissions { term, record }
    }

    pub(super) async fn has(&self, job: JobId) -> bool {
        let job = job.to_string();
        self.record.lock().await.submitted.contains(&job)
    }

    /// The cluster has the job. Durable when it returns; it never does if the term is over.
    pub(super) async fn note(&self, job: JobId) {
        let mut record = self.record.lock().await;
        let job = job.to_string();
        if !record.submitted.contains(&job) {
            record.submitted.push(job);
            let write = record.write(&self.term.cluster_id);
            self.term.commit(vec![write]).await;
        }
    }

    /// The record as it was written last.
    pub(super) async fn record(&self) -> ApplicationRecord {
        self.record.lock().await.clone()
    }
}
