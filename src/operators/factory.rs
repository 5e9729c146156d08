//! Which step is which operator.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use tanist_dataflow::{
    Built, OperatorContext, OperatorError, OperatorFactory, ReleasedFiles, Source,
};
use tanist_ha::clock::Moment;
#[cfg(not(feature = "sql"))]
use tanist_model::NEEDS_SQL;
use tanist_model::OperatorSpec;
use tanist_model::spec::Trigger;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobGraph;

use super::exec::{Exec, ExecSource};
use super::host::TaskHost;
#[cfg(feature = "sql")]
use super::projection;
use super::schema::output_schema;
use super::stdin_source::StdinSource;
use super::{
    aggregate, aggregate_all, custom, datagen, file_sink, file_source, filter, follow_files,
    format, parse, print, regex, socket_sink, socket_source, split_words, watermarks, windows,
};

/// The built-in steps and the custom operators of this process, with what its programs share on this host.
#[derive(Debug)]
pub struct Operators {
    host: Arc<TaskHost>,
}

impl Operators {
    /// Creates operators that use these services of the process.
    pub fn new(host: TaskHost) -> Operators {
        Operators {
            host: Arc::new(host),
        }
    }
}

#[async_trait]
impl OperatorFactory for Operators {
    fn output_schema(
        &self,
        spec: &OperatorSpec,
        input: Option<&SchemaRef>,
    ) -> Result<Option<SchemaRef>, OperatorError> {
        output_schema(spec, input)
    }

    fn build(
        &self,
        spec: &OperatorSpec,
        context: &OperatorContext,
    ) -> Result<Built, OperatorError> {
        build(spec, context, &self.host)
    }

    fn uses_artifacts(&self, spec: &OperatorSpec) -> bool {
        matches!(
            spec,
            OperatorSpec::Exec(_) | OperatorSpec::ExecSource(_) | OperatorSpec::ExecSink(_)
        )
    }

    async fn fetch_artifacts(&self, job: JobId, graph: &JobGraph) -> Result<(), OperatorError> {
        for artifact in &graph.artifacts {
            let fetching = self.host.artifacts.fetch(artifact, &*self.host.uploads);
            if let Some(held) = fetching.await? {
                self.host.kept_artifacts.keep(job, held);
            }
        }
        Ok(())
    }

    fn may_run_until(&self, job: JobId, ends: Moment) {
        self.host.leases.extend(job, ends);
    }

    fn remove_limit(&self, job: JobId) {
        self.host.leases.forget(job);
    }

    fn release_files(&self, job: JobId) -> Option<ReleasedFiles> {
        let files = self.host.kept_artifacts.let_go(job)?;
        Some(Box::new(files))
    }
}

/// Builds the operator of a specification. Touches no file: `open` does that.
pub(super) fn build(
    spec: &OperatorSpec,
    context: &OperatorContext,
    host: &Arc<TaskHost>,
) -> Result<Built, OperatorError> {
    if let OperatorSpec::Custom(spec) = spec {
        return custom::build(spec, context);
    }
    if let Some(source) = build_source(spec, context, host)? {
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
        OperatorSpec::Exec(spec) => Box::new(Exec::between(spec, context, host)),
        OperatorSpec::ExecSink(spec) => Box::new(Exec::sink(spec, context, host)),
        other => {
            let message = format!("{} can't be run here", other.kind());
            return Err(OperatorError::unavailable(message));
        }
    }))
}

fn build_source(
    spec: &OperatorSpec,
    context: &OperatorContext,
    host: &Arc<TaskHost>,
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
        OperatorSpec::StdinSource {} => Some(Box::new(StdinSource::new(context, host))),
        OperatorSpec::SocketSource(spec) => {
            Some(Box::new(socket_source::SocketSource::new(spec, context)))
        }
        OperatorSpec::ExecSource(spec) => Some(Box::new(ExecSource::new(spec, context, host))),
        _ => None,
    })
}
