//! Aggregates by key over windows of event time. ADR 0008 has the rules.
//!
//! The state is one table. Each window, by its start, is a namespace of it. A window is emitted once the watermark has
//! reached its last millisecond, or the input has ended. It is kept for the allowed lateness, and a record that changes
//! it causes that key to be emitted again. A record whose windows are all gone is late: dropped and counted.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::{Array as _, ArrayRef, RecordBatch, TimestampMillisecondArray};
use arrow_schema::Schema;
use tanist_dataflow::record::{BATCH_BYTES, BATCH_ROWS, ColumnView, show_record};
use tanist_dataflow::{
    EndOfInput, Operator, OperatorError, Output, Restored, Snapshot, TimeSignal,
};
use tanist_model::operators::Windows;
use tanist_model::timestamp;
use tanist_proto::v1::EventTimeState;
use tokio::time::Instant;

use super::accumulator::{Accumulator, Cell};
use super::aggregate_all::{Table, restore, table_of};
use super::schema::column_of;
use super::watermarks::{announce, earliest};

/// Name of the state with the watermark.
const TIME: &str = "time";

pub(super) struct WindowAggregate {
    accumulator: Accumulator,
    /// Signature of its saved state.
    signature: String,
    time: usize,
    size: i64,
    slide: i64,
    lateness: i64,
    watermark: i64,
    /// Whether its input was said to be idle after that.
    idle: bool,
    /// Its event time was restored, and is not yet emitted again.
    announces: bool,
    /// By window start and key.
    table: Table,
}

impl WindowAggregate {
    pub(super) fn new(
        input: &Schema,
        window: &Windows,
        accumulator: Accumulator,
    ) -> Result<WindowAggregate, OperatorError> {
        let millis = |millis: u64| {
            let fits = i64::try_from(millis).ok().and_then(timestamp::in_range);
            fits.ok_or_else(|| OperatorError::specification("a window's time is too long"))
        };
        let (size, slide) = (millis(window.size_ms)?, millis(window.slide_ms)?);
        if slide == 0 || size < slide {
            return Err(OperatorError::specification(
                "a window's `slide` is from 1 ms to its `size`",
            ));
        }
        let results = accumulator.signature();
        let signature = format!("{results}, in windows of {size} ms each {slide} ms");
        Ok(WindowAggregate {
            table: table_of(&accumulator, signature.clone()),
            signature,
            accumulator,
            time: column_of(input, &window.time)?.0,
            size,
            slide,
            lateness: millis(window.allowed_lateness_ms)?,
            watermark: i64::MIN,
            idle: false,
            announces: false,
        })
    }

    /// Emits the restored event time, so that no operator behind it waits for it.
    fn announce(&mut self, output: &mut Output) {
        let watermark = (self.watermark > i64::MIN).then_some(self.watermark);
        announce(&mut self.announces, watermark, self.idle, output);
    }

    /// Whether the window with this start was emitted.
    fn is_emitted(&self, start: i64) -> bool {
        start + self.size - 1 <= self.watermark
    }

    /// Whether the window can't change any more.
    fn is_gone(&self, start: i64) -> bool {
        start + self.size - 1 + self.lateness <= self.watermark
    }

    /// Emits the results of a window.
    fn emit(&self, start: i64, output: &mut Output) -> Result<(), OperatorError> {
        let results = self.table.entries(start);
        let results = results.map(|(key, cells)| (start, key, &**cells));
        emit(&self.accumulator, self.size, results, output)
    }

    /// Emits windows that the watermark has passed, and removes those that can't change any more.
    fn advance(&mut self, watermark: i64, output: &mut Output) -> Result<(), OperatorError> {
        let before = std::mem::replace(&mut self.watermark, watermark);
        let last = watermark.saturating_sub(self.size - 1);
        let passed = self.table.namespaces().take_while(|start| *start <= last);
        for start in passed {
            if start + self.size - 1 > before {
                self.emit(start, output)?;
            }
        }
        let windows = self.table.namespaces();
        let gone: Vec<i64> = windows.take_while(|it| self.is_gone(*it)).collect();
        gone.into_iter()
            .for_each(|start| self.table.drop_namespace(start));
        Ok(())
    }
}

/// Emits results in batches.
fn emit<'r>(
    accumulator: &Accumulator,
    size: i64,
    results: impl Iterator<Item = (i64, &'r [u8], &'r [Cell])>,
    output: &mut Output,
) -> Result<(), OperatorError> {
    let mut results = results.peekable();
    while results.peek().is_some() {
        let mut builders = accumulator.builders();
        let (mut keys, mut starts, mut bytes) = (Vec::new(), Vec::new(), 0);
        while keys.len() < BATCH_ROWS && bytes + Accumulator::text_bytes(&builders) < BATCH_BYTES {
            let Some((start, key, cells)) = results.next() else {
                break;
            };
            bytes += key.len();
            keys.push(key);
            starts.push(start);
            Accumulator::append(&mut builders, cells);
        }
        let mut columns = accumulator.keys.decode(keys.into_iter());
        let ends: Vec<i64> = starts.iter().map(|start| start + size).collect();
        for times in [starts, ends] {
            let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(times));
            columns.push(times);
        }
        output.emit(accumulator.batch(columns, builders)?);
    }
    Ok(())
}

