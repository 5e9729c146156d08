//! Asks other processes about a leader that this process lost, and decides when their answers suffice to act.
//!
//! The processes that lost the leader must outnumber all others that were asked. A process counts as reaching the
//! leader if it receives heartbeats of it, gives no answer, does not know, or lost the leader long before the asker
//! did; a process that is proven dead is not counted. So the asker and those that agree outnumber those that
//! may reach the leader, and if two or more are asked, no single "lost" deposes.
//!
//! Each process counts as one, also if several run on one host: that host may lose a leader that other hosts reach.
//! A wrong result costs a takeover, never safety (the epoch).
//!
//! Owned by `DetectorCore`, which discards answers of earlier inquiries and ends this one at `until`; this type
//! checks neither.

use std::time::Duration;

use super::peer_heartbeat::Reply;
use crate::clock::Moment;
use crate::election::Detection;

/// One round of questions. Pure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry {
    /// Distinguishes it from earlier inquiries, whose late answers don't count.
    pub id: u64,
    /// The detection to record if it is confirmed.
    pub detection: Detection,
    /// Time at which it ends without a result.
    pub until: Moment,
    /// Maximum age of a loss that another process reports; older losses don't count.
    pub freshness: Duration,
    /// Number of the processes that were asked and are not proven dead; `None`: none was asked yet.
    recipients: Option<usize>,
    /// Number of those that have recently lost the leader.
    lost: usize,
}

impl Inquiry {
    /// An inquiry in which no process was asked yet.
    pub fn new(id: u64, detection: Detection, until: Moment, freshness: Duration) -> Inquiry {
        Inquiry {
            id,
            detection,
            until,
            freshness,
            recipients: None,
            lost: 0,
        }
    }

    /// Sets the number of processes that are asked.
    pub fn sent_to(&mut self, count: usize) {
        self.recipients = Some(count);
    }

    /// Removes one of them that is proven dead.
    pub fn exclude_dead(&mut self) {
        self.recipients = self
            .recipients
            .map(|recipients| recipients.saturating_sub(1));
    }

    /// Counts the answer of one of them; `None`: no answer.
    pub fn answered(&mut self, reply: Option<Reply>) {
        let lost = match reply {
            Some(Reply::Lost { since }) => since <= self.freshness,
            Some(Reply::Reachable | Reply::Unsure) | None => false,
        };
        self.lost += usize::from(lost);
    }

    /// Whether the answers so far suffice, whichever answers are still missing.
    pub fn is_confirmed(&self) -> bool {
        self.recipients
            .is_some_and(|recipients| self.lost > recipients.saturating_sub(self.lost))
    }

    /// Whether there is no process to ask.
    pub fn is_pointless(&self) -> bool {
        self.recipients == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Option<Reply> = Some(Reply::Lost {
        since: Duration::ZERO,
    });
    const OLD: Option<Reply> = Some(Reply::Lost {
        since: Duration::from_secs(60),
    });

    fn confirmed(replies: &[Option<Reply>]) -> bool {
        let until = Moment::default();
        let freshness = Duration::from_secs(1);
        let mut inquiry = Inquiry::new(1, Detection::SilentConfirmed, until, freshness);
        inquiry.sent_to(replies.len());
        for reply in replies {
            inquiry.answered(*reply);
        }
        inquiry.is_confirmed()
    }

    const HEARS: Option<Reply> = Some(Reply::Reachable);
    const UNSURE: Option<Reply> = Some(Reply::Unsure);

    #[test]
    fn most_of_those_asked_must_have_lost_the_leader() {
        assert!(confirmed(&[LOST]));
        assert!(confirmed(&[LOST, LOST, None]));
        assert!(confirmed(&[LOST, HEARS, LOST]));
        assert!(!confirmed(&[]), "no recipient: the lease decides");
        assert!(!confirmed(&[HEARS]));
        assert!(!confirmed(&[UNSURE]));
        assert!(!confirmed(&[LOST, None]), "no answer counts as reaching it");
    }

    #[test]
    fn one_process_that_lost_the_leader_never_outvotes_those_that_reach_it() {
        assert!(!confirmed(&[LOST, HEARS]));
        assert!(!confirmed(&[LOST, UNSURE]));
        assert!(!confirmed(&[LOST, HEARS, HEARS]));
        assert!(!confirmed(&[HEARS, HEARS, LOST, HEARS, LOST, None]));
    }

    #[test]
    fn processes_that_are_proven_dead_do_not_count() {
        let mut inquiry = Inquiry::new(
            1,
            Detection::SilentConfirmed,
            Moment::default(),
            Duration::from_secs(1),
        );
        inquiry.sent_to(2);
        inquiry.answered(LOST);
        assert!(!inquiry.is_confirmed());
        inquiry.exclude_dead();
        assert!(inquiry.is_confirmed());
        inquiry.sent_to(1);
        inquiry.exclude_dead();
        assert!(inquiry.is_pointless(), "no recipient is left");
    }

    #[test]
    fn what_others_lost_long_before_is_no_evidence_of_today() {
        assert!(!confirmed(&[OLD]));
        assert!(!confirmed(&[OLD, LOST]));
        assert!(confirmed(&[OLD, LOST, LOST]));
    }
}
