//! The decisions of an election, without I/O, clock or randomness: events in, effects out. Owned by the election's
//! actor, which feeds it.
//!
//! ```text
//!              leader absent, or deposing          applied
//!   Standby ------------------------------> Acquiring ----> Leading <--------.
//!      ^ ^                                    |                | deadline     | the store says: epoch
//!      | '---- refused: another one leads ----'                v passed       | unchanged (attached again
//!      |                                                   Suspended ---------' if the session is another)
//!      |       the store says: epoch moved on                  |
//!      '---- Resigning <---------------------------------------+------ (Leading, too)
//! ```
//!
//! Invariants:
//! - A term is over only when this process's own store says that `epoch` moved on, or refuses to attach the
//!   term, or when the process resigns. A clock, a lost session, an unreachable store or a message never ends
//!   a term: a higher epoch in a message causes one read (`claims`).
//! - A term that is over is never granted again. A view from before the end of a term of this process says
//!   nothing about the state after it.
//! - No term is taken or led in a store whose identity differs from the one in which the youngest epoch was
//!   taken, nor while `epoch` can't be read.
//! - An ambiguous answer decides nothing: the same request is sent again, or the keys are read until they
//!   name this session (its request was applied) or a moved epoch (it never will be). Exception: a depose
//!   request is not sent again after it was cancelled.
//! - Views are compared by epoch. A view of an older epoch than this process knows is ignored, unless a read
//!   that began later shows it. Then the store has gone back, and this process stops taking part.

mod acquisition;
mod renewal;

use self::acquisition::Acquisition;
use crate::clock::Moment;
use crate::election::claims::Claims;
use crate::election::driver::{
    ClusterIncarnation, ElectionView, Epoch, EpochToken, SessionState, StoreIdentity, TermHolder,
};
use crate::election::hold_off::HoldOff;
use crate::error::Result;

pub use crate::election::event::{Effect, ElectionStatus, Event, Refusal, Term, Timing};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Standby,
    /// The request is sent with exactly these guards, and repeated until the answer is definite.
    Acquiring(Box<Acquisition>),
    Leading(Term),
    Suspended {
        term: Term,
        attaching: bool,
    },
    Resigning {
        term: Term,
        in_flight: bool,
    },
    Refused,
}

/// The state of one process's election.
#[derive(Debug)]
pub struct ElectionCore {
    holder: TermHolder,
    timing: Timing,
    /// The cluster incarnation that this process writes if the store is empty.
    fresh: ClusterIncarnation,
    phase: Phase,
    session: SessionState,
    /// The latest content of the keys; `None`: not known, so it is read.
    view: Option<ElectionView>,
    /// The cluster incarnation that the store first showed; another one is refused.
    incarnation: Option<ClusterIncarnation>,
    /// The store's identity in the latest view.
    store: Option<StoreIdentity>,
    /// The youngest epoch that the store has shown.
    highest: Epoch,
    /// The youngest epoch whose term a request that is not cancelled wants to end.
    depose: Option<Epoch>,
    /// A read is in progress.
    reading: bool,
    /// A view arrived that may only be late: of another incarnation (perhaps from before this process's own
    /// first term), of an older epoch than the store has shown, or unreadable. A new read must verify it.
    has_unverified_view: bool,
    /// Set if the read in progress began after `has_unverified_view` was set, so its answer verifies the view: the
    /// youngest epoch that the store had shown at that time.
    verifying_read: Option<Epoch>,
    /// Epochs from messages that no read has resolved yet.
    claims: Claims,
    /// The reason why `epoch` can't be read, as the store last showed it.
    unreadable: Option<String>,
    /// The last term of this process that is over, and the token of `epoch` in it.
    ended: Option<(Epoch, EpochToken)>,
    /// The read in progress began after that term ended.
    read_since_end: bool,
    /// The last request failed: no request is sent before this moment.
    paused_until: Option<Moment>,
    /// This process has resigned: it does not take free leadership before this moment.
    resign_hold_off_until: Option<Moment>,
    hold_off: HoldOff,
    /// This start of the process has led before.
    has_led: bool,
}

