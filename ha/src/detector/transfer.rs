//! Deposition by invitation: a leader asks a standby to depose it, and leads until that has happened.
//!
//! The leader keeps its term until the store has granted the next one: if the invited process dies, or the store
//! refuses it, the term continues. If the leader dies meanwhile, the invited process still deposes it.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use super::peer_heartbeat::{Invitation, PeerHeartbeat, Role};
use super::service::{Detector, PEER};
use crate::election::{
    Detection, Epoch, Evidence, Former, LeaderElection, LeaderSession, Leadership, Member,
    ProcessId,
};

/// The reason why the term continues.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The process does not lead.
    #[error("this process does not lead")]
    NotLeading,
    /// The members can't be listed.
    #[error("the other candidates can't be listed: {0}")]
    NoMembers(String),
    /// The named process is not a candidate for leadership.
    #[error("{0} is not a standby that answers")]
    NoSuchStandby(ProcessId),
    /// No process stands by.
    #[error("no other process is a standby that answers")]
    NoStandby,
    /// No invited process led in time.
    #[error("no invited process took over: {0}")]
    Failed(String),
}

/// A process that stands by and answers.
#[derive(Debug)]
pub(super) struct Standby {
    pub(super) heartbeat: PeerHeartbeat,
    pub(super) member: Member,
    pub(super) address: String,
}

/// What the other candidates answer when they are asked.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// They stand by, the most current first.
    pub(super) standbys: Vec<Standby>,
    /// They gave no answer in time.
    silent: Vec<ProcessId>,
}

impl Detector {
    /// Hands this process's term over to the standby `to`; `None`: to the one with the most current copy of the
    /// records, or to the next if that does not take over. Returns the epoch of the successor. A candidate that is
    /// silent is asked again until `bound` is over; one whose address refuses connections is not. On an error the term
    /// continues, unless it ended otherwise.
    pub async fn transfer(
        &self,
        to: Option<&ProcessId>,
        bound: Duration,
    ) -> Result<Epoch, TransferError> {
        let session = self.led()?;
        let deadline = Instant::now() + bound;
        let is_wanted = |process: &ProcessId| to.is_none_or(|to| to == process);
        loop {
            let Candidates {
                mut standbys,
                silent,
            } = self.candidates(deadline).await?;
            standbys.retain(|standby| is_wanted(&standby.member.process));
            if !standbys.is_empty() {
                return self.invite_one_of(&session, standbys, deadline).await;
            }
            if session.is_over() {
                return Err(TransferError::NotLeading);
            }
            if !silent.iter().any(is_wanted) || Instant::now() >= deadline {
                return Err(match to {
                    Some(process) => TransferError::NoSuchStandby(process.clone()),
                    None => TransferError::NoStandby,
                });
            }
        }
    }

