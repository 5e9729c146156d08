//! Operators for tests of checkpoints: a source that the test feeds, one that counts what passes, and one that collects
//! what arrives; and what they saved in snapshots.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use parking_lot::Condvar;
use tanist_proto::v1::SubtaskSnapshot;
use tokio::sync::Notify;

use super::*;
use crate::state::{KeyGroups, Restored, Snapshot, StateTable};

/// Names of the operators' state in snapshots.
pub(super) const FEED_UID: &str = "the feed";
const COLLECTED: &str = "collected";
const COUNTED: &str = "counted";

/// How a source waits for more.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum Waiting {
    #[default]
    Notified,
    ForAnHour,
    Pending,
}

#[derive(Debug, Default)]
struct Fed {
    waiting: Waiting,
    /// Number of records that it may emit.
    allowed: i64,
    /// Records in a batch; 0: one.
    rows: i64,
    is_over: bool,
    is_open: bool,
    emitted: i64,
}

/// A source of the numbers from `first` on. The test says up to where.
#[derive(Debug, Clone, Default)]
pub(super) struct Feed {
    first: i64,
    fed: Arc<Mutex<Fed>>,
    more: Arc<Notify>,
}

impl Feed {
    pub(super) fn waiting(first: i64, waiting: Waiting) -> Feed {
        let feed = Feed {
            first,
            ..Feed::default()
        };
        feed.fed.lock().waiting = waiting;
        feed
    }

    /// Lets it emit this number of further records.
    pub(super) fn feed(&self, records: i64) {
        self.fed.lock().allowed += records;
        self.more.notify_one();
    }

    /// Has it emit this number of records in a batch.
    pub(super) fn in_batches_of(&self, rows: i64) {
        self.fed.lock().rows = rows;
    }

    /// Lets it end once it has emitted what it may.
    pub(super) fn end(&self) {
        self.fed.lock().is_over = true;
        self.more.notify_one();
    }

    pub(super) fn is_open(&self) -> bool {
        self.fed.lock().is_open
    }

    /// The first records of this source.
    pub(super) fn records(&self, count: i64) -> impl Iterator<Item = i64> {
        self.first..self.first + count
    }
}

impl Source for Feed {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let position = restored.position().expect("it was saved");
        let position = i64::from_le_bytes(position.try_into().expect("a number"));
        let mut fed = self.fed.lock();
        assert!(!fed.is_open, "it is restored before it is opened");
        fed.emitted = position;
        fed.allowed += position;
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        snapshot.save_position(self.fed.lock().emitted.to_le_bytes().to_vec());
        Ok(())
    }

    fn open(&mut self) -> Result<(), OperatorError> {
        self.fed.lock().is_open = true;
        Ok(())
    }

    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError> {
        let mut fed = self.fed.lock();
        if fed.emitted < fed.allowed {
            let first = self.first + fed.emitted;
            let rows = fed.rows.max(1).min(fed.allowed - fed.emitted);
            fed.emitted += rows;
            let numbers: Vec<i64> = (first..first + rows).collect();
            return Ok(SourceState::Batch(batch([("n", ints(&numbers))])));
        }
        Ok(match fed.waiting {
            _ if fed.is_over => SourceState::End,
            Waiting::Notified => SourceState::WaitFor(Arc::clone(&self.more)),
            Waiting::ForAnHour => SourceState::Wait(now + Duration::from_secs(3600)),
            Waiting::Pending => SourceState::Pending,
        })
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// Counts the records that pass.
#[derive(Default)]
pub(super) struct Counter(i64);

impl Operator for Counter {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let counted = restored.state(COUNTED).expect("it was saved");
        self.0 = i64::from_le_bytes(counted.try_into().expect("a number"));
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        snapshot.save(COUNTED, self.0.to_le_bytes().to_vec());
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.0 += batch.num_rows() as i64;
        output.emit(batch);
        Ok(())
    }
}

/// Closed until it is opened.
#[derive(Debug, Default)]
pub(super) struct Latch {
    is_open: Mutex<bool>,
    opened: Condvar,
    is_awaited: AtomicBool,
}

impl Latch {
    pub(super) fn open(&self) {
        *self.is_open.lock() = true;
        self.opened.notify_all();
    }

    /// Waits until a thread has waited for it.
    pub(super) async fn awaited(&self) {
        let what = "a thread to wait for the latch";
        wait_until(what, || self.is_awaited.load(Ordering::SeqCst)).await;
    }

