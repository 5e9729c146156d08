//! What a JobManager does while it stands by: it keeps the records of jobs warm, and tells others how far it is.
//!
//! The cache is followed only while nobody gave this process a term; a term takes the records out of it, and afterwards
//! it begins anew. Others are told at a slow pace and only of news, so that standbys of an idle cluster write nothing.

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::election::{LeaderElection, LeaderSession, Member, MemberCache};
use tanist_ha::keys::Kind;
use tanist_ha::retry::Backoff;
use tanist_ha::store::CoordinationStore;
use tanist_ha::store::cache::compare::as_stored;
use tanist_ha::store::cache::{CacheOptions, CacheStatus, Proven, Records, WarmCache};
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_ha::{Error, Result};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::peers::Reports;
use crate::config::ClusterOptions;
use crate::dispatcher::JobStore;

/// A member's record is written this seldom for the sake of its cache.
const TELL_INTERVAL: Duration = Duration::from_secs(10);
/// A takeover waits no longer for the names of the store's records.
const NAMES_PATIENCE: Duration = Duration::from_millis(500);
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

/// The records as they are at the beginning of a term: proven against the number that its pipeline starts from, before
/// the term has written anything. Tries until it succeeds or the term is over.
pub(super) async fn prove(
    cache: &mut WarmCache,
    pipeline: &CommitPipeline,
    session: &LeaderSession,
) -> Result<Proven> {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    let at = pipeline.last();
    loop {
        match cache.prove(session.incarnation(), at).await {
            Ok(proven) => return Ok(proven),
            Err(error) => warn!(%error, "the records can't be proven current, this is tried again"),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = session.over() => return Err(Error::Fenced { epoch: session.epoch().next() }),
        }
    }
}

/// What the store holds by name, where that is not what the cache gave: somebody deleted records there, or put some, by hand. Has to be
/// asked before the term has written any. `None` as well where the store does not answer that soon: nobody waits for it long.
pub(super) async fn damaged(store: &dyn CoordinationStore, proven: &Proven) -> Option<Records> {
    if proven.from_cache == 0 {
        // All of it was just read.
        return None;
    }
    // Of results there may be very many, and what is known of an ended job is written no more.
    let kinds: Vec<Kind> = JobStore::KINDS
        .into_iter()
        .filter(|it| *it != Kind::Results)
        .collect();
    let compared = as_stored(store, &kinds, &proven.records);
    match tokio::time::timeout(NAMES_PATIENCE, compared).await {
        Ok(Ok(damaged)) => damaged,
        Ok(Err(error)) => {
            debug!(%error, "the records of the cache are not compared with the store's");
            None
        }
        Err(_) => {
            debug!("the records of the cache are not compared with the store's: it takes too long");
            None
        }
    }
}

/// Tells in the beats how far the cache is: an invitation goes to the process that is most current. Zero while it stands
/// nowhere.
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

/// Keeps the member's record current, for as long as the cache is there: written once, then when the cache has moved on.
pub(super) async fn tell(
    election: LeaderElection,
    mut member: Member,
    mut status: watch::Receiver<CacheStatus>,
) {
    loop {
        let now = *status.borrow_and_update();
        // A leader's cache is cold; what it said before is as good as nothing then.
        let news = now.change.map(|change| MemberCache {
            change,
            records: now.records,
            bytes: now.bytes,
            differed: now.differed,
        });
        if news.is_some() && news != member.cache {
            member.cache = news;
            if let Err(error) = election.announce(&member).await {
                debug!(%error, "how far the standby's cache is was not written");
            }
            tokio::time::sleep(TELL_INTERVAL).await;
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}
