//! The election's side of the memory store as one process uses it. A frozen process sends and receives nothing;
//! if its clock stands still too, it believes in its lease until a message says otherwise.

use std::sync::Arc;

use async_trait::async_trait;
use tanist_ha::Result;
use tanist_ha::election::{
    Attempt, ElectionDriver, ElectionView, EpochRecord, EpochToken, LeaderInformation, LeaderKey,
    Leadership, Member, ProcessId, SessionState,
};
use tanist_ha::memory::MemoryElection;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::history::Event;
use super::world::World;

#[derive(Debug)]
pub(super) struct StoppableElection {
    inner: Arc<MemoryElection>,
    world: World,
    process: ProcessId,
    session: watch::Receiver<SessionState>,
    /// Ends when this is dropped.
    _forwarding: JoinSet<()>,
}

impl StoppableElection {
    pub(super) fn new(
        inner: Arc<MemoryElection>,
        world: World,
        process: ProcessId,
    ) -> StoppableElection {
        let (sender, session) = watch::channel(SessionState::None);
        let mut forwarding = JoinSet::new();
        forwarding.spawn(forward_session(
            inner.session(),
            sender,
            world.stubborn.subscribe(),
            process.to_string(),
        ));
        StoppableElection {
            inner,
            world,
            process,
            session,
            _forwarding: forwarding,
        }
    }

    async fn goes_on(&self) {
        self.world.goes_on(self.process.as_str()).await;
    }
}

/// Forwards the session, without its deadline while the process's clock stands still.
async fn forward_session(
    mut session: watch::Receiver<SessionState>,
    reported: watch::Sender<SessionState>,
    mut stubborn: watch::Receiver<std::collections::BTreeSet<String>>,
    process: String,
) {
    loop {
        let mut state = session.borrow_and_update().clone();
        let is_stubborn = stubborn.borrow_and_update().contains(&process);
        if let SessionState::Alive { deadline, .. } = &mut state
            && is_stubborn
        {
            *deadline = None;
        }
        reported.send_replace(state);
        tokio::select! {
            changed = session.changed() => if changed.is_err() { return },
            changed = stubborn.changed() => if changed.is_err() { return },
        }
    }
}

#[async_trait]
impl ElectionDriver for StoppableElection {
    fn session(&self) -> watch::Receiver<SessionState> {
        self.session.clone()
    }

    fn observed(&self) -> watch::Receiver<Option<ElectionView>> {
        self.inner.observed()
    }

    async fn read(&self) -> Result<ElectionView> {
        self.goes_on().await;
        let answer = self.inner.read().await;
        self.goes_on().await;
        answer
    }

    async fn advance(
        &self,
        seen: &ElectionView,
        next: &EpochRecord,
        leader: &LeaderKey,
    ) -> Result<Attempt> {
        self.goes_on().await;
        let answer = self.inner.advance(seen, next, leader).await;
        self.goes_on().await;
        answer
    }

    async fn attach(&self, token: EpochToken, leader: &LeaderKey) -> Result<Attempt> {
        self.goes_on().await;
        let answer = self.inner.attach(token, leader).await;
        self.goes_on().await;
        answer
    }

    async fn resign(&self, token: EpochToken) -> Result<Attempt> {
        self.goes_on().await;
        let answer = self.inner.resign(token).await;
        self.goes_on().await;
        answer
    }

    async fn accept(&self, seen: &ElectionView, next: &EpochRecord) -> Result<Attempt> {
        self.goes_on().await;
        let answer = self.inner.accept(seen, next).await;
        self.goes_on().await;
        answer
    }

    async fn publish(&self, token: EpochToken, info: &LeaderInformation) -> Result<Attempt> {
        self.goes_on().await;
        let answer = self.inner.publish(token, info).await;
        self.goes_on().await;
        answer
    }

    async fn announce(&self, member: &Member) -> Result<()> {
        self.goes_on().await;
        self.inner.announce(member).await
    }

    async fn members(&self) -> Result<Vec<Member>> {
        self.goes_on().await;
        self.inner.members().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// Records every grant of a life's election.
pub(super) async fn note_grants(
    mut reported: watch::Receiver<Leadership>,
    world: World,
    life: String,
) {
    loop {
        if let Leadership::Granted(session) = &*reported.borrow_and_update() {
            let epoch = session.epoch().get();
            let life = life.clone();
            world.note(Event::Granted { life, epoch });
        }
        if reported.changed().await.is_err() {
            return;
        }
    }
}
