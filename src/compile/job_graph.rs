//! Checks a JobGraph of any origin: the sender may have another version or be malicious. A graph that passes
//! has all properties that the rest of the runtime relies on: ids parse and are unique, vertices are in
//! topological order, specifications parse and fit their inputs, and the totals are bounded.
//!
//! Problems are collected up to a limit, and each is made safe to print: it may contain texts of the sender.

use std::collections::{HashMap, HashSet};

use tanist_model::operators::EventTime;
use tanist_model::problem::MAX_PROBLEMS;
use tanist_model::{
    InvalidJobGraph, MAX_MESSAGE_LENGTH, MAX_PARALLELISM_LIMIT, MAX_STEPS, OperatorSpec, Schema,
    artifact, name_problem, printable, resources, restart, shown,
};
use tanist_proto::id::{JobId, JobVertexId};
use tanist_proto::v1::{Exchange, Isolation, JobEdge, JobGraph, JobVertex, Partitioning};

use crate::{checkpoints, output};

/// Maximum number of subtasks over all vertices.
pub const MAX_SUBTASKS: u64 = 100_000;
/// Maximum number of channels between subtasks over all edges.
pub const MAX_CHANNELS: u64 = 4_194_304;

/// Checks everything about a graph.
pub fn validate_job_graph(graph: &JobGraph) -> Result<(), InvalidJobGraph> {
    let mut check = Check {
        graph,
        vertex_of: HashMap::new(),
        problems: Vec::new(),
    };
    check.header();
    // A graph beyond these sizes is not checked further.
    if check.problems.is_empty() {
        // First, as it indexes the vertices: all other checks find the ends of edges by it.
        check.ids_and_names();
        check.edges();
        check.exchanges();
        check.totals();
        check.operators();
        for problem in resources::problems(graph) {
            check.report(problem);
        }
        for problem in artifact::problems(graph) {
            check.report(problem);
        }
    }
    if check.problems.is_empty() {
        return Ok(());
    }
    Err(InvalidJobGraph {
        problems: check.problems,
    })
}

struct Check<'a> {
    graph: &'a JobGraph,
    vertex_of: HashMap<&'a str, usize>,
    problems: Vec<String>,
}

