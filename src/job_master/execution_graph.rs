//! The ExecutionGraph: the JobGraph with its parallel subtasks, each with its present execution, grouped into pipelined
//! regions. Pure data; what is decided with it is the core's.
//!
//! Invariant: a region's executions have one generation.

use std::collections::BTreeMap;

use tanist_proto::id::{Generation, JobVertexId, ResourceId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::execution::{Execution, STATES};
use super::profiles::profiles;
use super::slot_pool::SlotKey;
use super::status::illegal;
use crate::job;

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
    /// A vertex without subtasks.
    #[error("vertex {0:?} has parallelism 0")]
    NoSubtasks(String),
    /// An edge to or from nowhere.
    #[error("an edge names the vertex {0:?}, which the graph doesn't have")]
    UnknownVertex(String),
    /// An edge whose ends don't fit.
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
}

/// One vertex and where its subtasks stand in [`ExecutionGraph::tasks`].
#[derive(Debug, Clone)]
pub struct Vertex {
    /// Its id.
    pub id: JobVertexId,
    /// Its name.
    pub name: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Index of its slot sharing group.
    pub group: usize,
    /// Index of its subtask 0.
    pub first: usize,
    /// Whether its output is kept for regions that start when it has finished.
    pub is_kept: bool,
}

/// One edge between vertices, by their indices.
#[derive(Debug, Clone)]
pub struct Edge {
    /// Index of the source vertex.
    pub source: usize,
    /// Index of the target vertex.
    pub target: usize,
    /// Whether subtask i feeds subtask i only.
    pub is_forward: bool,
    /// Whether the target starts when the source has finished.
    pub is_blocking: bool,
}

/// One subtask of a vertex.
#[derive(Debug, Clone)]
pub struct Task {
    /// Index of its vertex.
    pub vertex: usize,
    /// Its number among the vertex's subtasks.
    pub subtask: u32,
    /// Index of its region.
    pub region: usize,
    /// Its present execution.
    pub execution: Execution,
}

/// What a region is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionPhase {
    /// What it reads over blocking edges is not complete.
    AwaitingInput,
    /// Its executions are CREATED or SCHEDULED and wait for slots, since then.
    Waiting {
        /// Milliseconds since 1970.
        since_ms: u64,
    },
    /// Its executions are awaited where a former term's record places them.
    Reconciling,
    /// Slots are chosen; deployed once the record that says so is durable.
    Placed,
    /// Deployed.
    Deployed,
    /// Its executions are to end; then it is restarted or stays as it is.
    Stopping {
        /// When a new generation may be placed; `None`: never.
        restart_at_ms: Option<u64>,
    },
}

/// Tasks that run and fail together.
#[derive(Debug, Clone)]
pub struct Region {
    /// Indices of its tasks.
    pub tasks: Vec<usize>,
    /// What slots are needed for by it, in order, each once.
    pub slots: Vec<SlotKey>,
    /// Indices of the regions that read from it over blocking edges.
    pub readers: Vec<usize>,
    /// Whether it ends by itself: all that it reads does.
    pub is_bounded: bool,
    /// What it is at.
    pub phase: RegionPhase,
    /// Since when it is durable that its generation was given up.
    pub given_up_at_ms: Option<u64>,
    /// Whether something of it was taken for gone, and may still run.
    pub is_end_unknown: bool,
}

/// The indices of vertices by their ids, in the order of those.
type ById = Vec<(JobVertexId, usize)>;

/// The JobGraph as it is executed.
#[derive(Debug, Clone)]
pub struct ExecutionGraph {
    /// In the graph's order.
    pub vertices: Vec<Vertex>,
    /// In the graph's order.
    pub edges: Vec<Edge>,
    /// By vertex, then by subtask.
    pub tasks: Vec<Task>,
    /// In the order of their first vertices.
    pub regions: Vec<Region>,
    /// What the slots of each slot sharing group have, by its index.
    pub profiles: Vec<ResourceProfile>,
    by_id: ById,
    /// By slot sharing group: how many slots those before it need at most. One more says how many all do.
    pub(super) slot_offsets: Vec<usize>,
    /// How many executions are in each state, by its number: what there is none of need not be looked for.
    counts: [usize; STATES],
}

