//! The protocol between TaskManager and supervisor on the control socket. Both are the same binary, so there is
//! only one version.
//!
//! The request is one byte, which carries the program's standard input as a file descriptor, then the length in
//! 4 bytes, then JSON. After it the TaskManager sends the byte [`TERMINATE`], or [`EXTEND`] followed by 8
//! bytes; closing the socket means "kill". The supervisor's reports are JSON, one per line.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tanist_model::ExecLimits;

/// Order to end the program.
pub(super) const TERMINATE: u8 = b't';

/// Order that the program may run longer: until the time in the next 8 bytes, in the unit of
/// [`Request::ends_ms`].
pub(super) const EXTEND: u8 = b'l';

/// Maximum size of a request in bytes: no system accepts more arguments and environment.
const MAX_REQUEST: usize = 16 << 20;

/// Request to run a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// Its complete environment.
    pub(crate) env: BTreeMap<String, String>,
    /// Its working directory.
    pub(crate) directory: PathBuf,
    /// Its resource limits.
    pub(crate) limits: ExecLimits,
    /// The control group that was created for it and is removed with it. `None`: each of its processes is
    /// limited separately.
    pub(crate) group: Option<PathBuf>,
    /// Umask for the files that it creates; `None`: the supervisor's.
    pub(crate) umask: Option<u32>,
    /// Time from [`TERMINATE`] until the program is killed, in milliseconds.
    pub(crate) grace_ms: u64,
    /// When it is killed unless that is extended: milliseconds of `CLOCK_BOOTTIME`. `None`: never.
    pub(crate) ends_ms: Option<u64>,
}

/// Report of a supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    /// The supervisor runs and waits for its request.
    Hello,
    /// The program runs with this pid.
    Started(i32),
    /// The program has ended, with all processes that it started.
    Ended(Ended),
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ended {
    /// It exited with this exit code.
    Exited(i32),
    /// It was killed by this signal.
    Killed(i32),
    /// The supervisor killed it, since it had not ended this many milliseconds after SIGTERM.
    Overdue(u64),
    /// It never ran, or how it ended is unknown.
    Failed(String),
}

/// SIGTERM.
const TERM: i32 = 15;
/// Exit code for a program that does not exist, as shells use it.
pub(super) const NOT_FOUND: i32 = 127;
/// Exit code for a program that exists and can't be executed.
pub(super) const NOT_EXECUTABLE: i32 = 126;
/// Exit code of the launcher if it could not start the program for a reason that may pass.
pub(super) const NOT_LAUNCHED: i32 = 125;

impl Ended {
    /// Whether the program does not exist or can't be executed. Recognizes our exit codes and those of a shell
    /// that was to run it.
    pub(crate) fn is_missing(&self) -> bool {
        match self {
            Ended::Exited(code) => matches!(*code, NOT_FOUND | NOT_EXECUTABLE),
            Ended::Killed(_) | Ended::Overdue(_) | Ended::Failed(_) => false,
        }
    }

    /// Whether SIGTERM ended it: the program itself, or a shell that ran it.
    pub(crate) fn is_by_term(&self) -> bool {
        match self {
            Ended::Killed(signal) => *signal == TERM,
            Ended::Exited(code) => *code == 128 + TERM,
            Ended::Overdue(_) | Ended::Failed(_) => false,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Exited(code) => write!(f, "the program ended with exit code {code}"),
            Ended::Killed(signal) => {
                write!(
                    f,
                    "the program was killed by signal {}",
                    signal_name(*signal)
                )
            }
            Ended::Overdue(grace_ms) => write!(
                f,
                "the program was killed by Tanist: it had not ended when its `grace` of {} after SIGTERM was over",
                duration(*grace_ms)
            ),
            Ended::Failed(reason) => f.write_str(reason),
        }
    }
}

