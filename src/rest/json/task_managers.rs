//! Bodies about TaskManagers: `/taskmanagers`, `/taskmanagers/:id`.
//!
//! Flink reports memory by its JVM pools. Task memory is shown as task heap, the framework's as framework heap,
//! and the overhead as that of the JVM; pools that only a JVM has are 0.

use std::collections::BTreeMap;

use serde::Serialize;
use tanist_proto::resources::Resources;
use tanist_proto::v1::{DrainInfo, ListTaskManagersResponse, ResourceProfile, TaskManagerInfo};

use super::time;

/// `/taskmanagers`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskManagers {
    /// The registered TaskManagers.
    pub taskmanagers: Vec<TaskManager>,
    /// Drains of TaskManagers and hosts that match no registered TaskManager, oldest first.
    #[serde(rename = "unmatched-drains", skip_serializing_if = "Vec::is_empty")]
    pub unmatched_drains: Vec<Drain>,
    /// TaskManagers that are expected to register; only if a driver starts TaskManagers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting: Option<Starting>,
}

/// The state of a driver that starts TaskManagers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Starting {
    /// TaskManagers that have not registered.
    pub pending: Vec<PendingTaskManager>,
    /// Number of starts that failed in this leader's term.
    pub failures: u64,
    /// Text for display: what is under way, and what prevents more starts.
    pub text: String,
    /// Time of the next attempt to start, if it is delayed after too many failures.
    #[serde(rename = "retry-at", skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<i64>,
}

/// A TaskManager that is expected to register.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PendingTaskManager {
    /// Its resource id.
    pub id: String,
    /// The number of slots that it will have.
    pub slots: u32,
    /// When it was requested, in milliseconds since 1970; -1: not known.
    pub since: i64,
}

impl TaskManagers {
    /// As reported by the leader.
    pub fn new(list: &ListTaskManagersResponse) -> TaskManagers {
        let starting = list.workers.as_ref().map(|workers| {
            let pending = workers.pending.iter().map(|worker| PendingTaskManager {
                id: worker.resource_id.clone(),
                slots: worker.slots,
                since: time(worker.requested_at_ms),
            });
            Starting {
                pending: pending.collect(),
                failures: workers.start_failures,
                text: workers.text.clone(),
                retry_at: (workers.retry_at_ms != 0).then(|| time(workers.retry_at_ms)),
            }
        });
        TaskManagers {
            taskmanagers: list.task_managers.iter().map(TaskManager::new).collect(),
            unmatched_drains: list.unmatched_drains.iter().map(Drain::new).collect(),
            starting,
        }
    }
}

/// A TaskManager.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskManager {
    /// Its resource id.
    pub id: String,
    /// `host:port` of its RPC server.
    pub path: String,
    /// The port of its exchange.
    pub data_port: i32,
    /// There is none.
    pub jmx_port: i32,
    /// Time of its last heartbeat, in milliseconds since 1970, as in Flink in spite of the name.
    pub time_since_last_heartbeat: u64,
    /// Number of its slots.
    pub slots_number: u32,
    /// Number of slots that no job has.
    pub free_slots: u32,
    /// Number of tasks that run there, as of its last heartbeat.
    pub assigned_tasks: u32,
    /// All resources that it offers.
    pub total_resource: Resource,
    /// The resources that no job has.
    pub free_resource: Resource,
    /// Its host.
    pub hardware: Hardware,
    /// Its memory.
    pub memory_configuration: MemoryConfiguration,
    /// Whether it gets no slot requests any more because it is being drained.
    pub blocked: bool,
    /// The progress of the drain; absent if it is not drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
}

/// The drain of a TaskManager, its begin and reason. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Drain {
    /// When it was requested.
    pub since: i64,
    /// The operator who requested it; empty if not given.
    pub by: String,
    /// The reason; empty if not given.
    pub reason: String,
    /// The host that is drained, if the host is drained as a whole; else empty.
    pub host: String,
    /// The TaskManager that is drained, if it is not registered and not drained with its host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub task_manager: String,
    /// Whether running tasks are being moved.
    pub evicting: bool,
    /// When they are moved in any case; -1: never.
    pub deadline: i64,
    /// Whether it leaves at the deadline even if there are no slots elsewhere.
    pub force: bool,
    /// The jobs that have slots there.
    pub jobs: Vec<String>,
    /// Number of outputs that are kept there for tasks that still read them.
    pub kept_outputs: u32,
    /// Whether nothing is left there.
    pub drained: bool,
}

impl Drain {
    fn new(info: &DrainInfo) -> Drain {
        Drain {
            since: time(info.since_ms),
            by: info.by.clone(),
            reason: info.reason.clone(),
            host: info.host.clone(),
            task_manager: info.resource_id.clone(),
            evicting: info.evicting,
            deadline: time(info.deadline_ms),
            force: info.force,
            jobs: info.jobs.clone(),
            kept_outputs: info.kept_outputs,
            drained: info.drained,
        }
    }
}

