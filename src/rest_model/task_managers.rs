//! TaskManagers: `/taskmanagers`.
//!
//! Flink reports memory by its JVM pools. Task memory is shown as task heap, the framework's as framework heap,
//! and the overhead as that of the JVM; pools that only a JVM has are 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::drain::DrainSummary;

/// `/taskmanagers`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskManagerList {
    /// The registered TaskManagers.
    #[serde(rename = "taskmanagers")]
    pub registered: Vec<TaskManagerSummary>,
    /// Drains of TaskManagers and hosts that match no registered TaskManager, oldest first.
    #[serde(
        rename = "unmatched-drains",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    pub unmatched_drains: Vec<DrainSummary>,
    /// TaskManagers that are expected to register; only if a driver starts TaskManagers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting: Option<Starting>,
}

/// The state of a driver that starts TaskManagers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Starting {
    /// TaskManagers that have not registered.
    pub pending: Vec<PendingTaskManager>,
    /// Number of starts that failed in this leader's term.
    pub failures: u64,
    /// Text for people: what is under way, and what prevents more starts.
    pub text: String,
    /// Time of the next attempt to start, if it is delayed after too many failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<i64>,
}

/// A TaskManager that is expected to register.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingTaskManager {
    /// Its resource id.
    pub id: String,
    /// Number of slots that it will have.
    pub slots: u32,
    /// When it was requested; -1: unknown.
    pub since: i64,
}

/// A TaskManager in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskManagerSummary {
    /// Its resource id.
    pub id: String,
    /// `host:port` of its RPC server.
    pub path: String,
    /// The port of its exchange.
    #[serde(default)]
    pub data_port: i32,
    /// There is none: -1.
    #[serde(default)]
    pub jmx_port: i32,
    /// Time of its last heartbeat, as in Flink in spite of the name.
    #[serde(rename = "timeSinceLastHeartbeat")]
    pub last_heartbeat: u64,
    /// Number of its slots.
    pub slots_number: u32,
    /// Number of slots that no job has.
    pub free_slots: u32,
    /// Number of tasks that run there, as of its last heartbeat.
    #[serde(default)]
    pub assigned_tasks: u32,
    /// All resources that it offers.
    #[serde(default)]
    pub total_resource: Resource,
    /// The resources that no job has.
    #[serde(default)]
    pub free_resource: Resource,
    /// Its host.
    #[serde(default)]
    pub hardware: Hardware,
    /// Its memory.
    #[serde(default)]
    pub memory_configuration: MemoryConfiguration,
    /// Whether it is drained: it gives no slots to jobs any more.
    #[serde(default)]
    pub blocked: bool,
    /// Progress of the drain; absent if it is not drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainSummary>,
}

/// Total or free resources of a TaskManager. Memory in MiB.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Cores.
    pub cpu_cores: f64,
    /// Memory for tasks.
    pub task_heap_memory: u64,
    /// Always 0.
    pub task_off_heap_memory: u64,
    /// Memory for state.
    pub managed_memory: u64,
    /// Memory for records between tasks.
    pub network_memory: u64,
    /// Other resources that are counted, by name.
    pub extended_resources: BTreeMap<String, u64>,
}

/// A host. Memory in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hardware {
    /// Cores.
    pub cpu_cores: u32,
    /// Memory.
    pub physical_memory: u64,
    /// Not measured.
    pub free_memory: u64,
    /// The managed memory of the TaskManager.
    pub managed_memory: u64,
}

/// The memory of a TaskManager in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryConfiguration {
    /// Memory of the TaskManager itself.
    pub framework_heap: u64,
    /// Memory for tasks.
    pub task_heap: u64,
    /// Always 0.
    pub framework_off_heap: u64,
    /// Always 0.
    pub task_off_heap: u64,
    /// Memory for records between tasks.
    pub network_memory: u64,
    /// Memory for state.
    pub managed_memory: u64,
    /// Always 0.
    pub jvm_metaspace: u64,
    /// Memory that is not counted.
    pub jvm_overhead: u64,
    /// All memory except the overhead.
    pub total_flink_memory: u64,
    /// All memory of the process.
    pub total_process_memory: u64,
}
