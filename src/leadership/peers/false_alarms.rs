//! Finds out which takeovers were false alarms, and counts those of the last hour.
//!
//! A takeover was a false alarm if the deposed start of the process answers afterwards.
//!
//! - The successor probes it, first after half a second, for some minutes, and marks its own record in `history/`.
//! - A term may be too short for that: so each leader also probes at once the leaders that the terms before it
//!   deposed, and marks the records of those terms.
//! - A term that began by silence and ended by silence within seconds counts without a mark: if leaders are frozen one
//!   after the other, none has the time to probe.
//!
//! Each process counts the false alarms of the last hour for its detector: when the leader changes, soon after that,
//! and at intervals. Wall clocks of different processes are compared; an error only changes how soon a silent leader
//! is deposed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::{Detection, LeaderSession};
use tanist_ha::retrieval::LeaderView;
use tanist_ha::retry::Backoff;
use tanist_ha::store::CoordinationStore;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::PeersHandle;
use super::takeover::TakeoverRecord;
use crate::history::{self, HistoryRecord, TermRecord};

/// Older false alarms are not counted.
const RECENT: Duration = Duration::from_secs(3600);
/// A term that began by silence and ended by silence at a lower age counts as a false alarm.
const SHORT_TERM: Duration = Duration::from_secs(10);
/// Probes of a deposed leader: delay of the first one, which doubles each time up to the maximum; total time of
/// the probes; timeout of one.
const FIRST_PROBE_DELAY: Duration = Duration::from_millis(500);
const MAX_PROBE_DELAY: Duration = Duration::from_secs(5);
const PROBE_PERIOD: Duration = Duration::from_secs(300);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay of the first recount after a change of the leader, when its first probe may be over; the delay then
/// grows.
const FIRST_RECOUNT_DELAY: Duration = Duration::from_millis(700);
const MAX_RECOUNT_DELAY: Duration = Duration::from_secs(60);

/// Keeps the number of recent false alarms current.
pub(super) async fn count_false_alarms(
    store: Arc<dyn CoordinationStore>,
    mut leaders: watch::Receiver<LeaderView>,
    count: watch::Sender<u32>,
) {
    let mut pause = Backoff::new(FIRST_RECOUNT_DELAY, MAX_RECOUNT_DELAY);
    loop {
        match history::read_all(&*store).await {
            Ok(records) => {
                let found = false_alarms(&records, wall_clock_ms());
                count.send_if_modified(|before| std::mem::replace(before, found) != found);
            }
            Err(error) => debug!(%error, "the history of terms can't be read"),
        }
        tokio::select! {
            () = tokio::time::sleep(pause.next_delay()) => {}
            changed = leaders.changed() => match changed {
                Ok(()) => pause.reset(),
                Err(_) => return,
            },
        }
    }
}

/// Number of false alarms of the last hour in the records, which are in the order of their epochs. Pure.
fn false_alarms(records: &[HistoryRecord], now_ms: u64) -> u32 {
    let nexts = records.iter().skip(1).map(Some).chain([None]);
    let alarms = records.iter().zip(nexts).filter(|(record, next)| {
        let takeover = record.takeover.as_ref();
        takeover.is_some_and(|takeover| {
            is_recent(takeover, RECENT, now_ms)
                && (takeover.false_alarm || next.is_some_and(|next| is_cut_short(record, next)))
        })
    });
    u32::try_from(alarms.count()).unwrap_or(u32::MAX)
}

fn is_recent(takeover: &TakeoverRecord, bound: Duration, now_ms: u64) -> bool {
    let age = now_ms.saturating_sub(takeover.detected_at_ms);
    u128::from(age) <= bound.as_millis()
}

/// Whether the term of `record` began by silence, and that of `next` did so too within [`SHORT_TERM`].
fn is_cut_short(record: &HistoryRecord, next: &HistoryRecord) -> bool {
    let by_silence = |record: &HistoryRecord| {
        let takeover = record.takeover.as_ref()?;
        let is_by_silence = takeover.detection == Detection::SilentConfirmed;
        is_by_silence.then_some(takeover.detected_at_ms)
    };
    match (by_silence(record), by_silence(next)) {
        (Some(began), Some(ended)) => {
            next.epoch == record.epoch + 1
                && u128::from(ended.abs_diff(began)) < SHORT_TERM.as_millis()
        }
        _ => false,
    }
}

