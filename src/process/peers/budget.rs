//! The budget of suspicion: which takeovers were false alarms, and how many of them there were lately.
//!
//! A takeover was one if the start of the process that was deposed is seen well afterwards. Its successor looks for that
//! during its first minutes and marks its own record in `history/`; each detector counts the marks of the last hour.

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::LeaderSession;
use tanist_ha::retrieval::LeaderView;
use tanist_ha::store::CoordinationStore;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::PeersHandle;
use crate::process::history::{self, HistoryRecord, TermRecord};

/// Marks older than this are not counted.
const RECENT: Duration = Duration::from_secs(3600);
/// For how long the former leader is looked for, and how often.
const LOOKS: u32 = 60;
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
const LOOK_BOUND: Duration = Duration::from_secs(1);
const RECOUNT_INTERVAL: Duration = Duration::from_secs(60);

/// Keeps the number of recent false alarms current.
pub(super) async fn count_false_alarms(
    store: Arc<dyn CoordinationStore>,
    mut leaders: watch::Receiver<LeaderView>,
    count: watch::Sender<u32>,
) {
    loop {
        match history::read_all(&*store).await {
            Ok(records) => {
                let now = wall_clock_ms();
                let is_recent = |record: &&HistoryRecord| is_recent_alarm(record, now);
                let found = records.iter().filter(is_recent).count();
                let found = u32::try_from(found).unwrap_or(u32::MAX);
                count.send_if_modified(|before| std::mem::replace(before, found) != found);
            }
            Err(error) => debug!(%error, "the history of terms can't be read"),
        }
        tokio::select! {
            () = tokio::time::sleep(RECOUNT_INTERVAL) => {}
            changed = leaders.changed() => if changed.is_err() { return },
        }
    }
}

fn is_recent_alarm(record: &HistoryRecord, now_ms: u64) -> bool {
    record.takeover.as_ref().is_some_and(|takeover| {
        let age = now_ms.saturating_sub(takeover.detected_at_ms);
        takeover.false_alarm && u128::from(age) <= RECENT.as_millis()
    })
}

/// Looks for the leader that this term deposed, and marks the term's record if it is well. Never ends.
pub(in crate::process) async fn look_for_the_deposed(
    peers: Option<&PeersHandle>,
    session: &LeaderSession,
    record: &TermRecord,
) {
    if let Some(peers) = peers
        && is_seen_well(peers, session).await
    {
        warn!(epoch = %session.epoch(), "the deposed leader was well: this takeover was a false alarm");
        let mark = |record: &mut HistoryRecord| {
            if let Some(takeover) = &mut record.takeover {
                takeover.false_alarm = true;
            }
        };
        record.note(mark).await;
    }
    std::future::pending().await
}

async fn is_seen_well(peers: &PeersHandle, session: &LeaderSession) -> bool {
    let Some(takeover) = session.takeover() else {
        return false;
    };
    let former = &takeover.evidence.former;
    let (Some(address), Some(incarnation)) = (&former.address, &former.incarnation) else {
        return false;
    };
    if !takeover.evidence.detection.may_be_a_false_alarm() {
        return false;
    }
    for _ in 0..LOOKS {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let probed = tokio::time::timeout(LOOK_BOUND, peers.probe(address)).await;
        if let Ok(Some(beat)) = probed
            && Some(&beat.process) == former.process.as_ref()
            && beat.incarnation == *incarnation
        {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use tanist_ha::election::Detection;

    use super::*;
    use crate::process::history::TakeoverRecord;

    #[test]
    fn only_marks_of_the_last_hour_count() {
        let record = |at: u64, false_alarm: bool| HistoryRecord {
            takeover: Some(TakeoverRecord {
                former_epoch: 7,
                former: None,
                detection: Detection::SilentConfirmed,
                detected_at_ms: at,
                noticed_after_ms: None,
                deposed_after_ms: 1.0,
                false_alarm,
            }),
            ..HistoryRecord::default()
        };
        let now = 10_000_000;
        assert!(is_recent_alarm(&record(now - 3_600_000, true), now));
        assert!(!is_recent_alarm(&record(now - 3_600_001, true), now));
        assert!(!is_recent_alarm(&record(now, false), now));
        assert!(!is_recent_alarm(&HistoryRecord::default(), now));
    }
}
