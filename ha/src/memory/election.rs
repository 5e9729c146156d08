//! The election part of the memory backend: one lease for each handle, renewed by a task, and the guarded
//! writes.
//!
//! Invariants: the session's deadline counts from before the renewal was sent. After
//! [`ElectionDriver::close`] no new lease is requested.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::link::{self, Faults, Link, Server};
use crate::clock::Clock;
use crate::election::{
    Attempt, ClusterIncarnation, ElectionDriver, ElectionView, EpochRecord, EpochToken,
    LeaderInformation, LeaderKey, Member, Nonce, ProcessId, SessionState,
};
use crate::error::{Error, Result};

/// The election handle of a process on a [`MemoryCluster`](super::MemoryCluster).
#[derive(Debug)]
pub struct MemoryElection {
    link: Arc<Link>,
    contender: Option<Arc<Contender>>,
    session: watch::Receiver<SessionState>,
    observed: watch::Receiver<Option<ElectionView>>,
    /// The incarnation of the term that this handle last tried to take: tokens repeat after a wipe.
    incarnation: Mutex<Option<ClusterIncarnation>>,
    /// The handle's tasks; they end when it is dropped.
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Contender {
    link: Arc<Link>,
    process: ProcessId,
    clock: Clock,
    session: watch::Sender<SessionState>,
    member: Mutex<Option<Member>>,
    closed: CancellationToken,
}

impl MemoryElection {
    pub(super) fn contender(link: Arc<Link>, process: ProcessId, clock: Clock) -> MemoryElection {
        let contender = Arc::new(Contender {
            link: Arc::clone(&link),
            process,
            clock,
            session: watch::Sender::default(),
            member: Mutex::default(),
            closed: CancellationToken::new(),
        });
        let session = contender.session.subscribe();
        let mut election = MemoryElection::follow(link, session);
        election.tasks.spawn(Arc::clone(&contender).keep_session());
        election.contender = Some(contender);
        election
    }

    pub(super) fn observer(link: Arc<Link>) -> MemoryElection {
        MemoryElection::follow(link, watch::channel(SessionState::None).1)
    }

    fn follow(link: Arc<Link>, session: watch::Receiver<SessionState>) -> MemoryElection {
        let (sender, observed) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&link).follow(link.server.view.subscribe(), sender));
        let incarnation = Mutex::default();
        MemoryElection {
            link,
            contender: None,
            session,
            observed,
            incarnation,
            tasks,
        }
    }

    /// Controls the faults of this handle's requests.
    pub fn faults(&self) -> Faults {
        Faults::of(&self.link)
    }

    fn incarnation(&self) -> Option<ClusterIncarnation> {
        self.incarnation.lock().clone()
    }
}

impl Contender {
    /// Keeps a lease: renews it, and requests another as soon as the server reports that it is gone.
    async fn keep_session(self: Arc<Self>) {
        let options = &self.link.server.options;
        loop {
            self.renew();
            let pause = if self.session.borrow().nonce().is_some() {
                options.ttl / 3
            } else {
                // Only an outage prevents a session: wait for its end, not for a timer.
                self.link.reachable().await;
                Duration::ZERO
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.closed.cancelled() => return,
            }
        }
    }

    fn renew(&self) {
        let options = &self.link.server.options;
        let asked = self.clock.now();
        // Locked until the session is published: a concurrent `announce` is put under the new lease either
        // here, or by its caller, who then sees the new session.
        let member = self.member.lock();
        let known = self.session.borrow().nonce().cloned();
        let renewed = self.link.reach_now(|state| {
            let deadline = link::deadline(options);
            if let Some(nonce) = known
                && state.renew(&nonce, deadline)
            {
                return Some((nonce, false));
            }
            if self.closed.is_cancelled() {
                return None;
            }
            let nonce = state.grant(&self.process, deadline);
            if let Some(member) = member.as_ref() {
                state.put_member(&nonce, member);
            }
            Some((nonce, true))
        });
        // No answer: the session stays unchanged, and its deadline passes.
        let Some(Some((nonce, is_new))) = renewed else {
            return;
        };
        if is_new {
            tokio::spawn(end_in_time(
                Arc::downgrade(&self.link.server),
                nonce.clone(),
            ));
        }
        let deadline = Some(asked.after(options.ttl));
        self.session.send_replace(SessionState::Alive {
            nonce,
            deadline,
            timeout: options.ttl,
        });
    }
}

