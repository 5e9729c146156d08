//! Resource profiles of a job's slots, and the share of each vertex in them. All functions also accept an
//! invalid JobGraph.
//!
//! Resources are stated for the subtasks of a vertex or for the slots of a slot sharing group, and either for
//! the whole job or not at all: a slot without a profile may have less than a task in it needs. A slot has the
//! sum of what its subtasks need, and all slots of a group have the same profile.

use std::collections::{BTreeMap, HashMap};

use tanist_proto::id::JobVertexId;
use tanist_proto::resources::{ResourceProfile, Resources, extended_name_problem};
use tanist_proto::v1::{JobGraph, JobVertex};

use crate::topology;

/// Profile of the slots of this slot sharing group.
pub fn slot_profile(graph: &JobGraph, group: &str) -> ResourceProfile {
    let stated = group_profile(graph, group);
    if !stated.is_unknown() {
        return stated;
    }
    let vertices = graph.vertices.iter();
    let needs = vertices
        .filter(|vertex| vertex.slot_sharing_group == group)
        .map(vertex_profile);
    needs
        .reduce(|sum, profile| sum.merge(&profile))
        .unwrap_or_default()
}

/// The part of a slot's extended resources that this vertex's tasks may use: their own share if resources are
/// stated per vertex, else all of them.
pub fn share_of(
    graph: &JobGraph,
    vertex: JobVertexId,
    slot: &BTreeMap<String, Vec<u64>>,
) -> BTreeMap<String, Vec<u64>> {
    let Some(own) = topology::vertex(graph, vertex) else {
        return BTreeMap::new();
    };
    let is_shared = !group_profile(graph, &own.slot_sharing_group).is_unknown();
    let Some(needs) = vertex_profile(own)
        .resources()
        .filter(|_| !is_shared)
        .cloned()
    else {
        return slot.clone();
    };
    // Each vertex takes the indices after those of the vertices before it, so no two tasks of a slot get the same one.
    let before = graph.vertices.iter().take_while(|it| it.id != own.id);
    let before: Vec<&JobVertex> = before
        .filter(|it| it.slot_sharing_group == own.slot_sharing_group)
        .collect();
    let amount_of = |vertex: &JobVertex, name: &str| {
        let needs = vertex_profile(vertex);
        let amount = needs.resources().map_or(0, |needs| needs.extended(name));
        usize::try_from(amount).unwrap_or(usize::MAX)
    };
    let mut share = BTreeMap::new();
    for (name, indices) in slot {
        let skipped = before.iter().map(|it| amount_of(it, name));
        let skipped = skipped.fold(0, usize::saturating_add);
        let wanted = usize::try_from(needs.extended(name)).unwrap_or(usize::MAX);
        let own: Vec<u64> = indices.iter().skip(skipped).take(wanted).copied().collect();
        if !own.is_empty() {
            share.insert(name.clone(), own);
        }
    }
    share
}

/// Returns the problems of a graph's resources and co-location groups.
pub fn problems(graph: &JobGraph) -> Vec<String> {
    let mut problems = group_problems(graph);
    problems.extend(partial(graph));
    for vertex in &graph.vertices {
        if let Some(problem) = amounts_problem(&vertex_profile(vertex)) {
            problems.push(format!("vertex `{}`: {problem}", vertex.name));
        }
    }
    problems.extend(co_location_problems(graph));
    problems
}

/// Returns the problem of stated amounts; `None` if there is none.
pub fn amounts_problem(profile: &ResourceProfile) -> Option<String> {
    let resources = match profile {
        ResourceProfile::Unknown => return None,
        ResourceProfile::Any => return Some("its resources are no amounts".to_owned()),
        ResourceProfile::Of(resources) => resources,
    };
    if resources.cpu == Resources::ZERO.cpu && resources.task_memory == 0 {
        return Some("its resources have neither CPU nor task memory".to_owned());
    }
    let names = resources.all_extended().map(|(name, _)| name);
    names.into_iter().find_map(|name| {
        let problem = extended_name_problem(name)?;
        Some(format!("the extended resource `{name}` {problem}"))
    })
}

