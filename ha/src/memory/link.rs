//! The connection from one handle to the memory "server", and the faults that tests inject into it.
//!
//! The effect of a request is in [`super::state`]. Faults of a handle affect only guarded writes (`advance`,
//! `attach`, `resign`, `publish`, `commit`), so that a background read can't use up a test's fault. A
//! partition or loss of quorum affects everything, a delay everything but renewals; reads of records by key
//! can be denied.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::MemoryOptions;
use super::state::StoreState;
use crate::election::{ElectionView, ProcessId, StoreIdentity};
use crate::error::{Error, Result};
use crate::store::Change;

pub(super) const STORE: &str = "the memory store";

/// The present outages.
#[derive(Debug, Default, Clone)]
pub(super) struct Outage {
    pub(super) partitioned: HashSet<ProcessId>,
    pub(super) quorum_lost: bool,
    pub(super) out_of_space: bool,
}

/// The "server", shared by all handles of a cluster.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) options: MemoryOptions,
    state: Mutex<StoreState>,
    pub(super) outage: watch::Sender<Outage>,
    pub(super) view: watch::Sender<ElectionView>,
    pub(super) change: watch::Sender<Change>,
}

impl Server {
    /// A server with its own identity, independent of its content.
    pub(super) fn new(options: MemoryOptions) -> Server {
        static STORES: AtomicU64 = AtomicU64::new(1);
        let number = STORES.fetch_add(1, Ordering::Relaxed);
        let identity = options
            .shows_identity
            .then(|| StoreIdentity::new(format!("memory-{number}")));
        let state = StoreState::new(identity);
        Server {
            options,
            view: watch::Sender::new(state.view()),
            state: Mutex::new(state),
            outage: watch::Sender::default(),
            change: watch::Sender::default(),
        }
    }

    /// Runs one transaction and publishes its changes to the watches, under one lock: so the watches show the
    /// states in order.
    pub(super) fn apply<T>(&self, transaction: impl FnOnce(&mut StoreState) -> T) -> T {
        let mut state = self.state.lock();
        let result = transaction(&mut state);
        let view = state.view();
        self.view
            .send_if_modified(|seen| replace_if_other(seen, view));
        let change = state.change();
        self.change
            .send_if_modified(|seen| replace_if_other(seen, change));
        result
    }
}

fn replace_if_other<T: PartialEq>(place: &mut T, value: T) -> bool {
    let other = *place != value;
    if other {
        *place = value;
    }
    other
}

type Request = Box<dyn FnOnce(&mut StoreState) + Send>;

#[derive(Default)]
struct Injected {
    delay: Duration,
    watch_lag: Duration,
    replies_to_lose: usize,
    denies_gets: bool,
    holds: VecDeque<watch::Sender<HeldState>>,
}

#[derive(Default)]
enum HeldState {
    #[default]
    Waiting,
    Holding(Mutex<Option<Request>>),
}

/// Controls the faults between one handle and the server. Cheap to clone.
#[derive(Clone)]
pub struct Faults {
    link: Arc<Link>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}

impl Faults {
    pub(super) fn of(link: &Arc<Link>) -> Faults {
        Faults {
            link: Arc::clone(link),
        }
    }

    /// Number of reads through the handle.
    pub fn reads(&self) -> u64 {
        self.link.reads.load(Ordering::Relaxed)
    }

    /// Delays every request but renewals.
    pub fn delay(&self, delay: Duration) {
        self.link.injected.lock().delay = delay;
    }

    /// Delays every update of the watches.
    pub fn watch_lag(&self, lag: Duration) {
        self.link.injected.lock().watch_lag = lag;
    }

    /// Sets whether reads of records by key are denied.
    pub fn deny_gets(&self, denies: bool) {
        self.link.injected.lock().denies_gets = denies;
    }

    /// Applies the next `n` guarded writes and answers them with `NoAnswer`.
    pub fn lose_replies(&self, n: usize) {
        self.link.injected.lock().replies_to_lose = n;
    }

    /// Holds the next guarded write that no earlier hold takes, and answers it with `NoAnswer`: a late
    /// duplicate.
    pub fn hold_next(&self) -> Held {
        let (sender, receiver) = watch::channel(HeldState::Waiting);
        self.link.injected.lock().holds.push_back(sender.clone());
        Held {
            link: Arc::clone(&self.link),
            _sender: sender,
            receiver,
        }
    }
}

