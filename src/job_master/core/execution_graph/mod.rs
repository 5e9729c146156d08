//! The ExecutionGraph: the JobGraph with its parallel subtasks, each with its present execution, grouped into
//! pipelined regions. Pure data; the core decides. `building.rs` makes it, `transitions.rs` changes it,
//! `indexes.rs` has the indexes over all tasks and regions, and `blocking.rs` answers which region reads
//! what over blocking edges.
//!
//! Invariants: a region's executions have one generation; each change of an execution or phase goes through
//! `transitions.rs`, which keeps the indexes equal to the state.

pub(super) mod blocking;
mod building;
pub(super) mod deployment;
pub(super) mod execution;
pub(super) mod indexes;
mod profiles;
mod slot_uses;
mod transitions;
pub(super) mod waiting_list;

use std::sync::Arc;

use tanist_compact::SmallSet;
use tanist_proto::id::{JobVertexId, ResourceId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

pub(crate) use self::building::BuildError;
use self::execution::Execution;
use self::indexes::{Changes, Indexes};
use self::slot_uses::Kinds;
use crate::core::slot_pool::SlotKey;

/// One vertex and the position of its subtasks in [`ExecutionGraph::tasks`].
#[derive(Debug, Clone)]
pub(super) struct Vertex {
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
    /// Whether its output is kept for regions that start after it has finished.
    pub is_kept: bool,
}

/// One edge between vertices, by their indices.
#[derive(Debug, Clone)]
pub(super) struct Edge {
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
pub(super) struct Task {
    /// Index of its vertex.
    pub vertex: usize,
    /// Its number among the vertex's subtasks.
    pub subtask: u32,
    /// Index of its region.
    pub region: usize,
    /// Its present execution.
    pub execution: Execution,
}

/// The phase of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RegionPhase {
    /// Its input over blocking edges is not complete.
    AwaitingInput,
    /// Its executions are CREATED or SCHEDULED and wait for slots.
    Waiting {
        /// Start of the wait, in milliseconds since 1970.
        since_ms: u64,
    },
    /// Its executions are awaited on the TaskManagers where the record of an earlier term places them.
    Reconciling,
    /// Its slots are chosen. It is deployed once the record that says so is durable.
    Placed,
    /// Deployed.
    Deployed,
    /// Its executions have to end. Then it restarts or stays as it is.
    Stopping {
        /// When a new generation may be placed, in milliseconds since 1970; `None`: never.
        restart_at_ms: Option<u64>,
    },
}

/// The number of phases without their data; Stopping counts twice, with and without a restart.
pub(super) const PHASES: usize = 7;

impl RegionPhase {
    /// The phase of a region that was given up for good.
    pub(super) const STOPPING: RegionPhase = RegionPhase::Stopping {
        restart_at_ms: None,
    };

    /// The phase of waiting for slots, as an argument that names the kind.
    pub(super) const WAITING: RegionPhase = RegionPhase::Waiting { since_ms: 0 };

    /// Whether the region has slots and is not given up.
    pub(super) fn is_placed(self) -> bool {
        matches!(self, RegionPhase::Placed | RegionPhase::Deployed)
    }

    pub(super) fn number(self) -> usize {
        match self {
            RegionPhase::AwaitingInput => 0,
            RegionPhase::Waiting { .. } => 1,
            RegionPhase::Reconciling => 2,
            RegionPhase::Placed => 3,
            RegionPhase::Deployed => 4,
            RegionPhase::Stopping {
                restart_at_ms: Some(_),
            } => 5,
            RegionPhase::Stopping {
                restart_at_ms: None,
            } => 6,
        }
    }
}

/// Tasks that run and fail together.
#[derive(Debug, Clone)]
pub(super) struct Region {
    /// Indices of its tasks.
    pub tasks: Vec<usize>,
    /// The slots that it needs, sorted, each once.
    pub slots: Vec<SlotKey>,
    /// Whether it ends by itself, as all of its inputs are bounded.
    pub is_bounded: bool,
    /// Its phase. Only [`ExecutionGraph::set_phase`] changes it, and `restore_phase` in a recovery.
    pub phase: RegionPhase,
    /// The number of the group of coordinators that it needs; `None`: it needs none.
    pub coordinator_group: Option<usize>,
    /// Since when it is durable that its generation was given up, in milliseconds since 1970.
    pub given_up_at_ms: Option<u64>,
    /// Whether an execution of it was assumed to be gone and may still run.
    pub is_end_unknown: bool,
}

impl Default for Region {
    /// A region without tasks.
    fn default() -> Region {
        Region {
            tasks: Vec::new(),
            slots: Vec::new(),
            is_bounded: true,
            phase: RegionPhase::Waiting { since_ms: 0 },
            coordinator_group: None,
            given_up_at_ms: None,
            is_end_unknown: false,
        }
    }
}

/// (id, index) of the vertices, sorted by id.
type ById = Vec<(JobVertexId, usize)>;

/// The JobGraph as it is executed.
#[derive(Debug, Clone)]
pub(super) struct ExecutionGraph {
    /// In the graph's order.
    vertices: Vec<Vertex>,
    /// In the graph's order.
    edges: Vec<Edge>,
    /// Sorted by vertex, then by subtask. Only methods change the places, states and outputs of executions.
    tasks: Vec<Task>,
    /// Sorted topologically: each after those that it reads over blocking edges.
    regions: Vec<Region>,
    is_bounded: bool,
    /// The slot profile of each slot sharing group, by its index.
    profiles: Vec<ResourceProfile>,
    by_id: ById,
    kinds: Kinds,
    /// By vertex: the numbers of the blocking edges into it, and out of it. Empty if the graph has no
    /// blocking edges.
    blocking_into: Vec<Vec<usize>>,
    blocking_out_of: Vec<Vec<usize>>,
    indexes: Indexes,
    changes: Changes,
}

impl ExecutionGraph {
    /// The vertices, in the graph's order.
    pub(super) fn vertices(&self) -> &[Vertex] {
        &self.vertices
    }

    /// The edges, in the graph's order.
    pub(super) fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// The tasks, sorted by vertex, then by subtask.
    pub(super) fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The task with this index.
    pub(super) fn task(&self, task: usize) -> &Task {
        &self.tasks[task]
    }

    /// A task's present execution.
    pub(super) fn execution(&self, task: usize) -> &Execution {
        &self.tasks[task].execution
    }

    /// The regions, sorted topologically: each after those that it reads over blocking edges.
    pub(super) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The region with this index.
    pub(super) fn region(&self, region: usize) -> &Region {
        &self.regions[region]
    }

    /// The slot profile of each slot sharing group, by its index.
    pub(super) fn profiles(&self) -> &[ResourceProfile] {
        &self.profiles
    }

    /// The kinds of slots.
    pub(super) fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// The indexes over all tasks and regions.
    pub(super) fn indexes(&self) -> &Indexes {
        &self.indexes
    }

    /// Number of changes that readers of outputs depend on. See [`Changes::reads`].
    pub(super) fn reads(&self) -> u64 {
        self.changes.reads
    }

    /// The task with this name on the wire.
    pub(super) fn find(&self, vertex_id: &str, subtask: u32) -> Option<usize> {
        let vertex = &self.vertices[index_of(&self.by_id, vertex_id.parse().ok()?)?];
        (subtask < vertex.parallelism).then(|| vertex.first + as_index(subtask))
    }

    /// The vertex of a task.
    pub(super) fn vertex_of(&self, task: usize) -> &Vertex {
        &self.vertices[self.tasks[task].vertex]
    }

    /// A task's name for people: `count (2/4)`.
    pub(super) fn task_name(&self, task: usize) -> String {
        let vertex = self.vertex_of(task);
        format!(
            "{} ({}/{})",
            vertex.name,
            self.tasks[task].subtask + 1,
            vertex.parallelism
        )
    }

    /// The slot that a task shares with the same subtask of its group's other vertices.
    pub(super) fn slot_key(&self, task: usize) -> SlotKey {
        SlotKey {
            group: self.vertex_of(task).group,
            index: self.tasks[task].subtask,
        }
    }

    /// Shares a TaskManager's location with the executions placed there, so that it is in memory only once.
    pub(super) fn keep_once(
        &self,
        task_manager: &ResourceId,
        location: pb::TaskManagerLocation,
    ) -> Arc<pb::TaskManagerLocation> {
        let tasks = self.tasks_on(task_manager).into_iter();
        let mut places = tasks.filter_map(|task| self.tasks[task].execution.place.as_ref());
        let same = places.find(|place| *place.location == location);
        same.map_or_else(|| Arc::new(location), |place| place.location.clone())
    }

    /// Whether all regions end by themselves.
    pub(super) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// Number of executions in a state.
    pub(super) fn count(&self, state: ExecutionState) -> usize {
        self.indexes.states[number_of(state)]
    }

    /// The regions in this kind of phase. Its data does not matter, except whether a stopping region
    /// restarts.
    pub(super) fn in_phase(&self, phase: RegionPhase) -> &SmallSet<usize> {
        &self.indexes.phases[phase.number()]
    }

    /// The regions that wait for slots.
    pub(super) fn waiting(&self) -> &SmallSet<usize> {
        self.in_phase(RegionPhase::WAITING)
    }

    /// The regions whose executions have to end and which then restart.
    pub(super) fn restarting(&self) -> &SmallSet<usize> {
        let restart_at_ms = Some(0);
        self.in_phase(RegionPhase::Stopping { restart_at_ms })
    }

    /// The regions whose executions have to end.
    pub(super) fn stopping(&self) -> impl Iterator<Item = usize> {
        let for_good = self.in_phase(RegionPhase::STOPPING);
        self.restarting().iter().chain(for_good).copied()
    }

    /// Number of placed regions.
    pub(super) fn count_placed(&self) -> usize {
        self.in_phase(RegionPhase::Placed).len() + self.in_phase(RegionPhase::Deployed).len()
    }

    /// Number of ended executions.
    pub(super) fn count_ended(&self) -> usize {
        use ExecutionState as S;
        let ends = [S::Finished, S::Canceled, S::Failed];
        ends.into_iter().map(|state| self.count(state)).sum()
    }

    /// Whether a task's present execution has finished.
    pub(super) fn has_finished(&self, task: usize) -> bool {
        self.tasks[task].execution.state == ExecutionState::Finished
    }

    /// Whether all executions of a region have ended.
    pub(super) fn region_is_ended(&self, region: usize) -> bool {
        self.indexes.regions[region].live == 0
    }
}

/// The number of a state, as an index.
pub(super) fn number_of(state: ExecutionState) -> usize {
    usize::try_from(i32::from(state)).unwrap_or_default()
}

/// The index of the vertex with this id.
pub(super) fn index_of(by_id: &[(JobVertexId, usize)], id: JobVertexId) -> Option<usize> {
    let found = by_id.binary_search_by_key(&id, |(id, _)| *id);
    found.ok().map(|at| by_id[at].1)
}

/// A subtask's number as an index.
pub(super) fn as_index(subtask: u32) -> usize {
    usize::try_from(subtask).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use tanist_model::MAX_REGIONS;

    use super::*;
    use crate::core::BuildError;
    use crate::core::tests::testing::graph_of;

    fn built(graph: &pb::JobGraph) -> Result<ExecutionGraph, BuildError> {
        ExecutionGraph::build(graph, MAX_REGIONS)
    }

    #[test]
    fn what_edges_connect_is_one_region_in_the_order_of_its_first_vertex() {
        let graph = graph_of(&[("a", 1), ("b", 2), ("c", 1), ("d", 3)], &[(0, 2), (1, 3)]);
        let execution_graph = built(&graph).expect("valid");
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
        let execution_graph = built(&graph).expect("valid");
        assert_eq!(execution_graph.slots_needed(), 4);
    }

    #[test]
    fn graphs_that_can_not_be_executed_are_refused_with_the_reason() {
        let mut graph = graph_of(&[("a", 1)], &[]);
        graph.vertices[0].parallelism = 0;
        let error = built(&graph).expect_err("refused");
        assert_eq!(error.to_string(), "vertex \"a\" has parallelism 0");
        let mut graph = graph_of(&[("a", 1), ("b", 1)], &[(0, 1)]);
        graph.edges[0].target = "nowhere".to_owned();
        assert!(matches!(built(&graph), Err(BuildError::UnknownVertex(_))));
    }
}
