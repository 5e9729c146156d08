//! The jobs of a new term, decoded from the records of its store, and how far that is.

use std::convert::Infallible;
use std::sync::Arc;

use tanist_ha::blob::BlobStore;
use tanist_ha::election::LeaderSession;
use tanist_ha::jobs::store::RecordStore;
use tanist_ha::keys::Kind;
use tanist_ha::retry::Backoff;
use tanist_ha::store::cache::Records;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_ha::{Error, Result};
use tokio::sync::watch;
use tracing::warn;

use super::peers::Reports;
use super::settings;
use super::term::{FIRST_RETRY, SLOWEST_RETRY, TermServices};
use crate::dispatcher::{Caution, JobStore, RecoveredJobs};

/// The jobs' records of a term, and how many of them are decoded.
pub(super) fn job_store(
    services: &TermServices,
    session: &LeaderSession,
    pipeline: &CommitPipeline,
) -> (Arc<JobStore>, watch::Receiver<u64>) {
    let blobs = services.ha.blobs.as_ref();
    let records = RecordStore::new(
        services.ha.store.clone(),
        blobs.map(|blobs| Arc::new(of_term(blobs, session))),
        settings::inline_threshold(&services.options),
    )
    .with_max_split(settings::max_graph_size(&services.options));
    let decoded = records.decoded();
    let store = JobStore::new(records, pipeline.clone(), session.epoch());
    let cache = settings::description_cache(&services.options);
    (Arc::new(store.with_description_cache(cache)), decoded)
}

/// The blob store as this term uses it. What does not survive the loss of a host is on this one, and is not mounted.
fn of_term(blobs: &BlobStore, session: &LeaderSession) -> BlobStore {
    let of_cluster = blobs.of_cluster(session.incarnation());
    match blobs.survives_host() {
        true => of_cluster.guarded(),
        false => of_cluster,
    }
}

/// Every job, from the records that were proven. What is kept elsewhere is read meanwhile: tries until the coordination store has
/// given the parts of all, or the term is over. A blob that can't be read at present holds nobody up: its job is read again later.
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
    // Results are decoded later.
    let total = (records.len() - records.of(Kind::Results).count()) as u64;
    loop {
        let following = follow_decoding(decoded.clone(), total, &mut best, reports);
        let tried = tokio::select! {
            tried = store.recover(records, caution) => tried,
            never = following => match never {},
        };
        match tried {
            Ok(recovered) => return Ok(recovered),
            Err(error) => warn!(%error, "the jobs can't be read, this is tried again"),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = session.over() => return Err(Error::Fenced { epoch: session.epoch().next() }),
        }
    }
}

/// Reports how many records are decoded. One more try that comes no further than the last one is no progress.
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
