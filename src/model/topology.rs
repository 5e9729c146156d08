//! Properties that follow from the shape of a JobGraph: its regions, the slots that it needs, its connections.
//! For an invalid graph the functions return some value and never panic. [`subtask_regions`] takes memory for each
//! subtask, so it is only for graphs whose parallelism was checked: a Dispatcher stores no others.
//!
//! A job's record and its TaskManagers know regions only by their numbers, so every JobMaster of a job must number them
//! in the same way: also one of a later version. With another order a JobMaster would take the recorded placement of
//! one region for that of another.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use tanist_proto::id::JobVertexId;
use tanist_proto::v1::{Exchange, JobEdge, JobGraph, JobVertex, Operator, Partitioning};

/// Maximum number of regions of a job. The cost of an event does not depend on it, but each region takes memory in the
/// leader, and each write of the job's record names all of them (`docs/adr/0026`).
pub const MAX_REGIONS: usize = 20_000;

/// The number of each subtask's region: by vertex in the graph's order, then by subtask.
///
/// Subtasks are in one region if pipelined channels connect them, directly or over other subtasks. A set of vertices
/// that is connected by pipelined edges has as many regions as its vertices have subtasks if all these edges are
/// forward; otherwise it is one region. Regions are in the topological order of these sets, and within a set in the
/// order of their first subtasks. If there would be more than `max_regions`, each set is one region.
pub fn subtask_regions(graph: &JobGraph, max_regions: usize) -> Vec<usize> {
    let of_vertices = region_of(graph);
    let parallelism = |vertex: &JobVertex| usize::try_from(vertex.parallelism).unwrap_or_default();
    // By vertex the position of its first subtask, and by subtask the set of its vertex.
    let (mut starts, mut set_of) = (Vec::with_capacity(graph.vertices.len()), Vec::new());
    for (vertex, region) in graph.vertices.iter().zip(of_vertices) {
        starts.push(set_of.len());
        set_of.resize(set_of.len() + parallelism(vertex), region);
    }
    if count_parts(graph) > max_regions {
        return set_of;
    }
    let index_of = index_of(graph);
    let tasks_of = |vertex: usize| {
        let start = starts[vertex];
        start..start + parallelism(&graph.vertices[vertex])
    };
    let mut parts = Parts::new(set_of.len());
    let pipelined = graph.edges.iter();
    for edge in pipelined.filter(|edge| edge.exchange() == Exchange::Pipelined) {
        let Some((source, target)) = ends(&index_of, edge) else {
            continue;
        };
        let (mut sources, mut targets) = (tasks_of(source), tasks_of(target));
        if edge.partitioning() == Partitioning::Forward {
            sources
                .zip(targets)
                .for_each(|(one, other)| parts.join(one, other));
        } else if let Some((one, other)) = sources.next().zip(targets.next()) {
            // All subtasks are connected to the first one on the other side.
            sources.for_each(|source| parts.join(source, other));
            targets.for_each(|target| parts.join(one, target));
            parts.join(one, other);
        }
    }
    // Regions that need each other's complete output stay together. No valid graph has them.
    for edge in blocking_edges_within_regions(graph) {
        if let Some((source, _)) = ends(&index_of, edge) {
            let region = starts
                .get(source)
                .and_then(|start| set_of.get(*start))
                .copied();
            let mut tasks = (0..set_of.len()).filter(|task| Some(set_of[*task]) == region);
            if let Some(first) = tasks.next() {
                tasks.for_each(|task| parts.join(first, task));
            }
        }
    }
    // A part is identified by its first subtask, and lies within one set of vertices.
    let firsts: Vec<usize> = (0..set_of.len()).map(|task| parts.first_of(task)).collect();
    let mut parts_in_order: Vec<usize> = (0..set_of.len())
        .filter(|task| firsts[*task] == *task)
        .collect();
    parts_in_order.sort_by_key(|first| (set_of[*first], *first));
    let mut numbers = vec![0; set_of.len()];
    for (number, first) in parts_in_order.into_iter().enumerate() {
        numbers[first] = number;
    }
    firsts.into_iter().map(|first| numbers[first]).collect()
}

/// The key groups of a subtask: a contiguous range. The inverse of `subtask_of_group` (`src/dataflow/key.rs`), by which
/// records are sent: if the two disagreed, a subtask would get keys whose state another one has. A maximum parallelism
/// below the parallelism counts as equal to it.
pub fn key_groups(subtask: u32, parallelism: u32, max_parallelism: u32) -> Range<u32> {
    let parallelism = parallelism.max(1);
    let max_parallelism = max_parallelism.max(parallelism);
    let first = |subtask: u32| {
        let first = u64::from(subtask) * u64::from(max_parallelism);
        let first = first.div_ceil(u64::from(parallelism));
        u32::try_from(first).map_or(max_parallelism, |first| first.min(max_parallelism))
    };
    first(subtask)..first(subtask.saturating_add(1))
}

