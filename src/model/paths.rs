//! The paths that the steps of a compiled job read and write: checks that they are absolute, and lists the directories
//! that are written. Paths are made absolute when a job is compiled (`tanist_compile`).
//!
//! A step whose specification this version does not know is skipped here: the check of the graph refuses it.

use std::path::PathBuf;

use tanist_proto::v1::JobGraph;

use crate::operators::PathUse;
use crate::problem::MAX_PROBLEMS;
use crate::{InvalidJobGraph, OperatorSpec, shown};

/// Refuses a graph with relative paths: any process on any host may run it.
pub fn check_paths(graph: &JobGraph) -> Result<(), InvalidJobGraph> {
    let mut problems = Vec::new();
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    for operator in operators {
        let Ok(mut spec) = OperatorSpec::from_json(&operator.spec) else {
            continue;
        };
        spec.visit_paths(&mut |path, _| {
            if problems.len() == MAX_PROBLEMS || !is_relative(path) {
                return;
            }
            let tilde = match path.starts_with('~') {
                true => " (`~` is not expanded)",
                false => "",
            };
            let (step, path) = (shown(&operator.name), shown(path));
            problems.push(format!(
                "step {step}: the path {path} is relative{tilde}, and each process of the cluster would look for it from a working \
                 directory of its own: write an absolute one; `tanist run` makes it so, from the directory that it is run in"
            ));
        });
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(InvalidJobGraph { problems }),
    }
}

/// Whether a path of a step is relative. An empty path counts as missing and is reported as such.
pub fn is_relative(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('/')
}

/// The directories into which a graph's operators write. Each is cleaned up when the job has ended.
pub fn sink_directories(graph: &JobGraph) -> Vec<PathBuf> {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let mut found = Vec::new();
    for mut spec in operators.flat_map(|operator| OperatorSpec::from_json(&operator.spec)) {
        spec.visit_paths(&mut |path, used| {
            if used == PathUse::Write {
                found.push(PathBuf::from(&*path));
            }
        });
    }
    found.sort();
    found.dedup();
    found
}
