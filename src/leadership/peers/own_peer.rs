//! This process as its peers see it: its heartbeats, and its answers to their requests. Runs on the election's
//! thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use tanist_gateway::peers::PeerGateway;
use tanist_ha::detector::{
    HeartbeatStream, Identity, Invitation, PeerHeartbeat, Question, Reply, TransferError,
};
use tanist_ha::election::{Epoch, LeaderElection, Leadership, ProcessId, TermHolder};
use tanist_proto::v1 as pb;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::PeersHandle;
use super::belonging;
use super::reports::PeerStatus;

/// Timeout for the store to list its members.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// The data of the answers, and where requests are forwarded.
#[derive(Debug, Clone)]
pub(super) struct OwnPeer {
    pub identity: Identity,
    pub handle: PeersHandle,
    pub leadership: watch::Receiver<Leadership>,
    /// Does not keep the election running.
    pub election: LeaderElection,
    /// Limits concurrent requests that read the store.
    pub questions: Arc<Semaphore>,
    pub beat_interval: Duration,
}

/// One stream of heartbeats.
struct Heartbeats {
    peer: OwnPeer,
    /// Sent at once, as it may be the last message of this process.
    gave_up: watch::Receiver<Option<Epoch>>,
    ticks: Interval,
}

impl Heartbeats {
    async fn next(mut self) -> Option<(PeerHeartbeat, Heartbeats)> {
        tokio::select! {
            _ = self.ticks.tick() => {}
            changed = self.peer.leadership.changed() => changed.ok()?,
            changed = self.gave_up.changed() => changed.ok()?,
        }
        self.peer.leadership.borrow_and_update();
        self.gave_up.borrow_and_update();
        Some((self.peer.heartbeat(), self))
    }
}

#[async_trait]
impl PeerGateway for OwnPeer {
    fn heartbeat(&self) -> PeerHeartbeat {
        let reports = &self.handle.reports;
        let PeerStatus {
            role,
            progress,
            since_ms,
        } = reports.status(&self.leadership.borrow());
        let leads = role.epoch().is_some();
        let witnesses = leads.then(|| reports.witnesses.borrow().clone());
        PeerHeartbeat {
            process: self.identity.process.clone(),
            incarnation: self.identity.incarnation.clone(),
            role,
            host: self.identity.host.clone(),
            progress,
            since_ms: Some(since_ms),
            turns: reports.turns(),
            gave_up: *reports.gave_up.borrow(),
            cached_change: *reports.cached_change.borrow(),
            witnesses: witnesses.unwrap_or_default(),
        }
    }

    fn heartbeats(&self) -> HeartbeatStream {
        let mut ticks = interval(self.beat_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let peer = self.clone();
        let gave_up = peer.handle.reports.gave_up.subscribe();
        let heartbeats = Heartbeats {
            peer,
            gave_up,
            ticks,
        };
        stream::unfold(heartbeats, Heartbeats::next).boxed()
    }

    async fn invite(
        &self,
        leader: ProcessId,
        epoch: Epoch,
        invitation: Invitation,
        bound: Duration,
    ) -> Result<(), String> {
        if self.handle.closing.is_cancelled() {
            return Err("it is about to end".to_owned());
        }
        if self.handle.reports.stands_still.load(Ordering::Relaxed) {
            return Err("it stands still".to_owned());
        }
        let detector = &self.handle.detector;
        detector.accept(leader, epoch, invitation, bound).await
    }

    async fn count_reached(&self, question: &Question, addresses: &[String]) -> usize {
        self.handle
            .detector
            .count_reached(question, addresses)
            .await
    }

    async fn ask_belonging(&self, who: &TermHolder) -> Result<pb::AskBelongingResponse, String> {
        let Ok(_place) = self.questions.try_acquire() else {
            return Err("too many such requests are under way".to_owned());
        };
        let answer = tokio::time::timeout(STORE_TIMEOUT, belonging::answer(&self.election, who));
        let late = |_| "its store does not answer".to_owned();
        let answer = answer.await.map_err(late)?;
        answer.map_err(|error| error.to_string())
    }

    async fn transfer(&self, to: Option<&ProcessId>) -> Result<Epoch, TransferError> {
        self.handle.transfer(to).await
    }

    async fn answer(&self, question: &Question) -> Reply {
        self.handle.detector.answer(question).await
    }
}