    /// Invites one standby after the other until one leads. The error is that of the last one.
    async fn invite_one_of(
        &self,
        session: &LeaderSession,
        standbys: Vec<Standby>,
        deadline: Instant,
    ) -> Result<Epoch, TransferError> {
        let mut refusal = TransferError::NoStandby;
        for Standby {
            member, address, ..
        } in standbys
        {
            info!(epoch = %session.epoch(), to = %member.process, "inviting a standby to take over");
            let invited = self.invite(session, &address, Invitation::Requested, deadline);
            match invited.await {
                Ok(()) => return Ok(session.epoch().next()),
                Err(reason) => {
                    warn!(to = %member.process, reason, "the invited standby did not take over");
                    refusal = TransferError::Failed(format!("{}: {reason}", member.process));
                }
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        Err(refusal)
    }

    pub(super) async fn invite(
        &self,
        session: &LeaderSession,
        address: &str,
        invitation: Invitation,
        deadline: Instant,
    ) -> Result<(), String> {
        let bound = deadline.saturating_duration_since(Instant::now());
        let own = &self.services.identity.process;
        let invited = self
            .services
            .peers
            .invite(address, own, session.epoch(), invitation, bound);
        tokio::select! {
            () = session.over() => Ok(()),
            answer = timeout(bound, invited) => match answer {
                // The store reports it to this process a moment later.
                Ok(Ok(())) => timeout_at(deadline, session.over())
                    .await
                    .map_err(|_| "it says that it leads, but the store does not show that yet".to_owned()),
                Ok(Err(reason)) => Err(reason),
                Err(_) => Err(format!("no answer within {bound:?}")),
            },
        }
    }

    /// Number of other candidates that the store knows, whether or not they answer.
    pub async fn count_others(&self, bound: Duration) -> Result<usize, TransferError> {
        Ok(self.others(Instant::now() + bound).await?.len())
    }

    async fn others(&self, deadline: Instant) -> Result<Vec<Member>, TransferError> {
        let members = timeout_at(deadline, self.services.election.members())
            .await
            .map_err(|_| TransferError::NoMembers("the store gives no answer".to_owned()))?
            .map_err(|error| TransferError::NoMembers(error.to_string()))?;
        let own = &self.services.identity.process;
        let others = members.into_iter().filter(|member| member.process != *own);
        Ok(others.collect())
    }

    /// Asks the other candidates what they are.
    pub(super) async fn candidates(&self, deadline: Instant) -> Result<Candidates, TransferError> {
        let others = self.others(deadline).await?;
        let probes = others.into_iter().filter_map(|member| {
            let address = member.addresses.get(PEER)?.clone();
            Some(async move {
                let bound = self.services.options.inquiry_timeout;
                let probed = timeout(bound, self.services.peers.probe(&address)).await;
                (member, address, probed)
            })
        });
        let mut candidates = Candidates::default();
        for (member, address, probed) in join_all(probes).await {
            match probed {
                Ok(Ok(heartbeat))
                    if heartbeat.process == member.process && heartbeat.role == Role::Standby =>
                {
                    candidates.standbys.push(Standby {
                        heartbeat,
                        member,
                        address,
                    });
                }
                Ok(_) => {}
                Err(_) => candidates.silent.push(member.process),
            }
        }
        candidates.standbys.sort_by(
            |Standby { heartbeat: a, .. }, Standby { heartbeat: b, .. }| {
                let current = b.cached_change.cmp(&a.cached_change);
                current.then_with(|| a.process.cmp(&b.process))
            },
        );
        Ok(candidates)
    }

    /// Handles an invitation to depose `leader` in `epoch`. Returns when that term is over; after `bound` it
    /// stops trying. The error says why it failed.
    pub async fn accept(
        &self,
        leader: ProcessId,
        epoch: Epoch,
        invitation: Invitation,
        bound: Duration,
    ) -> Result<(), String> {
        let election = &self.services.election;
        match &*election.leadership().borrow() {
            Leadership::Standby | Leadership::Over(_) => {}
            Leadership::Granted(session) | Leadership::Suspended(session) => {
                return Err(format!("it leads itself, in epoch {}", session.epoch()));
            }
            Leadership::Refused(reason) => return Err(reason.clone()),
        }
        let now = election.clock().now();
        let evidence = Evidence {
            detection: match invitation {
                Invitation::Requested => Detection::Invited,
                Invitation::HandOver => Detection::HandedOver,
            },
            former: Former {
                process: Some(leader),
                ..Former::default()
            },
            last_heartbeat: Some(now),
            detected: now,
        };
        // The inviter may stop waiting, which drops this call: the request must still end at its bound.
        let request = depose_within(election.clone(), epoch, evidence, bound);
        let granted = election.runtime().spawn(request).await;
        granted.unwrap_or_else(|failure| Err(failure.to_string()))
    }
}

async fn depose_within(
    election: LeaderElection,
    epoch: Epoch,
    evidence: Evidence,
    bound: Duration,
) -> Result<(), String> {
    let request = election.new_depose_request();
    match timeout(bound, election.depose_because(request, epoch, evidence)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            election.cancel_depose(request).await;
            Err(format!("the store did not grant it within {bound:?}"))
        }
    }
}
