//! The decisions of an election, without I/O, clock or randomness: events in, effects out.
//!
//! ```text
//!              leader absent, or deposing          applied
//!   Standby ------------------------------> Taking -------> Leading <--------.
//!      ^ ^                                    |                | deadline     | the store says: epoch
//!      | '---- refused: somebody else led ----'                v passed       | unchanged (attached again
//!      |                                                   Suspended ---------' if the session is another)
//!      |       the store says: epoch moved on                  |
//!      '---- Resigning <---------------------------------------+------ (Leading, too)
//! ```
//!
//! Invariants:
//! - A term is over only when this process's own store says that `epoch` moved on or refuses to attach it, or by resigning. Never
//!   because of a clock, a lost session, an unreachable store, or a message: a higher epoch that one tells of causes one read
//!   (`claims`).
//! - A term that is over is never granted again. What the store showed at or before the end of a term of this process says
//!   nothing of what came after.
//! - No term is taken or led in a store that shows another identity than the one in which the youngest epoch was taken, nor
//!   while `epoch` can't be read.
//! - An ambiguous answer decides nothing: the same request is sent again, or the keys are read until they name this
//!   session (its request was applied) or a moved epoch (it never will be). Only a request to depose that nobody wants any
//!   more is not sent again.
//! - Views are compared by epoch: one of an older epoch than this process knows says nothing, unless a read that was begun
//!   since then shows it. Then the store has gone back, and this process takes no part any more.

mod holding;
mod taking;

use self::taking::Taking;
use crate::clock::Moment;
use crate::election::claims::Claims;
use crate::election::driver::{
    ClusterIncarnation, ElectionView, Epoch, EpochToken, SessionState, StoreIdentity, TermHolder,
};
use crate::election::hold_off::HoldOff;
use crate::error::Result;

pub use crate::election::event::{Effect, Event, Refusal, Standing, Term, Timing};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Standby,
    /// The request is sent with exactly these guards, again and again until the answer is definite.
    Taking(Box<Taking>),
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
    /// What an empty store's first epoch gets.
    fresh: ClusterIncarnation,
    phase: Phase,
    session: SessionState,
    view: Option<ElectionView>,
    incarnation: Option<ClusterIncarnation>,
    /// The store's identity, as it was last told.
    store: Option<StoreIdentity>,
    highest: Epoch,
    depose: Option<Epoch>,
    /// A read is under way.
    reading: bool,
    /// A view of another incarnation came, which may be older than this process's own first term, or one of an older epoch
    /// than the store has shown, or one that can't be read: it may only be late.
    doubted: bool,
    /// The read under way was begun since then, so it settles the doubt: this was the youngest epoch that the store had shown.
    settles_doubt: Option<Epoch>,
    /// What messages told of and the store has not been asked about since.
    claims: Claims,
    /// Why `epoch` can't be read, as the store last showed it.
    unreadable: Option<String>,
    /// The last term of this process that is over, and where `epoch` stood in it.
    ended: Option<(Epoch, EpochToken)>,
    /// The read under way was begun since that term ended.
    read_since_end: bool,
    /// The last request got no answer that helps: nothing is sent before this moment.
    paused_until: Option<Moment>,
    hold_off_until: Option<Moment>,
    hold_off: HoldOff,
    /// This start of the process has led before.
    has_led: bool,
}

