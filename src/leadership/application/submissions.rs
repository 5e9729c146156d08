//! The jobs that an application's program has submitted, according to its record. A recorded job that is gone
//! was removed by an operator, and its end is unknown. It is never submitted again.
//!
//! A job is noted after the cluster has it. A crash between the two leaves a job that is there: the next run of
//! the program gets it, and notes it then.
//!
//! Invariants: writes are made one after the other, and none after the program's run is over: the decision how
//! the application ended is written last. Readers never wait for a write.

use parking_lot::Mutex;
use tanist_ha::Error;
use tanist_ha::keys::Name;
use tanist_ha::store::pipeline::CommitPipeline;

use super::commits::{NotCommitted, commit};
use super::record::ApplicationRecord;

/// Whether more jobs may be noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Run {
    GoesOn,
    IsOver,
}

/// Why a job that the cluster has was not noted.
#[derive(Debug)]
pub(super) enum NotNoted {
    /// The program's run is over: tasks that it left behind still submit.
    RunIsOver,
    /// The store does not accept the record.
    TooLarge(Error),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Submissions {
    pipeline: CommitPipeline,
    cluster_id: Name,
    /// The record as last written.
    record: Mutex<ApplicationRecord>,
    /// Held during a write.
    run: tokio::sync::Mutex<Run>,
}

impl Submissions {
    pub(super) fn new(
        pipeline: CommitPipeline,
        cluster_id: Name,
        record: ApplicationRecord,
    ) -> Submissions {
        Submissions {
            pipeline,
            cluster_id,
            record: Mutex::new(record),
            run: tokio::sync::Mutex::new(Run::GoesOn),
        }
    }

    pub(super) fn has(&self, position: u32) -> bool {
        self.record.lock().submitted.has(position)
    }

    /// Records that the cluster has the job. The record is durable when this returns. If the term is over, it never
    /// returns.
    pub(super) async fn note(&self, position: u32) -> Result<(), NotNoted> {
        let run = self.run.lock().await;
        if self.has(position) {
            return Ok(());
        }
        if *run == Run::IsOver {
            return Err(NotNoted::RunIsOver);
        }
        let mut record = self.record();
        record.submitted.note(position);
        match commit(&self.pipeline, vec![record.write(&self.cluster_id)]).await {
            Ok(()) => {
                *self.record.lock() = record;
                Ok(())
            }
            Err(NotCommitted::TooLarge(error)) => Err(NotNoted::TooLarge(error)),
            Err(NotCommitted::TermOver) => {
                drop(run);
                std::future::pending().await
            }
        }
    }

    /// Ends the program's run. Returns the record, which does not change until the end is decided.
    pub(super) async fn close(&self) -> ApplicationRecord {
        *self.run.lock().await = Run::IsOver;
        self.record()
    }

    fn record(&self) -> ApplicationRecord {
        self.record.lock().clone()
    }
}