impl<'a> Check<'a> {
    fn report(&mut self, problem: impl AsRef<str>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems
                .push(printable(problem.as_ref(), MAX_MESSAGE_LENGTH));
        }
    }

    fn header(&mut self) {
        let graph = self.graph;
        if let Err(error) = graph.job_id.parse::<JobId>() {
            self.report(error.to_string());
        }
        if let Some(problem) = name_problem(&graph.name) {
            self.report(format!("the job's name {problem}"));
        }
        let operators: usize = graph
            .vertices
            .iter()
            .map(|vertex| vertex.operators.len())
            .sum();
        if graph.vertices.is_empty() {
            self.report("it has no vertices");
        }
        if graph.vertices.len().max(operators) > MAX_STEPS {
            self.report(format!("it has more than {MAX_STEPS} operators"));
        }
        if graph.edges.len() > MAX_STEPS * 10 {
            self.report(format!("it has more than {} edges", MAX_STEPS * 10));
        }
        let strategy = graph
            .options
            .as_ref()
            .and_then(|options| options.restart_strategy.as_ref());
        for problem in strategy.map(restart::problems).unwrap_or_default() {
            self.report(format!("restart strategy: {problem}"));
        }
        let options = graph.options.as_ref();
        let settings = options.and_then(|options| options.checkpoints.as_ref());
        for problem in settings.map(checkpoints::problems).unwrap_or_default() {
            self.report(problem.to_string());
        }
        if options.is_some_and(|options| Isolation::try_from(options.isolation).is_err()) {
            self.report("its isolation is not known");
        }
    }

    fn ids_and_names(&mut self) {
        let mut steps: HashSet<&str> = HashSet::new();
        for (index, vertex) in self.graph.vertices.iter().enumerate() {
            let name = shown(&vertex.name);
            match vertex.id.parse::<JobVertexId>() {
                Err(error) => self.report(format!("vertex {name}: {error}")),
                // Ids are compared as texts everywhere, so each must have only one spelling.
                Ok(id) if id.to_string() != vertex.id => {
                    self.report(format!("vertex {name}: its id must be in lower case"));
                }
                Ok(_) => {}
            }
            if self.vertex_of.insert(&vertex.id, index).is_some() {
                self.report(format!("vertex {name}: another vertex has its id too"));
            }
            if vertex.operators.is_empty() {
                self.report(format!("vertex {name}: it has no operators"));
            }
            if vertex.name.is_empty() {
                self.report(format!("vertex {}: it has no name", vertex.id));
            }
            if let Some(problem) = name_problem(&vertex.slot_sharing_group) {
                self.report(format!("vertex {name}: its slot sharing group {problem}"));
            }
            let co_location = &vertex.co_location_group;
            if let Some(problem) = name_problem(co_location).filter(|_| !co_location.is_empty()) {
                self.report(format!("vertex {name}: its co-location group {problem}"));
            }
            for operator in &vertex.operators {
                let step = shown(&operator.name);
                if let Some(problem) = name_problem(&operator.name) {
                    self.report(format!("step {step}: its name {problem}"));
                } else if !steps.insert(&operator.name) {
                    self.report(format!("step {step}: another step has this name too"));
                }
            }
            self.parallelism(vertex);
        }
        self.uids();
    }

    /// State is found by uid, or by name where there is none: no operator may find that of another.
    fn uids(&mut self) {
        let graph = self.graph;
        let operators = || graph.vertices.iter().flat_map(|vertex| &vertex.operators);
        let names: HashSet<&str> = operators().map(|it| it.name.as_str()).collect();
        let mut seen: HashSet<&str> = HashSet::new();
        for operator in operators().filter(|operator| !operator.uid.is_empty()) {
            let (step, uid) = (shown(&operator.name), operator.uid.as_str());
            if let Some(problem) = name_problem(uid) {
                self.report(format!("step {step}: its uid {problem}"));
            } else if !seen.insert(uid) {
                self.report(format!("step {step}: another step has its uid too"));
            } else if uid != operator.name && names.contains(uid) {
                self.report(format!("step {step}: its uid is the name of another step"));
            }
        }
    }

    fn parallelism(&mut self, vertex: &JobVertex) {
        let name = shown(&vertex.name);
        let (parallelism, max) = (vertex.parallelism, vertex.max_parallelism);
        if max == 0 || max > MAX_PARALLELISM_LIMIT {
            self.report(format!(
                "vertex {name}: its maximum parallelism is {max}, not 1 to {MAX_PARALLELISM_LIMIT}"
            ));
        } else if parallelism == 0 || parallelism > max {
            self.report(format!(
                "vertex {name}: its parallelism is {parallelism}, not 1 to its maximum of {max}"
            ));
        }
    }

    fn edges(&mut self) {
        let mut pairs: HashSet<(usize, usize)> = HashSet::new();
        for (number, edge) in self.graph.edges.iter().enumerate() {
            let source = self.vertex_of.get(edge.source.as_str()).copied();
            let target = self.vertex_of.get(edge.target.as_str()).copied();
            let (Some(source), Some(target)) = (source, target) else {
                self.report(format!(
                    "edge {number} refers to a vertex that is not there"
                ));
                continue;
            };
            let vertices = &self.graph.vertices;
            let name = format!(
                "edge from {} to {}",
                shown(&vertices[source].name),
                shown(&vertices[target].name)
            );
            if source >= target {
                self.report(format!(
                    "{name}: vertices must stand after those that they read"
                ));
            }
            if !pairs.insert((source, target)) {
                self.report(format!("{name}: there are two of it"));
            }
            if Exchange::try_from(edge.exchange).is_err() {
                self.report(format!("{name}: its exchange is not known"));
            }
            match Partitioning::try_from(edge.partitioning) {
                Ok(Partitioning::Unspecified) | Err(_) => {
                    self.report(format!("{name}: its partitioning is not known"));
                }
                Ok(Partitioning::Forward)
                    if vertices[source].parallelism != vertices[target].parallelism =>
                {
                    self.report(format!(
                        "{name}: forward needs equal parallelism, not {} and {}",
                        vertices[source].parallelism, vertices[target].parallelism
                    ));
                }
                Ok(Partitioning::Hash) if edge.key_columns.is_empty() => {
                    self.report(format!(
                        "{name}: it is partitioned by key, but has no key columns"
                    ));
                }
                Ok(
                    Partitioning::Forward
                    | Partitioning::Rebalance
                    | Partitioning::Broadcast
                    | Partitioning::Global,
                ) if !edge.key_columns.is_empty() => {
                    self.report(format!(
                        "{name}: it has key columns, but is not partitioned by key"
                    ));
                }
                Ok(
                    Partitioning::Forward
                    | Partitioning::Hash
                    | Partitioning::Rebalance
                    | Partitioning::Broadcast
                    | Partitioning::Global,
                ) => {}
            }
        }
    }

    /// A region runs as a whole, so no vertex in it may wait for the end of another.
    fn exchanges(&mut self) {
        let name_of = |id: &str| {
            let vertex = self
                .vertex_of
                .get(id)
                .map(|index| &self.graph.vertices[*index]);
            shown(vertex.map_or(id, |vertex| vertex.name.as_str()))
        };
        let within = tanist_model::topology::blocking_edges_within_regions(self.graph);
        let problems: Vec<String> = within
            .into_iter()
            .map(|edge| {
                let (source, target) = (name_of(&edge.source), name_of(&edge.target));
                format!(
                    "{target} can't wait for {source} to finish: they are also connected by pipelined exchange, so that they run \
                     together; make the exchange between them `pipelined`, or all others on the way `blocking`"
                )
            })
            .collect();
        problems.iter().for_each(|problem| self.report(problem));
    }

    fn totals(&mut self) {
        let parallelism = |index: usize| u64::from(self.graph.vertices[index].parallelism);
        let subtasks: u64 = (0..self.graph.vertices.len()).map(parallelism).sum();
        let channels = self.graph.edges.iter().fold(0_u64, |channels, edge| {
            let source = self
                .vertex_of
                .get(edge.source.as_str())
                .map_or(0, |&index| parallelism(index));
            let target = self
                .vertex_of
                .get(edge.target.as_str())
                .map_or(0, |&index| parallelism(index));
            let product = match edge.partitioning() {
                Partitioning::Forward => source,
                Partitioning::Unspecified
                | Partitioning::Hash
                | Partitioning::Rebalance
                | Partitioning::Broadcast
                | Partitioning::Global => source.saturating_mul(target),
            };
            channels.saturating_add(product)
        });
        if subtasks > MAX_SUBTASKS {
            self.report(format!(
                "it has {subtasks} subtasks in all: write less parallelism, for at most {MAX_SUBTASKS}"
            ));
        }
        if channels > MAX_CHANNELS {
            self.report(format!(
                "it has {channels} channels between subtasks: write less parallelism, for at most {MAX_CHANNELS}"
            ));
        }
    }

    /// Computes the types, starting at the sources. A vertex that reads one with problems is skipped.
    fn operators(&mut self) {
        let graph = self.graph;
        let mut edges_into: HashMap<&str, Vec<&JobEdge>> = HashMap::new();
        let mut is_read: HashSet<&str> = HashSet::new();
        for edge in &graph.edges {
            edges_into.entry(&edge.target).or_default().push(edge);
            is_read.insert(&edge.source);
        }
        let mut known: Vec<Option<Emitted>> = vec![None; graph.vertices.len()];
        for (index, vertex) in graph.vertices.iter().enumerate() {
            let edges = edges_into.remove(vertex.id.as_str()).unwrap_or_default();
            let inputs: Option<Vec<&Emitted>> = edges
                .iter()
                .map(|edge| {
                    let source = *self.vertex_of.get(edge.source.as_str())?;
                    known[source].as_ref().filter(|_| source < index)
                })
                .collect();
            let Some(inputs) = inputs else { continue };
            let waits = edges.iter().zip(&inputs);
            let unending_inputs: Vec<String> = waits
                .filter(|(edge, input)| edge.exchange() == Exchange::Blocking && !input.bounded)
                .filter_map(|(edge, _)| self.vertex_of.get(edge.source.as_str()))
                .map(|source| {
                    let (source, target) = (&graph.vertices[*source].name, &vertex.name);
                    let (source, target) = (shown(source), shown(target));
                    format!("{target} waits for the end of {source} (blocking exchange), which never ends")
                })
                .collect();
            if !unending_inputs.is_empty() {
                unending_inputs
                    .iter()
                    .for_each(|problem| self.report(problem));
                continue;
            }
            let checked = vertex_output(
                vertex,
                &edges,
                &inputs,
                is_read.contains(vertex.id.as_str()),
            );
            match checked {
                Ok(output) => known[index] = Some(output),
                Err(problems) => problems
                    .into_iter()
                    .for_each(|problem| self.report(problem)),
            }
        }
    }
}

