//! Interpretation of calls that a TaskManager refuses: it may be gone, or a firewall may cut off the caller.
//!
//! A caller owns one [`RefusedCalls`] for each TaskManager and reports its calls to it; an implementation of
//! [`Refusals`] decides which case applies. Rule: a refusal at an address of this host and network namespace is proof
//! at once. A refusal from remote counts only after a number of them in a row, and only if it is known that this
//! process is not cut off, or that no other process has a better connection. Without proof the heartbeat timeout
//! decides.

use std::fmt;

use async_trait::async_trait;

use super::Connector;

/// Decides whether refusals from remote count.
#[async_trait]
pub trait Refusals: Send + Sync + fmt::Debug + 'static {
    /// Whether the TaskManager at `address`, which refused as many calls in a row as are tolerated, counts as
    /// lost. False: undecided; its heartbeat timeout decides. May take as long as asking other processes takes.
    async fn count(&self, address: &str) -> bool;
}

/// For a process without peers that could lead: every refusal counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct RefusalsCount;

#[async_trait]
impl Refusals for RefusalsCount {
    async fn count(&self, _: &str) -> bool {
        true
    }
}

/// Whether the TaskManager at `address`, which has just refused a call, counts as lost.
pub async fn is_lost(
    connector: &dyn Connector,
    refusals: &dyn Refusals,
    address: &str,
    check: RefusalCheck,
) -> bool {
    let is_over = !check.is_tolerated;
    connector.is_abandoned(address).await || (is_over && refusals.count(address).await)
}

/// Number of calls in a row that one TaskManager has refused, and the check in progress about their meaning;
/// one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RefusedCalls {
    calls: u32,
    /// Number of refused calls after which the last check was undecided.
    undecided_at: u32,
    check: Option<RefusalCheck>,
}

/// A check to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalCheck {
    /// Fewer calls in a row were refused than the threshold: only proof counts.
    pub is_tolerated: bool,
}

/// Result of a check, see [`RefusalCheck`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The TaskManager is lost.
    Lost,
    /// More calls were refused meanwhile, so another check is needed.
    Repeat(RefusalCheck),
    /// Undecided.
    Undecided,
}

impl RefusedCalls {
    /// Returns the number of failed calls in a row.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// A call succeeded: resets the count.
    pub fn reached(&mut self) {
        self.calls = 0;
        self.undecided_at = 0;
    }

    /// Counts a failed call that needs no check. Returns whether the threshold is reached.
    pub fn failed(&mut self, threshold: u32) -> bool {
        self.calls = self.calls.saturating_add(1);
        self.check.is_none() && !self.is_tolerated(threshold)
    }

    /// Counts a refused call. Returns the check to make, unless one is in progress.
    pub fn refused(&mut self, threshold: u32) -> Option<RefusalCheck> {
        self.calls = self.calls.saturating_add(1);
        self.check.is_none().then(|| self.start_check(threshold))
    }

    /// Takes the result of a check. A TaskManager that was reached meanwhile is not lost.
    pub fn finish_check(&mut self, is_lost: bool, threshold: u32) -> CheckOutcome {
        let Some(check) = self.check.take() else {
            return CheckOutcome::Undecided;
        };
        if self.calls == 0 {
            return CheckOutcome::Undecided;
        }
        if is_lost {
            return CheckOutcome::Lost;
        }
        if !check.is_tolerated {
            self.undecided_at = self.calls;
        } else if !self.is_tolerated(threshold) {
            return CheckOutcome::Repeat(self.start_check(threshold));
        }
        CheckOutcome::Undecided
    }

    fn start_check(&mut self, threshold: u32) -> RefusalCheck {
        let check = RefusalCheck {
            is_tolerated: self.is_tolerated(threshold),
        };
        self.check = Some(check);
        check
    }

    fn is_tolerated(&self, threshold: u32) -> bool {
        self.calls - self.undecided_at < threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalConnector;
    use crate::local::Fault;

    #[derive(Debug)]
    struct Open;

    #[async_trait]
    impl Refusals for Open {
        async fn count(&self, _: &str) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn only_proof_counts_at_once_and_a_refusal_from_remote_when_the_decision_says_so() {
        let connector = LocalConnector::default();
        connector.set_fault("tm:1", Fault::Unreachable);
        for (check, expected) in [(PROOF, false), (ALL, true)] {
            let lost = is_lost(&connector, &RefusalsCount, "tm:1", check).await;
            assert_eq!(lost, expected);
            assert!(!is_lost(&connector, &Open, "tm:1", check).await);
        }
        connector.remove("tm:1");
        assert!(is_lost(&connector, &Open, "tm:1", PROOF).await);
    }

    const PROOF: RefusalCheck = RefusalCheck { is_tolerated: true };
    const ALL: RefusalCheck = RefusalCheck {
        is_tolerated: false,
    };

    #[test]
    fn proof_is_searched_at_once_and_peers_are_asked_after_the_threshold() {
        let mut calls = RefusedCalls::default();
        assert_eq!(calls.refused(2), Some(PROOF));
        assert_eq!(calls.refused(2), None, "a check is in progress");
        assert_eq!(calls.finish_check(false, 2), CheckOutcome::Repeat(ALL));
        assert_eq!(calls.finish_check(false, 2), CheckOutcome::Undecided);
        // After an undecided check, as many more refused calls lead to the next one.
        assert_eq!(calls.refused(2), Some(PROOF));
        assert_eq!(calls.finish_check(false, 2), CheckOutcome::Undecided);
        assert_eq!(calls.refused(2), Some(ALL));
        assert_eq!(calls.finish_check(true, 2), CheckOutcome::Lost);
    }

    #[test]
    fn one_that_answers_during_its_check_is_not_lost() {
        let mut calls = RefusedCalls::default();
        assert_eq!(calls.refused(1), Some(ALL));
        calls.reached();
        assert_eq!(calls.finish_check(true, 1), CheckOutcome::Undecided);
        assert_eq!(
            calls.finish_check(true, 1),
            CheckOutcome::Undecided,
            "no check is in progress"
        );
        assert_eq!(calls.calls(), 0);
    }

    #[test]
    fn its_own_word_counts_with_refusals_unless_these_were_left_open() {
        let mut calls = RefusedCalls::default();
        assert!(!calls.failed(2));
        assert!(calls.failed(2));
        let mut calls = RefusedCalls::default();
        assert_eq!(calls.refused(1), Some(ALL));
        assert!(!calls.failed(1), "a check is in progress");
        assert_eq!(calls.finish_check(false, 1), CheckOutcome::Undecided);
        assert!(calls.failed(1));
    }
}
