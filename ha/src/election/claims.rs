//! Epochs claimed by messages, each waiting for a check against the own store.
//!
//! A message proves nothing: any process may have sent it, and a restored copy of the store has epochs of its
//! own. So a higher epoch in a message causes one linearizable read, begun after the message arrived, and
//! changes nothing before. If that read shows the epoch, it counts like every epoch that the store shows.
//! Otherwise the sender claims an epoch that the store does not have: a [`Claim`].
//!
//! Bounded: at most [`MAX_SENDERS`] senders, one epoch each, one read at a time, and a pause after each read that
//! refuted a claim.

use std::time::Duration;

use crate::clock::Moment;
use crate::election::driver::Epoch;

/// Maximum number of senders that wait at once, and of recorded claims.
pub(super) const MAX_SENDERS: usize = 16;

/// An epoch from a message that this process's own store does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The sender, as the message names itself or by its network address.
    pub sender: String,
    /// The epoch.
    pub epoch: Epoch,
    /// The youngest epoch of the store, from a linearizable read that began after the message arrived.
    pub found: Epoch,
    /// Time of that result: milliseconds since 1970, by this process's wall clock, for display.
    pub at_ms: u64,
}

#[derive(Debug)]
struct PendingClaim {
    sender: String,
    epoch: Epoch,
    /// The read in progress began after this claim arrived.
    is_read_begun: bool,
}

/// Claims that are neither proven nor refuted yet. Pure.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pending: Vec<PendingClaim>,
    paused_until: Option<Moment>,
}

impl Claims {
    /// Records the epoch in a message. Senders above the limit are not recorded: the read for the others
    /// shows the youngest epoch as well.
    pub(super) fn add(&mut self, sender: String, epoch: Epoch) {
        if let Some(pending) = self
            .pending
            .iter_mut()
            .find(|pending| pending.sender == sender)
        {
            if pending.epoch < epoch {
                pending.epoch = epoch;
                pending.is_read_begun = false;
            }
        } else if self.pending.len() < MAX_SENDERS {
            self.pending.push(PendingClaim {
                sender,
                epoch,
                is_read_begun: false,
            });
        }
    }

    /// Whether to begin a read for one of the claims.
    pub(super) fn needs_read(&self, now: Moment) -> bool {
        self.paused_until(now).is_none()
            && self.pending.iter().any(|pending| !pending.is_read_begun)
    }

    /// The moment before which no read is begun for the claims.
    pub(super) fn paused_until(&self, now: Moment) -> Option<Moment> {
        let waits = self.pending.iter().any(|pending| !pending.is_read_begun);
        self.paused_until.filter(|until| waits && now < *until)
    }

    /// Records that a read began: it answers for all claims recorded so far.
    pub(super) fn mark_read_begun(&mut self) {
        for pending in &mut self.pending {
            pending.is_read_begun = true;
        }
    }

    /// Records that the read failed: another read is needed.
    pub(super) fn mark_read_failed(&mut self) {
        for pending in &mut self.pending {
            pending.is_read_begun = false;
        }
    }

    /// Resolves the claims that the read answers for; `found` is the youngest epoch. Returns the refuted ones.
    pub(super) fn resolve(
        &mut self,
        now: Moment,
        found: Epoch,
        pause: Duration,
    ) -> Vec<(String, Epoch)> {
        let resolved = self.pending.extract_if(.., |pending| pending.is_read_begun);
        let refuted = resolved.filter(|pending| pending.epoch > found);
        let refuted: Vec<_> = refuted
            .map(|pending| (pending.sender, pending.epoch))
            .collect();
        if !refuted.is_empty() {
            self.paused_until = Some(now.after(pause));
        }
        refuted
    }
}

/// Records a claim, the newest at the end. Returns whether this pair of sender and epoch was unknown.
pub(super) fn record(claims: &mut Vec<Claim>, claim: Claim) -> bool {
    let same = |known: &mut Claim| known.sender == claim.sender && known.epoch == claim.epoch;
    let known = claims.extract_if(.., same).count();
    if claims.len() == MAX_SENDERS {
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
    fn a_read_resolves_the_claims_that_arrived_before_it_began() {
        let mut claims = Claims::default();
        claims.add("a".to_owned(), Epoch::new(8));
        assert!(claims.needs_read(at(0)));
        claims.mark_read_begun();
        claims.add("a".to_owned(), Epoch::new(9));
        claims.add("b".to_owned(), Epoch::new(7));
        assert!(claims.resolve(at(0), Epoch::new(5), PAUSE).is_empty());
        assert!(claims.needs_read(at(0)), "both arrived since");
        claims.mark_read_begun();
        let refuted = claims.resolve(at(0), Epoch::new(7), PAUSE);
        assert_eq!(refuted, [("a".to_owned(), Epoch::new(9))]);
        assert!(!claims.needs_read(at(1000)), "nothing is left");
    }

    #[test]
    fn refuted_senders_cost_few_reads_and_their_number_is_bounded() {
        let mut claims = Claims::default();
        for number in 0..100 {
            claims.add(format!("forger {number}"), Epoch::new(8));
        }
        claims.mark_read_begun();
        assert_eq!(
            claims.resolve(at(0), Epoch::new(7), PAUSE).len(),
            MAX_SENDERS
        );
        claims.add("forger".to_owned(), Epoch::new(8));
        assert!(!claims.needs_read(at(199)));
        assert_eq!(claims.paused_until(at(199)), Some(at(200)));
        assert!(claims.needs_read(at(200)));
    }

    #[test]
    fn a_claim_is_recorded_once_and_the_oldest_make_room() {
        let mut claims = Vec::new();
        let claim = |number: usize| Claim {
            sender: format!("sender {number}"),
            epoch: Epoch::new(8),
            found: Epoch::new(7),
            at_ms: 0,
        };
        for number in 0..MAX_SENDERS {
            assert!(record(&mut claims, claim(number)));
        }
        assert!(!record(&mut claims, claim(0)), "it is known");
        assert!(record(&mut claims, claim(MAX_SENDERS)));
        let last = claims.last().map(|claim| claim.sender.as_str());
        assert_eq!(
            (claims.len(), last),
            (MAX_SENDERS, Some(&*format!("sender {MAX_SENDERS}")))
        );
        assert!(!claims.contains(&claim(1)), "the oldest");
    }
}
