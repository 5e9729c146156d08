//! One `tanist` process: started, signalled, waited for, and started again, with all its output in one log.
//!
//! Invariant: the guard releases a process id before the process is reaped, here and nowhere else. Otherwise the system
//! could give the id to another process, and the guard would kill that one.

use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::guard::Guard;
use crate::wait::wait_for;

/// Number of log lines that a failure shows.
const TAIL: usize = 30;

/// Timeout of an orderly shutdown.
const END_BOUND: Duration = Duration::from_secs(20);

/// A JobManager or TaskManager, running or not.
#[derive(Debug)]
pub struct Process {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    /// A command that executes the program that follows it; empty: none.
    entrance: Vec<String>,
    directory: PathBuf,
    environment: Vec<(String, String)>,
    failpoints: String,
    has_own_group: bool,
    guard: Arc<Mutex<Guard>>,
    child: Option<Child>,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Creates the directory `parent/name`, but does not start the process.
    pub(crate) fn new(
        name: String,
        program: PathBuf,
        arguments: Vec<String>,
        parent: &Path,
        guard: Arc<Mutex<Guard>>,
    ) -> anyhow::Result<Process> {
        let directory = parent.join(&name);
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Process {
            name,
            program,
            arguments,
            entrance: Vec::new(),
            directory,
            environment: Vec::new(),
            failpoints: String::new(),
            has_own_group: false,
            guard,
            child: None,
            ended: None,
        })
    }

    /// Its name in the cluster: `jm-0`, `tm-1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its working directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Sets the command that executes the program that follows it, from the next start on.
    pub(crate) fn enter_by(&mut self, entrance: Vec<String>) {
        self.entrance = entrance;
    }

    /// Sets additional environment variables, from the next start on.
    pub(crate) fn set_environment(&mut self, variables: &[(String, String)]) {
        self.environment = variables.to_vec();
    }

    /// Starts it in a process group of its own from the next start on, where no signal of a terminal reaches it.
    pub(crate) fn use_own_group(&mut self) {
        self.has_own_group = true;
    }

    /// Sets `TANIST_FAILPOINTS` for the next start only.
    pub fn arm(&mut self, failpoints: impl Into<String>) {
        self.failpoints = failpoints.into();
    }

    /// Starts the process; kills it first if it is running. The log is continued.
    pub fn start(&mut self) -> anyhow::Result<()> {
        self.start_writing_to(None)
    }

    /// Starts the process like [`Process::start`], but returns its standard output, which the log does not get.
    pub(crate) fn start_with_output(&mut self) -> anyhow::Result<ChildStdout> {
        self.start_writing_to(Some(Stdio::piped()))?;
        let output = self.child.as_mut().and_then(|child| child.stdout.take());
        output.context("it was just started with a pipe")
    }

    /// Starts the process with this standard output; `None`: the log.
    fn start_writing_to(&mut self, output: Option<Stdio>) -> anyhow::Result<()> {
        self.kill();
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let errors = log.try_clone()?;
        let mut command = match self.entrance.split_first() {
            Some((entrance, arguments)) => {
                let mut command = Command::new(entrance);
                command.args(arguments).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        if self.has_own_group {
            command.process_group(0);
        }
        let child = command
            .args(&self.arguments)
            .current_dir(&self.directory)
            .env_remove("TANIST_TEST_ALL")
            .envs(self.environment.iter().cloned())
            .env("TANIST_FAILPOINTS", std::mem::take(&mut self.failpoints))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(output.unwrap_or_else(|| log.into()))
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.guard.lock().watch(child.id());
        self.ended = None;
        self.child = Some(child);
        Ok(())
    }

    /// Sends SIGKILL, and waits for the end. Does nothing if it is not running.
    pub fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            self.reap();
        }
    }

    /// Sends SIGKILL and removes its directory with all its files, like the loss of its host.
    pub fn lose_host(&mut self) -> anyhow::Result<()> {
        self.kill();
        std::fs::remove_dir_all(&self.directory)
            .with_context(|| format!("cannot remove {}", self.directory.display()))
    }

    /// Sends SIGTERM without waiting.
    pub fn request_shutdown(&self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Sends SIGTERM, and waits for the orderly end. If it was asked before and has ended, only returns
    /// its status. A process that was just started gets time to install its signal handlers.
    pub async fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        let what = format!("{} to listen for signals", self.name);
        wait_for(&what, END_BOUND, async || match self.pid() {
            Some(pid) if self.runs() => {
                ensure!(catches_sigterm(pid)?, "it does not yet");
                Ok(())
            }
            Some(_) | None => Ok(()),
        })
        .await?;
        if self.runs() {
            self.request_shutdown()?;
        }
        self.ended(END_BOUND).await
    }

    /// Sends SIGSTOP: all its threads have stopped when this returns; its connections stay.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)?;
        let child = self.child.as_ref().context("it was just signalled")?;
        let options = rustix::process::WaitIdOptions::STOPPED;
        let child = rustix::process::WaitId::Pid(Pid::from_child(child));
        rustix::process::waitid(child, options)
            .with_context(|| format!("{} does not stop", self.name))?;
        Ok(())
    }

    /// Sends SIGCONT after [`Process::stop`].
    pub fn cont(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self, bound: Duration) -> anyhow::Result<ExitStatus> {
        let name = self.name.clone();
        wait_for(&format!("the end of {name}"), bound, async || {
            match self.poll() {
                Some(status) => Ok(status),
                None => Err(format!("it runs; the end of its log:\n{}", self.log_tail())),
            }
        })
        .await
    }

    /// Whether it is running.
    pub fn runs(&mut self) -> bool {
        self.child.is_some() && self.poll().is_none()
    }

    /// Its process id while it is running.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Its exit status, if it has ended.
    pub fn poll(&mut self) -> Option<ExitStatus> {
        let Some(child) = self.child.as_mut() else {
            return self.ended;
        };
        // Checks without reaping, so that the guard releases the id first.
        let pid = Pid::from_child(child);
        let options = rustix::process::WaitIdOptions::EXITED
            | rustix::process::WaitIdOptions::NOHANG
            | rustix::process::WaitIdOptions::NOWAIT;
        let waited = rustix::process::waitid(rustix::process::WaitId::Pid(pid), options);
        match waited {
            Ok(None) => return None,
            Ok(Some(_)) | Err(_) => self.reap(),
        }
        self.ended
    }

    fn reap(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.guard.lock().release(child.id());
            self.ended = child.wait().ok();
        }
    }

    /// Waits until the failpoint `name` was reached since the first start of the process.
    pub async fn reached(&self, name: &str, bound: Duration) -> anyhow::Result<()> {
        self.logs(&format!("failpoint {name} reached"), bound).await
    }

    /// Number of times that the failpoint `name` was reached since the first start of the process.
    pub fn times_reached(&self, name: &str) -> usize {
        self.log()
            .matches(&format!("failpoint {name} reached"))
            .count()
    }

    /// Waits until its log contains `text`.
    pub async fn logs(&self, text: &str, bound: Duration) -> anyhow::Result<()> {
        wait_for(
            &format!("{:?} in the log of {}", text, self.name),
            bound,
            async || {
                if self.log().contains(text) {
                    Ok(())
                } else {
                    Err(format!("the end of its log:\n{}", self.log_tail()))
                }
            },
        )
        .await
    }

    /// The whole log.
    pub fn log(&self) -> String {
        let read = File::open(self.log_path()).and_then(std::io::read_to_string);
        read.unwrap_or_else(|error| format!("(no log: {error})"))
    }

    /// The last lines of the log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// The path of the log.
    pub fn log_path(&self) -> PathBuf {
        self.directory.join("process.log")
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let Some(child) = &self.child else {
            bail!("{} does not run and can't be signalled", self.name);
        };
        // Not reaped yet, so the id still belongs to this child.
        kill_process(Pid::from_child(child), signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }
}

/// Whether a process has its own handler for SIGTERM.
fn catches_sigterm(pid: u32) -> anyhow::Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.context("no SigCgt")?.trim(), 16)?;
    Ok(caught & 1 << (Signal::TERM.as_raw() - 1) != 0)
}

/// Whether a process runs: it is neither gone nor a zombie. Its command line doesn't say so: that is empty for a
/// moment whenever the process executes another program.
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program is in parentheses and may contain parentheses itself.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes());
    state.is_some_and(|rest| !rest.starts_with(b"Z") && !rest.starts_with(b"X"))
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
