//! The record of each term under `history/<epoch>`: who led, how the takeover went, how it ended.
//!
//! The leader writes its own term's record at the start, and again when it knows more (`TermRecord`); how a term
//! ended is in its successor's record. Readers are operators, the count of false alarms
//! (`peers/false_alarms.rs`), and crash-loop recovery, which finds out from the records which job ends its process.
//!
//! A record that is not written is missing for its readers and changes nothing else, except those of a crash-loop
//! recovery: the next step waits until they are durable (`TermRecord::note_surely`).
//!
//! Fields are only added, each with a default, so that records of other versions can be read. Times are in
//! milliseconds; those of phases count from the moment when the process was granted leadership.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tanist_gateway::kinds;
use tanist_ha::Result;
use tanist_ha::election::Epoch;
use tanist_ha::keys::{Key, Name};
use tanist_ha::retry::Backoff;
use tanist_ha::store::cache::{Proof, Proven};
use tanist_ha::store::pipeline::{CommitError, CommitPipeline};
use tanist_ha::store::{CoordinationStore, Write};
use tokio::sync::Mutex;
use tracing::{debug, warn};

use super::crash_loop::SEARCHED_RECORDS;
pub use super::crash_loop::{Death, JobRange, Suspicion, TermPhase};
pub use super::peers::takeover::TakeoverRecord;

/// Number of terms whose records are kept.
const KEPT_TERMS: u64 = 100;
/// Page size when records are listed.
const PAGE: usize = 500;
const FIRST_RETRY: Duration = Duration::from_millis(50);
const SLOWEST_RETRY: Duration = Duration::from_secs(5);

/// The value of `history/<epoch>`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryRecord {
    /// The term.
    pub epoch: u64,
    /// The process that led.
    pub process: String,
    /// When the term was confirmed, by the leader's wall clock since 1970; before the confirmation: when it
    /// began.
    pub since_ms: u64,
    /// Number of recovered jobs, not counting those that had ended.
    pub jobs: usize,
    /// Duration of the takeover's steps.
    pub phases: Phases,
    /// Where the records came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// How it followed the former term; `None` for the first term.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takeover: Option<TakeoverRecord>,
    /// Number of tasks that went on running under this term.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks_adopted: Option<usize>,
    /// Number of tasks that this term had to start again when it took over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks_restarted: Option<usize>,
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<TermPhase>,
    /// During recovery: what is known of earlier terms that died in recovery.
    #[serde(skip_serializing_if = "is_nothing")]
    pub suspicion: Suspicion,
}

fn is_nothing(suspicion: &Suspicion) -> bool {
    *suspicion == Suspicion::default()
}

/// The steps of a takeover: time from the grant to the end of each.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Phases {
    /// The change number was read under the own epoch.
    pub pipeline_ms: f64,
    /// The records were proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_proven_ms: Option<f64>,
    /// All jobs were decoded.
    pub recovered_ms: f64,
    /// `leader-info` was written.
    pub confirmed_ms: f64,
    /// The first region was adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_adopted_ms: Option<f64>,
    /// The last region was adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_adopted_ms: Option<f64>,
}

/// Where a new leader's records came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// How the cache was proven.
    pub proof: Proof,
    /// Number of records that the standby's cache held.
    pub from_cache: usize,
    /// Number of records that were read from the store.
    pub read: usize,
}

impl From<&Proven> for Recovery {
    fn from(proven: &Proven) -> Recovery {
        Recovery {
            proof: proven.proof,
            from_cache: proven.from_cache,
            read: proven.read,
        }
    }
}

impl HistoryRecord {
    /// The writes that store this record and remove the oldest one. [`TermRecord::remove_older`] removes those
    /// that terms without a record did not remove.
    fn writes(&self) -> Vec<Write> {
        let value = serde_json::to_vec(self).expect("numbers and texts are always JSON");
        let mut writes = vec![Write::Put {
            key: key(self.epoch),
            value: value.into(),
        }];
        if let Some(oldest) = self.epoch.checked_sub(KEPT_TERMS) {
            writes.push(Write::Delete { key: key(oldest) });
        }
        writes
    }
}