/// Names the state of an operator in checkpoints: its uid, or its name where there is none.
pub fn uid(operator: &Operator) -> &str {
    match operator.uid.is_empty() {
        true => &operator.name,
        false => &operator.uid,
    }
}

/// How many regions [`subtask_regions`] numbers.
pub fn count_regions(graph: &JobGraph, max_regions: usize) -> usize {
    let parts = count_parts(graph);
    if parts > max_regions {
        let region_of = region_of(graph).into_iter();
        return region_of.max().map_or(0, |last| last + 1);
    }
    parts
}

/// How many sets of subtasks pipelined channels connect.
fn count_parts(graph: &JobGraph) -> usize {
    let (region_of, index_of) = (region_of(graph), index_of(graph));
    let mut counts: Vec<usize> = vec![0; graph.vertices.len()];
    for (vertex, region) in graph.vertices.iter().zip(&region_of) {
        counts[*region] = usize::try_from(vertex.parallelism).unwrap_or(usize::MAX);
    }
    let blocking = blocking_edges_within_regions(graph);
    let pipelined = graph.edges.iter().filter(|edge| {
        edge.exchange() == Exchange::Pipelined && edge.partitioning() != Partitioning::Forward
    });
    for edge in pipelined.chain(blocking) {
        if let Some((source, _)) = ends(&index_of, edge) {
            let count = &mut counts[region_of[source]];
            *count = (*count).min(1);
        }
    }
    counts.into_iter().fold(0, usize::saturating_add)
}

/// The sets of vertices that pipelined edges connect; sets that need each other's complete output are joined. Sets and
/// the vertices in them are in topological order.
pub fn regions(graph: &JobGraph) -> Vec<Vec<JobVertexId>> {
    let region_of = region_of(graph);
    let count = region_of.iter().max().map_or(0, |last| last + 1);
    let mut regions: Vec<Vec<JobVertexId>> = vec![Vec::new(); count];
    for (vertex, region) in graph.vertices.iter().zip(region_of) {
        if let Ok(id) = vertex.id.parse() {
            regions[region].push(id);
        }
    }
    regions
}

/// The blocking edges within a set of vertices that pipelined edges connect. Invalid: such a consumer waits for a
/// producer that can't end before it.
pub fn blocking_edges_within_regions(graph: &JobGraph) -> Vec<&JobEdge> {
    let region_of = region_of(graph);
    let index_of = index_of(graph);
    let is_within = |edge: &&JobEdge| {
        let ends = ends(&index_of, edge);
        let within = ends.is_some_and(|(source, target)| region_of[source] == region_of[target]);
        within && edge.exchange() == Exchange::Blocking
    };
    graph.edges.iter().filter(is_within).collect()
}

/// The number of the set that each vertex is in.
pub(crate) fn region_of(graph: &JobGraph) -> Vec<usize> {
    let index_of = index_of(graph);
    let (mut parts, mut blocking) = (Parts::new(graph.vertices.len()), Vec::new());
    for edge in &graph.edges {
        let Some((source, target)) = ends(&index_of, edge) else {
            continue;
        };
        match edge.exchange() {
            Exchange::Pipelined => parts.join(source, target),
            Exchange::Blocking => blocking.push((source, target)),
        }
    }
    let order = loop {
        match parts.in_order(&blocking) {
            Ok(order) => break order,
            Err((one, other)) => parts.join(one, other),
        }
    };
    let place: HashMap<usize, usize> = order.into_iter().zip(0..).collect();
    (0..graph.vertices.len())
        .map(|vertex| place[&parts.first_of(vertex)])
        .collect()
}

/// The indices of an edge's source and target; `None` if the graph lacks one of them.
fn ends(index_of: &HashMap<&str, usize>, edge: &JobEdge) -> Option<(usize, usize)> {
    let find = |vertex: &str| index_of.get(vertex).copied();
    find(&edge.source).zip(find(&edge.target))
}

/// Disjoint sets of vertices or subtasks (union-find), each identified by its first element.
struct Parts {
    /// For each element an earlier one of its set; for the first one itself.
    first: Vec<usize>,
}

impl Parts {
    fn new(count: usize) -> Parts {
        Parts {
            first: (0..count).collect(),
        }
    }

