//! The traits by which the Dispatcher starts, queries and ends the JobMaster of a job, without depending on its
//! implementation. The JobMaster owns the job's state. A request to change the job returns when its decision is
//! durable, or with an error.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::{GatewayResult, JobMasterGateway};

/// Starts JobMasters within a term.
pub trait JobMasterLauncher: Send + Sync + fmt::Debug + 'static {
    /// Starts the JobMaster of a job whose graph and state are persisted. `recovered`: an earlier term led the job.
    fn launch(
        &self,
        graph: pb::JobGraph,
        state: pb::JobState,
        recovered: bool,
    ) -> Arc<dyn JobMasterControl>;
}

/// Outcome for the tasks that a recovered JobMaster's record had placed. Times in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Adoption {
    /// Tasks that continue unchanged, or that ended while there was no leader.
    pub tasks_adopted: u32,
    /// Tasks that were placed and whose region had to be restarted.
    pub tasks_restarted: u32,
    /// Time at which the first task was adopted.
    pub first_adopted_at_ms: Option<u64>,
    /// Time at which the last task was adopted.
    pub last_adopted_at_ms: Option<u64>,
}

impl Adoption {
    /// Combines the adoptions of two jobs.
    pub fn and(self, other: Adoption) -> Adoption {
        let first = self
            .first_adopted_at_ms
            .into_iter()
            .chain(other.first_adopted_at_ms);
        Adoption {
            tasks_adopted: self.tasks_adopted.saturating_add(other.tasks_adopted),
            tasks_restarted: self.tasks_restarted.saturating_add(other.tasks_restarted),
            first_adopted_at_ms: first.min(),
            last_adopted_at_ms: self.last_adopted_at_ms.max(other.last_adopted_at_ms),
        }
    }
}

/// How much a JobMaster says of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// All that is known.
    Full,
    /// For a list of jobs: of the checkpoints only the last complete one, and of each of its vertices the subtask that
    /// waited longest for barriers.
    Brief,
}

/// A started JobMaster, as the Dispatcher uses it.
#[async_trait]
pub trait JobMasterControl: Send + Sync + fmt::Debug + 'static {
    /// The gateway for TaskExecutors.
    fn gateway(&self) -> Arc<dyn JobMasterGateway>;
    /// Persists the request to cancel the job, then cancels it. `Conflict` if it has ended.
    async fn cancel(&self) -> GatewayResult<()>;
    /// Persists the request to end the job's sources, then ends them. `Conflict` if the job ends in another way.
    async fn stop_job(&self) -> GatewayResult<()>;
    /// Persists the request for a savepoint, then takes it. A known trigger id is the same request. `Conflict` if it
    /// was another one, or if the job ends, or has a region that takes no checkpoints; the text says which.
    async fn trigger_savepoint(&self, request: pb::TriggerSavepointRequest) -> GatewayResult<()>;
    /// Describes the job.
    async fn describe(&self, detail: Detail) -> GatewayResult<pb::JobDetails>;
    /// Completes with the (dirty) result when the job is globally terminal; the JobMaster writes nothing after
    /// that. `None`: it stopped with its term, or failed.
    async fn ended(&self) -> Option<pb::JobResult>;
    /// After `ended`: the record of the checkpoints that stay after the job, to be written with its result. `None`:
    /// none stays.
    fn retained_checkpoints(&self) -> Option<Arc<pb::JobCheckpoints>> {
        None
    }
    /// Returns why no JobMaster can be created from the job's records, if this one ended for that reason.
    fn unfit(&self) -> Option<String> {
        None
    }
    /// Reports proof that this incarnation of a TaskManager is lost: another one answers at its address, or its
    /// host refuses. The JobMaster stops waiting for what the record places there. Has no effect on a
    /// TaskManager that has registered.
    fn report_task_manager_lost(&self, resource_id: ResourceId, incarnation: String);
    /// Completes when the JobMaster waits for nothing that the record places; at once if it never did. `None`:
    /// it stopped before.
    async fn reconciled(&self) -> Option<Adoption>;
    /// The result is in the store: releases TaskExecutors and slots, and ends.
    async fn result_written(&self);
    /// Ends the JobMaster, not the job: drops its state and notifies no process.
    async fn stop(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_adoption_of_two_jobs_begins_with_the_first_task_and_ends_with_the_last() {
        let adopted = |tasks_adopted, first, last| Adoption {
            tasks_adopted,
            tasks_restarted: 1,
            first_adopted_at_ms: first,
            last_adopted_at_ms: last,
        };
        let both = adopted(2, Some(5), Some(9)).and(adopted(3, Some(4), Some(8)));
        assert_eq!(
            both,
            Adoption {
                tasks_restarted: 2,
                ..adopted(5, Some(4), Some(9))
            }
        );
        assert_eq!(both.and(Adoption::default()), both);
    }
}
