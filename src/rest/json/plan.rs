//! The plan of a job: its vertices and the inputs of each. `/jobs/:id/plan`, and part of `/jobs/:id`.

use serde::Serialize;
use tanist_proto::v1::{JobDetails, JobEdgeDetails, VertexDetails};

/// `/jobs/:id/plan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanBody {
    /// The plan.
    pub plan: Plan,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The job.
    pub jid: String,
    /// Its name.
    pub name: String,
    /// The same for all jobs.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its vertices.
    pub nodes: Vec<PlanNode>,
}

/// A vertex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanNode {
    /// Its id.
    pub id: String,
    /// The number of its subtasks.
    pub parallelism: u32,
    /// Empty, as in Flink.
    pub operator: &'static str,
    /// Empty, as in Flink.
    pub operator_strategy: &'static str,
    /// Its name.
    pub description: String,
    /// Its inputs; absent for sources.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<PlanInput>,
    /// Empty, as in Flink.
    pub optimizer_properties: super::Nothing,
}

/// An input of a vertex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanInput {
    /// The number of the input within its vertex.
    pub num: usize,
    /// The vertex that produces it.
    pub id: String,
    /// `FORWARD`, `HASH`, `REBALANCE`, `BROADCAST` or `GLOBAL`.
    pub ship_strategy: String,
    /// `pipelined_bounded`: records flow while both run; `blocking`: after the input has finished.
    pub exchange: &'static str,
}

impl Plan {
    /// The plan of a job.
    pub fn new(job: &JobDetails) -> Plan {
        Plan {
            jid: job.job_id.clone(),
            name: job.name.clone(),
            kind: "STREAMING",
            nodes: job
                .vertices
                .iter()
                .map(|vertex| PlanNode::new(vertex, &job.edges))
                .collect(),
        }
    }
}

impl PlanNode {
    fn new(vertex: &VertexDetails, edges: &[JobEdgeDetails]) -> PlanNode {
        let incoming = edges.iter().filter(|edge| edge.target == vertex.id);
        let input = |(num, edge): (usize, &JobEdgeDetails)| PlanInput {
            num,
            id: edge.source.clone(),
            ship_strategy: edge.partitioning.to_ascii_uppercase(),
            exchange: if edge.blocking {
                "blocking"
            } else {
                "pipelined_bounded"
            },
        };
        PlanNode {
            id: vertex.id.clone(),
            parallelism: vertex.parallelism,
            operator: "",
            operator_strategy: "",
            description: vertex.name.clone(),
            inputs: incoming.enumerate().map(input).collect(),
            optimizer_properties: super::Nothing {},
        }
    }
}