impl ElectionCore {
    /// The election of one start of a process. `fresh` becomes the cluster's incarnation if the store is
    /// empty.
    pub fn new(holder: TermHolder, fresh: ClusterIncarnation, timing: Timing) -> ElectionCore {
        ElectionCore {
            holder,
            timing,
            fresh,
            phase: Phase::Standby,
            session: SessionState::None,
            view: None,
            incarnation: None,
            store: None,
            highest: Epoch::ZERO,
            depose: None,
            reading: false,
            has_unverified_view: false,
            verifying_read: None,
            claims: Claims::default(),
            unreadable: None,
            ended: None,
            read_since_end: false,
            paused_until: None,
            resign_hold_off_until: None,
            hold_off: HoldOff::default(),
            has_led: false,
        }
    }

    /// The term that this process leads or may still lead.
    pub fn term(&self) -> Option<&Term> {
        match &self.phase {
            Phase::Leading(term) | Phase::Suspended { term, .. } => Some(term),
            Phase::Standby | Phase::Acquiring(_) | Phase::Resigning { .. } | Phase::Refused => None,
        }
    }

    /// The incarnation of the cluster, once known.
    pub fn incarnation(&self) -> Option<&ClusterIncarnation> {
        self.incarnation.as_ref()
    }

    /// The identity of the store in the latest view; `None` if it shows none.
    pub fn store(&self) -> Option<&StoreIdentity> {
        self.store.as_ref()
    }

    /// Whether this process is resigning and the store has not confirmed it yet.
    pub fn is_resigning(&self) -> bool {
        matches!(self.phase, Phase::Resigning { .. })
    }

    /// Whether the holder of the free leadership in `view` has resigned, as far as this process has seen.
    pub fn was_resigned(&self, view: &ElectionView) -> bool {
        self.hold_off.was_resigned(view)
    }

    /// The reason why `epoch` can't be read, as the store last showed it: no process can lead meanwhile.
    pub fn unreadable(&self) -> Option<&str> {
        self.unreadable.as_deref()
    }

    /// The youngest epoch that the store has shown.
    pub fn highest(&self) -> Epoch {
        self.highest
    }

