//! Hands over when a leader misses most of its TaskManagers: to a standby that reaches them, before any of them
//! counts as lost.
//!
//! Inquiries of components about refused calls ([`super::refused`]) are answered between two checks, so that only
//! one invitation is under way at a time. The detector finds out which process reaches which TaskManagers.
//!
//! Invariant: within a term a standby is invited at most once a minute, and not within the first minute of a term that
//! itself began by such a hand-over. So two processes do not hand over to each other again and again.

use std::convert::Infallible;
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::detector::TransferError;
use tanist_ha::election::{Detection, Epoch, LeaderSession};
use tanist_resource_manager::{Contact, ResourceManagerHandle};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::warn;

use super::PeersHandle;
use super::refused::{RefusalInquiry, answer, take_waiting};

/// Minimum pause after an invitation, and after the start of a term that began by one.
const PAUSE: Duration = Duration::from_secs(60);
const SHORTEST_POLL: Duration = Duration::from_millis(50);
const LONGEST_POLL: Duration = Duration::from_secs(5);

/// The silence after which a TaskManager is missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandOverOptions {
    /// `heartbeat.interval`.
    pub interval: Duration,
    /// `heartbeat.timeout`: after this it is lost.
    pub timeout: Duration,
}

impl HandOverOptions {
    /// Half of the timeout, or more if heartbeats are rare: before the next heartbeat was due, silence proves
    /// nothing.
    fn silence(self) -> Duration {
        let between = (self.interval + self.timeout) / 2;
        (self.timeout / 2).max(between.min(self.interval * 2))
    }

    fn poll(self) -> Duration {
        (self.timeout / 10).clamp(SHORTEST_POLL, LONGEST_POLL)
    }
}

/// The addresses of the missed TaskManagers, if they are most of all.
fn missed(contacts: Vec<Contact>, silence: Duration) -> Option<Vec<String>> {
    let all = contacts.len();
    let is_missed = |contact: &Contact| contact.refused > 0 || contact.silent_for >= silence;
    let missed: Vec<String> = contacts
        .into_iter()
        .filter(is_missed)
        .map(|contact| contact.address)
        .collect();
    (missed.len() * 2 > all).then_some(missed)
}

/// Watches the TaskManagers of a term; ends with the term, by being dropped.
pub(crate) async fn hand_over_when_cut_off(
    peers: Option<&PeersHandle>,
    resources: &ResourceManagerHandle,
    session: &LeaderSession,
    options: HandOverOptions,
    refused: &mut mpsc::Receiver<RefusalInquiry>,
) -> Infallible {
    let Some(peers) = peers else {
        return std::future::pending().await;
    };
    let handed_over = |takeover: &tanist_ha::election::Takeover| {
        takeover.evidence.detection == Detection::HandedOver
    };
    let mut timeouts = HandoverTimeouts::default();
    if session.takeover().is_some_and(handed_over) {
        timeouts.begin();
    }
    watch_contacts(options, &Reached { peers, resources }, timeouts, refused).await
}

/// The pause during which no standby is invited.
#[derive(Debug, Default)]
pub(super) struct HandoverTimeouts {
    until: Option<Instant>,
}

impl HandoverTimeouts {
    pub(super) fn begin(&mut self) {
        self.until = Some(Instant::now() + PAUSE);
    }

    pub(super) fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }
}

/// The TaskManagers of a term, and the possible actions.
#[async_trait]
pub(super) trait Reach: Sync {
    async fn contacts(&self) -> Vec<Contact>;
    /// Those of `addresses` that answer this process on another connection.
    async fn reached(&self, addresses: &[String]) -> Vec<String>;
    async fn hand_over(&self, missed: Vec<String>) -> Result<Option<Epoch>, TransferError>;
    async fn has_better_connected_standby(
        &self,
        missed: Vec<String>,
    ) -> Result<bool, TransferError>;
    /// Number of other JobManagers; `None` if not known.
    async fn count_others(&self) -> Option<usize>;
}

struct Reached<'a> {
    peers: &'a PeersHandle,
    resources: &'a ResourceManagerHandle,
}

#[async_trait]
impl Reach for Reached<'_> {
    async fn contacts(&self) -> Vec<Contact> {
        self.resources.contacts().await.unwrap_or_default()
    }

    async fn reached(&self, addresses: &[String]) -> Vec<String> {
        let reached = self.peers.detector.reached(addresses).await;
        reached.unwrap_or_default()
    }

    async fn hand_over(&self, missed: Vec<String>) -> Result<Option<Epoch>, TransferError> {
        let bound = self.peers.transfer_timeout;
        self.peers.detector.hand_over(&missed, bound).await
    }

    async fn has_better_connected_standby(
        &self,
        missed: Vec<String>,
    ) -> Result<bool, TransferError> {
        let (detector, bound) = (&self.peers.detector, self.peers.transfer_timeout);
        detector.has_better_connected_standby(&missed, bound).await
    }

    async fn count_others(&self) -> Option<usize> {
        let (detector, bound) = (&self.peers.detector, self.peers.transfer_timeout);
        detector.count_others(bound).await.ok()
    }
}

