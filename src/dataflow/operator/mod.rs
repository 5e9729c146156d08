//! Operators: what a task does to its records. One trait for transformations and sinks, one for sources.
//!
//! Operators are synchronous and know neither tasks nor exchange: a call does a bounded piece of work, so that whoever calls
//! can yield and cancel between calls. [`Operator::open`] and [`PrepareCommit`] may block and run where blocking is allowed.
//! State lives in the operator's fields; snapshotting it will be two more methods here.

mod aggregate;
mod datagen;
mod exec;
#[cfg(feature = "sql")]
mod expression;
mod external;
mod file_sink;
mod file_source;
mod filter;
mod hasher;
mod print;
#[cfg(feature = "sql")]
mod projection;
mod schema;
mod split_words;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1::{Committable, JobGraph};
use tokio::time::Instant;

pub use external::{External, Standing};
pub use schema::output_schema;

use super::exec::program::ProgramError;
use super::host::{Lingering, TaskHost};
use super::key::NoKeyColumn;
use super::sink::SinkError;
use crate::job::OperatorSpec;
#[cfg(not(feature = "sql"))]
use crate::job::expression::NEEDS_SQL;

/// What went wrong in an operator. Which operator and subtask it was is said by who called it.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The specification doesn't fit the records, or asks for what can't be.
    #[error("{0}")]
    Specification(String),
    /// One record can't be processed.
    #[error("{message}, at record [{record}]")]
    Record {
        /// What is wrong with it.
        message: String,
        /// The record, shortened.
        record: String,
    },
    /// A file can't be used.
    #[error("can't {action} {path:?}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The sink's directory can't be used.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A batch is not what its schema says.
    #[error("malformed batch: {0}")]
    Arrow(#[from] ArrowError),
    /// A key column is missing.
    #[error(transparent)]
    Key(#[from] NoKeyColumn),
    /// A program did not do what it was to do.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl OperatorError {
    pub(super) fn specification(message: impl Into<String>) -> OperatorError {
        OperatorError::Specification(message.into())
    }

    pub(super) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
        source: io::Error,
    ) -> OperatorError {
        OperatorError::Io {
            action,
            path: path.into(),
            source,
        }
    }
}

/// Where an operator runs.
#[derive(Debug, Clone)]
pub struct OperatorContext {
    /// The whole graph.
    pub graph: Arc<JobGraph>,
    /// The job.
    pub job: JobId,
    /// The vertex that the operator is part of.
    pub vertex: JobVertexId,
    /// Which of the vertex's subtasks this is.
    pub subtask: u32,
    /// How many there are.
    pub parallelism: u32,
    /// The attempt.
    pub generation: Generation,
    /// The columns of its input; none for sources.
    pub input: Option<SchemaRef>,
    /// The columns of its output; none for sinks.
    pub output: Option<SchemaRef>,
    /// What the process gives to its tasks.
    pub host: Arc<TaskHost>,
    /// Held by what goes on for a moment when the task's code has ended.
    pub lingering: Lingering,
}

impl OperatorContext {
    fn output_schema(&self) -> SchemaRef {
        self.output
            .clone()
            .unwrap_or_else(|| Arc::new(arrow_schema::Schema::empty()))
    }
}

/// What an operator emits in one call.
#[derive(Debug, Default)]
pub struct Output {
    batches: Vec<RecordBatch>,
}

impl Output {
    /// Hands a batch on; an empty one vanishes.
    pub fn emit(&mut self, batch: RecordBatch) {
        if batch.num_rows() > 0 {
            self.batches.push(batch);
        }
    }

    /// Whether nothing was emitted.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// What was emitted, in order.
    pub fn into_batches(self) -> Vec<RecordBatch> {
        self.batches
    }
}

/// Whether an operator has more to emit after its input's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOfInput {
    /// Call again.
    More,
    /// That was all.
    Done,
}

/// What a sink does once its input has ended, so that its output can be made visible later. May block.
pub type PrepareCommit = Box<dyn FnOnce() -> Result<Vec<Committable>, OperatorError> + Send>;

