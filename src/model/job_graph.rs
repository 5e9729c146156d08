//! Properties of a compiled job that do not depend on the types of its columns: limits, names in messages, whether this
//! program can run it, and which file sinks it has.
//!
//! A graph may come from any sender. Texts of it go into messages only through [`shown`] or [`printable`]. The complete
//! check of a graph is `tanist_compile::validate_job_graph`.

use std::cell::LazyCell;

use tanist_proto::v1::JobGraph;

use crate::OperatorSpec;
use crate::endless::default_commit;
use crate::operators::{Commit, FileSink, FileSource};
use crate::problem::listing;

/// Maximum number of steps.
pub const MAX_STEPS: usize = 1_000;
/// Upper limit of parallelism and maximum parallelism.
pub const MAX_PARALLELISM_LIMIT: u32 = 32_768;
/// Maximum length of a message: messages repeat texts of untrusted senders.
pub const MAX_MESSAGE_LENGTH: usize = 1_000;
/// Maximum length of a name, in characters: names are shown in tables and logs.
pub const MAX_NAME_LENGTH: usize = 255;

/// A JobGraph that must not be run, with all its problems.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", listing("the job graph", .problems))]
pub struct InvalidJobGraph {
    /// At least one.
    pub problems: Vec<String>,
}

/// Returns why this program can't run a valid graph: names the first step whose operator is unknown or needs a
/// feature that this program was built without.
pub fn unsupported(graph: &JobGraph) -> Option<String> {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    operators.into_iter().find_map(|operator| {
        let problem = match OperatorSpec::from_json(&operator.spec) {
            Ok(spec) => spec.missing_feature()?.to_owned(),
            Err(error) => format!("its specification is not known: {error}"),
        };
        Some(printable(
            &format!("step {}: {problem}", shown(&operator.name)),
            MAX_MESSAGE_LENGTH,
        ))
    })
}

/// The specification of an operator if it is a file source, which has a coordinator at the JobMaster. `None` also for a
/// specification that this version does not know.
pub fn file_source(spec: &str) -> Option<FileSource> {
    // Cheap first check: a leader of thousands of jobs calls this for each operator, and most are no file source.
    if !spec.contains("\"file-source\"") {
        return None;
    }
    match OperatorSpec::from_json(spec) {
        Ok(OperatorSpec::FileSource(source)) => Some(source),
        Ok(_) | Err(_) => None,
    }
}

/// The name of the first file sink whose output becomes visible only at the end of the job; `None` if there is none.
pub fn commits_at_the_end(graph: &JobGraph) -> Option<&str> {
    let default = LazyCell::new(|| default_commit(graph));
    find_file_sink(graph, |sink| {
        sink.commit.unwrap_or_else(|| *default) == Commit::End
    })
}

/// The name of the first file sink that states `commit: checkpoint` itself; `None` if there is none.
pub fn asks_for_commits(graph: &JobGraph) -> Option<&str> {
    find_file_sink(graph, |sink| sink.commit == Some(Commit::Checkpoint))
}

/// The name of the first file sink that meets the condition.
fn find_file_sink(graph: &JobGraph, is_wanted: impl Fn(&FileSink) -> bool) -> Option<&str> {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    // Cheap first check, as for file sources.
    let mut sinks = operators.filter(|operator| operator.spec.contains("\"file-sink\""));
    let found = sinks.find(|operator| match OperatorSpec::from_json(&operator.spec) {
        Ok(OperatorSpec::FileSink(sink)) => is_wanted(&sink),
        Ok(_) | Err(_) => false,
    });
    found.map(|operator| operator.name.as_str())
}

/// Whether checking a graph compiles expressions, which takes long and must not run on a shared thread.
pub fn has_expressions(graph: &JobGraph) -> bool {
    let mut operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    operators.any(|operator| {
        OperatorSpec::from_json(&operator.spec).is_ok_and(|spec| spec.has_expressions())
    })
}

/// Formats a name for a message.
pub fn shown(name: &str) -> String {
    format!("`{}`", printable(name, 80))
}

/// At most `length` characters, without control characters, which could forge a log line.
pub fn printable(text: &str, length: usize) -> String {
    text.chars()
        .take(length)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Returns the problem of a name of a job, a step or a group.
pub fn name_problem(name: &str) -> Option<String> {
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