impl ExecutionGraph {
    /// All executions CREATED with generation 0.
    pub fn build(graph: &pb::JobGraph) -> Result<ExecutionGraph, BuildError> {
        let (mut vertices, by_id) = build_vertices(graph)?;
        let profiles = profiles(graph, &vertices);
        let edges = build_edges(graph, &vertices, &by_id)?;
        for edge in edges.iter().filter(|edge| edge.is_blocking) {
            vertices[edge.source].is_kept = true;
        }
        let members = job::regions(graph);
        let mut region_of = vec![0; vertices.len()];
        for (region, ids) in members.iter().enumerate() {
            for id in ids {
                if let Some(vertex) = index_of(&by_id, *id) {
                    region_of[vertex] = region;
                }
            }
        }
        let phase = RegionPhase::Waiting { since_ms: 0 };
        let mut regions = vec![
            Region {
                tasks: Vec::new(),
                slots: Vec::new(),
                readers: Vec::new(),
                is_bounded: true,
                phase,
                given_up_at_ms: None,
                is_end_unknown: false,
            };
            members.len()
        ];
        for edge in edges.iter().filter(|edge| edge.is_blocking) {
            let (source, target) = (region_of[edge.source], region_of[edge.target]);
            if source == target {
                return Err(BuildError::WaitsForItself(
                    vertices[edge.target].name.clone(),
                ));
            }
            if !regions[source].readers.contains(&target) {
                regions[source].readers.push(target);
            }
        }
        // A job of one region waits for nobody: nothing has to be read.
        if regions.len() > 1 {
            for (vertex, region) in graph.vertices.iter().zip(&region_of) {
                regions[*region].is_bounded &= !has_unbounded_source(vertex);
            }
        }
        let subtasks = vertices.iter().map(|vertex| as_index(vertex.parallelism));
        let mut tasks = Vec::with_capacity(subtasks.sum());
        for (index, vertex) in vertices.iter().enumerate() {
            let region = region_of[index];
            for subtask in 0..vertex.parallelism {
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
        let slot_offsets = slot_offsets(&vertices);
        let mut built = ExecutionGraph {
            vertices,
            edges,
            tasks,
            regions,
            profiles,
            by_id,
            slot_offsets,
            counts: [0; STATES],
        };
        built.count_states();
        for region in 0..built.regions.len() {
            let tasks = &built.regions[region].tasks;
            let mut slots: Vec<SlotKey> = tasks.iter().map(|task| built.slot_key(*task)).collect();
            slots.sort_unstable();
            slots.dedup();
            slots.shrink_to_fit();
            built.regions[region].slots = slots;
        }
        Ok(built)
    }

    /// The task with this name on the wire.
    pub fn find(&self, vertex_id: &str, subtask: u32) -> Option<usize> {
        let vertex = &self.vertices[index_of(&self.by_id, vertex_id.parse().ok()?)?];
        (subtask < vertex.parallelism).then(|| vertex.first + as_index(subtask))
    }

    /// The vertex of a task.
    pub fn vertex_of(&self, task: usize) -> &Vertex {
        &self.vertices[self.tasks[task].vertex]
    }

    /// A task's name for people: `count (2/4)`.
    pub fn task_name(&self, task: usize) -> String {
        let vertex = self.vertex_of(task);
        format!(
            "{} ({}/{})",
            vertex.name,
            self.tasks[task].subtask + 1,
            vertex.parallelism
        )
    }

    /// The slot that a task shares with the same subtask of its group's other vertices.
    pub fn slot_key(&self, task: usize) -> SlotKey {
        SlotKey {
            group: self.vertex_of(task).group,
            index: self.tasks[task].subtask,
        }
    }

    /// The tasks whose complete output a region reads.
    pub fn inputs_of(&self, region: usize) -> impl Iterator<Item = usize> {
        let into = move |edge: &&Edge| {
            edge.is_blocking && self.tasks[self.vertices[edge.target].first].region == region
        };
        self.edges.iter().filter(into).flat_map(|edge| {
            let source = &self.vertices[edge.source];
            source.first..source.first + as_index(source.parallelism)
        })
    }

    /// Indices of the tasks whose present execution is on a TaskManager and has not ended.
    pub fn live_on(&self, task_manager: &ResourceId) -> Vec<usize> {
        (0..self.tasks.len())
            .filter(|task| {
                let execution = &self.tasks[*task].execution;
                !execution.is_ended() && execution.is_on(task_manager)
            })
            .collect()
    }

    /// How many executions are in a state.
    pub fn count(&self, state: ExecutionState) -> usize {
        self.counts[number_of(state)]
    }

    /// How many executions have ended.
    pub fn count_ended(&self) -> usize {
        use ExecutionState as S;
        let ends = [S::Finished, S::Canceled, S::Failed];
        ends.into_iter().map(|state| self.count(state)).sum()
    }

    /// Counts anew, after executions were changed otherwise than by [`ExecutionGraph::advance`] and
    /// [`ExecutionGraph::replace`].
    pub fn count_states(&mut self) {
        self.counts = [0; STATES];
        for task in &self.tasks {
            self.counts[number_of(task.execution.state)] += 1;
        }
    }

    /// Gives a task another execution.
    pub fn replace(&mut self, task: usize, execution: Execution) {
        self.counts[number_of(self.tasks[task].execution.state)] -= 1;
        self.counts[number_of(execution.state)] += 1;
        self.tasks[task].execution = execution;
    }

    /// Moves a task's execution to a state; false if there is no such edge: news that come late, or again.
    pub fn advance(&mut self, task: usize, to: ExecutionState, now_ms: u64) -> bool {
        let execution = &mut self.tasks[task].execution;
        let from = execution.state;
        if !execution.enter(to, now_ms) {
            return false;
        }
        self.counts[number_of(from)] -= 1;
        self.counts[number_of(to)] += 1;
        true
    }

    /// Moves a task's execution to a state that was decided here: that there is no such edge would be a bug.
    pub fn decide(&mut self, task: usize, to: ExecutionState, now_ms: u64) {
        let from = self.tasks[task].execution.state;
        if !self.advance(task, to, now_ms) {
            illegal(&self.task_name(task), &from, &to);
        }
    }

    /// Whether all executions of a region have ended.
    pub fn region_is_ended(&self, region: usize) -> bool {
        self.regions[region]
            .tasks
            .iter()
            .all(|task| self.tasks[*task].execution.is_ended())
    }
}

/// Whether a source in it, which stands first, does not end by itself. One that can't be read is not counted on to end.
fn has_unbounded_source(vertex: &pb::JobVertex) -> bool {
    vertex.operators.first().is_some_and(|operator| {
        let spec = job::OperatorSpec::from_json(&operator.spec);
        spec.map_or(true, |spec| spec.is_source() && !spec.is_bounded_source())
    })
}

fn number_of(state: ExecutionState) -> usize {
    usize::try_from(i32::from(state)).unwrap_or_default()
}

/// Which index an id stands with.
fn index_of(by_id: &[(JobVertexId, usize)], id: JobVertexId) -> Option<usize> {
    let found = by_id.binary_search_by_key(&id, |(id, _)| *id);
    found.ok().map(|at| by_id[at].1)
}

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

/// A subtask's number as an index.
pub fn as_index(subtask: u32) -> usize {
    usize::try_from(subtask).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_master::testing::graph_of;

    #[test]
    fn what_edges_connect_is_one_region_in_the_order_of_its_first_vertex() {
        let graph = graph_of(&[("a", 1), ("b", 2), ("c", 1), ("d", 3)], &[(0, 2), (1, 3)]);
        let execution_graph = ExecutionGraph::build(&graph).expect("valid");
        let regions: Vec<usize> = execution_graph
            .tasks
            .iter()
            .map(|task| task.region)
            .collect();
        assert_eq!(regions, [0, 1, 1, 0, 1, 1, 1]);
    }

    #[test]
    fn subtasks_with_the_same_number_in_a_sharing_group_need_one_slot() {
        let graph = graph_of(&[("a", 1), ("b", 4)], &[(0, 1)]);
        let execution_graph = ExecutionGraph::build(&graph).expect("valid");
        assert_eq!(execution_graph.slots_needed(), 4);
    }

    #[test]
    fn graphs_that_can_not_be_executed_are_refused_with_the_reason() {
        let mut graph = graph_of(&[("a", 1)], &[]);
        graph.vertices[0].parallelism = 0;
        let error = ExecutionGraph::build(&graph).expect_err("refused");
        assert_eq!(error.to_string(), "vertex \"a\" has parallelism 0");
        let mut graph = graph_of(&[("a", 1), ("b", 1)], &[(0, 1)]);
        graph.edges[0].target = "nowhere".to_owned();
        assert!(matches!(
            ExecutionGraph::build(&graph),
            Err(BuildError::UnknownVertex(_))
        ));
    }
}
