//! The demo's processes and its directory. None of them outlives the [`Playground`].

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::others::EndedByOther;
use super::settings::{self, Inherited};
use super::{DemoError, tell};

/// Timeout for a process to end in order before it is killed.
const END_BOUND: Duration = Duration::from_secs(10);
/// Timeout of a call; longer than a client's own timeout, so that the client reports why it has failed.
const CALL_BOUND: Duration = Duration::from_secs(90);
/// Polling interval for ended children during a wait: a takeover after an outside kill is timed from there.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Number of log lines in an error.
const TAIL: usize = 15;

/// One of the demo's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Child {
    index: usize,
    name: String,
}

impl Child {
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

#[derive(Debug)]
struct Running {
    name: String,
    process: tokio::process::Child,
    /// Settings of its own.
    own: Vec<String>,
    duty: Duty,
}

/// What the demo does when a process is ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Duty {
    /// The demo fails.
    Needed,
    /// It is started again, as by a supervisor: that is what the demo shows.
    JobManager,
    /// Nothing: the demo has killed it.
    Over,
}

/// The directory and the processes in it.
#[derive(Debug)]
pub(super) struct Playground {
    program: PathBuf,
    directory: PathBuf,
    inherited: Inherited,
    keep: bool,
    children: Vec<Running>,
    /// Number of JobManagers that were ended from outside.
    ended_by_others: u32,
    /// Receives each JobManager that was ended from outside.
    ends: Option<mpsc::Sender<EndedByOther>>,
}

