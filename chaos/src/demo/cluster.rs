//! The demo's processes and its directory. Neither outlives the [`DemoCluster`], nor the demo's own process.
//!
//! The ends of processes are noticed only while [`DemoCluster::bounded`] waits: a JobManager that was ended from
//! outside is started again there, and each other unexpected end is the error of that wait.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::process::ChildStdout;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::external_kills::ExternalKill;
use super::settings::{self, Inherited};
use super::{DemoOptions, print_line};
use crate::cli::Cli;
use crate::guard::Guard;
use crate::process::Process;

/// Timeout for a process to end in order before it is killed.
const END_BOUND: Duration = Duration::from_secs(10);
/// Timeout of a call; longer than a client's own timeout, so that the client reports why it has failed.
const CALL_BOUND: Duration = Duration::from_secs(90);
/// Polling interval for ended processes during a wait: a takeover after an outside kill is timed from there.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A process, and what its end means.
#[derive(Debug)]
struct Member {
    process: Process,
    end: OnEnd,
}

/// What the demo does when a process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnEnd {
    /// The demo fails.
    Fail,
    /// If it was ended from outside it is started again, as by a supervisor: that is what the demo shows.
    Restart,
    /// Nothing: the demo has killed it.
    Ignore,
}

/// The directory and the processes in it.
#[derive(Debug)]
pub(super) struct DemoCluster {
    program: PathBuf,
    directory: PathBuf,
    inherited: Inherited,
    cli: Cli,
    members: Vec<Member>,
    /// Number of JobManagers that were ended from outside.
    external_kills: u32,
    /// Receives each JobManager that was ended from outside.
    kills: Option<mpsc::Sender<ExternalKill>>,
    // Dropped last: it removes the directory after the processes have ended.
    guard: Arc<Mutex<Guard>>,
}

impl DemoCluster {
    /// Creates the directory.
    pub(super) fn create(options: &DemoOptions) -> anyhow::Result<DemoCluster> {
        let temporary = tempfile::Builder::new().prefix("tanist-demo-").tempdir();
        let directory = temporary.context("no directory can be created")?.keep();
        let mut guard = Guard::start(&directory)?;
        if options.keep {
            guard.keep_directory();
        }
        Ok(DemoCluster {
            program: options.program.clone(),
            cli: Cli::new(&options.program, &directory),
            directory,
            inherited: options.inherited.clone(),
            members: Vec::new(),
            external_kills: 0,
            kills: None,
            guard: Arc::new(Mutex::new(guard)),
        })
    }

    /// Sets the receiver of JobManagers that are ended from outside.
    pub(super) fn report_kills_to(&mut self, kills: mpsc::Sender<ExternalKill>) {
        self.kills = Some(kills);
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts a JobManager with this id.
    pub(super) fn start_jobmanager(&mut self, id: &str) -> anyhow::Result<()> {
        let own = [format!("jobmanager.id={id}")];
        let mut process = self.process(id, "jobmanager", &own)?;
        process.start()?;
        let end = OnEnd::Restart;
        self.members.push(Member { process, end });
        Ok(())
    }

    /// Starts a TaskManager; the caller reads its standard output, and only its log goes to the log file.
    pub(super) fn start_taskmanager(
        &mut self,
        id: &str,
        slots: u32,
    ) -> anyhow::Result<ChildStdout> {
        let own = [
            format!("taskmanager.resource-id={id}"),
            format!("taskmanager.numberOfTaskSlots={slots}"),
        ];
        let mut process = self.process(id, "taskmanager", &own)?;
        let output = process.start_with_output()?;
        let end = OnEnd::Fail;
        self.members.push(Member { process, end });
        Ok(ChildStdout::from_std(output)?)
    }

    fn process(&self, name: &str, command: &str, own: &[String]) -> anyhow::Result<Process> {
        let mut arguments = vec![command.to_owned()];
        arguments.extend(self.inherited.arguments(&self.directory, own));
        let (program, guard) = (self.program.clone(), self.guard.clone());
        let mut process =
            Process::new(name.to_owned(), program, arguments, &self.directory, guard)?;
        // Ctrl-C in a terminal goes only to the demo, which then ends its processes.
        process.use_own_group();
        Ok(process)
    }

    /// Runs `tanist` with `arguments` for this cluster until it ends, and meanwhile does what
    /// [`DemoCluster::bounded`] does; an error unless it succeeds.
    pub(super) async fn call(&mut self, mut arguments: Vec<String>) -> anyhow::Result<()> {
        let line = format!("`tanist {}`", arguments.join(" "));
        for setting in settings::to_find(&self.directory) {
            arguments.extend(["-D".to_owned(), setting]);
        }
        let cli = self.cli.clone();
        let called = async {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let output = cli.run(&arguments).await?;
            ensure!(output.code == Some(0), "{line} failed: {}", output.stderr);
            Ok(())
        };
        self.bounded(&line, CALL_BOUND, called).await
    }

    /// Number of JobManagers that were ended from outside.
    pub(super) fn external_kills(&self) -> u32 {
        self.external_kills
    }

    /// The process id of a process of this name.
    pub(super) fn pid(&mut self, name: &str) -> anyhow::Result<u32> {
        let pid = self.member(name)?.process.pid();
        pid.with_context(|| format!("{name} does not run"))
    }

    /// Sends SIGKILL to the process of this name.
    pub(super) fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let member = self.member(name)?;
        member.end = OnEnd::Ignore;
        member.process.kill();
        Ok(())
    }

