//! Several aggregates by key over the whole input: emits each key's results at the end of the input, or the new
//! ones after each record.

use std::collections::HashMap;
use std::collections::hash_map::IntoIter;

use arrow_array::RecordBatch;
use tanist_dataflow::record::{BATCH_BYTES, BATCH_ROWS};
use tanist_dataflow::{
    Built, EndOfInput, Operator, OperatorError, Output, Restored, Snapshot, StateError,
};
use tanist_model::operators::{Aggregate, Trigger};

use super::accumulator::{Accumulator, Cells};
use super::factory::{Runtime, Setup, operator};
use super::hasher::KeyHashing;
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

/// Results by encoded key.
pub(super) type Table = HashMap<Box<[u8]>, Cells, KeyHashing>;

pub(super) struct AggregateAll {
    accumulator: Accumulator,
    updates: bool,
    table: Table,
    /// Results that are not emitted yet after the end of the input.
    results: Option<IntoIter<Box<[u8]>, Cells>>,
}

impl AggregateAll {
    pub(super) fn new(accumulator: Accumulator, updates: bool) -> AggregateAll {
        AggregateAll {
            accumulator,
            updates,
            table: Table::default(),
            results: None,
        }
    }
}

/// Returns the results of a key in a table; creates them if necessary.
pub(super) fn cells_of<'t>(
    table: &'t mut Table,
    key: &[u8],
    accumulator: &Accumulator,
) -> &'t mut Cells {
    // Two lookups cost less than copying each key.
    if !table.contains_key(key) {
        table.insert(key.into(), accumulator.empty());
    }
    table
        .get_mut(key)
        .expect("it was put in if it was not there")
}

/// Saves the results of all keys, with their namespaces.
pub(super) fn save<'t>(
    tables: impl Iterator<Item = (i64, &'t Table)>,
    signature: &str,
    accumulator: &Accumulator,
    snapshot: &mut Snapshot,
) -> Result<(), StateError> {
    let entries = tables.flat_map(|(namespace, table)| {
        let entries = table.iter();
        entries.map(move |(key, cells)| (namespace, &**key, &**cells))
    });
    let groups = accumulator.key_groups();
    snapshot.save_entries(RESULTS, signature, groups, entries, write_cells)
}

/// Puts the saved results of each key into the table of their namespace.
pub(super) fn load(
    restored: &Restored<'_>,
    signature: &str,
    accumulator: &Accumulator,
    mut put: impl FnMut(i64, Box<[u8]>, Cells),
) -> Result<(), StateError> {
    let groups = accumulator.key_groups();
    restored.entries(RESULTS, signature, groups, |namespace, key, cells| {
        put(
            namespace,
            key.into(),
            read_cells(cells, accumulator.results())?,
        );
        Ok(())
    })
}

impl Operator for AggregateAll {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let (table, accumulator) = (&mut self.table, &self.accumulator);
        load(
            restored,
            accumulator.signature(),
            accumulator,
            |_, key, cells| {
                table.insert(key, cells);
            },
        )?;
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let table = std::iter::once((0, &self.table));
        let accumulator = &self.accumulator;
        save(table, accumulator.signature(), accumulator, snapshot)?;
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let views = self.accumulator.views(&batch);
        let mut keys = self.accumulator.keys.keys_of(&batch);
        let mut builders = self.accumulator.builders();
        let (mut first, rows) = (0, batch.num_rows());
        for row in 0..rows {
            let cells = cells_of(&mut self.table, keys.key(row), &self.accumulator);
            self.accumulator.add(cells, &views, (&batch, row))?;
            if !self.updates {
                continue;
            }
            Accumulator::append(&mut builders, cells);
            let next = row + 1;
            if next == rows || Accumulator::text_bytes(&builders) >= BATCH_BYTES {
                let results = std::mem::replace(&mut builders, self.accumulator.builders());
                let answered = batch.slice(first, next - first);
                let columns = self.accumulator.keys.project(&answered);
                output.emit(self.accumulator.batch(columns, results)?);
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
        let results = self
            .results
            .get_or_insert_with(|| std::mem::take(table).into_iter());
        let mut builders = self.accumulator.builders();
        let (mut keys, mut bytes) = (Vec::new(), 0);
        while keys.len() < BATCH_ROWS && bytes + Accumulator::text_bytes(&builders) < BATCH_BYTES {
            let Some((key, cells)) = results.next() else {
                break;
            };
            bytes += key.len();
            keys.push(key);
            Accumulator::append(&mut builders, &cells);
        }
        let end = match keys.is_empty() {
            true => EndOfInput::Done,
            false => EndOfInput::More,
        };
        let columns = self.accumulator.keys.decode(keys.iter().map(AsRef::as_ref));
        output.emit(self.accumulator.batch(columns, builders)?);
        Ok(end)
    }
}

#[cfg(test)]
#[path = "aggregate_all_tests.rs"]
mod tests;
