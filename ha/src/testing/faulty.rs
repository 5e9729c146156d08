//! A backend with lost answers and late requests: a decorator over either part of any backend.
//!
//! Faults affect only guarded writes, by kind, in the order in which they were requested; reads, watches and
//! the session pass. A held request is answered with `NoAnswer` and executed by [`Held::deliver`] when the
//! test says so: for the store it is a late duplicate of the request that its caller has sent again
//! meanwhile.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::election::{
    Attempt, ElectionDriver, ElectionView, EpochRecord, EpochToken, LeaderInformation, LeaderKey,
    Member, SessionState,
};
use crate::error::{Error, Result};
use crate::keys::{Key, Kind};
use crate::store::health::StoreHealth;
use crate::store::{
    Change, CommitReply, CommitRequest, CoordinationStore, Guard, Limits, Page, PageToken, Touched,
};

/// The guarded writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`ElectionDriver::advance`].
    Advance,
    /// [`ElectionDriver::attach`].
    Attach,
    /// [`ElectionDriver::resign`].
    Resign,
    /// [`ElectionDriver::publish`].
    Publish,
    /// [`CoordinationStore::commit`].
    Commit,
}

/// The answer to a guarded write.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time")]
pub enum Answer {
    /// Of the election part.
    Attempt(Attempt),
    /// Of the records part.
    Commit(CommitReply),
}

impl Answer {
    /// Whether the store applied it.
    pub fn is_applied(&self) -> bool {
        match self {
            Answer::Attempt(attempt) => matches!(attempt, Attempt::Applied(_)),
            Answer::Commit(reply) => *reply == CommitReply::Applied,
        }
    }
}

enum Fate {
    LoseReply,
    Hold(oneshot::Sender<Held>),
    Panic,
}

/// A request that its caller has given up, and that has not reached the store yet.
pub struct Held {
    request: BoxFuture<'static, Result<Answer>>,
}

impl Held {
    /// Delivers the request: the store evaluates it against its present state.
    pub async fn deliver(self) -> Result<Answer> {
        self.request.await
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

/// A request that will be held.
#[derive(Debug)]
pub struct Holding {
    receiver: oneshot::Receiver<Held>,
}

impl Holding {
    /// Waits until the request was sent and is held. `None`: the backend is gone and will send nothing.
    pub async fn reached(self) -> Option<Held> {
        self.receiver.await.ok()
    }
}

/// Controls the faults, and records the applied acquisitions. Clones share it.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<Mutex<FaultPlan>>,
}

#[derive(Default)]
struct FaultPlan {
    fates: HashMap<Operation, VecDeque<Fate>>,
    acquisitions: Vec<(ElectionView, LeaderKey)>,
    views: watch::Sender<Views>,
}

/// Whether watches of the election's keys report updates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Views {
    #[default]
    Forwarded,
    Held,
}

/// Time for which a late view stays the latest one.
const LATE: Duration = Duration::from_millis(100);

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}

impl Faults {
    /// Replaces the next `n` answers of the store to such requests with `NoAnswer`.
    pub fn lose_replies(&self, operation: Operation, n: usize) {
        let mut state = self.state.lock();
        let fates = state.fates.entry(operation).or_default();
        fates.extend((0..n).map(|_| Fate::LoseReply));
    }

    /// Holds the next such request, and answers it with `NoAnswer`.
    pub fn hold_next(&self, operation: Operation) -> Holding {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let fates = state.fates.entry(operation).or_default();
        fates.push_back(Fate::Hold(sender));
        Holding { receiver }
    }

    /// Makes the next such request panic.
    pub fn panic_next(&self, operation: Operation) {
        let mut state = self.state.lock();
        let fates = state.fates.entry(operation).or_default();
        fates.push_back(Fate::Panic);
    }

    /// Stops the watches of the election's keys.
    pub fn hold_views(&self) {
        self.state.lock().views.send_replace(Views::Held);
    }

    /// Resumes them: first they report the last reported view again, like a late one, and shortly after that
    /// the present view.
    pub fn deliver_views_late(&self) {
        self.state.lock().views.send_replace(Views::Forwarded);
    }

    /// Each applied request to take leadership: the view before it, and the key that it wrote.
    pub fn acquisitions(&self) -> Vec<(ElectionView, LeaderKey)> {
        self.state.lock().acquisitions.clone()
    }

    fn next(&self, operation: Operation) -> Option<Fate> {
        self.state.lock().fates.get_mut(&operation)?.pop_front()
    }

    async fn meet(
        &self,
        operation: Operation,
        request: BoxFuture<'static, Result<Answer>>,
    ) -> Result<Answer> {
        match self.next(operation) {
            None => request.await,
            Some(Fate::LoseReply) => match request.await {
                Ok(_) => Err(lost("the answer was dropped")),
                // There was no answer to lose: lose the next one.
                Err(error) => {
                    let mut state = self.state.lock();
                    let fates = state.fates.entry(operation).or_default();
                    fates.push_front(Fate::LoseReply);
                    Err(error)
                }
            },
            Some(Fate::Hold(sender)) => {
                // A test that dropped the receiver wants the request never to arrive.
                let _ = sender.send(Held { request });
                Err(lost("the request is held"))
            }
            Some(Fate::Panic) => panic!("the test wants this panic"),
        }
    }
}

fn lost(reason: &str) -> Error {
    Error::NoAnswer {
        store: "the faulty store",
        reason: reason.to_owned(),
    }
}