/// The server's side of a lease: ends it when it was not renewed in time. Outlives the handle, as on a real
/// server.
async fn end_in_time(server: Weak<Server>, nonce: Nonce) {
    loop {
        let Some(strong) = server.upgrade() else {
            return;
        };
        let quorum_lost = strong.outage.borrow().quorum_lost;
        let again = strong.apply(|state| {
            let deadline = state.lease(&nonce)?.deadline;
            let now = Instant::now();
            if deadline > now {
                return Some(deadline);
            }
            if quorum_lost {
                // Without a quorum no lease expires; check again after another ttl.
                return Some(link::deadline(&strong.options));
            }
            state.revoke(&nonce);
            None
        });
        drop(strong);
        match again {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => return,
        }
    }
}

#[async_trait]
impl ElectionDriver for MemoryElection {
    fn session(&self) -> watch::Receiver<SessionState> {
        self.session.clone()
    }

    fn observed(&self) -> watch::Receiver<Option<ElectionView>> {
        self.observed.clone()
    }

    async fn read(&self) -> Result<ElectionView> {
        self.link.read(|state| state.view()).await
    }

    async fn advance(
        &self,
        seen: &ElectionView,
        next: &EpochRecord,
        leader: &LeaderKey,
    ) -> Result<Attempt> {
        *self.incarnation.lock() = Some(next.incarnation.clone());
        let (seen, next, leader) = (seen.clone(), next.clone(), leader.clone());
        self.link
            .write(move |state| state.advance(&seen, &next, &leader))
            .await?
    }

    async fn attach(&self, token: EpochToken, leader: &LeaderKey) -> Result<Attempt> {
        let (incarnation, leader) = (self.incarnation(), leader.clone());
        self.link
            .write(move |state| state.attach(token, incarnation.as_ref(), &leader))
            .await?
    }

    async fn resign(&self, token: EpochToken) -> Result<Attempt> {
        let incarnation = self.incarnation();
        self.link
            .write(move |state| state.resign(token, incarnation.as_ref()))
            .await
    }

    async fn accept(&self, seen: &ElectionView, next: &EpochRecord) -> Result<Attempt> {
        let (seen, next) = (seen.clone(), next.clone());
        self.link
            .write(move |state| state.accept(&seen, &next))
            .await
    }

    async fn publish(&self, token: EpochToken, info: &LeaderInformation) -> Result<Attempt> {
        let (incarnation, info) = (self.incarnation(), info.clone());
        self.link
            .write(move |state| state.publish(token, incarnation.as_ref(), &info))
            .await
    }

    async fn announce(&self, member: &Member) -> Result<()> {
        let Some(contender) = &self.contender else {
            return Err(Error::Misconfigured(
                "an observer can't be announced as a member".into(),
            ));
        };
        let nonce = {
            let mut announced = contender.member.lock();
            *announced = Some(member.clone());
            self.session.borrow().nonce().cloned()
        };
        if let Some(nonce) = nonce {
            self.link
                .read(|state| state.put_member(&nonce, member))
                .await?;
        }
        Ok(())
    }

    async fn members(&self) -> Result<Vec<Member>> {
        self.link.read(|state| state.members()).await
    }

    async fn close(&self) {
        let Some(contender) = &self.contender else {
            return;
        };
        contender.closed.cancel();
        let state = contender.session.send_replace(SessionState::None);
        if let Some(nonce) = state.nonce() {
            // An unreachable server lets the lease expire.
            let _ = self.link.reach_now(|state| state.revoke(nonce));
        }
    }
}