/// A start of a process that was deposed, and the term that began by deposing it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Deposed {
    successor: u64,
    process: String,
    incarnation: String,
    address: String,
}

impl Deposed {
    /// The leader that the term of `record` deposed, if that may have been a false alarm and is not marked as
    /// one yet.
    fn by(record: &HistoryRecord, now_ms: u64) -> Option<Deposed> {
        let takeover = record.takeover.as_ref()?;
        let is_open = takeover.detection.may_be_a_false_alarm() && !takeover.false_alarm;
        if !is_open || !is_recent(takeover, PROBE_PERIOD, now_ms) {
            return None;
        }
        Some(Deposed {
            successor: record.epoch,
            process: takeover.former.clone()?,
            incarnation: takeover.former_incarnation.clone()?,
            address: takeover.former_address.clone()?,
        })
    }

    async fn is_healthy(&self, peers: &PeersHandle) -> bool {
        let probed = tokio::time::timeout(PROBE_TIMEOUT, peers.probe(&self.address)).await;
        probed.ok().flatten().is_some_and(|heartbeat| {
            heartbeat.process.as_str() == self.process && heartbeat.incarnation == self.incarnation
        })
    }
}

/// Probes the leaders that this term and the terms before it deposed, and marks the record of a term whose
/// former leader answers. Never ends.
pub(crate) async fn probe_deposed_leaders(
    peers: Option<&PeersHandle>,
    session: &LeaderSession,
    store: &dyn CoordinationStore,
    record: &TermRecord,
) -> Infallible {
    if let Some(peers) = peers {
        let before = match history::read_before(store, session.epoch()).await {
            Ok(before) => before,
            Err(error) => {
                debug!(%error, "the leaders that earlier terms deposed can't be read");
                Vec::new()
            }
        };
        let of_before = before
            .iter()
            .filter_map(|record| Deposed::by(record, wall_clock_ms()));
        let mut unseen = mark_false_alarms(peers, store, record, of_before.collect()).await;
        let own = HistoryRecord {
            epoch: session.epoch().get(),
            takeover: TakeoverRecord::of(session),
            ..HistoryRecord::default()
        };
        unseen.extend(Deposed::by(&own, wall_clock_ms()));
        let began = Instant::now();
        let mut pause = FIRST_PROBE_DELAY;
        while !unseen.is_empty() && began.elapsed() < PROBE_PERIOD {
            tokio::time::sleep(pause).await;
            unseen = mark_false_alarms(peers, store, record, unseen).await;
            pause = (pause * 2).min(MAX_PROBE_DELAY);
        }
    }
    std::future::pending().await
}

