//! Translates a deployment: the vertex's operators with their columns, where its input comes from and where its
//! output goes.
//!
//! Pure. The graph was checked before it was persisted; the checks here make sure that this program interprets
//! it in the same way.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use tanist_model::OperatorSpec;
use tanist_proto::id::{Generation, InvalidId, JobId, JobVertexId};
use tanist_proto::v1::{
    Exchange, JobEdge, JobGraph, JobVertex, Operator, Partitioning, TaskManagerLocation,
};
use tokio::sync::mpsc;

use super::TaskSpec;
use crate::coordination::{CoordinatorLine, CoordinatorRequest, Requester};
use crate::end_guard::EndGuard;
use crate::exchange::{Attempt, ChannelRequest, PartitionId};
use crate::key::NoKeyColumn;
use crate::operator::{Notices, OperatorContext, OperatorError, OperatorFactory, Peers};
use crate::partitioner::Partitioner;
use crate::record::{UnknownColumnType, describe, same_columns, schema_of};

/// Why a deployment can't be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlanError {
    /// A text in the graph or deployment is not a valid id.
    #[error(transparent)]
    Id(#[from] InvalidId),
    /// A column has a type of a newer version.
    #[error(transparent)]
    Column(#[from] UnknownColumnType),
    /// A hash edge names a column that the records don't have.
    #[error(transparent)]
    Key(#[from] NoKeyColumn),
    /// An operator's specification can't be read.
    #[error("operator {operator:?} has a specification that this version can't read: {source}")]
    Specification {
        /// The operator's name.
        operator: String,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// An operator doesn't fit its input.
    #[error("operator {operator:?}: {source}")]
    Operator {
        /// The operator's name.
        operator: String,
        /// Error of the operator.
        source: OperatorError,
    },
    /// Graph, deployment and program don't fit together.
    #[error("{0}")]
    Mismatch(String),
}

fn mismatch(message: impl Into<String>) -> PlanError {
    PlanError::Mismatch(message.into())
}

/// An operator of the chain and its context.
pub(super) struct PlannedOperator {
    pub(super) name: String,
    /// Names its state in snapshots.
    pub(super) uid: String,
    pub(super) spec: OperatorSpec,
    pub(super) context: OperatorContext,
}

/// An edge out of the vertex.
pub(super) struct PlannedOutput {
    pub(super) partition: PartitionId,
    pub(super) targets: Vec<u32>,
    pub(super) partitioner: Partitioner,
    /// Whether the output is completed before it is read.
    pub(super) is_blocking: bool,
}

/// Everything that a task needs to run.
pub(super) struct Plan {
    pub(super) job: JobId,
    pub(super) subtask: u32,
    pub(super) parallelism: u32,
    pub(super) attempt: Attempt,
    pub(super) operators: Vec<PlannedOperator>,
    pub(super) inputs: Vec<ChannelRequest>,
    pub(super) outputs: Vec<PlannedOutput>,
}

impl Plan {
    pub(super) fn of(
        spec: &TaskSpec,
        factory: &dyn OperatorFactory,
        end_guard: &EndGuard,
        (peers, notices): (&Peers, &Notices),
        coordinator_requests: Option<&mpsc::Sender<CoordinatorRequest>>,
    ) -> Result<Plan, PlanError> {
        let (graph, deployment) = (&spec.graph, &spec.deployment);
        let job: JobId = graph.job_id.parse()?;
        let id: JobVertexId = deployment.vertex_id.parse()?;
        let vertex = vertex_of(graph, &deployment.vertex_id)?;
        let subtask = deployment.subtask;
        if subtask >= vertex.parallelism {
            let parallelism = vertex.parallelism;
            return Err(mismatch(format!(
                "there is no subtask {subtask} of {parallelism}"
            )));
        }
        let generation = Generation::new(deployment.generation);
        let attempt = Attempt {
            job_incarnation: spec.job_incarnation,
            generation,
        };
        let context = OperatorContext {
            graph: Arc::clone(graph),
            job,
            vertex: id,
            subtask,
            parallelism: vertex.parallelism,
            generation,
            input: input_schema(graph, vertex)?,
            keys: input_keys(graph, vertex),
            output: None,
            takes_checkpoints: deployment.takes_checkpoints,
            restored_from: deployment.restore.as_ref().map_or(0, |it| it.number),
            end_guard: end_guard.clone(),
            peers: peers.clone(),
            notices: notices.clone(),
            external_resources: Arc::new(spec.external_resources.clone()),
            coordinator: None,
        };
        let operators = plan_operators(vertex, factory, &context, coordinator_requests)?;
        let output = operators
            .last()
            .and_then(|operator| operator.context.output.clone());
        let inputs = plan_inputs(spec, job, vertex, attempt, context.input.as_ref())?;
        let outputs = plan_outputs(graph, job, id, vertex, subtask, output.as_ref())?;
        let parallelism = vertex.parallelism;
        Ok(Plan {
            job,
            subtask,
            parallelism,
            attempt,
            operators,
            inputs,
            outputs,
        })
    }

    /// Whether an operator may use the job's artifacts.
    pub(super) fn uses_artifacts(&self, factory: &dyn OperatorFactory) -> bool {
        let mut operators = self.operators.iter();
        operators.any(|operator| factory.uses_artifacts(&operator.spec))
    }
}

fn vertex_of<'g>(graph: &'g JobGraph, id: &str) -> Result<&'g JobVertex, PlanError> {
    let found = graph.vertices.iter().find(|vertex| vertex.id == id);
    found.ok_or_else(|| mismatch(format!("the graph has no vertex {id}")))
}

/// Returns the edges that match, with their indices in the graph.
fn edges(
    graph: &JobGraph,
    matches: impl Fn(&JobEdge) -> bool,
) -> impl Iterator<Item = (u32, &JobEdge)> {
    (0..)
        .zip(&graph.edges)
        .filter(move |(_, edge)| matches(edge))
}

/// Returns the columns of a vertex's input; `None` if it has no input.
fn input_schema(graph: &JobGraph, vertex: &JobVertex) -> Result<Option<SchemaRef>, PlanError> {
    let mut found: Option<SchemaRef> = None;
    for (_, edge) in edges(graph, |edge| edge.target == vertex.id) {
        let source = vertex_of(graph, &edge.source)?;
        let columns = source
            .operators
            .last()
            .map_or(&[][..], |operator| &operator.output);
        let schema = schema_of(columns)?;
        match &found {
            Some(first) if !same_columns(first, &schema) => {
                let (first, other) = (describe(first), describe(&schema));
                return Err(mismatch(format!(
                    "its inputs differ: ({first}) and ({other})"
                )));
            }
            Some(_) => {}
            None => found = Some(schema),
        }
    }
    Ok(found)
}

/// Returns the columns by which all of a vertex's input is partitioned; empty if an edge is not partitioned by key, or
/// by other columns.
fn input_keys(graph: &JobGraph, vertex: &JobVertex) -> Arc<[String]> {
    let mut edges = edges(graph, |edge| edge.target == vertex.id);
    let first = edges.next().map(|(_, edge)| edge);
    let first = first.filter(|edge| edge.partitioning() == Partitioning::Hash);
    let keys = first.map_or(&[][..], |edge| &edge.key_columns);
    match edges
        .all(|(_, edge)| edge.partitioning() == Partitioning::Hash && edge.key_columns == keys)
    {
        true => keys.into(),
        false => Arc::default(),
    }
}

/// Plans the operators in the order of the chain. `first` is the context of the first one.
fn plan_operators(
    vertex: &JobVertex,
    factory: &dyn OperatorFactory,
    first: &OperatorContext,
    coordinator_requests: Option<&mpsc::Sender<CoordinatorRequest>>,
) -> Result<Vec<PlannedOperator>, PlanError> {
    let mut input = first.input.clone();
    let mut keys = Arc::clone(&first.keys);
    let mut planned = Vec::with_capacity(vertex.operators.len());
    for operator in &vertex.operators {
        let name = operator.name.clone();
        let spec: OperatorSpec =
            serde_json::from_str(&operator.spec).map_err(|source| PlanError::Specification {
                operator: name.clone(),
                source,
            })?;
        let output = factory.output_schema(&spec, input.as_ref());
        let output = output.map_err(|source| PlanError::Operator {
            operator: name.clone(),
            source,
        })?;
        let output = as_declared(operator, output)?;
        let context = OperatorContext {
            input,
            keys: std::mem::take(&mut keys),
            output: output.clone(),
            coordinator: coordinator_requests.map(|coordinator_requests| CoordinatorLine {
                coordinator_requests: coordinator_requests.clone(),
                requester: Requester {
                    job: first.job,
                    vertex: first.vertex,
                    subtask: first.subtask,
                    generation: first.generation,
                    operator: name.clone(),
                },
            }),
            ..first.clone()
        };
        input = output;
        let uid = match operator.uid.is_empty() {
            true => name.clone(),
            false => operator.uid.clone(),
        };
        planned.push(PlannedOperator {
            name,
            uid,
            spec,
            context,
        });
    }
    if planned.is_empty() {
        return Err(mismatch("the vertex has no operators"));
    }
    Ok(planned)
}

/// Returns the columns that the graph declares for an operator, after checking that it emits the same here.
fn as_declared(
    operator: &Operator,
    output: Option<SchemaRef>,
) -> Result<Option<SchemaRef>, PlanError> {
    let declared = schema_of(&operator.output)?;
    let emitted = output.as_deref().map(describe).unwrap_or_default();
    if emitted == describe(&declared) {
        return Ok(output);
    }
    Err(mismatch(format!(
        "operator {:?} emits ({emitted}), but the graph says ({})",
        operator.name,
        describe(&declared)
    )))
}

fn plan_inputs(
    spec: &TaskSpec,
    job: JobId,
    vertex: &JobVertex,
    attempt: Attempt,
    schema: Option<&SchemaRef>,
) -> Result<Vec<ChannelRequest>, PlanError> {
    let (graph, deployment) = (&spec.graph, &spec.deployment);
    let mut requests = Vec::new();
    for (index, edge) in edges(graph, |edge| edge.target == vertex.id) {
        let source = vertex_of(graph, &edge.source)?;
        let gates = deployment.inputs.iter().filter(|gate| gate.edge == index);
        let channels: Vec<_> = gates.flat_map(|gate| &gate.channels).collect();
        let expected: Vec<u32> = match edge.partitioning() {
            Partitioning::Forward => vec![deployment.subtask],
            _ => (0..source.parallelism).collect(),
        };
        let mut given: Vec<u32> = channels
            .iter()
            .map(|channel| channel.source_subtask)
            .collect();
        given.sort_unstable();
        if given != expected {
            return Err(mismatch(format!(
                "edge {index} has channels from subtasks {given:?}, {expected:?} are needed"
            )));
        }
        for channel in channels {
            let generation = Generation::new(channel.generation);
            let location = channel.location.clone().unwrap_or_default();
            let number = channel.source_subtask + 1;
            requests.push(ChannelRequest {
                producer: producer_name(source, number, generation, &location),
                partition: PartitionId {
                    job,
                    vertex: edge.source.parse()?,
                    subtask: channel.source_subtask,
                    edge: index,
                },
                attempt: Attempt {
                    generation,
                    ..attempt
                },
                target_subtask: deployment.subtask,
                is_kept: edge.exchange() == Exchange::Blocking,
                location,
                schema: schema
                    .cloned()
                    .unwrap_or_else(|| Arc::new(arrow_schema::Schema::empty())),
            });
        }
    }
    Ok(requests)
}

fn producer_name(
    vertex: &JobVertex,
    number: u32,
    generation: Generation,
    location: &TaskManagerLocation,
) -> String {
    let (name, parallelism, at) = (&vertex.name, vertex.parallelism, &location.resource_id);
    format!("{name:?} ({number}/{parallelism}, attempt {generation}) on {at}")
}

fn plan_outputs(
    graph: &JobGraph,
    job: JobId,
    id: JobVertexId,
    vertex: &JobVertex,
    subtask: u32,
    schema: Option<&SchemaRef>,
) -> Result<Vec<PlannedOutput>, PlanError> {
    let mut outputs = Vec::new();
    for (index, edge) in edges(graph, |edge| edge.source == vertex.id) {
        let Some(schema) = schema else {
            return Err(mismatch("a sink has an edge out of it"));
        };
        let target = vertex_of(graph, &edge.target)?;
        let partitioning = match Partitioning::try_from(edge.partitioning) {
            Ok(Partitioning::Unspecified) | Err(_) => {
                let number = edge.partitioning;
                return Err(mismatch(format!(
                    "edge {index} has unknown partitioning {number}"
                )));
            }
            Ok(known) => known,
        };
        let targets: Vec<u32> = match partitioning {
            Partitioning::Forward if target.parallelism != vertex.parallelism => {
                return Err(mismatch(format!(
                    "forward edge {index} changes the parallelism"
                )));
            }
            Partitioning::Forward => vec![subtask],
            _ => (0..target.parallelism).collect(),
        };
        let keys = match partitioning {
            Partitioning::Hash => &edge.key_columns[..],
            _ => &[],
        };
        let max_parallelism = target.max_parallelism.max(target.parallelism);
        let partitioner =
            Partitioner::new(partitioning, keys, schema, targets.len(), max_parallelism)?
                .starting_at(usize::try_from(subtask).unwrap_or_default());
        let partition = PartitionId {
            job,
            vertex: id,
            subtask,
            edge: index,
        };
        outputs.push(PlannedOutput {
            partition,
            targets,
            partitioner,
            is_blocking: edge.exchange() == Exchange::Blocking,
        });
    }
    Ok(outputs)
}
