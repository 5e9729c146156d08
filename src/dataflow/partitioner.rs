//! Chooses the target subtask of each record on an edge and collects records into batches that are
//! large enough to send.
//!
//! Rows are chosen a batch at a time and copied once per target. A target's rows are buffered until
//! there are [`BATCH_ROWS`] or [`BATCH_BYTES`] of them, or until the task has nothing else to do. The
//! records of one target keep their input order.

use std::collections::VecDeque;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::{ArrowError, Schema};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use tanist_proto::v1::Partitioning;

use super::key::{KeyColumns, NoKeyColumn, key_group, subtask_of_group};
use super::record::{BATCH_BYTES, BATCH_ROWS, size_of};

/// Largest batch in bytes. A larger one is cut in two repeatedly, unless it is a single record.
const LARGEST_BATCH: usize = 4 * BATCH_BYTES;

/// Approximate memory in bytes that a batch, and each of its columns, takes besides its values. This is
/// significant when a batch is a single record.
const BESIDE_BATCH: usize = 128;
const BESIDE_COLUMN: usize = 256;

/// How targets are chosen.
#[derive(Debug)]
enum Selector {
    /// There is one target.
    Single,
    Hash {
        keys: KeyColumns,
        max_parallelism: u32,
    },
    /// `next` is the target of the next record.
    Rebalance {
        next: usize,
    },
    Broadcast,
    /// All records go to the first of several targets.
    Global,
}

/// Rows of one target that are buffered until there are more.
#[derive(Debug, Default)]
struct Waiting {
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    /// Bytes in memory, including the overhead of batches.
    buffered: usize,
}

/// The partitioner of one producing subtask of an edge.
#[derive(Debug)]
pub(super) struct Partitioner {
    selector: Selector,
    /// By target; a broadcast has one entry for all targets.
    waiting: Vec<Waiting>,
    targets: usize,
    /// Bytes of memory that are buffered, over all targets.
    buffered: usize,
    /// Batches to be sent, with their targets.
    ready: VecDeque<(usize, RecordBatch)>,
}

/// A target and a batch for it.
pub(super) type Outgoing = (usize, RecordBatch);

impl Partitioner {
    /// Creates the partitioner for an edge into `targets` subtasks; forward edges have one target.
    pub(super) fn new(
        partitioning: Partitioning,
        key_columns: &[String],
        schema: &Schema,
        targets: usize,
        max_parallelism: u32,
    ) -> Result<Partitioner, NoKeyColumn> {
        // Missing key columns are an error at any parallelism.
        let keys = KeyColumns::resolve(schema, key_columns)?;
        let selector = match partitioning {
            // First: with one target nothing is chosen, whatever the partitioning is.
            _ if targets <= 1 => Selector::Single,
            Partitioning::Forward | Partitioning::Unspecified => Selector::Single,
            Partitioning::Hash => Selector::Hash {
                keys,
                max_parallelism,
            },
            Partitioning::Rebalance => Selector::Rebalance { next: 0 },
            Partitioning::Broadcast => Selector::Broadcast,
            Partitioning::Global => Selector::Global,
        };
        let buffers = match selector {
            Selector::Single | Selector::Broadcast | Selector::Global => 1,
            Selector::Hash { .. } | Selector::Rebalance { .. } => targets,
        };
        let waiting = (0..buffers).map(|_| Waiting::default()).collect();
        Ok(Partitioner {
            selector,
            waiting,
            targets,
            buffered: 0,
            ready: VecDeque::new(),
        })
    }

    /// Sets the first target of a rebalancing subtask, so that subtasks start with different targets.
    pub(super) fn starting_at(mut self, target: usize) -> Partitioner {
        if let Selector::Rebalance { next } = &mut self.selector {
            *next = target % self.targets;
        }
        self
    }

    /// Distributes a batch to the targets.
    pub(super) fn add(&mut self, batch: RecordBatch) -> Result<(), ArrowError> {
        match &mut self.selector {
            Selector::Single | Selector::Broadcast | Selector::Global => self.put(0, batch),
            Selector::Hash {
                keys,
                max_parallelism,
            } => {
                let targets = u32::try_from(self.targets).unwrap_or(u32::MAX);
                // Most batches have about as many rows for each target.
                let share = batch.num_rows() / self.targets;
                let room = || Vec::with_capacity(share + share / 8);
                let mut rows: Vec<Vec<u32>> = (0..self.targets).map(|_| room()).collect();
                let mut keys = keys.keys_of(&batch);
                let all = u32::try_from(batch.num_rows())
                    .map_err(|e| ArrowError::from_external_error(Box::new(e)))?;
                for row in 0..all {
                    let group = key_group(keys.key(row as usize), *max_parallelism);
                    let target = subtask_of_group(group, targets, *max_parallelism);
                    rows[target as usize].push(row);
                }
                for (target, rows) in rows.into_iter().enumerate() {
                    if rows.len() == batch.num_rows() {
                        self.put(target, batch.clone())?;
                    } else if !rows.is_empty() {
                        let rows = UInt32Array::from(rows);
                        self.put(target, take_record_batch(&batch, &rows)?)?;
                    }
                }
                Ok(())
            }
            Selector::Rebalance { next } => {
                let (first, rows) = (*next, batch.num_rows());
                *next = (first + rows) % self.targets;
                // Runs of rows instead of single rows: equally even, and a slice needs no copy.
                let mut start = 0;
                for turn in 0..self.targets.min(rows) {
                    let end = rows * (turn + 1) / self.targets.min(rows);
                    let target = (first + turn) % self.targets;
                    self.put(target, batch.slice(start, end - start))?;
                    start = end;
                }
                Ok(())
            }
        }
    }

