//! Helpers for the operators' tests: an operator in a context, with its output collected.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use tanist_dataflow::{
    Built, EndOfInput, Operator, OperatorContext, OperatorError, Output, Source, TimeSignal, record,
};
use tanist_model::OperatorSpec;

pub(crate) use tanist_dataflow::testing::{batch, context, ints, texts};

use crate::factory::build;
use crate::host::TaskHost;
use crate::schema::output_schema;

/// The services of a process that runs no programs.
pub(crate) fn host() -> Arc<TaskHost> {
    Arc::new(TaskHost::without_programs())
}

/// Builds an operator for an input.
pub(crate) fn operator(
    spec: &OperatorSpec,
    input: SchemaRef,
) -> Result<Box<dyn Operator>, OperatorError> {
    let output = output_schema(spec, Some(&input))?;
    let context = OperatorContext {
        input: Some(input),
        output,
        ..context(0, 1)
    };
    match build(spec, &context, &host())? {
        Built::Operator(operator) => Ok(operator),
        Built::Source(_) => panic!("{spec:?} is a source"),
    }
}

/// Returns the error of opening an operator, before any record; `None` if it opens.
#[cfg(feature = "sql")]
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
    let output = output_schema(spec, None)?;
    let context = OperatorContext {
        output,
        ..context(subtask, parallelism)
    };
    match build(spec, &context, &host())? {
        Built::Source(source) => Ok(source),
        Built::Operator(_) => panic!("{spec:?} is no source"),
    }
}

/// An operator and what it emitted.
pub(crate) struct Harness {
    operator: Box<dyn Operator>,
    emitted: Vec<RecordBatch>,
    /// Dropped records: late ones and skipped ones.
    dropped: (u64, u64),
}

impl Harness {
    pub(crate) fn new(spec: &OperatorSpec, input: &RecordBatch) -> Harness {
        let mut operator = operator(spec, input.schema()).expect("operator is built");
        operator.open().expect("operator opens");
        Harness {
            operator,
            emitted: Vec::new(),
            dropped: (0, 0),
        }
    }

    pub(crate) fn try_process(&mut self, batch: RecordBatch) -> Result<(), OperatorError> {
        let mut output = Output::default();
        self.operator.process(batch, &mut output)?;
        self.count(&output);
        self.emitted.extend(output.into_batches());
        Ok(())
    }

    fn count(&mut self, output: &Output) {
        let (late, skipped) = output.dropped();
        self.dropped.0 += late;
        self.dropped.1 += skipped;
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
        self.count(&output);
        self.emitted.extend(output.into_batches());
    }

    /// Number of dropped records: late ones and skipped ones.
    pub(crate) fn dropped(&self) -> (u64, u64) {
        self.dropped
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
