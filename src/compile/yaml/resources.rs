//! Reads the `resources` of a step and of slot sharing groups.

use std::collections::BTreeMap;

use tanist_model::job_file::{Fields, Node, Reader};
use tanist_model::resources::amounts_problem;
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources};

/// The fields that are not extended resources.
const FIELDS: [&str; 4] = ["cpu", "memory", "network-memory", "managed-memory"];

/// Reads the resources of a subtask or of a slot.
pub(super) fn read(reader: &mut Reader, field: &str, node: &Node) -> Option<Resources> {
    let all = reader.map(field, node, "for example `{ cpu: 1, memory: 512 mb }`")?;
    let mut fields = Fields::of(node, reader);
    // An amount that can't be read was reported; one takes its place, as it is not missing.
    let cpu = fields.optional_value("cpu", reader, |reader, field, node| {
        Some(cores(reader, field, node).unwrap_or(CpuCores::whole(1)))
    });
    let mut resources = Resources {
        cpu: cpu.unwrap_or_default(),
        ..Resources::ZERO
    };
    for (name, memory) in [
        ("memory", &mut resources.task_memory),
        ("network-memory", &mut resources.network_memory),
        ("managed-memory", &mut resources.managed_memory),
    ] {
        let amount = fields.optional_value(name, reader, |reader, field, node| {
            Some(reader.bytes(field, node).unwrap_or(1))
        });
        *memory = amount.unwrap_or_default();
    }
    // Every other field is an extended resource; its name is checked together with the amounts.
    for (key, node) in all
        .iter()
        .filter(|(key, _)| !FIELDS.contains(&key.text.as_str()))
    {
        let amount = reader.u64(&key.text, node).unwrap_or_default();
        resources = resources.with_extended(key.text.clone(), amount);
    }
    if let Some(problem) = amounts_problem(&ResourceProfile::Of(resources.clone())) {
        let message = format!(
            "`{field}`: {problem}; there is: {}, and extended resources",
            FIELDS.join(", ")
        );
        reader.problem(Some(node.position), message);
    }
    Some(resources)
}

/// Reads the resources of slot sharing groups, by name.
pub(super) fn groups(node: &Node, reader: &mut Reader) -> BTreeMap<String, Resources> {
    let wanted = "`{ NAME: { cpu: 1, memory: 512 mb } }`";
    let Some(groups) = reader.map("slot-sharing-groups", node, wanted) else {
        return BTreeMap::new();
    };
    let mut all = BTreeMap::new();
    for (name, node) in groups {
        if let Some(resources) = read(reader, &name.text, node) {
            all.insert(name.text.clone(), resources);
        }
    }
    all
}

fn cores(reader: &mut Reader, field: &str, node: &Node) -> Option<CpuCores> {
    let cores = reader.text(field, node)?.parse().ok();
    if cores.is_none() {
        reader.wrong(field, node, "a number of cores, such as `2` or `0.5`");
    }
    cores
}
