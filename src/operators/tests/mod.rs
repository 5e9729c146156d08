//! Whole tasks with built-in operators: TaskManagers in one process, graphs built by hand, and their deployment.

mod checkpoints;
mod event_time;
mod file_sinks;
mod redistribution;
#[cfg(feature = "sql")]
mod sql;
mod stop;
mod tasks;
mod word_count;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tanist_compile::{CompileOptions, JobFile, compile};
use tanist_dataflow::record::schema_of;
use tanist_dataflow::testing::{bind_exchange, cluster, start_many, wait_until};
use tanist_dataflow::{
    CoordinatorRequest, OperatorError, RunningTask, TaskRuntime, TaskSpec, TaskStatus,
};
use tanist_gateway::fencing::HighestEpoch;
use tanist_ha::election::Epoch;
use tanist_model::files::{Look, matching_files};
use tanist_model::{Emit, OperatorSpec, file_source, operators};
use tanist_proto::id::{JobId, JobVertexId};
use tanist_proto::v1::ask_coordinator_response::Answer;
use tanist_proto::v1::{
    Ack, Column, ColumnType, Committable, Exchange as GraphExchange, FileRange, FileSplit,
    InputChannel, InputGate, JobEdge, JobGraph, JobVertex, Operator as GraphOperator, Partitioning,
    TaskDeployment, TaskManagerLocation,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::schema::output_schema;
use crate::{Operators, TaskHost};

/// The term of all tests.
const EPOCH: Epoch = Epoch::new(1);

/// Counts how often each value of a column occurs.
pub(super) fn count_by(key: &str, emit: Emit) -> OperatorSpec {
    OperatorSpec::Count(operators::Count {
        keys: vec![key.to_owned()],
        emit: Some(emit),
    })
}

pub(super) fn file_sink(path: &Path) -> OperatorSpec {
    operators::FileSink::new(path.to_string_lossy()).into()
}

/// Waits until all tasks have finished and returns what they have to commit.
pub(super) async fn finish(tasks: &BTreeMap<(usize, u32), RunningTask>) -> Vec<Committable> {
    let mut all = Vec::new();
    for (place, task) in tasks {
        match task.ended().await {
            TaskStatus::Finished { output } => all.extend(output.committables),
            other => panic!("task {place:?} ended as {other:?}"),
        }
    }
    all
}

/// The part of a TaskManager that runs tasks.
pub(super) struct TaskManager {
    pub(super) runtime: TaskRuntime,
    location: TaskManagerLocation,
    coordinator: Arc<Coordinator>,
}

impl TaskManager {
    pub(super) async fn start(name: &str) -> TaskManager {
        let gate = HighestEpoch::default();
        gate.observe(&cluster(), EPOCH).expect("it is the first");
        let (exchange, location) = bind_exchange(name, Arc::new(gate)).await;
        let operators = Operators::new(TaskHost::without_programs());
        let runtime = TaskRuntime::new(Handle::current(), exchange, operators);
        let coordinator = Arc::new(Coordinator::default());
        tokio::spawn(
            coordinator
                .clone()
                .answer_all(runtime.coordinator_requests()),
        );
        TaskManager {
            runtime,
            location,
            coordinator,
        }
    }

    pub(super) async fn start_many<const N: usize>() -> [TaskManager; N] {
        start_many(async |name| TaskManager::start(&name).await).await
    }
}

/// In place of a JobMaster: looks at the files of file sources before tasks start, and gives each subtask its split.
#[derive(Default)]
struct Coordinator {
    /// By job and vertex, for each subtask its only split.
    splits: Mutex<BTreeMap<(JobId, JobVertexId), Vec<FileSplit>>>,
}

impl Coordinator {
    fn prepare(&self, graph: &JobGraph) {
        let job = graph.job_id.parse().expect("an id");
        let mut splits = self.splits.lock();
        for vertex in &graph.vertices {
            let Some(source) = file_source(&vertex.operators[0].spec) else {
                continue;
            };
            let of_subtask = |subtask| only_split(&source.paths, subtask, vertex.parallelism);
            let key = (job, vertex.id.parse().expect("an id"));
            splits.entry(key).or_insert_with(|| {
                let all: Result<_, _> = (0..vertex.parallelism).map(of_subtask).collect();
                all.expect("its files are there")
            });
        }
    }

    async fn answer_all(
        self: Arc<Coordinator>,
        mut coordinator_requests: mpsc::Receiver<CoordinatorRequest>,
    ) {
        while let Some(request) = coordinator_requests.recv().await {
            let answer = self.answer(&request);
            // Who asked may have been cancelled.
            let _ = request.reply.send(Ok(answer));
        }
    }

    fn answer(&self, request: &CoordinatorRequest) -> Answer {
        if request.number > 1 {
            return Answer::Exhausted(Ack {});
        }
        let asker = &request.requester;
        let splits = self.splits.lock();
        let of_vertex = &splits[&(asker.job, asker.vertex)];
        Answer::FileSplit(of_vertex[asker.subtask as usize].clone())
    }
}

/// The split of a subtask if each subtask has one split: an equal part of the concatenated files.
pub(crate) fn only_split(
    paths: &[String],
    subtask: u32,
    parallelism: u32,
) -> Result<FileSplit, OperatorError> {
    let files = matching_files(paths, Look::First)?;
    let total: u64 = files.iter().map(|(_, size)| size).sum();
    let cut = |part: u32| total * u64::from(part) / u64::from(parallelism);
    let (from, to) = (cut(subtask), cut(subtask + 1));
    let (mut ranges, mut file_start) = (Vec::new(), 0);
    for (path, size) in files {
        let (start, end) = (from.max(file_start), to.min(file_start + size));
        if start < end {
            ranges.push(FileRange {
                path: path.into_os_string().into_vec(),
                start: start - file_start,
                end: end - file_start,
                size,
            });
        }
        file_start += size;
    }
    Ok(FileSplit { ranges })
}

/// Builds a JobGraph from operator specifications, without the compiler.
#[derive(Default)]
pub(super) struct GraphBuilder {
    graph: JobGraph,
}

impl GraphBuilder {
    pub(super) fn new() -> GraphBuilder {
        let mut graph = JobGraph {
            name: "test".to_owned(),
            ..JobGraph::default()
        };
        graph.job_id = JobId::random().to_string();
        GraphBuilder { graph }
    }

    /// Adds a vertex and the edge that feeds it. Vertices are named by their index.
    pub(super) fn vertex(
        mut self,
        parallelism: u32,
        specs: &[OperatorSpec],
        input: Option<(usize, Partitioning, &[&str])>,
    ) -> GraphBuilder {
        let index = self.graph.vertices.len();
        let id = JobVertexId::from_bits(index as u128 + 1).to_string();
        let mut schema = input.map(|(source, ..)| {
            let operators = &self.graph.vertices[source].operators;
            schema_of(&operators.last().expect("not empty").output).expect("known types")
        });
        let mut operators = Vec::new();
        for spec in specs {
            schema = output_schema(spec, schema.as_ref()).expect("fits");
            let fields = schema.iter().flat_map(|schema| schema.fields().iter());
            let columns = fields.map(|field| Column {
                name: field.name().clone(),
                r#type: match field.data_type() {
                    arrow_schema::DataType::Utf8 => ColumnType::String.into(),
                    arrow_schema::DataType::Int64 => ColumnType::Int64.into(),
                    arrow_schema::DataType::Float64 => ColumnType::Float64.into(),
                    arrow_schema::DataType::Timestamp(..) => ColumnType::Timestamp.into(),
                    _ => ColumnType::Bool.into(),
                },
                nullable: field.is_nullable(),
            });
            operators.push(GraphOperator {
                name: format!("operator {index}.{}", operators.len()),
                spec: serde_json::to_string(spec).expect("serializes"),
                output: columns.collect(),
                uid: String::new(),
            });
        }
        if let Some((source, partitioning, keys)) = input {
            self.graph.edges.push(JobEdge {
                exchange: 0,
                source: self.graph.vertices[source].id.clone(),
                target: id.clone(),
                partitioning: partitioning.into(),
                key_columns: keys.iter().map(|key| (*key).to_owned()).collect(),
            });
        }
        self.graph.vertices.push(JobVertex {
            id,
            name: format!("vertex {index}"),
            operators,
            parallelism,
            max_parallelism: 128,
            slot_sharing_group: "default".to_owned(),
            ..JobVertex::default()
        });
        self
    }

    /// Makes the last edge blocking.
    pub(super) fn blocking(mut self) -> GraphBuilder {
        let edge = self.graph.edges.last_mut().expect("there is an edge");
        edge.set_exchange(GraphExchange::Blocking);
        self
    }

    pub(super) fn build(self) -> Arc<JobGraph> {
        Arc::new(self.graph)
    }
}

