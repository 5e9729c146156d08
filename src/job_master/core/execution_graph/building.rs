//! Builds an ExecutionGraph from a JobGraph. Pure.
//!
//! Regions are numbered as [`subtask_regions`] says, so that every JobMaster of the job numbers them alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_model::{blocking_edges_within_regions, subtask_regions};
use tanist_proto::id::{Generation, JobVertexId};
use tanist_proto::v1 as pb;

use super::execution::Execution;
use super::indexes::{Changes, Indexes};
use super::profiles::profiles;
use super::slot_uses::Kinds;
use super::{ById, Edge, ExecutionGraph, Region, Task, Vertex, as_index, index_of};

/// Why a graph can't be executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// It has no vertex.
    #[error("the job graph has no vertices")]
    Empty,
    /// A vertex id is malformed or not unique.
    #[error("vertex {name:?} has an unusable id {id:?}")]
    VertexId {
        /// The vertex's name.
        name: String,
        /// The id.
        id: String,
    },
    /// A vertex has no subtasks.
    #[error("vertex {0:?} has parallelism 0")]
    NoSubtasks(String),
    /// An edge names a vertex that the graph does not have.
    #[error("an edge names the vertex {0:?}, which the graph doesn't have")]
    UnknownVertex(String),
    /// A forward edge joins vertices of different parallelism.
    #[error(
        "the forward edge from {source_name:?} to {target_name:?} joins different parallelisms"
    )]
    Forward {
        /// Name of the edge's source.
        source_name: String,
        /// Name of its target.
        target_name: String,
    },
    /// A blocking edge between vertices that run at the same time.
    #[error("vertex {0:?} waits for the end of a vertex of its own region")]
    WaitsForItself(String),
    /// The persisted state is of another graph.
    #[error("the persisted state does not belong to this graph: {0}")]
    OtherGraph(String),
    /// The persisted state can't have been written by a JobMaster.
    #[error("the persisted state is damaged: {0}")]
    Damaged(String),
}

impl ExecutionGraph {
    /// The graph of a job, whose record gets its regions if it has none.
    pub(crate) fn of_record(
        graph: &pb::JobGraph,
        state: &mut Arc<pb::JobState>,
        max_regions: usize,
    ) -> Result<ExecutionGraph, BuildError> {
        let execution = ExecutionGraph::build(graph, max_regions)?;
        let (there, needed) = (state.regions.len(), execution.regions.len());
        if there == 0 {
            let regions = &mut Arc::make_mut(state).regions;
            regions.resize_with(needed, pb::RegionState::default);
        } else if there != needed {
            let other = format!("it has {there} regions, the graph {needed}");
            return Err(BuildError::OtherGraph(other));
        }
        Ok(execution)
    }

    /// Builds the graph with all executions CREATED, at generation 0.
    pub(crate) fn build(
        graph: &pb::JobGraph,
        max_regions: usize,
    ) -> Result<ExecutionGraph, BuildError> {
        let (mut vertices, by_id) = build_vertices(graph)?;
        let profiles = profiles(graph, &vertices);
        let edges = build_edges(graph, &vertices, &by_id)?;
        let (mut blocking_into, mut blocking_out_of) = (Vec::new(), Vec::new());
        if edges.iter().any(|edge| edge.is_blocking) {
            // A region runs as a whole, so no vertex may wait for a vertex of its own region.
            let within = blocking_edges_within_regions(graph);
            if let Some(target) = within.first().map(|edge| &edge.target) {
                let mut all = graph.vertices.iter();
                let vertex = all.find(|vertex| vertex.id == *target);
                let name = vertex.map(|vertex| vertex.name.clone());
                return Err(BuildError::WaitsForItself(name.unwrap_or_default()));
            }
            blocking_into = vec![Vec::new(); vertices.len()];
            blocking_out_of = vec![Vec::new(); vertices.len()];
        }
        for (number, edge) in edges
            .iter()
            .enumerate()
            .filter(|(_, edge)| edge.is_blocking)
        {
            vertices[edge.source].is_kept = true;
            blocking_into[edge.target].push(number);
            blocking_out_of[edge.source].push(number);
        }
        let region_of = subtask_regions(graph, max_regions);
        let count = region_of.iter().max().map_or(0, |last| last + 1);
        let mut regions = vec![Region::default(); count];
        let mut tasks = Vec::with_capacity(region_of.len());
        for (index, (vertex, from)) in vertices.iter().zip(&graph.vertices).enumerate() {
            // With a single region no other region waits, so the operators need not be parsed.
            let is_unbounded = count > 1 && has_unbounded_source(from);
            for subtask in 0..vertex.parallelism {
                let region = region_of[tasks.len()];
                regions[region].is_bounded &= !is_unbounded;
                regions[region].tasks.push(tasks.len());
                let execution = Execution::created(Generation::default());
                tasks.push(Task {
                    vertex: index,
                    subtask,
                    region,
                    execution,
                });
            }
        }
        let kinds = Kinds::new(&profiles, slot_offsets(&vertices));
        let is_bounded = regions.iter().all(|region| region.is_bounded);
        let mut built = ExecutionGraph {
            vertices,
            edges,
            tasks,
            regions,
            is_bounded,
            profiles,
            by_id,
            kinds,
            blocking_into,
            blocking_out_of,
            indexes: Indexes::default(),
            changes: Changes::default(),
        };
        for region in 0..built.regions.len() {
            let tasks = &built.regions[region].tasks;
            let mut slots: Vec<_> = tasks.iter().map(|task| built.slot_key(*task)).collect();
            slots.sort_unstable();
            slots.dedup();
            slots.shrink_to_fit();
            let at = &mut built.regions[region];
            at.slots = slots;
            at.tasks.shrink_to_fit();
        }
        built.recount();
        Ok(built)
    }
}

