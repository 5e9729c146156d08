//! From steps to vertices: decides which operators share a task, and names the vertices.
//!
//! Two operators are chained when all of this is true: the edge between them is forward; their parallelism,
//! slot sharing group and co-location group are equal; the second reads only the first, and only it reads the
//! first; neither the options nor one of the two steps disables chaining; and the second does not require
//! complete input.
//!
//! Vertex ids are a hash of the graph only, so that the same job has the same ids in every process and every
//! version.

use tanist_proto::id::{JobId, JobVertexId};
use tanist_proto::resources::Resources;
use tanist_proto::v1;
use xxhash_rust::xxh3::Xxh3;

use crate::Exchange;
use crate::validate::{ResolvedJob, ResolvedOperator};

/// Whether operators are chained at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainingOptions {
    /// `pipeline.operator-chaining.enabled`.
    pub enabled: bool,
}

impl Default for ChainingOptions {
    fn default() -> ChainingOptions {
        ChainingOptions { enabled: true }
    }
}

/// Chains a job whose operators are in topological order.
pub(super) fn to_job_graph(
    job: &ResolvedJob,
    chaining: ChainingOptions,
    job_id: JobId,
) -> v1::JobGraph {
    let chains = chains(&job.operators, chaining);
    let mut vertex_of = vec![0; job.operators.len()];
    for (vertex, chain) in chains.iter().enumerate() {
        for &operator in chain {
            vertex_of[operator] = vertex;
        }
    }
    let vertices: Vec<v1::JobVertex> = chains
        .iter()
        .enumerate()
        .map(|(position, chain)| vertex(job, position, chain))
        .collect();
    let mut edges = Vec::new();
    for (target, chain) in chains.iter().enumerate() {
        for edge in chain
            .first()
            .into_iter()
            .flat_map(|&head| &job.operators[head].inputs)
        {
            edges.push(v1::JobEdge {
                source: vertices[vertex_of[edge.source]].id.clone(),
                target: vertices[target].id.clone(),
                partitioning: edge.partitioning as i32,
                key_columns: edge.keys.clone(),
                exchange: edge.exchange.unwrap_or(job.exchange).to_proto().into(),
            });
        }
    }
    v1::JobGraph {
        job_id: job_id.to_string(),
        name: job.name.clone(),
        vertices,
        edges,
        options: Some(v1::JobOptions {
            restart_strategy: job.restart_strategy,
            isolation: job.isolation.into(),
            checkpoints: job.checkpoints,
        }),
        artifacts: Vec::new(),
        slot_sharing_groups: job.slot_sharing_groups.iter().map(group).collect(),
        // The receiver of the submission sets it.
        run: String::new(),
    }
}

/// The operators of each vertex, with the vertices in topological order: a chain has the position of its head,
/// and everything that its head reads is before it.
fn chains(operators: &[ResolvedOperator], chaining: ChainingOptions) -> Vec<Vec<usize>> {
    let mut consumers = vec![0_usize; operators.len()];
    for operator in operators {
        for edge in &operator.inputs {
            consumers[edge.source] += 1;
        }
    }
    let mut chains: Vec<Vec<usize>> = Vec::new();
    let mut chain_of = vec![0; operators.len()];
    for (index, operator) in operators.iter().enumerate() {
        let before = operator.inputs.first().map(|edge| edge.source);
        let chained = before.filter(|&before| {
            chaining.enabled && consumers[before] == 1 && can_follow(operator, &operators[before])
        });
        match chained {
            Some(before) => {
                chain_of[index] = chain_of[before];
                chains[chain_of[before]].push(index);
            }
            None => {
                chain_of[index] = chains.len();
                chains.push(vec![index]);
            }
        }
    }
    chains
}

/// Whether an operator can be chained to the one before it, provided that no other step reads that one.
fn can_follow(operator: &ResolvedOperator, before: &ResolvedOperator) -> bool {
    let forward_only = matches!(
        operator.inputs.as_slice(),
        [edge] if edge.partitioning == v1::Partitioning::Forward
            && edge.exchange != Some(Exchange::Blocking)
    );
    forward_only
        && operator.parallelism == before.parallelism
        && operator.slot_sharing_group == before.slot_sharing_group
        && operator.co_location_group == before.co_location_group
        && operator.chaining
        && before.chaining
}

fn group((name, resources): (&String, &Resources)) -> v1::SlotSharingGroup {
    v1::SlotSharingGroup {
        name: name.clone(),
        resources: Some(resources.into()),
    }
}

fn vertex(job: &ResolvedJob, position: usize, chain: &[usize]) -> v1::JobVertex {
    let operators: Vec<v1::Operator> = chain
        .iter()
        .map(|&index| {
            let operator = &job.operators[index];
            v1::Operator {
                name: operator.name.clone(),
                spec: operator.spec.to_json(),
                output: operator.output.to_proto(),
                uid: operator.uid.clone().unwrap_or_default(),
            }
        })
        .collect();
    let names: Vec<&str> = operators
        .iter()
        .map(|operator| operator.name.as_str())
        .collect();
    let head = chain.first().map(|&index| &job.operators[index]);
    // One task runs them all.
    let needs = chain
        .iter()
        .filter_map(|&index| job.operators[index].resources.clone());
    let needs = needs.reduce(|sum, of_step| sum.plus(&of_step));
    v1::JobVertex {
        id: vertex_id(position, &operators).to_string(),
        name: names.join(" -> "),
        parallelism: head.map_or(1, |head| head.parallelism),
        max_parallelism: job.max_parallelism,
        slot_sharing_group: head
            .map(|head| head.slot_sharing_group.clone())
            .unwrap_or_default(),
        operators,
        resources: needs.map(|needs| (&needs).into()),
        co_location_group: head
            .and_then(|head| head.co_location_group.clone())
            .unwrap_or_default(),
    }
}

/// Hashes a vertex to its id. The length precedes each part, so that two vertices never hash the same bytes.
fn vertex_id(position: usize, operators: &[v1::Operator]) -> JobVertexId {
    let mut hash = Xxh3::new();
    let mut part = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(b"tanist vertex 1");
    part(&(position as u64).to_le_bytes());
    for operator in operators {
        part(operator.name.as_bytes());
        part(operator.spec.as_bytes());
    }
    JobVertexId::from_bits(hash.digest128())
}
