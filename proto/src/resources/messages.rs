//! Resources as messages. An absent message means that nothing is specified.

use super::amounts::{CpuCores, Resources};
use super::profile::ResourceProfile;
use super::worker::WorkerResourceSpec;
use crate::v1 as pb;

impl From<&pb::ResourceProfile> for Resources {
    /// Memory without a purpose, as in messages of older programs, is for tasks.
    fn from(message: &pb::ResourceProfile) -> Resources {
        let (network_memory, managed_memory) =
            (message.network_memory_bytes, message.managed_memory_bytes);
        let others = network_memory.saturating_add(managed_memory);
        let resources = Resources {
            cpu: CpuCores::from_cores(message.cpu_cores),
            task_memory: message.memory_bytes.saturating_sub(others),
            network_memory,
            managed_memory,
            ..Resources::ZERO
        };
        let extended = message.extended.iter();
        extended.fold(resources, |resources, it| {
            let amount = resources.extended(&it.name).saturating_add(it.amount);
            resources.with_extended(it.name.clone(), amount)
        })
    }
}

impl From<&Resources> for pb::ResourceProfile {
    fn from(resources: &Resources) -> pb::ResourceProfile {
        let extended = resources
            .all_extended()
            .map(|(name, amount)| pb::ExtendedResource {
                name: name.to_owned(),
                amount,
            });
        pb::ResourceProfile {
            cpu_cores: resources.cpu.cores(),
            memory_bytes: resources.total_memory(),
            network_memory_bytes: resources.network_memory,
            managed_memory_bytes: resources.managed_memory,
            extended: extended.collect(),
            any: false,
        }
    }
}

impl ResourceProfile {
    /// Reads a message.
    pub fn from_message(message: Option<&pb::ResourceProfile>) -> ResourceProfile {
        match message {
            None => ResourceProfile::Unknown,
            Some(message) if message.any => ResourceProfile::Any,
            Some(message) => ResourceProfile::Of(message.into()),
        }
    }

    /// Converts to a message.
    pub fn to_message(&self) -> Option<pb::ResourceProfile> {
        match self {
            ResourceProfile::Unknown => None,
            ResourceProfile::Any => Some(pb::ResourceProfile {
                any: true,
                ..pb::ResourceProfile::default()
            }),
            ResourceProfile::Of(resources) => Some(resources.into()),
        }
    }
}

impl WorkerResourceSpec {
    /// Converts to the message with which a TaskManager registers.
    pub fn to_message(&self) -> pb::ResourceProfile {
        self.total().into()
    }
}
