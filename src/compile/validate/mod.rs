//! Checks a [`StreamGraph`] and fills in its defaults. Finds all problems at once, except those that follow
//! from a problem already reported (the type of a step after one that can't be read).
//!
//! Invariant: [`resolve`] returns operators in topological order; every edge's source is before its target.

mod checkpoints;
mod placement;
mod types;
mod wiring;

use std::collections::{BTreeMap, HashSet};

use tanist_model::operators::EventTime;
use tanist_model::problem::{MAX_PROBLEMS, Problem};
use tanist_model::{
    MAX_NAME_LENGTH, MAX_PARALLELISM_LIMIT, MAX_STEPS, OperatorSpec, Schema, name_problem, restart,
};
use tanist_proto::resources::Resources;
use tanist_proto::v1;

use crate::CompileOptions;
use crate::{Exchange, StreamGraph, StreamNode};

/// A job with all defaults filled in.
#[derive(Debug)]
pub(super) struct ResolvedJob {
    pub name: String,
    /// In topological order; key-bys are replaced by partitionings.
    pub operators: Vec<ResolvedOperator>,
    pub max_parallelism: u32,
    pub exchange: Exchange,
    pub restart_strategy: Option<v1::RestartStrategy>,
    pub checkpoints: Option<v1::CheckpointSettings>,
    pub isolation: v1::Isolation,
    pub slot_sharing_groups: BTreeMap<String, Resources>,
}

#[derive(Debug)]
pub(super) struct ResolvedOperator {
    pub name: String,
    pub uid: Option<String>,
    pub spec: OperatorSpec,
    pub output: Schema,
    pub parallelism: u32,
    pub chaining: bool,
    pub slot_sharing_group: String,
    pub co_location_group: Option<String>,
    pub resources: Option<Resources>,
    pub inputs: Vec<ResolvedEdge>,
}

#[derive(Debug)]
pub(super) struct ResolvedEdge {
    /// Index of the operator that is read.
    pub source: usize,
    pub partitioning: v1::Partitioning,
    pub keys: Vec<String>,
    /// `None`: the job's exchange, unless the edge is within a chain.
    pub exchange: Option<Exchange>,
}

/// Checks the graph. `found` are the problems from reading it.
pub(super) fn resolve(
    graph: &StreamGraph,
    options: &CompileOptions,
    found: Vec<Problem>,
) -> Result<ResolvedJob, Vec<Problem>> {
    let mut check = Check::new(graph, options, found);
    check.job();
    // The cost of the other checks grows with the number of steps.
    if graph.nodes.len() <= MAX_STEPS {
        check.names();
        check.checkpoints();
        // Sets the inputs of the steps, which all checks below use.
        check.wire();
        check.ends();
        let order = check.order();
        check.parallelism();
        // From the sources on: the output of a step follows from that of its inputs. Sets what the checks below use.
        check.types(&order);
        check.partitions();
        check.exchanges();
        check.resources();
        check.sinks();
    }
    check.finish()
}

/// What the checks have found out about a step.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Indices of the steps that it reads; `None` if unknown.
    inputs: Option<Vec<usize>>,
    /// Set in topological order; `None` if something that it depends on is wrong.
    output: Option<Schema>,
    spec: Option<OperatorSpec>,
    bounded: bool,
    event_time: Option<EventTime>,
    group: String,
    /// A wrong input name probably meant this step: don't report it as unread too.
    meant: bool,
}

struct Check<'a> {
    graph: &'a StreamGraph,
    nodes: &'a [StreamNode],
    options: &'a CompileOptions,
    max_parallelism: u32,
    known: Vec<Known>,
    /// In topological order, without the steps of cycles and their readers.
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
            for (field, group) in [
                ("slot-sharing-group", &node.slot_sharing_group),
                ("co-location-group", &node.co_location_group),
            ] {
                if group.as_deref().and_then(name_problem).is_some() {
                    self.report(
                        index,
                        format!(
                            "`{field}` must be 1 to {MAX_NAME_LENGTH} characters, none of them a control character"
                        ),
                    );
                }
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
                exchange: self.graph.exchange.unwrap_or(Exchange::Pipelined),
                restart_strategy: self.graph.restart_strategy,
                checkpoints: self.graph.checkpoints,
                isolation: self.graph.isolation,
                slot_sharing_groups: self.graph.slot_sharing_groups.clone(),
            });
        }
        if self.problems.is_empty() {
            self.report_job("it has a step that could not be read");
        }
        self.problems.sort_by_key(|problem| problem.position);
        // The check of the fields and the computation of types may report the same problem.
        self.problems.dedup();
        if self.problems.len() > MAX_PROBLEMS {
            self.problems.truncate(MAX_PROBLEMS);
            self.report_job("there are more problems: fix these first");
        }
        Err(self.problems)
    }

    /// Returns the operators with their edges; `None` if a step is not fully known.
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
                        self.report(index, format!("it reads `{name}` in two ways: remove one"));
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
                            None => node.partition.map_or(implied, crate::Partition::to_proto),
                        },
                        keys: keys.map(<[String]>::to_vec).unwrap_or_default(),
                        exchange: node.exchange,
                    });
                }
            }
            operator_of[index] = Some(operators.len());
            let known = &mut self.known[index];
            operators.push(ResolvedOperator {
                name: node.name.clone(),
                uid: node.uid.clone(),
                spec: known.spec.take()?,
                output: known.output.take()?,
                parallelism,
                chaining: node.chaining,
                slot_sharing_group: known.group.clone(),
                co_location_group: node.co_location_group.clone(),
                resources: node.resources.clone(),
                inputs,
            });
        }
        Some(operators)
    }
}
