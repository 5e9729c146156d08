//! A warm cache of records on a standby, and its proof at a takeover.
//!
//! It stands at a change number: every value that it holds is the one of that number, or a later one. It gets there by a
//! listing that began after the number was read, and goes on by what the ring names, read again after the number was
//! seen; whoever is further behind than the ring lists again. So the values of a cache that stands at exactly the number
//! that the store carries are exactly the store's.
//!
//! Rules: nothing is decided on a cache that was not proven ([`WarmCache::prove`]) against the change number as it was
//! read *under the taker's own epoch*, as nobody else can have moved it since. A proof gives the records away and leaves
//! the cache empty, so that no read during a term can come from it. Watches say when to look, never what is there: one
//! that is late, lost or skips numbers costs time and nothing else.
//!
//! *What somebody changes in the store by hand* no number tells. It is looked for in rounds ([`compare`]).

pub mod compare;
mod content;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

use self::compare::Rounds;
use self::content::Content;
use crate::election::ClusterIncarnation;
use crate::error::{Error, Result};
use crate::keys::{CHANGES_RING, Key, Kind, Name};
use crate::retry::Backoff;
use crate::store::{Change, CoordinationStore};

/// How many records are listed, and how many read, at once.
const PAGE: usize = 500;
/// How many of these reads are in flight.
const READS_IN_FLIGHT: usize = 4;
/// How many entries of the ring are read at once.
const STRIDE: u64 = 128;
const FIRST_RETRY: Duration = Duration::from_millis(20);
const SLOWEST_RETRY: Duration = Duration::from_secs(2);

/// What a cache keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// The kinds whose records a takeover needs.
    pub kinds: Vec<Kind>,
    /// How many bytes names and values may take. What does not fit is known by name and read at the takeover.
    pub max_bytes: usize,
    /// How often all of it is compared with what the store holds, if that takes no longer.
    pub compare_interval: Duration,
}

/// How a cache stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStatus {
    /// The transaction that it stands at; `None`: it holds nothing that could be proven (it lists, the store is empty, or
    /// this process leads).
    pub change: Option<Change>,
    /// The store's last transaction, as far as it was told.
    pub newest: Option<Change>,
    /// Records that it knows.
    pub records: usize,
    /// Those of them that it knows by name only, as they don't fit.
    pub named_only: usize,
    /// Bytes that names and values take.
    pub bytes: usize,
    /// Reads that the store has answered since the process began: one that counts on is at work, however long it takes.
    pub reads: u64,
    /// Records that were not what the store held, since the process began: somebody had changed them there by hand.
    pub differed: u64,
}

impl CacheStatus {
    /// Transactions that it is behind the store; `None`: it does not stand anywhere.
    pub fn lag(&self) -> Option<u64> {
        let newest = self.newest?.number;
        Some(newest.saturating_sub(self.change?.number))
    }
}

/// How a cache was proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proof {
    /// It stood at the store's number.
    Current,
    /// What the ring named since was read.
    CaughtUp,
    /// It was cold, or too far behind: everything was read.
    Listed,
}

/// The records of the cache's kinds at one change number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    all: BTreeMap<Key, Bytes>,
}

impl Records {
    /// The records of a kind, by name.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = (&Name, &Bytes)> {
        let of_kind = self.all.iter().filter(move |(key, _)| key.kind == kind);
        of_kind.map(|(key, value)| (&key.name, value))
    }

    /// One record.
    pub fn get(&self, key: &Key) -> Option<&Bytes> {
        self.all.get(key)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl FromIterator<(Key, Bytes)> for Records {
    fn from_iter<T: IntoIterator<Item = (Key, Bytes)>>(records: T) -> Records {
        let all = records.into_iter().collect();
        Records { all }
    }
}

/// What a proof gives.
#[derive(Debug)]
pub struct Proven {
    /// All records, as the store had them at the number that was asked for.
    pub records: Records,
    /// How it was proven.
    pub proof: Proof,
    /// Records whose values the cache held.
    pub from_cache: usize,
    /// Records whose values were read from the store for this.
    pub read: usize,
}

/// Where a cache stands.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Position {
    incarnation: ClusterIncarnation,
    change: Change,
}

/// What a proof has read of the records that the cache knows by name only. If it fails, the next one for the same number
/// goes on from here: nobody else writes under the taker's epoch.
#[derive(Debug)]
struct Unheld {
    position: Position,
    values: BTreeMap<Key, Bytes>,
}

/// See the module.
pub struct WarmCache {
    store: Arc<dyn CoordinationStore>,
    kinds: Vec<Kind>,
    content: Content,
    position: Option<Position>,
    unheld: Option<Unheld>,
    rounds: Rounds,
    differed: u64,
    status: watch::Sender<CacheStatus>,
}

impl fmt::Debug for WarmCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WarmCache")
            .field("position", &self.position)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// Whether the ring still had what was asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ring {
    Followed,
    GoneOn,
}