/// A transformation or sink.
pub trait Operator: Send {
    /// Called once before the first batch. May block.
    fn open(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    /// Processes one batch.
    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError>;

    /// Called after the last batch, again as long as it answers [`EndOfInput::More`]; each call emits a bounded piece.
    fn end_input(&mut self, output: &mut Output) -> Result<EndOfInput, OperatorError> {
        let _ = output;
        Ok(EndOfInput::Done)
    }

    /// What works outside of these calls; none if nothing does.
    fn external(&mut self) -> Option<&mut dyn External> {
        None
    }

    /// Called after the input's end: what has to be done before the task counts as finished.
    fn prepare_commit(&mut self) -> Option<PrepareCommit> {
        None
    }

    /// Called last, and only when the task finishes; a task that fails or is cancelled drops its operators.
    fn close(&mut self) {}
}

/// What a source has when it is asked.
#[derive(Debug)]
pub enum SourceState {
    /// Records.
    Batch(RecordBatch),
    /// Nothing before this time.
    Wait(Instant),
    /// Nothing before [`Source::poll_ready`] says so.
    Pending,
    /// Nothing any more.
    End,
}

/// Where records come from. Polled by its task; a call reads or makes one bounded batch.
pub trait Source: Send {
    /// Called once before the first poll. May block.
    fn open(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    /// The next records.
    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError>;
    /// After [`SourceState::Pending`]: ready when it is to be asked again.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Ready(())
    }

    /// Called last, and only when the task finishes.
    fn close(&mut self) {}
}

/// An operator as its specification says.
pub enum Built {
    /// The first of a chain that has no input.
    Source(Box<dyn Source>),
    /// Any other.
    Operator(Box<dyn Operator>),
}

/// Builds what a specification describes. Touches no file: that is `open`'s.
pub fn build(spec: &OperatorSpec, context: &OperatorContext) -> Result<Built, OperatorError> {
    if let Some(source) = build_source(spec, context)? {
        return Ok(Built::Source(source));
    }
    let Some(input) = context.input.clone() else {
        return Err(OperatorError::specification(
            "it needs an input and has none",
        ));
    };
    let output = context.output_schema();
    Ok(Built::Operator(match spec {
        OperatorSpec::FileSource { .. }
        | OperatorSpec::Datagen { .. }
        | OperatorSpec::ExecSource(_) => {
            return Err(OperatorError::specification("a source takes no input"));
        }
        OperatorSpec::SplitWords { column } => {
            Box::new(split_words::SplitWords::new(&input, column, output)?)
        }
        OperatorSpec::Filter { column, op, value } => {
            Box::new(filter::Filter::new(&input, column, *op, value)?)
        }
        #[cfg(feature = "sql")]
        OperatorSpec::Where { condition } => Box::new(projection::Where::new(&input, condition)?),
        #[cfg(feature = "sql")]
        OperatorSpec::Map { columns } | OperatorSpec::Project { columns } => {
            Box::new(projection::Projection::new(&input, columns, output)?)
        }
        #[cfg(not(feature = "sql"))]
        OperatorSpec::Where { .. } | OperatorSpec::Map { .. } | OperatorSpec::Project { .. } => {
            return Err(OperatorError::specification(NEEDS_SQL));
        }
        OperatorSpec::Count { keys, emit } => aggregate::count(&input, keys, *emit, output)?,
        OperatorSpec::Sum { keys, column, emit } => {
            aggregate::sum(&input, keys, column, *emit, output)?
        }
        OperatorSpec::Print { prefix } => Box::new(print::Print::stdout(prefix)),
        OperatorSpec::FileSink { path } => Box::new(file_sink::FileSink::new(path, context)),
        OperatorSpec::Discard {} => Box::new(print::Discard::default()),
        OperatorSpec::Exec(spec) => Box::new(exec::Exec::between(spec, context)),
        OperatorSpec::ExecSink(spec) => Box::new(exec::Exec::sink(spec, context)),
    }))
}

fn build_source(
    spec: &OperatorSpec,
    context: &OperatorContext,
) -> Result<Option<Box<dyn Source>>, OperatorError> {
    Ok(match spec {
        OperatorSpec::FileSource { paths } => Some(Box::new(file_source::FileSource::new(
            paths.clone(),
            context,
        ))),
        OperatorSpec::Datagen {
            rate,
            count,
            seed,
            keys,
        } => Some(Box::new(datagen::Datagen::new(
            *rate, *count, *seed, *keys, context,
        )?)),
        OperatorSpec::ExecSource(spec) => Some(Box::new(exec::ExecSource::new(spec, context))),
        _ => None,
    })
}

#[cfg(test)]
pub(super) mod testing;