/// One part of a backend, with faults.
#[derive(Debug)]
pub struct Faulty<T: ?Sized> {
    inner: Arc<T>,
    faults: Faults,
    observed: OnceLock<watch::Receiver<Option<ElectionView>>>,
}

impl<T: ?Sized> Faulty<T> {
    /// Wraps `inner` with `faults`.
    pub fn new(inner: Arc<T>, faults: Faults) -> Faulty<T> {
        Faulty {
            inner,
            faults,
            observed: OnceLock::new(),
        }
    }
}

/// Forwards the observed views, subject to the faults.
async fn forward_views(
    mut from: watch::Receiver<Option<ElectionView>>,
    mut views: watch::Receiver<Views>,
    to: watch::Sender<Option<ElectionView>>,
) {
    loop {
        if views.borrow_and_update().eq(&Views::Held) {
            let forwarded = views.wait_for(|views| *views == Views::Forwarded);
            if forwarded.await.is_err() {
                return;
            }
            to.send_modify(|_| {});
            tokio::time::sleep(LATE).await;
        }
        let view = from.borrow_and_update().clone();
        to.send_if_modified(|forwarded| {
            let differs = *forwarded != view;
            *forwarded = view;
            differs
        });
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            changed = from.changed() => if changed.is_err() { return },
            () = to.closed() => return,
        }
    }
}

impl Faulty<dyn ElectionDriver> {
    async fn attempt(
        &self,
        operation: Operation,
        request: impl Future<Output = Result<Attempt>> + Send + 'static,
    ) -> Result<Attempt> {
        let request = Box::pin(async move { request.await.map(Answer::Attempt) });
        match self.faults.meet(operation, request).await? {
            Answer::Attempt(attempt) => Ok(attempt),
            Answer::Commit(_) => Err(lost("an answer to another request")),
        }
    }
}

#[async_trait]
impl ElectionDriver for Faulty<dyn ElectionDriver> {
    fn session(&self) -> watch::Receiver<SessionState> {
        self.inner.session()
    }

    fn observed(&self) -> watch::Receiver<Option<ElectionView>> {
        let start = || {
            let (forwarded, observed) = watch::channel(self.inner.observed().borrow().clone());
            let views = self.faults.state.lock().views.subscribe();
            tokio::spawn(forward_views(self.inner.observed(), views, forwarded));
            observed
        };
        self.observed.get_or_init(start).clone()
    }

    async fn read(&self) -> Result<ElectionView> {
        self.inner.read().await
    }

    async fn advance(
        &self,
        seen: &ElectionView,
        next: &EpochRecord,
        leader: &LeaderKey,
    ) -> Result<Attempt> {
        let (inner, faults) = (self.inner.clone(), self.faults.clone());
        let (seen, next, leader) = (seen.clone(), next.clone(), leader.clone());
        let request = async move {
            let attempt = inner.advance(&seen, &next, &leader).await?;
            if matches!(attempt, Attempt::Applied(_)) {
                faults.state.lock().acquisitions.push((seen, leader));
            }
            Ok(attempt)
        };
        self.attempt(Operation::Advance, request).await
    }

    async fn attach(&self, token: EpochToken, leader: &LeaderKey) -> Result<Attempt> {
        let (inner, leader) = (self.inner.clone(), leader.clone());
        let request = async move { inner.attach(token, &leader).await };
        self.attempt(Operation::Attach, request).await
    }

    async fn resign(&self, token: EpochToken) -> Result<Attempt> {
        let inner = self.inner.clone();
        let request = async move { inner.resign(token).await };
        self.attempt(Operation::Resign, request).await
    }

    async fn accept(&self, seen: &ElectionView, next: &EpochRecord) -> Result<Attempt> {
        self.inner.accept(seen, next).await
    }

    async fn publish(&self, token: EpochToken, info: &LeaderInformation) -> Result<Attempt> {
        let (inner, info) = (self.inner.clone(), info.clone());
        let request = async move { inner.publish(token, &info).await };
        self.attempt(Operation::Publish, request).await
    }

    async fn announce(&self, member: &Member) -> Result<()> {
        self.inner.announce(member).await
    }

    async fn members(&self) -> Result<Vec<Member>> {
        self.inner.members().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[async_trait]
impl CoordinationStore for Faulty<dyn CoordinationStore> {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        self.inner.get(keys).await
    }

    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page> {
        self.inner.list(kind, page, limit).await
    }

    async fn guard(&self) -> Result<Guard> {
        self.inner.guard().await
    }

    fn changes(&self) -> watch::Receiver<Option<Change>> {
        self.inner.changes()
    }

    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>> {
        self.inner.touched(first, last).await
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply> {
        let (inner, request) = (self.inner.clone(), request.clone());
        let request = async move { inner.commit(&request).await.map(Answer::Commit) };
        match self
            .faults
            .meet(Operation::Commit, Box::pin(request))
            .await?
        {
            Answer::Commit(reply) => Ok(reply),
            Answer::Attempt(_) => Err(lost("an answer to another request")),
        }
    }

    async fn delete_unnumbered(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.inner.delete_unnumbered(request).await
    }

    async fn health(&self) -> Result<StoreHealth> {
        self.inner.health().await
    }

    async fn missing_permissions(&self) -> Result<Vec<String>> {
        self.inner.missing_permissions().await
    }
}