/// Formats a duration as in a job file.
pub(super) fn duration(ms: u64) -> String {
    match ms % 1000 {
        0 => format!("{} s", ms / 1000),
        _ => format!("{ms} ms"),
    }
}

fn signal_name(number: i32) -> String {
    match Signal::from_named_raw(number) {
        Some(signal) => {
            let name = format!("{signal:?}");
            // The debug format may put it in quotes.
            let name = name.trim_matches('"').trim_start_matches("Signal::");
            format!("SIG{name} ({number})")
        }
        None => number.to_string(),
    }
}

/// Sends a request with the program's standard input. Blocks.
pub(super) fn send(
    control: &mut UnixStream,
    request: &Request,
    stdin: BorrowedFd<'_>,
) -> io::Result<()> {
    let encoded = serde_json::to_vec(request)?;
    let size = u32::try_from(encoded.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let stdin = [stdin];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&stdin)) {
        return Err(io::Error::other("there is no room for a file descriptor"));
    }
    sendmsg(
        &*control,
        &[IoSlice::new(b"r")],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    control.write_all(&size.to_be_bytes())?;
    control.write_all(&encoded)
}

/// Encodes [`EXTEND`].
pub(super) fn extension(ends_ms: u64) -> [u8; 9] {
    let mut said = [EXTEND; 9];
    said[1..].copy_from_slice(&ends_ms.to_be_bytes());
    said
}

/// Waits for a request; `None` if the socket is closed first.
pub(super) fn receive(control: &mut UnixStream) -> io::Result<Option<(Request, OwnedFd)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(
        &*control,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut stdin = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            stdin = descriptors.last().or(stdin);
        }
    }
    let missing = || io::Error::other("the request came without a standard input");
    let stdin = stdin.ok_or_else(missing)?;
    let mut size = [0; 4];
    control.read_exact(&mut size)?;
    let size = u32::from_be_bytes(size) as usize;
    if size > MAX_REQUEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut encoded = vec![0; size];
    control.read_exact(&mut encoded)?;
    Ok(Some((serde_json::from_slice(&encoded)?, stdin)))
}

/// Sends a report. Blocks until the TaskManager has read enough.
pub(super) fn report(control: &mut UnixStream, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    control.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_arrives_with_its_file() -> io::Result<()> {
        let (mut here, mut there) = UnixStream::pair()?;
        let request = Request {
            command: vec!["cat".to_owned()],
            env: BTreeMap::from([("A".to_owned(), "b c".to_owned())]),
            directory: "/tmp".into(),
            limits: ExecLimits::default(),
            group: None,
            umask: Some(0o022),
            grace_ms: 7,
            ends_ms: Some(9),
        };
        let (mut reader, writer) = std::io::pipe()?;
        let writer = OwnedFd::from(writer);
        send(&mut here, &request, std::os::fd::AsFd::as_fd(&writer))?;
        drop(writer);
        let (received, file) = receive(&mut there)?.expect("it was sent");
        assert_eq!(received, request);
        std::fs::File::from(file).write_all(b"through")?;
        let mut text = String::new();
        reader.read_to_string(&mut text)?;
        assert_eq!(text, "through");
        drop(here);
        assert!(receive(&mut there)?.is_none());
        Ok(())
    }

    #[test]
    fn signals_are_said_by_name() {
        let killed = Ended::Killed(9).to_string();
        assert_eq!(killed, "the program was killed by signal SIGKILL (9)");
    }

    #[test]
    fn whoever_was_killed_as_its_grace_was_over_is_not_said_to_have_been_killed_by_anybody() {
        for (grace_ms, said) in [(2_000, "2 s"), (100, "100 ms"), (1_500, "1500 ms")] {
            let ended = Ended::Overdue(grace_ms);
            let text = ended.to_string();
            assert!(text.contains(&format!(
                "killed by Tanist: it had not ended when its `grace` of {said}"
            )));
            assert!(!ended.is_by_term() && !ended.is_missing());
        }
    }
}
