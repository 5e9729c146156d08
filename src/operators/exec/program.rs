//! A running program as its operator uses it: two pipes, its end, and a handle whose drop asks the program to
//! end.
//!
//! The operator owns the [`Program`]. A task of the runtime, the [`Watcher`], owns the supervisor's process and the
//! sandbox, and holds the task's end guard until no process of the program is left, whatever the supervisor does: it
//! may hang, be stopped by the program, or be killed.

use std::io::{self, PipeReader};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::{Errno, ioctl_fionread};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tanist_dataflow::{EndGuard, OperatorError};
use tanist_ha::clock::millis;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::log::{Labels, LastLines, log_lines};
use super::protocol::{self, Ended, Report, Request, TERMINATE, duration, extension};
use super::sandbox::Sandbox;
use super::{SUBCOMMAND, SUPERVISE, processes};

/// Timeout for a supervisor to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a supervisor to kill everything after its owner was dropped.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for a supervisor to kill everything after the grace.
const OVERDUE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long logs of a program that is gone are still read: another process may have inherited its standard
/// error.
const FINAL_MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a program failed its task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProgramError {
    /// The program ended with an error.
    #[error("{how}{last_lines}")]
    Ended {
        /// How it ended.
        how: String,
        /// The last lines that it wrote, as the end of the sentence.
        last_lines: String,
        /// The program file is missing or can't be executed.
        is_missing: bool,
    },
    /// The program ended successfully, but too early.
    #[error(
        "the program ended with exit code 0 before it had read all its input; let it read to the end"
    )]
    TooSoon,
    /// Its output does not have the declared format.
    #[error("the program's output can't be read: {0}")]
    Output(String),
}

impl ProgramError {
    /// Whether a restart can't fix it.
    fn is_unrecoverable(&self) -> bool {
        match self {
            ProgramError::Ended { is_missing, .. } => *is_missing,
            ProgramError::TooSoon | ProgramError::Output(_) => false,
        }
    }
}

impl From<ProgramError> for OperatorError {
    fn from(error: ProgramError) -> OperatorError {
        if error.is_unrecoverable() {
            OperatorError::Unrecoverable(Box::new(error))
        } else {
            OperatorError::Custom(Box::new(error))
        }
    }
}

/// What a program needs besides its request.
#[derive(Debug)]
pub(crate) struct Environment {
    /// The binary that can run as the supervisor.
    pub(crate) binary: PathBuf,
    /// Directory and control group of this program only; removed when it has ended or can't be started.
    pub(crate) sandbox: Sandbox,
    /// Task labels for the log.
    pub(crate) labels: Labels,
    /// Held until no process of the program is left.
    pub(crate) end_guard: EndGuard,
    /// Whether standard output goes to the log.
    pub(crate) logs_output: bool,
    /// Until when the program may run; `None`: no limit.
    pub(crate) lease: Option<watch::Receiver<u64>>,
}

/// A running program. On drop it is asked to end, and killed after its grace.
#[derive(Debug)]
pub(crate) struct Program {
    /// Standard input of the program; `None` once it is closed.
    pub(crate) stdin: Option<Sender>,
    /// The read end of standard input. While it is open here, unread input stays in the pipe even if the
    /// program has closed its end or is gone.
    stdin_read_end: PipeReader,
    /// Standard output of the program; `None` once it is closed.
    pub(crate) stdout: Option<Receiver>,
    ended: oneshot::Receiver<Result<(), ProgramError>>,
    /// The result, once it was received.
    outcome: Option<Result<(), ProgramError>>,
    asked_to_end_on_drop: DropGuard,
}

