//! A feed of the transactions of a store, one by one and in order, for users of this crate.
//!
//! Its owner holds the position: the number of the last transaction that was read. Invariant: each transaction
//! after that number is delivered once, or is covered by a gap, which reports that the ring was overwritten
//! before it was read. Not noticed: a store that was wiped or restored. The feed then waits until the store's
//! numbers exceed its position.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::Result;
use crate::keys::{CHANGES_RING, Key, Kinds};
use crate::store::{Change, CoordinationStore};

/// Ring entries per read.
const STRIDE: u64 = 128;

/// An item of the feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fed {
    /// The next transaction, and the keys that it touched.
    Transaction(Change, Vec<Key>),
    /// Transactions were missed for good (the ring was overwritten): everything may have changed up to this
    /// one.
    Gap(Change),
}

/// All transactions after a known one, in order, across reconnects of the store.
#[derive(Debug)]
pub struct ChangeFeed {
    store: Arc<dyn CoordinationStore>,
    kinds: Kinds,
    changes: watch::Receiver<Option<Change>>,
    seen: u64,
    pending: std::collections::VecDeque<Fed>,
}

impl ChangeFeed {
    /// Follows the transactions after number `seen`. Keys of other kinds than these are left out.
    pub fn after(store: Arc<dyn CoordinationStore>, kinds: Kinds, seen: u64) -> ChangeFeed {
        let changes = store.changes();
        ChangeFeed {
            store,
            kinds,
            changes,
            seen,
            pending: std::collections::VecDeque::new(),
        }
    }

    /// Waits for the next item. After a store error call it again; neither an error nor cancellation loses an
    /// item.
    pub async fn next(&mut self) -> Result<Fed> {
        loop {
            if let Some(fed) = self.pending.pop_front() {
                return Ok(fed);
            }
            let seen = self.seen;
            let newest = self
                .changes
                .wait_for(|change| change.is_some_and(|change| change.number > seen))
                .await
                .ok()
                .and_then(|change| *change);
            // Only changes `seen` together with `pending`, after its only await: cancellation loses nothing.
            match newest {
                Some(newest) => self.read_up_to(newest).await?,
                // The store's own task has ended with the process: no more changes will arrive.
                None => std::future::pending().await,
            }
        }
    }

    async fn read_up_to(&mut self, newest: Change) -> Result<()> {
        if newest.number - self.seen > CHANGES_RING {
            self.skip_to(newest);
            return Ok(());
        }
        let first = self.seen + 1;
        let last = newest.number.min(self.seen + STRIDE);
        for entry in self.store.touched(first, last).await? {
            let Some(touched) = entry.filter(|touched| touched.change.number == self.seen + 1)
            else {
                self.skip_to(newest);
                return Ok(());
            };
            let keys = touched
                .keys
                .iter()
                .filter_map(|key| Key::parse(key, self.kinds.iter()).ok())
                .collect();
            self.seen += 1;
            self.pending
                .push_back(Fed::Transaction(touched.change, keys));
        }
        Ok(())
    }

    fn skip_to(&mut self, newest: Change) {
        self.seen = newest.number;
        self.pending.push_back(Fed::Gap(newest));
    }
}