impl WarmCache {
    /// An empty one, which says in `status` how it stands.
    pub fn new(
        store: Arc<dyn CoordinationStore>,
        options: CacheOptions,
        status: watch::Sender<CacheStatus>,
    ) -> WarmCache {
        WarmCache {
            store,
            rounds: Rounds::new(options.kinds.clone(), options.compare_interval),
            differed: 0,
            kinds: options.kinds,
            content: Content::new(options.max_bytes),
            position: None,
            unheld: None,
            status,
        }
    }

    /// Follows the store until dropped: what was read stays, whenever that is. Errors of the store pass.
    pub async fn follow(&mut self) -> Infallible {
        let mut changes = self.store.changes();
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        let mut said = String::new();
        // Of a term that is over: it may take any room.
        self.unheld = None;
        loop {
            // Seen before anything is read for it, so that a later one is never missed.
            let newest = *changes.borrow_and_update();
            self.status.send_modify(|status| status.newest = newest);
            let mut advanced = self.advance(newest).await;
            if advanced.is_ok() && Instant::now() >= self.rounds.due() {
                advanced = self.compare_some().await;
            }
            self.report();
            match advanced {
                Ok(()) => {
                    backoff.reset();
                    said.clear();
                    tokio::select! {
                        changed = changes.changed() => if changed.is_err() {
                            // The store's own task has ended with the process: nothing more will come.
                            return std::future::pending().await;
                        },
                        () = tokio::time::sleep_until(self.rounds.due()) => {}
                    }
                }
                Err(error) => {
                    let reason = error.to_string();
                    if reason != said {
                        warn!(%reason, "the standby's cache can't follow the store at present");
                        said = reason;
                    }
                    tokio::time::sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    /// Proves the cache: gives all records as the store has them at `at`, the change number that was read under the
    /// caller's epoch, before the caller has committed anything. Reads what is missing. An error: nothing is proven, and
    /// what was read stays; ask again as long as the term lasts.
    pub async fn prove(&mut self, incarnation: &ClusterIncarnation, at: Change) -> Result<Proven> {
        let mut read = BTreeSet::new();
        let proof = match &self.position {
            Some(position) if position.incarnation != *incarnation => Proof::Listed,
            Some(position) if position.change == at => Proof::Current,
            Some(_) => match self.catch_up(at, &mut read).await? {
                Ring::Followed => Proof::CaughtUp,
                Ring::GoneOn => Proof::Listed,
            },
            None => Proof::Listed,
        };
        if proof == Proof::Listed {
            self.list().await?;
        }
        let stands = self.position.as_ref();
        if stands.is_none_or(|it| it.incarnation != *incarnation || it.change != at) {
            // Between the caller's look and this one somebody wrote: the caller's term is over, or will be told so.
            let stands = stands.map(|position| position.change);
            self.lose();
            return Err(Error::Unavailable {
                store: "the store",
                reason: format!("its change number moved on from {at:?} to {stands:?}"),
            });
        }
        let values = self.read_unheld().await?;
        let mut all = self.content.take();
        if proof == Proof::Listed {
            read = all.keys().cloned().collect();
        }
        read.extend(values.keys().cloned());
        all.extend(values);
        let read = read.iter().filter(|key| all.contains_key(key)).count();
        debug!(records = all.len(), read, ?proof, "the cache is proven");
        self.lose();
        Ok(Proven {
            from_cache: all.len() - read,
            records: Records { all },
            proof,
            read,
        })
    }

    /// The values of the records that are known by name only. After an error the next call reads what is left.
    async fn read_unheld(&mut self) -> Result<BTreeMap<Key, Bytes>> {
        let known = self.unheld.take();
        let known = known.filter(|unheld| self.position.as_ref() == Some(&unheld.position));
        let mut values = known.map(|unheld| unheld.values).unwrap_or_default();
        let mut missing = self.content.missing();
        values.retain(|key, _| missing.binary_search(key).is_ok());
        missing.retain(|key| !values.contains_key(key));
        let store = self.store.clone();
        let reads = missing.chunks(PAGE).map(|keys| {
            let store = store.clone();
            async move { Ok::<_, Error>((keys, store.get(keys).await?)) }
        });
        let reads: Vec<_> = reads.collect();
        let mut pages = stream::iter(reads).buffer_unordered(READS_IN_FLIGHT);
        let read = loop {
            match pages.try_next().await {
                Ok(Some((keys, page))) => {
                    let found = keys.iter().zip(page);
                    values.extend(found.filter_map(|(key, value)| Some((key.clone(), value?))));
                    self.moved();
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match (read, self.position.clone()) {
            (Err(error), Some(position)) => {
                self.unheld = Some(Unheld { position, values });
                Err(error)
            }
            (Err(error), None) => Err(error),
            (Ok(()), _) => Ok(values),
        }
    }

    /// Comes to stand at the store's number, as far as the watch has told it, or beyond.
    async fn advance(&mut self, newest: Option<Change>) -> Result<()> {
        if self.position.is_none() {
            self.list().await?;
        }
        let (Some(newest), Some(position)) = (newest, &self.position) else {
            return Ok(());
        };
        if newest.number > position.change.number {
            let mut read = BTreeSet::new();
            if self.catch_up(newest, &mut read).await? == Ring::GoneOn {
                debug!(
                    number = newest.number,
                    "the ring has gone on: listing again"
                );
                self.list().await?;
            }
        } else if newest != position.change {
            self.check_position().await?;
        }
        loop {
            let fitting = self.content.fitting(PAGE);
            if fitting.is_empty() {
                return Ok(());
            }
            self.read_again(fitting).await?;
        }
    }

    /// The watch says less than is known here: it is late, or the store is not what it was.
    async fn check_position(&mut self) -> Result<()> {
        let guard = self.store.guard().await?;
        let is_behind = |position: &Position| {
            let same = matches!(&guard.epoch, Some((_, _, it)) if *it == position.incarnation);
            same && (guard.change == position.change
                || guard.change.number > position.change.number)
        };
        if !self.position.as_ref().is_some_and(is_behind) {
            warn!("the store went back, or is another one: its records are listed again");
            self.list().await?;
        }
        Ok(())
    }

    /// Reads what the ring names after the own position up to `to`, and stands there then. Notes what was read.
    async fn catch_up(&mut self, to: Change, read: &mut BTreeSet<Key>) -> Result<Ring> {
        while let Some(position) = &self.position
            && position.change != to
        {
            let at = position.change;
            if at.number >= to.number || to.number - at.number > CHANGES_RING {
                return Ok(Ring::GoneOn);
            }
            let last = to.number.min(at.number + STRIDE);
            let entries = self.store.touched(at.number + 1, last).await?;
            self.moved();
            let mut keys = BTreeSet::new();
            let mut end = at;
            for entry in entries.into_iter().flatten() {
                let follows = entry.change.number == end.number + 1;
                if !follows || entry.change.epoch < end.epoch {
                    return Ok(Ring::GoneOn);
                }
                end = entry.change;
                // Keys of kinds that this version does not know are none of the cache's.
                let known = entry.keys.iter().filter_map(|key| key.parse::<Key>().ok());
                keys.extend(known.filter(|key| self.kinds.contains(&key.kind)));
            }
            if end.number != last || (last == to.number && end != to) {
                return Ok(Ring::GoneOn);
            }
            read.extend(keys.iter().cloned());
            self.read_again(keys.into_iter().collect()).await?;
            if let Some(position) = &mut self.position {
                position.change = end;
            }
        }
        Ok(Ring::Followed)
    }

    /// Values may be younger than the position at any time: what is touched after it is read again in any case.
    async fn read_again(&mut self, keys: Vec<Key>) -> Result<()> {
        for some in keys.chunks(PAGE) {
            let values = self.store.get(some).await?;
            for (key, value) in some.iter().zip(values) {
                self.content.put(key.clone(), value);
            }
            self.moved();
        }
        Ok(())
    }

    /// Reads everything. Stands at the number that was read before: what is written meanwhile is named by the ring.
    async fn list(&mut self) -> Result<()> {
        self.lose();
        let guard = self.store.guard().await?;
        let Some((_, _, incarnation)) = guard.epoch else {
            // Nobody ever led: there is nothing, and no number that would mean anything.
            return Ok(());
        };
        let kinds = self.kinds.iter();
        let listings = kinds.map(|kind| listing(self.store.clone(), *kind));
        let mut pages = stream::select_all(listings);
        while let Some((kind, items)) = pages.try_next().await? {
            for (name, value) in items {
                self.content.put(Key::new(kind, name), Some(value));
            }
            // It stands nowhere yet, but it moves.
            self.moved();
            self.report();
        }
        let change = guard.change;
        self.rounds.begin_anew();
        self.position = Some(Position {
            incarnation,
            change,
        });
        Ok(())
    }

    fn lose(&mut self) {
        self.position = None;
        self.unheld = None;
        self.content.clear();
        self.report();
    }

    /// The store has answered.
    fn moved(&self) {
        self.status.send_modify(|status| status.reads += 1);
    }

    fn report(&self) {
        let change = self.position.as_ref().map(|position| position.change);
        let content = &self.content;
        self.status.send_if_modified(|status| {
            let now = CacheStatus {
                change,
                newest: status.newest.max(change),
                records: content.len(),
                named_only: content.named_only(),
                bytes: content.bytes(),
                reads: status.reads,
                differed: self.differed,
            };
            std::mem::replace(status, now) != now
        });
    }
}

type Listed = Result<(Kind, Vec<(Name, Bytes)>)>;

/// The pages of one kind.
fn listing(store: Arc<dyn CoordinationStore>, kind: Kind) -> BoxStream<'static, Listed> {
    let pages = stream::try_unfold(Some(None), move |next| {
        let store = store.clone();
        async move {
            let Some(page) = next else { return Ok(None) };
            let listed = store.list(kind, page, PAGE).await?;
            Ok(Some(((kind, listed.items), listed.next.map(Some))))
        }
    });
    pages.boxed()
}
