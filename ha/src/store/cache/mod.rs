//! A warm cache of records on a standby, and its proof at a takeover. The standby's contender owns it; all its
//! reads go to the coordination store.
//!
//! The cache is at a change number: every value that it holds is the one of that number, or a later one. It
//! gets there by a listing that began after the number was read, and advances by reading the keys that the
//! ring names, after it saw their number. If it is further behind than the ring reaches, it lists again. So
//! if the cache is at exactly the number in the store, its values are exactly the store's.
//!
//! Rules: no decision uses a cache that was not proven ([`WarmCache::prove`]) against the change number as
//! read *under the taker's own epoch*, because no other process can have moved it since. A proof hands over
//! the records and leaves the cache empty, so that no read during a term can come from it. Watches only
//! trigger a look: one that is late, lost or skips numbers costs time and nothing else.
//!
//! *Manual changes in the store* have no change number. They are searched for in rounds ([`compare`]).

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

/// Records per listing and per read.
const PAGE: usize = 500;
/// Number of such reads in flight.
const READS_IN_FLIGHT: usize = 4;
/// Ring entries per read.
const STRIDE: u64 = 128;
const FIRST_RETRY: Duration = Duration::from_millis(20);
const SLOWEST_RETRY: Duration = Duration::from_secs(2);

/// Options of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// The kinds whose records a takeover needs.
    pub kinds: Vec<Kind>,
    /// Limit for the bytes of names and values. Records above it are known by name only and read at the
    /// takeover.
    pub max_bytes: usize,
    /// Interval of a full comparison with the store, unless a comparison takes longer.
    pub compare_interval: Duration,
}

/// Status of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStatus {
    /// The transaction that it is at; `None`: it holds nothing that could be proven (it is listing, the store
    /// is empty, or this process leads).
    pub change: Option<Change>,
    /// The store's last transaction, as last reported by the watch.
    pub newest: Option<Change>,
    /// Records that it knows.
    pub records: usize,
    /// Number of those that it knows by name only, because they exceed the limit.
    pub named_only: usize,
    /// Bytes of names and values.
    pub bytes: usize,
    /// Reads that the store has answered since the process started. While it grows, the cache makes progress.
    pub reads: u64,
    /// Records that differed from the store since the process started: they were changed there by hand.
    pub differed: u64,
}

impl CacheStatus {
    /// Number of transactions that it is behind the store; `None`: it is at no number.
    pub fn lag(&self) -> Option<u64> {
        let newest = self.newest?.number;
        Some(newest.saturating_sub(self.change?.number))
    }
}

/// The way in which a cache was proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proof {
    /// It was at the store's number.
    Current,
    /// The keys that the ring named since were read.
    CaughtUp,
    /// It was empty, or too far behind: everything was read.
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

    /// The value of one record.
    pub fn get(&self, key: &Key) -> Option<&Bytes> {
        self.all.get(key)
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no records.
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

/// The result of a proof.
#[derive(Debug)]
pub struct Proven {
    /// All records, as the store had them at the requested number.
    pub records: Records,
    /// The way in which it was proven.
    pub proof: Proof,
    /// Number of records whose values the cache held.
    pub from_cache: usize,
    /// Number of records whose values were read from the store for this proof.
    pub read: usize,
}

/// The position of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Position {
    incarnation: ClusterIncarnation,
    change: Change,
}

/// Values that a proof has read of the records that the cache knows by name only. If the proof fails, the
/// next one for the same number continues from here: no other process writes under the taker's epoch.
#[derive(Debug)]
struct NamedOnlyValues {
    position: Position,
    values: BTreeMap<Key, Bytes>,
}

/// A warm cache; see the module documentation.
pub struct WarmCache {
    store: Arc<dyn CoordinationStore>,
    kinds: Vec<Kind>,
    content: Content,
    position: Option<Position>,
    named_only_values: Option<NamedOnlyValues>,
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

/// Whether the ring still had the requested entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ring {
    Followed,
    Overwritten,
}