    fn put(&mut self, target: usize, batch: RecordBatch) -> Result<(), ArrowError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let (rows, bytes) = (batch.num_rows(), size_of(&batch));
        let waiting = &mut self.waiting[target];
        if waiting.rows + rows > BATCH_ROWS || waiting.bytes + bytes > LARGEST_BATCH {
            self.release(target)?;
        }
        let waiting = &mut self.waiting[target];
        waiting.rows += rows;
        waiting.bytes += bytes;
        let buffered = bytes + BESIDE_BATCH + BESIDE_COLUMN * batch.num_columns();
        waiting.buffered += buffered;
        self.buffered += buffered;
        waiting.batches.push(batch);
        // Half a batch is enough to send: the next input batch would rarely fill it exactly.
        if waiting.rows >= BATCH_ROWS / 2 || waiting.bytes >= BATCH_BYTES {
            self.release(target)?;
        }
        Ok(())
    }

    /// Moves the buffered rows of a target to `ready`.
    fn release(&mut self, target: usize) -> Result<(), ArrowError> {
        let Waiting {
            mut batches,
            buffered,
            ..
        } = std::mem::take(&mut self.waiting[target]);
        self.buffered -= buffered;
        let batch = match batches.len() {
            0 => return Ok(()),
            1 => batches.remove(0),
            _ => concat_batches(&batches[0].schema(), &batches)?,
        };
        for batch in cut(batch) {
            match self.selector {
                Selector::Broadcast => {
                    self.ready
                        .extend((0..self.targets).map(|target| (target, batch.clone())));
                }
                _ => self.ready.push_back((target, batch)),
            }
        }
        Ok(())
    }

    /// Moves the fullest targets' rows to `ready` until at most `most` bytes of memory are buffered.
    pub(super) fn limit(&mut self, most: usize) -> Result<(), ArrowError> {
        while self.buffered > most {
            let fullest =
                (0..self.waiting.len()).max_by_key(|target| self.waiting[*target].buffered);
            let Some(fullest) = fullest else { break };
            self.release(fullest)?;
        }
        Ok(())
    }

    /// Moves all buffered rows to `ready`.
    pub(super) fn flush(&mut self) -> Result<(), ArrowError> {
        (0..self.waiting.len()).try_for_each(|target| self.release(target))
    }

    /// Returns the next batch to send.
    pub(super) fn next_ready(&mut self) -> Option<Outgoing> {
        self.ready.pop_front()
    }
}