/// The record of the current term, shared by all that add to it.
#[derive(Debug)]
pub(super) struct TermRecord {
    record: Mutex<HistoryRecord>,
    pipeline: CommitPipeline,
}

impl TermRecord {
    /// The record with what is known when the term begins; not written yet.
    pub(super) fn new(record: HistoryRecord, pipeline: CommitPipeline) -> TermRecord {
        let record = Mutex::new(record);
        TermRecord { record, pipeline }
    }

    /// Changes the record and writes it under the term's fence, one change after the other. A failed write is
    /// logged, and not repeated: the change is written with the next one.
    pub(super) async fn note(&self, change: impl FnOnce(&mut HistoryRecord)) {
        let mut record = self.record.lock().await;
        change(&mut record);
        if let Err(error) = self.pipeline.commit(record.writes()).await {
            warn!(%error, "the term's history record was not written");
        }
    }

    /// Like [`note`](Self::note), for a change that must be durable before the next step: waits for space in
    /// the store. An error: the term is over.
    pub(super) async fn note_surely(
        &self,
        change: impl FnOnce(&mut HistoryRecord),
    ) -> std::result::Result<(), CommitError> {
        let mut record = self.record.lock().await;
        change(&mut record);
        let (mut backoff, mut is_logged) = (Backoff::new(FIRST_RETRY, SLOWEST_RETRY), false);
        loop {
            match self.pipeline.commit(record.writes()).await {
                Err(CommitError::OutOfSpace(error)) => {
                    if !std::mem::replace(&mut is_logged, true) {
                        warn!(%error, "the term's recovery record waits for space in the store");
                    }
                }
                definite => return definite.map(drop),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Removes records older than those that are kept: a term that ended before it wrote its own record did not
    /// remove the one that it should have removed. Removes as many as one transaction takes; the next term goes
    /// on. Records that stay do no harm.
    pub(super) async fn remove_older(&self, store: &dyn CoordinationStore) {
        let epoch = self.record.lock().await.epoch;
        let Some(oldest) = epoch.checked_sub(KEPT_TERMS).map(key) else {
            return;
        };
        let most = PAGE.min(self.pipeline.limits().writes);
        let listed = match store.list(kinds::HISTORY, None, most).await {
            Ok(listed) => listed.items.into_iter(),
            Err(error) => {
                debug!(%error, "old records of terms were not removed");
                return;
            }
        };
        let names = listed.map(|(name, _)| name);
        let older = names.filter(|name| *name < oldest.name);
        let writes: Vec<Write> = older
            .map(|name| Write::Delete {
                key: Key::new(kinds::HISTORY, name),
            })
            .collect();
        if writes.is_empty() {
            return;
        }
        if let Err(error) = self.pipeline.commit(writes).await {
            debug!(%error, "old records of terms were not removed");
        }
    }

    /// Marks that the takeover that began the term of `epoch`, this term or an earlier one, was a false alarm.
    /// All other content of the record stays unchanged, including fields that only other versions know.
    pub(super) async fn note_false_alarm(&self, store: &dyn CoordinationStore, epoch: u64) {
        if self.record.lock().await.epoch == epoch {
            let mark = |record: &mut HistoryRecord| {
                if let Some(takeover) = &mut record.takeover {
                    takeover.false_alarm = true;
                }
            };
            return self.note(mark).await;
        }
        // No other process writes that record: the term is over, and only the leader writes.
        let key = key(epoch);
        let stored = match store.get(std::slice::from_ref(&key)).await {
            Ok(mut values) => values.pop().flatten(),
            Err(error) => return warn!(%error, epoch, "a false alarm could not be recorded"),
        };
        let Some(marked) = stored.and_then(|value| marked_as_false_alarm(&value)) else {
            return;
        };
        let write = Write::Put { key, value: marked };
        if let Err(error) = self.pipeline.commit(vec![write]).await {
            warn!(%error, epoch, "a false alarm could not be recorded");
        }
    }

    /// The current suspicion.
    pub(super) async fn suspicion(&self) -> Suspicion {
        self.record.lock().await.suspicion.clone()
    }
}

/// The records of the last terms before `epoch`, as far as they exist within the epochs that are searched.
pub(super) async fn read_before(
    store: &dyn CoordinationStore,
    epoch: Epoch,
) -> Result<Vec<HistoryRecord>> {
    let epochs = epoch.get().saturating_sub(SEARCHED_RECORDS)..epoch.get();
    let keys: Vec<Key> = epochs.filter(|it| *it > 0).map(key).collect();
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let values = store.get(&keys).await?;
    let found = keys.iter().zip(values);
    Ok(found
        .filter_map(|(key, value)| decode(&key.name, &value?))
        .collect())
}

/// One term's record; `None` if there is none, or it can't be read.
pub async fn read(store: &dyn CoordinationStore, epoch: Epoch) -> Result<Option<HistoryRecord>> {
    let key = key(epoch.get());
    let value = store.get(std::slice::from_ref(&key)).await?.pop().flatten();
    Ok(value.and_then(|value| decode(&key.name, &value)))
}

/// The records of all terms that are kept, oldest first. One that can't be read is left out.
pub async fn read_all(store: &dyn CoordinationStore) -> Result<Vec<HistoryRecord>> {
    let (mut records, mut page) = (Vec::new(), None);
    loop {
        let listed = store.list(kinds::HISTORY, page, PAGE).await?;
        let items = listed.items.iter();
        records.extend(items.filter_map(|(name, value)| decode(name, value)));
        page = listed.next;
        if page.is_none() {
            return Ok(records);
        }
    }
}

fn decode(name: &Name, value: &[u8]) -> Option<HistoryRecord> {
    serde_json::from_slice(value)
        .inspect_err(|error| warn!(%name, %error, "the record of a term can't be read"))
        .ok()
}

/// The record, of any version, with the mark added; `None` if it has no takeover to mark.
fn marked_as_false_alarm(value: &[u8]) -> Option<Bytes> {
    let mut record: serde_json::Value = serde_json::from_slice(value).ok()?;
    let takeover = record.get_mut("takeover")?.as_object_mut()?;
    takeover.insert("false_alarm".to_owned(), true.into());
    Some(serde_json::to_vec(&record).ok()?.into())
}

fn key(epoch: u64) -> Key {
    // Padded, so that listings are in order.
    let name = Name::new(format!("{epoch:020}")).expect("digits are a name");
    Key::new(kinds::HISTORY, name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tanist_ha::clock::Clock;
    use tanist_ha::election::core::Timing;
    use tanist_ha::election::{
        ElectionOptions, LeaderElection, Leadership, ProcessId, random_start,
    };
    use tanist_ha::memory::{MemoryCluster, MemoryStore};

    use super::*;

    async fn leading() -> (LeaderElection, Arc<MemoryStore>, CommitPipeline) {
        let cluster = MemoryCluster::default();
        let process = ProcessId::new("a");
        let driver = cluster.election(process.clone(), Clock::tokio());
        let options = ElectionOptions {
            process,
            start: random_start(),
            timing: Timing::default(),
            clock: Clock::tokio(),
        };
        let election = LeaderElection::start(Arc::new(driver), options);
        let mut leadership = election.leadership();
        let granted = leadership.wait_for(|it| matches!(it, Leadership::Granted(_)));
        let session = granted.await.expect("it runs").session().cloned();
        let store = Arc::new(cluster.store());
        let pipeline = CommitPipeline::start(store.clone(), session.expect("it leads"));
        (election, store, pipeline.await.expect("it leads"))
    }

    #[tokio::test(start_paused = true)]
    async fn records_that_a_term_without_a_record_did_not_remove_are_removed_by_the_next_one() {
        let (_election, store, pipeline) = leading().await;
        for epoch in (1..=104).filter(|epoch| *epoch != 102) {
            let record = HistoryRecord {
                epoch,
                ..HistoryRecord::default()
            };
            let record = TermRecord::new(record, pipeline.clone());
            record.note(|_| {}).await;
            record.remove_older(&*store).await;
        }
        let kept = read_all(&*store).await.expect("readable");
        let kept: Vec<u64> = kept.iter().map(|record| record.epoch).collect();
        let expected: Vec<u64> = (5..=104).filter(|epoch| *epoch != 102).collect();
        assert_eq!(kept, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_term_marks_the_record_of_an_earlier_one_and_changes_nothing_else_of_it() {
        let (_election, store, pipeline) = leading().await;
        let of_another_version = serde_json::json!({
            "epoch": 7, "jobs": 3, "of_a_later_version": [1],
            "takeover": {"former_epoch": 6, "former": "a", "detection": "silent-confirmed",
                "detected_at_ms": 5, "noticed_after_ms": null, "deposed_after_ms": 1.0},
        });
        let value = serde_json::to_vec(&of_another_version).expect("JSON");
        let put = Write::Put {
            key: key(7),
            value: value.into(),
        };
        pipeline.commit(vec![put]).await.expect("it leads");
        let own = HistoryRecord {
            epoch: 8,
            ..HistoryRecord::default()
        };
        let own = TermRecord::new(own, pipeline);
        own.note_false_alarm(&*store, 7).await;
        own.note_false_alarm(&*store, 6).await;

        let found = store.get(&[key(6), key(7)]).await.expect("readable");
        assert_eq!(found[0], None, "a record that is gone stays so");
        let found: serde_json::Value =
            serde_json::from_slice(found[1].as_ref().expect("it is there")).expect("JSON");
        let mut expected = of_another_version;
        expected["takeover"]["false_alarm"] = true.into();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_record_of_the_first_version_is_read() {
        let kept = r#"{"epoch":7,"process":"jm-1:6123","since_ms":1700000000000,"jobs":3,
            "phases":{"pipeline_ms":1.5,"recovered_ms":20.25,"confirmed_ms":30.0}}"#;
        let record: HistoryRecord = serde_json::from_str(kept).expect("readable");
        assert_eq!((record.epoch, record.jobs), (7, 3));
        assert_eq!(record.phases.confirmed_ms, 30.0);
        assert_eq!(
            (record.recovery, record.phases.cache_proven_ms),
            (None, None)
        );
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_unknown_fields_are_ignored() {
        let record = HistoryRecord {
            epoch: 8,
            process: "jm-2".to_owned(),
            recovery: Some(Recovery {
                proof: Proof::CaughtUp,
                from_cache: 10,
                read: 1,
            }),
            tasks_adopted: Some(4),
            ..HistoryRecord::default()
        };
        let mut json = serde_json::to_value(&record).expect("JSON");
        assert_eq!(json["recovery"]["proof"], "caught-up");
        assert!(json.get("tasks_restarted").is_none());
        json["of_a_later_version"] = true.into();
        let read: HistoryRecord = serde_json::from_value(json).expect("readable");
        assert_eq!(read, record);
    }

    #[test]
    fn the_term_a_hundred_before_is_forgotten() {
        let record = HistoryRecord {
            epoch: 107,
            ..HistoryRecord::default()
        };
        let keys: Vec<String> = record
            .writes()
            .iter()
            .map(|write| write.key().to_string())
            .collect();
        let expected = [
            "history/00000000000000000107",
            "history/00000000000000000007",
        ];
        assert_eq!(keys, expected);
    }
}
