//! Operators: the processing of records in a task. One trait for transformations and sinks, one for sources.
//!
//! Operators are synchronous and know neither tasks nor exchange: each call does a bounded piece of work, so
//! that the caller can yield and cancel between calls. [`Operator::open`] and [`PrepareCommit`] may block and
//! run where blocking is allowed. State lives in the operator's fields; snapshotting it will be two more
//! methods here.

mod accumulator;
mod aggregate;
mod aggregate_all;
#[cfg(feature = "sql")]
mod constants;
mod csv;
pub mod custom;
mod datagen;
mod exec;
#[cfg(feature = "sql")]
mod expression;
mod external;
mod file_sink;
mod file_source;
mod file_splits;
mod filter;
mod follow_files;
mod format;
mod hasher;
mod input;
mod json;
mod lines;
mod output;
mod parse;
pub mod peers;
mod print;
mod printer;
#[cfg(feature = "sql")]
mod projection;
mod reading;
mod regex;
mod schema;
mod socket_sink;
mod socket_source;
mod split_words;
mod stdin_source;
mod values;
mod watermarks;
mod windows;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1::{Committable, JobGraph};
use tokio::sync::Notify;
use tokio::time::Instant;

pub use external::{External, ExternalStatus};
pub use file_source::matching_files;
pub use input::Look;
pub use output::Output;
pub use schema::output_schema;

use self::peers::Peers;
use super::coordination::CoordinatorLine;
use super::exec::program::ProgramError;
use super::host::{Lingering, TaskHost};
use super::key::NoKeyColumn;
use super::sink::SinkError;
use super::time::TimeSignal;
use crate::job::OperatorSpec;
#[cfg(not(feature = "sql"))]
use crate::job::expression::NEEDS_SQL;
use crate::job::spec::Trigger;

