//! A running program as its operator sees it: two pipes, an end, and a handle whose drop asks it to end.

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
use tanist_ha::clock::millis;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::log::{Labels, LastLines, log_lines};
use super::premises::Premises;
use super::protocol::{self, Ended, Report, Request, TERMINATE, duration, extension};
use super::{SUBCOMMAND, SUPERVISE, processes};
use crate::dataflow::host::Lingering;

/// How long a supervisor may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a supervisor that nobody attends to any more may take to kill everything.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a supervisor may take to kill everything once the grace is over.
const OVERDUE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long is read on from a program that is gone: somebody may have inherited its standard error.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a program did not do what its task needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// It ended as it should not have.
    #[error("{how}{last_lines}")]
    Ended {
        /// How.
        how: String,
        /// What it said last, as the end of the sentence.
        last_lines: String,
        /// It is not there, or can't be executed.
        is_missing: bool,
    },
    /// It ended in peace, but too soon.
    #[error(
        "the program ended with exit code 0 before it had read all its input; let it read to the end"
    )]
    TooSoon,
    /// Its output is not what was declared.
    #[error("the program's output can't be read: {0}")]
    Output(String),
}

impl ProgramError {
    /// Whether no restart mends it.
    pub(crate) fn is_unrecoverable(&self) -> bool {
        match self {
            ProgramError::Ended { is_missing, .. } => *is_missing,
            ProgramError::TooSoon | ProgramError::Output(_) => false,
        }
    }
}

/// What a program needs besides its request.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// The binary that knows how to supervise.
    pub(crate) binary: PathBuf,
    /// What is the program's alone; removed when it has ended, or can't be started.
    pub(crate) premises: Premises,
    /// For the log.
    pub(crate) labels: Labels,
    /// Held until nothing of the program is left.
    pub(crate) lingering: Lingering,
    /// Standard output goes to the log.
    pub(crate) logs_output: bool,
    /// Until when it may run, if that is bounded.
    pub(crate) lease: Option<watch::Receiver<u64>>,
}

/// A program that runs. Dropped, it is asked to end, and killed when its grace is over.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its standard input; none once it is closed.
    pub(crate) stdin: Option<Sender>,
    /// The end of it that the program reads. As long as it is open here, what the program has not read stays there, whether the
    /// program has closed it or is gone.
    stdin_there: PipeReader,
    /// Its standard output; none once it is closed.
    pub(crate) stdout: Option<Receiver>,
    ended: oneshot::Receiver<Result<(), ProgramError>>,
    /// What was heard of its end.
    outcome: Option<Result<(), ProgramError>>,
    asked_to_end_on_drop: DropGuard,
}

impl Program {
    /// Starts a program. Blocks; within a runtime.
    pub(crate) fn start(request: &Request, around: Surroundings) -> io::Result<Program> {
        let (stdin_there, stdin) = std::io::pipe()?;
        let (stdout, stdout_there) = std::io::pipe()?;
        let (stderr, stderr_there) = std::io::pipe()?;
        let (mut control, control_there) = StdUnixStream::pair()?;
        let its_end = control.try_clone()?;
        let child = Command::new(&around.binary)
            .arg0(SUBCOMMAND)
            .args([SUBCOMMAND, SUPERVISE])
            // The program can read its parent's environment, and this process's may have secrets. A supervisor needs none of it.
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(control_there)))
            .stdout(Stdio::from(stdout_there))
            .stderr(Stdio::from(stderr_there))
            .spawn()?;
        let supervisor = Supervisor {
            child: Some(child),
            its_end,
            _premises: around.premises,
        };
        match protocol::send(&mut control, request, stdin_there.as_fd()) {
            // It is gone already: that it never said hello tells more.
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
        let (tell, ended) = oneshot::channel();
        let attending = Attending {
            supervisor,
            logs,
            last_lines,
            lingering: around.lingering,
            lease: around.lease,
            grace: Duration::from_millis(request.grace_ms),
        };
        tokio::spawn(attending.run(control, cancel.clone(), tell));
        Ok(Program {
            stdin: Some(Sender::from_owned_fd(OwnedFd::from(stdin))?),
            stdin_there,
            stdout,
            ended,
            outcome: None,
            asked_to_end_on_drop: cancel.drop_guard(),
        })
    }

    /// Asks it to end: SIGTERM, and after its grace SIGKILL. An end by the first is then as it should be.
    pub(crate) fn ask_to_end(&self) {
        self.asked_to_end_on_drop.token().cancel();
    }

    /// How it ended; none: it has not, and the task is woken when it has.
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Option<Result<(), ProgramError>> {
        if self.outcome.is_none()
            && let Poll::Ready(outcome) = Pin::new(&mut self.ended).poll(cx)
        {
            let unknown = |_| Err(failed("nobody attends to the program any more", "", false));
            self.outcome = Some(outcome.unwrap_or_else(unknown));
        }
        self.outcome.clone()
    }

    /// Whether something waits in its standard input.
    pub(crate) fn has_unread_input(&self) -> bool {
        ioctl_fionread(&self.stdin_there).is_ok_and(|bytes| bytes > 0)
    }

    /// Whether it is known to have ended.
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

