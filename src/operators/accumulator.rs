//! State of an aggregation for a key, and its conversion to result columns.
//!
//! The operators own the cells of each key in their tables (`aggregate_all.rs`, `windows.rs`); an [`Accumulator`] has
//! none. Aggregated columns have no nulls: the check of the job refuses others. An integer result that overflows is an
//! error that names the record.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Schema, SchemaRef};
use tanist_dataflow::record::{ColumnView, describe, show_record, type_name};
use tanist_dataflow::{KeyColumns, KeyGroups, OperatorError};
use tanist_model::operators::{Aggregate, AggregateFunction};

use super::schema::column_of;
use super::values::{ColumnBuilder, Value};

/// State of one result of one key.
#[derive(Debug, Clone)]
pub(super) enum Cell {
    /// No record so far.
    Empty,
    Int(i64),
    Float(f64),
    Text(Box<str>),
    /// Exact sum of integers, and their number.
    IntMean(i128, i64),
    FloatMean(f64, i64),
}

impl Cell {
    fn result(&self) -> Value<'_> {
        match self {
            Cell::Empty => Value::Null,
            Cell::Int(number) => Value::Int(*number),
            Cell::Float(number) => Value::Float(*number),
            Cell::Text(text) => Value::Text(Cow::Borrowed(text)),
            Cell::IntMean(sum, count) => Value::Float(*sum as f64 / *count as f64),
            Cell::FloatMean(sum, count) => Value::Float(sum / *count as f64),
        }
    }
}

/// All results of a key.
pub(super) type Cells = Box<[Cell]>;

struct Function {
    function: AggregateFunction,
    /// `None` for a count.
    column: Option<usize>,
}

/// The aggregate functions that are computed per key.
pub(super) struct Accumulator {
    pub(super) keys: KeyColumns,
    functions: Vec<Function>,
    output: SchemaRef,
    signature: String,
    key_groups: KeyGroups,
}

impl Accumulator {
    pub(super) fn new(
        input: &Schema,
        spec: &Aggregate,
        output: SchemaRef,
        key_groups: KeyGroups,
    ) -> Result<Accumulator, OperatorError> {
        let keys = KeyColumns::resolve(input, &spec.keys)?;
        let functions = spec.aggregations.iter().map(|aggregation| {
            let column = aggregation.column.as_ref();
            let column = column.map(|column| column_of(input, column)).transpose()?;
            Ok(Function {
                function: aggregation.function,
                column: column.map(|(index, _)| index),
            })
        });
        Ok(Accumulator {
            signature: signature(input, spec, &keys)?,
            key_groups,
            keys,
            functions: functions.collect::<Result<_, OperatorError>>()?,
            output,
        })
    }

    /// Signature of its saved state: the functions with their columns, and the key columns.
    pub(super) fn signature(&self) -> &str {
        &self.signature
    }

    /// The key groups of its subtask.
    pub(super) fn key_groups(&self) -> KeyGroups {
        self.key_groups
    }

    /// Number of results of a key.
    pub(super) fn results(&self) -> usize {
        self.functions.len()
    }

    /// Initial state of a key.
    pub(super) fn empty(&self) -> Cells {
        vec![Cell::Empty; self.functions.len()].into()
    }

    /// Returns the columns of a batch that the functions read.
    pub(super) fn views<'b>(&self, batch: &'b RecordBatch) -> Vec<Option<ColumnView<'b>>> {
        let columns = self.functions.iter().map(|function| function.column);
        columns
            .map(|column| ColumnView::of(batch.column(column?)))
            .collect()
    }

    /// Adds a record to a key's results.
    pub(super) fn add(
        &self,
        cells: &mut [Cell],
        views: &[Option<ColumnView<'_>>],
        (batch, row): (&RecordBatch, usize),
    ) -> Result<(), OperatorError> {
        let functions = cells.iter_mut().zip(&self.functions).zip(views);
        for (index, ((cell, function), view)) in functions.enumerate() {
            let added = function.add(cell, view.as_ref(), row);
            added.ok_or_else(|| OperatorError::Record {
                message: format!("the result `{}` overflows int64", self.result(index)),
                record: show_record(batch, row),
            })?;
        }
        Ok(())
    }

    /// Name of a result.
    fn result(&self, index: usize) -> &str {
        let fields = self.output.fields();
        fields[fields.len() - self.functions.len() + index].name()
    }

    /// Creates builders for the result columns.
    pub(super) fn builders(&self) -> Vec<ColumnBuilder> {
        let fields = self.output.fields();
        let results = fields.iter().skip(fields.len() - self.functions.len());
        results
            .map(|field| ColumnBuilder::new(field.data_type()))
            .collect()
    }

    /// Bytes of text in the results so far. It limits the size of a batch, since each record's result may be a
    /// long text.
    pub(super) fn text_bytes(builders: &[ColumnBuilder]) -> usize {
        builders.iter().map(ColumnBuilder::text_bytes).sum()
    }

    /// Appends a key's results.
    pub(super) fn append(builders: &mut [ColumnBuilder], cells: &[Cell]) {
        for (builder, cell) in builders.iter_mut().zip(cells) {
            builder.append(&cell.result());
        }
    }

    /// Builds the batch of these columns, followed by the results.
    pub(super) fn batch(
        &self,
        mut columns: Vec<ArrayRef>,
        mut builders: Vec<ColumnBuilder>,
    ) -> Result<RecordBatch, OperatorError> {
        columns.extend(builders.iter_mut().map(ColumnBuilder::finish));
        Ok(RecordBatch::try_new(Arc::clone(&self.output), columns)?)
    }
}