impl Program {
    /// Starts a program. Blocks. Must be called within a tokio runtime.
    pub(crate) fn start(request: &Request, around: Environment) -> io::Result<Program> {
        let (stdin_read_end, stdin) = std::io::pipe()?;
        let (stdout, stdout_write_end) = std::io::pipe()?;
        let (stderr, stderr_write_end) = std::io::pipe()?;
        let (mut control, supervisor_end) = StdUnixStream::pair()?;
        let socket = control.try_clone()?;
        let child = Command::new(&around.binary)
            .arg0(SUBCOMMAND)
            .args([SUBCOMMAND, SUPERVISE])
            // A program can read the environment of its parent, and this process's may contain secrets. A
            // supervisor needs none of it.
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(supervisor_end)))
            .stdout(Stdio::from(stdout_write_end))
            .stderr(Stdio::from(stderr_write_end))
            .spawn()?;
        let supervisor = Supervisor {
            child: Some(child),
            socket,
            _sandbox: around.sandbox,
        };
        match protocol::send(&mut control, request, stdin_read_end.as_fd()) {
            // The supervisor is gone already: the missing hello is the better error.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent?,
        }
        control.set_nonblocking(true)?;
        let control = UnixStream::from_std(control)?;
        let last_lines = LastLines::default();
        let receiver = |pipe| Receiver::from_owned_fd(OwnedFd::from(pipe));
        let mut logs = vec![tokio::spawn(log_lines(
            receiver(stderr)?,
            "stderr",
            around.labels.clone(),
            last_lines.clone(),
        ))];
        let mut stdout = Some(receiver(stdout)?);
        if around.logs_output
            && let Some(stdout) = stdout.take()
        {
            let labels = around.labels.clone();
            let keep = LastLines::default();
            logs.push(tokio::spawn(log_lines(stdout, "stdout", labels, keep)));
        }
        let cancel = CancellationToken::new();
        let (outcome_sender, ended) = oneshot::channel();
        let watcher = Watcher {
            supervisor,
            logs,
            last_lines,
            end_guard: around.end_guard,
            lease: around.lease,
            grace: Duration::from_millis(request.grace_ms),
        };
        tokio::spawn(watcher.run(control, cancel.clone(), outcome_sender));
        Ok(Program {
            stdin: Some(Sender::from_owned_fd(OwnedFd::from(stdin))?),
            stdin_read_end,
            stdout,
            ended,
            outcome: None,
            asked_to_end_on_drop: cancel.drop_guard(),
        })
    }

    /// Asks the program to end: SIGTERM, then SIGKILL after its grace. Ending by SIGTERM then counts as
    /// success.
    pub(crate) fn ask_to_end(&self) {
        self.asked_to_end_on_drop.token().cancel();
    }

    /// Returns how the program ended. `None`: it still runs; the task is woken when it ends.
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Option<Result<(), ProgramError>> {
        if self.outcome.is_none()
            && let Poll::Ready(outcome) = Pin::new(&mut self.ended).poll(cx)
        {
            let unknown = |_| Err(failed("the task that watched the program ended", "", false));
            self.outcome = Some(outcome.unwrap_or_else(unknown));
        }
        self.outcome.clone()
    }

    /// Whether its standard input has unread bytes.
    pub(crate) fn has_unread_input(&self) -> bool {
        ioctl_fionread(&self.stdin_read_end).is_ok_and(|bytes| bytes > 0)
    }

    /// Whether the program is known to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.outcome.is_some()
    }
}

fn failed(how: impl ToString, last_lines: impl ToString, is_missing: bool) -> ProgramError {
    ProgramError::Ended {
        how: how.to_string(),
        last_lines: last_lines.to_string(),
        is_missing,
    }
}

/// The supervisor's process. On drop it must kill everything at once and is reaped. After that the program's
/// sandbox is removed, and with it what the supervisor left in the control group.
#[derive(Debug)]
struct Supervisor {
    child: Option<Child>,
    /// The socket to the supervisor; shutting it down looks to the supervisor like the end of this process.
    socket: StdUnixStream,
    _sandbox: Sandbox,
}

impl Supervisor {
    /// Pid of the supervisor; `None` if it was reaped.
    fn pid(&self) -> Option<Pid> {
        self.child.as_ref().map(Pid::from_child)
    }

    /// Kills the program's processes and the supervisor itself, which hangs or was stopped by the program.
    /// Blocks until no process of the program is left.
    fn kill_all(&mut self) {
        let Some(child) = &mut self.child else { return };
        while processes::kill_descendants(Pid::from_child(child)) {
            processes::pause();
        }
        let _it_may_have_ended = child.kill();
    }

    /// Waits for the supervisor to end, kills what it should have killed, reaps it, and removes the program's
    /// sandbox. Returns how the supervisor ended. Blocks.
    fn reap(mut self) -> String {
        let Some(mut child) = self.child.take() else {
            return String::new();
        };
        let pid = Pid::from_child(&child);
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::Pid(pid), look), Err(Errno::INTR)) {}
        processes::kill_session(pid);
        match child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = Pid::from_child(&child);
            // Only the supervisor finds processes that started their own session, so it must do that before it
            // is killed.
            let _it_may_have_ended = self.socket.shutdown(Shutdown::Both);
            let _it_may_have_ended = kill_process(pid, Signal::CONT);
            if !processes::ends_within(pid, KILL_TIMEOUT) {
                processes::kill_descendants(pid);
                let _it_may_have_ended = child.kill();
            }
            processes::kill_session(pid);
            let _ = child.wait();
        }
    }
}

/// Watches a supervisor until it and its program are gone.
struct Watcher {
    supervisor: Supervisor,
    logs: Vec<JoinHandle<()>>,
    last_lines: LastLines,
    end_guard: EndGuard,
    lease: Option<watch::Receiver<u64>>,
    /// The program's grace after SIGTERM.
    grace: Duration,
}