    /// Handles an event at `now` and returns the effects.
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Session(session) => {
                self.hold_off.renewed(now, &session);
                self.session = session;
            }
            // The view is late, or the store has gone back to it: a read shows which.
            Event::View(view) if self.may_precede_end(&view) => self.has_unverified_view = true,
            Event::View(view) => self.see(view, None, &mut effects),
            Event::ReadReply(reply) => self.on_read(now, reply, &mut effects),
            Event::AdvanceReply(reply) => self.on_advance(now, reply, &mut effects),
            Event::AttachReply { token, reply } => {
                self.on_attach(now, token, reply, &mut effects);
            }
            Event::ResignReply(reply) => self.on_resign(now, reply),
            // A late request for an older term must not replace the one for the current term.
            Event::Depose(epoch) => self.depose = self.depose.max(Some(epoch)),
            Event::CancelDepose(epoch) => {
                self.depose = self.depose.filter(|wanted| *wanted != epoch)
            }
            Event::TermReachable { epoch, until } => self.hold_off.set_reachable(epoch, until),
            Event::Resign => self.start_resigning(&mut effects),
            Event::EpochClaimed { epoch, sender } if epoch > self.highest => {
                self.claims.add(sender, epoch)
            }
            Event::EpochClaimed { .. } => {}
            Event::Wake => {}
        }
        self.progress(now, &mut effects);
        effects
    }

    /// Derives the effects that follow from the current state, whichever event led to it. The order counts.
    fn progress(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let is_ahead = |until: &Moment| now < *until;
        self.resign_hold_off_until = self.resign_hold_off_until.filter(is_ahead);
        self.paused_until = self.paused_until.filter(is_ahead);
        // Before a request is considered: it may have to wait from now on.
        if let Some(view) = &self.view {
            self.hold_off.see(now, view);
        }
        // Before the requests: a term that is suspended here reads at once. Also during a pause: a deadline that has
        // passed waits for nothing.
        self.suspend_if_unconfirmed(now, effects);
        if self.paused_until.is_none() {
            self.send_due_requests(now, effects);
            let needs_read = self.has_unverified_view || self.claims.needs_read(now);
            if needs_read && self.phase != Phase::Refused {
                self.read(effects);
            }
        }
        // Last: the steps above set the moments from which it is computed.
        effects.extend(self.next_wake(now).map(Effect::WakeAt));
    }

    fn send_due_requests(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        match &mut self.phase {
            Phase::Standby if self.view.is_none() => self.read(effects),
            Phase::Standby => self.consider_acquisition(now, effects),
            Phase::Acquiring(acquisition) if !acquisition.in_flight && !self.reading => {
                let deposed = acquisition.deposed_other(&self.holder.process);
                if deposed.is_some() && deposed != self.depose {
                    // The depose request was cancelled, so it is not sent again. If a copy of it is applied
                    // nevertheless, the keys name this session, which then takes the term up.
                    self.phase = Phase::Standby;
                } else {
                    acquisition.in_flight = true;
                    effects.push(acquisition.request());
                }
            }
            Phase::Suspended {
                attaching: false, ..
            } => self.read(effects),
            Phase::Resigning { term, in_flight } if !*in_flight => {
                *in_flight = true;
                effects.push(Effect::Resign { token: term.token });
            }
            Phase::Acquiring(_)
            | Phase::Leading(_)
            | Phase::Suspended {
                attaching: true, ..
            }
            | Phase::Resigning { .. }
            | Phase::Refused => {}
        }
    }

    fn next_wake(&self, now: Moment) -> Option<Moment> {
        let deadline = match (&self.phase, &self.session) {
            (Phase::Leading(_), SessionState::Alive { deadline, .. }) => *deadline,
            _ => None,
        };
        [
            self.paused_until,
            self.resign_hold_off_until,
            deadline,
            self.held_off_until(now),
            self.claims.paused_until(now),
        ]
        .into_iter()
        .flatten()
        .filter(|at| *at > now)
        .min()
    }

    /// The moment until which free leadership is left to a term whose heartbeats still arrive. `None` if
    /// the store frees `leader` only when its process has died: then waiting is pointless.
    fn held_off_until(&self, now: Moment) -> Option<Moment> {
        let leases_end = matches!(
            self.session,
            SessionState::Alive {
                deadline: Some(_),
                ..
            }
        );
        let view = self
            .view
            .as_ref()
            .filter(|view| leases_end && view.leader.is_none())?;
        let of_another = view.info.as_ref().is_some_and(|info| {
            info.epoch == view.youngest() && info.process != self.holder.process
        });
        let bound = self.timing.suspended_hold_off;
        let no_contact = of_another.then_some(self.timing.no_contact_hold_off);
        self.hold_off.until(now, view, bound, no_contact)
    }

    fn pause(&mut self, now: Moment) {
        self.paused_until = Some(now.after(self.timing.retry_interval));
    }

    fn read(&mut self, effects: &mut Vec<Effect>) {
        if !self.reading {
            self.reading = true;
            self.verifying_read = self.has_unverified_view.then_some(self.highest);
            self.read_since_end = true;
            self.claims.mark_read_begun();
            effects.push(Effect::Read);
        }
    }

    /// Records the content of the keys. `proven` is set for the answer to a verifying read: the youngest epoch that
    /// the store had shown when the read began. Another incarnation, or an epoch below `proven`, counts only from
    /// such a read: a watch may report late that the store was empty, after this process began the first term
    /// there, or that an earlier term leads.
    ///
    /// The order of the checks counts: each one relies on those before it, and only a view that passes all of them
    /// becomes the known one.
    fn see(&mut self, view: ElectionView, proven: Option<Epoch>, effects: &mut Vec<Effect>) {
        if let Some(refusal) = copied(&view) {
            // No proof needed: record and identity come from the same answer.
            self.refuse(refusal, effects);
            return;
        }
        self.unreadable = view.unreadable.as_ref().map(|why| why.reason.clone());
        if view.unreadable.is_some() {
            self.has_unverified_view |= proven.is_none();
            return;
        }
        let found = view
            .epoch
            .as_ref()
            .map(|(record, _)| record.incarnation.clone());
        let youngest = view.youngest();
        if view.store.is_some() {
            self.store.clone_from(&view.store);
        }
        match &self.incarnation {
            None => self.incarnation = found,
            Some(expected) if found.as_ref() != Some(expected) => {
                let expected = expected.clone();
                match proven {
                    None => self.has_unverified_view = true,
                    Some(_) => self.refuse(Refusal::OtherIncarnation { expected, found }, effects),
                }
                return;
            }
            Some(_) => {}
        }
        if self.incarnation.is_some() && youngest < self.highest {
            match proven {
                Some(known) if youngest < known => {
                    let found = youngest;
                    self.refuse(Refusal::WentBack { known, found }, effects);
                    return;
                }
                Some(_) | None => self.has_unverified_view = true,
            }
        }
        let is_outdated_by = |known: &ElectionView| youngest < known.youngest();
        if self.view.as_ref().is_some_and(is_outdated_by) {
            return;
        }
        self.raise(youngest, effects);
        let moved = |term: &Term| {
            view.epoch
                .as_ref()
                .is_some_and(|(record, token)| record.epoch == term.epoch && *token != term.token)
        };
        if self.term().is_some_and(moved) {
            // The same epoch number with another token: the term was resigned.
            self.end_term(effects);
        }
        self.view = Some(view);
    }

    /// Refuses the store: it is not the one that this process has led or followed.
    fn refuse(&mut self, refusal: Refusal, effects: &mut Vec<Effect>) {
        if self.phase != Phase::Refused {
            effects.push(Effect::Publish(ElectionStatus::Refused(refusal)));
            self.phase = Phase::Refused;
        }
    }

    /// Records that the store shows this epoch.
    fn raise(&mut self, epoch: Epoch, effects: &mut Vec<Effect>) {
        self.highest = self.highest.max(epoch);
        if self.term().is_some_and(|term| epoch > term.epoch) {
            self.end_term(effects);
        }
    }

    fn end_term(&mut self, effects: &mut Vec<Effect>) {
        if let Some(term) = self.term().cloned() {
            effects.push(Effect::Publish(ElectionStatus::Over(term.epoch)));
            self.become_standby_after(&term);
        }
    }

    /// Returns to standby after the store said that the own term is over. The known view dates from before
    /// that.
    fn become_standby_after(&mut self, term: &Term) {
        self.phase = Phase::Standby;
        self.view = None;
        self.ended = Some((term.epoch, term.token));
        self.read_since_end = false;
    }

    /// Whether a view may date from before the end of this process's last term. If resigning does not move
    /// the token in this store, the store itself says that the term was resigned.
    fn may_precede_end(&self, view: &ElectionView) -> bool {
        let (Some((epoch, token)), Some((record, at))) = (self.ended, &view.epoch) else {
            return false;
        };
        let of_this_cluster = self.incarnation.as_ref() == Some(&record.incarnation);
        of_this_cluster && record.epoch == epoch && *at <= token && !view.is_resigned
    }

    fn grant(&mut self, term: Term, effects: &mut Vec<Effect>) {
        self.has_led = true;
        self.highest = self.highest.max(term.epoch);
        effects.push(Effect::Publish(ElectionStatus::Leading(term.clone())));
        self.phase = Phase::Leading(term);
    }

    fn on_read(&mut self, now: Moment, reply: Result<ElectionView>, effects: &mut Vec<Effect>) {
        self.reading = false;
        let is_after_end = std::mem::take(&mut self.read_since_end);
        let proven = std::mem::take(&mut self.verifying_read);
        let Ok(view) = reply else {
            self.claims.mark_read_failed();
            self.pause(now);
            return;
        };
        if !is_after_end && self.may_precede_end(&view) {
            self.claims.mark_read_failed();
            self.has_unverified_view = true;
            return;
        }
        // A verifying read answers for the view that needed it; `see` may find another one.
        self.has_unverified_view &= proven.is_none();
        self.see(view.clone(), proven, effects);
        if self.unreadable.is_some() {
            self.claims.mark_read_failed();
            self.pause(now);
        } else {
            let found = view.youngest();
            let refuted = self.claims.resolve(now, found, self.timing.retry_interval);
            effects.extend(refuted.into_iter().map(|(sender, epoch)| Effect::Refute {
                sender,
                epoch,
                found,
            }));
        }
        match self.phase.clone() {
            Phase::Acquiring(acquisition) => self.resolve_acquisition(&view, &acquisition, effects),
            Phase::Suspended {
                term,
                attaching: false,
            } => self.reattach(now, &view, term, effects),
            Phase::Suspended {
                attaching: true, ..
            }
            | Phase::Standby
            | Phase::Leading(_)
            | Phase::Resigning { .. }
            | Phase::Refused => {}
        }
    }
}

/// The refusal of a store that is a copy of the one in which its youngest epoch was taken, or that was
/// restored since.
fn copied(view: &ElectionView) -> Option<Refusal> {
    let (record, _) = view.epoch.as_ref()?;
    let (recorded, found) = record.store.as_ref().zip(view.store.as_ref())?;
    (recorded != found).then(|| Refusal::Copied {
        recorded: recorded.clone(),
        found: found.clone(),
    })
}