fn signature(input: &Schema, spec: &Aggregate, keys: &KeyColumns) -> Result<String, OperatorError> {
    let mut functions = Vec::new();
    for aggregation in &spec.aggregations {
        let name = aggregation.function.name();
        functions.push(match &aggregation.column {
            Some(column) => {
                let (_, field) = column_of(input, column)?;
                format!("{name}({column}: {})", type_name(field.data_type()))
            }
            None => name.to_owned(),
        });
    }
    let functions = functions.join(", ");
    let keys: Schema = Schema::new(keys.fields().cloned().collect::<Vec<_>>());
    Ok(format!("{functions} by {}", describe(&keys)))
}

impl Function {
    /// Returns `None` if the result overflows.
    fn add(&self, cell: &mut Cell, view: Option<&ColumnView<'_>>, row: usize) -> Option<()> {
        use AggregateFunction::{Average, Count, Max, Min, Sum};
        match (self.function, view) {
            (Count, _) | (_, None) => add_int(cell, 1)?,
            (Sum, Some(ColumnView::Int64(array))) => add_int(cell, array.value(row))?,
            (Sum, Some(ColumnView::Float64(array))) => {
                let sum = match cell {
                    Cell::Float(sum) => *sum,
                    _ => 0.0,
                };
                *cell = Cell::Float(sum + array.value(row));
            }
            (Average, Some(ColumnView::Int64(array))) => {
                let value = i128::from(array.value(row));
                *cell = match cell {
                    Cell::IntMean(sum, count) => Cell::IntMean(*sum + value, *count + 1),
                    _ => Cell::IntMean(value, 1),
                };
            }
            (Average, Some(ColumnView::Float64(array))) => {
                let value = array.value(row);
                *cell = match cell {
                    Cell::FloatMean(sum, count) => Cell::FloatMean(*sum + value, *count + 1),
                    _ => Cell::FloatMean(value, 1),
                };
            }
            (Min | Max, Some(ColumnView::Int64(array))) => self.keep_int(cell, array.value(row)),
            (Min | Max, Some(ColumnView::Timestamp(array))) => {
                self.keep_int(cell, array.value(row));
            }
            (Min | Max, Some(ColumnView::Float64(array))) => {
                let value = unsigned_nan(array.value(row));
                let better = match cell {
                    Cell::Float(kept) => self.is_better(value.total_cmp(kept)),
                    _ => true,
                };
                if better {
                    *cell = Cell::Float(value);
                }
            }
            (Min | Max, Some(ColumnView::Text(array))) => {
                let value = array.value(row);
                let better = match cell {
                    Cell::Text(kept) => self.is_better(value.cmp(kept)),
                    _ => true,
                };
                if better {
                    *cell = Cell::Text(value.into());
                }
            }
            // The check of the job refuses these.
            (
                Sum | Average,
                Some(ColumnView::Text(_) | ColumnView::Bool(_) | ColumnView::Timestamp(_)),
            )
            | (Min | Max, Some(ColumnView::Bool(_))) => {}
        }
        Some(())
    }

    fn keep_int(&self, cell: &mut Cell, value: i64) {
        let better = match cell {
            Cell::Int(kept) => self.is_better(value.cmp(kept)),
            _ => true,
        };
        if better {
            *cell = Cell::Int(value);
        }
    }

    /// Whether a value that compares to the kept one in this order replaces it.
    fn is_better(&self, order: Ordering) -> bool {
        match self.function {
            AggregateFunction::Min => order == Ordering::Less,
            _ => order == Ordering::Greater,
        }
    }
}

/// Maps every NaN to the one that is greater than all other numbers. The sign of a NaN depends on the processor
/// and on how it was computed.
fn unsigned_nan(number: f64) -> f64 {
    if number.is_nan() { f64::NAN } else { number }
}

fn add_int(cell: &mut Cell, value: i64) -> Option<()> {
    let sum = match cell {
        Cell::Int(sum) => sum.checked_add(value)?,
        _ => value,
    };
    *cell = Cell::Int(sum);
    Some(())
}
