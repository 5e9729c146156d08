//! Checks a [`StreamGraph`] and fills in its defaults. Finds everything that is wrong at once; what follows from a
//! problem already reported (the type of a step after one that can't be read) is left out.
//!
//! Invariant: what [`resolve`] returns has its operators in topological order, every edge's source before its target.

use std::collections::{HashMap, HashSet};

use tanist_proto::v1;

use super::compile::CompileOptions;
use super::operator::{Emit, OperatorSpec};
use super::problem::{Problem, instead, nearest};
use super::schema::Schema;
use super::stream_graph::{
    DEFAULT_SLOT_SHARING_GROUP, MAX_PARALLELISM_LIMIT, StreamGraph, StreamNode, Transformation,
};
use super::{restart, typing};

/// More steps than this are refused.
pub(super) const MAX_STEPS: usize = 1_000;
/// Names are shown in tables and logs.
const MAX_NAME_LENGTH: usize = 255;

/// A job without open questions.
#[derive(Debug)]
pub(super) struct ResolvedJob {
    pub name: String,
    /// In topological order; key-bys have become partitionings.
    pub operators: Vec<ResolvedOperator>,
    pub max_parallelism: u32,
    pub restart_strategy: Option<v1::RestartStrategy>,
}

#[derive(Debug)]
pub(super) struct ResolvedOperator {
    pub name: String,
    pub spec: OperatorSpec,
    pub output: Schema,
    pub parallelism: u32,
    pub chaining: bool,
    pub slot_sharing_group: String,
    pub inputs: Vec<ResolvedEdge>,
}

#[derive(Debug)]
pub(super) struct ResolvedEdge {
    /// Index of the operator that is read.
    pub source: usize,
    pub partitioning: v1::Partitioning,
    pub keys: Vec<String>,
}

/// Checks the graph. `found` are the problems that were met while it was read.
pub(super) fn resolve(
    graph: &StreamGraph,
    options: &CompileOptions,
    found: Vec<Problem>,
) -> Result<ResolvedJob, Vec<Problem>> {
    let mut check = Check::new(graph, options, found);
    check.job();
    if graph.nodes.len() <= MAX_STEPS {
        check.names();
        check.wire();
        check.ends();
        let order = check.order();
        check.parallelism();
        check.types(&order);
        check.partitions();
        check.sinks();
    }
    check.finish()
}

/// What became known of a step.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Indices of the steps that it reads; none if that is not known.
    inputs: Option<Vec<usize>>,
    /// Set in topological order; none if something it depends on is wrong.
    output: Option<Schema>,
    spec: Option<OperatorSpec>,
    bounded: bool,
    group: String,
    /// A step with a wrong input meant it: it is not also called unread.
    meant: bool,
}

struct Check<'a> {
    graph: &'a StreamGraph,
    nodes: &'a [StreamNode],
    options: &'a CompileOptions,
    max_parallelism: u32,
    known: Vec<Known>,
    /// In topological order, without the steps of cycles and those that read them.
    order: Vec<usize>,
    problems: Vec<Problem>,
}

impl<'a> Check<'a> {
    fn new(graph: &'a StreamGraph, options: &'a CompileOptions, problems: Vec<Problem>) -> Self {
        Check {
            graph,
            nodes: &graph.nodes,
            options,
            max_parallelism: graph.max_parallelism.unwrap_or(options.max_parallelism),
            known: vec![Known::default(); graph.nodes.len()],
            order: Vec::new(),
            problems,
        }
    }

    fn report(&mut self, node: usize, message: impl Into<String>) {
        let node = &self.nodes[node];
        self.problems
            .push(Problem::of_step(node.position, &node.name, message));
    }

    fn report_job(&mut self, message: impl Into<String>) {
        self.problems.push(Problem::of_job(None, message));
    }