/// Total or free resources of a TaskManager. Memory in MiB.
#[derive(Debug, Clone, PartialEq, Serialize)]
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

impl Resource {
    fn new(profile: Option<&ResourceProfile>) -> Resource {
        let resources = profile.map(Resources::from).unwrap_or_default();
        let extended = resources.all_extended();
        Resource {
            cpu_cores: resources.cpu.cores(),
            task_heap_memory: resources.task_memory >> 20,
            task_off_heap_memory: 0,
            managed_memory: resources.managed_memory >> 20,
            network_memory: resources.network_memory >> 20,
            extended_resources: extended.map(|(name, it)| (name.to_owned(), it)).collect(),
        }
    }
}

/// A host. Memory in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
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

impl TaskManager {
    /// A registered TaskManager.
    pub fn new(info: &TaskManagerInfo) -> TaskManager {
        let location = info.location.clone().unwrap_or_default();
        let hardware = info.hardware.unwrap_or_default();
        let profile = info.total_profile.as_ref();
        let resources = profile.map(Resources::from).unwrap_or_default();
        let memory = info.memory_configuration.unwrap_or_default();
        let flink = resources
            .total_memory()
            .saturating_add(memory.framework_bytes);
        let data_port = location.data_address.rsplit_once(':');
        TaskManager {
            id: location.resource_id,
            path: location.rpc_address,
            data_port: data_port
                .and_then(|(_, port)| port.parse().ok())
                .unwrap_or(-1),
            jmx_port: -1,
            time_since_last_heartbeat: info.last_heartbeat_ms,
            slots_number: info.slots_number,
            free_slots: info.free_slots,
            assigned_tasks: info.allocated_slots.iter().map(|slot| slot.tasks).sum(),
            total_resource: Resource::new(profile),
            free_resource: Resource::new(info.free_profile.as_ref()),
            hardware: Hardware {
                cpu_cores: hardware.cpu_cores,
                physical_memory: hardware.physical_memory_bytes,
                free_memory: 0,
                managed_memory: resources.managed_memory,
            },
            memory_configuration: MemoryConfiguration {
                framework_heap: memory.framework_bytes,
                task_heap: resources.task_memory,
                network_memory: resources.network_memory,
                managed_memory: resources.managed_memory,
                jvm_overhead: memory.overhead_bytes,
                total_flink_memory: flink,
                total_process_memory: flink.saturating_add(memory.overhead_bytes),
                ..MemoryConfiguration::default()
            },
            blocked: info.draining,
            drain: info.drain.as_ref().map(Drain::new),
        }
    }
}

/// `/taskmanagers/:id`: the same, with its slots.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskManagerDetails {
    #[serde(flatten)]
    task_manager: TaskManager,
    /// The slots that jobs have.
    pub allocated_slots: Vec<AllocatedSlot>,
    /// Flink's metrics of the JVM.
    pub metrics: TaskManagerMetrics,
}

/// A slot that a job has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedSlot {
    /// The job.
    pub job_id: String,
    /// Its resources.
    pub resource: Resource,
    /// Number of tasks that run in it, as of the last heartbeat.
    pub assigned_tasks: u32,
}

/// Flink's metrics of a TaskManager's JVM. There is none: all 0, except for the memory of the exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "the names are Flink's, and say all there is to say"
)]
pub struct TaskManagerMetrics {
    pub heap_used: u64,
    pub heap_committed: u64,
    pub heap_max: u64,
    pub non_heap_used: u64,
    pub non_heap_committed: u64,
    pub non_heap_max: u64,
    pub direct_count: u64,
    pub direct_used: u64,
    pub direct_max: u64,
    pub mapped_count: u64,
    pub mapped_used: u64,
    pub mapped_max: u64,
    pub netty_shuffle_memory_segments_available: u64,
    pub netty_shuffle_memory_segments_used: u64,
    pub netty_shuffle_memory_segments_total: u64,
    pub netty_shuffle_memory_available: u64,
    pub netty_shuffle_memory_used: u64,
    pub netty_shuffle_memory_total: u64,
    pub garbage_collectors: [u64; 0],
}

impl TaskManagerDetails {
    /// A registered TaskManager.
    pub fn new(info: &TaskManagerInfo) -> TaskManagerDetails {
        let network = |profile: Option<&ResourceProfile>| {
            profile.map_or(0, |profile| profile.network_memory_bytes)
        };
        let (total, free) = (
            network(info.total_profile.as_ref()),
            network(info.free_profile.as_ref()),
        );
        let slots = info.allocated_slots.iter().map(|slot| AllocatedSlot {
            job_id: slot.job_id.clone(),
            resource: Resource::new(slot.profile.as_ref()),
            assigned_tasks: slot.tasks,
        });
        TaskManagerDetails {
            task_manager: TaskManager::new(info),
            allocated_slots: slots.collect(),
            metrics: TaskManagerMetrics {
                netty_shuffle_memory_available: free,
                netty_shuffle_memory_used: total.saturating_sub(free),
                netty_shuffle_memory_total: total,
                ..TaskManagerMetrics::default()
            },
        }
    }
}
