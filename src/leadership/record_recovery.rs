//! Decodes the jobs of a new term from the records of its store, and reports the progress.

use std::convert::Infallible;
use std::sync::Arc;

use tanist_dispatcher::{Caution, JobStore, RecoveredJobs};
use tanist_gateway::kinds;
use tanist_ha::election::LeaderSession;
use tanist_ha::records::store::RecordStore;
use tanist_ha::retry::Backoff;
use tanist_ha::store::cache::Records;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_ha::{Error, Result};
use tokio::sync::watch;
use tracing::warn;

use super::peers::Reports;
use super::settings;
use super::term::{FIRST_RETRY, SLOWEST_RETRY, TermServices};

/// The store of a term's job records, and the number of records decoded so far.
pub(super) fn job_store(
    services: &TermServices,
    session: &LeaderSession,
    pipeline: &CommitPipeline,
) -> (Arc<JobStore>, watch::Receiver<u64>) {
    let blobs = services.ha.blobs.as_ref();
    let records = RecordStore::new(
        services.ha.store.clone(),
        blobs.map(|blobs| Arc::new(blobs.of_cluster(session.incarnation()).guarded())),
        settings::inline_threshold(&services.options),
    )
    .with_max_split(settings::max_graph_size(&services.options));
    let decoded = records.decoded();
    let store = JobStore::new(records, pipeline.clone(), session.epoch());
    let store = store.with_sinks(services.sinks.cleaner.clone());
    let cache = settings::description_cache(&services.options);
    (Arc::new(store.with_description_cache(cache)), decoded)
}

/// Decodes every job from the proven records. Parts that are stored outside of them (chunks, blobs) are read now:
/// retries until the coordination store has returned its parts of all jobs, or the term is over. A blob that can't be
/// read at present delays no other job: its job is read again later.
pub(super) async fn recover(
    store: &JobStore,
    records: &Records,
    caution: &Caution,
    session: &LeaderSession,
    decoded: watch::Receiver<u64>,
    reports: Option<&Reports>,
) -> Result<RecoveredJobs> {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    let mut best = 0;
    // Results are decoded after the term is confirmed.
    let total = (records.len() - records.of(kinds::RESULTS).count()) as u64;
    loop {
        let following = follow_decoding(decoded.clone(), total, &mut best, reports);
        let tried = tokio::select! {
            tried = store.recover(records, caution) => tried,
            never = following => match never {},
        };
        match tried {
            Ok(recovered) => return Ok(recovered),
            Err(error) => warn!(%error, "the jobs can't be read: retrying"),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = session.over() => return Err(Error::Fenced { epoch: session.epoch().next() }),
        }
    }
}

/// Reports how many records are decoded. A retry that comes no further than the previous attempt is no
/// progress.
async fn follow_decoding(
    mut decoded: watch::Receiver<u64>,
    total: u64,
    best: &mut u64,
    reports: Option<&Reports>,
) -> Infallible {
    let before = *decoded.borrow_and_update();
    loop {
        let done = *decoded.borrow_and_update() - before;
        if done > *best || *best == 0 {
            *best = done;
            if let Some(reports) = reports {
                reports.recovering(done, total);
            }
        }
        if decoded.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}
