//! Kills a process that was stopped while it holds SQLite's write lock: otherwise no process could ever write
//! again. Finds the holder, proves its identity, kills it. Keeps no state.
//!
//! Invariant: a process is killed only if it holds the write lock, is stopped, and is by pid, start time and
//! boot id the owner of a living member file. The kill uses a pidfd that was opened before the last of these
//! checks.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::member_locks::{self, Members, Owner};

/// The byte of the `-shm` file whose lock is the write lock of a database in WAL mode.
const WRITE_LOCK: u64 = 120;

/// Kills the holder of the write lock if it is a stopped member; logs the reason if not. Returns true if it
/// was killed.
pub(super) fn kill_stopped_holder(database: &Path, members: &Members) -> bool {
    match try_kill(database, members) {
        Ok(Ok(owner)) => {
            log_killed(&owner);
            true
        }
        Ok(Err(reason)) => {
            tracing::warn!(
                reason,
                "the store's write lock stays busy: its holder is not killed"
            );
            false
        }
        Err(error) => {
            tracing::warn!(%error, "the store's write lock stays busy, and its holder can't be examined");
            false
        }
    }
}

/// Same as [`kill_stopped_holder`], for the early part of a writer's timeout: there a holder that is not stopped
/// is normal and not logged.
pub(super) fn kill_holder_if_stopped(database: &Path, members: &Members) -> bool {
    let killed = try_kill(database, members).ok().and_then(Result::ok);
    killed.inspect(log_killed).is_some()
}

fn log_killed(owner: &Owner) {
    tracing::warn!(
        process = %owner.process, pid = owner.pid,
        "killed a process that was stopped while it held the store's write lock"
    );
}

fn try_kill(database: &Path, members: &Members) -> io::Result<Result<Owner, &'static str>> {
    let mut shared_memory = database.as_os_str().to_owned();
    shared_memory.push("-shm");
    let inode = fs::metadata(shared_memory)?.ino();
    let Some(pid) = write_lock_holder(&fs::read_to_string("/proc/locks")?, inode) else {
        return Ok(Err("its holder is not visible from here"));
    };
    let Some(owner) = members.living()?.into_iter().find(|owner| owner.pid == pid) else {
        return Ok(Err("its holder is no member of this cluster"));
    };
    let Some(target) = Pid::from_raw(pid) else {
        return Ok(Err("its holder has no pid here"));
    };
    // Before the checks below: if the process ends after them, the signal can't reach another one with its pid.
    let pidfd = pidfd_open(target, PidfdFlags::empty())?;
    let (state, start_time) = member_locks::process_stat(pid)?;
    if start_time != owner.start_time || member_locks::boot_id()? != owner.boot_id {
        return Ok(Err("its holder only has the pid of a member"));
    }
    // `T` stopped by a signal, `t` by a debugger: a process in another state may run on, and then commits or
    // gives up itself.
    if !matches!(state, 'T' | 't') {
        return Ok(Err("its holder is not stopped"));
    }
    pidfd_send_signal(&pidfd, Signal::KILL)?;
    Ok(Ok(owner))
}

/// The pid of the write lock's holder, from `/proc/locks`, with lines like `1: POSIX  ADVISORY  WRITE 4711
/// 08:01:1234 120 120`.
fn write_lock_holder(locks: &str, inode: u64) -> Option<i32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "POSIX", _, "WRITE", pid, file, first, last] = fields[..] else {
            return None;
        };
        let file: u64 = file.rsplit(':').next()?.parse().ok()?;
        let first: u64 = first.parse().ok()?;
        let last: u64 = if last == "EOF" {
            u64::MAX
        } else {
            last.parse().ok()?
        };
        let held = file == inode && (first..=last).contains(&WRITE_LOCK);
        held.then(|| pid.parse().ok())
            .flatten()
            .filter(|pid| *pid > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_the_write_lock_is_found_among_other_locks() {
        let locks = "1: FLOCK  ADVISORY  WRITE 11 08:01:77 0 EOF\n\
                     2: POSIX  ADVISORY  READ  12 08:01:77 124 124\n\
                     2: -> POSIX  ADVISORY  WRITE 13 08:01:77 120 120\n\
                     3: POSIX  ADVISORY  WRITE 14 08:01:78 120 120\n\
                     4: POSIX  ADVISORY  WRITE 15 08:01:77 120 120\n";
        assert_eq!(write_lock_holder(locks, 77), Some(15));
        assert_eq!(write_lock_holder(locks, 79), None);
    }
}
