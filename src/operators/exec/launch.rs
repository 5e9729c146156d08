//! The process that becomes the program: it ties itself to its supervisor, sets its own limits, and executes
//! the program.
//!
//! If a step fails, it writes the reason to standard error, which the TaskManager logs, and ends with an exit code that
//! says whether a restart can help.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal,
    setrlimit,
};
use tanist_model::ExecLimits;
use tanist_telemetry::control_group;

use super::protocol::{NOT_EXECUTABLE, NOT_FOUND, NOT_LAUNCHED};
use crate::umask;

/// Builds the arguments that [`launch`] parses.
pub(super) fn arguments(
    supervisor: Pid,
    limits: &ExecLimits,
    group: Option<&Path>,
    umask: Option<u32>,
) -> Vec<OsString> {
    let limits = serde_json::to_string(limits).expect("numbers always serialize");
    let group = group.map_or_else(OsString::new, |group| group.as_os_str().to_owned());
    let supervisor = supervisor.as_raw_pid().to_string();
    let umask = umask.map_or_else(String::new, |umask| umask.to_string());
    vec![supervisor.into(), limits.into(), group, umask.into()]
}

/// Becomes the program. Returns only if that fails; the error is written to the program's standard error.
pub(super) fn launch(mut arguments: impl Iterator<Item = OsString>) -> i32 {
    let mut text = || arguments.next().and_then(|text| text.into_string().ok());
    let supervisor = text().and_then(|text| text.parse().ok());
    let limits: Option<ExecLimits> = text().and_then(|text| serde_json::from_str(&text).ok());
    let (Some(supervisor), Some(limits)) = (supervisor.and_then(Pid::from_raw), limits) else {
        eprintln!("the launcher of a program was given wrong arguments");
        return NOT_LAUNCHED;
    };
    let group = arguments.next().filter(|group| !group.is_empty());
    let umask = arguments.next().and_then(|text| text.into_string().ok());
    if let Some(umask) = umask.and_then(|text| text.parse().ok()) {
        umask::set(umask);
    }
    let Some(program) = arguments.next() else {
        eprintln!("the launcher of a program was started without a program");
        return NOT_LAUNCHED;
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("the program can't be tied to its supervisor: {error}");
        return NOT_LAUNCHED;
    }
    // The supervisor may have died before.
    if getppid() != Some(supervisor) {
        return NOT_LAUNCHED;
    }
    if let Some(group) = &group
        && let Err(error) = control_group::enter(Path::new(group), getpid())
    {
        eprintln!("the program can't be put into its control group {group:?}: {error}");
        return NOT_LAUNCHED;
    }
    if let Err((name, error)) = limit(&limits, group.is_some()) {
        eprintln!("the program's limit of {name} can't be set: {error}");
        return NOT_LAUNCHED;
    }
    let error = Command::new(&program).args(arguments).exec();
    eprintln!("the program {program:?} can't be started: {error}");
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::NOTDIR) => NOT_FOUND,
        Some(Errno::ACCESS | Errno::PERM | Errno::NOEXEC | Errno::ISDIR) => NOT_EXECUTABLE,
        // Out of memory, too many processes, or the file is being written.
        _ => NOT_LAUNCHED,
    }
}

/// Seconds of processor time that a process gets after SIGXCPU, which it may handle, before SIGKILL ends it
/// without an explanation.
const LAST_WORDS: u64 = 1;

/// Lowers the process's limits; none can exceed the TaskManager's own. Limits that the control group enforces
/// are not set here.
fn limit(limits: &ExecLimits, is_grouped: bool) -> Result<(), (&'static str, io::Error)> {
    let of_process = |limit: Option<u64>| limit.filter(|_| !is_grouped);
    let wanted = [
        ("memory", Resource::As, of_process(limits.memory), 0),
        ("cpu-time", Resource::Cpu, limits.cpu_time, LAST_WORDS),
        ("open-files", Resource::Nofile, limits.open_files, 0),
        (
            "processes",
            Resource::Nproc,
            of_process(limits.processes),
            0,
        ),
    ];
    for (name, resource, limit, further) in wanted {
        let Some(limit) = limit else { continue };
        let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let both = Rlimit {
            current: Some(limit.min(most)),
            maximum: Some(limit.saturating_add(further).min(most)),
        };
        setrlimit(resource, both).map_err(|error| (name, error.into()))?;
    }
    Ok(())
}
