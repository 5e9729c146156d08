//! How the Dispatcher starts, asks and ends the JobMaster of a job, without knowing what it is.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_proto::v1 as pb;

use super::{GatewayResult, JobMasterGateway};

/// Starts JobMasters within a term.
pub trait JobMasterLauncher: Send + Sync + fmt::Debug + 'static {
    /// Starts the JobMaster of a job whose graph and state are persisted. `recovered`: an earlier term had it.
    fn launch(
        &self,
        graph: pb::JobGraph,
        state: pb::JobState,
        recovered: bool,
    ) -> Arc<dyn JobMasterControl>;
}

/// A started JobMaster, as its Dispatcher sees it.
#[async_trait]
pub trait JobMasterControl: Send + Sync + fmt::Debug + 'static {
    /// What TaskExecutors talk to.
    fn gateway(&self) -> Arc<dyn JobMasterGateway>;
    /// Persists that the job is to be canceled, then cancels it. `Conflict` if it has ended.
    async fn cancel(&self) -> GatewayResult<()>;
    /// The job in full.
    async fn describe(&self) -> GatewayResult<pb::JobDetails>;
    /// Completes with the result (dirty) when the job is globally terminal; it writes nothing any more then. `None`: it
    /// stopped with its term.
    async fn ended(&self) -> Option<pb::JobResult>;
    /// The result is in the store: lets go of TaskExecutors and slots, and ends.
    async fn result_written(&self);
    /// The term is over: forgets everything, telling nobody.
    async fn stop(&self);
}
