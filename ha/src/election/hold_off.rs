//! Why leadership that is free is not taken yet: a term that lost its lease to trouble of the store, and is heard to live.
//!
//! A leader whose store does not answer is suspended and says so in its beats. When the store is back and says first that
//! the lease ran out, a standby that hears those beats leaves the term a while to attach again: the store was in trouble,
//! not the leader. The wait ends at once when the beats end, when the term was resigned (its token moved, or the store says so), and at a bound.
//!
//! A process that starts while leadership is free has heard nothing of the term. Where that one was confirmed, so that it is known
//! whom to listen to, it waits for the detector's word, for a short while.

use std::time::Duration;

use crate::clock::Moment;
use crate::election::driver::{ElectionView, Epoch, EpochToken};

/// What is known of a term that lost its lease or session. Pure.
#[derive(Debug, Default)]
pub(super) struct HoldOff {
    /// The term is heard to live, and that counts until then.
    vouched: Option<(Epoch, Moment)>,
    /// The term of which it was said whether it is heard.
    told: Option<Epoch>,
    /// The token of the term when `leader` was last there.
    attached: Option<(Epoch, EpochToken)>,
    /// Since when its leadership is seen to be free.
    free_since: Option<(Epoch, Moment)>,
}

impl HoldOff {
    /// The term of `epoch` is heard to live, which counts until then; `None`: it is not heard any more.
    pub(super) fn vouch(&mut self, epoch: Epoch, until: Option<Moment>) {
        self.told = Some(epoch);
        match until {
            Some(until) => self.vouched = Some((epoch, until)),
            None => self.vouched = self.vouched.filter(|(of, _)| *of != epoch),
        }
    }

    /// Takes note of the keys.
    pub(super) fn see(&mut self, now: Moment, view: &ElectionView) {
        let Some((record, token)) = &view.epoch else {
            return;
        };
        if view.leader.is_some() {
            self.attached = Some((record.epoch, *token));
            self.free_since = None;
        } else if self
            .free_since
            .is_none_or(|(epoch, _)| epoch != record.epoch)
        {
            self.free_since = Some((record.epoch, now));
        }
    }

    /// Whether the free leadership of `view` was given up by its holder.
    pub(super) fn was_resigned(&self, view: &ElectionView) -> bool {
        let Some((record, token)) = &view.epoch else {
            return false;
        };
        let of_this = self.attached.filter(|(epoch, _)| *epoch == record.epoch);
        let has_moved = of_this.is_some_and(|(_, attached)| attached != *token);
        view.leader.is_none() && (view.given_up || has_moved)
    }

