//! Sets up what a program runs in: its directory with links to the artifacts, its control group and its variables.
//!
//! The [`Sandbox`] owns directory and group from the start, so that nothing is left if a later step fails. A program
//! gets only a few variables of the TaskManager, since others may be secret. A limit that this host can't enforce is an
//! error, and another TaskManager may run the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::getuid;
use tanist_dataflow::{OperatorContext, OperatorError};
use tanist_ha::clock::millis;
use tanist_model::files::host_name;
use tanist_model::{ExecSpec, artifact};
use tanist_telemetry::control_group::GroupLimits;

use super::log::Labels;
use super::program::Environment;
use super::protocol::{Request, duration};
use super::sandbox::Sandbox;
use crate::host::TaskHost;
use crate::umask;

/// Variables that every program inherits from the TaskManager's environment, if they are set there. The other
/// variables may be secret.
const INHERITED: [&str; 10] = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
];

/// Creates the program's sandbox and the request to run it there. Blocks.
pub(crate) fn prepare(
    spec: &ExecSpec,
    context: &OperatorContext,
    host: &TaskHost,
    logs_output: bool,
) -> Result<(Request, Environment), OperatorError> {
    let mut sandbox = Sandbox::new(make_directory(context, host)?);
    link_artifacts(context, host, &mut sandbox)?;
    let directory = sandbox.directory().to_owned();
    let path_of = |name: &str| {
        let known = context
            .graph
            .artifacts
            .iter()
            .any(|known| known.name == name);
        known.then(|| directory.join(name).to_string_lossy().into_owned())
    };
    let resolve = |text: &String| {
        artifact::resolve(text, path_of)
            .map_err(|name| OperatorError::specification(format!("there is no artifact {name:?}")))
    };
    let command = spec.command.iter().map(resolve);
    let command: Vec<String> = command.collect::<Result<_, _>>()?;
    let mut env = environment(context, host, &directory);
    for (name, value) in &spec.env {
        env.insert(name.clone(), resolve(value)?);
    }
    let group = make_group(spec, host, &directory)?;
    if let Some(group) = &group {
        sandbox.own_group(group.clone());
    }
    let mut lease = host.leases.of(context.job);
    let request = Request {
        ends_ms: lease.as_mut().map(|lease| *lease.borrow_and_update()),
        command,
        env,
        directory,
        limits: spec.limits,
        group,
        umask: umask::of_output(),
        grace_ms: grace_ms(spec, context, host),
    };
    let around = Environment {
        binary: host.exec_binary.clone(),
        sandbox,
        labels: Labels {
            job: context.job.to_string(),
            vertex: vertex_name(context).to_owned(),
            subtask: context.subtask,
            attempt: context.generation.get(),
        },
        end_guard: context.end_guard.clone(),
        logs_output,
        lease,
    };
    Ok((request, around))
}

/// How much earlier than its task's timeout a program is killed, unless that is more than half of the timeout:
/// the time that a supervisor may take to end everything, and a little more.
const MARGIN: Duration = Duration::from_secs(6);

/// The program's grace, limited by its task's cancellation timeout: a task that exceeds that timeout ends the
/// TaskManager.
fn grace_ms(spec: &ExecSpec, context: &OperatorContext, host: &TaskHost) -> u64 {
    let Some(timeout) = host.cancellation_timeout else {
        return spec.grace_ms;
    };
    let most = millis(timeout.saturating_sub(MARGIN.min(timeout / 2)));
    if spec.grace_ms <= most {
        return spec.grace_ms;
    }
    tracing::warn!(
        job = %context.job,
        vertex = vertex_name(context),
        subtask = context.subtask,
        attempt = context.generation.get(),
        grace = %duration(spec.grace_ms),
        used = %duration(most),
        timeout = %duration(millis(timeout)),
        "a program's `grace` is cut, as its task has to end within task.cancellation.timeout"
    );
    most
}

/// Creates a directory with a name that no other program has or had.
fn make_directory(context: &OperatorContext, host: &TaskHost) -> Result<PathBuf, OperatorError> {
    let (job, vertex, subtask) = (context.job, context.vertex, context.subtask);
    let random = rand::random::<u32>();
    let name = format!(
        "{job}-{vertex}-{subtask}-{}-{random:08x}",
        context.generation
    );
    let directory = host.working_dir.join("programs").join(name);
    fs::create_dir_all(&directory)
        .map_err(|error| OperatorError::io("create", &directory, error))?;
    Ok(directory)
}

