//! The supervisor of one program: a process that starts the program, outlives it, and kills all that it started
//! when the program ends, when the TaskManager orders it, or when the TaskManager is gone. `docs/adr/0010` has
//! the protocol.
//!
//! One thread, no runtime: it waits in `poll` for its socket and its program. It signals only process groups
//! and children that were not reaped, so their pids can't belong to other processes.

use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process,
    kill_process_group, pidfd_open, set_child_subreaper, set_parent_process_death_signal, setsid,
    wait, waitid, waitpid,
};
use tanist_telemetry::control_group;
use tokio::time::Instant;

use super::protocol::{self, EXTEND, Ended, Report, Request, TERMINATE};
use super::{LAUNCH, SUBCOMMAND, launch, lease, processes};

/// Name of the process in process listings. It differs from the program's name, so that killing the program by
/// name does not hit the supervisor.
const NAME: &std::ffi::CStr = c"exec-child";

/// Interval at which orphans that ended are reaped while the program runs.
const REAP_INTERVAL: Duration = Duration::from_secs(10);
/// The same interval on a system that can't report the end of a process.
const BLIND_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which the clock is compared with the end of the lease: a timer would not advance while the host
/// is suspended.
const LEASE_INTERVAL: Duration = Duration::from_millis(100);
/// Wait for killed processes before they are checked again.
const KILL_INTERVAL: Duration = Duration::from_millis(2);

/// Runs this process as a supervisor until its program has ended.
pub(super) fn supervise() -> i32 {
    match try_supervise() {
        Ok(()) => 0,
        // The TaskManager is gone, so no process can receive the result.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            say(&format!("the supervisor of a program failed: {error}"));
            1
        }
    }
}