/// Probes each once; returns those that did not answer.
async fn mark_false_alarms(
    peers: &PeersHandle,
    store: &dyn CoordinationStore,
    record: &TermRecord,
    deposed_leaders: Vec<Deposed>,
) -> Vec<Deposed> {
    let probes = deposed_leaders
        .iter()
        .map(|deposed| deposed.is_healthy(peers));
    let seen = join_all(probes).await;
    let mut unseen = Vec::new();
    for (deposed, is_healthy) in deposed_leaders.into_iter().zip(seen) {
        if !is_healthy {
            unseen.push(deposed);
            continue;
        }
        let Deposed {
            successor, process, ..
        } = deposed;
        warn!(
            epoch = successor,
            process, "the deposed leader answers: this takeover was a false alarm"
        );
        record.note_false_alarm(store, successor).await;
    }
    unseen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Without false alarms; each one doubles it.
    const SILENCE_MS: u64 = 800;
    const ANSWERS_MS: u64 = 300;

    fn by_silence(epoch: u64, at_ms: u64, false_alarm: bool) -> HistoryRecord {
        HistoryRecord {
            epoch,
            takeover: Some(TakeoverRecord {
                former_epoch: epoch - 1,
                former: Some("jm-0".to_owned()),
                former_incarnation: Some("first".to_owned()),
                former_address: Some("host:1".to_owned()),
                detection: Detection::SilentConfirmed,
                detected_at_ms: at_ms,
                noticed_after_ms: None,
                deposed_after_ms: 1.0,
                false_alarm,
            }),
            ..HistoryRecord::default()
        }
    }

    fn by(detection: Detection, epoch: u64, at_ms: u64) -> HistoryRecord {
        let mut record = by_silence(epoch, at_ms, false);
        record.takeover.as_mut().expect("it has one").detection = detection;
        record
    }

    #[test]
    fn only_marks_of_the_last_hour_count() {
        let now = 10_000_000;
        let count = |record| false_alarms(&[record], now);
        assert_eq!(count(by_silence(8, now - 3_600_000, true)), 1);
        assert_eq!(count(by_silence(8, now - 3_600_001, true)), 0);
        assert_eq!(count(by_silence(8, now, false)), 0);
        assert_eq!(count(HistoryRecord::default()), 0);
    }

    #[test]
    fn a_term_between_two_silences_counts_if_it_was_short_and_only_once() {
        let now = 10_000_000;
        let next = by_silence(9, now, false);
        let before = |ms, marked| by_silence(8, now - ms, marked);
        assert_eq!(false_alarms(&[before(9_999, false), next.clone()], now), 1);
        assert_eq!(false_alarms(&[before(9_999, true), next.clone()], now), 1);
        assert_eq!(false_alarms(&[before(10_000, false), next.clone()], now), 0);
        let of_another = by_silence(7, now - 1000, false);
        assert_eq!(false_alarms(&[of_another, next], now), 0, "not the next");
    }

    #[test]
    fn a_proven_death_costs_nothing_however_many_follow_each_other() {
        let proven = [
            Detection::ProcessGone,
            Detection::OtherIncarnation,
            Detection::LeaseExpired,
            Detection::Invited,
        ];
        for detection in proven {
            let records = (2..20).map(|epoch| by(detection, epoch, 1_000_000 + epoch * 100));
            let records: Vec<HistoryRecord> = records.collect();
            assert_eq!(false_alarms(&records, 1_002_000), 0, "{detection}");
        }
    }

    #[test]
    fn only_former_leaders_that_may_be_false_alarms_and_whose_start_is_known_are_probed() {
        let now = 10_000_000;
        let candidate = by_silence(8, now, false);
        let deposed = Deposed::by(&candidate, now).expect("it may have been well");
        assert_eq!(
            (deposed.successor, deposed.incarnation.as_str()),
            (8, "first")
        );
        assert_eq!(Deposed::by(&by_silence(8, now, true), now), None, "known");
        assert_eq!(Deposed::by(&by(Detection::Resigned, 8, now), now), None);
        assert_eq!(Deposed::by(&by_silence(8, now - 300_001, false), now), None);
        let mut without_start = candidate;
        without_start
            .takeover
            .as_mut()
            .expect("it has one")
            .former_incarnation = None;
        assert_eq!(Deposed::by(&without_start, now), None);
    }

    /// Freezes leaders one after the other, with pauses between; returns the records of the terms that
    /// followed. The record of a term that has its look before it is frozen itself is marked; the others are
    /// not.
    fn terms_after(freezes: &[(u64, u64)]) -> Vec<HistoryRecord> {
        let (mut now, mut granted) = (1_000_000, 1_000_000);
        let mut records: Vec<HistoryRecord> = Vec::new();
        for (pause, frozen) in freezes {
            now += pause;
            let look = FIRST_PROBE_DELAY.as_millis() as u64;
            if let Some(last) = records.last_mut()
                && now >= granted + look
            {
                last.takeover.as_mut().expect("it has one").false_alarm = true;
            }
            let doublings = false_alarms(&records, now);
            let followed_after = SILENCE_MS * 2_u64.pow(doublings) + ANSWERS_MS;
            if *frozen > followed_after {
                granted = now + followed_after;
                let epoch = records.last().map_or(2, |last| last.epoch + 1);
                records.push(by_silence(epoch, granted, false));
            }
            now += frozen;
        }
        records
    }

    proptest! {
        #[test]
        fn leaders_that_freeze_for_two_seconds_at_a_time_cost_at_most_four_epochs(
            freezes in prop::collection::vec((0_u64..4000, 900_u64..2500), 1..100)
        ) {
            let followed = terms_after(&freezes);
            prop_assert!(followed.len() <= 3, "{followed:#?}");
        }
    }
}
