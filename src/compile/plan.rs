//! The plan of a compiled job as text for people.

use std::fmt;

use tanist_model::resources::slot_profile;
use tanist_model::topology::{MAX_REGIONS, count_regions, slots_needed};
use tanist_model::{OperatorSpec, Schema, restart};
use tanist_proto::resources::Resources;
use tanist_proto::v1::{Exchange, Isolation, JobEdge, JobGraph, JobVertex, Partitioning};

use crate::checkpoints;

/// Displays a JobGraph: its vertices with their operators, schemas and inputs.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a>(pub &'a JobGraph);

impl fmt::Display for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = self.0;
        let (vertices, slots) = (graph.vertices.len(), slots_needed(graph));
        writeln!(
            f,
            "job `{}`: {}, {}, {}",
            graph.name,
            counted(vertices, "vertex", "vertices"),
            counted(count_regions(graph, MAX_REGIONS), "region", "regions"),
            counted(slots as usize, "slot", "slots"),
        )?;
        let strategy = graph
            .options
            .as_ref()
            .and_then(|options| options.restart_strategy.as_ref());
        if let Some(strategy) = strategy {
            writeln!(f, "restart strategy: {}", restart::describe(strategy))?;
        }
        let options = graph.options.as_ref();
        if let Some(settings) = options.and_then(|it| it.checkpoints.as_ref()) {
            writeln!(f, "checkpoints: {}", checkpoints::describe(settings))?;
        }
        if options.is_some_and(|it| it.isolation() == Isolation::StopFirst) {
            writeln!(f, "isolation: stop-first")?;
        }
        for group in &graph.slot_sharing_groups {
            let profile = slot_profile(graph, &group.name);
            writeln!(f, "slots of group {}: {profile}", group.name)?;
        }
        for vertex in &graph.vertices {
            writeln!(f)?;
            fmt_vertex(f, graph, vertex)?;
        }
        Ok(())
    }
}

fn fmt_vertex(f: &mut fmt::Formatter<'_>, graph: &JobGraph, vertex: &JobVertex) -> fmt::Result {
    writeln!(
        f,
        "{}  (parallelism {} of {}, slot sharing group {})",
        vertex.name, vertex.parallelism, vertex.max_parallelism, vertex.slot_sharing_group
    )?;
    if !vertex.co_location_group.is_empty() {
        writeln!(f, "  co-location group {}", vertex.co_location_group)?;
    }
    if let Some(resources) = &vertex.resources {
        writeln!(f, "  needs {}", Resources::from(resources))?;
    }
    for edge in graph.edges.iter().filter(|edge| edge.target == vertex.id) {
        let source = graph
            .vertices
            .iter()
            .find(|vertex| vertex.id == edge.source);
        let source = source.map_or(edge.source.as_str(), |vertex| vertex.name.as_str());
        let exchange = match edge.exchange() {
            Exchange::Pipelined => "",
            Exchange::Blocking => ", blocking",
        };
        writeln!(f, "  reads {source}, {}{exchange}", partitioning(edge))?;
    }
    for operator in &vertex.operators {
        let kind = OperatorSpec::from_json(&operator.spec);
        let kind = kind.as_ref().map_or("unknown", |spec| spec.kind());
        write!(f, "  {}: {kind}", operator.name)?;
        match Schema::from_proto(&operator.output) {
            Ok(output) if output.columns().is_empty() => writeln!(f)?,
            Ok(output) => writeln!(f, " emits ({output})")?,
            Err(error) => writeln!(f, " emits ({error})")?,
        }
    }
    Ok(())
}

fn partitioning(edge: &JobEdge) -> String {
    match edge.partitioning() {
        Partitioning::Unspecified => "unspecified".into(),
        Partitioning::Forward => "forward".into(),
        Partitioning::Hash => format!("hash by {}", edge.key_columns.join(", ")),
        Partitioning::Rebalance => "rebalance".into(),
        Partitioning::Broadcast => "broadcast".into(),
        Partitioning::Global => "global".into(),
    }
}

fn counted(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