impl Playground {
    pub(super) fn create(
        program: PathBuf,
        inherited: Inherited,
        keep: bool,
    ) -> Result<Playground, DemoError> {
        let name = format!("tanist-demo-{:08x}", rand::random::<u32>());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).map_err(DemoError::io(directory.display().to_string()))?;
        Ok(Playground {
            program,
            directory,
            inherited,
            keep,
            children: Vec::new(),
            ended_by_others: 0,
            ends: None,
        })
    }

    /// Sets the receiver of JobManagers that are ended from outside.
    pub(super) fn tell_ends_to(&mut self, ends: mpsc::Sender<EndedByOther>) {
        self.ends = Some(ends);
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of the embedded store.
    pub(super) fn store(&self) -> PathBuf {
        settings::store(&self.directory)
    }

    /// Starts a JobManager with these settings; its output goes to a log in the directory.
    pub(super) fn start_jobmanager(
        &mut self,
        name: &str,
        own: Vec<String>,
    ) -> Result<Child, DemoError> {
        let process = self.spawn_jobmanager(name, &own)?;
        Ok(self.keep(name, process, own, Duty::JobManager))
    }

    /// Starts a TaskManager; the caller reads its standard output, and only its log goes to the log file.
    pub(super) fn start_taskmanager(
        &mut self,
        name: &str,
        own: Vec<String>,
    ) -> Result<ChildStdout, DemoError> {
        let process = self.spawn(name, "taskmanager", &own, Stdio::piped())?;
        let child = self.keep(name, process, own, Duty::Needed);
        let output = self.children[child.index].process.stdout.take();
        Ok(output.expect("it was started with a pipe"))
    }

    fn keep(
        &mut self,
        name: &str,
        process: tokio::process::Child,
        own: Vec<String>,
        duty: Duty,
    ) -> Child {
        let name = name.to_owned();
        self.children.push(Running {
            name: name.clone(),
            process,
            own,
            duty,
        });
        let index = self.children.len() - 1;
        Child { index, name }
    }

    /// A restarted process appends to the same log.
    fn open_log(&self, name: &str) -> Result<File, DemoError> {
        let path = self.log_path(name);
        let log = File::options().create(true).append(true).open(&path);
        log.map_err(DemoError::io(path.display().to_string()))
    }

    fn spawn_jobmanager(
        &self,
        name: &str,
        own: &[String],
    ) -> Result<tokio::process::Child, DemoError> {
        let log = self.open_log(name)?;
        self.spawn(name, "jobmanager", own, log.into())
    }

    fn spawn(
        &self,
        name: &str,
        command: &str,
        own: &[String],
        output: Stdio,
    ) -> Result<tokio::process::Child, DemoError> {
        let mut process = Command::new(&self.program);
        process
            .arg(command)
            .args(self.inherited.arguments(&self.directory, own))
            .current_dir(&self.directory)
            // Ctrl-C in a terminal goes only to the demo, which then ends its children.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(self.open_log(name)?)
            .kill_on_drop(true)
            .spawn()
            .map_err(DemoError::io(self.program.display().to_string()))
    }

    /// Runs `tanist` with `arguments` for this cluster until it ends, and meanwhile does what
    /// [`Playground::bounded`] does; an error unless it succeeds.
    pub(super) async fn call(&mut self, mut arguments: Vec<String>) -> Result<(), DemoError> {
        let line = format!("`tanist {}`", arguments.join(" "));
        for setting in settings::to_find(&self.directory) {
            arguments.extend(["-D".to_owned(), setting]);
        }
        let called = call(&self.program, &self.directory, &arguments, &line);
        self.bounded(&line, CALL_BOUND, called).await
    }

    pub(super) fn ended_by_others(&self) -> u32 {
        self.ended_by_others
    }

    /// The process id of a running child, for display.
    pub(super) fn pid(&self, child: &Child) -> String {
        let id = self.children[child.index].process.id();
        id.map_or_else(|| "gone".to_owned(), |id| id.to_string())
    }

    /// Sends SIGKILL. Returns at once, so that a measurement from here includes the kernel's work.
    pub(super) fn kill(&mut self, child: &Child) {
        let running = &mut self.children[child.index];
        running.duty = Duty::Over;
        // It fails only if the process has already ended by itself.
        let _ = running.process.start_kill();
    }

    /// Waits for `what`, and meanwhile for the end of any process that should run; a JobManager that is ended
    /// from outside is started again.
    pub(super) async fn bounded<T>(
        &mut self,
        what: &str,
        bound: Duration,
        waited: impl Future<Output = Result<T, DemoError>>,
    ) -> Result<T, DemoError> {
        tokio::select! {
            done = tokio::time::timeout(bound, waited) => done.unwrap_or_else(|_| {
                Err(DemoError::Unexpected(format!("waited {bound:?} for {what} in vain")))
            }),
            ended = self.first_to_end() => Err(ended),
        }
    }

    /// Waits for the unexpected end of any process. JobManagers that are ended from outside are started again
    /// meanwhile.
    async fn first_to_end(&mut self) -> DemoError {
        loop {
            for index in 0..self.children.len() {
                let child = &mut self.children[index];
                if child.duty == Duty::Over {
                    continue;
                }
                let Ok(Some(status)) = child.process.try_wait() else {
                    continue;
                };
                let outcome = if child.duty == Duty::JobManager && is_from_outside(status) {
                    self.start_again(index, status)
                } else {
                    Err(self.ended(index, status))
                };
                if let Err(error) = outcome {
                    return error;
                }
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    fn start_again(&mut self, index: usize, status: ExitStatus) -> Result<(), DemoError> {
        let seen_at = Instant::now();
        let Running { name, own, .. } = &self.children[index];
        tell(&format!(
            "{name} was ended from outside ({status}): it is started again"
        ));
        let process = self.spawn_jobmanager(name, own)?;
        self.children[index].process = process;
        self.ended_by_others += 1;
        let ended = EndedByOther {
            name: self.children[index].name.clone(),
            seen_at,
        };
        if let Some(ends) = &self.ends {
            // If the channel is full the event is dropped, which is no reason to end the demo.
            let _ = ends.try_send(ended);
        }
        Ok(())
    }

    fn ended(&self, index: usize, status: ExitStatus) -> DemoError {
        let name = self.children[index].name.clone();
        let log = log_tail(&self.log_path(&name));
        let status = status.to_string();
        DemoError::Ended { name, status, log }
    }

    /// Ends every process in order, by force if necessary, and removes the directory.
    pub(super) async fn stop(mut self) -> Result<(), DemoError> {
        for child in &self.children {
            let pid = child.process.id().and_then(|id| i32::try_from(id).ok());
            if let Some(pid) = pid.and_then(Pid::from_raw) {
                // Not reaped yet, so the id is still this child's.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        let mut stubborn = Vec::new();
        for child in &mut self.children {
            if tokio::time::timeout(END_BOUND, child.process.wait())
                .await
                .is_err()
            {
                stubborn.push(child.name.clone());
                let _ = child.process.kill().await;
            }
        }
        if stubborn.is_empty() {
            return Ok(());
        }
        let stubborn = stubborn.join(", ");
        Err(DemoError::Unexpected(format!(
            "{stubborn} had to be killed: no end within {END_BOUND:?}"
        )))
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Those that were stopped in order are gone already.
            let _ = child.process.start_kill();
        }
        if !self.keep
            && let Err(error) = std::fs::remove_dir_all(&self.directory)
        {
            eprintln!("{} is not removed: {error}", self.directory.display());
        }
    }
}

/// Whether a process ended because it was asked to or killed from outside. Its own failures end otherwise.
fn is_from_outside(status: ExitStatus) -> bool {
    status.success() || status.signal() == Some(Signal::KILL.as_raw())
}

/// Runs a program until its end. If dropped, it ends the program.
fn call(
    program: &Path,
    directory: &Path,
    arguments: &[String],
    line: &str,
) -> impl Future<Output = Result<(), DemoError>> + use<> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        // The cluster is found only by its store.
        .env_remove("TANIST_CONF_DIR")
        .current_dir(directory)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let (program, line) = (program.display().to_string(), line.to_owned());
    async move {
        let output = command.output().await.map_err(DemoError::io(program))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let text = format!("{line} failed ({}): {said}", output.status);
        Err(DemoError::Unexpected(text))
    }
}

fn log_tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| format!("(no log: {error})"));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}
