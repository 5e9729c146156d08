//! TaskManagers in one process, for the tests of the exchange and of tasks.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_gateway::fencing::{EpochGate, Refused};
use tanist_ha::clock::Moment;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_model::OperatorSpec;
use tanist_proto::id::JobId;
use tanist_proto::v1::{JobGraph, TaskManagerLocation};
use tokio::runtime::Handle;

use crate::operator::{Built, OperatorContext, OperatorError, OperatorFactory, ReleasedFiles};
use crate::task::TaskRuntime;
use crate::testing::{bind_exchange, start_many};

/// An epoch gate for tests: unlike [`tanist_gateway::fencing::HighestEpoch`] it does not wait for proof.
#[derive(Debug, Default)]
pub(crate) struct HighestEpochSeen(Mutex<Option<(ClusterIncarnation, Epoch)>>);

impl HighestEpochSeen {
    /// Records that the TaskManager's store shows this epoch.
    pub(crate) fn observe(
        &self,
        incarnation: &ClusterIncarnation,
        epoch: Epoch,
    ) -> Result<(), Refused> {
        let mut heard = self.0.lock();
        if let Some((known, highest)) = heard.clone() {
            if known != *incarnation {
                let offered = incarnation.clone();
                return Err(Refused::OtherCluster { offered, known });
            }
            if epoch < highest {
                let offered = epoch;
                return Err(Refused::Stale { offered, highest });
            }
        }
        *heard = Some((incarnation.clone(), epoch));
        Ok(())
    }
}

#[async_trait]
impl EpochGate for HighestEpochSeen {
    async fn admit(&self, incarnation: &ClusterIncarnation, epoch: Epoch) -> Result<(), Refused> {
        match self.highest() {
            Some((_, highest)) if epoch > highest => {
                Err(Refused::Unproven(format!("epoch {epoch} is not proven")))
            }
            // Tests that are about something else have no store.
            Some(_) | None => self.observe(incarnation, epoch),
        }
    }

    fn highest(&self) -> Option<(ClusterIncarnation, Epoch)> {
        self.0.lock().clone()
    }
}

/// A factory that has no operators.
#[derive(Debug)]
struct NoOperators;

fn no_operator() -> OperatorError {
    OperatorError::unavailable("there are no operators here")
}

#[async_trait]
impl OperatorFactory for NoOperators {
    fn output_schema(
        &self,
        _: &OperatorSpec,
        _: Option<&SchemaRef>,
    ) -> Result<Option<SchemaRef>, OperatorError> {
        Err(no_operator())
    }

    fn build(&self, _: &OperatorSpec, _: &OperatorContext) -> Result<Built, OperatorError> {
        Err(no_operator())
    }

    fn uses_artifacts(&self, _: &OperatorSpec) -> bool {
        false
    }

    async fn fetch_artifacts(&self, _: JobId, _: &JobGraph) -> Result<(), OperatorError> {
        Err(no_operator())
    }

    fn may_run_until(&self, _: JobId, _: Moment) {}

    fn remove_limit(&self, _: JobId) {}

    fn release_files(&self, _: JobId) -> Option<ReleasedFiles> {
        None
    }
}

/// The part of a TaskManager that runs tasks.
pub(crate) struct TaskManager {
    pub(crate) runtime: TaskRuntime,
    pub(crate) gate: Arc<HighestEpochSeen>,
    pub(crate) location: TaskManagerLocation,
}

impl TaskManager {
    pub(crate) async fn start(name: &str) -> TaskManager {
        TaskManager::start_with(name, NoOperators).await
    }

    pub(crate) async fn start_with(name: &str, operators: impl OperatorFactory) -> TaskManager {
        let gate = Arc::new(HighestEpochSeen::default());
        let (exchange, location) = bind_exchange(name, gate.clone()).await;
        TaskManager {
            runtime: TaskRuntime::new(Handle::current(), exchange, operators),
            gate,
            location,
        }
    }

    pub(crate) async fn start_many<const N: usize>() -> [TaskManager; N] {
        start_many(async |name| TaskManager::start(&name).await).await
    }
}
