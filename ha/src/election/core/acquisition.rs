//! How the core takes a term: when it takes leadership, and what the store's answers mean.
//!
//! An ambiguous answer decides nothing: the request is sent again with the same guards, until it was applied
//! or never can be.

use super::{Effect, ElectionCore, Epoch, Phase, Term};
use crate::clock::Moment;
use crate::election::driver::{Attempt, ElectionView, EpochRecord, LeaderKey, ProcessId};
use crate::error::{Outcome, Result};

/// A request to take leadership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Acquisition {
    pub(super) seen: ElectionView,
    pub(super) next: EpochRecord,
    pub(super) leader: LeaderKey,
    pub(super) in_flight: bool,
}

impl ElectionCore {
    /// Takes free leadership, deposes when requested, and takes up a term that this process holds without
    /// knowing it.
    pub(super) fn consider_acquisition(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let (Some(view), Some(nonce)) = (self.view.clone(), self.session.nonce().cloned()) else {
            return;
        };
        let youngest = view.youngest();
        if youngest < self.highest || self.unreadable.is_some() {
            // The store has shown a younger term, or `epoch` is unreadable: this view decides nothing, and
            // the store is read again.
            return;
        }
        // The first case that fits counts.
        let wanted = match &view.leader {
            None => {
                self.depose == Some(youngest)
                    || self.resign_hold_off_until.is_none() && self.held_off_until(now).is_none()
            }
            // The key of a term of this process that is over: only the next epoch can be led.
            Some(leader)
                if leader.nonce == nonce
                    && self.ended.is_some_and(|(ended, _)| leader.epoch <= ended) =>
            {
                self.resign_hold_off_until.is_none()
            }
            Some(leader) if leader.process == self.holder.process && leader.nonce == nonce => {
                // A request that this process gave up was applied after all: the process that holds the key
                // leads.
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
            // Left by an earlier start of this process, or by a lost session of it. Once this start has led,
            // it may also be another living process with the same id: the two would depose each other
            // forever.
            Some(leader)
                if leader.process == self.holder.process
                    && self.timing.deposes_earlier_self
                    && !self.has_led =>
            {
                true
            }
            Some(leader) => self.depose == Some(leader.epoch),
        };
        // Keep the depose request until the term is over, because this attempt may fail temporarily.
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
        let acquisition = Acquisition {
            seen: view,
            next,
            leader,
            in_flight: true,
        };
        effects.push(acquisition.request());
        self.phase = Phase::Acquiring(Box::new(acquisition));
    }

    pub(super) fn on_advance(
        &mut self,
        now: Moment,
        reply: Result<Attempt>,
        effects: &mut Vec<Effect>,
    ) {
        let Phase::Acquiring(mut acquisition) = self.phase.clone() else {
            return;
        };
        match reply {
            Ok(Attempt::Applied(_)) if self.highest > acquisition.leader.epoch => {
                // Later events have overtaken the reply: it grants nothing.
                self.phase = Phase::Standby;
                self.view = None;
            }
            Ok(Attempt::Applied(token)) => {
                self.incarnation
                    .get_or_insert_with(|| acquisition.next.incarnation.clone());
                let epoch = acquisition.next.epoch;
                self.view = Some(ElectionView {
                    epoch: Some((acquisition.next, token)),
                    leader: Some(acquisition.leader),
                    info: acquisition.seen.info,
                    store: acquisition.seen.store,
                    ..ElectionView::default()
                });
                self.grant(Term { epoch, token }, effects);
            }
            Ok(Attempt::Refused(view)) => {
                // Another process was faster, or an earlier copy of this request was applied.
                self.see(view.clone(), None, effects);
                self.phase = Phase::Standby;
                self.resolve_acquisition(&view, &acquisition, effects);
            }
            Err(error) if error.outcome() == Outcome::Ambiguous => {
                acquisition.in_flight = false;
                self.phase = Phase::Acquiring(acquisition);
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

    pub(super) fn resolve_acquisition(
        &mut self,
        view: &ElectionView,
        acquisition: &Acquisition,
        effects: &mut Vec<Effect>,
    ) {
        if self.highest > acquisition.leader.epoch {
            // Later events have overtaken the read: it grants nothing, even if it names this process.
            self.phase = Phase::Standby;
            self.view = None;
        } else if view.leader.as_ref() == Some(&acquisition.leader)
            && let Some((record, token)) = &view.epoch
            && record.epoch == acquisition.leader.epoch
        {
            self.grant(
                Term {
                    epoch: record.epoch,
                    token: *token,
                },
                effects,
            );
        } else if view.epoch != acquisition.seen.epoch
            || self.session.nonce() != Some(&acquisition.leader.nonce)
        {
            // The guard can't hold again, or the session that the key needs is gone.
            self.phase = Phase::Standby;
        }
    }
}

impl Acquisition {
    /// The living term of another process that this request ends.
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
