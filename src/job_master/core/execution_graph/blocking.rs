//! Which region reads which tasks over blocking edges. Pure; the core decides which outputs are complete and which
//! regions are done.
//!
//! A subtask reads one subtask over a forward edge and all subtasks over any other one, so two vertices of n
//! regions each may have n times n pairs. Pairs are not examined one by one: conditions on a whole vertex are
//! evaluated once.

use super::{Edge, ExecutionGraph, as_index};

/// Cached conditions on whole vertices, by their indices. Valid as long as the state that they depend on does
/// not change.
#[derive(Debug, Default)]
pub(crate) struct OfVertices {
    known: Vec<Option<bool>>,
}

impl OfVertices {
    /// The condition on a vertex, evaluated by `find_out` at the first call.
    pub(crate) fn get(&mut self, vertex: usize, find_out: impl FnOnce() -> bool) -> bool {
        if self.known.len() <= vertex {
            self.known.resize(vertex + 1, None);
        }
        *self.known[vertex].get_or_insert_with(find_out)
    }
}

impl ExecutionGraph {
    /// Whether the graph has blocking edges.
    pub(crate) fn has_blocking_edges(&self) -> bool {
        !self.blocking_into.is_empty()
    }

    fn edges_into(&self, vertex: usize) -> impl Iterator<Item = &Edge> {
        let numbers = self.blocking_into.get(vertex).into_iter().flatten();
        numbers.map(|number| &self.edges[*number])
    }

    fn edges_out_of(&self, vertex: usize) -> impl Iterator<Item = &Edge> {
        let numbers = self.blocking_out_of.get(vertex).into_iter().flatten();
        numbers.map(|number| &self.edges[*number])
    }

    /// Whether a task reads no other one.
    pub(crate) fn is_source(&self, task: usize) -> bool {
        let vertex = self.tasks[task].vertex;
        !self.edges.iter().any(|edge| edge.target == vertex)
    }

    /// Whether a vertex reads another one over a blocking edge, or is read so.
    pub(crate) fn is_at_blocking_edge(&self, vertex: usize) -> bool {
        let mut edges = self.edges_into(vertex).chain(self.edges_out_of(vertex));
        edges.next().is_some()
    }

    /// The task with the same subtask number at another vertex, along a forward edge.
    fn opposite(&self, task: usize, at: usize) -> usize {
        self.vertices[at].first + (task - self.vertex_of(task).first)
    }

    /// The tasks of a vertex.
    pub(crate) fn tasks_of(&self, vertex: usize) -> std::ops::Range<usize> {
        let at = &self.vertices[vertex];
        at.first..at.first + as_index(at.parallelism)
    }

    /// The regions of a vertex's subtasks, without repetitions between neighbours.
    pub(crate) fn regions_of(&self, vertex: usize) -> impl Iterator<Item = usize> {
        let tasks = &self.tasks[self.tasks_of(vertex)];
        let runs = tasks.chunk_by(|one, other| one.region == other.region);
        runs.map(|run| run[0].region)
    }

    /// Whether `is_such` is true for all tasks whose output a region reads. `known` caches by vertex that is
    /// read.
    pub(crate) fn reads_only(
        &self,
        region: usize,
        known: &mut OfVertices,
        is_such: impl Fn(usize) -> bool,
    ) -> bool {
        if !self.has_blocking_edges() {
            return true;
        }
        let mut tasks = self.regions[region].tasks.iter();
        tasks.all(|task| {
            let mut edges = self.edges_into(self.tasks[*task].vertex);
            edges.all(|edge| match edge.is_forward {
                true => is_such(self.opposite(*task, edge.source)),
                false => known.get(edge.source, || self.tasks_of(edge.source).all(&is_such)),
            })
        })
    }

    /// Whether all tasks whose output a region reads have finished.
    pub(crate) fn inputs_have_finished(&self, region: usize) -> bool {
        if !self.has_blocking_edges() {
            return true;
        }
        let all_of = |vertex: usize| {
            let finished = self.indexes.finished[vertex];
            finished == as_index(self.vertices[vertex].parallelism)
        };
        let mut tasks = self.regions[region].tasks.iter();
        tasks.all(|task| {
            let mut edges = self.edges_into(self.tasks[*task].vertex);
            edges.all(|edge| match edge.is_forward {
                true => self.has_finished(self.opposite(*task, edge.source)),
                false => all_of(edge.source),
            })
        })
    }

    /// The regions that read the output of a single task over a forward edge; and, if `with_whole_vertex`, those that
    /// read its whole vertex.
    pub(crate) fn readers_of(&self, task: usize, with_whole_vertex: bool) -> Vec<usize> {
        let mut readers = Vec::new();
        for edge in self.edges_out_of(self.tasks[task].vertex) {
            if edge.is_forward {
                readers.push(self.tasks[self.opposite(task, edge.target)].region);
            } else if with_whole_vertex {
                readers.extend(self.regions_of(edge.target));
            }
        }
        readers
    }

    /// Whether `is_such` is true for any region that reads the output of a task. `known` caches by vertex
    /// that reads.
    pub(crate) fn is_read_by(
        &self,
        task: usize,
        known: &mut OfVertices,
        is_such: impl Fn(usize) -> bool,
    ) -> bool {
        let mut edges = self.edges_out_of(self.tasks[task].vertex);
        edges.any(|edge| match edge.is_forward {
            true => is_such(self.tasks[self.opposite(task, edge.target)].region),
            false => known.get(edge.target, || self.regions_of(edge.target).any(&is_such)),
        })
    }

    /// Adds the regions that read from a region. Those of a vertex that reads a whole vertex are added once.
    pub(crate) fn add_readers(&self, region: usize, added: &mut OfVertices, to: &mut Vec<usize>) {
        if !self.has_blocking_edges() {
            return;
        }
        for task in &self.regions[region].tasks {
            for edge in self.edges_out_of(self.tasks[*task].vertex) {
                if edge.is_forward {
                    to.push(self.tasks[self.opposite(*task, edge.target)].region);
                } else {
                    added.get(edge.target, || {
                        to.extend(self.regions_of(edge.target));
                        true
                    });
                }
            }
        }
    }

    /// (subtask, its input) of the subtasks of a region that read one other subtask over a blocking forward
    /// edge.
    pub(crate) fn read_one_to_one(&self, region: usize) -> Vec<(usize, usize)> {
        let mut pairs = Vec::new();
        if self.has_blocking_edges() {
            for task in &self.regions[region].tasks {
                let edges = self.edges_into(self.tasks[*task].vertex);
                let forward = edges.filter(|edge| edge.is_forward);
                pairs.extend(forward.map(|edge| (*task, self.opposite(*task, edge.source))));
            }
        }
        pairs
    }

    /// The tasks whose complete output a region reads, as a plain list.
    #[cfg(test)]
    pub(crate) fn inputs_of(&self, region: usize) -> Vec<usize> {
        let read_by = |task: &usize| {
            let edges = self.edges_into(self.tasks[*task].vertex);
            let read = edges.flat_map(|edge| match edge.is_forward {
                true => {
                    let one = self.opposite(*task, edge.source);
                    one..one + 1
                }
                false => self.tasks_of(edge.source),
            });
            read.collect::<Vec<_>>()
        };
        let tasks = self.regions[region].tasks.iter();
        tasks.flat_map(read_by).collect()
    }
}
