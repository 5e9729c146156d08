//! Decides whether TaskManagers that refuse calls from other hosts are lost, or this process is cut off from
//! them. The ResourceManager and the JobMasters ask; the rule is:
//!
//! - This process reaches at least half of all TaskManagers, over separate connections: it is not cut off, and
//!   a TaskManager that refuses counts as lost.
//! - It reaches fewer: standbys are asked, as before every hand-over. If no standby reaches more, or there is
//!   no other JobManager, the TaskManagers are lost. If a standby reaches more, it is invited, and none counts
//!   as lost.
//! - No standby could be asked, or the invited one did not lead: undecided, and none counts as lost.
//!
//! Waiting inquiries are answered together. Not here: which process asks which one, and how
//! ([`super::hand_over`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_gateway::refusals::{Refusals, RefusalsCount};
use tanist_ha::ask::ask;
use tanist_ha::detector::TransferError;
use tanist_resource_manager::Contact;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use super::hand_over::{HandoverTimeouts, Reach};

/// Maximum number of waiting inquiries.
const MAILBOX: usize = 1024;
/// Maximum number of TaskManagers that are asked; if there are more, a sample.
const MAX_ASKED: usize = 32;

/// Asks whether the TaskManager at this address counts as lost.
#[derive(Debug)]
pub(crate) struct RefusalInquiry {
    pub(super) address: String,
    pub(super) reply: oneshot::Sender<bool>,
}

/// The components' side and the answering side of the inquiries. Where processes do not watch each other, every
/// refusal counts.
pub(crate) fn refusals(is_watched: bool) -> (Arc<dyn Refusals>, mpsc::Receiver<RefusalInquiry>) {
    let (inquiries, answered) = mpsc::channel(MAILBOX);
    let refusals: Arc<dyn Refusals> = match is_watched {
        true => Arc::new(RefusalInquiries(inquiries)),
        false => Arc::new(RefusalsCount),
    };
    (refusals, answered)
}

#[derive(Debug)]
struct RefusalInquiries(mpsc::Sender<RefusalInquiry>);

#[async_trait]
impl Refusals for RefusalInquiries {
    async fn count(&self, address: &str) -> bool {
        let address = address.to_owned();
        let answer = ask(&self.0, |reply| RefusalInquiry { address, reply }).await;
        // There is no answer when the term is over.
        answer.unwrap_or(false)
    }
}

/// The first inquiry and all others that wait.
pub(super) fn take_waiting(
    first: RefusalInquiry,
    inquiries: &mut mpsc::Receiver<RefusalInquiry>,
) -> Vec<RefusalInquiry> {
    let mut asked = vec![first];
    while let Ok(inquiry) = inquiries.try_recv() {
        asked.push(inquiry);
    }
    asked
}

/// Answers them by the rule of the module.
pub(super) async fn answer(
    asked: Vec<RefusalInquiry>,
    timeouts: &mut HandoverTimeouts,
    reach: &dyn Reach,
) {
    let addresses: BTreeSet<String> = asked.iter().map(|it| it.address.clone()).collect();
    let lost = find_lost(&addresses, timeouts, reach).await;
    for RefusalInquiry { address, reply } in asked {
        // An error means that the asking component no longer waits: the TaskManager may have answered it
        // meanwhile.
        let _ = reply.send(lost.contains(&address));
    }
}

/// Those of `asked` that count as lost.
async fn find_lost(
    asked: &BTreeSet<String>,
    timeouts: &mut HandoverTimeouts,
    reach: &dyn Reach,
) -> BTreeSet<String> {
    let contacts = reach.contacts().await;
    let all: BTreeSet<String> = contacts
        .into_iter()
        .map(|Contact { address, .. }| address)
        .collect();
    let sample = sample(all.union(asked).cloned().collect());
    let reached: BTreeSet<String> = reach.reached(&sample).await.into_iter().collect();
    let unreached: Vec<String> = sample
        .iter()
        .filter(|it| !reached.contains(*it))
        .cloned()
        .collect();
    // A TaskManager that answers on another connection is not lost, regardless of the first connection.
    let lost: BTreeSet<String> = asked.difference(&reached).cloned().collect();
    if unreached.len() * 2 <= sample.len() {
        return lost;
    }
    let (unreached_here, asked_here) = (unreached.len(), sample.len());
    let others = match timeouts.is_over() {
        true => reach
            .hand_over(unreached)
            .await
            .map(|epoch| epoch.is_some()),
        false => reach.has_better_connected_standby(unreached).await,
    };
    match others {
        Ok(false) => lost,
        // No standby answered; with no other JobManager at all there is none that could know.
        Err(TransferError::NoStandby) if reach.count_others().await == Some(0) => lost,
        Ok(true) => {
            info!(
                asked = asked_here,
                unreached = unreached_here,
                "most TaskManagers refuse connections of this process, but a standby reaches them: none counts as lost"
            );
            timeouts.begin();
            BTreeSet::new()
        }
        Err(error) => {
            warn!(
                asked = asked_here, unreached = unreached_here, %error,
                "most TaskManagers refuse connections of this process, and no standby could check them: none counts as lost"
            );
            if matches!(error, TransferError::Failed(_)) {
                timeouts.begin();
            }
            BTreeSet::new()
        }
    }
}

