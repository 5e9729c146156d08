//! Generates records. They depend only on the seed, not on the parallelism or on time.
//!
//! Subtask i of n generates the records with sequence numbers i, i + n, i + 2n and so on. A rate applies to all
//! subtasks together: each follows the clock independently from its first poll on, and catches up at most one
//! second. A restored subtask follows it from then on, and makes up for nothing.
//!
//! At another parallelism a subtask gets the positions of all, and all subtasks divide them in the same way: from the
//! highest next number on they generate as above. What some had left below it are ranges, each of which goes to one
//! subtask, which generates it at once.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::SchemaRef;
use tanist_dataflow::{
    Built, OperatorContext, OperatorError, Restored, Snapshot, Source, SourceState,
};
use tanist_model::operators;
use tanist_proto::v1::{DatagenPosition, DatagenRange};
use tokio::time::Instant;

use super::factory::{Runtime, Setup, source};
use super::faults::{Fault, is_planted};

/// Signature of its saved position.
pub(super) const SIGNATURE: &str = "datagen";
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
    subtask: u64,
    /// Number of subtasks.
    step: u64,
    /// Sequence numbers that come first: what was left when the parallelism changed.
    rest: VecDeque<DatagenRange>,
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
            subtask: u64::from(context.subtask),
            step: u64::from(context.parallelism.max(1)),
            rest: VecDeque::new(),
            next: u64::from(context.subtask),
            anchor: None,
            output: context.output_schema(),
        })
    }

    /// Takes its share of what the subtasks of another parallelism had left.
    fn divide(&mut self, positions: Vec<DatagenPosition>) {
        let of = |position: &DatagenPosition, end| DatagenRange {
            next: position.next,
            step: position.step,
            end,
        };
        let steps: BTreeSet<u64> = positions.iter().map(|it| it.step).collect();
        let step = steps.first().map_or(1, |step| (*step).max(1));
        let residues: BTreeSet<u64> = positions.iter().map(|it| it.next % step).collect();
        // If each residue has a position, the subtasks together generate every number from the highest next one on.
        // Otherwise a subtask has ended: all that the others have left up to the end is divided as ranges.
        let is_whole = steps.len() == 1 && residues.len() as u64 == step;
        let mut end = self.end;
        self.next = end;
        if is_whole {
            let highest = positions.iter().map(|it| it.next).max();
            end = highest.unwrap_or(end);
            let behind = (self.subtask + self.step - end % self.step) % self.step;
            self.next = end.saturating_add(behind);
        }
        let left = positions.iter().map(|it| of(it, end));
        let rest = positions.iter().flat_map(|it| it.rest.iter().copied());
        let rest = left.chain(rest).filter(|range| range.next < range.end);
        let mut rest: Vec<DatagenRange> = rest.collect();
        rest.sort_unstable_by_key(|range| (range.next, range.step, range.end));
        let numbered = (0_u64..).zip(rest);
        let own = numbered.filter(|(number, _)| number % self.step == self.subtask);
        self.rest = own.map(|(_, range)| range).collect();
    }

    /// Makes the next records of what was left; `None` if nothing is.
    fn make_rest(&mut self) -> Result<Option<RecordBatch>, OperatorError> {
        while let Some(range) = self.rest.front().copied() {
            let end = range.end.min(self.end);
            if range.next >= end {
                self.rest.pop_front();
                continue;
            }
            let (batch, next) = self.make(range.next, range.step.max(1), end)?;
            if let Some(range) = self.rest.front_mut() {
                range.next = next;
            }
            return Ok(Some(batch));
        }
        Ok(None)
    }

    /// Makes the next records before this number.
    fn make_next(&mut self, before: u64) -> Result<RecordBatch, OperatorError> {
        let (batch, next) = self.make(self.next, self.step, before)?;
        self.next = next;
        Ok(batch)
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

    /// Makes records from a number on, in steps, and returns the number that follows.
    fn make(&self, next: u64, step: u64, before: u64) -> Result<(RecordBatch, u64), OperatorError> {
        let rows = before.saturating_sub(next).div_ceil(step).min(ROWS);
        let sequence = (0..rows).map(|row| next + row * step);
        let columns = vec![
            column(sequence.clone()),
            column(
                sequence
                    .clone()
                    .map(|it| below(self.keys, draw(self.seed, 2 * it))),
            ),
            column(sequence.map(|it| below(VALUES, draw(self.seed, 2 * it + 1)))),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&self.output), columns)?;
        Ok((batch, next.saturating_add(rows * step)))
    }
}

fn column(numbers: impl Iterator<Item = u64>) -> ArrayRef {
    let numbers: Vec<i64> = numbers.map(u64::cast_signed).collect();
    Arc::new(Int64Array::from(numbers))
}

/// A number from zero up to this limit: the share of it that a random number is of 2^64, which takes no division.
/// (Lemire, Fast random integer generation in an interval, 2019.)
fn below(limit: u64, random: u64) -> u64 {
    let product = u128::from(random) * u128::from(limit);
    u64::try_from(product >> 64).expect("less than the limit")
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
        let positions: Vec<DatagenPosition> = restored.position_messages(SIGNATURE)?;
        match &*positions {
            [] => {}
            [own] if own.step == self.step => {
                self.next = own.next;
                self.rest = own.rest.iter().copied().collect();
            }
            _ => self.divide(positions),
        }
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let repeats = is_planted(Fault::RecordEmittedTwiceAtReplay) && self.next >= self.step;
        let position = DatagenPosition {
            next: self.next - if repeats { self.step } else { 0 },
            step: self.step,
            rest: self.rest.iter().copied().collect(),
        };
        snapshot.save_position_message(SIGNATURE, &position);
        Ok(())
    }

    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError> {
        if let Some(batch) = self.make_rest()? {
            return Ok(SourceState::Batch(batch));
        }
        if self.next >= self.end {
            return Ok(SourceState::End);
        }
        let Some(rate) = self.rate else {
            return Ok(SourceState::Batch(self.make_next(self.end)?));
        };
        let due = self.due(rate, now).min(self.end);
        if due <= self.next {
            return Ok(SourceState::Wait(self.due_at(rate, now)));
        }
        Ok(SourceState::Batch(self.make_next(due)?))
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
