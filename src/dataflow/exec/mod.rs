//! Programs that tasks run: started under a supervisor that ends with its TaskManager (`docs/adr/0010`), fed and read through
//! pipes, and gone with all that they started before their task counts as ended.
//!
//! What records look like in a pipe is `codec`'s, when they move is the operators'. The supervisor is this very binary:
//! whoever links this library calls [`become_child_if_asked`] first in `main`.

mod artifacts;
pub(super) mod codec;
mod kept;
mod launch;
mod lease;
mod log;
mod premises;
mod processes;
pub(super) mod program;
mod protocol;
mod supervisor;
pub(super) mod surroundings;

use std::ffi::OsString;

pub(super) use artifacts::ArtifactCache;
pub(super) use kept::KeptArtifacts;
pub(super) use lease::ProgramLeases;

/// The hidden first argument of this binary.
const SUBCOMMAND: &str = "exec-child";
/// The second one: the supervisor.
const SUPERVISE: &str = "supervise";
/// The second one: what becomes the program.
const LAUNCH: &str = "launch";

/// Runs this process as the supervisor or the launcher of a program, if that is what it was started for, and does not return
/// then. To be called first in `main`, before any thread is started: tasks with an `exec` operator start the binary that they
/// are part of once more.
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
    // Nothing of this process's own is to be put in order.
    std::process::exit(code)
}

fn misused(role: Option<OsString>) -> i32 {
    eprintln!(
        "`{SUBCOMMAND}` is how a TaskManager starts programs; it is of no use by hand (asked for {role:?})"
    );
    2
}
