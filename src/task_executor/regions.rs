//! Numbers of a job's pipelined regions in its record, by subtask. Pure.
//!
//! A deployment names the region of its task, so that the rule by which regions are made is not repeated here
//! (`docs/adr/0024`). A JobMaster of an earlier version names none, and deploys only jobs whose regions are sets of
//! vertices. A subtask's region number never changes once anything of its job was deployed.

use std::collections::BTreeMap;

use tanist_proto::id::JobVertexId;
use tanist_proto::v1 as pb;

use crate::job::regions;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Regions {
    of_subtasks: BTreeMap<(JobVertexId, u32), usize>,
    /// Region of each vertex, in the order of the deployed graph.
    of_vertices: BTreeMap<JobVertexId, usize>,
}

impl Regions {
    /// Records the regions of deployed tasks.
    pub fn note(&mut self, graph: &pb::JobGraph, tasks: &[pb::TaskDeployment]) {
        for task in tasks {
            if let (Ok(vertex), Some(region)) = (task.vertex_id.parse(), task.region) {
                let region = usize::try_from(region).unwrap_or(usize::MAX);
                self.of_subtasks.insert((vertex, task.subtask), region);
            }
        }
        if tasks.iter().any(|task| task.region.is_none()) && self.of_vertices.is_empty() {
            let vertices = regions(graph).into_iter().enumerate();
            let by_vertex = vertices.flat_map(|(region, vertices)| {
                let vertices = vertices.into_iter();
                vertices.map(move |vertex| (vertex, region))
            });
            self.of_vertices = by_vertex.collect();
        }
    }

    /// The region number of a subtask.
    pub fn of(&self, vertex: JobVertexId, subtask: u32) -> Option<usize> {
        let named = self.of_subtasks.get(&(vertex, subtask));
        named.or_else(|| self.of_vertices.get(&vertex)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(vertex: u32, subtask: u32, region: Option<u32>) -> pb::TaskDeployment {
        pb::TaskDeployment {
            vertex_id: format!("{vertex:032x}"),
            subtask,
            region,
            ..pb::TaskDeployment::default()
        }
    }

    #[test]
    fn a_deployment_that_names_no_region_is_of_its_vertex_region() {
        let vertex = |number: u32| pb::JobVertex {
            id: format!("{number:032x}"),
            parallelism: 2,
            ..pb::JobVertex::default()
        };
        let graph = pb::JobGraph {
            vertices: vec![vertex(1), vertex(2)],
            ..pb::JobGraph::default()
        };
        let id = |number: u32| format!("{number:032x}").parse().expect("an id");
        let mut named = Regions::default();
        named.note(&graph, &[task(1, 1, Some(1)), task(2, 0, Some(2))]);
        assert_eq!((named.of(id(1), 1), named.of(id(2), 0)), (Some(1), Some(2)));
        assert_eq!(named.of(id(1), 0), None, "it was never deployed here");
        let mut unnamed = Regions::default();
        unnamed.note(&graph, &[task(2, 0, None)]);
        assert_eq!(
            (unnamed.of(id(1), 1), unnamed.of(id(2), 1)),
            (Some(0), Some(1))
        );
    }
}
