//! How the Dispatcher starts, asks and ends the JobMaster of a job, without knowing what it is.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tanist_proto::id::ResourceId;
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

/// What became of the tasks that a recovered JobMaster's record had placed. Times in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Adoption {
    /// Tasks that go on as they were, or that ended while nobody led.
    pub tasks_adopted: u32,
    /// Tasks that were placed and whose region had to be restarted.
    pub tasks_restarted: u32,
    /// When the first task was adopted.
    pub first_adopted_at_ms: Option<u64>,
    /// When the last task was adopted.
    pub last_adopted_at_ms: Option<u64>,
}

impl Adoption {
    /// The adoption of both jobs together.
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

/// A started JobMaster, as its Dispatcher sees it.
#[async_trait]
pub trait JobMasterControl: Send + Sync + fmt::Debug + 'static {
    /// What TaskExecutors talk to.
    fn gateway(&self) -> Arc<dyn JobMasterGateway>;
    /// Persists that the job is to be canceled, then cancels it. `Conflict` if it has ended.
    async fn cancel(&self) -> GatewayResult<()>;
    /// Persists that the job's sources are to end, then has them end. `Conflict` if it ends otherwise.
    async fn stop_job(&self) -> GatewayResult<()>;
    /// The job in full.
    async fn describe(&self) -> GatewayResult<pb::JobDetails>;
    /// Completes with the result (dirty) when the job is globally terminal; it writes nothing any more then. `None`: it
    /// stopped with its term.
    async fn ended(&self) -> Option<pb::JobResult>;
    /// Why no JobMaster can be made of a job that had one before, where it ended for that.
    fn unfit(&self) -> Option<String> {
        None
    }
    /// It is proven that this incarnation of a TaskManager is gone: another one answers at its address, or its host
    /// refuses. What the record places there is not waited for any longer. Says nothing of one that has registered.
    fn task_manager_gone(&self, resource_id: ResourceId, incarnation: String);
    /// Completes when nothing that the record places is waited for any more; at once if nothing ever was. `None`: it
    /// stopped before that.
    async fn reconciled(&self) -> Option<Adoption>;
    /// The result is in the store: lets go of TaskExecutors and slots, and ends.
    async fn result_written(&self);
    /// The term is over: forgets everything, telling nobody.
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
