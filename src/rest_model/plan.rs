//! The plan of a job: its vertices and the inputs of each. `/jobs/{job}/plan`, and part of `/jobs/{job}`.

use serde::{Deserialize, Serialize};
use tanist_proto::id::JobId;

use super::{Nothing, Word};

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The job.
    pub jid: JobId,
    /// Its name.
    pub name: String,
    /// The same for all jobs.
    #[serde(rename = "type")]
    pub kind: Word,
    /// Its vertices.
    pub nodes: Vec<PlanNode>,
}

/// A vertex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanNode {
    /// Its id.
    pub id: String,
    /// Number of its subtasks.
    pub parallelism: u32,
    /// Empty, as in Flink.
    pub operator: Word,
    /// Empty, as in Flink.
    pub operator_strategy: Word,
    /// Its name.
    pub description: String,
    /// Its inputs; absent for sources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<PlanInput>,
    /// Empty, as in Flink.
    pub optimizer_properties: Nothing,
}

/// An input of a vertex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanInput {
    /// The number of the input within its vertex.
    pub num: usize,
    /// The vertex that produces it.
    pub id: String,
    /// `FORWARD`, `HASH`, `REBALANCE`, `BROADCAST` or `GLOBAL`.
    pub ship_strategy: String,
    /// `pipelined_bounded`: records flow while both run; `blocking`: after the input has finished.
    pub exchange: Word,
}
