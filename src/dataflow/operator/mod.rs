//! Operators: what a task does to its records. One trait for transformations and sinks, one for sources.
//!
//! Operators are synchronous and know neither tasks nor exchange: a call does a bounded piece of work, so that whoever calls
//! can yield and cancel between calls. [`Operator::open`] and [`PrepareCommit`] may block and run where blocking is allowed.
//! State lives in the operator's fields; snapshotting it will be two more methods here.

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

pub use external::{External, Standing};
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

/// What went wrong in an operator. Which operator and subtask it was is said by who called it.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The specification doesn't fit the records, or asks for what can't be. Unrecoverable.
    #[error("{0}")]
    Specification(String),
    /// What it needs is not here, or not at this moment: another TaskManager or a later attempt may have it.
    #[error("{0}")]
    Unavailable(String),
    /// What it was to read is not there, or can't be read by this process.
    #[error("{message}")]
    NoInput {
        /// What it is, on which host, and why not.
        message: String,
        /// Nobody ever saw it there.
        is_unrecoverable: bool,
    },
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
    /// What an operator of an application says. The restart strategy decides what follows.
    #[error(transparent)]
    Custom(Box<dyn std::error::Error + Send + Sync>),
    /// What an operator of an application says that no restart mends: the job fails at once.
    #[error(transparent)]
    Unrecoverable(Box<dyn std::error::Error + Send + Sync>),
    /// A program did not do what it was to do.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Its half at the JobMaster does not give it what it needs.
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

    /// Whether every further attempt would end the same way, so that the job fails at once. Where that is not certain, it is not
    /// so: a file may come back, a peer may listen, another TaskManager may run another version.
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
    /// Where it says that a peer of it is away.
    pub peers: Peers,
    /// The indices of the extended resources that are the task's own, by name.
    pub external_resources: Arc<BTreeMap<String, Vec<u64>>>,
    /// The way to the operator's half at the JobMaster; none where nobody carries questions there.
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

    /// Takes what is said about event time; most pass it on.
    fn signal(&mut self, signal: TimeSignal, output: &mut Output) -> Result<(), OperatorError> {
        output.signal(signal);
        Ok(())
    }

    /// Called now and then, and at the moment that the last call asked for.
    fn tick(
        &mut self,
        now: Instant,
        output: &mut Output,
    ) -> Result<Option<Instant>, OperatorError> {
        let _ = (now, output);
        Ok(None)
    }

    /// For an operator that hands records on to somebody else: while they don't take them, what tells that they have.
    fn without_room(&self) -> Option<Arc<Notify>> {
        None
    }

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
    /// Nothing before this is notified.
    WaitFor(Arc<Notify>),
    /// Nothing before [`Source::poll_ready`] says so.
    Pending,
    /// Nothing any more.
    End,
}

/// What a source that is asked to end does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It has ended: it is not asked for more.
    AtOnce,
    /// It goes on to [`SourceState::End`], which is near: what it has on the way is read before.
    Soon,
}

/// Where records come from. Polled by its task; a call reads or makes one bounded batch.
pub trait Source: Send {
    /// Called once before the first poll. May block.
    fn open(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    /// The next records.
    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError>;

    /// It is to end, as if there was nothing more. Called once.
    fn stop(&mut self) -> Stopped {
        Stopped::AtOnce
    }

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
