//! Asking others about a leader that this process lost: when their answers are enough to act on.
//!
//! The one who asks must be heard by more of those asked than the leader may be heard by. Whoever gives no answer, can't
//! say, or lost the leader long before the asker did, counts as hearing it; whoever is proven dead is not counted.

use std::time::Duration;

use super::beat::Reply;
use crate::clock::Moment;
use crate::election::Detection;

/// One round of questions. Pure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry {
    /// Tells it from earlier ones, whose late answers don't count.
    pub id: u64,
    /// What it is called if it is confirmed.
    pub detection: Detection,
    /// When it ends without a result.
    pub until: Moment,
    /// Older losses of others are no loss of *now*.
    pub freshness: Duration,
    asked: Option<usize>,
    answered: usize,
    hear_leader: usize,
}

impl Inquiry {
    /// Nobody was asked yet.
    pub fn new(id: u64, detection: Detection, until: Moment, freshness: Duration) -> Inquiry {
        Inquiry {
            id,
            detection,
            until,
            freshness,
            asked: None,
            answered: 0,
            hear_leader: 0,
        }
    }

    /// So many are asked.
    pub fn asked(&mut self, count: usize) {
        self.asked = Some(count);
    }

    /// One of them is proven dead.
    pub fn gone(&mut self) {
        self.asked = self.asked.map(|asked| asked.saturating_sub(1));
    }

    /// One of them answered, or did not.
    pub fn answered(&mut self, reply: Option<Reply>) {
        let lost = match reply {
            None => return,
            Some(Reply::Lost { since }) => since <= self.freshness,
            Some(Reply::Hears | Reply::Unsure) => false,
        };
        self.answered += 1;
        if !lost {
            self.hear_leader += 1;
        }
    }

    /// Whether the answers so far are enough, whatever those say who have not answered.
    pub fn is_confirmed(&self) -> bool {
        self.asked.is_some_and(|asked| {
            let unanswered = asked.saturating_sub(self.answered);
            self.answered > self.hear_leader + unanswered
        })
    }

    /// Whether nobody is there to be asked.
    pub fn is_pointless(&self) -> bool {
        self.asked == Some(0)
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
        inquiry.asked(replies.len());
        for reply in replies {
            inquiry.answered(*reply);
        }
        inquiry.is_confirmed()
    }

    #[test]
    fn the_asker_must_be_heard_by_more_than_the_leader() {
        assert!(confirmed(&[LOST]));
        assert!(confirmed(&[LOST, Some(Reply::Hears)]));
        assert!(confirmed(&[LOST, LOST, None]));
        assert!(!confirmed(&[]), "with nobody to ask the lease decides");
        assert!(!confirmed(&[Some(Reply::Hears)]));
        assert!(!confirmed(&[LOST, None]), "no answer counts as hearing it");
        assert!(!confirmed(&[LOST, Some(Reply::Hears), None]));
        assert!(!confirmed(&[Some(Reply::Unsure)]));
    }

    #[test]
    fn the_dead_count_for_nobody() {
        let mut inquiry = Inquiry::new(
            1,
            Detection::SilentConfirmed,
            Moment::default(),
            Duration::from_secs(1),
        );
        inquiry.asked(2);
        inquiry.answered(LOST);
        assert!(!inquiry.is_confirmed());
        inquiry.gone();
        assert!(inquiry.is_confirmed());
        inquiry.asked(1);
        inquiry.gone();
        assert!(inquiry.is_pointless(), "nobody is left to be asked");
    }

    #[test]
    fn what_others_lost_long_before_is_no_evidence_of_today() {
        assert!(!confirmed(&[OLD]));
        assert!(confirmed(&[OLD, LOST]));
    }
}
