//! Finds processes in `/proc` and kills them. Both the supervisor and its TaskManager use it.
//!
//! The danger is a pid that the system has given to another process since it was read. So a process is signalled
//! through a pidfd, after a look whether it is still the one that was found.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// Contents of `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    pid: Pid,
    is_zombie: bool,
    parent: i32,
    session: i32,
    /// Processor time that the process has used, without its children.
    used: Duration,
}

/// Unit of times in `/proc/<pid>/stat`: 100 ticks a second on every architecture.
const TICK_MS: u64 = 10;

/// A child of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) pid: Pid,
    /// The process has ended and waits to be reaped.
    pub(super) is_zombie: bool,
}

/// Returns the children of this process.
pub(super) fn children() -> io::Result<Vec<Child>> {
    let own = getpid().as_raw_pid();
    let children = all()?.into_iter().filter(|stat| stat.parent == own);
    Ok(children
        .map(|stat| Child {
            pid: stat.pid,
            is_zombie: stat.is_zombie,
        })
        .collect())
}

/// Processor time of a process: all its threads, none of its children. The process may have ended but must not
/// have been reaped.
pub(super) fn processor_time(process: Pid) -> Option<Duration> {
    stat(process).map(|stat| stat.used)
}

/// Kills all processes of a session except its leader, repeatedly until none is left. The leader must not have
/// been reaped: its pid prevents the session id from being reused.
pub(super) fn kill_session(leader: Pid) {
    const ROUNDS: usize = 1000;
    let session = leader.as_raw_pid();
    for _ in 0..ROUNDS {
        let Ok(all) = all() else { return };
        let members: Vec<_> = all
            .into_iter()
            .filter(|stat| stat.session == session && stat.pid != leader && !stat.is_zombie)
            .collect();
        if members.is_empty() {
            return;
        }
        for member in members {
            // The pid may belong to another process now: check again before signalling it.
            let Ok(process) = pidfd_open(member.pid, PidfdFlags::empty()) else {
                continue;
            };
            if stat(member.pid).is_some_and(|now| now.session == session) {
                let _it_may_be_gone = pidfd_send_signal(&process, Signal::KILL);
            }
        }
        std::thread::yield_now();
    }
}

/// Kills all descendants of a process, but not the process itself, and returns whether there were any. A
/// descendant that starts a session or loses its parent is included, since `of` is the subreaper of all of
/// them; `of` must not have been reaped.
pub(super) fn kill_descendants(of: Pid) -> bool {
    let Ok(all) = all() else { return false };
    let living = living_descendants(&all, of);
    for member in &living {
        // The pid may belong to another process now: check again before signalling it.
        let Ok(process) = pidfd_open(member.pid, PidfdFlags::empty()) else {
            continue;
        };
        if stat(member.pid).is_some_and(|now| now.parent == member.parent) {
            let _it_may_be_gone = pidfd_send_signal(&process, Signal::KILL);
        }
    }
    !living.is_empty()
}

fn living_descendants(all: &[Stat], of: Pid) -> Vec<Stat> {
    let (mut family, mut found) = (BTreeSet::from([of.as_raw_pid()]), Vec::new());
    loop {
        let before = found.len();
        for stat in all {
            let pid = stat.pid.as_raw_pid();
            if !stat.is_zombie && family.contains(&stat.parent) && family.insert(pid) {
                found.push(*stat);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Waits a moment for killed processes to disappear. Blocks.
pub(super) fn pause() {
    const INTERVAL: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 2_000_000,
    };
    let _interrupted_or_over = poll(&mut [], Some(&INTERVAL));
}

/// Whether a child of this process ends within that time, as far as the system can say. Does not reap it.
/// Blocks.
pub(super) fn ends_within(child: Pid, time: Duration) -> bool {
    let process = pidfd_open(child, PidfdFlags::empty());
    let (Ok(process), Ok(time)) = (process, Timespec::try_from(time)) else {
        return false;
    };
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time)) {
            Ok(ended) => return ended > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn all() -> io::Result<Vec<Stat>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let pid = number.and_then(Pid::from_raw);
        all.extend(pid.and_then(stat));
    }
    Ok(all)
}

/// Reads the state of a process; `None` if it is gone.
fn stat(pid: Pid) -> Option<Stat> {
    let text = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    parse(pid, &String::from_utf8_lossy(&text))
}

/// Parses a stat line. The program's name is in parentheses and may contain parentheses itself.
fn parse(pid: Pid, text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let _group = fields.next()?;
    let session = fields.next()?.parse().ok()?;
    // Times in user mode and in the kernel, after seven other fields.
    let times = fields.skip(7).take(2).flat_map(str::parse::<u64>);
    let ticks = times.fold(0, u64::saturating_add);
    Some(Stat {
        pid,
        is_zombie: matches!(state, "Z" | "X"),
        parent,
        session,
        used: Duration::from_millis(ticks.saturating_mul(TICK_MS)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_in_whatever_order_and_session_they_are() {
        let stat = |pid, parent, is_zombie| Stat {
            pid: Pid::from_raw(pid).expect("positive"),
            is_zombie,
            parent,
            session: pid,
            used: Duration::ZERO,
        };
        let all = [
            stat(9, 8, false),
            stat(8, 5, false),
            stat(5, 1, false),
            stat(6, 5, true),
            stat(7, 1, false),
        ];
        let of = Pid::from_raw(5).expect("positive");
        let found = living_descendants(&all, of);
        let pids: Vec<i32> = found.iter().map(|stat| stat.pid.as_raw_pid()).collect();
        assert_eq!(pids, [8, 9]);
    }

    #[test]
    fn a_name_with_parentheses_hides_nothing() {
        let pid = Pid::from_raw(7).expect("positive");
        let stat = parse(
            pid,
            "7 (a) Z 1 (b)) S 3 4 5 0 -1 4194304 105 6 0 0 250 50 9 9",
        );
        let stat = stat.expect("it is whole");
        assert_eq!((stat.parent, stat.session, stat.is_zombie), (3, 5, false));
        assert_eq!(stat.used, Duration::from_secs(3));
        assert_eq!(parse(pid, "7 (a) S"), None);
    }
}