    fn job(&mut self) {
        if let Some(problem) = name_problem(&self.graph.name) {
            self.report_job(format!("the job's name {problem}"));
        }
        if self.nodes.is_empty() && self.problems.is_empty() {
            self.report_job("it has no steps: write at least a source and a sink under `steps`");
        }
        if self.nodes.len() > MAX_STEPS {
            self.report_job(format!(
                "it has {} steps: write at most {MAX_STEPS}",
                self.nodes.len()
            ));
        }
        if self.max_parallelism == 0 || self.max_parallelism > MAX_PARALLELISM_LIMIT {
            self.report_job(format!(
                "the maximum parallelism is {}: write a number from 1 to {MAX_PARALLELISM_LIMIT}",
                self.max_parallelism
            ));
        }
        for problem in self
            .graph
            .restart_strategy
            .iter()
            .flat_map(restart::problems)
        {
            self.report_job(format!("restart-strategy: {problem}"));
        }
    }

    fn names(&mut self) {
        let mut seen: HashSet<&str> = HashSet::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(problem) = name_problem(&node.name) {
                self.report(index, format!("its name {problem}"));
            } else if !seen.insert(&node.name) {
                self.report(
                    index,
                    "another step has this name already: give each step a `name` of its own",
                );
            }
            if node
                .slot_sharing_group
                .as_deref()
                .is_some_and(|group| name_problem(group).is_some())
            {
                self.report(
                    index,
                    format!(
                        "`slot-sharing-group` must be 1 to {MAX_NAME_LENGTH} characters, none of them a control character"
                    ),
                );
            }
        }
    }

    /// Finds out which steps each one reads.
    fn wire(&mut self) {
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
        let mut inputs = Vec::with_capacity(names.len());
        let mut complete = true;
        for (position, name) in names.iter().enumerate() {
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

    /// Both ends of the job: sources exist, and what is emitted is read.
    fn ends(&mut self) {
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

    /// Sorts the steps so that each stands after what it reads, in the order of the file where there is a choice.
    fn order(&mut self) -> Vec<usize> {
        let count = self.nodes.len();
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); count];
        let mut waiting_for = vec![0_usize; count];
        for (index, known) in self.known.iter().enumerate() {
            for &input in known.inputs.iter().flatten() {
                readers[input].push(index);
                waiting_for[index] += 1;
            }
        }
        let mut ready: std::collections::BTreeSet<usize> = (0..count)
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

    /// Every step that still waits reads another one that does: following them ends in a cycle.
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

    fn parallelism(&mut self) {
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

    fn parallelism_of(&self, index: usize) -> u32 {
        self.nodes[index]
            .parallelism
            .unwrap_or_else(|| self.default_parallelism())
    }

    /// Computes what each step emits, from the sources on.
    fn types(&mut self, order: &[usize]) {
        self.order = order.to_vec();
        for &index in order {
            self.known[index].group = self.slot_sharing_group(index);
            let Some(inputs) = self.known[index].inputs.clone() else {
                continue;
            };
            let Some(transformation) = &self.nodes[index].transformation else {
                continue;
            };
            let Some(keys) = self.keys(index, transformation, &inputs) else {
                continue;
            };
            let bounded = inputs.iter().all(|&input| self.known[input].bounded);
            let Some(input) = self.input_schema(index, &inputs) else {
                self.known[index].bounded = bounded;
                continue;
            };
            self.step_output(index, transformation, &input, keys, bounded);
        }
    }

    fn step_output(
        &mut self,
        index: usize,
        transformation: &Transformation,
        input: &Schema,
        keys: Vec<String>,
        bounded: bool,
    ) {
        if let Transformation::KeyBy { columns } = transformation {
            let problems = typing::check_keys(input, columns);
            self.known[index].bounded = bounded;
            if problems.is_empty() && !columns.is_empty() {
                self.known[index].output = Some(input.clone());
            } else if columns.is_empty() {
                self.report(index, "`columns` is empty: name at least one column");
            }
            problems
                .into_iter()
                .for_each(|problem| self.report(index, problem));
            return;
        }
        let Some(spec) = spec_of(transformation, input, keys, bounded) else {
            return;
        };
        if !bounded
            && matches!(
                spec,
                OperatorSpec::Count {
                    emit: Emit::Final,
                    ..
                } | OperatorSpec::Sum {
                    emit: Emit::Final,
                    ..
                }
            )
        {
            self.report(
                index,
                "`emit: final` waits for the end of its input, which never ends: write `emit: updates`",
            );
        }
        let fields = spec.field_problems();
        let output = spec.output(input);
        let sound = fields.is_empty();
        fields
            .into_iter()
            .for_each(|problem| self.report(index, problem));
        self.known[index].bounded = if spec.is_source() {
            spec.is_bounded_source()
        } else {
            bounded
        };
        match output {
            Ok(output) => {
                self.known[index].output = Some(output);
                self.known[index].spec = sound.then_some(spec);
            }
            Err(problems) => problems
                .into_iter()
                .for_each(|problem| self.report(index, problem)),
        }
    }

    /// The records of all inputs, which must be alike; empty for a source.
    fn input_schema(&mut self, index: usize, inputs: &[usize]) -> Option<Schema> {
        let schemas: Option<Vec<&Schema>> = inputs
            .iter()
            .map(|&input| self.known[input].output.as_ref())
            .collect();
        let schemas = schemas?;
        let Some(first) = schemas.first() else {
            return Some(Schema::default());
        };
        let different = schemas.iter().position(|schema| schema != first);
        if let Some(other) = different {
            let message = format!(
                "its inputs are not alike: `{}` emits ({first}), `{}` emits ({}); read only steps that emit the same columns",
                self.nodes[inputs[0]].name, self.nodes[inputs[other]].name, schemas[other]
            );
            self.report(index, message);
            return None;
        }
        Some((*first).clone())
    }

    /// The key columns for a step that needs them; empty for one that does not, none if they are wrong or not known.
    fn keys(
        &mut self,
        index: usize,
        transformation: &Transformation,
        inputs: &[usize],
    ) -> Option<Vec<String>> {
        if !matches!(
            transformation,
            Transformation::Count { .. } | Transformation::Sum { .. }
        ) {
            return Some(Vec::new());
        }
        if inputs
            .iter()
            .any(|&input| self.nodes[input].transformation.is_none())
        {
            return None;
        }
        let kind = transformation.kind();
        let all: Option<Vec<&[String]>> = inputs
            .iter()
            .map(|&input| self.nodes[input].key_columns())
            .collect();
        let Some(all) = all else {
            self.report(
                index,
                format!("{kind} works by key: put a `key-by: {{ columns: [...] }}` step before it"),
            );
            return None;
        };
        let first = *all.first()?;
        if all.iter().any(|keys| *keys != first) {
            self.report(
                index,
                format!("its inputs are keyed by different columns: let all key-bys before {kind} name the same"),
            );
            return None;
        }
        Some(first.to_vec())
    }

    /// Its own, else that of all its inputs if they agree, else the default.
    fn slot_sharing_group(&self, index: usize) -> String {
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

    /// How each step's input is shared out.
    fn partitions(&mut self) {
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
                } else if partition == super::Partition::Forward
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

    fn key_by_fields(&mut self, index: usize, inputs: &[usize]) {
        let node = &self.nodes[index];
        let fields = [
            (node.parallelism.is_some(), "parallelism"),
            (node.partition.is_some(), "partition"),
            (!node.chaining, "chaining"),
            (node.slot_sharing_group.is_some(), "slot-sharing-group"),
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

    fn sinks(&mut self) {
        let mut written: HashMap<&str, usize> = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(Transformation::FileSink { path }) = &node.transformation else {
                continue;
            };
            if path.is_empty() {
                continue;
            }
            if let Some(&first) = written.get(path.trim_end_matches('/')) {
                let message = format!(
                    "it writes into `{path}` like `{}`: give each file-sink a directory of its own",
                    self.nodes[first].name
                );
                self.report(index, message);
            } else {
                written.insert(path.trim_end_matches('/'), index);
            }
        }
    }

    fn finish(mut self) -> Result<ResolvedJob, Vec<Problem>> {
        let operators = if self.problems.is_empty() {
            self.operators()
        } else {
            None
        };
        if let Some(operators) = operators
            && self.problems.is_empty()
        {
            return Ok(ResolvedJob {
                name: self.graph.name.clone(),
                operators,
                max_parallelism: self.max_parallelism,
                restart_strategy: self.graph.restart_strategy,
            });
        }
        if self.problems.is_empty() {
            self.report_job("it has a step that could not be read");
        }
        self.problems.sort_by_key(|problem| problem.position);
        Err(self.problems)
    }

    /// The operators with their edges; none if a step is not fully known.
    fn operators(&mut self) -> Option<Vec<ResolvedOperator>> {
        let mut operators: Vec<ResolvedOperator> = Vec::new();
        let mut operator_of: Vec<Option<usize>> = vec![None; self.nodes.len()];
        for index in self.order.clone() {
            let node = &self.nodes[index];
            if node.key_columns().is_some() {
                continue;
            }
            let parallelism = self.parallelism_of(index);
            let mut inputs: Vec<ResolvedEdge> = Vec::new();
            for &input in self.known[index].inputs.as_ref()? {
                let keys = self.nodes[input].key_columns();
                let sources = match keys {
                    Some(_) => self.known[input].inputs.clone()?,
                    None => vec![input],
                };
                for read in sources {
                    let source = operator_of[read]?;
                    if inputs.iter().any(|edge| edge.source == source) {
                        let name = self.nodes[read].name.clone();
                        self.report(index, format!("it reads `{name}` on two ways: remove one"));
                        return None;
                    }
                    let implied = if parallelism == operators[source].parallelism {
                        v1::Partitioning::Forward
                    } else {
                        v1::Partitioning::Rebalance
                    };
                    inputs.push(ResolvedEdge {
                        source,
                        partitioning: match keys {
                            Some(_) => v1::Partitioning::Hash,
                            None => node.partition.map_or(implied, super::Partition::to_proto),
                        },
                        keys: keys.map(<[String]>::to_vec).unwrap_or_default(),
                    });
                }
            }
            operator_of[index] = Some(operators.len());
            let known = &mut self.known[index];
            operators.push(ResolvedOperator {
                name: node.name.clone(),
                spec: known.spec.take()?,
                output: known.output.take()?,
                parallelism,
                chaining: node.chaining,
                slot_sharing_group: known.group.clone(),
                inputs,
            });
        }
        Some(operators)
    }
}

/// The specification of an operator; none for a key-by, which is none.
fn spec_of(
    transformation: &Transformation,
    input: &Schema,
    keys: Vec<String>,
    bounded: bool,
) -> Option<OperatorSpec> {
    let implied = if bounded { Emit::Final } else { Emit::Updates };
    Some(match transformation.clone() {
        Transformation::KeyBy { .. } => return None,
        Transformation::FileSource { paths } => OperatorSpec::FileSource { paths },
        Transformation::Datagen {
            rate,
            count,
            seed,
            keys,
        } => OperatorSpec::Datagen {
            rate,
            count,
            seed,
            keys,
        },
        Transformation::SplitWords { column } => OperatorSpec::SplitWords { column },
        Transformation::Filter { column, op, value } => {
            let in_type = input
                .column_type(&column)
                .and_then(|column_type| typing::coerce(&value, column_type));
            OperatorSpec::Filter {
                column,
                op,
                value: in_type.unwrap_or(value),
            }
        }
        Transformation::Count { emit } => OperatorSpec::Count {
            keys,
            emit: emit.unwrap_or(implied),
        },
        Transformation::Sum { column, emit } => OperatorSpec::Sum {
            keys,
            column,
            emit: emit.unwrap_or(implied),
        },
        Transformation::Print { prefix } => OperatorSpec::Print { prefix },
        Transformation::FileSink { path } => OperatorSpec::FileSink { path },
        Transformation::Discard => OperatorSpec::Discard {},
    })
}

/// What is wrong with a name of a job, a step or a group.
pub(super) fn name_problem(name: &str) -> Option<String> {
    if name.trim().is_empty() {
        Some("is empty: write one".into())
    } else if name.chars().count() > MAX_NAME_LENGTH {
        Some(format!(
            "is too long: write at most {MAX_NAME_LENGTH} characters"
        ))
    } else if name.chars().any(char::is_control) {
        Some("has control characters: leave them out".into())
    } else {
        None
    }
}
