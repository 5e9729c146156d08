//! Builds operators: each says itself how it runs ([`Runtime`]), and the list of `tanist_model::operators` finds it.
//! [`Operators`] is the factory of a process's task runtime; it owns what the operators share on the host.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use tanist_dataflow::{
    Built, KeyGroups, Operator, OperatorContext, OperatorError, OperatorFactory, ReleasedFiles,
    Source,
};
use tanist_ha::clock::Moment;
use tanist_model::{OperatorSpec, with_operator};
use tanist_proto::id::JobId;
use tanist_proto::v1::JobGraph;

use super::host::TaskHost;
use super::schema::output_schema;

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
        spec.uses_artifacts()
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

/// How an operator runs, implemented by its part of the [`OperatorSpec`] beside the code that runs it.
pub(super) trait Runtime {
    /// Builds the operator. Touches no file: `open` does that.
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError>;
}

/// What an operator is built with.
#[derive(Debug)]
pub(super) struct Setup<'a> {
    /// Its subtask.
    pub(super) context: &'a OperatorContext,
    /// What the process provides.
    pub(super) host: &'a Arc<TaskHost>,
}

impl Setup<'_> {
    /// The columns of its input.
    pub(super) fn input(&self) -> Result<&SchemaRef, OperatorError> {
        let input = self.context.input.as_ref();
        input.ok_or_else(|| OperatorError::specification("it needs an input and has none"))
    }

    /// The key groups of its subtask.
    pub(super) fn key_groups(&self) -> KeyGroups {
        KeyGroups::of(self.context)
    }

    /// The columns of its output.
    pub(super) fn output(&self) -> SchemaRef {
        self.context.output_schema()
    }
}

/// Builds the operator of a specification. Touches no file: `open` does that.
pub(super) fn build(
    spec: &OperatorSpec,
    context: &OperatorContext,
    host: &Arc<TaskHost>,
) -> Result<Built, OperatorError> {
    let setup = Setup { context, host };
    if !spec.is_source() {
        setup.input()?;
    }
    with_operator!(spec, operator => operator.build(&setup))
}

/// The built source.
pub(super) fn source(source: impl Source + 'static) -> Result<Built, OperatorError> {
    Ok(Built::Source(Box::new(source)))
}

/// The built operator.
pub(super) fn operator(operator: impl Operator + 'static) -> Result<Built, OperatorError> {
    Ok(Built::Operator(Box::new(operator)))
}
