//! How the core comes to a term: when leadership is taken, and what the store's answers to that mean.
//!
//! An ambiguous answer decides nothing: the request is sent again with the same guards, until it was applied or never can be.

use super::{Effect, ElectionCore, Epoch, Phase, Term};
use crate::clock::Moment;
use crate::election::driver::{Attempt, ElectionView, EpochRecord, LeaderKey, ProcessId};
use crate::error::{Outcome, Result};

/// A request to take leadership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taking {
    pub(super) seen: ElectionView,
    pub(super) next: EpochRecord,
    pub(super) leader: LeaderKey,
    pub(super) in_flight: bool,
}

impl ElectionCore {
    /// Takes free leadership, deposes when asked to, and takes up a term that it holds without knowing.
    pub(super) fn consider_taking(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let (Some(view), Some(nonce)) = (self.view.clone(), self.session.nonce().cloned()) else {
            return;
        };
        let youngest = view.youngest();
        if youngest < self.highest || self.unreadable.is_some() {
            // The store has shown a younger term, or shows none: this view says nothing, and the store is asked again.
            return;
        }
        let wanted = match &view.leader {
            None => {
                self.depose == Some(youngest)
                    || self.hold_off_until.is_none() && self.left_alone_until(now).is_none()
            }
            // What is left of a term that is over, whichever way it came back: only the next epoch can be led.
            Some(leader)
                if leader.nonce == nonce
                    && self.ended.is_some_and(|(ended, _)| leader.epoch <= ended) =>
            {
                self.hold_off_until.is_none()
            }
            Some(leader) if leader.process == self.holder.process && leader.nonce == nonce => {
                // A request that was given up long ago was applied after all: whoever holds the key leads.
                if let Some((record, token)) = &view.epoch
                    && record.epoch == leader.epoch
                {
                    self.grant(
                        Term {
                            epoch: leader.epoch,
                            token: *token,
                        },
                        effects,
                    );
                }
                return;
            }
            // Left by an earlier start of this very process, or by a session of it that is gone. Once it has led it may
            // as well be another living process that was given the same id: two of them would depose each other for ever.
            Some(leader)
                if leader.process == self.holder.process
                    && self.timing.deposes_earlier_self
                    && !self.has_led =>
            {
                true
            }
            Some(leader) => self.depose == Some(leader.epoch),
        };
        // Until the term is over the wish stays, as this attempt may fail in passing.
        self.depose = self.depose.filter(|epoch| *epoch >= youngest);
        if !wanted {
            return;
        }
        let incarnation = match &view.epoch {
            Some((record, _)) => record.incarnation.clone(),
            None => self.fresh.clone(),
        };
        let recorded = view
            .epoch
            .as_ref()
            .and_then(|(record, _)| record.store.clone());
        let next = EpochRecord {
            epoch: youngest.next(),
            incarnation,
            holder: Some(self.holder.clone()),
            store: view.store.clone().or(recorded),
        };
        let leader = LeaderKey {
            epoch: next.epoch,
            process: self.holder.process.clone(),
            nonce,
        };
        let taking = Taking {
            seen: view,
            next,
            leader,
            in_flight: true,
        };
        effects.push(taking.request());
        self.phase = Phase::Taking(Box::new(taking));
    }

    pub(super) fn on_advance(
        &mut self,
        now: Moment,
        reply: Result<Attempt>,
        effects: &mut Vec<Effect>,
    ) {
        let Phase::Taking(mut taking) = self.phase.clone() else {
            return;
        };
        match reply {
            Ok(Attempt::Applied(_)) if self.highest > taking.leader.epoch => {
                // Events have overtaken the reply: this grants nothing.
                self.phase = Phase::Standby;
                self.view = None;
            }
            Ok(Attempt::Applied(token)) => {
                self.incarnation
                    .get_or_insert_with(|| taking.next.incarnation.clone());
                let epoch = taking.next.epoch;
                self.view = Some(ElectionView {
                    epoch: Some((taking.next, token)),
                    leader: Some(taking.leader),
                    info: taking.seen.info,
                    store: taking.seen.store,
                    ..ElectionView::default()
                });
                self.grant(Term { epoch, token }, effects);
            }
            Ok(Attempt::Refused(view)) => {
                // Somebody else was faster, or an earlier copy of this request was applied.
                self.see(view.clone(), None, effects);
                self.phase = Phase::Standby;
                self.resolve_taking(&view, &taking, effects);
            }
            Err(error) if error.outcome() == Outcome::Ambiguous => {
                taking.in_flight = false;
                self.phase = Phase::Taking(taking);
                self.pause(now);
                self.read(effects);
            }
            Err(_) => {
                self.phase = Phase::Standby;
                self.view = None;
                self.pause(now);
            }
        }
    }

    pub(super) fn resolve_taking(
        &mut self,
        view: &ElectionView,
        taking: &Taking,
        effects: &mut Vec<Effect>,
    ) {
        if self.highest > taking.leader.epoch {
            // Events have overtaken the read: it grants nothing, however it names this process.
            self.phase = Phase::Standby;
            self.view = None;
        } else if view.leader.as_ref() == Some(&taking.leader)
            && let Some((record, token)) = &view.epoch
            && record.epoch == taking.leader.epoch
        {
            self.grant(
                Term {
                    epoch: record.epoch,
                    token: *token,
                },
                effects,
            );
        } else if view.epoch != taking.seen.epoch
            || self.session.nonce() != Some(&taking.leader.nonce)
        {
            // The guard can't hold any more, or the session that the key needs is gone.
            self.phase = Phase::Standby;
        }
    }
}

impl Taking {
    /// The living term of another process that this ends.
    pub(super) fn deposed_other(&self, own: &ProcessId) -> Option<Epoch> {
        let leader = self.seen.leader.as_ref();
        let other = leader.filter(|leader| leader.process != *own);
        other.map(|leader| leader.epoch)
    }

    pub(super) fn request(&self) -> Effect {
        Effect::Advance {
            seen: self.seen.clone(),
            next: self.next.clone(),
            leader: self.leader.clone(),
        }
    }
}