/// Error of an operator. The caller adds which operator and subtask it was.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The specification doesn't fit the records, or asks for something impossible. Unrecoverable.
    #[error("{0}")]
    Specification(String),
    /// A resource is not available here, or not at this moment: another TaskManager or a later attempt may have
    /// it.
    #[error("{0}")]
    Unavailable(String),
    /// Its input does not exist, or this process can't read it.
    #[error("{message}")]
    NoInput {
        /// Names the input, the host and the reason.
        message: String,
        /// No attempt ever saw the input there.
        is_unrecoverable: bool,
    },
    /// One record can't be processed.
    #[error("{message}, at record [{record}]")]
    Record {
        /// The error in the record.
        message: String,
        /// The record, shortened.
        record: String,
    },
    /// A file operation failed.
    #[error("can't {action} {path:?}: {source}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The sink's directory can't be used.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A batch does not match its schema.
    #[error("malformed batch: {0}")]
    Arrow(#[from] ArrowError),
    /// A key column is missing.
    #[error(transparent)]
    Key(#[from] NoKeyColumn),
    /// Error of an application's operator. The restart strategy applies.
    #[error(transparent)]
    Custom(Box<dyn std::error::Error + Send + Sync>),
    /// Error of an application's operator that a restart can't fix: the job fails at once.
    #[error(transparent)]
    Unrecoverable(Box<dyn std::error::Error + Send + Sync>),
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Its coordinator at the JobMaster does not answer its requests.
    #[error("its coordinator does not answer: {0}")]
    Coordinator(String),
}

impl OperatorError {
    pub(super) fn specification(message: impl Into<String>) -> OperatorError {
        OperatorError::Specification(message.into())
    }

    pub(super) fn unavailable(message: impl Into<String>) -> OperatorError {
        OperatorError::Unavailable(message.into())
    }

    /// Whether every further attempt would end the same way, so that the job fails at once. If that is not
    /// certain, it is false: a file may come back, a peer may accept connections, another TaskManager may run
    /// another version.
    pub fn is_unrecoverable(&self) -> bool {
        match self {
            OperatorError::Specification(_)
            | OperatorError::Key(_)
            | OperatorError::Unrecoverable(_) => true,
            OperatorError::Sink(error) => error.is_unrecoverable(),
            OperatorError::Program(error) => error.is_unrecoverable(),
            OperatorError::NoInput {
                is_unrecoverable, ..
            } => *is_unrecoverable,
            OperatorError::Unavailable(_)
            | OperatorError::Record { .. }
            | OperatorError::Io { .. }
            | OperatorError::Arrow(_)
            | OperatorError::Custom(_)
            | OperatorError::Coordinator(_) => false,
        }
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
    /// Index of this subtask.
    pub subtask: u32,
    /// Number of the vertex's subtasks.
    pub parallelism: u32,
    /// The attempt.
    pub generation: Generation,
    /// The columns of its input; `None` for sources.
    pub input: Option<SchemaRef>,
    /// The columns of its output; `None` for sinks.
    pub output: Option<SchemaRef>,
    /// Services of the process for its tasks.
    pub host: Arc<TaskHost>,
    /// Held by work that may outlive the task's future.
    pub lingering: Lingering,
    /// Where it reports that one of its peers is unreachable.
    pub peers: Peers,
    /// Indices of the extended resources that the task may use, by resource name.
    pub external_resources: Arc<BTreeMap<String, Vec<u64>>>,
    /// The connection to the operator's coordinator at the JobMaster; `None` if nothing transports requests.
    pub coordinator: Option<CoordinatorLine>,
}

impl OperatorContext {
    fn output_schema(&self) -> SchemaRef {
        self.output
            .clone()
            .unwrap_or_else(|| Arc::new(arrow_schema::Schema::empty()))
    }
}

/// Whether an operator has more to emit after its input's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOfInput {
    /// Call again.
    More,
    /// All was emitted.
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

    /// Receives an event-time signal; most operators pass it on.
    fn signal(&mut self, signal: TimeSignal, output: &mut Output) -> Result<(), OperatorError> {
        output.signal(signal);
        Ok(())
    }

    /// Called from time to time, and at the time that the last call returned.
    fn tick(
        &mut self,
        now: Instant,
        output: &mut Output,
    ) -> Result<Option<Instant>, OperatorError> {
        let _ = (now, output);
        Ok(None)
    }

    /// For an operator that passes records to another process: if its buffer is full, returns the signal that
    /// there is room again.
    fn without_room(&self) -> Option<Arc<Notify>> {
        None
    }

    /// Called after the last batch, repeatedly while it returns [`EndOfInput::More`]; each call emits a bounded
    /// piece.
    fn end_input(&mut self, output: &mut Output) -> Result<EndOfInput, OperatorError> {
        let _ = output;
        Ok(EndOfInput::Done)
    }

    /// The part that works outside of these calls; `None` if there is none.
    fn external(&mut self) -> Option<&mut dyn External> {
        None
    }

    /// Called after the input's end: the work to do before the task counts as finished.
    fn prepare_commit(&mut self) -> Option<PrepareCommit> {
        None
    }

    /// Called last, and only when the task finishes. A task that fails or is cancelled drops its operators.
    fn close(&mut self) {}
}

/// Result of polling a source.
#[derive(Debug)]
pub enum SourceState {
    /// Records.
    Batch(RecordBatch),
    /// Nothing before this time.
    Wait(Instant),
    /// Nothing before this is notified.
    WaitFor(Arc<Notify>),
    /// Nothing before [`Source::poll_ready`] is ready.
    Pending,
    /// The end.
    End,
}

/// How a source reacts to a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It has ended and is not polled again.
    AtOnce,
    /// It continues to [`SourceState::End`] soon; records that it has in progress are read before that.
    Soon,
}

/// A source of records. Its task polls it; a call reads or creates one bounded batch.
pub trait Source: Send {
    /// Called once before the first poll. May block.
    fn open(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    /// Returns the next records.
    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError>;

    /// Stops the source as if there were no more records. Called once.
    fn stop(&mut self) -> Stopped {
        Stopped::AtOnce
    }

    /// After [`SourceState::Pending`]: ready when the source must be polled again.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Ready(())
    }

