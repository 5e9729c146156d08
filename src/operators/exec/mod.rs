//! Programs that tasks run. They are started under a supervisor that ends with its TaskManager
//! (`docs/adr/0010`), use pipes for input and output, and are gone, with all processes that they started,
//! before their task counts as ended.
//!
//! `codec` defines the format of records in a pipe; the operators decide when records move. The supervisor is
//! this same binary: a program that links this library calls [`become_child_if_asked`] first in `main`.

mod artifacts;
mod codec;
mod environment;
mod kept;
mod launch;
mod lease;
mod log;
mod operator;
mod processes;
mod program;
mod protocol;
mod sandbox;
mod supervisor;

use std::ffi::OsString;

pub(super) use artifacts::ArtifactCache;
pub(super) use kept::KeptArtifacts;
pub(super) use lease::ProgramLeases;

/// The hidden first argument of this binary.
const SUBCOMMAND: &str = "exec-child";
/// Second argument: run as the supervisor.
const SUPERVISE: &str = "supervise";
/// Second argument: run as the launcher that becomes the program.
const LAUNCH: &str = "launch";

/// Runs this process as the supervisor or the launcher of a program if its arguments ask for that; then it does
/// not return. Call it first in `main`, before any thread is started: tasks with an `exec` operator start their
/// own binary again.
pub fn become_child_if_asked() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != SUBCOMMAND) {
        return;
    }
    let code = match arguments.next() {
        Some(role) if role == SUPERVISE => supervisor::supervise(),
        Some(role) if role == LAUNCH => launch::launch(arguments),
        other => misused(other),
    };
    // This process has no state to clean up.
    std::process::exit(code)
}

fn misused(role: Option<OsString>) -> i32 {
    eprintln!(
        "`{SUBCOMMAND}` is for TaskManagers, which start programs with it, not for users (role {role:?})"
    );
    2
}
