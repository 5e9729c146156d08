//! Parallelism and slot sharing group of each step, and the distribution of its input.

use std::collections::HashMap;

use tanist_model::MAX_PARALLELISM_LIMIT;
use tanist_model::operators::PathUse;

use super::Check;
use crate::{DEFAULT_SLOT_SHARING_GROUP, Exchange, Partition, StreamNode};

impl Check<'_> {
    /// Checks the parallelism of each step, and that of the job if a step uses it.
    pub(super) fn parallelism(&mut self) {
        let default = self.default_parallelism();
        if let Some(problem) = self.parallelism_problem(default)
            && self.nodes.iter().any(|node| node.parallelism.is_none())
        {
            self.report_job(format!("the parallelism of the job {problem}"));
        }
        for index in 0..self.nodes.len() {
            if let Some(parallelism) = self.nodes[index].parallelism
                && let Some(problem) = self.parallelism_problem(parallelism)
            {
                self.report(index, format!("its parallelism {problem}"));
            } else if self.nodes[index]
                .parallelism
                .is_some_and(|parallelism| parallelism > 1)
                && self.runs_once(index)
            {
                self.report(index, "it can only run once: remove its `parallelism`");
            }
        }
    }

    fn parallelism_problem(&self, parallelism: u32) -> Option<String> {
        let max = self.max_parallelism;
        if max == 0 || max > MAX_PARALLELISM_LIMIT {
            return None;
        }
        match parallelism {
            0 => Some(format!("is 0: write a number from 1 to {max}")),
            above if above > max => Some(format!(
                "is {above}, above the maximum of {max}: write less, or a larger `max-parallelism` for the job"
            )),
            _ => None,
        }
    }

    fn default_parallelism(&self) -> u32 {
        self.options
            .parallelism
            .or(self.graph.parallelism)
            .unwrap_or(self.options.default_parallelism)
    }

    pub(super) fn parallelism_of(&self, index: usize) -> u32 {
        self.nodes[index]
            .parallelism
            .unwrap_or_else(|| match self.runs_once(index) {
                true => 1,
                false => self.default_parallelism(),
            })
    }

    fn runs_once(&self, index: usize) -> bool {
        let operator = self.nodes[index].operator();
        operator.is_some_and(|operator| operator.is_single())
    }

    /// Its own group, else that of all its inputs if they agree, else the default.
    pub(super) fn slot_sharing_group(&self, index: usize) -> String {
        if let Some(group) = &self.nodes[index].slot_sharing_group {
            return group.clone();
        }
        let mut groups = self.known[index]
            .inputs
            .iter()
            .flatten()
            .map(|&input| &self.known[input].group);
        match groups.next() {
            Some(first) if groups.all(|group| group == first) => first.clone(),
            _ => DEFAULT_SLOT_SHARING_GROUP.to_owned(),
        }
    }

    /// Checks the partitioning of each step's input.
    pub(super) fn partitions(&mut self) {
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            let inputs = self.known[index].inputs.clone().unwrap_or_default();
            if node.key_columns().is_some() {
                self.key_by_fields(index, &inputs);
                continue;
            }
            let Some(partition) = node.partition else {
                continue;
            };
            if node.is_source() {
                self.report(
                    index,
                    "a source has no input to partition: remove `partition`",
                );
                continue;
            }
            let name = partition.name();
            for &input in &inputs {
                let before = &self.nodes[input];
                if before.key_columns().is_some() {
                    let message = format!(
                        "`partition: {name}` contradicts the key-by `{}` that it reads: remove one of the two",
                        before.name
                    );
                    self.report(index, message);
                } else if partition == Partition::Forward
                    && self.parallelism_of(index) != self.parallelism_of(input)
                {
                    let message = format!(
                        "`partition: forward` needs equal parallelism, but it has {} and `{}` has {}: make them equal or write `partition: rebalance`",
                        self.parallelism_of(index),
                        before.name,
                        self.parallelism_of(input)
                    );
                    self.report(index, message);
                }
            }
        }
    }

    /// Checks exchanges: an input that must be complete has to end.
    pub(super) fn exchanges(&mut self) {
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            if node.is_source() {
                if node.exchange.is_some() {
                    self.report(index, "a source has no input: remove `exchange`");
                }
                continue;
            }
            if node.exchange != Some(Exchange::Blocking) {
                continue;
            }
            for input in self.known[index].inputs.clone().unwrap_or_default() {
                // Problems of an unknown input were reported.
                if self.known[input].output.is_some() && !self.known[input].bounded {
                    let message = format!(
                        "`exchange: blocking` waits for the end of `{}`, which never ends: remove it",
                        self.nodes[input].name
                    );
                    self.report(index, message);
                }
            }
        }
    }

    /// Checks that resources are stated for all steps or for none: a step without them would run in a slot that
    /// has nothing for it. Other problems of resources are found in the JobGraph.
    pub(super) fn resources(&mut self) {
        let groups = &self.graph.slot_sharing_groups;
        let is_stated = |&index: &usize| {
            self.nodes[index].resources.is_some() || groups.contains_key(&self.known[index].group)
        };
        let steps = (0..self.nodes.len()).filter(|index| {
            // Problems of an unknown step were reported.
            self.nodes[*index].key_columns().is_none() && self.known[*index].output.is_some()
        });
        let (stated, others): (Vec<usize>, Vec<usize>) = steps.partition(is_stated);
        let Some(&first) = stated.first() else {
            return;
        };
        for index in others {
            let message = format!(
                "it states no resources, but `{}` does: state them for all steps or slot sharing groups of the job, or for none",
                self.nodes[first].name
            );
            self.report(index, message);
        }
    }

    /// Reports the fields of a key-by that only operators have, and a key-by that reads another one.
    fn key_by_fields(&mut self, index: usize, inputs: &[usize]) {
        let node = &self.nodes[index];
        let fields = [
            (node.parallelism.is_some(), "parallelism"),
            (node.partition.is_some(), "partition"),
            (node.exchange.is_some(), "exchange"),
            (!node.chaining, "chaining"),
            (node.slot_sharing_group.is_some(), "slot-sharing-group"),
            (node.co_location_group.is_some(), "co-location-group"),
            (node.resources.is_some(), "resources"),
        ];
        for (_, field) in fields.into_iter().filter(|(given, _)| *given) {
            self.report(
                index,
                format!("a key-by is no operator and has no `{field}`: write it in the step that reads it"),
            );
        }
        for &input in inputs {
            if self.nodes[input].key_columns().is_some() {
                let message = format!(
                    "it reads the key-by `{}`, which would have no effect: remove one of the two",
                    self.nodes[input].name
                );
                self.report(index, message);
            }
        }
    }

    /// Checks that no two steps write into one directory: the cleanup and the commit of one would affect the other's
    /// files.
    pub(super) fn sinks(&mut self) {
        let mut operators = self.nodes.iter().filter_map(StreamNode::operator);
        let all_end = !operators.any(|it| it.is_source() && !it.is_bounded_source());
        // What can't be read is absent, too.
        let is_bounded = all_end && self.problems.is_empty();
        let mut written: HashMap<String, usize> = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(mut operator) = node.operator().cloned() else {
                continue;
            };
            if is_bounded && let Some(problem) = operator.bounded_job_problem() {
                self.report(index, problem);
            }
            operator.visit_paths(&mut |path, used| {
                if used != PathUse::Write || path.is_empty() {
                    return;
                }
                if let Some(&first) = written.get(path.trim_end_matches('/')) {
                    let message = format!(
                        "it writes into `{path}` like `{}`: give each file-sink a directory of its own",
                        self.nodes[first].name
                    );
                    self.report(index, message);
                } else {
                    written.insert(path.trim_end_matches('/').to_owned(), index);
                }
            });
        }
    }
}
