//! Generates records. They depend only on the seed, not on the parallelism or on time.
//!
//! Subtask i of n generates the records with sequence numbers i, i + n, i + 2n and so on. A rate applies to all
//! subtasks together: each follows the clock independently from its first poll on, and catches up at most one
//! second. A restored subtask follows it from then on, and makes up for nothing.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::SchemaRef;
use tanist_dataflow::{
    Built, OperatorContext, OperatorError, Restored, Snapshot, Source, SourceState,
};
use tanist_model::operators;
use tanist_proto::v1::DatagenPosition;
use tokio::time::Instant;

use super::factory::{Runtime, Setup, source};

const ROWS: u64 = 2048;
/// Values are drawn from zero up to this.
const VALUES: u64 = 1000;
/// Records that are due within this time are generated together.
const TICK: Duration = Duration::from_millis(5);
const LONGEST_CATCH_UP: Duration = Duration::from_secs(1);

impl Runtime for operators::Datagen {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        source(Datagen::new(self, setup.context)?)
    }
}

pub(super) struct Datagen {
    rate: Option<u64>,
    end: u64,
    seed: u64,
    keys: u64,
    step: u64,
    /// The next sequence number.
    next: u64,
    /// Reference point of the rate: sequence numbers from this one on are due after that time.
    anchor: Option<(Instant, u64)>,
    output: SchemaRef,
}

impl Datagen {
    pub(super) fn new(
        spec: &operators::Datagen,
        context: &OperatorContext,
    ) -> Result<Datagen, OperatorError> {
        let operators::Datagen {
            rate,
            count,
            seed,
            keys,
        } = *spec;
        if keys == 0 || i64::try_from(keys).is_err() {
            return Err(OperatorError::specification(
                "`keys` is at least 1 and fits an int64",
            ));
        }
        if rate == Some(0) {
            return Err(OperatorError::specification(
                "`rate` is at least 1 record a second",
            ));
        }
        Ok(Datagen {
            rate,
            end: count.unwrap_or(u64::MAX).min(i64::MAX.unsigned_abs()),
            seed,
            keys,
            step: u64::from(context.parallelism.max(1)),
            next: u64::from(context.subtask),
            anchor: None,
            output: context.output_schema(),
        })
    }

    /// What its position is of: numbers of other subtasks are others.
    fn signature(&self) -> String {
        format!("datagen in steps of {}", self.step)
    }

    /// Returns the sequence number before which all records are due.
    fn due(&mut self, rate: u64, now: Instant) -> u64 {
        let (start, first) = *self.anchor.get_or_insert((now, self.next));
        let elapsed = now.duration_since(start);
        let due = first.saturating_add(records_in(rate, elapsed));
        let most = self
            .next
            .saturating_add(records_in(rate, LONGEST_CATCH_UP).max(self.step));
        if due > most {
            self.anchor = Some((now, most));
            return most;
        }
        due
    }

    /// Returns when the next record is due.
    fn due_at(&self, rate: u64, now: Instant) -> Instant {
        let (start, first) = self.anchor.unwrap_or((now, self.next));
        let waiting = u128::from((self.next + 1).saturating_sub(first));
        let nanos = (waiting * 1_000_000_000).div_ceil(u128::from(rate));
        let at = start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4));
        at.max(now + TICK)
    }

    fn make(&mut self, before: u64) -> Result<RecordBatch, OperatorError> {
        let rows = before
            .saturating_sub(self.next)
            .div_ceil(self.step)
            .min(ROWS);
        let sequence = (0..rows).map(|row| self.next + row * self.step);
        let columns = [
            sequence.clone().collect::<Vec<_>>(),
            sequence
                .clone()
                .map(|seq| draw(self.seed, 2 * seq) % self.keys)
                .collect(),
            sequence
                .map(|seq| draw(self.seed, 2 * seq + 1) % VALUES)
                .collect(),
        ];
        self.next = self.next.saturating_add(rows * self.step);
        let columns = columns.into_iter().map(|numbers| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(
                numbers.into_iter().map(u64::cast_signed),
            ))
        });
        Ok(RecordBatch::try_new(
            Arc::clone(&self.output),
            columns.collect(),
        )?)
    }
}

