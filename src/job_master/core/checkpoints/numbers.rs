//! The numbers of checkpoints: one counter for the job, across all its leaders. This object owns which number comes
//! next and up to which one they are reserved; the record has only the reservation (`next`).
//!
//! Invariants: a number is given out only if this JobMaster itself reserved it durably, so no number is given out
//! twice, and all of a former leader's numbers are below all of this one's.

use crate::core::faults::{Fault, is_planted};

/// Number of numbers that a write reserves.
const RESERVED_AHEAD: u64 = 16;

/// The counter; see the module.
#[derive(Debug)]
pub(super) struct Numbers {
    /// The next one to give out.
    next: u64,
    /// The first one that is not reserved.
    end: u64,
    /// The newest one that this JobMaster put in flight; 0: none.
    newest: u64,
}

impl Numbers {
    /// The counter of a JobMaster that reads `next` in the record: it has reserved nothing.
    pub(super) fn new(next: u64) -> Numbers {
        let next = next.max(1);
        Numbers {
            next,
            end: next,
            newest: 0,
        }
    }

    /// Whether a number is reserved.
    pub(super) fn is_any_left(&self) -> bool {
        self.next < self.end || is_planted(Fault::NumberGivenOutTwice)
    }

    /// Gives a number out. None: none is reserved.
    pub(super) fn take(&mut self) -> Option<u64> {
        if !self.is_any_left() {
            return None;
        }
        let number = self.next;
        self.next += 1;
        Some(number)
    }

    /// The next number that is given out, once it is reserved.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// What a write puts into the record as `next`.
    pub(super) fn to_reserve(&self) -> u64 {
        self.end.max(self.next + RESERVED_AHEAD)
    }

    /// A write of this JobMaster is durable that has this `next`.
    pub(super) fn confirm(&mut self, next: u64) {
        self.end = self.end.max(next);
    }

    /// A number is in flight: one that was given out, or one of a former leader.
    pub(super) fn put_in_flight(&mut self, number: u64) {
        self.newest = self.newest.max(number);
    }

    /// The newest number that was put in flight; 0: none.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_out_before_it_is_durably_reserved() {
        let mut numbers = Numbers::new(0);
        assert_eq!(numbers.take(), None);
        let reserved = numbers.to_reserve();
        assert_eq!(reserved, 17);
        numbers.confirm(reserved);
        let given: Vec<_> = std::iter::from_fn(|| numbers.take()).collect();
        assert_eq!(given, (1..17).collect::<Vec<_>>());
        let mut successor = Numbers::new(reserved);
        successor.confirm(successor.to_reserve());
        assert_eq!(successor.take(), Some(17));
    }
}