/// Whether the vertex has a source (its first operator) that does not end by itself. A specification that
/// can't be parsed counts as unbounded.
fn has_unbounded_source(vertex: &pb::JobVertex) -> bool {
    vertex.operators.first().is_some_and(|operator| {
        let spec = tanist_model::OperatorSpec::from_json(&operator.spec);
        spec.map_or(true, |spec| spec.is_source() && !spec.is_bounded_source())
    })
}

/// By slot sharing group: the maximum number of slots of all groups before it. The last entry is that of all
/// groups.
fn slot_offsets(vertices: &[Vertex]) -> Vec<usize> {
    let groups = vertices.iter().map(|vertex| vertex.group + 1).max();
    let mut offsets = vec![0; groups.unwrap_or_default() + 1];
    for vertex in vertices {
        let most = &mut offsets[vertex.group + 1];
        *most = (*most).max(as_index(vertex.parallelism));
    }
    for group in 1..offsets.len() {
        offsets[group] += offsets[group - 1];
    }
    offsets
}

fn build_vertices(graph: &pb::JobGraph) -> Result<(Vec<Vertex>, ById), BuildError> {
    if graph.vertices.is_empty() {
        return Err(BuildError::Empty);
    }
    let mut vertices = Vec::with_capacity(graph.vertices.len());
    let mut by_id: BTreeMap<JobVertexId, usize> = BTreeMap::new();
    let mut groups: Vec<&str> = Vec::new();
    let mut first = 0;
    for (index, vertex) in graph.vertices.iter().enumerate() {
        let unusable = || BuildError::VertexId {
            name: vertex.name.clone(),
            id: vertex.id.clone(),
        };
        let id: JobVertexId = vertex.id.parse().map_err(|_| unusable())?;
        if by_id.insert(id, index).is_some() {
            return Err(unusable());
        }
        if vertex.parallelism == 0 {
            return Err(BuildError::NoSubtasks(vertex.name.clone()));
        }
        let group = groups
            .iter()
            .position(|group| *group == vertex.slot_sharing_group);
        let group = group.unwrap_or_else(|| {
            groups.push(&vertex.slot_sharing_group);
            groups.len() - 1
        });
        let (name, parallelism) = (vertex.name.clone(), vertex.parallelism);
        vertices.push(Vertex {
            id,
            name,
            parallelism,
            group,
            first,
            is_kept: false,
        });
        first += as_index(parallelism);
    }
    Ok((vertices, by_id.into_iter().collect()))
}

fn build_edges(
    graph: &pb::JobGraph,
    vertices: &[Vertex],
    by_id: &[(JobVertexId, usize)],
) -> Result<Vec<Edge>, BuildError> {
    let find = |id: &String| {
        let index = id.parse().ok().and_then(|id| index_of(by_id, id));
        index.ok_or_else(|| BuildError::UnknownVertex(id.clone()))
    };
    let mut edges = Vec::with_capacity(graph.edges.len());
    for edge in &graph.edges {
        let (source, target) = (find(&edge.source)?, find(&edge.target)?);
        let is_forward = edge.partitioning() == pb::Partitioning::Forward;
        if is_forward && vertices[source].parallelism != vertices[target].parallelism {
            return Err(BuildError::Forward {
                source_name: vertices[source].name.clone(),
                target_name: vertices[target].name.clone(),
            });
        }
        edges.push(Edge {
            source,
            target,
            is_forward,
            is_blocking: edge.exchange() == pb::Exchange::Blocking,
        });
    }
    Ok(edges)
}