/// What is known about a vertex's records.
#[derive(Debug, Clone)]
struct Emitted {
    schema: Schema,
    /// Whether they end.
    bounded: bool,
    event_time: Option<EventTime>,
}

/// Returns what a vertex emits and whether it ends, or the problems of its operators.
fn vertex_output(
    vertex: &JobVertex,
    edges: &[&JobEdge],
    inputs: &[&Emitted],
    is_read: bool,
) -> Result<Emitted, Vec<String>> {
    let in_vertex = |problem: &str| vec![format!("vertex {}: {problem}", shown(&vertex.name))];
    let Emitted {
        mut schema,
        mut bounded,
        mut event_time,
    } = match inputs {
        [] => Emitted {
            schema: Schema::default(),
            bounded: true,
            event_time: None,
        },
        [first, others @ ..] => {
            if others.iter().any(|other| other.schema != first.schema) {
                return Err(in_vertex("its inputs do not have the same columns"));
            }
            Emitted {
                schema: first.schema.clone(),
                bounded: inputs.iter().all(|input| input.bounded),
                event_time: EventTime::of_all(inputs.iter().map(|input| input.event_time.as_ref())),
            }
        }
    };
    for edge in edges {
        let problems = tanist_model::check_keys(&schema, &edge.key_columns);
        if !problems.is_empty() {
            return Err(problems
                .iter()
                .flat_map(|problem| in_vertex(problem))
                .collect());
        }
    }
    let last = vertex.operators.len().saturating_sub(1);
    for (position, operator) in vertex.operators.iter().enumerate() {
        let in_step = |problem: &str| format!("step {}: {problem}", shown(&operator.name));
        let spec = OperatorSpec::from_json(&operator.spec)
            .map_err(|error| vec![in_step(&format!("its specification is not known: {error}"))])?;
        let mut problems = spec.submission_problems();
        let has_input = position > 0 || !edges.is_empty();
        if spec.is_source() && has_input {
            problems.push("a source has no input".into());
        }
        if !spec.is_source() && !has_input {
            problems.push("it has no input".into());
        }
        let has_output = position < last || is_read;
        if spec.is_sink() && has_output {
            problems.push("a sink has no output".into());
        }
        if !spec.is_sink() && !has_output {
            problems.push("no step reads its output".into());
        }
        if let Some(keys) = spec.keys() {
            let by_key = |edge: &&JobEdge| {
                edge.partitioning() == Partitioning::Hash && edge.key_columns == keys
            };
            if position > 0 || !edges.iter().all(by_key) {
                problems.push("its input is not partitioned by its keys".into());
            }
        }
        bounded = if spec.is_source() {
            spec.is_bounded_source()
        } else {
            bounded
        };
        if spec.is_single() && vertex.parallelism != 1 {
            problems.push("it can only run once".into());
        }
        if spec.waits_for_the_end() && !bounded {
            problems.push("it waits for the end of its input, which never ends".into());
        }
        problems.extend(spec.event_time_problem(event_time.as_ref()));
        event_time = spec.event_time(event_time.as_ref());
        match output(&spec, &schema) {
            Ok(output) => schema = output,
            Err(types) => problems.extend(types),
        }
        if problems.is_empty() {
            match Schema::from_proto(&operator.output) {
                Ok(declared) if declared == schema => {}
                Ok(_) | Err(_) => problems.push(format!("its output must be ({schema})")),
            }
        }
        if !problems.is_empty() {
            return Err(problems.iter().map(|problem| in_step(problem)).collect());
        }
    }
    Ok(Emitted {
        schema,
        bounded,
        event_time,
    })
}
