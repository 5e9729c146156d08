//! The work of a standby JobManager: it keeps the records of jobs in a warm cache, reports how current the cache is,
//! and proves the cache when the process is granted a term.
//!
//! The cache is followed only while this process has no term; a term takes the records out of it, and
//! afterwards it starts again empty. Reports are rare and only made on changes, so that standbys of an idle
//! cluster write nothing.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use tanist_config::ClusterOptions;
use tanist_dispatcher::JobStore;
use tanist_gateway::kinds;
use tanist_ha::election::{LeaderElection, LeaderSession, Member, MemberCache};
use tanist_ha::keys::{Key, Kind};
use tanist_ha::retry::Backoff;
use tanist_ha::store::CoordinationStore;
use tanist_ha::store::cache::compare::{StoredNames, as_stored};
use tanist_ha::store::cache::{CacheOptions, CacheStatus, Proof, Proven, Records, WarmCache};
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_ha::{Error, Result};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::peers::Reports;

/// Minimum interval between two writes of the member's record because of its cache.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of a takeover for the names of the store's records, counted from the proof of the cache.
const NAMES_TIMEOUT: Duration = Duration::from_millis(500);
const FIRST_RETRY: Duration = Duration::from_millis(20);
const SLOWEST_RETRY: Duration = Duration::from_secs(1);

/// An empty cache of what a term needs.
pub(super) fn cache(
    options: &ClusterOptions,
    store: Arc<dyn CoordinationStore>,
    status: watch::Sender<CacheStatus>,
) -> WarmCache {
    let options = CacheOptions {
        kinds: JobStore::KINDS.to_vec(),
        max_bytes: options.ha.standby_cache_max_size.as_usize(),
        compare_interval: options.ha.standby_cache_check_interval,
    };
    WarmCache::new(store, options, status)
}

/// The records at the beginning of a term, before it has written anything: proven against the number that its
/// pipeline starts from, and compared with the names that the store lists, if it lists them in time. Retries
/// until it succeeds or the term is over.
///
/// The pipeline has started, so the fence is up: a write that a former leader had sent was applied before, or
/// is refused. Until this term writes, all reads show the same records in any order, except for manual changes.
/// The names are therefore listed concurrently with the proof, and take no additional time.
pub(super) async fn prove(
    cache: &mut WarmCache,
    store: &dyn CoordinationStore,
    pipeline: &CommitPipeline,
    session: &LeaderSession,
) -> Result<Proven> {
    let proving = pin!(prove_number(cache, pipeline, session));
    let listing = pin!(names(store));
    let (proven, names) = match select(proving, listing).await {
        Either::Left((proven, listing)) => {
            let proven = proven?;
            let names = match proven.proof {
                // All records were just read.
                Proof::Listed => None,
                Proof::Current | Proof::CaughtUp => in_time(listing).await,
            };
            (proven, names)
        }
        Either::Right((names, proving)) => (proving.await?, Some(names)),
    };
    let differing = names.map(|names| names.differing(&proven.records));
    match differing {
        Some(differing) if !differing.is_empty() => {
            let records = read_again(store, &differing, &proven.records, session).await?;
            Ok(Proven { records, ..proven })
        }
        Some(_) | None => Ok(proven),
    }
}

async fn prove_number(
    cache: &mut WarmCache,
    pipeline: &CommitPipeline,
    session: &LeaderSession,
) -> Result<Proven> {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    let at = pipeline.last();
    loop {
        match cache.prove(session.incarnation(), at).await {
            Ok(proven) => return Ok(proven),
            Err(error) => warn!(%error, "the records can't be proven current: retrying"),
        }
        wait(&mut backoff, session).await?;
    }
}

