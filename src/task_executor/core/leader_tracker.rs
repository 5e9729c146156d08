//! The leader that a TaskExecutor follows, and the numbers of its registrations there. Pure except for the accepted
//! term, which it shares with its process.
//!
//! - A leader is followed in a term that is proven, or that is believed while the store is silent:
//!   [`tanist_gateway::fencing`]. Epochs of followed leaders only grow.
//! - Each registration has a higher number than all before it, and is sent only in the followed leader's term.

use tanist_gateway::fencing::{Contradicted, HighestEpoch, Proof};
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::v1 as pb;

use super::connection::Registration;
use super::effect::Effect;
use super::log_line::LogLine;
use super::output::Output;
use crate::Fatal;

/// A leader that can be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leader {
    epoch: Epoch,
    address: String,
}

impl Leader {
    /// The leader of this term, at this RPC address.
    pub(super) fn new(epoch: Epoch, address: String) -> Leader {
        Leader { epoch, address }
    }
}

/// What following a leader changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// It is older than the followed one, and ignored.
    Older,
    /// It was followed already.
    Same,
    /// It is followed in place of another one or none.
    Other,
}

/// See the module.
#[derive(Debug)]
pub(super) struct LeaderTracker {
    terms: HighestEpoch,
    leader: Option<Leader>,
    /// Whether the store, or a leader itself, names a leader to follow.
    is_named: bool,
    /// When a leader last sent a message or was last named.
    last_contact: Uptime,
    /// The last epoch that was accepted provisionally and that the store then contradicted.
    contradicted: Option<Contradicted>,
    last_registration: u64,
}

impl LeaderTracker {
    /// Follows no leader yet. Registrations get numbers above `first_registration`.
    pub(super) fn new(now: Uptime, terms: HighestEpoch, first_registration: u64) -> LeaderTracker {
        LeaderTracker {
            terms,
            leader: None,
            is_named: true,
            last_contact: now,
            contradicted: None,
            last_registration: first_registration,
        }
    }

    /// Records a view of the store, whose term counts like a message of the leader. Returns the leader that it names.
    pub(super) fn record_view(&mut self, view: LeaderView, output: &mut Output) -> Option<Leader> {
        let refusal = self.terms.follow(&view).err();
        if let Some(refusal) = &refusal {
            let refusal = refusal.to_string();
            output.log(LogLine::LeaderRefused { refusal });
            self.check_incarnation(&view, output);
        }
        let Some(information) = view.leader.filter(|_| refusal.is_none()) else {
            // Present connections stay: that the store names no leader says nothing about them. But another process
            // may take a slot or supersede running tasks: so the store is asked, and the slot timeouts are
            // suspended.
            self.is_named = false;
            return None;
        };
        let Some(address) = information.addresses.get("rpc").cloned() else {
            let leader = information.process;
            output.log(LogLine::LeaderWithoutAddress { leader });
            return None;
        };
        Some(Leader::new(information.epoch, address))
    }

    /// If a leader of another incarnation of the cluster is in this store, this process is refused.
    fn check_incarnation(&self, view: &LeaderView, output: &mut Output) {
        let ours = self.terms.accepted().incarnation;
        if let (Some(ours), Some(theirs), Some(leader)) = (ours, &view.incarnation, &view.leader)
            && ours != *theirs
        {
            output.effect(Effect::Fatal(Fatal::Refused(format!(
                "the store is another incarnation of the cluster: {theirs}, led by {}, and this \
                 TaskManager belongs to {ours}: it was wiped, or restored from a backup; if that is meant, start this process \
                 again: it joins the cluster as it is; else bring the former store back first",
                leader.process
            ))));
        }
    }

    /// Records a change of the term that this process accepts. Returns whether the followed leader was dropped.
    pub(super) fn record_proof(&mut self, proof: &Proof, output: &mut Output) -> bool {
        if let Some(shown) = proof.went_back() {
            let proven = proof.proven();
            output.effect(Effect::Fatal(Fatal::Refused(format!(
                "the store went back from epoch {proven} to epoch {shown}: it was restored from a backup; the tasks of this \
                 TaskManager are younger than its records; bring the former store back first, or start this process again: it \
                 joins the cluster as it is"
            ))));
        }
        let contradicted = proof.contradicted();
        if contradicted == self.contradicted {
            return false;
        }
        self.contradicted = contradicted;
        let is_followed = |leader: &Leader| contradicted.is_some_and(|it| it.epoch == leader.epoch);
        let Some(leader) = self.leader.take_if(|leader| is_followed(leader)) else {
            return false;
        };
        output.log(LogLine::LeaderDropped {
            epoch: leader.epoch,
            address: leader.address,
        });
        self.is_named = false;
        true
    }

    /// Follows a leader, unless a younger one is followed.
    pub(super) fn follow(&mut self, now: Uptime, leader: Leader, output: &mut Output) -> Followed {
        let present = self.leader.as_ref();
        if present.is_some_and(|present| present.epoch > leader.epoch) {
            return Followed::Older;
        }
        self.last_contact = now;
        self.is_named = true;
        if present == Some(&leader) {
            return Followed::Same;
        }
        output.log(LogLine::LeaderFollowed {
            epoch: leader.epoch,
            address: leader.address.clone(),
        });
        self.leader = Some(leader);
        Followed::Other
    }

    /// Address of the followed leader.
    pub(super) fn address(&self) -> Option<&str> {
        self.leader.as_ref().map(|leader| leader.address.as_str())
    }

    /// Whether the store, or a leader itself, names a leader to follow.
    pub(super) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Records a message of a leader.
    pub(super) fn record_contact(&mut self, now: Uptime) {
        self.last_contact = now;
    }

    /// When a leader last sent a message or was last named.
    pub(super) fn last_contact(&self) -> Uptime {
        self.last_contact
    }

    /// Checks the term of a leader's message.
    pub(super) fn admit(&self, sender: Option<&pb::Sender>) -> GatewayResult<Epoch> {
        self.terms.admit(sender)
    }

    /// Records a term that the store has shown.
    pub(super) fn observe(
        &self,
        incarnation: &ClusterIncarnation,
        epoch: Epoch,
    ) -> GatewayResult<()> {
        self.terms.observe(incarnation, epoch)
    }

    /// The highest epoch that this process accepts.
    pub(super) fn epoch(&self) -> Epoch {
        self.terms.accepted().epoch
    }

    /// Refusal of a message that belongs to no present registration or JobMaster.
    pub(super) fn outdated(&self, reason: String) -> GatewayError {
        let epoch = self.epoch().get();
        GatewayError::Outdated { epoch, reason }
    }

    /// The next registration at the followed leader.
    pub(super) fn next_registration(&mut self) -> GatewayResult<Registration> {
        let unknown = || GatewayError::NotYet("the cluster's incarnation is not known".to_owned());
        let leader = self.leader.as_ref().ok_or_else(run_is_over)?;
        let accepted = self.terms.accepted();
        let incarnation = accepted.incarnation.ok_or_else(unknown)?;
        if leader.epoch != accepted.epoch {
            return Err(run_is_over());
        }
        self.last_registration = self.last_registration.saturating_add(1);
        let number = self.last_registration;
        Ok(Registration::new(incarnation, leader.epoch, number))
    }

    /// Makes later registrations use numbers above one that a leader has seen.
    pub(super) fn raise_registration(&mut self, seen: u64) {
        self.last_registration = self.last_registration.max(seen);
    }
}

/// Refusal of an attempt of a run that was replaced or ended.
pub(super) fn run_is_over() -> GatewayError {
    GatewayError::NotYet("this run of registration attempts is over".to_owned())
}
