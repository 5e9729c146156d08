//! The budget of suspicion: which takeovers were false alarms, and how many of them there were lately.
//!
//! A takeover was one if the start of the process that was deposed is seen well afterwards. Its successor looks for that
//! during its first minutes and marks its own record in `history/`; each detector counts the marks of the last hour.

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::LeaderSession;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::retrieval::LeaderView;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_ha::store::{CoordinationStore, Write};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::PeersHandle;

/// Marks older than this are not counted.
const RECENT: Duration = Duration::from_secs(3600);
/// For how long the former leader is looked for, and how often.
const LOOKS: u32 = 60;
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
const LOOK_BOUND: Duration = Duration::from_secs(1);
const RECOUNT_INTERVAL: Duration = Duration::from_secs(60);
/// As many records as `history/` has.
const PAGE: usize = 200;

/// Keeps the number of recent false alarms current.
pub(super) async fn count_false_alarms(
    store: Arc<dyn CoordinationStore>,
    mut leaders: watch::Receiver<LeaderView>,
    count: watch::Sender<u32>,
) {
    loop {
        match store.list(Kind::History, None, PAGE).await {
            Ok(page) => {
                let now = wall_clock_ms();
                let values = page.items.iter().map(|(_, value)| value.as_ref());
                let found = values.filter(|value| is_recent_alarm(value, now)).count();
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

fn is_recent_alarm(value: &[u8], now_ms: u64) -> bool {
    let Ok(record) = serde_json::from_slice::<serde_json::Value>(value) else {
        return false;
    };
    let takeover = &record["takeover"];
    let at = takeover["detected_at_ms"].as_u64().unwrap_or(0);
    let recent = u128::from(now_ms.saturating_sub(at)) <= RECENT.as_millis();
    recent && takeover["false_alarm"].as_bool().unwrap_or(false)
}

/// Looks for the leader that this term deposed, and marks the term's record if it is well. Never ends.
pub(in crate::process) async fn look_for_the_deposed(
    peers: Option<&PeersHandle>,
    store: &dyn CoordinationStore,
    pipeline: &CommitPipeline,
    session: &LeaderSession,
    record: Option<Key>,
) {
    if let (Some(peers), Some(record)) = (peers, record)
        && is_seen_well(peers, session).await
    {
        warn!(epoch = %session.epoch(), "the deposed leader was well: this takeover was a false alarm");
        mark(store, pipeline, record).await;
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

async fn mark(store: &dyn CoordinationStore, pipeline: &CommitPipeline, key: Key) {
    let Ok(values) = store.get(std::slice::from_ref(&key)).await else {
        return;
    };
    let Some(Some(value)) = values.into_iter().next() else {
        return;
    };
    let Ok(mut record) = serde_json::from_slice::<serde_json::Value>(&value) else {
        return;
    };
    record["takeover"]["false_alarm"] = true.into();
    let Ok(value) = serde_json::to_vec(&record) else {
        return;
    };
    let write = Write::Put {
        key,
        value: value.into(),
    };
    if let Err(error) = pipeline.commit(vec![write]).await {
        warn!(%error, "the false alarm was not recorded");
    }
}

/// The key of a term's record.
pub(in crate::process) fn record_key(epoch: u64) -> Key {
    // Padded, so that listings are in order.
    let name = Name::new(format!("{epoch:020}")).expect("digits are a name");
    Key::new(Kind::History, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marks_of_the_last_hour_count() {
        let record = |at: u64, marked: bool| {
            format!(r#"{{"epoch":8,"takeover":{{"detected_at_ms":{at},"false_alarm":{marked}}}}}"#)
        };
        let now = 10_000_000;
        assert!(is_recent_alarm(
            record(now - 3_600_000, true).as_bytes(),
            now
        ));
        assert!(!is_recent_alarm(
            record(now - 3_600_001, true).as_bytes(),
            now
        ));
        assert!(!is_recent_alarm(record(now, false).as_bytes(), now));
        assert!(!is_recent_alarm(br#"{"epoch":1}"#, now));
    }
}