/// The names of the store's records. Retries until it succeeds.
async fn names(store: &dyn CoordinationStore) -> StoredNames {
    // Results are left out: there may be very many, and the record of an ended job is not written any more.
    let kinds: Vec<Kind> = JobStore::KINDS
        .into_iter()
        .filter(|it| *it != kinds::RESULTS)
        .collect();
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    loop {
        match StoredNames::list(store, &kinds).await {
            Ok(names) => return names,
            Err(error) => debug!(%error, "the names of the store's records can't be listed"),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// The names, or `None` after the timeout.
async fn in_time(listing: impl Future<Output = StoredNames>) -> Option<StoredNames> {
    let names = tokio::time::timeout(NAMES_TIMEOUT, listing).await.ok();
    if names.is_none() {
        warn!("the cache is not compared with the names in the store: listing them takes too long");
    }
    names
}

/// Reads again the records that were deleted or put by hand: a deleted one is not restored, and a new one is
/// not missed.
async fn read_again(
    store: &dyn CoordinationStore,
    differing: &[Key],
    cached: &Records,
    session: &LeaderSession,
) -> Result<Records> {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    loop {
        match as_stored(store, differing, cached).await {
            Ok(records) => return Ok(records),
            Err(error) => {
                warn!(%error, "records that differ between the cache and the store can't be read: retrying");
            }
        }
        wait(&mut backoff, session).await?;
    }
}

async fn wait(backoff: &mut Backoff, session: &LeaderSession) -> Result<()> {
    tokio::select! {
        () = tokio::time::sleep(backoff.next_delay()) => Ok(()),
        () = session.over() => Err(Error::Fenced { epoch: session.epoch().next() }),
    }
}

/// Reports in the heartbeats how current the cache is: an invitation goes to the most current process. Zero
/// while it has no change number.
pub(super) async fn report(reports: Arc<Reports>, mut status: watch::Receiver<CacheStatus>) {
    loop {
        let change = status.borrow_and_update().change;
        reports.cached_change(change.map_or(0, |change| change.number));
        reports.moved();
        if status.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps the member's record current while the cache exists: writes it once, then whenever the cache has moved
/// on.
pub(super) async fn announce_cache(
    election: LeaderElection,
    mut member: Member,
    mut status: watch::Receiver<CacheStatus>,
) {
    loop {
        let now = *status.borrow_and_update();
        // While this process leads, its cache is cold and has no change number: the last report stays.
        let cache = now.change.map(|change| MemberCache {
            change,
            records: now.records,
            bytes: now.bytes,
            differed: now.differed,
        });
        if cache.is_some() && cache != member.cache {
            let announced = Member {
                cache,
                ..member.clone()
            };
            match election.announce(&announced).await {
                Ok(()) => member = announced,
                Err(error) => {
                    debug!(%error, "the state of the standby's cache was not written: retrying");
                    status.mark_changed();
                }
            }
            tokio::time::sleep(ANNOUNCE_INTERVAL).await;
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tanist_ha::clock::Clock;
    use tanist_ha::election::core::Timing;
    use tanist_ha::election::{ElectionOptions, Epoch, Leadership, ProcessId, random_start};
    use tanist_ha::memory::MemoryCluster;
    use tanist_ha::store::Change;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_state_of_the_cache_that_could_not_be_written_is_written_later() {
        let cluster = MemoryCluster::default();
        let process = ProcessId::new("a");
        let driver = cluster.election(process.clone(), Clock::tokio());
        let options = ElectionOptions {
            process: process.clone(),
            start: random_start(),
            timing: Timing::default(),
            clock: Clock::tokio(),
        };
        let election = LeaderElection::start(Arc::new(driver), options);
        let mut leadership = election.leadership();
        let granted = leadership.wait_for(|it| matches!(it, Leadership::Granted(_)));
        // It has a session: the member is not announced with the next one.
        drop(granted.await.expect("it runs"));
        let member = Member {
            process,
            incarnation: "1".to_owned(),
            addresses: BTreeMap::new(),
            reads_format: 1,
            version: String::new(),
            host: None,
            cache: None,
        };
        let change = Change {
            number: 7,
            epoch: Epoch::new(1),
        };
        let status = watch::Sender::new(CacheStatus {
            change: Some(change),
            ..CacheStatus::default()
        });
        cluster.unavailable(true);
        let announcing = announce_cache(election.clone(), member, status.subscribe());
        let announcing = tokio::spawn(announcing);
        // Longer than the timeout of a request, and shorter than a lease.
        tokio::time::sleep(Duration::from_secs(2)).await;
        cluster.unavailable(false);
        tokio::time::sleep(2 * ANNOUNCE_INTERVAL).await;
        let members = election.members().await.expect("readable");
        let cache = members.first().and_then(|member| member.cache);
        assert_eq!(cache.map(|cache| cache.change), Some(change));
        announcing.abort();
    }
}
