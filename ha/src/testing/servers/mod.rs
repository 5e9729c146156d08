//! Servers of stores as child processes, on free ports of 127.0.0.1, each with its own directory. What starts a
//! server of one kind is in the folder of its backend (`test_servers.rs`).
//!
//! A server ends with its value, and with the test process, however that ends: a small shell beside each
//! server reads from a pipe that the test process holds, and kills the server and removes its directory when
//! the pipe closes. So servers may be kept in statics. A server program that is not installed is an error,
//! never a skipped test.

pub mod ports;

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::wait::try_until;

/// Timeout for a server's first answer after its start. Generous, because test machines are busy.
pub const READY_BOUND: Duration = Duration::from_secs(60);

/// The reason why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server is not installed.
    #[error(
        "{program} is not installed: run `cargo xtask setup`, or install the Debian package `{package}`"
    )]
    Missing {
        /// The missing program or file.
        program: String,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// An error of its process or files.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// It did not become ready in time, or ended.
    #[error("{server} is not ready ({state}); the end of its log:\n{log}")]
    NotReady {
        /// The server.
        server: String,
        /// Its last answer.
        state: String,
        /// The last lines of its log.
        log: String,
    },
    /// It runs, and refused the setup.
    #[error("{server} can't be set up: {reason}")]
    Setup {
        /// The server.
        server: String,
        /// Its error.
        reason: String,
    },
}

pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> ServerError {
    let what = what.into();
    move |source| ServerError::Io { what, source }
}

/// Kills the server and removes its directory when the pipe to it closes. Each line is the process id to
/// kill, or empty.
const GUARD: &str = r#"trap "" INT TERM HUP
while read -r line; do pid=$line; done
[ -n "$pid" ] && kill -9 "$pid" 2>/dev/null
rm -rf -- "$1""#;

/// A server program, running or not, with its directory and log.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    name: String,
    directory: PathBuf,
    child: Option<Child>,
    guard: Child,
    guard_pipe: Option<ChildStdin>,
}

impl ServerProcess {
    /// Creates the directory; starts nothing yet.
    pub(crate) fn new(name: String) -> Result<ServerProcess, ServerError> {
        let directory = tempfile::Builder::new()
            .prefix(&format!("tanist-{name}-"))
            .tempdir()
            .map_err(io_error(format!("cannot make a directory for {name}")))?
            .keep();
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(io_error("cannot start sh"))?;
        let guard_pipe = guard.stdin.take();
        Ok(ServerProcess {
            name,
            directory,
            child: None,
            guard,
            guard_pipe,
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn log_path(&self) -> PathBuf {
        self.directory.join("server.log")
    }

    /// Starts `command` with its output appended to the log; a running one is killed first.
    pub(crate) fn start(
        &mut self,
        command: &mut Command,
        package: &'static str,
    ) -> Result<(), ServerError> {
        self.kill();
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(io_error(format!("cannot open the log of {}", self.name)))?;
        let errors = log
            .try_clone()
            .map_err(io_error("cannot open the log twice"))?;
        let child = command
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|source| {
                let program = command.get_program().to_string_lossy().into_owned();
                match source.kind() {
                    io::ErrorKind::NotFound => ServerError::Missing { program, package },
                    _ => ServerError::Io {
                        what: format!("cannot start {program}"),
                        source,
                    },
                }
            })?;
        self.tell_guard(&child.id().to_string());
        self.child = Some(child);
        Ok(())
    }

    fn tell_guard(&mut self, line: &str) {
        if let Some(pipe) = &mut self.guard_pipe {
            // The guard may be gone; then only the drop of this value kills the server.
            let _ = writeln!(pipe, "{line}");
        }
    }

    /// Sends SIGKILL and waits for the end.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Before the process is reaped, so that the guard never holds the id of another process.
            self.tell_guard("");
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        let has_ended = match &mut self.child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => true,
        };
        if has_ended {
            self.tell_guard("");
        }
        has_ended
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let child = self
            .child
            .as_ref()
            .expect("only a running server is signalled");
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a child's id");
        // Not reaped yet, so the id is still this child's.
        kill_process(pid, signal).expect("a child that was not reaped can be signalled");
    }

    /// Polls until `poll` reports that the server is ready.
    pub(crate) async fn wait_ready(
        &mut self,
        mut poll: impl AsyncFnMut() -> Result<(), String>,
    ) -> Result<(), ServerError> {
        let child = &mut self.child;
        let outcome = try_until(READY_BOUND, async || {
            match child.as_mut().map(Child::try_wait) {
                None => return Ok(Err("it was not started".to_owned())),
                Some(Ok(Some(status))) => return Ok(Err(format!("it ended: {status}"))),
                Some(_) => {}
            }
            poll().await.map(Ok)
        })
        .await;
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(state)) | Err(state) => Err(ServerError::NotReady {
                server: self.name.clone(),
                state,
                log: log_tail(&self.log_path()),
            }),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
        // The guard removes the directory when its pipe closes.
        self.guard_pipe = None;
        let _ = self.guard.wait();
    }
}

/// The last lines of a log.
fn log_tail(path: &Path) -> String {
    let text = match File::open(path).and_then(io::read_to_string) {
        Ok(text) => text,
        Err(error) => return format!("(no log: {error})"),
    };
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Sends `request` and reads the answer until the server closes; bounded in time.
pub(crate) async fn ask(port: u16, request: &str) -> Result<String, String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    match tokio::time::timeout(Duration::from_secs(2), exchange).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer within 2 s".to_owned()),
    }
}

#[cfg(test)]
mod process_tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_is_not_installed_is_an_error_that_says_what_to_do() {
        let mut process = ServerProcess::new("nothing".to_owned()).expect("a directory");
        let error = process
            .start(&mut Command::new("tanist-no-such-program"), "some-package")
            .expect_err("there is no such program");
        let text = error.to_string();
        assert!(
            text.contains("cargo xtask setup") && text.contains("some-package"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_server_that_ends_at_once_is_reported_with_its_log_and_leaves_nothing_behind() {
        let mut process = ServerProcess::new("short".to_owned()).expect("a directory");
        process
            .start(
                Command::new("sh").args(["-c", "echo the reason; exit 3"]),
                "dash",
            )
            .expect("sh runs");
        let error = process
            .wait_ready(async || Err("no answer".to_owned()))
            .await
            .expect_err("it ended before it was ready");
        let text = error.to_string();
        assert!(
            text.contains("the reason") && text.contains("exit status: 3"),
            "{text}"
        );
        let directory = process.directory().to_owned();
        drop(process);
        assert!(!directory.exists());
    }
}
