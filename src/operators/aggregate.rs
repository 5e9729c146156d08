//! Counts and sums by key.
//!
//! The state is a table from encoded key to result ([`StateTable`]). With [`Emit::Final`] results are emitted in pieces
//! at the end of the input; with [`Emit::Updates`] each record emits its key's new result.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use tanist_dataflow::record::{BATCH_BYTES, BATCH_ROWS, describe, show_record, type_name};
use tanist_dataflow::{
    Built, EndOfInput, KeyColumns, Operator, OperatorError, Output, Restored, Snapshot, StateKey,
    StateTable, TakenEntries,
};
use tanist_model::Emit;
use tanist_model::operators::{Count, Sum};

use super::accumulator::Cell;
use super::factory::{Runtime, Setup, operator};
use super::result_state::{RESULTS, read_cell, write_cell};
use super::schema::column_of;

impl Runtime for Count {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Aggregate::<i64>::new(setup, &self.keys, None, self.emit)?)
    }
}

impl Runtime for Sum {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        let (index, field) = column_of(setup.input()?, &self.column)?;
        match field.data_type() {
            DataType::Int64 => operator(Aggregate::<i64>::new(
                setup,
                &self.keys,
                Some(index),
                self.emit,
            )?),
            DataType::Float64 => operator(Aggregate::<f64>::new(
                setup,
                &self.keys,
                Some(index),
                self.emit,
            )?),
            other => Err(OperatorError::specification(format!(
                "column {:?} of type {} can't be added up: int64 or float64 is needed",
                self.column,
                type_name(other)
            ))),
        }
    }
}

/// A number type of results.
trait Number: Copy + Default + Send + Sync + 'static {
    /// What a count adds per record.
    const ONE: Self;
    /// Returns `None` on overflow.
    fn add(self, other: Self) -> Option<Self>;
    fn values(column: &ArrayRef) -> &[Self];
    fn array(values: Vec<Self>) -> ArrayRef;
    fn to_cell(self) -> Cell;
    /// Returns `None` if it is the result of another type.
    fn of_cell(cell: &Cell) -> Option<Self>;
}

impl Number for i64 {
    const ONE: i64 = 1;
    fn add(self, other: i64) -> Option<i64> {
        self.checked_add(other)
    }
    fn values(column: &ArrayRef) -> &[i64] {
        column.as_primitive::<Int64Type>().values()
    }
    fn array(values: Vec<i64>) -> ArrayRef {
        Arc::new(Int64Array::from(values))
    }
    fn to_cell(self) -> Cell {
        Cell::Int(self)
    }
    fn of_cell(cell: &Cell) -> Option<i64> {
        match cell {
            Cell::Int(number) => Some(*number),
            _ => None,
        }
    }
}

impl Number for f64 {
    const ONE: f64 = 1.0;
    fn add(self, other: f64) -> Option<f64> {
        Some(self + other)
    }
    fn values(column: &ArrayRef) -> &[f64] {
        column.as_primitive::<Float64Type>().values()
    }
    fn array(values: Vec<f64>) -> ArrayRef {
        Arc::new(Float64Array::from(values))
    }
    fn to_cell(self) -> Cell {
        Cell::Float(self)
    }
    fn of_cell(cell: &Cell) -> Option<f64> {
        match cell {
            Cell::Float(number) => Some(*number),
            _ => None,
        }
    }
}

/// All results: they are dropped together.
const NAMESPACE: i64 = 0;

struct Aggregate<N> {
    keys: KeyColumns,
    /// The column to sum; `None` counts records.
    column: Option<usize>,
    emit: Emit,
    output: SchemaRef,
    table: StateTable<N>,
    /// Results that are not emitted yet after the end of the input.
    results: Option<TakenEntries<N>>,
}

impl<N: Number> Aggregate<N> {
    fn new(
        setup: &Setup<'_>,
        keys: &[String],
        column: Option<usize>,
        emit: Option<Emit>,
    ) -> Result<Aggregate<N>, OperatorError> {
        let output = setup.output();
        // The signature of its saved state has the function, the key columns and the result.
        let function = match column {
            Some(_) => "sum",
            None => "count",
        };
        let signature = format!("{function} as {}", describe(&output));
        Ok(Aggregate {
            keys: KeyColumns::resolve(setup.input()?, keys)?,
            column,
            // A job graph states it.
            emit: emit.unwrap_or(Emit::Final),
            output,
            table: StateTable::new(
                RESULTS,
                signature,
                setup.key_groups(),
                |result: &N, bytes| {
                    write_cell(&result.to_cell(), bytes);
                },
            ),
            results: None,
        })
    }

    /// Adds each record to its key's result and passes the new result to `each`.
    fn add(&mut self, batch: &RecordBatch, mut each: impl FnMut(N)) -> Result<(), OperatorError> {
        let addends = self.column.map(|index| N::values(batch.column(index)));
        let mut keys = self.keys.keys_of(batch);
        let mut results = self.table.namespace_mut(NAMESPACE);
        for row in 0..batch.num_rows() {
            let addend = addends.map_or(N::ONE, |addends| addends[row]);
            let result = results.get_or_insert_with(keys.key(row), N::default);
            *result = result.add(addend).ok_or_else(|| OperatorError::Record {
                message: "the result overflows int64".to_owned(),
                record: show_record(batch, row),
            })?;
            each(*result);
        }
        Ok(())
    }
}