/// Returns the event times of a batch; `None` if the column contains nulls or has another type.
fn times(column: &ArrayRef) -> Option<&[i64]> {
    if column.null_count() > 0 {
        return None;
    }
    match ColumnView::of(column)? {
        ColumnView::Timestamp(array) => Some(array.values()),
        ColumnView::Int64(array) => Some(array.values()),
        ColumnView::Text(_) | ColumnView::Float64(_) | ColumnView::Bool(_) => None,
    }
}

/// Returns the event times of a batch after checking their range.
pub(super) fn event_times(batch: &RecordBatch, column: usize) -> Result<&[i64], OperatorError> {
    let times = times(batch.column(column))
        .ok_or_else(|| OperatorError::specification("the event time is no timestamp or int64"))?;
    let impossible = times
        .iter()
        .position(|time| timestamp::in_range(*time).is_none());
    match impossible {
        None => Ok(times),
        Some(row) => Err(OperatorError::Record {
            message: format!(
                "its event time {} can't be milliseconds since 1970",
                times[row]
            ),
            record: show_record(batch, row),
        }),
    }
}

impl Operator for WindowAggregate {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        // Each subtask has the event time of all inputs: at the same cut all have the same.
        let times: Vec<EventTimeState> = restored.messages(TIME, &self.signature)?;
        if let Some(time) = earliest(&times) {
            self.watermark = time.watermark.unwrap_or(i64::MIN);
            self.idle = time.idle;
            self.announces = true;
        }
        let (size, lateness) = (self.size, self.lateness);
        restore(&mut self.table, &self.accumulator, restored, |start| {
            // No window of a time in range begins or ends elsewhere, so that calculating with it does not overflow.
            let first = timestamp::in_range(start.saturating_add(size));
            let end = start
                .checked_add(size)
                .and_then(|end| end.checked_add(lateness));
            match first.or(timestamp::in_range(start)).and(end) {
                Some(_) => Ok(()),
                None => Err(format!("no window begins at {start}")),
            }
        })
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let time = EventTimeState {
            watermark: (self.watermark > i64::MIN).then_some(self.watermark),
            idle: self.idle,
        };
        snapshot.save_message(TIME, &self.signature, &time);
        self.table.freeze(snapshot);
        Ok(())
    }

    fn state_bytes(&self) -> Option<u64> {
        Some(self.table.memory())
    }

    fn tick(
        &mut self,
        _now: Instant,
        output: &mut Output,
    ) -> Result<Option<Instant>, OperatorError> {
        self.announce(output);
        Ok(None)
    }

    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.announce(output);
        let times = event_times(&batch, self.time)?;
        let views = self.accumulator.views(&batch);
        let keys = self.accumulator.keys.clone();
        let mut keys = keys.keys_of(&batch);
        let mut changed: BTreeSet<(i64, Box<[u8]>)> = BTreeSet::new();
        let mut late = 0;
        for (row, time) in times.iter().enumerate() {
            let key = keys.key(row);
            let mut start = time - time.rem_euclid(self.slide);
            let mut belongs = false;
            while start + self.size > *time {
                if !self.is_gone(start) {
                    belongs = true;
                    let accumulator = &self.accumulator;
                    let cells = self
                        .table
                        .get_or_insert_with(start, key, || accumulator.empty());
                    self.accumulator.add(cells, &views, (&batch, row))?;
                    if self.is_emitted(start) {
                        changed.insert((start, key.into()));
                    }
                }
                start -= self.slide;
            }
            late += u64::from(!belongs);
        }
        output.count_late(late);
        let results = changed.iter().filter_map(|(start, key)| {
            let cells = self.table.get(*start, key)?;
            Some((*start, &**key, &**cells))
        });
        emit(&self.accumulator, self.size, results, output)
    }

    fn signal(&mut self, signal: TimeSignal, output: &mut Output) -> Result<(), OperatorError> {
        self.announce(output);
        self.idle = signal == TimeSignal::Idle;
        if let TimeSignal::Watermark(watermark) = signal
            && watermark > self.watermark
        {
            self.advance(watermark, output)?;
        }
        output.signal(signal);
        Ok(())
    }

    fn end_input(&mut self, output: &mut Output) -> Result<EndOfInput, OperatorError> {
        let Some(start) = self.table.namespaces().next() else {
            return Ok(EndOfInput::Done);
        };
        if !self.is_emitted(start) {
            self.emit(start, output)?;
        }
        self.table.drop_namespace(start);
        Ok(EndOfInput::More)
    }
}

#[cfg(test)]
#[path = "windows_tests.rs"]
mod tests;