impl WarmCache {
    /// An empty cache, which reports to `status`.
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
            named_only_values: None,
            status,
        }
    }

    /// Follows the store until dropped; data that was read stays in the cache. Retries after store errors.
    pub async fn follow(&mut self) -> Infallible {
        let mut changes = self.store.changes();
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        let mut last_logged = String::new();
        // It belongs to a finished term and would take room without limit.
        self.named_only_values = None;
        loop {
            // Read before anything else, so that a later change is never missed.
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
                    last_logged.clear();
                    tokio::select! {
                        changed = changes.changed() => if changed.is_err() {
                            // The store's own task has ended with the process: no more changes will arrive.
                            return std::future::pending().await;
                        },
                        () = tokio::time::sleep_until(self.rounds.due()) => {}
                    }
                }
                Err(error) => {
                    let reason = error.to_string();
                    if reason != last_logged {
                        warn!(%reason, "the standby's cache can't follow the store: retrying");
                        last_logged = reason;
                    }
                    tokio::time::sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    /// Proves the cache: returns all records as the store has them at `at`, the change number that was read
    /// under the caller's epoch, before the caller has committed anything. Reads missing values. On an error
    /// nothing is proven and the data that was read stays; the caller may try again while its term lasts.
    pub async fn prove(&mut self, incarnation: &ClusterIncarnation, at: Change) -> Result<Proven> {
        let mut read = BTreeSet::new();
        // The incarnation first: equal numbers of two incarnations mean different transactions.
        let proof = match &self.position {
            Some(position) if position.incarnation != *incarnation => Proof::Listed,
            Some(position) if position.change == at => Proof::Current,
            Some(_) => match self.catch_up(at, &mut read).await? {
                Ring::Followed => Proof::CaughtUp,
                Ring::Overwritten => Proof::Listed,
            },
            None => Proof::Listed,
        };
        if proof == Proof::Listed {
            self.list().await?;
        }
        let position = self.position.as_ref();
        if position.is_none_or(|it| it.incarnation != *incarnation || it.change != at) {
            // Another process wrote after the caller read the number: the caller's term is over, or soon will
            // be.
            let position = position.map(|position| position.change);
            self.lose();
            return Err(Error::Unavailable {
                store: "the store",
                reason: format!("its change number advanced from {at:?} to {position:?}"),
            });
        }
        let values = self.read_named_only().await?;
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

    /// Reads the values of records that are known by name only. After an error the next call reads the rest.
    async fn read_named_only(&mut self) -> Result<BTreeMap<Key, Bytes>> {
        let known = self.named_only_values.take();
        let known = known.filter(|named_only_values| {
            self.position.as_ref() == Some(&named_only_values.position)
        });
        let mut values = known
            .map(|named_only_values| named_only_values.values)
            .unwrap_or_default();
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
                    self.count_read();
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match (read, self.position.clone()) {
            (Err(error), Some(position)) => {
                self.named_only_values = Some(NamedOnlyValues { position, values });
                Err(error)
            }
            (Err(error), None) => Err(error),
            (Ok(()), _) => Ok(values),
        }
    }

    /// Advances to the store's number as reported by the watch, or beyond.
    async fn advance(&mut self, newest: Option<Change>) -> Result<()> {
        if self.position.is_none() {
            self.list().await?;
        }
        let (Some(newest), Some(position)) = (newest, &self.position) else {
            return Ok(());
        };
        if newest.number > position.change.number {
            let mut read = BTreeSet::new();
            if self.catch_up(newest, &mut read).await? == Ring::Overwritten {
                debug!(
                    number = newest.number,
                    "the ring no longer has the needed entries: listing again"
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

    /// Handles a watch that reports an older state than the cache has: it is late, or the store went back.
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

    /// Reads the keys that the ring names after the own position up to `to`, and moves there. Adds the keys
    /// to `read`.
    async fn catch_up(&mut self, to: Change, read: &mut BTreeSet<Key>) -> Result<Ring> {
        while let Some(position) = &self.position
            && position.change != to
        {
            let at = position.change;
            if at.number >= to.number || to.number - at.number > CHANGES_RING {
                return Ok(Ring::Overwritten);
            }
            let last = to.number.min(at.number + STRIDE);
            let entries = self.store.touched(at.number + 1, last).await?;
            self.count_read();
            let mut keys = BTreeSet::new();
            let mut end = at;
            for entry in entries.into_iter().flatten() {
                let follows = entry.change.number == end.number + 1;
                if !follows || entry.change.epoch < end.epoch {
                    return Ok(Ring::Overwritten);
                }
                end = entry.change;
                // Keys of other kinds are not in the cache.
                let kinds = || self.kinds.iter().copied();
                let cached = |key: &String| Key::parse(key, kinds()).ok();
                keys.extend(entry.keys.iter().filter_map(cached));
            }
            if end.number != last || (last == to.number && end != to) {
                return Ok(Ring::Overwritten);
            }
            read.extend(keys.iter().cloned());
            self.read_again(keys.into_iter().collect()).await?;
            // Only after the values: if reading fails, the next call reads these keys again.
            if let Some(position) = &mut self.position {
                position.change = end;
            }
        }
        Ok(Ring::Followed)
    }

    /// Reads the values of these keys. They may be younger than the position: keys that are touched after it are
    /// read again anyway.
    async fn read_again(&mut self, keys: Vec<Key>) -> Result<()> {
        for some in keys.chunks(PAGE) {
            let values = self.store.get(some).await?;
            for (key, value) in some.iter().zip(values) {
                self.content.put(key.clone(), value);
            }
            self.count_read();
        }
        Ok(())
    }

    /// Reads everything. The position is the number read before: later writes are named by the ring.
    async fn list(&mut self) -> Result<()> {
        self.lose();
        let guard = self.store.guard().await?;
        let Some((_, _, incarnation)) = guard.epoch else {
            // No process ever led: there are no records, and no meaningful number.
            return Ok(());
        };
        let kinds = self.kinds.iter();
        let listings = kinds.map(|kind| listing(self.store.clone(), *kind));
        let mut pages = stream::select_all(listings);
        while let Some((kind, items)) = pages.try_next().await? {
            for (name, value) in items {
                self.content.put(Key::new(kind, name), Some(value));
            }
            // It has no position yet, but reports progress.
            self.count_read();
            self.report();
        }
        let change = guard.change;
        self.rounds.begin_again();
        self.position = Some(Position {
            incarnation,
            change,
        });
        Ok(())
    }

    fn lose(&mut self) {
        self.position = None;
        self.named_only_values = None;
        self.content.clear();
        self.report();
    }

    /// Records that the store has answered.
    fn count_read(&self) {
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
