//! Compares the content of a cache with the store. Manual changes in the store are named by no transaction,
//! so a takeover from memory would revert them.
//!
//! *While a process stands by*: in rounds, some records at a time, by value (`WarmCache::compare_some`). *At
//! a takeover*: all records, by name, in parallel to the proof ([`StoredNames`]). A difference is logged, and
//! the store's value is used ([`as_stored`]).
//!
//! Invariant: a record counts as different only if no transaction named it between reading the cache and
//! reading the store, and only if a second read still shows the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::warn;

use super::{Records, Ring, WarmCache};
use crate::error::Result;
use crate::keys::{Key, Kind, Name};
use crate::store::{CoordinationStore, PageToken};

/// Limits for one comparison: records, and approximate bytes.
const PAGE: usize = 200;
const PAGE_BYTES: usize = 256 << 10;
/// Time between two pages, or a fraction (one of `STEPS`) of the round if the round is short.
const STEP: Duration = Duration::from_secs(1);
const STEPS: u32 = 20;
/// Minimum duration of a round.
const SHORTEST_ROUND: Duration = Duration::from_millis(100);

/// Position of the comparison in a round, and the time of its next step.
#[derive(Debug)]
pub(super) struct Rounds {
    interval: Duration,
    kinds: Vec<Kind>,
    at: usize,
    after: Option<Name>,
    began: Instant,
    due: Instant,
}

impl Rounds {
    /// Rounds over records of these kinds. The first begins after `interval`, each later one `interval` after
    /// the previous one began, or when that one is done.
    pub(super) fn new(kinds: Vec<Kind>, interval: Duration) -> Rounds {
        let interval = interval.max(SHORTEST_ROUND);
        let due = Instant::now() + interval;
        Rounds {
            interval,
            kinds,
            at: 0,
            after: None,
            began: due,
            due,
        }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Restarts the rounds after everything was read.
    pub(super) fn begin_again(&mut self) {
        *self = Rounds::new(std::mem::take(&mut self.kinds), self.interval);
    }

    /// Records that a page was compared, up to this name of its kind; `None`: to the end of the kind.
    fn advance(&mut self, after: Option<Name>) {
        let next = Instant::now() + STEP.min(self.interval / STEPS);
        self.due = next;
        self.at += usize::from(after.is_none());
        self.after = after;
        if self.at >= self.kinds.len() {
            self.at = 0;
            self.due = next.max(self.began + self.interval);
            self.began = self.due;
        }
    }
}

impl WarmCache {
    /// Compares the next records of a round. After an error the next call compares the same ones.
    pub(super) async fn compare_some(&mut self) -> Result<()> {
        let Some(kind) = self.rounds.kinds.get(self.rounds.at).copied() else {
            self.rounds.begin_again();
            return Ok(());
        };
        if self.position.is_none() {
            self.rounds.begin_again();
            return Ok(());
        }
        let after = self.rounds.after.clone();
        let limit = self.content.page(kind, after.as_ref(), PAGE, PAGE_BYTES);
        // Not pinned to the revision of the previous page: that may be gone, and says nothing about the
        // present.
        let token = after.clone().map(|after| PageToken {
            after,
            revision: None,
        });
        let page = self.store.list(kind, token, limit).await?;
        self.count_read();
        let last = page.next.map(|next| next.after);
        let Some(touched) = self.come_to_present().await? else {
            return Ok(());
        };
        let listed: BTreeMap<Name, Bytes> = page.items.into_iter().collect();
        let known = self.content.names(kind, after.as_ref(), last.as_ref());
        let names: BTreeSet<Name> = known.chain(listed.keys()).cloned().collect();
        let differing = names.into_iter().filter_map(|name| {
            let value = listed.get(&name);
            let key = Key::new(kind, name);
            let differs = !touched.contains(&key) && self.content.differs(&key, value);
            differs.then_some(key)
        });
        let differing: Vec<Key> = differing.collect();
        if !differing.is_empty() {
            self.resolve(&differing).await?;
        }
        self.rounds.advance(last);
        Ok(())
    }

    /// Reads these records again, and takes the store's value where it still differs.
    async fn resolve(&mut self, differing: &[Key]) -> Result<()> {
        let values = self.store.get(differing).await?;
        self.count_read();
        let Some(touched) = self.come_to_present().await? else {
            return Ok(());
        };
        for (key, value) in differing.iter().zip(values) {
            if touched.contains(key) || !self.content.differs(key, value.as_ref()) {
                continue;
            }
            log_difference(key, self.content.knows(key), value.is_some());
            self.content.put(key.clone(), value);
            self.differed += 1;
        }
        self.report();
        Ok(())
    }

    /// Advances to the store's current number and returns the keys touched on the way. `None`: the earlier
    /// read can't be compared with the cache.
    async fn come_to_present(&mut self) -> Result<Option<BTreeSet<Key>>> {
        let guard = self.store.guard().await?;
        let Some(position) = &self.position else {
            return Ok(None);
        };
        let is_same = matches!(&guard.epoch, Some((_, _, it)) if *it == position.incarnation);
        let mut touched = BTreeSet::new();
        if is_same && guard.change == position.change {
            return Ok(Some(touched));
        }
        if is_same && self.catch_up(guard.change, &mut touched).await? == Ring::Followed {
            return Ok(Some(touched));
        }
        self.list().await?;
        Ok(None)
    }
}

fn log_difference(key: &Key, was_known: bool, is_there: bool) {
    let what = match (was_known, is_there) {
        (true, true) => "it has another value",
        (true, false) => "it was removed",
        (false, _) => "it did not exist",
    };
    warn!(%key, what, "a record in the store was changed by hand: the store's value is used");
}

/// The names of the store's records of some kinds.
#[derive(Debug)]
pub struct StoredNames {
    kinds: Vec<Kind>,
    keys: BTreeSet<Key>,
}

impl StoredNames {
    /// Lists the names, of all kinds at once.
    pub async fn list(store: &dyn CoordinationStore, kinds: &[Kind]) -> Result<StoredNames> {
        Ok(StoredNames {
            kinds: kinds.to_vec(),
            keys: store.keys(kinds).await?.into_iter().collect(),
        })
    }

    /// The records of these kinds that are listed and not held, or held and not listed. Valid only if no
    /// transaction wrote any of them since the older of the two reads began: under the caller's own epoch and
    /// before its term has written.
    pub fn differing(&self, cached: &Records) -> Vec<Key> {
        let of_kinds = cached
            .all
            .keys()
            .filter(|key| self.kinds.contains(&key.kind));
        let gone = of_kinds.filter(|key| !self.keys.contains(*key));
        let unknown = self.keys.iter().filter(|key| !cached.all.contains_key(key));
        gone.chain(unknown).cloned().collect()
    }
}

/// The held records, with these keys read again from the store. Differences that remain are logged.
pub async fn as_stored(
    store: &dyn CoordinationStore,
    differing: &[Key],
    cached: &Records,
) -> Result<Records> {
    let mut values = Vec::new();
    for some in differing.chunks(PAGE) {
        values.extend(store.get(some).await?);
    }
    let mut all = cached.all.clone();
    for (key, value) in differing.iter().zip(values) {
        if cached.get(key) == value.as_ref() {
            continue;
        }
        log_difference(key, cached.get(key).is_some(), value.is_some());
        match value {
            Some(value) => all.insert(key.clone(), value),
            None => all.remove(key),
        };
    }
    Ok(Records { all })
}
