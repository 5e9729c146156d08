//! Builds the resources of a TaskManager: cores, memory, and other resources.

use std::time::Duration;

use tanist_proto::resources::CpuCores;

use super::super::external::ExternalResource;
use super::super::memory::{MemoryOptions, Share};
use super::super::table::*;
use super::super::value::{MemorySize, show_duration};
use super::Builder;

/// The fraction (one tenth) of `heartbeat.timeout` that is left for clock differences and late threads.
const ISOLATION_MARGIN: u32 = 10;
/// With a shorter timeout the store could not be asked often enough.
const SHORTEST_ISOLATION: Duration = Duration::from_secs(1);

impl Builder<'_> {
    /// The timeouts after which isolated tasks are stopped, and for stopping them. Both together are over
    /// before another TaskManager starts these tasks.
    pub(super) fn isolation(&mut self) -> (Duration, Duration) {
        let lost = self.values.get(&HEARTBEAT_TIMEOUT);
        let timeout = self.values.find(&TM_ISOLATION);
        let timeout = timeout.unwrap_or(lost / 5 * 3);
        let cancellation = self.values.find(&TM_ISOLATION_CANCELLATION);
        let cancellation = cancellation.unwrap_or(lost / 5);
        let keys = [
            TM_ISOLATION.name,
            TM_ISOLATION_CANCELLATION.name,
            HEARTBEAT_TIMEOUT.name,
        ];
        let margin = lost / ISOLATION_MARGIN;
        let needed = timeout.saturating_add(cancellation).saturating_add(margin);
        self.require(needed <= lost, &keys, || {
            format!(
                "tasks must have stopped before others start elsewhere: the first two must be at most nine tenths of the last together, {}",
                show_duration(lost.saturating_sub(margin))
            )
        });
        if self.values.find(&TM_ISOLATION).is_some() {
            self.require(timeout >= SHORTEST_ISOLATION, &keys[..1], || {
                format!("write at least `{}`", show_duration(SHORTEST_ISOLATION))
            });
        }
        (timeout, cancellation)
    }

    pub(super) fn cpu(&mut self) -> Option<CpuCores> {
        let cores = self.values.find(&TM_CPU);
        let is_positive = cores.is_none_or(|cores| cores > CpuCores::ZERO);
        self.require(is_positive, &[TM_CPU.name], || {
            "write more than 0".to_owned()
        });
        cores
    }

    pub(super) fn memory(&mut self) -> MemoryOptions {
        let values = self.values;
        let bytes = |key| values.find(key).map(MemorySize::bytes);
        let network = self.share(
            [&MEMORY_NETWORK_MIN, &MEMORY_NETWORK_MAX],
            &MEMORY_NETWORK_FRACTION,
        );
        let overhead = self.share(
            [&MEMORY_OVERHEAD_MIN, &MEMORY_OVERHEAD_MAX],
            &MEMORY_OVERHEAD_FRACTION,
        );
        let managed_fraction = self.fraction(&MEMORY_MANAGED_FRACTION);
        let set: Vec<&'static str> = MEMORY_KEYS
            .into_iter()
            .filter(|key| values.is_set(key))
            .collect();
        let memory = MemoryOptions {
            process: bytes(&MEMORY_PROCESS),
            flink: bytes(&MEMORY_FLINK),
            framework: values.get(&MEMORY_FRAMEWORK).bytes(),
            task: bytes(&MEMORY_TASK),
            network,
            managed: bytes(&MEMORY_MANAGED),
            managed_fraction,
            overhead,
            is_configured: !set.is_empty(),
        };
        // Only contradictions that do not depend on the host are found here: with one of these sizes, the memory of
        // the system does not matter.
        let has_base = memory.process.is_some() || memory.flink.is_some() || memory.task.is_some();
        if has_base && let Err(contradiction) = memory.resolve(0) {
            self.require(false, &set, || contradiction.to_string());
        }
        memory
    }

    /// Reads a fraction of a total with its bounds.
    fn share(&mut self, [min_key, max_key]: [&Key<MemorySize>; 2], fraction: &Key<f64>) -> Share {
        let (min, max) = (self.values.get(min_key), self.values.find(max_key));
        let fraction = self.fraction(fraction);
        let is_range = max.is_none_or(|max| min <= max);
        self.require(is_range, &[min_key.name, max_key.name], || {
            format!("write at least `{}: {min}`", max_key.name)
        });
        Share {
            fraction,
            min: min.bytes(),
            max: max.map_or(u64::MAX, MemorySize::bytes),
        }
    }

    fn fraction(&mut self, key: &Key<f64>) -> f64 {
        let fraction = self.values.get(key);
        let is_part = (0.0..1.0).contains(&fraction);
        self.require(is_part, &[key.name], || {
            "write 0 or more, and less than 1".to_owned()
        });
        if is_part { fraction } else { 0.0 }
    }

    pub(super) fn external_resources(&mut self) -> Vec<ExternalResource> {
        let all = self.values.find(&TM_EXTERNAL).unwrap_or_default();
        for (number, resource) in all.iter().enumerate() {
            let is_new = all[..number].iter().all(|it| it.name != resource.name);
            self.require(is_new, &[TM_EXTERNAL.name], || {
                format!("`{}` is there twice: remove one", resource.name)
            });
        }
        all
    }
}

/// The memory keys. If none is set, the memory that the system allows the process is divided.
const MEMORY_KEYS: [&str; 12] = [
    MEMORY_PROCESS.name,
    MEMORY_FLINK.name,
    MEMORY_FRAMEWORK.name,
    MEMORY_TASK.name,
    MEMORY_NETWORK_FRACTION.name,
    MEMORY_NETWORK_MIN.name,
    MEMORY_NETWORK_MAX.name,
    MEMORY_MANAGED.name,
    MEMORY_MANAGED_FRACTION.name,
    MEMORY_OVERHEAD_FRACTION.name,
    MEMORY_OVERHEAD_MIN.name,
    MEMORY_OVERHEAD_MAX.name,
];
