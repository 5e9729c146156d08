//! `map`, `project` and `filter: { where: ... }`: expressions evaluated batch by batch.
//!
//! A batch that can't be processed as a whole is halved repeatedly, down to the failing record, which fails the
//! task and is named in the error. So a batch whose texts together are too long for one column is emitted in
//! pieces.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Field, Schema, SchemaRef};
use arrow_select::filter::filter_record_batch;
use tanist_dataflow::record::{BATCH_BYTES, show_record, size_of};
use tanist_dataflow::{Built, Operator, OperatorError, Output};
use tanist_model::{NamedExpression, operators};

use super::expression::Expression;
use super::factory::{Runtime, Setup, operator};

impl Runtime for operators::Map {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Projection::new(setup, &self.columns)?)
    }
}

impl Runtime for operators::Project {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Projection::new(setup, &self.columns)?)
    }
}

impl Runtime for operators::Where {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Where::new(setup.input()?, &self.condition))
    }
}

/// Computes columns.
struct Projection {
    input: SchemaRef,
    expressions: Vec<NamedExpression>,
    output: SchemaRef,
    /// One per column of the output, once opened.
    columns: Vec<Column>,
}

enum Column {
    /// The input's column with this index.
    Kept(usize),
    Computed {
        name: String,
        by: Expression,
    },
}

impl Projection {
    /// Output columns without an expression are copied from the input, and so are those that an expression
    /// keeps.
    fn new(
        setup: &Setup<'_>,
        expressions: &[NamedExpression],
    ) -> Result<Projection, OperatorError> {
        Ok(Projection {
            input: Arc::clone(setup.input()?),
            expressions: expressions.to_vec(),
            output: setup.output(),
            columns: Vec::new(),
        })
    }

    fn compute(&self, batch: &RecordBatch) -> Result<RecordBatch, String> {
        let columns = self.columns.iter().map(|column| match column {
            Column::Kept(index) => Ok(Arc::clone(batch.column(*index))),
            Column::Computed { name, by } => by
                .evaluate_non_null(batch)
                .map_err(|problem| format!("column `{name}`: {problem}")),
        });
        let columns: Vec<ArrayRef> = columns.collect::<Result<_, String>>()?;
        RecordBatch::try_new(Arc::clone(&self.output), columns).map_err(|error| error.to_string())
    }
}

fn column_of(
    field: &Field,
    expressions: &[NamedExpression],
    input: &SchemaRef,
) -> Result<Column, OperatorError> {
    let expression = expressions.iter().find(|it| it.name == *field.name());
    if let Some(it @ NamedExpression { name, expression }) = expression {
        // If the graph says that a kept column has no nulls but the input may have them, the values must be
        // checked.
        let is_kept = it.keeps() && {
            let (_, kept) = super::schema::column_of(input, name)?;
            field.is_nullable() || !kept.is_nullable()
        };
        if !is_kept {
            return Ok(Column::Computed {
                name: name.clone(),
                by: Expression::column(expression, input, &format!("column `{name}`"))?,
            });
        }
    }
    let (index, _) = super::schema::column_of(input, field.name())?;
    Ok(Column::Kept(index))
}

impl Operator for Projection {
    fn open(&mut self) -> Result<(), OperatorError> {
        let (input, expressions) = (&self.input, &self.expressions);
        let fields = self.output.fields().iter();
        self.columns = fields
            .map(|field| column_of(field, expressions, input))
            .collect::<Result<_, _>>()?;
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let limit = size_of(&batch).max(BATCH_BYTES);
        let emit = |batch| emit_bounded(batch, limit, output);
        in_pieces(batch, &|batch| self.compute(batch), emit)
    }
}

/// Passes on records for which a condition is true, not those for which it is false or null.
struct Where {
    input: Arc<Schema>,
    text: String,
    condition: Option<Expression>,
}

impl Where {
    fn new(input: &SchemaRef, text: &str) -> Where {
        Where {
            input: Arc::clone(input),
            text: text.to_owned(),
            condition: None,
        }
    }

    fn select(&self, batch: &RecordBatch) -> Result<RecordBatch, String> {
        let condition = self.condition.as_ref().ok_or("it was not opened")?;
        let in_where = |problem: String| format!("`where`: {problem}");
        let values = condition.evaluate(batch).map_err(in_where)?;
        let holds = values
            .as_boolean_opt()
            .ok_or("its condition is no condition")?;
        if holds.true_count() == batch.num_rows() {
            return Ok(batch.clone());
        }
        filter_record_batch(batch, holds).map_err(|error| error.to_string())
    }
}

impl Operator for Where {
    fn open(&mut self) -> Result<(), OperatorError> {
        self.condition = Some(Expression::condition(&self.text, &self.input, "`where`")?);
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        in_pieces(batch, &|batch| self.select(batch), |batch| {
            output.emit(batch)
        })
    }
}

/// Applies `work` to a batch, or else to its halves.
fn in_pieces(
    batch: RecordBatch,
    work: &impl Fn(&RecordBatch) -> Result<RecordBatch, String>,
    mut emit: impl FnMut(RecordBatch),
) -> Result<(), OperatorError> {
    let mut pieces = vec![batch];
    while let Some(piece) = pieces.pop() {
        match (work(&piece), piece.num_rows()) {
            (Ok(done), _) => emit(done),
            (Err(message), 0 | 1) => {
                let record = match piece.num_rows() {
                    0 => String::new(),
                    _ => show_record(&piece, 0),
                };
                return Err(OperatorError::Record { message, record });
            }
            (Err(_), rows) => {
                let half = rows / 2;
                pieces.push(piece.slice(half, rows - half));
                pieces.push(piece.slice(0, half));
            }
        }
    }
    Ok(())
}

/// Emits a batch in pieces of at most `limit` bytes, or of one record.
fn emit_bounded(batch: RecordBatch, limit: usize, output: &mut Output) {
    let mut pieces = vec![batch];
    while let Some(piece) = pieces.pop() {
        let rows = piece.num_rows();
        if rows <= 1 || size_of(&piece) <= limit {
            output.emit(piece);
        } else {
            pieces.push(piece.slice(rows / 2, rows - rows / 2));
            pieces.push(piece.slice(0, rows / 2));
        }
    }
}

#[cfg(test)]
#[path = "projection_tests.rs"]
mod tests;
