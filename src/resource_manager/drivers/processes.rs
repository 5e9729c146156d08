//! Which workers run on this host, and how one is signalled and waited for without mistaking another process for it.
//!
//! A worker is known by its command line, which names its resource id; no other process ever has that one. So neither a
//! parent, which may have died, nor a file, which may have been removed, has to remember a process id. An id that was read
//! from `/proc` may belong to another process by the time it is used: a handle of the process is opened first and the command
//! line read again, after which the handle stands for that very process or for one that is dead.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What precedes the id in the argument that names it.
pub(super) const ID_ARGUMENT: &str = "taskmanager.resource-id=";
/// What precedes the cluster's incarnation in the argument that names it.
pub(super) const CLUSTER_ARGUMENT: &str = "taskmanager.worker-of=";

/// How often it is looked whether a process has ended that is nobody's child here.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A worker that runs.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    pub(super) pid: Pid,
    handle: OwnedFd,
}

impl WorkerProcess {
    /// The process with this worker's id; none: there is none.
    pub(super) fn find(worker: &str) -> io::Result<Option<WorkerProcess>> {
        let is_it = |arguments: &[String]| id_in(arguments) == Some(worker);
        for pid in pids()? {
            if !arguments_of(pid).is_some_and(|arguments| is_it(&arguments)) {
                continue;
            }
            let handle = match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) => handle,
                Err(Errno::SRCH) => continue,
                Err(error) => return Err(error.into()),
            };
            if arguments_of(pid).is_some_and(|arguments| is_it(&arguments)) {
                return Ok(Some(WorkerProcess { pid, handle }));
            }
        }
        Ok(None)
    }

    /// Sends it a signal. Nothing happens if it has ended.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for its end.
    pub(super) async fn ended(self) {
        while !self.has_ended() {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    fn has_ended(&self) -> bool {
        // It can be read from when the process has ended.
        let mut watched = [PollFd::new(&self.handle, PollFlags::IN)];
        let at_once = Timespec::default();
        matches!(poll(&mut watched, Some(&at_once)), Ok(ready) if ready > 0)
    }
}

/// The ids of all workers of a cluster that run on this host.
pub(super) fn workers_of(cluster: &str) -> io::Result<Vec<String>> {
    let mut workers = Vec::new();
    for pid in pids()? {
        let Some(arguments) = arguments_of(pid) else {
            continue;
        };
        let mut clusters = arguments
            .iter()
            .filter_map(|it| it.strip_prefix(CLUSTER_ARGUMENT));
        if clusters.next() == Some(cluster)
            && let Some(worker) = id_in(&arguments)
        {
            workers.push(worker.to_owned());
        }
    }
    Ok(workers)
}

/// The id that the command line of a worker names.
fn id_in(arguments: &[String]) -> Option<&str> {
    let is_worker = arguments.iter().any(|it| it.starts_with(CLUSTER_ARGUMENT));
    let mut ids = arguments
        .iter()
        .filter_map(|it| it.strip_prefix(ID_ARGUMENT));
    ids.next().filter(|_| is_worker)
}

fn pids() -> io::Result<Vec<Pid>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        pids.extend(number.and_then(Pid::from_raw));
    }
    Ok(pids)
}

/// None: it has ended, or is not to be seen.
fn arguments_of(pid: Pid) -> Option<Vec<String>> {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).ok()?;
    // What has ended and was not reaped has none.
    (!line.is_empty()).then(|| {
        let arguments = line.split(|byte| *byte == 0);
        arguments
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_command_line_with_both_marks_is_a_workers() {
        let arguments = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let worker = arguments(&[
            "tanist",
            "taskmanager",
            "-D",
            "taskmanager.resource-id=worker-1-a",
            "-D",
            "taskmanager.worker-of=c1",
        ]);
        assert_eq!(id_in(&worker), Some("worker-1-a"));
        for other in [
            &["less", "worker-1-a.log"][..],
            &[
                "tanist",
                "taskmanager",
                "-D",
                "taskmanager.resource-id=worker-1-a",
            ],
            &["grep", "taskmanager.worker-of=c1"],
        ] {
            assert_eq!(id_in(&arguments(other)), None);
        }
    }

    #[tokio::test]
    async fn a_worker_is_found_signalled_and_waited_for() -> anyhow::Result<()> {
        let worker = format!("worker-test-{:016x}", rand::random::<u64>());
        let cluster = format!("cluster-{:016x}", rand::random::<u64>());
        assert!(WorkerProcess::find(&worker)?.is_none());
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line", "sh"])
            .arg(format!("{ID_ARGUMENT}{worker}"))
            .arg(format!("{CLUSTER_ARGUMENT}{cluster}"))
            .stdin(std::process::Stdio::piped())
            .spawn()?;
        // A process that was just started has no command line for a moment.
        let found = tokio::time::timeout(Duration::from_secs(10), async {
            loop {
                if let Some(found) = WorkerProcess::find(&worker)? {
                    return anyhow::Ok(found);
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        })
        .await??;
        assert_eq!(found.pid, Pid::from_child(&child));
        assert_eq!(workers_of(&cluster)?, [worker.as_str()]);
        found.signal(Signal::KILL)?;
        found.ended().await;
        // Ended and not reaped is gone as well.
        assert!(WorkerProcess::find(&worker)?.is_none());
        child.wait()?;
        Ok(())
    }
}
