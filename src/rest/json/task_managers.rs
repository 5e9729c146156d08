//! Bodies about TaskManagers: `/taskmanagers`, `/taskmanagers/:id`.
//!
//! Flink states memory by its JVM pools. There is one pool here, shown as task heap; all other pools are 0. The memory of the
//! process is what the system lets it have, where there is such a limit.

use serde::Serialize;
use tanist_proto::v1::{ResourceProfile, TaskManagerInfo};

use super::Nothing;

/// `/taskmanagers`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskManagers {
    /// Those that are registered.
    pub taskmanagers: Vec<TaskManager>,
}

impl TaskManagers {
    /// These TaskManagers.
    pub fn new(task_managers: &[TaskManagerInfo]) -> TaskManagers {
        TaskManagers {
            taskmanagers: task_managers.iter().map(TaskManager::new).collect(),
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
    /// When it was last heard of, in milliseconds since 1970, as in Flink in spite of the name.
    pub time_since_last_heartbeat: u64,
    /// Its slots.
    pub slots_number: u32,
    /// Those that no job has.
    pub free_slots: u32,
    /// All that it offers.
    pub total_resource: Resource,
    /// What no job has.
    pub free_resource: Resource,
    /// Its host.
    pub hardware: Hardware,
    /// Its memory.
    pub memory_configuration: MemoryConfiguration,
    /// Whether it gets no slot requests any more: it is being drained.
    pub blocked: bool,
}

/// A part of a TaskManager. Memory in MiB.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Cores.
    pub cpu_cores: f64,
    /// All of the memory.
    pub task_heap_memory: u64,
    /// 0.
    pub task_off_heap_memory: u64,
    /// 0.
    pub managed_memory: u64,
    /// 0.
    pub network_memory: u64,
    /// None.
    pub extended_resources: Nothing,
}

impl Resource {
    /// `slots` out of `of` equal parts of `profile`.
    fn part(profile: Option<&ResourceProfile>, slots: u32, of: u32) -> Resource {
        let profile = profile.cloned().unwrap_or_default();
        let (slots, of) = (u64::from(slots), u64::from(of.max(1)));
        let share = slots as f64 / of as f64;
        Resource {
            cpu_cores: profile.cpu_cores * share,
            task_heap_memory: (profile.memory_bytes >> 20) * slots / of,
            task_off_heap_memory: 0,
            managed_memory: 0,
            network_memory: 0,
            extended_resources: Nothing {},
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
    /// 0.
    pub managed_memory: u64,
}

/// The memory of a TaskManager in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryConfiguration {
    /// 0.
    pub framework_heap: u64,
    /// All of it.
    pub task_heap: u64,
    /// 0.
    pub framework_off_heap: u64,
    /// 0.
    pub task_off_heap: u64,
    /// 0.
    pub network_memory: u64,
    /// 0.
    pub managed_memory: u64,
    /// 0.
    pub jvm_metaspace: u64,
    /// 0.
    pub jvm_overhead: u64,
    /// All of it.
    pub total_flink_memory: u64,
    /// What the system lets the process have; without a limit, all of it.
    pub total_process_memory: u64,
}

impl TaskManager {
    /// A registered TaskManager.
    pub fn new(info: &TaskManagerInfo) -> TaskManager {
        let location = info.location.clone().unwrap_or_default();
        let hardware = info.hardware.unwrap_or_default();
        let profile = info.total_profile.as_ref();
        let memory = profile.map_or(0, |profile| profile.memory_bytes);
        let limit = info.memory_configuration.unwrap_or_default();
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
            total_resource: Resource::part(profile, 1, 1),
            free_resource: Resource::part(profile, info.free_slots, info.slots_number),
            hardware: Hardware {
                cpu_cores: hardware.cpu_cores,
                physical_memory: hardware.physical_memory_bytes,
                free_memory: 0,
                managed_memory: 0,
            },
            memory_configuration: MemoryConfiguration {
                task_heap: memory,
                total_flink_memory: memory,
                total_process_memory: match limit.process_limit_bytes {
                    0 => memory,
                    limit => limit,
                },
                ..MemoryConfiguration::default()
            },
            blocked: info.draining,
        }
    }
}
