//! Numbers of a job's pipelined regions in its record, by subtask. Pure.
//!
//! A deployment names the region of its task, so the TaskExecutor does not compute it (`docs/adr/0024`). A subtask's
//! number never changes.

use std::collections::BTreeMap;

use tanist_proto::id::{Generation, JobVertexId};
use tanist_proto::v1 as pb;

use super::executions::ExecutionKey;

/// Region numbers of the subtasks that were deployed here.
#[derive(Debug, Clone, Default)]
pub(super) struct Regions(BTreeMap<(JobVertexId, u32), usize>);

impl Regions {
    /// Records the regions of deployed tasks.
    pub(super) fn record(&mut self, tasks: &[pb::TaskDeployment]) {
        for task in tasks {
            if let Ok(vertex) = task.vertex_id.parse() {
                let region = usize::try_from(task.region).unwrap_or(usize::MAX);
                self.0.insert((vertex, task.subtask), region);
            }
        }
    }

    /// The generation of an execution's region, out of those of all regions. `None`: it was not deployed here, or the
    /// region never was.
    pub(super) fn generation(
        &self,
        execution: &ExecutionKey,
        regions: &[Generation],
    ) -> Option<Generation> {
        let region = self.0.get(&(execution.vertex, execution.subtask))?;
        regions.get(*region).copied()
    }
}
