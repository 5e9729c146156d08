//! How the core holds a term: suspends it when the store does not confirm it, attaches it again, resigns it.
//!
//! Only the store's answer or resigning ends a term.

use super::{Effect, ElectionCore, ElectionStatus, Phase, Term};
use crate::clock::Moment;
use crate::election::driver::{Attempt, ElectionView, EpochToken, LeaderKey};
use crate::error::Result;

impl ElectionCore {
    pub(super) fn suspend_if_unconfirmed(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let Phase::Leading(term) = &self.phase else {
            return;
        };
        let is_confirmed = self.unreadable.is_none() && self.holds_leader_key(term);
        if is_confirmed && self.session.is_valid_at(now) {
            return;
        }
        let term = term.clone();
        effects.push(Effect::Publish(ElectionStatus::Suspended(term.clone())));
        self.phase = Phase::Suspended {
            term,
            attaching: false,
        };
    }

    /// Whether `leader` is this process's key under its living session, as far as is known.
    fn holds_leader_key(&self, term: &Term) -> bool {
        match &self.view {
            Some(view) if view.youngest() == term.epoch => {
                view.leader.as_ref().is_some_and(|leader| {
                    leader.epoch == term.epoch && Some(&leader.nonce) == self.session.nonce()
                })
            }
            // No view of this term has arrived yet.
            Some(_) | None => true,
        }
    }

    /// Handles a read while the term is suspended: leads again if `leader` names the living session, else
    /// attaches the term to that session.
    pub(super) fn reattach(
        &mut self,
        now: Moment,
        view: &ElectionView,
        term: Term,
        effects: &mut Vec<Effect>,
    ) {
        let nonce = match self.session.nonce() {
            Some(nonce) if self.session.is_valid_at(now) && self.unreadable.is_none() => {
                nonce.clone()
            }
            Some(_) | None => {
                self.pause(now);
                return;
            }
        };
        let mine = LeaderKey {
            epoch: term.epoch,
            process: self.holder.process.clone(),
            nonce,
        };
        if view.leader.as_ref() == Some(&mine) {
            self.grant(term, effects);
        } else {
            effects.push(Effect::Attach {
                token: term.token,
                leader: mine,
            });
            self.phase = Phase::Suspended {
                term,
                attaching: true,
            };
        }
    }

    pub(super) fn on_attach(
        &mut self,
        now: Moment,
        token: EpochToken,
        reply: Result<Attempt>,
        effects: &mut Vec<Effect>,
    ) {
        // The answer to an earlier term's request says nothing about this term.
        match &mut self.phase {
            Phase::Suspended { term, attaching } if term.token == token => *attaching = false,
            Phase::Suspended { .. }
            | Phase::Standby
            | Phase::Acquiring(_)
            | Phase::Leading(_)
            | Phase::Resigning { .. }
            | Phase::Refused => return,
        }
        // Applied or unknown: the next read shows which, and the next step follows from it.
        match reply {
            Ok(Attempt::Applied(_)) => {}
            Ok(Attempt::Refused(view)) => {
                self.pause(now);
                self.see(view, None, effects);
                if !self.has_unverified_view && matches!(&self.phase, Phase::Suspended { .. }) {
                    // The store does not let this term attach again, even if the epoch number does not show
                    // why.
                    self.end_term(effects);
                }
            }
            Err(_) => self.pause(now),
        }
    }

    pub(super) fn start_resigning(&mut self, effects: &mut Vec<Effect>) {
        if let Some(term) = self.term().cloned() {
            effects.push(Effect::Publish(ElectionStatus::Over(term.epoch)));
            self.phase = Phase::Resigning {
                term,
                in_flight: false,
            };
        }
    }

    pub(super) fn on_resign(&mut self, now: Moment, reply: Result<Attempt>) {
        let Phase::Resigning { term, in_flight } = &mut self.phase else {
            return;
        };
        match reply {
            // Applied, or refused because `epoch` has moved already: the term is over in both cases.
            Ok(_) => {
                let term = term.clone();
                self.become_standby_after(&term);
                self.resign_hold_off_until = Some(now.after(self.timing.resign_hold_off));
            }
            // The same request is sent again until the answer is definite.
            Err(_) => {
                *in_flight = false;
                self.pause(now);
            }
        }
    }
}