/// Creates a control group with the program's limits, if control groups are available. It has the name of the
/// directory, which is unique.
fn make_group(
    spec: &ExecSpec,
    host: &TaskHost,
    directory: &Path,
) -> Result<Option<PathBuf>, OperatorError> {
    let limits = GroupLimits {
        memory: spec.limits.memory,
        cpu_millis: spec.limits.cpu_millis,
        processes: spec.limits.processes,
    };
    if limits == GroupLimits::default() {
        return Ok(None);
    }
    match &host.control_groups {
        Ok(groups) => {
            let name = directory.file_name().unwrap_or_default().to_string_lossy();
            let made = groups.make(&format!("program-{name}"), &limits);
            made.map(Some).map_err(|error| {
                OperatorError::unavailable(format!(
                    "the control group for the program's `limits` can't be made on host {}: {error}",
                    host_name()
                ))
            })
        }
        Err(reason) => match unheld(&limits, getuid().is_root()) {
            Some((limit, why)) => Err(OperatorError::unavailable(format!(
                "the program's limit of `{limit}` can't be enforced on host {}, as {why}: {reason} (process.control-groups)",
                host_name()
            ))),
            None => Ok(None),
        },
    }
}

/// Returns a limit that can't be enforced without a control group, and why.
fn unheld(limits: &GroupLimits, is_root: bool) -> Option<(&'static str, &'static str)> {
    if limits.cpu_millis.is_some() {
        Some(("cpu", "only control groups can do that"))
    } else if limits.processes.is_some() && is_root {
        // The system counts processes per user, and does not limit root.
        let why = "for programs of root only control groups can do that";
        Some(("processes", why))
    } else {
        None
    }
}

/// Links all artifacts of the job into the program's directory under their names.
fn link_artifacts(
    context: &OperatorContext,
    host: &TaskHost,
    sandbox: &mut Sandbox,
) -> Result<(), OperatorError> {
    for artifact in &context.graph.artifacts {
        let held = host.artifacts.hold(artifact)?;
        let link = sandbox.directory().join(&artifact.name);
        let linked = std::os::unix::fs::symlink(held.path(), &link);
        sandbox.own_artifact(held);
        linked.map_err(|error| OperatorError::io("create", link, error))?;
    }
    Ok(())
}

fn vertex_name(context: &OperatorContext) -> &str {
    let id = context.vertex.to_string();
    let vertices = &context.graph.vertices;
    let vertex = vertices.iter().find(|vertex| vertex.id == id);
    vertex.map_or("", |vertex| &vertex.name)
}

/// Inherited and Tanist's own variables, without those of the step.
fn environment(
    context: &OperatorContext,
    host: &TaskHost,
    directory: &Path,
) -> BTreeMap<String, String> {
    let inherited = INHERITED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
    let mut all: BTreeMap<String, String> = inherited.collect();
    let ours = [
        ("TANIST_JOB_ID", context.job.to_string()),
        ("TANIST_JOB_NAME", context.graph.name.clone()),
        ("TANIST_VERTEX", vertex_name(context).to_owned()),
        ("TANIST_VERTEX_ID", context.vertex.to_string()),
        ("TANIST_SUBTASK_INDEX", context.subtask.to_string()),
        ("TANIST_PARALLELISM", context.parallelism.to_string()),
        ("TANIST_ATTEMPT", context.generation.to_string()),
        (
            "TANIST_ARTIFACTS_DIR",
            directory.to_string_lossy().into_owned(),
        ),
    ];
    all.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    all.extend(external_resources(context, host));
    all
}

/// The program's share of each extended resource of this TaskManager, as indices separated by commas. Variables
/// are also set for resources of which it has none: a program that takes a missing variable for all units must
/// see none.
fn external_resources(context: &OperatorContext, host: &TaskHost) -> Vec<(String, String)> {
    let (given, known) = (&context.external_resources, &host.external_resources);
    let names: BTreeSet<&String> = given.keys().chain(known.keys()).collect();
    let mut variables = Vec::new();
    for name in names {
        let indices = given.get(name).into_iter().flatten().map(u64::to_string);
        let indices = indices.collect::<Vec<_>>().join(",");
        let upper = name.replace('-', "_").to_ascii_uppercase();
        variables.push((format!("TANIST_RESOURCE_{upper}"), indices.clone()));
        let further = known.get(name).cloned().flatten();
        variables.extend(further.map(|variable| (variable, indices)));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_can_have_as_many_processes_as_it_likes_without_a_group() {
        let limits = GroupLimits {
            memory: Some(1),
            processes: Some(1),
            ..GroupLimits::default()
        };
        assert_eq!(unheld(&limits, false), None);
        let (limit, _) = unheld(&limits, true).expect("it is not enforced");
        assert_eq!(limit, "processes");
    }
}