impl Watcher {
    async fn run(
        self,
        control: UnixStream,
        cancel: CancellationToken,
        outcome_sender: oneshot::Sender<Result<(), ProgramError>>,
    ) {
        let Watcher {
            lease,
            mut supervisor,
            logs,
            last_lines,
            end_guard,
            grace,
        } = self;
        let link = SupervisorLink {
            supervisor: supervisor.pid(),
            cancel: &cancel,
            grace,
            lease,
        };
        let ended = link.follow(control).await;
        let was_asked = cancel.is_cancelled();
        if matches!(ended, Err(Lost::NoHello))
            && let Some(child) = &mut supervisor.child
        {
            let _it_may_have_ended = child.kill();
        }
        let is_overdue = matches!(ended, Err(Lost::Overdue));
        let reaping = tokio::task::spawn_blocking(move || {
            if is_overdue {
                supervisor.kill_all();
            }
            supervisor.reap()
        });
        let reaped = reaping.await;
        for log in logs {
            if timeout(FINAL_MESSAGE_TIMEOUT, log).await.is_err() {
                tracing::debug!(
                    "another process holds a program's output open; the rest is not logged"
                );
            }
        }
        let last_lines = last_lines.as_clause();
        let outcome = match ended {
            Ok(Ended::Exited(0)) => Ok(()),
            Ok(ended) if was_asked && ended.is_by_term() => Ok(()),
            Ok(ended) => {
                let is_missing = ended.is_missing();
                Err(failed(ended, last_lines, is_missing))
            }
            Err(Lost::NoHello) => Err(failed(
                "the program can't be started: this binary does not know how; its `main` has to call \
                 `tanist::application::become_child_if_asked` first",
                last_lines,
                false,
            )),
            Err(Lost::Overdue) => {
                let ms = |it: Duration| duration(millis(it));
                let how = format!(
                    "the program and its supervisor were killed by Tanist: the supervisor, which the program may have stopped, had not \
                     ended the program when its `grace` of {} after SIGTERM and {} more were over",
                    ms(grace),
                    ms(OVERDUE_TIMEOUT)
                );
                Err(failed(how, last_lines, false))
            }
            Err(Lost::Silent) => {
                let how = reaped.unwrap_or_default();
                Err(failed(
                    format!("the program's supervisor ended without a report ({how})"),
                    last_lines,
                    false,
                ))
            }
        };
        let _the_task_may_be_gone = outcome_sender.send(outcome);
        drop(end_guard);
    }
}

/// Why the end of a program is unknown.
enum Lost {
    /// The started process is not a supervisor.
    NoHello,
    /// The supervisor ended before its program did.
    Silent,
    /// The supervisor did not end its program in time.
    Overdue,
}

/// Sends orders to a supervisor and receives its reports.
struct SupervisorLink<'a> {
    /// Pid of the supervisor, which has not been reaped.
    supervisor: Option<Pid>,
    cancel: &'a CancellationToken,
    grace: Duration,
    lease: Option<watch::Receiver<u64>>,
}

impl SupervisorLink<'_> {
    /// Reads a supervisor's reports, and says when to end the program and how long the program may run.
    async fn follow(self, control: UnixStream) -> Result<Ended, Lost> {
        let (reports, orders) = control.into_split();
        let mut reports = BufReader::new(reports);
        match timeout(HELLO_TIMEOUT, next(&mut reports)).await {
            Ok(Some(Report::Hello)) => {}
            Ok(_) | Err(_) => return Err(Lost::NoHello),
        }
        let listening = async {
            loop {
                match next(&mut reports).await {
                    Some(Report::Ended(ended)) => return Ok(ended),
                    Some(Report::Started(pid)) => tracing::debug!(pid, "a program runs"),
                    Some(Report::Hello) => {}
                    None => return Err(Lost::Silent),
                }
            }
        };
        // Nothing waits for it: while the supervisor is stopped, the socket may be full.
        let ordering = give_orders(orders, self.cancel, self.lease);
        tokio::pin!(listening, ordering);
        let mut overdue_at = None;
        loop {
            tokio::select! {
                ended = &mut listening => return ended,
                () = self.cancel.cancelled(), if overdue_at.is_none() => {
                    overdue_at = Some(Instant::now() + self.grace + OVERDUE_TIMEOUT);
                    // The program may have stopped its supervisor.
                    let _it_may_have_ended = self.supervisor.map(|it| kill_process(it, Signal::CONT));
                }
                () = reached(overdue_at) => return Err(Lost::Overdue),
                () = &mut ordering => {}
            }
        }
    }
}

/// Tells a supervisor how long its program may run, and once that it has to end it. Never completes.
async fn give_orders(
    mut orders: OwnedWriteHalf,
    cancel: &CancellationToken,
    mut lease: Option<watch::Receiver<u64>>,
) {
    let mut is_to_end = false;
    loop {
        tokio::select! {
            () = cancel.cancelled(), if !is_to_end => {
                is_to_end = true;
                let _it_may_have_ended = orders.write_all(&[TERMINATE]).await;
            }
            ends_ms = extended(&mut lease) => {
                let _it_may_have_ended = orders.write_all(&extension(ends_ms)).await;
            }
        }
    }
}

/// Waits for this time; never completes without one.
async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns the end of the lease when it has changed.
async fn extended(lease: &mut Option<watch::Receiver<u64>>) -> u64 {
    if let Some(following) = lease {
        if following.changed().await.is_ok() {
            return *following.borrow_and_update();
        }
        *lease = None;
    }
    std::future::pending().await
}

/// Reads the next report; `None` if the supervisor is gone.
async fn next(reports: &mut BufReader<OwnedReadHalf>) -> Option<Report> {
    let mut line = String::new();
    let read = reports.read_line(&mut line).await;
    match read {
        Ok(length) if length > 0 => serde_json::from_str(&line).ok(),
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