    fn first_of(&mut self, mut vertex: usize) -> usize {
        while self.first[vertex] != vertex {
            self.first[vertex] = self.first[self.first[vertex]];
            vertex = self.first[vertex];
        }
        vertex
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.first_of(one), self.first_of(other));
        self.first[one.max(other)] = one.min(other);
    }

    /// Returns the sets in topological order of the edges, else in the order of their first vertices; or two
    /// different sets of a cycle.
    fn in_order(&mut self, edges: &[(usize, usize)]) -> Result<Vec<usize>, (usize, usize)> {
        let mut reads: BTreeMap<usize, BTreeSet<usize>> = (0..self.first.len())
            .map(|vertex| (self.first_of(vertex), BTreeSet::new()))
            .collect();
        let mut read_by = reads.clone();
        for (source, target) in edges {
            let (source, target) = (self.first_of(*source), self.first_of(*target));
            if source != target {
                reads.entry(target).or_default().insert(source);
                read_by.entry(source).or_default().insert(target);
            }
        }
        let is_free = |(set, read): (&usize, &BTreeSet<usize>)| read.is_empty().then_some(*set);
        let mut ready: BTreeSet<usize> = reads.iter().filter_map(is_free).collect();
        let mut order = Vec::with_capacity(reads.len());
        while let Some(set) = ready.pop_first() {
            order.push(set);
            reads.remove(&set);
            for target in &read_by[&set] {
                if let Some(open) = reads.get_mut(target) {
                    open.remove(&set);
                    if open.is_empty() {
                        ready.insert(*target);
                    }
                }
            }
        }
        // Each remaining set reads another remaining one: following them leads into a cycle.
        let Some(start) = reads.keys().next().copied() else {
            return Ok(order);
        };
        let before = |set: usize| {
            *reads[&set]
                .first()
                .expect("it waits for a set that is left")
        };
        let on_cycle = (0..reads.len()).fold(start, |set, _| before(set));
        Err((on_cycle, before(on_cycle)))
    }
}

/// Number of slots that run the whole graph: subtasks of one vertex need a slot each, those of different
/// vertices in a slot sharing group share slots.
pub fn slots_needed(graph: &JobGraph) -> u32 {
    let mut groups: HashMap<&str, u32> = HashMap::new();
    for vertex in &graph.vertices {
        let largest = groups.entry(&vertex.slot_sharing_group).or_default();
        *largest = (*largest).max(vertex.parallelism);
    }
    groups.into_values().fold(0, u32::saturating_add)
}

/// The vertex with this id.
pub fn vertex(graph: &JobGraph, id: JobVertexId) -> Option<&JobVertex> {
    let id = id.to_string();
    graph.vertices.iter().find(|vertex| vertex.id == id)
}

/// The edges that a vertex reads.
pub fn edges_into(graph: &JobGraph, vertex: JobVertexId) -> impl Iterator<Item = &JobEdge> {
    let vertex = vertex.to_string();
    graph.edges.iter().filter(move |edge| edge.target == vertex)
}

/// The edges that a vertex writes.
pub fn edges_out_of(graph: &JobGraph, vertex: JobVertexId) -> impl Iterator<Item = &JobEdge> {
    let vertex = vertex.to_string();
    graph.edges.iter().filter(move |edge| edge.source == vertex)
}

/// The subtasks of the edge's source that have a channel to this subtask of its target. This includes global
/// edges, where all subtasks but 0 receive only the end.
pub fn feeding_subtasks(graph: &JobGraph, edge: &JobEdge, target_subtask: u32) -> Range<u32> {
    connected(edge, target_subtask, parallelism(graph, &edge.source))
}

/// The subtasks of the edge's target that have a channel from this subtask of its source.
pub fn fed_subtasks(graph: &JobGraph, edge: &JobEdge, source_subtask: u32) -> Range<u32> {
    connected(edge, source_subtask, parallelism(graph, &edge.target))
}

fn connected(edge: &JobEdge, subtask: u32, others: u32) -> Range<u32> {
    match edge.partitioning() {
        Partitioning::Forward if subtask < others => subtask..subtask + 1,
        Partitioning::Forward => 0..0,
        Partitioning::Unspecified
        | Partitioning::Hash
        | Partitioning::Rebalance
        | Partitioning::Broadcast
        | Partitioning::Global => 0..others,
    }
}

fn parallelism(graph: &JobGraph, vertex: &str) -> u32 {
    let vertex = graph
        .vertices
        .iter()
        .find(|candidate| candidate.id == vertex);
    vertex.map_or(0, |vertex| vertex.parallelism)
}

