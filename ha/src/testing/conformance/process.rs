//! A contending process for the cases, and short functions for keys and writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{BOUND, CaseResult, Subject};
use crate::clock::Clock;
use crate::election::core::Timing;
use crate::election::{
    ElectionDriver, ElectionOptions, ElectionView, Epoch, LeaderElection, LeaderSession,
    Leadership, Nonce, NotLeading, ProcessId, random_start,
};
use crate::error::Outcome;
use crate::keys::{Key, Name};
use crate::store::pipeline::CommitPipeline;
use crate::store::{Change, CommitRequest, CoordinationStore, Write};
use crate::testing::faulty::{Faults, Faulty};
use crate::testing::invariants::History;
use crate::testing::kinds::ITEMS;
use crate::testing::wait::wait_until;

/// Polling interval of the store.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

static STARTS: AtomicU64 = AtomicU64::new(0);

/// One start of a contending process, with its election on its own thread.
#[derive(Debug)]
pub struct Process {
    /// Its stable id.
    pub id: ProcessId,
    /// Number of this start.
    pub start: u64,
    /// Its election.
    pub election: LeaderElection,
    /// Its driver, without the faults.
    pub driver: Arc<dyn ElectionDriver>,
    /// Controls the faults between its election and the store.
    pub faults: Faults,
}

impl Process {
    /// Starts a process.
    pub async fn start(subject: &dyn Subject, name: &str) -> CaseResult<Process> {
        Process::start_with(subject, name, Faults::default()).await
    }

    /// Starts a process that has these faults from the beginning.
    pub async fn start_with(
        subject: &dyn Subject,
        name: &str,
        faults: Faults,
    ) -> CaseResult<Process> {
        let id = ProcessId::new(name);
        let options = ElectionOptions {
            process: id.clone(),
            start: random_start(),
            timing: Timing {
                retry_interval: Duration::from_millis(50),
                resign_hold_off: Duration::from_secs(1),
                ..Timing::default()
            },
            clock: Clock::Boottime,
        };
        let open = subject.contender(&id).await?;
        let (sender, receiver) = oneshot::channel();
        let met = faults.clone();
        let election = LeaderElection::start_on_thread(options, async move || {
            let inner = open().await?;
            let _ = sender.send(inner.clone());
            Ok(Arc::new(Faulty::new(inner, met)) as Arc<dyn ElectionDriver>)
        })
        .await?;
        Ok(Process {
            id,
            start: STARTS.fetch_add(1, Ordering::Relaxed),
            election,
            driver: receiver.await?,
            faults,
        })
    }