/// The supervisor's process. Dropped, it has to kill everything at once, and is reaped. What was made for the program goes after that,
/// and with it what the supervisor has left in the program's control group.
#[derive(Debug)]
struct Supervisor {
    child: Option<Child>,
    /// The socket to it, for its end: the supervisor takes that for the end of this process.
    its_end: StdUnixStream,
    _premises: Premises,
}

impl Supervisor {
    /// None: it was reaped.
    fn pid(&self) -> Option<Pid> {
        self.child.as_ref().map(Pid::from_child)
    }

    /// Does its work and kills it: it hangs, or the program has stopped it. Blocks until nothing is left of the program.
    fn replace(&mut self) {
        let Some(child) = &mut self.child else { return };
        while processes::kill_descendants(Pid::from_child(child)) {
            processes::pause();
        }
        let _it_may_have_ended = child.kill();
    }

    /// Waits for its end, kills what it should have, reaps it, and removes what was made for the program. How it ended. Blocks.
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
            // Only the supervisor finds what has begun a session of its own, so it must not be killed before that.
            let _it_may_have_ended = self.its_end.shutdown(Shutdown::Both);
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

/// Attends to a supervisor until nothing is left of it and its program.
struct Attending {
    supervisor: Supervisor,
    logs: Vec<JoinHandle<()>>,
    last_lines: LastLines,
    lingering: Lingering,
    lease: Option<watch::Receiver<u64>>,
    /// The program's, after SIGTERM.
    grace: Duration,
}

impl Attending {
    async fn run(
        self,
        control: UnixStream,
        cancel: CancellationToken,
        tell: oneshot::Sender<Result<(), ProgramError>>,
    ) {
        let Attending {
            lease,
            mut supervisor,
            logs,
            last_lines,
            lingering,
            grace,
        } = self;
        let mut following = Following {
            supervisor: supervisor.pid(),
            cancel: &cancel,
            grace,
            lease,
        };
        let ended = following.follow(control).await;
        let was_asked = cancel.is_cancelled();
        if matches!(ended, Err(Lost::NoHello))
            && let Some(child) = &mut supervisor.child
        {
            let _it_may_have_ended = child.kill();
        }
        let is_overdue = matches!(ended, Err(Lost::Overdue));
        let reaping = tokio::task::spawn_blocking(move || {
            if is_overdue {
                supervisor.replace();
            }
            supervisor.reap()
        });
        let reaped = reaping.await;
        for log in logs {
            if timeout(LAST_WORDS_TIMEOUT, log).await.is_err() {
                tracing::debug!("a program's output is held open by somebody");
            }
        }
        let last_lines = last_lines.tell();
        let outcome = match ended {
            Ok(Ended::Exited(0)) => Ok(()),
            Ok(ended) if was_asked && ended.is_by_term() => Ok(()),
            Ok(ended) => {
                let is_missing = ended.is_missing();
                Err(failed(ended, last_lines, is_missing))
            }
            Err(Lost::NoHello) => Err(failed(
                "the program can't be started: this binary does not know how; its `main` has to call \
                 `tanist::dataflow::exec::become_child_if_asked` first",
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
                    format!("the program's supervisor ended without a word ({how})"),
                    last_lines,
                    false,
                ))
            }
        };
        let _the_task_may_be_gone = tell.send(outcome);
        drop(lingering);
    }
}

/// Why it is not known how a program ended.
enum Lost {
    /// What was started is no supervisor.
    NoHello,
    /// The supervisor ended before its program did.
    Silent,
    /// The supervisor has not ended its program in time.
    Overdue,
}

/// What is told to a supervisor, and when.
struct Following<'a> {
    /// It has not been reaped.
    supervisor: Option<Pid>,
    cancel: &'a CancellationToken,
    grace: Duration,
    lease: Option<watch::Receiver<u64>>,
}

impl Following<'_> {
    /// Listens to a supervisor, and tells it when the program is to end, and how long it may run.
    async fn follow(&mut self, control: UnixStream) -> Result<Ended, Lost> {
        let (reports, mut orders) = control.into_split();
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
        tokio::pin!(listening);
        let mut overdue_at = None;
        loop {
            tokio::select! {
                ended = &mut listening => return ended,
                () = self.cancel.cancelled(), if overdue_at.is_none() => {
                    overdue_at = Some(Instant::now() + self.grace + OVERDUE_TIMEOUT);
                    // The program may have stopped it.
                    let _it_may_have_ended = self.supervisor.map(|it| kill_process(it, Signal::CONT));
                    let _it_may_have_ended = orders.write_all(&[TERMINATE]).await;
                }
                () = reached(overdue_at) => return Err(Lost::Overdue),
                ends_ms = extended(&mut self.lease) => {
                    let _it_may_have_ended = orders.write_all(&extension(ends_ms)).await;
                }
            }
        }
    }
}

/// Never, if there is no such time.
async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Until when the program may run, when that has changed.
async fn extended(lease: &mut Option<watch::Receiver<u64>>) -> u64 {
    if let Some(following) = lease {
        if following.changed().await.is_ok() {
            return *following.borrow_and_update();
        }
        *lease = None;
    }
    std::future::pending().await
}

/// None: the supervisor is gone.
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
