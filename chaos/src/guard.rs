//! Kills the processes that it watches, and only these, when the [`Guard`] is dropped or the process that holds
//! it has ended, for any reason.
//!
//! A small shell reads from a pipe which process ids to watch; when the pipe closes it kills them and
//! removes the cluster's directory. An id is released before its process is reaped, so that it never belongs to
//! another process.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context as _;

const SCRIPT: &str = r#"trap "" INT TERM HUP
pids=" "
while read -r verb pid; do
  case $verb in
    watch) pids="$pids$pid " ;;
    release) pids="${pids%% $pid *} ${pids#* $pid }" ;;
    keep) set -- ;;
  esac
done
for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
[ -n "$1" ] && rm -rf -- "$1"
exit 0"#;

/// The guard shell of a cluster.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts the shell. It removes `directory` at the end.
    pub fn start(directory: &Path) -> anyhow::Result<Guard> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "guard"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh")?;
        let pipe = shell.stdin.take();
        Ok(Guard { shell, pipe })
    }

    /// Adds `pid` to the processes that are killed at the end.
    pub fn watch(&mut self, pid: u32) {
        self.send(&format!("watch {pid}"));
    }

    /// Removes `pid`. Call it before `wait`: afterwards the id may belong to another process.
    pub fn release(&mut self, pid: u32) {
        self.send(&format!("release {pid}"));
    }

    /// Keeps the directory at the end.
    pub fn keep_directory(&mut self) {
        self.send("keep directory");
    }

    fn send(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            // If the shell has ended, the cluster's own drop still kills its processes.
            let _ = writeln!(pipe, "{line}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_processes_and_the_directory_go_with_the_guard_and_released_ones_stay() {
        let directory = tempfile::tempdir().expect("a directory").keep();
        let sleep = || Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let (mut first, mut watched, mut spared) = (sleep(), sleep(), sleep());
        let mut guard = Guard::start(&directory).expect("sh runs");
        for child in [&first, &watched, &spared] {
            guard.watch(child.id());
        }
        guard.release(spared.id());
        drop(guard);
        assert!(!directory.exists());
        assert!(!first.wait().expect("waited").success());
        assert!(!watched.wait().expect("waited").success());
        assert!(
            spared.try_wait().expect("looked").is_none(),
            "it was to be spared"
        );
        spared.kill().expect("killed");
        spared.wait().expect("waited");
    }

    #[test]
    fn a_directory_that_is_to_be_kept_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut guard = Guard::start(directory.path()).expect("sh runs");
        guard.keep_directory();
        drop(guard);
        assert!(directory.path().exists());
    }
}