/// Which TaskManager runs a subtask of a vertex.
pub(super) type Placement = fn(vertex: usize, subtask: u32) -> usize;

/// The specification of one task.
pub(super) fn spec(
    graph: &Arc<JobGraph>,
    managers: &[TaskManager],
    placement: Placement,
    (vertex, subtask): (usize, u32),
    generation: u64,
) -> TaskSpec {
    for manager in managers {
        manager.coordinator.prepare(graph);
    }
    let target = &graph.vertices[vertex];
    let edges = (0..)
        .zip(&graph.edges)
        .filter(|(_, edge)| edge.target == target.id);
    let inputs = edges.map(|(index, edge)| {
        let source = graph
            .vertices
            .iter()
            .position(|v| v.id == edge.source)
            .expect("a vertex");
        let all = 0..graph.vertices[source].parallelism;
        let forward = edge.partitioning() == Partitioning::Forward;
        let channels = all
            .filter(|other| !forward || *other == subtask)
            .map(|source_subtask| {
                let manager = &managers[placement(source, source_subtask) % managers.len()];
                InputChannel {
                    source_vertex_id: edge.source.clone(),
                    source_subtask,
                    generation,
                    location: Some(manager.location.clone()),
                }
            });
        InputGate {
            edge: index,
            channels: channels.collect(),
        }
    });
    TaskSpec {
        graph: Arc::clone(graph),
        deployment: TaskDeployment {
            vertex_id: target.id.clone(),
            subtask,
            generation,
            allocation_id: String::new(),
            inputs: inputs.collect(),
            ..TaskDeployment::default()
        },
        cluster_incarnation: cluster(),
        epoch: EPOCH,
        job_incarnation: 1,
        external_resources: BTreeMap::new(),
        managed_memory: 0,
    }
}

/// The graph of a job file.
pub(super) fn compiled(file: &JobFile, options: &CompileOptions) -> Arc<JobGraph> {
    Arc::new(compile(file, options).expect("a valid job"))
}

/// Starts all tasks of a graph, sinks first, so that consumers wait for their producers.
pub(super) fn deploy(
    graph: &Arc<JobGraph>,
    managers: &[TaskManager],
    placement: Placement,
) -> BTreeMap<(usize, u32), RunningTask> {
    let mut tasks = BTreeMap::new();
    for vertex in (0..graph.vertices.len()).rev() {
        for subtask in 0..graph.vertices[vertex].parallelism {
            let spec = spec(graph, managers, placement, (vertex, subtask), 1);
            let manager = &managers[placement(vertex, subtask) % managers.len()];
            tasks.insert((vertex, subtask), manager.runtime.start(spec));
        }
    }
    tasks
}