    /// Until when the free leadership of `view` is left alone, as known now: for at most `bound` while the term is heard, and
    /// for `unheard` until it was said whether it is.
    pub(super) fn until(
        &self,
        now: Moment,
        view: &ElectionView,
        bound: Duration,
        unheard: Option<Duration>,
    ) -> Option<Moment> {
        let youngest = view.youngest();
        let (_, since) = self.free_since.filter(|(epoch, _)| *epoch == youngest)?;
        if self.was_resigned(view) {
            return None;
        }
        let seen = self.attached.is_some_and(|(epoch, _)| epoch == youngest);
        let until = match self.vouched.filter(|(epoch, _)| *epoch == youngest) {
            Some((_, until)) => until,
            None if seen || self.told == Some(youngest) => return None,
            None => since.after(unheard?),
        };
        Some(until.min(since.after(bound))).filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::driver::{ClusterIncarnation, EpochRecord, LeaderKey, Nonce, ProcessId};

    const BOUND: Duration = Duration::from_secs(10);

    fn at(ms: u64) -> Moment {
        Moment::default().after(Duration::from_millis(ms))
    }

    fn view(token: u64, attached: bool) -> ElectionView {
        let epoch = Epoch::new(7);
        ElectionView {
            epoch: Some((
                EpochRecord {
                    epoch,
                    incarnation: ClusterIncarnation::new("c"),
                    holder: None,
                    store: None,
                },
                EpochToken(token),
            )),
            leader: attached.then(|| LeaderKey {
                epoch,
                process: ProcessId::new("a"),
                nonce: Nonce::new("n"),
            }),
            ..ElectionView::default()
        }
    }

    #[test]
    fn free_leadership_is_left_to_a_term_that_is_heard_up_to_the_bound() {
        let mut hold_off = HoldOff::default();
        hold_off.see(at(0), &view(1, true));
        hold_off.see(at(1000), &view(1, false));
        let free = view(1, false);
        assert_eq!(
            hold_off.until(at(1000), &free, BOUND, None),
            None,
            "not heard"
        );
        hold_off.vouch(Epoch::new(7), Some(at(1800)));
        assert_eq!(hold_off.until(at(1000), &free, BOUND, None), Some(at(1800)));
        assert_eq!(
            hold_off.until(at(1800), &free, BOUND, None),
            None,
            "not heard any more"
        );
        hold_off.vouch(Epoch::new(7), Some(at(11_500)));
        assert_eq!(
            hold_off.until(at(10_900), &free, BOUND, None),
            Some(at(11_000))
        );
        assert_eq!(
            hold_off.until(at(11_000), &free, BOUND, None),
            None,
            "the bound"
        );
    }

    #[test]
    fn beats_that_end_or_belong_to_another_term_hold_nobody_off() {
        let mut hold_off = HoldOff::default();
        let free = view(1, false);
        hold_off.see(at(0), &free);
        hold_off.vouch(Epoch::new(6), Some(at(800)));
        assert_eq!(hold_off.until(at(0), &free, BOUND, None), None);
        hold_off.vouch(Epoch::new(7), Some(at(800)));
        hold_off.vouch(Epoch::new(7), None);
        assert_eq!(hold_off.until(at(0), &free, BOUND, None), None);
    }

    #[test]
    fn who_finds_leadership_free_waits_to_be_told_whether_the_term_is_heard() {
        let free = view(1, false);
        let unheard = Some(Duration::from_secs(1));
        let waits = |hold_off: &HoldOff, ms| hold_off.until(at(ms), &free, BOUND, unheard);
        let mut hold_off = HoldOff::default();
        hold_off.see(at(0), &free);
        assert_eq!(waits(&hold_off, 10), Some(at(1000)));
        assert_eq!(waits(&hold_off, 1000), None, "nobody said anything");
        assert_eq!(hold_off.until(at(10), &free, BOUND, None), None);

        hold_off.vouch(Epoch::new(7), Some(at(900)));
        assert_eq!(waits(&hold_off, 10), Some(at(900)));
        hold_off.vouch(Epoch::new(7), None);
        assert_eq!(waits(&hold_off, 10), None, "it is not heard");

        let mut standing_by = HoldOff::default();
        standing_by.see(at(0), &view(1, true));
        standing_by.see(at(1), &free);
        assert_eq!(waits(&standing_by, 10), None, "it had time to listen");
    }

    #[test]
    fn a_term_that_was_resigned_is_followed_at_once() {
        let mut hold_off = HoldOff::default();
        hold_off.see(at(0), &view(1, true));
        hold_off.see(at(10), &view(2, false));
        hold_off.vouch(Epoch::new(7), Some(at(800)));
        assert!(hold_off.was_resigned(&view(2, false)));
        assert_eq!(hold_off.until(at(10), &view(2, false), BOUND, None), None);
    }

    #[test]
    fn a_term_that_was_given_up_by_the_stores_own_word_is_followed_at_once() {
        let mut hold_off = HoldOff::default();
        // By a process that had never seen its leader, too.
        let free = ElectionView {
            given_up: true,
            ..view(1, false)
        };
        hold_off.see(at(10), &free);
        hold_off.vouch(Epoch::new(7), Some(at(800)));
        assert!(hold_off.was_resigned(&free));
        assert!(!hold_off.was_resigned(&view(1, false)));
        assert_eq!(hold_off.until(at(10), &free, BOUND, None), None);
    }
}
