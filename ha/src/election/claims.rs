//! Epochs claimed by messages, each waiting for a check against the own store.
//!
//! A message proves nothing: any process may have sent it, and a restored copy of the store has epochs of its
//! own. So a higher epoch in a message causes one linearizable read, begun after the message arrived, and
//! changes nothing before. If that read shows the epoch, it counts like every epoch that the store shows.
//! Otherwise the sender claims an epoch that the store does not have: a [`Claim`].
//!
//! Bounded: at most [`TELLERS`] senders, one epoch each, one read at a time, and a pause after each read that
//! refuted a claim.

use std::time::Duration;

use crate::clock::Moment;
use crate::election::driver::Epoch;

/// Maximum number of senders that wait at once, and of claims that are remembered.
pub(super) const TELLERS: usize = 16;

/// An epoch from a message that this process's own store does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The sender, as the message names itself or by its network address.
    pub teller: String,
    /// The epoch.
    pub epoch: Epoch,
    /// The youngest epoch of the store, from a linearizable read that began after the message arrived.
    pub found: Epoch,
    /// Time of that result: milliseconds since 1970, by this process's wall clock, for display.
    pub at_ms: u64,
}

#[derive(Debug)]
struct Told {
    teller: String,
    epoch: Epoch,
    /// The read in progress began after this claim arrived.
    asked: bool,
}

/// Claims that are neither proven nor refuted yet. Pure.
#[derive(Debug, Default)]
pub(super) struct Claims {
    told: Vec<Told>,
    paused_until: Option<Moment>,
}

impl Claims {
    /// Records the epoch in a message. Senders above the limit are not recorded: the read for the others
    /// shows the youngest epoch as well.
    pub(super) fn tell(&mut self, teller: String, epoch: Epoch) {
        if let Some(told) = self.told.iter_mut().find(|told| told.teller == teller) {
            if told.epoch < epoch {
                told.epoch = epoch;
                told.asked = false;
            }
        } else if self.told.len() < TELLERS {
            self.told.push(Told {
                teller,
                epoch,
                asked: false,
            });
        }
    }

    /// Whether to begin a read for one of the claims.
    pub(super) fn want_a_read(&self, now: Moment) -> bool {
        self.paused_until(now).is_none() && self.told.iter().any(|told| !told.asked)
    }

    /// The moment before which no read is begun for the claims.
    pub(super) fn paused_until(&self, now: Moment) -> Option<Moment> {
        let waits = self.told.iter().any(|told| !told.asked);
        self.paused_until.filter(|until| waits && now < *until)
    }

    /// Records that a read began: it answers for all claims recorded so far.
    pub(super) fn read_begun(&mut self) {
        for told in &mut self.told {
            told.asked = true;
        }
    }

    /// Records that the read failed: another read is needed.
    pub(super) fn read_failed(&mut self) {
        for told in &mut self.told {
            told.asked = false;
        }
    }

    /// Settles the claims that the read answers for; `found` is the youngest epoch. Returns the refuted ones.
    pub(super) fn settle(
        &mut self,
        now: Moment,
        found: Epoch,
        pause: Duration,
    ) -> Vec<(String, Epoch)> {
        let settled = self.told.extract_if(.., |told| told.asked);
        let refuted = settled.filter(|told| told.epoch > found);
        let refuted: Vec<_> = refuted.map(|told| (told.teller, told.epoch)).collect();
        if !refuted.is_empty() {
            self.paused_until = Some(now.after(pause));
        }
        refuted
    }
}

/// Remembers a claim, the newest at the end. Returns whether this pair of teller and epoch was unknown.
pub(super) fn remember(claims: &mut Vec<Claim>, claim: Claim) -> bool {
    let same = |known: &mut Claim| known.teller == claim.teller && known.epoch == claim.epoch;
    let known = claims.extract_if(.., same).count();
    if claims.len() == TELLERS {
        claims.remove(0);
    }
    claims.push(claim);
    known == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(200);

    fn at(ms: u64) -> Moment {
        Moment::default().after(Duration::from_millis(ms))
    }

    #[test]
    fn a_read_answers_for_what_was_told_before_it_was_begun() {
        let mut claims = Claims::default();
        claims.tell("a".to_owned(), Epoch::new(8));
        assert!(claims.want_a_read(at(0)));
        claims.read_begun();
        claims.tell("a".to_owned(), Epoch::new(9));
        claims.tell("b".to_owned(), Epoch::new(7));
        assert!(claims.settle(at(0), Epoch::new(5), PAUSE).is_empty());
        assert!(claims.want_a_read(at(0)), "both were told since");
        claims.read_begun();
        let refuted = claims.settle(at(0), Epoch::new(7), PAUSE);
        assert_eq!(refuted, [("a".to_owned(), Epoch::new(9))]);
        assert!(!claims.want_a_read(at(1000)), "nothing is left");
    }

    #[test]
    fn who_was_refuted_costs_a_read_only_now_and_then_and_tellers_are_bounded() {
        let mut claims = Claims::default();
        for number in 0..100 {
            claims.tell(format!("forger {number}"), Epoch::new(8));
        }
        claims.read_begun();
        assert_eq!(claims.settle(at(0), Epoch::new(7), PAUSE).len(), TELLERS);
        claims.tell("forger".to_owned(), Epoch::new(8));
        assert!(!claims.want_a_read(at(199)));
        assert_eq!(claims.paused_until(at(199)), Some(at(200)));
        assert!(claims.want_a_read(at(200)));
    }

    #[test]
    fn a_claim_is_remembered_once_and_the_oldest_make_room() {
        let mut claims = Vec::new();
        let claim = |number: usize| Claim {
            teller: format!("teller {number}"),
            epoch: Epoch::new(8),
            found: Epoch::new(7),
            at_ms: 0,
        };
        for number in 0..TELLERS {
            assert!(remember(&mut claims, claim(number)));
        }
        assert!(!remember(&mut claims, claim(0)), "it is known");
        assert!(remember(&mut claims, claim(TELLERS)));
        let last = claims.last().map(|claim| claim.teller.as_str());
        assert_eq!(
            (claims.len(), last),
            (TELLERS, Some(&*format!("teller {TELLERS}")))
        );
        assert!(!claims.contains(&claim(1)), "the oldest");
    }
}