/// A guarded write that is held until the test releases it.
pub struct Held {
    link: Arc<Link>,
    receiver: watch::Receiver<HeldState>,
    /// Keeps the channel open until a write arrives.
    _sender: watch::Sender<HeldState>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl Held {
    /// Waits until a write was sent and is held.
    pub async fn reached(&mut self) {
        let holding = |state: &HeldState| matches!(state, HeldState::Holding(_));
        // This value owns the sender, so it can't be gone.
        let _ = self.receiver.wait_for(holding).await;
    }

    /// Applies the write to the present state of the server. Returns false if no write was ever held.
    pub fn release(self) -> bool {
        let request = match &*self.receiver.borrow() {
            HeldState::Waiting => None,
            HeldState::Holding(request) => request.lock().take(),
        };
        let Some(request) = request else { return false };
        self.link.server.apply(request);
        true
    }
}

/// A handle's connection to the server.
pub(super) struct Link {
    pub(super) server: Arc<Server>,
    process: Option<ProcessId>,
    injected: Mutex<Injected>,
    /// Number of reads.
    reads: AtomicU64,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(server: Arc<Server>, process: Option<ProcessId>) -> Arc<Link> {
        Arc::new(Link {
            server,
            process,
            injected: Mutex::default(),
            reads: AtomicU64::new(0),
        })
    }

    fn is_cut(&self, outage: &Outage) -> bool {
        outage.quorum_lost
            || self
                .process
                .as_ref()
                .is_some_and(|process| outage.partitioned.contains(process))
    }

    /// Waits until the server is reachable.
    pub(super) async fn reachable(&self) {
        // The server owns the sender, and this link keeps the server.
        let _ = self
            .server
            .outage
            .subscribe()
            .wait_for(|outage| !self.is_cut(outage))
            .await;
    }

    /// Takes the time of a request to the server. An error if the server can't be reached within the timeout.
    async fn reach(&self) -> Result<()> {
        let delay = self.injected.lock().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let timeout = self.server.options.request_timeout;
        if tokio::time::timeout(timeout, self.reachable())
            .await
            .is_ok()
        {
            return Ok(());
        }
        let reason = format!("no answer within {timeout:?}");
        Err(if self.server.outage.borrow().quorum_lost {
            Error::Unavailable {
                store: STORE,
                reason,
            }
        } else {
            Error::Unreachable {
                store: STORE,
                endpoints: "memory".to_owned(),
                reason,
            }
        })
    }

    /// Sends a request that is never lost or held.
    pub(super) async fn read<T>(&self, request: impl FnOnce(&mut StoreState) -> T) -> Result<T> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.reach().await?;
        Ok(self.server.apply(request))
    }

    /// Sends a read of records by key.
    pub(super) async fn get<T>(&self, request: impl FnOnce(&mut StoreState) -> T) -> Result<T> {
        if self.injected.lock().denies_gets {
            let reason = "a test has it denied".to_owned();
            return Err(Error::Denied {
                store: STORE,
                reason,
            });
        }
        self.read(request).await
    }

    /// Sends a guarded write.
    pub(super) async fn write<T: 'static>(
        &self,
        request: impl FnOnce(&mut StoreState) -> T + Send + 'static,
    ) -> Result<T> {
        self.reach().await?;
        let hold = self.injected.lock().holds.pop_front();
        if let Some(hold) = hold {
            let request: Request = Box::new(move |state| drop(request(state)));
            hold.send_replace(HeldState::Holding(Mutex::new(Some(request))));
            let reason = "the request is held".to_owned();
            return Err(Error::NoAnswer {
                store: STORE,
                reason,
            });
        }
        let reply = self.server.apply(request);
        let mut injected = self.injected.lock();
        if injected.replies_to_lose > 0 {
            injected.replies_to_lose -= 1;
            let reason = "the reply was dropped".to_owned();
            return Err(Error::NoAnswer {
                store: STORE,
                reason,
            });
        }
        Ok(reply)
    }

    /// Renews or requests a lease: reaches the server or fails at once.
    pub(super) fn reach_now<T>(&self, request: impl FnOnce(&mut StoreState) -> T) -> Option<T> {
        if self.is_cut(&self.server.outage.borrow()) {
            return None;
        }
        Some(self.server.apply(request))
    }

    /// Copies a watch of the server to a handle's watch: delayed by `watch_lag`, not at all while cut off.
    pub(super) async fn follow<T: Clone + PartialEq>(
        self: Arc<Self>,
        mut from: watch::Receiver<T>,
        to: watch::Sender<Option<T>>,
    ) {
        loop {
            self.reachable().await;
            let value = from.borrow_and_update().clone();
            let lag = self.injected.lock().watch_lag;
            if !lag.is_zero() {
                tokio::time::sleep(lag).await;
                self.reachable().await;
            }
            to.send_if_modified(|seen| replace_if_other(seen, Some(value)));
            if from.changed().await.is_err() {
                return;
            }
        }
    }
}

/// The time at which a lease that is renewed now expires.
pub(super) fn deadline(options: &MemoryOptions) -> Instant {
    Instant::now() + options.ttl
}
