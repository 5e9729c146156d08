//! The plan of a job: its vertices and the inputs of each. `/jobs/:id/plan`, and part of `/jobs/:id`.

use serde::Serialize;
use tanist_proto::v1::{JobDetails, JobEdgeDetails, VertexDetails};
use tanist_rest_model::{Nothing, Plan, PlanInput, PlanNode};

use super::{JOB_TYPE, job_id};

/// `/jobs/:id/plan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PlanBody {
    /// The plan.
    pub(crate) plan: Plan,
}

/// The plan of a job.
pub(crate) fn plan_of(job: &JobDetails) -> Plan {
    let nodes = job.vertices.iter().map(|vertex| node(vertex, &job.edges));
    Plan {
        jid: job_id(&job.job_id),
        name: job.name.clone(),
        kind: JOB_TYPE.into(),
        nodes: nodes.collect(),
    }
}

fn node(vertex: &VertexDetails, edges: &[JobEdgeDetails]) -> PlanNode {
    let incoming = edges.iter().filter(|edge| edge.target == vertex.id);
    let input = |(num, edge): (usize, &JobEdgeDetails)| PlanInput {
        num,
        id: edge.source.clone(),
        ship_strategy: edge.partitioning.to_ascii_uppercase(),
        exchange: match edge.blocking {
            true => "blocking".into(),
            false => "pipelined_bounded".into(),
        },
    };
    PlanNode {
        id: vertex.id.clone(),
        parallelism: vertex.parallelism,
        operator: "".into(),
        operator_strategy: "".into(),
        description: vertex.name.clone(),
        inputs: incoming.enumerate().map(input).collect(),
        optimizer_properties: Nothing {},
    }
}