    /// Waits until its leadership is as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Leadership) -> bool) -> Leadership {
        let mut leadership = self.election.leadership();
        match tokio::time::timeout(BOUND, leadership.wait_for(|now| wanted(now))).await {
            Ok(Ok(now)) => now.clone(),
            Ok(Err(_)) => panic!("the election of {} ended before {what}", self.id),
            Err(_) => panic!(
                "{} is not {what} but {:?}; its session: {:?}; the keys: {:?}",
                self.id,
                self.election.leadership().borrow().clone(),
                self.driver.session().borrow().clone(),
                self.driver.observed().borrow().clone(),
            ),
        }
    }

    /// Waits until it leads in an epoch younger than this one.
    pub async fn leads_after(&self, epoch: Epoch) -> LeaderSession {
        let leads = |now: &Leadership| matches!(now, Leadership::Granted(session) if session.epoch() > epoch);
        let granted = self
            .until(&format!("leading after epoch {epoch}"), leads)
            .await;
        granted
            .session()
            .cloned()
            .expect("a granted term has a session")
    }

    /// Waits until it leads.
    pub async fn leads(&self) -> LeaderSession {
        self.leads_after(Epoch::ZERO).await
    }

    /// Waits until it leads (again) in this term.
    pub async fn leads_in(&self, term: &LeaderSession) {
        let leads =
            |now: &Leadership| matches!(now, Leadership::Granted(session) if session == term);
        self.until(&format!("leading in {term:?}"), leads).await;
        assert!(!term.is_over(), "{term:?}");
    }

    /// Waits until its term is over.
    pub async fn is_over(&self, term: &LeaderSession) {
        if tokio::time::timeout(BOUND, term.over()).await.is_err() {
            let leadership = self.election.leadership().borrow().clone();
            panic!("{term:?} is not over; {} is {leadership:?}", self.id);
        }
        assert_eq!(term.check(), Err(NotLeading::Over));
        self.until("informed of that", |now| now.session() != Some(term))
            .await;
    }

    /// Makes this process lead instead of the term of `epoch`: waits for the end of that term's lease if the
    /// store has leases and this one can't be renewed, otherwise deposes.
    pub async fn leads_instead_of_stopped(
        &self,
        subject: &dyn Subject,
        epoch: Epoch,
    ) -> CaseResult<LeaderSession> {
        if subject.lease().is_none() {
            self.election.depose(epoch).await?;
        }
        Ok(self.leads_after(epoch).await)
    }

    /// Waits until the store names a leader, and this process leads if and only if the store names it.
    pub async fn agrees_with_the_store(&self) -> CaseResult<ElectionView> {
        let mut last = String::new();
        let deadline = tokio::time::Instant::now() + BOUND;
        while tokio::time::Instant::now() < deadline {
            let view = match self.driver.read().await {
                Ok(view) => view,
                Err(error) if error.outcome() == Outcome::Fatal => return Err(error.into()),
                Err(error) => {
                    last = error.to_string();
                    tokio::time::sleep(POLL_INTERVAL).await;
                    continue;
                }
            };
            let nonce = self.driver.session().borrow().nonce().cloned();
            let leadership = self.election.leadership().borrow().clone();
            let leads = match &leadership {
                Leadership::Granted(session) => Some(session.epoch()),
                _ => None,
            };
            let named = view
                .leader
                .as_ref()
                .filter(|leader| leader.process == self.id && Some(&leader.nonce) == nonce.as_ref())
                .map(|leader| leader.epoch);
            if leads == named && view.leader.is_some() {
                return Ok(view);
            }
            last = format!("{leadership:?}, but the store has {view:?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("{}: {last}", self.id);
    }

    /// The nonce of its living lease or session.
    pub async fn nonce(&self) -> Nonce {
        let mut session = self.driver.session();
        let alive = tokio::time::timeout(BOUND, session.wait_for(|now| now.nonce().is_some()));
        let state = alive.await.expect("a session in time");
        let state = state.expect("the driver lives").clone();
        state.nonce().cloned().expect("as waited for")
    }

    /// Ends it as if it had been killed.
    pub async fn crash(self, subject: &dyn Subject) {
        subject.crash(&self.id).await;
    }

    /// Confirms its term.
    pub async fn confirm(&self, term: &LeaderSession) -> crate::Result<()> {
        let addresses = BTreeMap::from([("rpc".to_owned(), format!("{}:1", self.id))]);
        let retry_interval = Duration::from_millis(50);
        self.election.confirm(term, addresses, retry_interval).await
    }

    /// The pipeline of its term, on a separate store connection.
    pub async fn pipeline(
        &self,
        subject: &dyn Subject,
        term: &LeaderSession,
    ) -> CaseResult<CommitPipeline> {
        let store = subject.store(&self.id).await?;
        Ok(CommitPipeline::start(store, term.clone()).await?)
    }

    /// The pipeline of its term, on a store with faults.
    pub async fn faulty_pipeline(
        &self,
        subject: &dyn Subject,
        term: &LeaderSession,
    ) -> CaseResult<(CommitPipeline, Faults)> {
        let faults = Faults::default();
        let store = subject.store(&self.id).await?;
        let store: Arc<dyn CoordinationStore> = Arc::new(Faulty::new(store, faults.clone()));
        Ok((CommitPipeline::start(store, term.clone()).await?, faults))
    }

    /// Records its leadership in a history, while it lives.
    pub fn note_in(&self, history: &History) -> tokio::task::JoinHandle<()> {
        let (history, id, start) = (history.clone(), self.id.clone(), self.start);
        let mut leadership = self.election.leadership();
        tokio::spawn(async move {
            loop {
                let now = leadership.borrow_and_update().clone();
                history.note_leadership(&id, start, &now);
                if leadership.changed().await.is_err() {
                    return;
                }
            }
        })
    }
}

/// Asks the store until the answer is definite: retries all errors but fatal ones.
pub async fn until_definite<T>(mut ask: impl AsyncFnMut() -> crate::Result<T>) -> crate::Result<T> {
    wait_until("an answer of the store", BOUND, async || {
        match ask().await {
            Err(error) if error.outcome() != Outcome::Fatal => Err(error),
            definite => Ok(definite),
        }
    })
    .await
}

/// The value of an item.
pub async fn read_item(store: &dyn CoordinationStore, name: &str) -> crate::Result<Option<Bytes>> {
    let keys = [key(name)];
    let mut values = until_definite(async || store.get(&keys).await).await?;
    Ok(values.pop().flatten())
}

/// An item.
pub fn key(name: &str) -> Key {
    Key::new(ITEMS, Name::new(name).expect("the cases use valid names"))
}

/// A write of a text.
pub fn put(name: &str, value: &str) -> Write {
    put_bytes(name, Bytes::copy_from_slice(value.as_bytes()))
}

/// A write of bytes.
pub fn put_bytes(name: &str, value: Bytes) -> Write {
    Write::Put {
        key: key(name),
        value,
    }
}

/// A transaction of a term, bypassing its pipeline.
pub fn raw(term: &LeaderSession, after: Change, writes: Vec<Write>) -> CommitRequest {
    CommitRequest {
        fence: term.fence().clone(),
        after,
        writes,
    }
}

/// All names of items from [`key`], page by page.
pub async fn names(store: &dyn CoordinationStore, limit: usize) -> crate::Result<Vec<Name>> {
    let (mut names, mut page) = (Vec::new(), None);
    loop {
        let listed = store.list(ITEMS, page, limit).await?;
        assert!(
            listed.items.len() <= limit,
            "a page of {}",
            listed.items.len()
        );
        names.extend(listed.items.into_iter().map(|(name, _)| name));
        page = listed.next;
        if page.is_none() {
            return Ok(names);
        }
    }
}
