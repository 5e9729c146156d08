//! Inputs of the steps: checks that they exist, that the job has sources and sinks, and that there are no
//! cycles.

use std::collections::{BTreeSet, HashMap};

use tanist_model::Transformation;
use tanist_model::problem::{MAX_PROBLEMS, instead, nearest};

use super::Check;
use crate::StreamNode;

/// Maximum number of steps in a union.
const MAX_INPUTS: usize = 100;

impl Check<'_> {
    /// Determines which steps each one reads.
    pub(super) fn wire(&mut self) {
        let mut index_of: HashMap<&str, usize> = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            index_of.entry(&node.name).or_insert(index);
        }
        for index in 0..self.nodes.len() {
            self.known[index].inputs = match &self.nodes[index].inputs {
                Some(names) => self.named_inputs(index, names, &index_of),
                None => self.implied_input(index),
            };
        }
    }

    fn named_inputs(
        &mut self,
        index: usize,
        names: &[String],
        index_of: &HashMap<&str, usize>,
    ) -> Option<Vec<usize>> {
        let node = &self.nodes[index];
        if node.is_source() {
            let kind = node
                .transformation
                .as_ref()
                .map_or("source", Transformation::kind);
            self.report(index, format!("a {kind} has no input: remove `input`"));
            return None;
        }
        if names.is_empty() {
            self.report(
                index,
                "it has no input: name the step that it reads with `input`",
            );
            return None;
        }
        if names.len() > MAX_INPUTS {
            let message = format!("it reads {} steps: name at most {MAX_INPUTS}", names.len());
            self.report(index, message);
            return None;
        }
        let mut inputs = Vec::with_capacity(names.len());
        let mut complete = true;
        for (position, name) in names.iter().enumerate() {
            // Searching for a similar name takes time for each.
            if self.problems.len() >= MAX_PROBLEMS {
                return None;
            }
            if names[..position].contains(name) {
                self.report(index, format!("it reads `{name}` twice: name it once"));
                complete = false;
                continue;
            }
            let Some(&input) = index_of.get(name.as_str()) else {
                let others = self
                    .nodes
                    .iter()
                    .filter(|other| other.name != node.name && !other.is_sink());
                let instead = instead(name, others.map(|other| other.name.as_str()));
                self.report(
                    index,
                    format!("there is no step `{name}` for it to read: {instead}"),
                );
                complete = false;
                let meant = nearest(name, index_of.keys().copied());
                inputs.extend(meant.and_then(|meant| index_of.get(meant)));
                continue;
            };
            if self.nodes[input].is_sink() {
                self.report(
                    index,
                    format!("it reads `{name}`, a sink, which emits nothing: name another step"),
                );
                complete = false;
            }
            inputs.push(input);
        }
        if !complete {
            for input in inputs {
                self.known[input].meant = true;
            }
            return None;
        }
        Some(inputs)
    }

    fn implied_input(&mut self, index: usize) -> Option<Vec<usize>> {
        let node = &self.nodes[index];
        if node.is_source() {
            return Some(Vec::new());
        }
        let Some(before) = index.checked_sub(1) else {
            if node.transformation.is_some() {
                self.report(
                    index,
                    "it has no input: put a source before it (file-source or datagen) or name a step with `input`",
                );
            }
            return None;
        };
        if self.nodes[before].is_sink() {
            // A step that can't be read may be a source.
            if node.transformation.is_some() {
                let sink = &self.nodes[before].name;
                self.report(
                    index,
                    format!("the step before it, `{sink}`, is a sink and emits nothing: name the step that it reads with `input`"),
                );
            }
            return None;
        }
        Some(vec![before])
    }

    /// Checks both ends of the job: sources exist, and all output is read.
    pub(super) fn ends(&mut self) {
        let readable = self.nodes.iter().all(|node| node.transformation.is_some());
        if readable && !self.nodes.is_empty() && !self.nodes.iter().any(StreamNode::is_source) {
            self.report_job("it has no source: begin with a file-source or datagen step");
        }
        let mut read: Vec<bool> = self.known.iter().map(|known| known.meant).collect();
        for known in &self.known {
            for &input in known.inputs.iter().flatten() {
                read[input] = true;
            }
        }
        for (index, read) in read.into_iter().enumerate() {
            let node = &self.nodes[index];
            if !read && node.transformation.is_some() && !node.is_sink() {
                self.report(
                    index,
                    "no step reads it and it is no sink: add a sink after it (file-sink, print or discard) or remove it",
                );
            }
        }
    }

    /// Sorts the steps topologically, in the order of the file where possible.
    pub(super) fn order(&mut self) -> Vec<usize> {
        let count = self.nodes.len();
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); count];
        let mut waiting_for = vec![0_usize; count];
        for (index, known) in self.known.iter().enumerate() {
            for &input in known.inputs.iter().flatten() {
                readers[input].push(index);
                waiting_for[index] += 1;
            }
        }
        let mut ready: BTreeSet<usize> = (0..count)
            .filter(|&index| waiting_for[index] == 0)
            .collect();
        let mut order = Vec::with_capacity(count);
        while let Some(index) = ready.pop_first() {
            order.push(index);
            for &reader in &readers[index] {
                waiting_for[reader] -= 1;
                if waiting_for[reader] == 0 {
                    ready.insert(reader);
                }
            }
        }
        self.report_cycles(&waiting_for);
        order
    }

    /// Reports cycles. Every remaining step reads another remaining one: following them leads into a cycle.
    fn report_cycles(&mut self, waiting_for: &[usize]) {
        let mut visited = vec![false; self.nodes.len()];
        for start in 0..self.nodes.len() {
            if waiting_for[start] == 0 || visited[start] {
                continue;
            }
            let mut path = Vec::new();
            let mut current = start;
            while !visited[current] {
                visited[current] = true;
                path.push(current);
                let waits_for = self.known[current]
                    .inputs
                    .iter()
                    .flatten()
                    .copied()
                    .find(|&input| waiting_for[input] > 0);
                let Some(input) = waits_for else { break };
                current = input;
            }
            if let Some(begin) = path.iter().position(|&index| index == current) {
                let mut cycle = path.split_off(begin);
                let first = cycle.iter().enumerate().min_by_key(|(_, index)| **index);
                let first = first.map_or(0, |(at, _)| at);
                cycle.rotate_left(first);
                let names: Vec<String> = cycle
                    .iter()
                    .map(|&index| format!("`{}`", self.nodes[index].name))
                    .collect();
                self.report(
                    cycle[0],
                    format!(
                        "it reads its own output ({} reads {}): break the cycle with another `input`",
                        names.join(" reads "),
                        names[0]
                    ),
                );
            }
        }
    }
}