async fn watch_contacts(
    options: HandOverOptions,
    reach: &dyn Reach,
    mut timeouts: HandoverTimeouts,
    refused: &mut mpsc::Receiver<RefusalInquiry>,
) -> Infallible {
    loop {
        tokio::select! {
            Some(first) = refused.recv() => {
                let asked = take_waiting(first, refused);
                answer(asked, &mut timeouts, reach).await;
            }
            () = tokio::time::sleep(options.poll()) => {
                if timeouts.is_over() {
                    check_contacts(options, reach, &mut timeouts).await;
                }
            }
        }
    }
}

async fn check_contacts(
    options: HandOverOptions,
    reach: &dyn Reach,
    timeouts: &mut HandoverTimeouts,
) {
    let Some(missed) = missed(reach.contacts().await, options.silence()) else {
        return;
    };
    match reach.hand_over(missed).await {
        Ok(Some(_)) => timeouts.begin(),
        Err(error @ TransferError::Failed(_)) => {
            warn!(%error, "most TaskManagers are unreachable from this process, and the hand-over to a standby that reaches them failed: the term continues");
            timeouts.begin();
        }
        // No standby reaches more, or there is none: that may change at any time.
        Ok(None) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::timeout;

    use super::*;

    const OPTIONS: HandOverOptions = HandOverOptions {
        interval: Duration::from_secs(10),
        timeout: Duration::from_secs(50),
    };

    struct Scripted {
        answer: Result<Option<Epoch>, TransferError>,
        asked: AtomicU32,
    }

    #[async_trait]
    impl Reach for Scripted {
        async fn contacts(&self) -> Vec<Contact> {
            vec![contact(30, 0)]
        }

        async fn reached(&self, _: &[String]) -> Vec<String> {
            Vec::new()
        }

        async fn has_better_connected_standby(
            &self,
            _: Vec<String>,
        ) -> Result<bool, TransferError> {
            self.answer.clone().map(|epoch| epoch.is_some())
        }

        async fn count_others(&self) -> Option<usize> {
            None
        }

        async fn hand_over(&self, _: Vec<String>) -> Result<Option<Epoch>, TransferError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.answer.clone()
        }
    }

    fn contact(silent_for: u64, refused: u32) -> Contact {
        Contact {
            address: "tm:1".to_owned(),
            silent_for: Duration::from_secs(silent_for),
            refused,
        }
    }

    #[test]
    fn a_task_manager_is_missed_well_before_it_is_lost_and_not_before_a_heartbeat_was_due() {
        assert_eq!(OPTIONS.silence(), Duration::from_secs(25));
        let rare = HandOverOptions {
            interval: Duration::from_secs(40),
            ..OPTIONS
        };
        assert_eq!(rare.silence(), Duration::from_secs(45));
    }

    #[test]
    fn only_most_of_them_count() {
        let silence = OPTIONS.silence();
        let missed = |contacts: &[Contact]| missed(contacts.to_vec(), silence).map(|it| it.len());
        assert_eq!(missed(&[]), None);
        assert_eq!(missed(&[contact(24, 0)]), None);
        assert_eq!(missed(&[contact(25, 0)]), Some(1));
        assert_eq!(missed(&[contact(25, 0), contact(0, 0)]), None);
        assert_eq!(
            missed(&[contact(25, 0), contact(0, 1), contact(0, 0)]),
            Some(2)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_standby_is_invited_at_most_once_a_minute_and_asked_more_often() {
        for (answer, expected) in [
            (Err(TransferError::Failed("no".to_owned())), 10..=10),
            (Ok(Some(Epoch::new(2))), 10..=10),
            (Ok(None), 100..=130),
        ] {
            let scripted = Scripted {
                answer: answer.clone(),
                asked: AtomicU32::new(0),
            };
            let (_nobody_asks, mut refused) = mpsc::channel(1);
            let watching = watch_contacts(
                OPTIONS,
                &scripted,
                HandoverTimeouts::default(),
                &mut refused,
            );
            let _ = timeout(Duration::from_secs(600), watching).await;
            let asked = scripted.asked.load(Ordering::Relaxed);
            assert!(expected.contains(&asked), "{answer:?}: {asked}");
        }
    }
}
