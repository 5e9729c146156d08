//! Finds worker processes of this host, and signals and awaits them without confusing them with other processes.
//!
//! A worker is identified by its command line, which has its resource id; no other process ever has that id. So no
//! parent, which may have died, and no file, which may have been removed, has to remember a process id. A process
//! id that was read from `/proc` may belong to another process by the time it is used: therefore a pidfd is opened
//! first and the command line read again. After that the pidfd refers to the right process or to a dead one.
//!
//! Invariant: a worker is reported as absent only if every process was examined. A process that can't be read (for
//! example for lack of file descriptors) is an error, since the caller ends everything left of a worker that is
//! gone.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};

/// Precedes the resource id in its command-line argument.
pub(super) const ID_ARGUMENT: &str = "taskmanager.resource-id=";
/// Precedes the cluster's incarnation in its command-line argument.
pub(super) const CLUSTER_ARGUMENT: &str = "taskmanager.worker-of=";

/// Interval of polling for the end of a process that is no child of this one.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The process table of this host.
#[derive(Debug, Clone)]
pub(super) struct Processes {
    /// A directory like `/proc`.
    pub(super) directory: PathBuf,
}

impl Default for Processes {
    fn default() -> Processes {
        let directory = PathBuf::from("/proc");
        Processes { directory }
    }
}

impl Processes {
    /// Finds the process of this worker, if it runs.
    pub(super) fn find(&self, worker: &str) -> io::Result<Option<WorkerProcess>> {
        let is_it = |pid: Pid| {
            let arguments = self.arguments_of(pid)?;
            io::Result::Ok(arguments.is_some_and(|arguments| id_in(&arguments) == Some(worker)))
        };
        for pid in self.pids()? {
            if !is_it(pid)? {
                continue;
            }
            let handle = match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) => handle,
                Err(Errno::SRCH) => continue,
                Err(error) => return Err(error.into()),
            };
            if is_it(pid)? {
                return Ok(Some(WorkerProcess { pid, handle }));
            }
        }
        Ok(None)
    }

    /// Resource ids of all workers of a cluster that run on this host.
    pub(super) fn workers_of(&self, cluster: &str) -> io::Result<Vec<String>> {
        let mut workers = Vec::new();
        for pid in self.pids()? {
            let Some(arguments) = self.arguments_of(pid)? else {
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

    fn pids(&self) -> io::Result<Vec<Pid>> {
        let mut pids = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            pids.extend(number.and_then(Pid::from_raw));
        }
        Ok(pids)
    }

    /// The command line of a process. `None`: it has ended, or belongs to another user and is not readable.
    fn arguments_of(&self, pid: Pid) -> io::Result<Option<Vec<String>>> {
        let process = self.directory.join(pid.as_raw_pid().to_string());
        let line = match fs::read(process.join("cmdline")) {
            Ok(line) => line,
            Err(error) if has_ended(&error) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_own(&process)? => {
                return Ok(None);
            }
            Err(error) => {
                let text = format!("process {}: {error}", pid.as_raw_pid());
                return Err(io::Error::new(error.kind(), text));
            }
        };
        // A process that has ended but was not reaped has an empty command line.
        Ok((!line.is_empty()).then(|| {
            let arguments = line.split(|byte| *byte == 0);
            arguments
                .map(|argument| String::from_utf8_lossy(argument).into_owned())
                .collect()
        }))
    }
}

/// A running worker.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    pub(super) pid: Pid,
    handle: OwnedFd,
}

impl WorkerProcess {
    /// Sends it a signal. Does nothing if it has ended.
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
        // A pidfd is readable once the process has ended.
        let mut watched = [PollFd::new(&self.handle, PollFlags::IN)];
        let at_once = Timespec::default();
        matches!(poll(&mut watched, Some(&at_once)), Ok(ready) if ready > 0)
    }
}

/// The resource id in the command line of a worker.
fn id_in(arguments: &[String]) -> Option<&str> {
    let is_worker = arguments.iter().any(|it| it.starts_with(CLUSTER_ARGUMENT));
    let mut ids = arguments
        .iter()
        .filter_map(|it| it.strip_prefix(ID_ARGUMENT));
    ids.next().filter(|_| is_worker)
}

fn has_ended(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::SRCH)
    )
}

/// Whether a process belongs to this user. One that has ended does not.
fn is_own(process: &Path) -> io::Result<bool> {
    match fs::metadata(process) {
        Ok(metadata) => Ok(metadata.uid() == geteuid().as_raw()),
        Err(error) if has_ended(&error) => Ok(false),
        Err(error) => Err(error),
    }
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
        let processes = Processes::default();
        assert!(processes.find(&worker)?.is_none());
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line", "sh"])
            .arg(format!("{ID_ARGUMENT}{worker}"))
            .arg(format!("{CLUSTER_ARGUMENT}{cluster}"))
            .stdin(std::process::Stdio::piped())
            .spawn()?;
        // A process that was just started has no command line for a moment.
        let found = tokio::time::timeout(Duration::from_secs(10), async {
            loop {
                if let Some(found) = processes.find(&worker)? {
                    return anyhow::Ok(found);
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        })
        .await??;
        assert_eq!(found.pid, Pid::from_child(&child));
        assert_eq!(processes.workers_of(&cluster)?, [worker.as_str()]);
        found.signal(Signal::KILL)?;
        found.ended().await;
        // A process that has ended but was not reaped counts as gone.
        assert!(processes.find(&worker)?.is_none());
        child.wait()?;
        Ok(())
    }
}
