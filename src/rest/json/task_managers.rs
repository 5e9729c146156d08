//! Bodies about TaskManagers: `/taskmanagers`, `/taskmanagers/:id`.

use serde::Serialize;
use tanist_proto::resources::Resources;
use tanist_proto::v1::{DrainInfo, ListTaskManagersResponse, ResourceProfile, TaskManagerInfo};
use tanist_rest_model::{
    DrainSummary, Hardware, MemoryConfiguration, PendingTaskManager, Resource, Starting,
    TaskManagerList, TaskManagerSummary,
};

use super::time;

/// As reported by the leader.
pub(crate) fn task_manager_list(list: &ListTaskManagersResponse) -> TaskManagerList {
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
    TaskManagerList {
        registered: list.task_managers.iter().map(summary).collect(),
        unmatched_drains: list.unmatched_drains.iter().map(drain).collect(),
        starting,
    }
}

fn drain(info: &DrainInfo) -> DrainSummary {
    DrainSummary {
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

fn resource(profile: Option<&ResourceProfile>) -> Resource {
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

fn summary(info: &TaskManagerInfo) -> TaskManagerSummary {
    let location = info.location.clone().unwrap_or_default();
    let hardware = info.hardware.unwrap_or_default();
    let profile = info.total_profile.as_ref();
    let resources = profile.map(Resources::from).unwrap_or_default();
    let memory = info.memory_configuration.unwrap_or_default();
    let flink = resources
        .total_memory()
        .saturating_add(memory.framework_bytes);
    let data_port = location.data_address.rsplit_once(':');
    TaskManagerSummary {
        id: location.resource_id,
        path: location.rpc_address,
        data_port: data_port
            .and_then(|(_, port)| port.parse().ok())
            .unwrap_or(-1),
        jmx_port: -1,
        last_heartbeat: info.last_heartbeat_ms,
        slots_number: info.slots_number,
        free_slots: info.free_slots,
        assigned_tasks: info.allocated_slots.iter().map(|slot| slot.tasks).sum(),
        total_resource: resource(profile),
        free_resource: resource(info.free_profile.as_ref()),
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
        drain: info.drain.as_ref().map(drain),
    }
}

/// `/taskmanagers/:id`: the same, with its slots.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskManagerDetails {
    #[serde(flatten)]
    task_manager: TaskManagerSummary,
    /// The slots that jobs have.
    allocated_slots: Vec<AllocatedSlot>,
    /// Flink's metrics of the JVM.
    metrics: TaskManagerMetrics,
}

/// A slot that a job has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct AllocatedSlot {
    job_id: String,
    resource: Resource,
    /// Number of tasks that run in it, as of the last heartbeat.
    assigned_tasks: u32,
}

/// Flink's metrics of a TaskManager's JVM. There is none: all 0, except for the memory of the exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskManagerMetrics {
    heap_used: u64,
    heap_committed: u64,
    heap_max: u64,
    non_heap_used: u64,
    non_heap_committed: u64,
    non_heap_max: u64,
    direct_count: u64,
    direct_used: u64,
    direct_max: u64,
    mapped_count: u64,
    mapped_used: u64,
    mapped_max: u64,
    netty_shuffle_memory_segments_available: u64,
    netty_shuffle_memory_segments_used: u64,
    netty_shuffle_memory_segments_total: u64,
    netty_shuffle_memory_available: u64,
    netty_shuffle_memory_used: u64,
    netty_shuffle_memory_total: u64,
    garbage_collectors: [u64; 0],
}

impl TaskManagerDetails {
    /// A registered TaskManager.
    pub(crate) fn new(info: &TaskManagerInfo) -> TaskManagerDetails {
        let network = |profile: Option<&ResourceProfile>| {
            profile.map_or(0, |profile| profile.network_memory_bytes)
        };
        let (total, free) = (
            network(info.total_profile.as_ref()),
            network(info.free_profile.as_ref()),
        );
        let slots = info.allocated_slots.iter().map(|slot| AllocatedSlot {
            job_id: slot.job_id.clone(),
            resource: resource(slot.profile.as_ref()),
            assigned_tasks: slot.tasks,
        });
        TaskManagerDetails {
            task_manager: summary(info),
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
