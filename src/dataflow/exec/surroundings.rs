//! What a program finds: its directory and its environment.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::log::Labels;
use super::program::Surroundings;
use super::protocol::Request;
use crate::dataflow::operator::{OperatorContext, OperatorError};
use crate::job::ExecSpec;

/// The variables that every program gets from the TaskManager's environment, where they are set there. The rest of it may be
/// nobody's business.
const INHERITED: [&str; 10] = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
];

/// Makes the program's directory and says what is to be run there. Blocks.
pub(crate) fn prepare(
    spec: &ExecSpec,
    context: &OperatorContext,
    logs_output: bool,
) -> Result<(Request, Surroundings), OperatorError> {
    let directory = make_directory(context)?;
    let request = Request {
        command: spec.command.clone(),
        env: environment(spec, context, &directory),
        directory: directory.clone(),
        limits: spec.limits,
        grace_ms: spec.grace_ms,
    };
    let around = Surroundings {
        binary: context.host.exec_binary.clone(),
        directory,
        labels: Labels {
            job: context.job.to_string(),
            vertex: vertex_name(context).to_owned(),
            subtask: context.subtask,
            attempt: context.generation.get(),
        },
        lingering: context.lingering.clone(),
        logs_output,
    };
    Ok((request, around))
}

/// A directory that no other program has, nor had.
fn make_directory(context: &OperatorContext) -> Result<std::path::PathBuf, OperatorError> {
    let (job, vertex, subtask) = (context.job, context.vertex, context.subtask);
    let random = rand::random::<u32>();
    let name = format!(
        "{job}-{vertex}-{subtask}-{}-{random:08x}",
        context.generation
    );
    let directory = context.host.working_dir.join("programs").join(name);
    fs::create_dir_all(&directory)
        .map_err(|error| OperatorError::io("create", &directory, error))?;
    Ok(directory)
}

fn vertex_name(context: &OperatorContext) -> &str {
    let id = context.vertex.to_string();
    let vertices = &context.graph.vertices;
    let vertex = vertices.iter().find(|vertex| vertex.id == id);
    vertex.map_or("", |vertex| &vertex.name)
}

/// Later ones win: what is inherited, what the step says, what we say.
fn environment(
    spec: &ExecSpec,
    context: &OperatorContext,
    directory: &Path,
) -> BTreeMap<String, String> {
    let inherited = INHERITED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
    let mut all: BTreeMap<String, String> = inherited.collect();
    all.extend(spec.env.clone());
    let ours = [
        ("TANIST_JOB_ID", context.job.to_string()),
        ("TANIST_JOB_NAME", context.graph.name.clone()),
        ("TANIST_VERTEX", vertex_name(context).to_owned()),
        ("TANIST_VERTEX_ID", context.vertex.to_string()),
        ("TANIST_SUBTASK_INDEX", context.subtask.to_string()),
        ("TANIST_PARALLELISM", context.parallelism.to_string()),
        ("TANIST_ATTEMPT", context.generation.to_string()),
        (
            "TANIST_WORKING_DIR",
            directory.to_string_lossy().into_owned(),
        ),
    ];
    all.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    all
}