fn vertex_profile(vertex: &JobVertex) -> ResourceProfile {
    ResourceProfile::from_message(vertex.resources.as_ref())
}

fn group_profile(graph: &JobGraph, group: &str) -> ResourceProfile {
    let mut groups = graph.slot_sharing_groups.iter();
    let stated = groups.find(|stated| stated.name == group);
    ResourceProfile::from_message(stated.and_then(|stated| stated.resources.as_ref()))
}

fn group_problems(graph: &JobGraph) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, group) in graph.slot_sharing_groups.iter().enumerate() {
        let name = &group.name;
        let same = |other: &&tanist_proto::v1::SlotSharingGroup| other.name == *name;
        if graph.slot_sharing_groups[..number]
            .iter()
            .any(|other| same(&other))
        {
            problems.push(format!("slot sharing group `{name}` is there twice"));
        }
        let mut vertices = graph.vertices.iter();
        if !vertices.any(|vertex| vertex.slot_sharing_group == *name) {
            problems.push(format!("slot sharing group `{name}` has no steps"));
        }
        let profile = ResourceProfile::from_message(group.resources.as_ref());
        if let Some(problem) = amounts_problem(&profile) {
            problems.push(format!("slot sharing group `{name}`: {problem}"));
        }
        let mut vertices = graph.vertices.iter();
        let both = vertices.find(|it| it.slot_sharing_group == *name && it.resources.is_some());
        if let Some(both) = both.filter(|_| !profile.is_unknown()) {
            problems.push(format!(
                "slot sharing group `{name}` states resources, and so does `{}` in it: remove one of the two",
                both.name
            ));
        }
    }
    problems
}

/// Returns a problem if resources are stated for some vertices only.
fn partial(graph: &JobGraph) -> Option<String> {
    let is_stated = |vertex: &&JobVertex| {
        vertex.resources.is_some() || !group_profile(graph, &vertex.slot_sharing_group).is_unknown()
    };
    let (stated, others): (Vec<&JobVertex>, Vec<&JobVertex>) =
        graph.vertices.iter().partition(is_stated);
    let (stated, other) = (stated.first()?, others.first()?);
    Some(format!(
        "resources are stated for `{}`, but not for `{}`: state them for all steps or slot sharing groups of the job, or for none",
        stated.name, other.name
    ))
}