fn index_of(graph: &JobGraph) -> HashMap<&str, usize> {
    graph
        .vertices
        .iter()
        .enumerate()
        .map(|(index, vertex)| (vertex.id.as_str(), index))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph with `count` vertices and these edges.
    fn graph(count: u128, edges: &[(usize, usize, Exchange)]) -> JobGraph {
        let id = |index: u128| JobVertexId::from_bits(index).to_string();
        let vertex = |index| JobVertex {
            id: id(index),
            parallelism: 1,
            ..JobVertex::default()
        };
        let edge = |(source, target, exchange): &(usize, usize, Exchange)| JobEdge {
            source: id(*source as u128),
            target: id(*target as u128),
            exchange: (*exchange).into(),
            ..JobEdge::default()
        };
        JobGraph {
            vertices: (0..count).map(vertex).collect(),
            edges: edges.iter().map(edge).collect(),
            ..JobGraph::default()
        }
    }

    #[test]
    fn a_blocking_edge_parts_regions() {
        let graph = graph(
            3,
            &[(0, 1, Exchange::Blocking), (1, 2, Exchange::Pipelined)],
        );
        assert_eq!(region_of(&graph), [0, 1, 1]);
        assert!(blocking_edges_within_regions(&graph).is_empty());
    }

    /// The same with forward edges, and a parallelism for each vertex.
    fn forward(parallelism: &[u32], edges: &[(usize, usize, Exchange)]) -> JobGraph {
        let mut graph = graph(parallelism.len() as u128, edges);
        for (vertex, parallelism) in graph.vertices.iter_mut().zip(parallelism) {
            vertex.parallelism = *parallelism;
        }
        for edge in &mut graph.edges {
            edge.set_partitioning(Partitioning::Forward);
        }
        graph
    }

    #[test]
    fn subtasks_that_forward_edges_connect_are_a_region_each() {
        let graph = forward(&[3, 3], &[(0, 1, Exchange::Pipelined)]);
        let regions = subtask_regions(&graph, 3);
        assert_eq!(regions, [0, 1, 2, 0, 1, 2]);
        assert_eq!(count_regions(&graph, 3), 3);
    }

    #[test]
    fn a_job_that_would_have_too_many_regions_has_those_of_vertices() {
        let graph = forward(&[3, 3], &[(0, 1, Exchange::Pipelined)]);
        assert_eq!(subtask_regions(&graph, 2), [0; 6]);
        assert_eq!(count_regions(&graph, 2), 1);
    }

    #[test]
    fn one_edge_to_all_subtasks_keeps_all_that_it_connects_together() {
        let edges = [(0, 1, Exchange::Pipelined), (1, 2, Exchange::Pipelined)];
        let mut graph = forward(&[2, 2, 2, 2], &edges);
        graph.edges[1].set_partitioning(Partitioning::Hash);
        let regions = subtask_regions(&graph, MAX_REGIONS);
        assert_eq!(regions, [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(count_regions(&graph, MAX_REGIONS), 3);
    }

    #[test]
    fn the_parts_of_a_region_stand_after_all_that_they_read() {
        // The region of 0 and 3 has the first vertex, but reads 1.
        let edges = [(0, 3, Exchange::Pipelined), (1, 3, Exchange::Blocking)];
        let graph = forward(&[2, 2, 1, 2], &edges);
        let regions = subtask_regions(&graph, MAX_REGIONS);
        assert_eq!(regions, [2, 3, 0, 1, 4, 2, 3]);
        assert_eq!(count_regions(&graph, MAX_REGIONS), 5);
    }

    #[test]
    fn a_region_stands_after_those_whose_output_it_waits_for() {
        // The region of 0 and 3 has the first vertex, but reads 1.
        let edges = [(0, 3, Exchange::Pipelined), (1, 3, Exchange::Blocking)];
        assert_eq!(region_of(&graph(4, &edges)), [1, 0, 2, 1]);
    }

    #[test]
    fn regions_that_need_each_other_are_one() {
        let edges = [
            (0, 2, Exchange::Pipelined),
            (1, 3, Exchange::Pipelined),
            (0, 3, Exchange::Blocking),
            (1, 2, Exchange::Blocking),
        ];
        let graph = graph(4, &edges);
        assert_eq!(region_of(&graph), [0, 0, 0, 0]);
        assert_eq!(blocking_edges_within_regions(&graph).len(), 2);
    }

    #[test]
    fn a_blocking_edge_beside_a_pipelined_way_is_within_its_region() {
        let edges = [
            (0, 1, Exchange::Pipelined),
            (1, 2, Exchange::Pipelined),
            (0, 2, Exchange::Blocking),
        ];
        assert_eq!(blocking_edges_within_regions(&graph(3, &edges)).len(), 1);
    }
}