fn try_supervise() -> io::Result<()> {
    let mut control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::thread::set_name(NAME)?;
    match setsid() {
        // The process was started as the leader of a group, so it is not in a group with others.
        Ok(_) | Err(Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    set_child_subreaper(Some(getpid()))?;
    // The program may stop us, and then the end of the TaskManager would go unnoticed. SIGCONT has no effect on
    // a running process, so it does no harm that it also comes when the TaskManager thread that started us
    // ends.
    set_parent_process_death_signal(Some(Signal::CONT))?;
    protocol::report(&mut control, &Report::Hello)?;
    let Some((request, stdin)) = protocol::receive(&mut control)? else {
        return Ok(());
    };
    let mut used = None;
    let ended = match start(&request, stdin) {
        Ok(program) => {
            let attended = protocol::report(&mut control, &Report::Started(program.as_raw_pid()))
                .and_then(|()| attend(&mut control, program, &request));
            let why = attended.unwrap_or_else(|error| {
                say(&format!("the supervisor of a program kills it: {error}"));
                Why::Ended
            });
            used = processes::processor_time(program);
            match (end(program).map(how), why) {
                (Some(Ended::Killed(KILL)), Why::Overdue) => Ended::Overdue(request.grace_ms),
                (Some(ended), Why::Overdue | Why::Ended) => ended,
                (None, _) => Ended::Failed("the program's exit code is not known".to_owned()),
            }
        }
        Err(error) => Ended::Failed(format!("the program can't be started: {error}")),
    };
    let ended = leave_group(&request, ended);
    let ended = explain_time(request.limits.cpu_time, used, ended);
    protocol::report(&mut control, &Report::Ended(ended))
}

/// Writes to the TaskManager's log. If the TaskManager is gone the write fails, which must not end the
/// supervisor.
fn say(what: &str) {
    let _ = writeln!(io::stderr(), "{what}");
}

/// Removes the program's control group, in which nothing runs any more, and explains the end if the group was
/// out of memory.
fn leave_group(request: &Request, ended: Ended) -> Ended {
    let Some(group) = &request.group else {
        return ended;
    };
    let ended = match (&ended, request.limits.memory) {
        (Ended::Killed(_) | Ended::Exited(_), Some(memory))
            if ended != Ended::Exited(0) && control_group::was_out_of_memory(group) =>
        {
            Ended::Failed(format!(
                "the program and what it started took more than the {memory} bytes of memory that its `limits` allow: {ended}"
            ))
        }
        _ => ended,
    };
    if let Err(error) = control_group::remove(group) {
        say(&format!(
            "can't remove the control group {} of a program: {error}",
            group.display()
        ));
    }
    ended
}

/// Explains the end of a program if a process exceeded the limit of `limit` seconds of processor time. `used`
/// is the program's own processor time.
fn explain_time(limit: Option<u64>, used: Option<Duration>, ended: Ended) -> Ended {
    let Some(seconds) = limit else { return ended };
    let is_used_up = used.is_some_and(|used| used >= Duration::from_secs(seconds));
    match ended {
        // Exit code of a shell for a program that it ran.
        Ended::Killed(XCPU) | Ended::Exited(SHELL_XCPU) => {}
        // It ignored SIGXCPU.
        Ended::Killed(KILL) if is_used_up => {}
        ended => return ended,
    }
    let allowed = protocol::duration(seconds.saturating_mul(1000));
    Ended::Failed(format!(
        "the program, or what it started, took more than the cpu-time of {allowed} that its `limits` allow: {ended}"
    ))
}

/// Starts the process that becomes the program.
fn start(request: &Request, stdin: OwnedFd) -> io::Result<Pid> {
    let launcher = Command::new("/proc/self/exe")
        .arg0(SUBCOMMAND)
        .args([SUBCOMMAND, LAUNCH])
        .args(launch::arguments(
            getpid(),
            &request.limits,
            request.group.as_deref(),
            request.umask,
        ))
        .args(&request.command)
        .env_clear()
        .envs(&request.env)
        .current_dir(&request.directory)
        .process_group(0)
        .stdin(Stdio::from(stdin))
        .spawn()?;
    // Reaped explicitly: dropping the handle neither waits nor kills.
    Ok(Pid::from_child(&launcher))
}

/// SIGKILL.
const KILL: i32 = 9;
/// SIGXCPU.
const XCPU: i32 = 24;
/// Exit code of a shell whose last command ended by SIGXCPU.
const SHELL_XCPU: i32 = 128 + XCPU;

/// Why everything must be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The program's grace is over.
    Overdue,
    /// The program ended, its lease is over, or the TaskManager is gone.
    Ended,
}

/// Waits until everything must be killed, and returns why.
fn attend(control: &mut UnixStream, program: Pid, request: &Request) -> io::Result<Why> {
    let process = pidfd_open(program, PidfdFlags::empty()).ok();
    let mut kill_at: Option<Instant> = None;
    let mut ends_ms = request.ends_ms;
    loop {
        let interval = match (&process, ends_ms) {
            (None, _) => BLIND_INTERVAL,
            (Some(_), Some(_)) => LEASE_INTERVAL,
            (Some(_), None) => REAP_INTERVAL,
        };
        if ends_ms.is_some_and(|ends_ms| lease::now_ms() >= ends_ms) {
            // Write no message: the log may not be read, and then the write would block.
            return Ok(Why::Ended);
        }
        let left = kill_at.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Why::Overdue);
        }
        let timeout = left.map_or(interval, |left| left.min(interval));
        let mut watched = vec![PollFd::new(&*control, PollFlags::IN)];
        watched.extend(process.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        wait_for(&mut watched, timeout)?;
        let spoke = !watched[0].revents().is_empty();
        if has_ended(program)? {
            return Ok(Why::Ended);
        }
        if spoke {
            let mut byte = [0];
            match control.read(&mut byte) {
                Ok(1) if byte[0] == TERMINATE => {
                    let _it_may_have_ended = kill_process_group(program, Signal::TERM);
                    let grace = Duration::from_millis(request.grace_ms);
                    kill_at.get_or_insert(Instant::now() + grace);
                }
                Ok(1) if byte[0] == EXTEND => {
                    let mut until = [0; 8];
                    control.read_exact(&mut until)?;
                    ends_ms = ends_ms.max(Some(u64::from_be_bytes(until)));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return Ok(Why::Ended),
            }
        }
        reap_orphans(program);
    }
}

fn wait_for(watched: &mut [PollFd<'_>], timeout: Duration) -> io::Result<()> {
    // A little longer, so that the deadline has passed afterwards.
    let timeout = Timespec::try_from(timeout + Duration::from_millis(1))
        .map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(watched, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the program has ended. Does not reap it: its pid stays reserved.
fn has_ended(program: Pid) -> io::Result<bool> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(program), look)?.is_some())
}

/// Reaps orphans of the program's children that have ended.
fn reap_orphans(program: Pid) {
    let children = processes::children().unwrap_or_default();
    let ended = children
        .iter()
        .filter(|child| child.is_zombie && child.pid != program);
    for child in ended {
        let _ = waitpid(Some(child.pid), WaitOptions::NOHANG);
    }
}

/// Kills the program and all that it started, and waits until no process is left. Returns how the program
/// ended, if known.
fn end(program: Pid) -> Option<WaitStatus> {
    let mut status = None;
    // Before the program is reaped: its group id can't be another group's yet.
    let _it_may_be_empty = kill_process_group(program, Signal::KILL);
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, ended))) if pid == program => status = Some(ended),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            // No child is left.
            Err(_) => return status,
            Ok(None) => {
                // Children of a dead child have become ours.
                let Ok(children) = processes::children() else {
                    return status;
                };
                for child in children {
                    let _it_may_be_not_ours = kill_process(child.pid, Signal::KILL);
                }
                let _ = wait_for(&mut [], KILL_INTERVAL);
            }
        }
    }
}

fn how(status: WaitStatus) -> Ended {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, Some(signal)) => Ended::Killed(signal),
        (None, None) => Ended::Failed("the program's exit code is not known".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_took_too_much_processor_time_is_told_from_who_was_killed() {
        let explained = |used, ended| explain_time(Some(2), Some(Duration::from_secs(used)), ended);
        for (used, ended) in [
            (2, Ended::Killed(XCPU)),
            (0, Ended::Exited(SHELL_XCPU)),
            (3, Ended::Killed(KILL)),
        ] {
            let text = explained(used, ended).to_string();
            assert!(text.contains("cpu-time of 2 s that its `limits`"), "{text}");
        }
        for (used, ended) in [(1, Ended::Killed(KILL)), (3, Ended::Exited(1))] {
            assert_eq!(explained(used, ended.clone()), ended);
        }
        let unlimited = explain_time(None, None, Ended::Killed(XCPU));
        assert_eq!(unlimited, Ended::Killed(XCPU));
    }
}
