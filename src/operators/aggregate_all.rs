//! Several aggregates by key over the whole input: emits each key's results at the end of the input, or the new
//! ones after each record.

use arrow_array::RecordBatch;
use tanist_dataflow::record::{BATCH_BYTES, BATCH_ROWS};
use tanist_dataflow::{
    Built, EndOfInput, Operator, OperatorError, Output, Restored, Snapshot, StateKey, StateTable,
    TakenEntries,
};
use tanist_model::operators::{Aggregate, Trigger};

use super::accumulator::{Accumulator, Cells};
use super::factory::{Runtime, Setup, operator};
use super::result_state::{RESULTS, read_cells, write_cells};
use super::windows::WindowAggregate;

impl Runtime for Aggregate {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        let input = setup.input()?;
        let accumulator = Accumulator::new(input, self, setup.output(), setup.key_groups())?;
        match &self.trigger {
            Some(Trigger::Window(windows)) => {
                operator(WindowAggregate::new(input, windows, accumulator)?)
            }
            Some(Trigger::Updates) => operator(AggregateAll::new(accumulator, true)),
            // A job graph states a trigger.
            Some(Trigger::Final) | None => operator(AggregateAll::new(accumulator, false)),
        }
    }
}

/// Results by namespace and encoded key.
pub(super) type Table = StateTable<Cells>;

/// All results: they are dropped together.
const NAMESPACE: i64 = 0;

pub(super) struct AggregateAll {
    accumulator: Accumulator,
    updates: bool,
    table: Table,
    /// Results that are not emitted yet after the end of the input.
    results: Option<TakenEntries<Cells>>,
}

impl AggregateAll {
    pub(super) fn new(accumulator: Accumulator, updates: bool) -> AggregateAll {
        let signature = accumulator.signature().to_owned();
        AggregateAll {
            table: table_of(&accumulator, signature),
            accumulator,
            updates,
            results: None,
        }
    }
}

/// A table for the results of these functions.
pub(super) fn table_of(accumulator: &Accumulator, signature: String) -> Table {
    let groups = accumulator.key_groups();
    StateTable::new(RESULTS, signature, groups, |cells: &Cells, bytes| {
        write_cells(cells, bytes);
    })
}

/// Puts the saved results of each key into a table. `check` says what is wrong with a namespace.
pub(super) fn restore(
    table: &mut Table,
    accumulator: &Accumulator,
    restored: &Restored<'_>,
    check: impl Fn(i64) -> Result<(), String> + Sync,
) -> Result<(), OperatorError> {
    let (keys, results) = (&accumulator.keys, accumulator.results());
    table.restore(restored, |entry| {
        check(entry.namespace())?;
        keys.check(entry.key())?;
        read_cells(entry.value(), results)
    })?;
    Ok(())
}

impl Operator for AggregateAll {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        restore(&mut self.table, &self.accumulator, restored, |_| Ok(()))
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        self.table.freeze(snapshot);
        Ok(())
    }

    fn state_bytes(&self) -> Option<u64> {
        Some(self.table.memory())
    }

    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let views = self.accumulator.views(&batch);
        let mut keys = self.accumulator.keys.keys_of(&batch);
        let mut builders = self.accumulator.builders();
        let (mut first, rows) = (0, batch.num_rows());
        let mut results = self.table.namespace_mut(NAMESPACE);
        for row in 0..rows {
            let accumulator = &self.accumulator;
            let cells = results.get_or_insert_with(keys.key(row), || accumulator.empty());
            self.accumulator.add(cells, &views, (&batch, row))?;
            if !self.updates {
                continue;
            }
            Accumulator::append(&mut builders, cells);
            let next = row + 1;
            if next == rows || Accumulator::text_bytes(&builders) >= BATCH_BYTES {
                let made = std::mem::replace(&mut builders, self.accumulator.builders());
                let answered = batch.slice(first, next - first);
                let columns = self.accumulator.keys.project(&answered);
                output.emit(self.accumulator.batch(columns, made)?);
                first = next;
            }
        }
        Ok(())
    }

    fn end_input(&mut self, output: &mut Output) -> Result<EndOfInput, OperatorError> {
        if self.updates {
            return Ok(EndOfInput::Done);
        }
        let table = &mut self.table;
        let results = self.results.get_or_insert_with(|| table.take(NAMESPACE));
        let mut builders = self.accumulator.builders();
        let (mut keys, mut bytes) = (Vec::new(), 0);
        while keys.len() < BATCH_ROWS && bytes + Accumulator::text_bytes(&builders) < BATCH_BYTES {
            let Some((key, cells)) = results.next() else {
                break;
            };
            bytes += key.bytes().len();
            keys.push(key);
            Accumulator::append(&mut builders, &cells);
        }
        let end = match keys.is_empty() {
            true => EndOfInput::Done,
            false => EndOfInput::More,
        };
        let columns = self
            .accumulator
            .keys
            .decode(keys.iter().map(StateKey::bytes));
        output.emit(self.accumulator.batch(columns, builders)?);
        Ok(end)
    }
}

#[cfg(test)]
#[path = "aggregate_all_tests.rs"]
mod tests;