/// Cuts a batch that is too large.
fn cut(batch: RecordBatch) -> Vec<RecordBatch> {
    let rows = batch.num_rows();
    if rows <= 1 || (rows <= BATCH_ROWS && size_of(&batch) <= LARGEST_BATCH) {
        return vec![batch];
    }
    let half = rows / 2;
    let mut pieces = cut(batch.slice(0, half));
    pieces.extend(cut(batch.slice(half, rows - half)));
    pieces
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::record::write_lines;
    use crate::testing::{batch, ints, texts};

    fn partitioner(partitioning: Partitioning, targets: usize) -> Partitioner {
        let schema = numbers(0..1).schema();
        Partitioner::new(partitioning, &["k".to_owned()], &schema, targets, 128).expect("built")
    }

    fn numbers(range: std::ops::Range<i64>) -> RecordBatch {
        let seq: Vec<_> = range.clone().collect();
        let keys: Vec<_> = range.map(|n| n % 17).collect();
        batch([("seq", ints(&seq)), ("k", ints(&keys))])
    }

    fn taken(partitioner: &mut Partitioner) -> BTreeMap<usize, Vec<String>> {
        partitioner.flush().expect("flushed");
        let mut lines = BTreeMap::<usize, Vec<u8>>::new();
        while let Some((target, batch)) = partitioner.next_ready() {
            assert!(batch.num_rows() <= BATCH_ROWS);
            write_lines(&batch, "", lines.entry(target).or_default());
        }
        let texts = lines.into_iter().map(|(target, lines)| {
            (
                target,
                String::from_utf8_lossy(&lines)
                    .lines()
                    .map(str::to_owned)
                    .collect(),
            )
        });
        texts.collect()
    }

    fn sequence(lines: &[String]) -> Vec<i64> {
        lines
            .iter()
            .filter_map(|line| line.split(' ').next()?.parse().ok())
            .collect()
    }

    #[test]
    fn forward_and_global_have_one_target() {
        for (partitioning, targets) in [(Partitioning::Forward, 1), (Partitioning::Global, 3)] {
            let mut partitioner = partitioner(partitioning, targets);
            partitioner.add(numbers(0..5000)).expect("added");
            let taken = taken(&mut partitioner);
            assert_eq!(taken.keys().collect::<Vec<_>>(), [&0]);
            assert_eq!(sequence(&taken[&0]), (0..5000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_broadcast_gives_everything_to_everyone() {
        let mut partitioner = partitioner(Partitioning::Broadcast, 3);
        partitioner.add(numbers(0..10)).expect("added");
        let taken = taken(&mut partitioner);
        assert_eq!(taken.len(), 3);
        assert!(taken.values().all(|lines| lines.len() == 10));
    }

    #[test]
    fn a_missing_key_column_is_an_error() {
        let schema = texts("word", &[]).schema();
        let keys = ["k".to_owned()];
        assert!(Partitioner::new(Partitioning::Hash, &keys, &schema, 1, 128).is_err());
    }

    #[test]
    fn full_batches_go_without_a_flush_and_small_ones_wait() {
        let mut partitioner = partitioner(Partitioning::Global, 2);
        partitioner.add(numbers(0..10)).expect("added");
        assert!(partitioner.next_ready().is_none());
        partitioner.add(numbers(0..3000)).expect("added");
        assert_eq!(
            partitioner.next_ready().map(|(_, batch)| batch.num_rows()),
            Some(3010)
        );
    }

    #[test]
    fn of_what_waits_the_most_goes_first_when_it_is_too_much() {
        let mut partitioner = partitioner(Partitioning::Hash, 3);
        for seq in 0..100 {
            partitioner.add(numbers(seq..seq + 1)).expect("added");
        }
        let buffered = partitioner.buffered;
        partitioner.limit(buffered).expect("it is not too much");
        assert!(partitioner.next_ready().is_none());
        let fullest = partitioner.waiting.iter().map(|it| it.rows).max();
        partitioner.limit(buffered - 1).expect("released");
        let released = partitioner.next_ready().map(|(_, batch)| batch.num_rows());
        assert_eq!(released, fullest);
        assert!(partitioner.next_ready().is_none());
        partitioner.limit(0).expect("released");
        assert_eq!(partitioner.buffered, 0);
        let rest =
            std::iter::from_fn(|| partitioner.next_ready()).map(|(_, batch)| batch.num_rows());
        assert_eq!(released.unwrap_or(0) + rest.sum::<usize>(), 100);
    }

    #[test]
    fn a_batch_of_long_records_is_cut() {
        let long = "x".repeat(LARGEST_BATCH);
        let pieces = cut(texts("w", &[long.as_str(), long.as_str(), "y"]));
        assert_eq!(
            pieces.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(),
            [1, 1, 1]
        );
    }

    proptest! {
        #[test]
        fn hashing_sends_each_key_to_one_target_in_order(
            sizes in prop::collection::vec(0_i64..600, 1..6), targets in 1_usize..5,
        ) {
            let mut partitioner = partitioner(Partitioning::Hash, targets);
            let mut start = 0;
            for size in sizes {
                partitioner.add(numbers(start..start + size)).expect("added");
                start += size;
            }
            let mut owners = BTreeMap::new();
            let mut total = 0;
            for (target, lines) in taken(&mut partitioner) {
                prop_assert!(sequence(&lines).is_sorted());
                total += lines.len();
                for line in lines {
                    let key = line.split(' ').nth(1).unwrap_or("").to_owned();
                    prop_assert_eq!(*owners.entry(key).or_insert(target), target);
                }
            }
            prop_assert_eq!(total as i64, start);
        }

        #[test]
        fn rebalancing_is_even(
            sizes in prop::collection::vec(0_i64..50, 1..20), targets in 1_usize..5,
        ) {
            let mut partitioner = partitioner(Partitioning::Rebalance, targets).starting_at(7);
            let (mut start, batches) = (0, sizes.len());
            for size in sizes {
                partitioner.add(numbers(start..start + size)).expect("added");
                start += size;
            }
            let taken = taken(&mut partitioner);
            let counts: Vec<_> = taken.values().map(Vec::len).collect();
            prop_assert_eq!(counts.iter().sum::<usize>() as i64, start);
            let most = counts.iter().max().copied().unwrap_or(0);
            prop_assert!(most as i64 <= start / targets as i64 + batches as i64 + 1);
            if start >= targets as i64 * batches as i64 {
                prop_assert_eq!(counts.len(), targets);
            }
        }
    }
}