impl ElectionCore {
    /// The election of this start of a process. `fresh` becomes the cluster's incarnation if the store is empty.
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
            doubted: false,
            settles_doubt: None,
            claims: Claims::default(),
            unreadable: None,
            ended: None,
            read_since_end: false,
            paused_until: None,
            hold_off_until: None,
            hold_off: HoldOff::default(),
            has_led: false,
        }
    }

    /// The term that this process leads or may still lead.
    pub fn term(&self) -> Option<&Term> {
        match &self.phase {
            Phase::Leading(term) | Phase::Suspended { term, .. } => Some(term),
            Phase::Standby | Phase::Taking(_) | Phase::Resigning { .. } | Phase::Refused => None,
        }
    }

    /// The incarnation of the cluster, once known.
    pub fn incarnation(&self) -> Option<&ClusterIncarnation> {
        self.incarnation.as_ref()
    }

    /// The identity of the store, as it was last told; `None`: it shows none.
    pub fn store(&self) -> Option<&StoreIdentity> {
        self.store.as_ref()
    }

    /// Whether the own term is being given up and the store has not taken note yet.
    pub fn is_resigning(&self) -> bool {
        matches!(self.phase, Phase::Resigning { .. })
    }

    /// Whether the free leadership of `view` was given up by its holder, as far as this process has seen.
    pub fn was_resigned(&self, view: &ElectionView) -> bool {
        self.hold_off.was_resigned(view)
    }

    /// Why `epoch` can't be read, as the store last showed it: nobody can lead meanwhile.
    pub fn unreadable(&self) -> Option<&str> {
        self.unreadable.as_deref()
    }

    /// The youngest epoch that the store has shown.
    pub fn highest(&self) -> Epoch {
        self.highest
    }

    /// Takes an event at `now`; says what to do.
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Session(session) => {
                self.hold_off.renewed(now, &session);
                self.session = session;
            }
            // Late, or the store has gone back to it: a read says which.
            Event::View(view) if self.may_be_of_before_the_end(&view) => self.doubted = true,
            Event::View(view) => self.see(view, None, &mut effects),
            Event::ReadReply(reply) => self.on_read(now, reply, &mut effects),
            Event::AdvanceReply(reply) => self.on_advance(now, reply, &mut effects),
            Event::AttachReply { token, reply } => {
                self.on_attach(now, token, reply, &mut effects);
            }
            Event::ResignReply(reply) => self.on_resign(now, reply),
            // A late wish for an older term must not take the place of the one for the present term.
            Event::Depose(epoch) => self.depose = self.depose.max(Some(epoch)),
            Event::Spare(epoch) => self.depose = self.depose.filter(|wanted| *wanted != epoch),
            Event::Vouched { epoch, until } => self.hold_off.vouch(epoch, until),
            Event::Resign => self.start_resigning(&mut effects),
            Event::Told { epoch, teller } if epoch > self.highest => {
                self.claims.tell(teller, epoch)
            }
            Event::Told { .. } => {}
            Event::Wake => {}
        }
        self.progress(now, &mut effects);
        effects
    }

    /// What follows from the state, whichever event led to it.
    fn progress(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        self.hold_off_until = self.hold_off_until.filter(|until| now < *until);
        self.paused_until = self.paused_until.filter(|until| now < *until);
        if let Some(view) = &self.view {
            self.hold_off.see(now, view);
        }
        self.suspend_if_unsure(now, effects);
        if self.paused_until.is_none() {
            self.send_what_is_due(now, effects);
            let is_asked = self.doubted || self.claims.want_a_read(now);
            if is_asked && self.phase != Phase::Refused {
                self.read(effects);
            }
        }
        effects.extend(self.next_wake(now).map(Effect::WakeAt));
    }

    fn send_what_is_due(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        match &mut self.phase {
            Phase::Standby if self.view.is_none() => self.read(effects),
            Phase::Standby => self.consider_taking(now, effects),
            Phase::Taking(taking) if !taking.in_flight && !self.reading => {
                let deposed = taking.deposed_other(&self.holder.process);
                if deposed.is_some() && deposed != self.depose {
                    // Nobody wants that any more, so it is not sent again. If a copy of it is applied all the same, the
                    // keys name this session, which then takes the term up.
                    self.phase = Phase::Standby;
                } else {
                    taking.in_flight = true;
                    effects.push(taking.request());
                }
            }
            Phase::Suspended {
                attaching: false, ..
            } => self.read(effects),
            Phase::Resigning { term, in_flight } if !*in_flight => {
                *in_flight = true;
                effects.push(Effect::Resign { token: term.token });
            }
            Phase::Taking(_)
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
            self.hold_off_until,
            deadline,
            self.left_alone_until(now),
            self.claims.paused_until(now),
        ]
        .into_iter()
        .flatten()
        .filter(|at| *at > now)
        .min()
    }

    /// Until when free leadership is left to a term that is heard to live. Where the store takes a lease only from the
    /// dead, there is nobody to wait for.
    fn left_alone_until(&self, now: Moment) -> Option<Moment> {
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
        let bound = self.timing.suspended_holdoff;
        let unheard = of_another.then_some(self.timing.unheard_holdoff);
        self.hold_off.until(now, view, bound, unheard)
    }

    fn pause(&mut self, now: Moment) {
        self.paused_until = Some(now.after(self.timing.retry_interval));
    }

    fn read(&mut self, effects: &mut Vec<Effect>) {
        if !self.reading {
            self.reading = true;
            self.settles_doubt = self.doubted.then_some(self.highest);
            self.read_since_end = true;
            self.claims.read_begun();
            effects.push(Effect::Read);
        }
    }

    /// Takes note of what the keys hold. Another incarnation, or an epoch below the one that is `proven`, is believed from a
    /// read that was begun since the first sign of it: a watch may tell late that the store was empty, when this process has
    /// begun the first term there, or that an earlier term leads.
    fn see(&mut self, view: ElectionView, proven: Option<Epoch>, effects: &mut Vec<Effect>) {
        if let Some(refusal) = copied(&view) {
            // The view says it all by itself, as both come from one answer.
            self.refuse(refusal, effects);
            return;
        }
        self.unreadable = view.unreadable.as_ref().map(|why| why.reason.clone());
        if view.unreadable.is_some() {
            self.doubted |= proven.is_none();
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
                    None => self.doubted = true,
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
                Some(_) | None => self.doubted = true,
            }
        }
        if self
            .view
            .as_ref()
            .is_some_and(|known| youngest < known.youngest())
        {
            return;
        }
        self.raise(youngest, effects);
        let moved = |term: &Term| {
            view.epoch
                .as_ref()
                .is_some_and(|(record, token)| record.epoch == term.epoch && *token != term.token)
        };
        if self.term().is_some_and(moved) {
            // The same number rewritten: the term was resigned.
            self.end_term(effects);
        }
        self.view = Some(view);
    }

    /// The store is not the one that this process has led or followed.
    fn refuse(&mut self, refusal: Refusal, effects: &mut Vec<Effect>) {
        if self.phase != Phase::Refused {
            effects.push(Effect::Publish(Standing::Refused(refusal)));
            self.phase = Phase::Refused;
        }
    }

    /// The store shows this epoch.
    fn raise(&mut self, epoch: Epoch, effects: &mut Vec<Effect>) {
        self.highest = self.highest.max(epoch);
        if self.term().is_some_and(|term| epoch > term.epoch) {
            self.end_term(effects);
        }
    }

    fn end_term(&mut self, effects: &mut Vec<Effect>) {
        if let Some(term) = self.term().cloned() {
            effects.push(Effect::Publish(Standing::Over(term.epoch)));
            self.stand_by_after(&term);
        }
    }

    /// The own term is over, by the store's word: what is known of the keys is of before.
    fn stand_by_after(&mut self, term: &Term) {
        self.phase = Phase::Standby;
        self.view = None;
        self.ended = Some((term.epoch, term.token));
        self.read_since_end = false;
    }

    /// Whether a view may be of before the end of the own last term. Where giving a term up leaves the token where it is, the store
    /// says that it was given up.
    fn may_be_of_before_the_end(&self, view: &ElectionView) -> bool {
        let (Some((epoch, token)), Some((record, at))) = (self.ended, &view.epoch) else {
            return false;
        };
        let of_this_cluster = self.incarnation.as_ref() == Some(&record.incarnation);
        of_this_cluster && record.epoch == epoch && *at <= token && !view.given_up
    }

    fn grant(&mut self, term: Term, effects: &mut Vec<Effect>) {
        self.has_led = true;
        self.highest = self.highest.max(term.epoch);
        effects.push(Effect::Publish(Standing::Leading(term.clone())));
        self.phase = Phase::Leading(term);
    }

    fn on_read(&mut self, now: Moment, reply: Result<ElectionView>, effects: &mut Vec<Effect>) {
        self.reading = false;
        let is_of_after = std::mem::take(&mut self.read_since_end);
        let proven = std::mem::take(&mut self.settles_doubt);
        let Ok(view) = reply else {
            self.claims.read_failed();
            self.pause(now);
            return;
        };
        if !is_of_after && self.may_be_of_before_the_end(&view) {
            self.claims.read_failed();
            self.doubted = true;
            return;
        }
        self.doubted &= proven.is_none();
        self.see(view.clone(), proven, effects);
        if self.unreadable.is_some() {
            self.claims.read_failed();
            self.pause(now);
        } else {
            let found = view.youngest();
            let refuted = self.claims.settle(now, found, self.timing.retry_interval);
            effects.extend(refuted.into_iter().map(|(teller, epoch)| Effect::Refute {
                teller,
                epoch,
                found,
            }));
        }
        match self.phase.clone() {
            Phase::Taking(taking) => self.resolve_taking(&view, &taking, effects),
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

/// The refusal of a store that is a copy of the one in which its youngest epoch was taken, or was restored since.
fn copied(view: &ElectionView) -> Option<Refusal> {
    let (record, _) = view.epoch.as_ref()?;
    let (recorded, found) = record.store.as_ref().zip(view.store.as_ref())?;
    (recorded != found).then(|| Refusal::Copied {
        recorded: recorded.clone(),
        found: found.clone(),
    })
}