/// All of them, or an evenly spread sample if there are more than [`MAX_ASKED`].
fn sample(all: Vec<String>) -> Vec<String> {
    let step = all.len().div_ceil(MAX_ASKED).max(1);
    all.into_iter().step_by(step).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tanist_ha::election::Epoch;

    use super::*;

    /// TaskManagers `tm-0` to `tm-<all>`; the first ones are not reached from here.
    #[derive(Debug)]
    struct Scripted {
        all: usize,
        unreached: usize,
        standbys: Result<bool, TransferError>,
        others: usize,
        invited: AtomicU32,
    }

    impl Default for Scripted {
        fn default() -> Scripted {
            Scripted {
                all: 3,
                unreached: 3,
                standbys: Ok(false),
                others: 2,
                invited: AtomicU32::new(0),
            }
        }
    }

    fn name(number: usize) -> String {
        format!("tm-{number:03}")
    }

    #[async_trait]
    impl Reach for Scripted {
        async fn contacts(&self) -> Vec<Contact> {
            let contact = |number| Contact {
                address: name(number),
                silent_for: Duration::ZERO,
                refused: 0,
            };
            (0..self.all).map(contact).collect()
        }

        async fn reached(&self, addresses: &[String]) -> Vec<String> {
            let is_reached = |address: &&String| **address >= name(self.unreached);
            addresses.iter().filter(is_reached).cloned().collect()
        }

        async fn hand_over(&self, missed: Vec<String>) -> Result<Option<Epoch>, TransferError> {
            self.invited.fetch_add(1, Ordering::Relaxed);
            let better = self.has_better_connected_standby(missed).await?;
            Ok(better.then_some(Epoch::new(2)))
        }

        async fn has_better_connected_standby(
            &self,
            _: Vec<String>,
        ) -> Result<bool, TransferError> {
            self.standbys.clone()
        }

        async fn count_others(&self) -> Option<usize> {
            Some(self.others)
        }
    }

    async fn lost(reach: &Scripted, asked: &[usize]) -> usize {
        let asked = asked.iter().map(|number| name(*number)).collect();
        find_lost(&asked, &mut HandoverTimeouts::default(), reach)
            .await
            .len()
    }

    #[tokio::test]
    async fn one_of_many_that_refuses_counts_without_asking_standbys() {
        for (all, unreached) in [(3, 1), (2, 1), (100, 1), (100, 40)] {
            let reach = Scripted {
                all,
                unreached,
                standbys: Ok(true),
                ..Scripted::default()
            };
            assert_eq!(lost(&reach, &[0]).await, 1, "{unreached} of {all}");
            assert_eq!(reach.invited.load(Ordering::Relaxed), 0);
        }
    }

    #[tokio::test]
    async fn when_most_refuse_nothing_counts_before_standbys_were_asked() {
        let failed = || TransferError::Failed("no answer".to_owned());
        for (standbys, others, expected) in [
            (Ok(true), 2, 0),
            (Ok(false), 2, 1),
            (Err(TransferError::NoStandby), 0, 1),
            // Standbys exist but don't answer: this process may be cut off from them too.
            (Err(TransferError::NoStandby), 1, 0),
            (Err(failed()), 2, 0),
        ] {
            let reach = Scripted {
                standbys: standbys.clone(),
                others,
                ..Scripted::default()
            };
            assert_eq!(lost(&reach, &[0]).await, expected, "{standbys:?}, {others}");
        }
    }

    #[tokio::test]
    async fn a_task_manager_that_answers_another_connection_is_not_lost() {
        let reach = Scripted {
            unreached: 1,
            ..Scripted::default()
        };
        assert_eq!(lost(&reach, &[0, 1]).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn soon_after_an_invitation_standbys_are_asked_and_none_is_invited() {
        let reach = Scripted {
            standbys: Ok(true),
            ..Scripted::default()
        };
        let mut timeouts = HandoverTimeouts::default();
        for _ in 0..2 {
            let lost = find_lost(&[name(0)].into(), &mut timeouts, &reach).await;
            assert_eq!(lost.len(), 0);
        }
        assert_eq!(reach.invited.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn questions_that_wait_are_answered_together_and_those_of_an_old_term_with_no() {
        let (refusals, mut inquiries) = refusals(true);
        let asked = ["tm-000", "tm-001"].map(|address| {
            let refusals = refusals.clone();
            tokio::spawn(async move { refusals.count(address).await })
        });
        let first = inquiries.recv().await.expect("one");
        while inquiries.is_empty() {
            tokio::task::yield_now().await;
        }
        let waiting = take_waiting(first, &mut inquiries);
        assert_eq!(waiting.len(), 2);
        let reach = Scripted::default();
        answer(waiting, &mut HandoverTimeouts::default(), &reach).await;
        for inquiry in asked {
            assert!(inquiry.await.expect("answered"));
        }
        drop(inquiries);
        assert!(!refusals.count("tm-000").await);
    }
}
