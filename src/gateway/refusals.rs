//! What it means that a TaskManager refuses calls: it may be gone, or a firewall cuts off whoever calls it.
//!
//! Not here: who counts refused calls, and who finds out which of both it is. Rule: a refusal at an address of this very host
//! and network namespace is proof at once; one from afar counts only when so many came in a row, and when it is known that this
//! process is not what is cut off, or that nobody is better off.

use std::fmt;

use async_trait::async_trait;

use super::Connector;

/// Finds out whether refusals from afar may count.
#[async_trait]
pub trait Refusals: Send + Sync + fmt::Debug + 'static {
    /// Whether the TaskManager at `address`, which refused as many calls in a row as are tolerated, counts as lost. False: that is
    /// open, and its silence has to tell. May take as long as it takes to ask others.
    async fn count(&self, address: &str) -> bool;
}

/// Where nobody else could lead: refusals count as such.
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
    question: Question,
) -> bool {
    let is_over = !question.is_tolerated;
    connector.is_abandoned(address).await || (is_over && refusals.count(address).await)
}

/// The calls in a row that one TaskManager has refused, and whether it is being found out what that means: one question at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RefusedCalls {
    calls: u32,
    /// So many were found to leave it open.
    open: u32,
    question: Option<Question>,
}

/// What is to be found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Fewer calls were refused in a row than it takes: only proof counts.
    pub is_tolerated: bool,
}

/// What follows from the answer to a [`Question`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// It is lost.
    Lost,
    /// So many calls were refused meanwhile that more is to be found out.
    Ask(Question),
    /// That is open.
    Open,
}

impl RefusedCalls {
    /// How many.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// It was reached.
    pub fn reached(&mut self) {
        self.calls = 0;
        self.open = 0;
    }

    /// One more call failed, of which nothing has to be found out. Whether that is as many as it takes.
    pub fn failed(&mut self, threshold: u32) -> bool {
        self.calls = self.calls.saturating_add(1);
        self.question.is_none() && !self.is_tolerated(threshold)
    }

    /// It refused one more call: what is to be found out, unless that is under way.
    pub fn refused(&mut self, threshold: u32) -> Option<Question> {
        self.calls = self.calls.saturating_add(1);
        self.question.is_none().then(|| self.ask(threshold))
    }

    /// A question was answered. Whoever was reached meanwhile is not lost.
    pub fn judged(&mut self, is_lost: bool, threshold: u32) -> Judged {
        let Some(asked) = self.question.take() else {
            return Judged::Open;
        };
        if self.calls == 0 {
            return Judged::Open;
        }
        if is_lost {
            return Judged::Lost;
        }
        if !asked.is_tolerated {
            self.open = self.calls;
        } else if !self.is_tolerated(threshold) {
            return Judged::Ask(self.ask(threshold));
        }
        Judged::Open
    }

    fn ask(&mut self, threshold: u32) -> Question {
        let question = Question {
            is_tolerated: self.is_tolerated(threshold),
        };
        self.question = Some(question);
        question
    }

    fn is_tolerated(&self, threshold: u32) -> bool {
        self.calls - self.open < threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::LocalConnector;
    use crate::gateway::local::Fault;

    #[derive(Debug)]
    struct Open;

    #[async_trait]
    impl Refusals for Open {
        async fn count(&self, _: &str) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn only_proof_counts_at_once_and_a_refusal_from_afar_when_it_is_said_to() {
        let connector = LocalConnector::default();
        connector.set_fault("tm:1", Fault::Unreachable);
        for (question, expected) in [(PROOF, false), (ALL, true)] {
            let lost = is_lost(&connector, &RefusalsCount, "tm:1", question).await;
            assert_eq!(lost, expected);
            assert!(!is_lost(&connector, &Open, "tm:1", question).await);
        }
        connector.remove("tm:1");
        assert!(is_lost(&connector, &Open, "tm:1", PROOF).await);
    }

    const PROOF: Question = Question { is_tolerated: true };
    const ALL: Question = Question {
        is_tolerated: false,
    };

    #[test]
    fn proof_is_looked_for_at_once_and_more_is_asked_after_as_many_as_are_tolerated() {
        let mut calls = RefusedCalls::default();
        assert_eq!(calls.refused(2), Some(PROOF));
        assert_eq!(calls.refused(2), None, "it is being found out");
        assert_eq!(calls.judged(false, 2), Judged::Ask(ALL));
        assert_eq!(calls.judged(false, 2), Judged::Open);
        // What was left open is asked again after as many more.
        assert_eq!(calls.refused(2), Some(PROOF));
        assert_eq!(calls.judged(false, 2), Judged::Open);
        assert_eq!(calls.refused(2), Some(ALL));
        assert_eq!(calls.judged(true, 2), Judged::Lost);
    }

    #[test]
    fn whoever_answers_while_it_is_judged_is_not_lost() {
        let mut calls = RefusedCalls::default();
        assert_eq!(calls.refused(1), Some(ALL));
        calls.reached();
        assert_eq!(calls.judged(true, 1), Judged::Open);
        assert_eq!(calls.judged(true, 1), Judged::Open, "nothing was asked");
        assert_eq!(calls.calls(), 0);
    }

    #[test]
    fn its_own_word_counts_with_refusals_unless_these_were_left_open() {
        let mut calls = RefusedCalls::default();
        assert!(!calls.failed(2));
        assert!(calls.failed(2));
        let mut calls = RefusedCalls::default();
        assert_eq!(calls.refused(1), Some(ALL));
        assert!(!calls.failed(1), "it is being found out");
        assert_eq!(calls.judged(false, 1), Judged::Open);
        assert!(calls.failed(1));
    }
}