    fn wait(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
        let mut is_open = self.is_open.lock();
        self.opened.wait_while(&mut is_open, |is_open| !*is_open);
    }
}

#[derive(Debug, Default)]
struct Collected {
    records: Vec<i64>,
    can_not_save: bool,
    /// Whether it wants the time every millisecond.
    is_ticking: bool,
    /// When it was passed the time, as it was passed.
    ticks: Vec<Instant>,
    /// Snapshots for which it was asked to seal its output.
    savepoints: Vec<u64>,
    /// It has keyed state, which is encoded once a latch is open.
    keyed: Option<StateTable<Arc<Latch>>>,
}

/// Collects all records.
#[derive(Debug, Clone, Default)]
pub(super) struct Collector(Arc<Mutex<Collected>>);

impl Collector {
    pub(super) fn fail_to_save(&self, can_not_save: bool) {
        self.0.lock().can_not_save = can_not_save;
    }

    /// Gives it keyed state. It is encoded once the latch is open.
    pub(super) fn encode_behind(&self, latch: &Arc<Latch>) {
        let groups = KeyGroups::of_subtask(0, 1, 8);
        let write = |latch: &Arc<Latch>, bytes: &mut Vec<u8>| {
            latch.wait();
            bytes.extend([7; 40 * 1024]);
        };
        let mut table = StateTable::new(COLLECTED, "a latch".to_owned(), groups, write);
        table.insert(0, b"key", Arc::clone(latch));
        self.0.lock().keyed = Some(table);
    }

    /// Has it ask for the time every millisecond.
    pub(super) fn tick_from_now_on(&self) {
        self.0.lock().is_ticking = true;
    }

    pub(super) fn ticks(&self) -> Vec<Instant> {
        self.0.lock().ticks.clone()
    }

    /// The numbers of the savepoints that it was part of.
    pub(super) fn savepoints(&self) -> Vec<u64> {
        self.0.lock().savepoints.clone()
    }

    pub(super) async fn has(&self, records: usize) {
        let what = format!("{records} records");
        wait_until(&what, || self.0.lock().records.len() >= records).await;
    }

    /// All records, each of which came once.
    pub(super) fn records(&self) -> BTreeSet<i64> {
        let records = &self.0.lock().records;
        let set: BTreeSet<i64> = records.iter().copied().collect();
        assert_eq!(set.len(), records.len(), "a record came twice");
        set
    }
}

impl Operator for Collector {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        self.0.lock().records = decode(restored.state(COLLECTED).expect("it was saved"));
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let mut collected = self.0.lock();
        if collected.can_not_save {
            return Err(OperatorError::unavailable("the disk is full"));
        }
        if snapshot.is_savepoint() {
            collected.savepoints.push(snapshot.number());
        }
        let content = collected.records.iter().flat_map(|it| it.to_le_bytes());
        snapshot.save(COLLECTED, content.collect());
        if let Some(table) = &mut collected.keyed {
            table.freeze(snapshot);
        }
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
        let numbers = batch.column(0).as_primitive::<Int64Type>();
        self.0.lock().records.extend(numbers.values());
        Ok(())
    }

    fn tick(&mut self, now: Instant, _: &mut Output) -> Result<Option<Instant>, OperatorError> {
        let mut collected = self.0.lock();
        collected.ticks.push(now);
        Ok(collected.is_ticking.then(|| now + Duration::from_millis(1)))
    }
}

fn decode(content: &[u8]) -> Vec<i64> {
    let (numbers, []) = content.as_chunks::<8>() else {
        panic!("{} bytes", content.len());
    };
    numbers.iter().copied().map(i64::from_le_bytes).collect()
}

/// The position that a source saved. The operator chained with it saved the same number of records.
pub(super) fn position_in(snapshot: &SubtaskSnapshot) -> i64 {
    let number = |content: Option<&[u8]>| {
        let content = content.expect("it was saved").try_into();
        i64::from_le_bytes(content.expect("a number"))
    };
    let position = number(Restored::of(FEED_UID, snapshot).position());
    let counted = number(Restored::of("count", snapshot).state(COUNTED));
    assert_eq!(position, counted);
    position
}

/// The records that the collector saved.
pub(super) fn records_in(snapshot: &SubtaskSnapshot) -> BTreeSet<i64> {
    let content = Restored::of("collect", snapshot).state(COLLECTED);
    decode(content.expect("it was saved")).into_iter().collect()
}