    /// Starts a JobManager again after [`DemoCluster::kill`].
    pub(super) fn restart_jobmanager(&mut self, name: &str) -> anyhow::Result<()> {
        let member = self.member(name)?;
        member.end = OnEnd::Restart;
        member.process.start()
    }

    fn member(&mut self, name: &str) -> anyhow::Result<&mut Member> {
        let mut members = self.members.iter_mut();
        let member = members.find(|member| member.process.name() == name);
        member.with_context(|| format!("{name} is not a process of the demo"))
    }

    /// Waits for `what`, and meanwhile for the end of any process that should run; a JobManager that is ended
    /// from outside is started again.
    pub(super) async fn bounded<T>(
        &mut self,
        what: &str,
        bound: Duration,
        waited: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            done = tokio::time::timeout(bound, waited) => done.unwrap_or_else(|_| {
                Err(anyhow!("waited {bound:?} for {what}, which did not come"))
            }),
            ended = self.first_to_end() => Err(ended),
        }
    }

    /// Waits for the unexpected end of any process. JobManagers that are ended from outside are started again
    /// meanwhile.
    async fn first_to_end(&mut self) -> anyhow::Error {
        loop {
            for index in 0..self.members.len() {
                let Member { process, end } = &mut self.members[index];
                let Some(status) = process.poll().filter(|_| *end != OnEnd::Ignore) else {
                    continue;
                };
                let outcome = if *end == OnEnd::Restart && is_from_outside(status) {
                    self.restart_after_kill(index, status)
                } else {
                    Err(anyhow!(
                        "{} ended by itself: {status}; the end of its log:\n{}",
                        process.name(),
                        process.log_tail()
                    ))
                };
                if let Err(error) = outcome {
                    return error;
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn restart_after_kill(&mut self, index: usize, status: ExitStatus) -> anyhow::Result<()> {
        let seen_at = Instant::now();
        let process = &mut self.members[index].process;
        let name = process.name().to_owned();
        print_line(&format!(
            "{name} was ended from outside ({status}): it is started again"
        ));
        process.start()?;
        self.external_kills += 1;
        if let Some(kills) = &self.kills {
            // If the channel is full the event is dropped, which is no reason to end the demo.
            let _ = kills.try_send(ExternalKill { name, seen_at });
        }
        Ok(())
    }

    /// Ends every process in order, by force if necessary, and removes the directory unless it is kept.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        for Member { process, .. } in &self.members {
            // It fails only if the process has ended.
            let _ = process.request_shutdown();
        }
        let mut killed = Vec::new();
        for Member { process, .. } in &mut self.members {
            if process.ended(END_BOUND).await.is_err() {
                killed.push(process.name().to_owned());
                process.kill();
            }
        }
        ensure!(
            killed.is_empty(),
            "{} had to be killed: no end within {END_BOUND:?}",
            killed.join(", ")
        );
        Ok(())
    }
}

/// Whether a process ended because it was asked to or killed from outside. Its own failures end otherwise.
fn is_from_outside(status: ExitStatus) -> bool {
    status.success() || status.signal() == Some(Signal::KILL.as_raw())
}
