//! The interface by which tasks create operators, without knowing any of them. The process implements it once and
//! passes it to the task runtime.

use std::fmt;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use tanist_ha::clock::Moment;
use tanist_model::OperatorSpec;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobGraph;

use super::{Built, OperatorContext, OperatorError};

/// Files that a job has released. Dropping this value removes those that nothing else uses, which may block.
pub type ReleasedFiles = Box<dyn Send>;

/// Creates the operators of a process's tasks, and holds what they have on this host per job: artifacts, and the
/// lease of programs.
#[async_trait]
pub trait OperatorFactory: fmt::Debug + Send + Sync + 'static {
    /// Returns the columns that an operator emits for the columns of its input; `None` for sinks.
    fn output_schema(
        &self,
        spec: &OperatorSpec,
        input: Option<&SchemaRef>,
    ) -> Result<Option<SchemaRef>, OperatorError>;

    /// Builds the operator of a specification. Touches no file: `open` does that.
    fn build(&self, spec: &OperatorSpec, context: &OperatorContext)
    -> Result<Built, OperatorError>;

    /// Whether an operator may use the job's artifacts, so that they must be fetched before it is opened.
    fn uses_artifacts(&self, spec: &OperatorSpec) -> bool;

    /// Fetches the job's uploaded artifacts, and keeps them until [`OperatorFactory::release_files`].
    async fn fetch_artifacts(&self, job: JobId, graph: &JobGraph) -> Result<(), OperatorError>;

    /// Sets until when the job's programs may run, even if this process hangs or ends. Without a call there is
    /// no limit.
    fn may_run_until(&self, job: JobId, ends: Moment);

    /// Removes that limit. No program of the job runs here or will run here.
    fn remove_limit(&self, job: JobId);

    /// Releases the files that are kept for a job of which no program runs here. `None` if there are none.
    fn release_files(&self, job: JobId) -> Option<ReleasedFiles>;
}