    /// Called last, and only when the task finishes.
    fn close(&mut self) {}
}

/// An operator built from its specification.
pub enum Built {
    /// The first of a chain without input.
    Source(Box<dyn Source>),
    /// Any other.
    Operator(Box<dyn Operator>),
}

/// Builds the operator of a specification. Touches no file: `open` does that.
pub fn build(spec: &OperatorSpec, context: &OperatorContext) -> Result<Built, OperatorError> {
    if let OperatorSpec::Custom(spec) = spec {
        return custom::build(spec, context);
    }
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
        spec if spec.is_source() => {
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
            return Err(OperatorError::unavailable(NEEDS_SQL));
        }
        OperatorSpec::Count { keys, emit } => aggregate::count(&input, keys, *emit, output)?,
        OperatorSpec::Sum { keys, column, emit } => {
            aggregate::sum(&input, keys, column, *emit, output)?
        }
        OperatorSpec::Print { prefix } => Box::new(print::Print::new(prefix)),
        OperatorSpec::FileSink { path } => Box::new(file_sink::FileSink::new(path, context)),
        OperatorSpec::Discard {} => Box::new(print::Discard::default()),
        OperatorSpec::ParseJson(spec) => Box::new(parse::json(&input, spec, output)?),
        OperatorSpec::ParseCsv(spec) => Box::new(parse::csv(&input, spec, output)?),
        OperatorSpec::FlatMapRegex(spec) => {
            Box::new(regex::FlatMapRegex::new(&input, spec, output)?)
        }
        OperatorSpec::FormatJson {} => Box::new(format::json(&input, output)),
        OperatorSpec::FormatCsv(spec) => Box::new(format::csv(spec.separator, output)),
        OperatorSpec::Watermarks(spec) => Box::new(watermarks::Watermarks::new(&input, spec)?),
        OperatorSpec::Aggregate(spec) => match &spec.trigger {
            Trigger::Final => Box::new(aggregate_all::AggregateAll::new(
                &input, spec, false, output,
            )?),
            Trigger::Updates => Box::new(aggregate_all::AggregateAll::new(
                &input, spec, true, output,
            )?),
            Trigger::Window(window) => {
                Box::new(windows::WindowAggregate::new(&input, spec, window, output)?)
            }
        },
        OperatorSpec::SocketSink(spec) => {
            Box::new(socket_sink::SocketSink::new(&spec.address, &context.peers))
        }
        OperatorSpec::Exec(spec) => Box::new(exec::Exec::between(spec, context)),
        OperatorSpec::ExecSink(spec) => Box::new(exec::Exec::sink(spec, context)),
        other => {
            let message = format!("{} can't be run here", other.kind());
            return Err(OperatorError::unavailable(message));
        }
    }))
}

fn build_source(
    spec: &OperatorSpec,
    context: &OperatorContext,
) -> Result<Option<Box<dyn Source>>, OperatorError> {
    Ok(match spec {
        OperatorSpec::FileSource { .. } => Some(Box::new(file_source::FileSource::new(context)?)),
        OperatorSpec::Datagen {
            rate,
            count,
            seed,
            keys,
        } => Some(Box::new(datagen::Datagen::new(
            *rate, *count, *seed, *keys, context,
        )?)),
        OperatorSpec::FollowFiles(spec) => {
            Some(Box::new(follow_files::FollowFiles::new(spec, context)))
        }
        OperatorSpec::StdinSource {} => Some(Box::new(stdin_source::StdinSource::new(context))),
        OperatorSpec::SocketSource(spec) => {
            Some(Box::new(socket_source::SocketSource::new(spec, context)))
        }
        OperatorSpec::ExecSource(spec) => Some(Box::new(exec::ExecSource::new(spec, context))),
        _ => None,
    })
}

#[cfg(test)]
pub(super) mod testing;
