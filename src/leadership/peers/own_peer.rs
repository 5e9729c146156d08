//! This process as its peers see it: its heartbeats, and its answers to their requests. Runs on the election's
//! thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use tanist_gateway::peers::PeerGateway;
use tanist_ha::detector::{
    HeartbeatStream, Identity, Invitation, LivenessQuery, PeerHeartbeat, Reply, TransferError,
};
use tanist_ha::election::{Epoch, LeaderElection, Leadership, ProcessId, TermHolder};
use tanist_proto::v1 as pb;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::PeersHandle;
use super::reports::PeerStatus;
use super::same_store_check;

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
    pub store_requests: Arc<Semaphore>,
    pub heartbeat_interval: Duration,
}

/// One stream of heartbeats.
struct Heartbeats {
    peer: OwnPeer,
    /// Sent at once, as it may be the last message of this process.
    stalled_term: watch::Receiver<Option<Epoch>>,
    ticks: Interval,
}

impl Heartbeats {
    async fn next(mut self) -> Option<(PeerHeartbeat, Heartbeats)> {
        tokio::select! {
            _ = self.ticks.tick() => {}
            changed = self.peer.leadership.changed() => changed.ok()?,
            changed = self.stalled_term.changed() => changed.ok()?,
        }
        self.peer.leadership.borrow_and_update();
        self.stalled_term.borrow_and_update();
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
            scheduling_ages: reports.scheduling_ages(),
            stalled_term: *reports.stalled_term.borrow(),
            cached_change: *reports.cached_change.borrow(),
            witnesses: witnesses.unwrap_or_default(),
        }
    }

    fn heartbeats(&self) -> HeartbeatStream {
        let mut ticks = interval(self.heartbeat_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let peer = self.clone();
        let stalled_term = peer.handle.reports.stalled_term.subscribe();
        let heartbeats = Heartbeats {
            peer,
            stalled_term,
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
        if self.handle.reports.is_stalled.load(Ordering::Relaxed) {
            return Err("its main runtime has stalled".to_owned());
        }
        let detector = &self.handle.detector;
        detector.accept(leader, epoch, invitation, bound).await
    }

    async fn count_reached(&self, query: &LivenessQuery, addresses: &[String]) -> usize {
        self.handle.detector.count_reached(query, addresses).await
    }

    async fn ask_belonging(&self, who: &TermHolder) -> Result<pb::AskBelongingResponse, String> {
        let Ok(_place) = self.store_requests.try_acquire() else {
            return Err("too many such requests are in progress".to_owned());
        };
        let answer =
            tokio::time::timeout(STORE_TIMEOUT, same_store_check::answer(&self.election, who));
        let late = |_| "its store does not answer".to_owned();
        let answer = answer.await.map_err(late)?;
        answer.map_err(|error| error.to_string())
    }

    async fn transfer(&self, to: Option<&ProcessId>) -> Result<Epoch, TransferError> {
        self.handle.transfer(to).await
    }

    async fn answer(&self, query: &LivenessQuery) -> Reply {
        self.handle.detector.answer(query).await
    }
}
