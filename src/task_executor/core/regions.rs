//! Numbers of a job's pipelined regions in its record, by subtask. Pure.
//!
//! A deployment names the region of its task, so the TaskExecutor does not compute it (`docs/adr/0024`). A subtask's
//! number never changes.

use std::collections::BTreeMap;

use tanist_proto::id::JobVertexId;
use tanist_proto::v1 as pb;

/// Region numbers of the subtasks that were deployed here.
#[derive(Debug, Clone, Default)]
pub struct Regions(BTreeMap<(JobVertexId, u32), usize>);

impl Regions {
    /// Records the regions of deployed tasks.
    pub fn note(&mut self, tasks: &[pb::TaskDeployment]) {
        for task in tasks {
            if let Ok(vertex) = task.vertex_id.parse() {
                let region = usize::try_from(task.region).unwrap_or(usize::MAX);
                self.0.insert((vertex, task.subtask), region);
            }
        }
    }

    /// The number of a subtask's region, if it was deployed here.
    pub fn of(&self, vertex: JobVertexId, subtask: u32) -> Option<usize> {
        self.0.get(&(vertex, subtask)).copied()
    }
}