fn records_in(rate: u64, time: Duration) -> u64 {
    let records = time.as_nanos() * u128::from(rate) / 1_000_000_000;
    u64::try_from(records).unwrap_or(u64::MAX)
}

/// A pseudorandom number that depends only on its arguments (the finalizer of splitmix64).
fn draw(seed: u64, index: u64) -> u64 {
    let mut bits = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Source for Datagen {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let position: Option<DatagenPosition> = restored.position_message(&self.signature())?;
        if let Some(position) = position {
            self.next = position.next;
        }
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let position = DatagenPosition { next: self.next };
        snapshot.save_position_message(&self.signature(), &position);
        Ok(())
    }

    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError> {
        if self.next >= self.end {
            return Ok(SourceState::End);
        }
        let Some(rate) = self.rate else {
            return Ok(SourceState::Batch(self.make(self.end)?));
        };
        let due = self.due(rate, now).min(self.end);
        if due <= self.next {
            return Ok(SourceState::Wait(self.due_at(rate, now)));
        }
        Ok(SourceState::Batch(self.make(due)?))
    }
}

#[cfg(test)]
mod tests {
    use tanist_dataflow::record;
    use tanist_model::OperatorSpec;

    use super::*;
    use crate::testing::source;

    fn datagen(rate: Option<u64>, count: Option<u64>) -> OperatorSpec {
        operators::Datagen {
            rate,
            count,
            seed: 42,
            keys: 10,
        }
        .into()
    }

    fn records(parallelism: u32) -> Vec<String> {
        let mut lines = Vec::new();
        for subtask in 0..parallelism {
            let mut source =
                source(&datagen(None, Some(5000)), subtask, parallelism).expect("built");
            loop {
                match source.next(Instant::now()).expect("made") {
                    SourceState::Batch(batch) => record::write_lines(&batch, "", &mut lines),
                    SourceState::Wait(_) | SourceState::WaitFor(_) | SourceState::Pending => {
                        panic!("waits without a rate")
                    }
                    SourceState::End => break,
                }
            }
        }
        let mut lines: Vec<String> = String::from_utf8_lossy(&lines)
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn the_records_depend_on_the_seed_and_not_on_the_parallelism() {
        let records_of_one = records(1);
        assert_eq!(records_of_one.len(), 5000);
        assert_eq!(records(3), records_of_one);
        let keys: std::collections::BTreeSet<_> = records_of_one
            .iter()
            .filter_map(|line| line.split(' ').nth(1))
            .collect();
        assert_eq!(keys.len(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_kept_by_all_subtasks_together() {
        for rate in [3, 1_000, 1_000_000] {
            let mut made = 0;
            for subtask in 0..4 {
                let mut source = source(&datagen(Some(rate), None), subtask, 4).expect("built");
                let end = Instant::now() + Duration::from_secs(10);
                while Instant::now() <= end {
                    match source.next(Instant::now()).expect("made") {
                        SourceState::Batch(batch) => made += batch.num_rows() as u64,
                        SourceState::Wait(until) => tokio::time::sleep_until(until).await,
                        SourceState::WaitFor(_) | SourceState::Pending => {
                            panic!("waits for a moment only")
                        }
                        SourceState::End => panic!("ends without a count"),
                    }
                }
            }
            assert!(
                made.abs_diff(10 * rate) <= rate / 50 + 8,
                "{made} of {} records",
                10 * rate
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_was_held_back_makes_up_for_a_second_at_most() {
        let mut source = source(&datagen(Some(100), None), 0, 1).expect("built");
        source.next(Instant::now()).expect("made");
        tokio::time::advance(Duration::from_secs(3600)).await;
        let mut made = 0;
        while let SourceState::Batch(batch) = source.next(Instant::now()).expect("made") {
            made += batch.num_rows();
        }
        assert_eq!(made, 100);
    }

    #[test]
    fn no_keys_and_no_rate_are_refused() {
        let spec = operators::Datagen {
            rate: None,
            count: None,
            seed: 0,
            keys: 0,
        }
        .into();
        assert!(source(&spec, 0, 1).is_err());
        assert!(source(&datagen(Some(0), None), 0, 1).is_err());
    }
}
