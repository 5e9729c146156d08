//! A leader that lost contact with processes that follow it asks the standbys whether they reach them, and invites the
//! one that does.
//!
//! Which followers count as missed and how often this is tried is decided elsewhere. Invariants: a leader
//! that itself reaches most of the missed ones hands nothing over; only a standby that reaches most of them, and more
//! than twice as many as the leader, is invited; the term continues until it is deposed.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout};
use tracing::{debug, info};

use super::peer_heartbeat::{Invitation, LivenessQuery};
use super::service::Detector;
use super::transfer::{Candidates, Standby, TransferError};
use crate::election::{Epoch, LeaderSession};

/// Maximum number of missed followers that are asked; of more, only the first.
const MAX_ASKED: usize = 32;

impl Detector {
    /// Hands this process's term over to a standby that reaches most of `missed` (addresses of followers), if this
    /// process reaches fewer than half as many of them. Returns the epoch of the successor; `None`: there is no such
    /// standby. On an error the term continues, unless it ended otherwise.
    pub async fn hand_over(
        &self,
        missed: &[String],
        bound: Duration,
    ) -> Result<Option<Epoch>, TransferError> {
        let session = self.led()?;
        let deadline = Instant::now() + bound;
        let Some(standby) = self.better_connected(&session, missed, deadline).await? else {
            return Ok(None);
        };
        let Standby {
            member, address, ..
        } = standby;
        info!(
            epoch = %session.epoch(), to = %member.process, missed = missed.len(),
            "most followers are unreachable from this process, and a standby reaches them: handing over"
        );
        let invited = self.invite(&session, &address, Invitation::HandOver, deadline);
        match invited.await {
            Ok(()) => Ok(Some(session.epoch().next())),
            Err(reason) => {
                let reason = format!("{}: {reason}", member.process);
                Err(TransferError::Failed(reason))
            }
        }
    }

    /// Whether [`Detector::hand_over`] would find a successor. Hands nothing over.
    pub async fn has_better_connected_standby(
        &self,
        missed: &[String],
        bound: Duration,
    ) -> Result<bool, TransferError> {
        let session = self.led()?;
        let deadline = Instant::now() + bound;
        let better_connected = self.better_connected(&session, missed, deadline).await?;
        Ok(better_connected.is_some())
    }

    /// Those of `addresses` that answer this process; of many, only the first are asked.
    pub async fn reached(&self, addresses: &[String]) -> Result<Vec<String>, TransferError> {
        let query = self.query_about(&self.led()?);
        Ok(self.reachable_of(&query, addresses).await)
    }

    /// The session of the term that this process leads.
    pub(super) fn led(&self) -> Result<LeaderSession, TransferError> {
        let leadership = self.services.election.leadership();
        let session = leadership.borrow().session().cloned();
        session.ok_or(TransferError::NotLeading)
    }

    /// The standby that reaches most of `missed`, if this process reaches fewer than half as many of them.
    async fn better_connected(
        &self,
        session: &LeaderSession,
        missed: &[String],
        deadline: Instant,
    ) -> Result<Option<Standby>, TransferError> {
        let missed = &missed[..missed.len().min(MAX_ASKED)];
        let query = self.query_about(session);
        let own = self.count_reached(&query, missed).await;
        if own * 2 > missed.len() {
            debug!(own, asked = missed.len(), "the missed followers answer");
            return Ok(None);
        }
        let Candidates { standbys, .. } = self.candidates(deadline).await?;
        let Some((standby, reached)) = self.best_of(standbys, &query, missed).await else {
            return Err(TransferError::NoStandby);
        };
        let is_better = |own: usize| reached * 2 > missed.len() && reached > own * 2;
        // Counted once more: followers that were just restarting may have been asked too early.
        let own = match is_better(own) {
            true => self.count_reached(&query, missed).await,
            false => own,
        };
        let is_better = is_better(own);
        debug!(
            own,
            reached,
            is_better,
            standby = %standby.member.process,
            "counted the missed followers that a standby reaches"
        );
        Ok(is_better.then_some(standby))
    }

    /// Number of the processes at `addresses` that answer this process when it asks them `query`.
    pub async fn count_reached(&self, query: &LivenessQuery, addresses: &[String]) -> usize {
        self.reachable_of(query, addresses).await.len()
    }

    async fn reachable_of(&self, query: &LivenessQuery, addresses: &[String]) -> Vec<String> {
        let bound = self.services.options.inquiry_timeout;
        let asked = addresses.iter().take(MAX_ASKED).cloned().map(|address| {
            let (peers, query) = (self.services.peers.clone(), query.clone());
            async move {
                let answer = timeout(bound, peers.query(&address, &query)).await;
                matches!(answer, Ok(Ok(_))).then_some(address)
            }
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// The standby that reaches most of them; of equals, the one with the most current cache.
    async fn best_of(
        &self,
        standbys: Vec<Standby>,
        query: &LivenessQuery,
        missed: &[String],
    ) -> Option<(Standby, usize)> {
        // The standby asks them within half of this time, and then answers.
        let bound = self.services.options.inquiry_timeout * 2;
        let asked = standbys.into_iter().map(|standby| {
            let peers = self.services.peers.clone();
            let (query, missed) = (query.clone(), missed.to_vec());
            async move {
                let counted = peers.count_reached(&standby.address, &query, &missed);
                let reached = timeout(bound, counted).await.unwrap_or(Ok(0)).unwrap_or(0);
                let name = &standby.member.process;
                debug!(standby = %name, reached, "counted the missed followers that a standby reaches");
                (standby, reached)
            }
        });
        // `max_by_key` returns the last of equals, and the standbys are sorted by most current cache first.
        join_all(asked)
            .await
            .into_iter()
            .rev()
            .max_by_key(|(_, reached)| *reached)
    }

    /// The answer itself does not matter here, only that there is one, at once.
    fn query_about(&self, session: &LeaderSession) -> LivenessQuery {
        LivenessQuery {
            leader: self.services.identity.process.clone(),
            epoch: session.epoch(),
            address: String::new(),
            timeout: self.services.options.inquiry_timeout / 2,
        }
    }
}
