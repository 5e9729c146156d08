//! Tests of the whole compilation, from the job file to the JobGraph or the message.

mod chaining;
mod checkpoints;
mod endless;
mod examples;
mod exec;
mod expressions;
mod messages;
mod parameters;
mod pipelines;
mod resources;
mod robustness;
mod steps;

use std::collections::BTreeMap;

use tanist_proto::id::JobId;
use tanist_proto::v1::JobGraph;

use crate::{CompileOptions, JobFile, compile};

fn options() -> CompileOptions {
    CompileOptions {
        job_id: JobId::from_bits(1),
        ..CompileOptions::default()
    }
}

fn options_with<const N: usize>(parameters: [(&str, &str); N]) -> CompileOptions {
    let parameters: BTreeMap<String, String> = parameters
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    CompileOptions {
        parameters,
        ..options()
    }
}

/// Compiles a job file that must be valid.
fn graph_of(text: &str, options: &CompileOptions) -> JobGraph {
    match compile(&JobFile::new("job.yaml", text), options) {
        Ok(graph) => graph,
        Err(error) => panic!("{error}"),
    }
}

/// Returns the message for a job file that must not be valid.
fn message_of(text: &str, options: &CompileOptions) -> String {
    match compile(&JobFile::new("job.yaml", text), options) {
        Ok(graph) => panic!("this is valid: {graph:?}"),
        Err(error) => error.to_string(),
    }
}

/// Adds `version` and `name` before these steps, the first of which is in line 4.
fn with_steps(steps: &str) -> String {
    format!("version: 1\nname: test\nsteps:\n{steps}")
}