impl<N: Number> Operator for Aggregate<N> {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let keys = &self.keys;
        self.table.restore(restored, |entry| {
            keys.check(entry.key())?;
            let result = N::of_cell(&read_cell(entry.value())?);
            result.ok_or_else(|| "a result has another type".to_owned())
        })?;
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        self.table.freeze(snapshot);
        Ok(())
    }

    fn state_bytes(&self) -> Option<u64> {
        Some(self.table.memory())
    }

    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        match self.emit {
            Emit::Final => self.add(&batch, |_| {}),
            Emit::Updates => {
                let mut results = Vec::with_capacity(batch.num_rows());
                self.add(&batch, |result| results.push(result))?;
                let mut columns = self.keys.project(&batch);
                columns.push(N::array(results));
                output.emit(RecordBatch::try_new(Arc::clone(&self.output), columns)?);
                Ok(())
            }
        }
    }

    fn end_input(&mut self, output: &mut Output) -> Result<EndOfInput, OperatorError> {
        if self.emit == Emit::Updates {
            return Ok(EndOfInput::Done);
        }
        let table = &mut self.table;
        let results = self.results.get_or_insert_with(|| table.take(NAMESPACE));
        let (mut keys, mut values, mut bytes) = (Vec::new(), Vec::new(), 0);
        while keys.len() < BATCH_ROWS && bytes < BATCH_BYTES {
            let Some((key, value)) = results.next() else {
                break;
            };
            bytes += key.bytes().len();
            keys.push(key);
            values.push(value);
        }
        let end = if keys.is_empty() {
            EndOfInput::Done
        } else {
            EndOfInput::More
        };
        let mut columns = self.keys.decode(keys.iter().map(StateKey::bytes));
        columns.push(N::array(values));
        output.emit(RecordBatch::try_new(Arc::clone(&self.output), columns)?);
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::StringArray;

    use tanist_model::OperatorSpec;

    use super::*;
    use crate::testing::{self, Harness, batch, ints, texts};

    fn count_of(emit: Emit) -> OperatorSpec {
        Count {
            keys: vec!["word".into()],
            emit: Some(emit),
        }
        .into()
    }

    fn sum_of(emit: Emit) -> OperatorSpec {
        Sum {
            keys: vec!["k".into(), "w".into()],
            column: "v".into(),
            emit: Some(emit),
        }
        .into()
    }

    fn values(keys: &[i64], words: &[&str], values: ArrayRef) -> RecordBatch {
        let words: ArrayRef = Arc::new(StringArray::from(words.to_vec()));
        batch([("v", values), ("w", words), ("k", ints(keys))])
    }

    #[test]
    fn final_counts_come_once_at_the_end() {
        let input = texts("word", &["a", "b", "a"]);
        let mut harness = Harness::new(&count_of(Emit::Final), &input);
        harness.process(input.clone());
        harness.process(input);
        assert!(harness.lines().is_empty());
        harness.end();
        let mut lines = harness.lines();
        lines.sort();
        assert_eq!(lines, ["a 4", "b 2"]);
    }

    #[test]
    fn updates_answer_each_record() {
        let input = texts("word", &["a", "b", "a"]);
        let mut harness = Harness::new(&count_of(Emit::Updates), &input);
        harness.process(input);
        assert_eq!(harness.lines(), ["a 1", "b 1", "a 2"]);
        harness.end();
        assert_eq!(harness.lines().len(), 3);
    }

    #[test]
    fn sums_are_by_all_key_columns_and_in_the_columns_type() {
        let input = values(
            &[1, 1, 2, 1],
            &["a", "b", "a", "a"],
            ints(&[10, 20, 30, -4]),
        );
        let mut harness = Harness::new(&sum_of(Emit::Final), &input);
        harness.process(input);
        harness.end();
        let mut lines = harness.lines();
        lines.sort();
        assert_eq!(lines, ["1 a 6", "1 b 20", "2 a 30"]);

        let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.5, 0.25]));
        let input = values(&[1, 1], &["a", "a"], floats);
        let mut harness = Harness::new(&sum_of(Emit::Updates), &input);
        harness.process(input);
        assert_eq!(harness.lines(), ["1 a 0.5", "1 a 0.75"]);
    }

    #[test]
    fn an_overflow_names_the_record() {
        let input = values(&[1, 1], &["a", "a"], ints(&[i64::MAX, 1]));
        let mut harness = Harness::new(&sum_of(Emit::Final), &input);
        let error = harness.try_process(input).expect_err("overflow");
        assert_eq!(
            error.to_string(),
            "the result overflows int64, at record [1 a 1]"
        );
    }

    #[test]
    fn a_large_table_is_emitted_in_pieces() {
        let numbers: Vec<i64> = (0..20_000).collect();
        let input = batch([("word", ints(&numbers))]);
        let mut harness = Harness::new(&count_of(Emit::Final), &input);
        harness.process(input);
        harness.end();
        assert_eq!(harness.lines().len(), 20_000);
    }

    #[test]
    fn a_text_column_is_not_added_up() {
        let input = texts("v", &["a"]);
        let spec = Sum {
            keys: vec!["v".into()],
            column: "v".into(),
            emit: Some(Emit::Final),
        }
        .into();
        let error = testing::operator(&spec, input.schema())
            .err()
            .expect("refused");
        assert!(
            error.to_string().contains("column `v` is string"),
            "{error}"
        );
    }
}
