//! Helpers for the operators' tests: an operator in a context, with its output collected.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{Field, Schema, SchemaRef};
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1::JobGraph;

use super::peers::Peers;
use super::{Built, EndOfInput, Operator, OperatorContext, OperatorError, Output, Source};
use crate::dataflow::host::{Lingering, TaskHost};
use crate::dataflow::record;
use crate::dataflow::time::TimeSignal;
use crate::job::OperatorSpec;

/// A batch of one text column.
pub(crate) fn texts(name: &str, values: &[&str]) -> RecordBatch {
    batch([(
        name,
        Arc::new(StringArray::from(values.to_vec())) as ArrayRef,
    )])
}

/// A column of integers.
pub(crate) fn ints(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// A batch without nullable columns.
pub(crate) fn batch<'a>(columns: impl IntoIterator<Item = (&'a str, ArrayRef)>) -> RecordBatch {
    let (fields, arrays): (Vec<_>, Vec<_>) = columns
        .into_iter()
        .map(|(name, array)| (Field::new(name, array.data_type().clone(), false), array))
        .unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("columns of one length")
}

/// A context of one subtask, without a graph.
pub(crate) fn context(subtask: u32, parallelism: u32) -> OperatorContext {
    OperatorContext {
        graph: Arc::new(JobGraph::default()),
        job: JobId::from_bits(1),
        vertex: JobVertexId::from_bits(2),
        subtask,
        parallelism,
        generation: Generation::new(1),
        input: None,
        output: None,
        host: Arc::new(TaskHost::without_programs()),
        lingering: Lingering::new().0,
        peers: Peers::default(),
        external_resources: Arc::default(),
        coordinator: None,
    }
}

/// Builds an operator for an input.
pub(crate) fn operator(
    spec: &OperatorSpec,
    input: SchemaRef,
) -> Result<Box<dyn Operator>, OperatorError> {
    let output = super::output_schema(spec, Some(&input))?;
    let context = OperatorContext {
        input: Some(input),
        output,
        ..context(0, 1)
    };
    match super::build(spec, &context)? {
        Built::Operator(operator) => Ok(operator),
        Built::Source(_) => panic!("{spec:?} is a source"),
    }
}

/// Returns the error of opening an operator, before any record; `None` if it opens.
pub(crate) fn not_opened(spec: &OperatorSpec, input: &RecordBatch) -> Option<String> {
    let mut built = operator(spec, input.schema()).expect("it fits its input");
    let failed = built.open().err()?;
    assert!(failed.is_unrecoverable(), "{failed}");
    Some(failed.to_string())
}

/// Builds a source.
pub(crate) fn source(
    spec: &OperatorSpec,
    subtask: u32,
    parallelism: u32,
) -> Result<Box<dyn Source>, OperatorError> {
    let output = super::output_schema(spec, None)?;
    let context = OperatorContext {
        output,
        ..context(subtask, parallelism)
    };
    match super::build(spec, &context)? {
        Built::Source(source) => Ok(source),
        Built::Operator(_) => panic!("{spec:?} is no source"),
    }
}

/// An operator and what it emitted.
pub(crate) struct Harness {
    operator: Box<dyn Operator>,
    emitted: Vec<RecordBatch>,
    dropped: Output,
}

impl Harness {
    pub(crate) fn new(spec: &OperatorSpec, input: &RecordBatch) -> Harness {
        let mut operator = operator(spec, input.schema()).expect("operator is built");
        operator.open().expect("operator opens");
        Harness {
            operator,
            emitted: Vec::new(),
            dropped: Output::default(),
        }
    }

    pub(crate) fn try_process(&mut self, batch: RecordBatch) -> Result<(), OperatorError> {
        let mut output = Output::default();
        self.operator.process(batch, &mut output)?;
        self.dropped.count(&output);
        self.emitted.extend(output.into_batches());
        Ok(())
    }

    pub(crate) fn process(&mut self, batch: RecordBatch) {
        self.try_process(batch).expect("batch is processed");
    }

    pub(crate) fn end(&mut self) {
        loop {
            let mut output = Output::default();
            let end = self.operator.end_input(&mut output).expect("input ends");
            self.emitted.extend(output.into_batches());
            if end == EndOfInput::Done {
                return;
            }
        }
    }

    /// Sends a watermark.
    pub(crate) fn watermark(&mut self, watermark: i64) {
        let mut output = Output::default();
        let signal = TimeSignal::Watermark(watermark);
        self.operator
            .signal(signal, &mut output)
            .expect("time is taken");
        self.dropped.count(&output);
        self.emitted.extend(output.into_batches());
    }

    /// Number of dropped records: late ones and skipped ones.
    pub(crate) fn dropped(&self) -> (u64, u64) {
        self.dropped.dropped()
    }

    /// All batches emitted so far.
    pub(crate) fn emitted(&self) -> &[RecordBatch] {
        &self.emitted
    }

    /// All records emitted so far, as lines. Checks that no batch is too long.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for batch in &self.emitted {
            assert!(batch.num_rows() <= record::BATCH_ROWS);
            record::write_lines(batch, "", &mut lines);
        }
        let text = String::from_utf8(lines).expect("columns are UTF-8");
        text.lines().map(str::to_owned).collect()
    }
}