/// Checks that subtasks of a co-location group can share a slot.
fn co_location_problems(graph: &JobGraph) -> Vec<String> {
    let mut firsts: HashMap<&str, &JobVertex> = HashMap::new();
    let mut problems = Vec::new();
    let named = graph
        .vertices
        .iter()
        .filter(|it| !it.co_location_group.is_empty());
    for vertex in named {
        let group = vertex.co_location_group.as_str();
        let first = *firsts.entry(group).or_insert(vertex);
        let (one, other) = (&first.name, &vertex.name);
        if first.slot_sharing_group != vertex.slot_sharing_group {
            problems.push(format!(
                "`{one}` and `{other}` are in the co-location group `{group}`, but in the slot sharing groups `{}` and `{}`: they \
                 can only share a slot in the same one",
                first.slot_sharing_group, vertex.slot_sharing_group
            ));
        }
        if first.parallelism != vertex.parallelism {
            problems.push(format!(
                "`{one}` and `{other}` are in the co-location group `{group}`, but have parallelism {} and {}: make them equal",
                first.parallelism, vertex.parallelism
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use tanist_proto::resources::CpuCores;
    use tanist_proto::v1::SlotSharingGroup;

    use super::*;

    fn needs(cpu: u32, gpus: u64) -> Resources {
        let resources = Resources {
            cpu: CpuCores::whole(cpu),
            ..Resources::ZERO
        };
        resources.with_extended("gpu", gpus)
    }

    fn vertex(number: u128, group: &str, needs: Option<Resources>) -> JobVertex {
        JobVertex {
            id: JobVertexId::from_bits(number).to_string(),
            name: format!("v{number}"),
            parallelism: 2,
            slot_sharing_group: group.to_owned(),
            resources: needs.map(|needs| (&needs).into()),
            ..JobVertex::default()
        }
    }

    fn graph(vertices: Vec<JobVertex>, groups: &[(&str, Resources)]) -> JobGraph {
        let group = |(name, resources): &(&str, Resources)| SlotSharingGroup {
            name: (*name).to_owned(),
            resources: Some(resources.into()),
        };
        JobGraph {
            vertices,
            slot_sharing_groups: groups.iter().map(group).collect(),
            ..JobGraph::default()
        }
    }

    #[test]
    fn a_slot_has_what_its_subtasks_need_together_or_what_the_group_states() {
        let vertices = vec![
            vertex(1, "a", Some(needs(1, 1))),
            vertex(2, "a", Some(needs(2, 1))),
            vertex(3, "b", None),
        ];
        let graph = graph(vertices, &[("b", needs(4, 0))]);
        assert_eq!(problems(&graph), [""; 0]);
        assert_eq!(slot_profile(&graph, "a"), needs(3, 2).into());
        assert_eq!(slot_profile(&graph, "b"), needs(4, 0).into());
        assert!(slot_profile(&graph, "c").is_unknown());
    }

    #[test]
    fn resources_for_a_part_of_the_job_are_refused_and_so_are_two_statements_about_one() {
        let one = vec![vertex(1, "a", Some(needs(1, 0))), vertex(2, "a", None)];
        let found = problems(&graph(one, &[]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("`v1`") && found[0].contains("`v2`"),
            "{found:?}"
        );
        let both = vec![vertex(1, "a", Some(needs(1, 0)))];
        let found = problems(&graph(both, &[("a", needs(1, 0)), ("x", needs(0, 1))]));
        let found = found.join("\n");
        for part in [
            "so does `v1`",
            "`x` has no steps",
            "`x`: its resources have neither",
        ] {
            assert!(found.contains(part), "{found}");
        }
    }

    #[test]
    fn tasks_in_one_slot_have_their_own_of_its_extended_resources() {
        let slot = BTreeMap::from([("gpu".to_owned(), vec![2, 5, 7])]);
        let vertices = vec![
            vertex(1, "a", Some(needs(1, 1))),
            vertex(2, "b", Some(needs(1, 1))),
            vertex(3, "a", Some(needs(1, 2))),
            vertex(4, "a", Some(needs(1, 0))),
        ];
        let stated = graph(vertices.clone(), &[]);
        let share = |graph: &JobGraph, number| {
            let share = share_of(graph, JobVertexId::from_bits(number), &slot);
            share.get("gpu").cloned().unwrap_or_default()
        };
        assert_eq!(share(&stated, 1), [2]);
        assert_eq!(share(&stated, 3), [5, 7]);
        assert_eq!(share(&stated, 4), [0; 0]);
        assert_eq!(share(&stated, 9), [0; 0], "there is no such vertex");
        let plain = graph(vec![vertex(1, "a", None)], &[("a", needs(1, 3))]);
        assert_eq!(share(&plain, 1), [2, 5, 7], "the group's");
        let plain = graph(vec![vertex(1, "a", None)], &[]);
        assert_eq!(share(&plain, 1), [2, 5, 7], "a default slot's");
    }

    #[test]
    fn co_located_vertices_are_in_one_slot_sharing_group_and_have_one_parallelism() {
        let co_located = |number, group: &str, parallelism| JobVertex {
            co_location_group: "c".to_owned(),
            parallelism,
            ..vertex(number, group, None)
        };
        let fine = graph(vec![co_located(1, "a", 2), co_located(2, "a", 2)], &[]);
        assert_eq!(problems(&fine), [""; 0]);
        let wrong = graph(vec![co_located(1, "a", 2), co_located(2, "b", 3)], &[]);
        let found = problems(&wrong).join("\n");
        assert!(
            found.contains("`a` and `b`") && found.contains("2 and 3"),
            "{found}"
        );
    }
}
