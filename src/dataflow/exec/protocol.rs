//! What TaskManager and supervisor say to each other over the control socket. Both are the same binary, so there is one
//! version only.
//!
//! The request comes as one byte, which carries the program's standard input, then its length in 4 bytes, then JSON. After
//! it, [`TERMINATE`] is said that way, and [`EXTEND`], which 8 bytes follow; the end of the socket means "kill". Reports are JSON, one a line.

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

use crate::job::ExecLimits;

/// The request to end the program.
pub(super) const TERMINATE: u8 = b't';

/// The program may run longer: until the time in the next 8 bytes, as [`Request::ends_ms`] is.
pub(super) const EXTEND: u8 = b'l';

/// The largest request: no system takes more arguments and environment.
const MAX_REQUEST: usize = 16 << 20;

/// What is to be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// All of its environment.
    pub(crate) env: BTreeMap<String, String>,
    /// Where it is run.
    pub(crate) directory: PathBuf,
    /// What it may use.
    pub(crate) limits: ExecLimits,
    /// The control group that is made for it, and goes with it; none: its processes are limited each by itself.
    pub(crate) group: Option<PathBuf>,
    /// The mask of the files that it makes; none: the supervisor's.
    pub(crate) umask: Option<u32>,
    /// How long after [`TERMINATE`] it is killed.
    pub(crate) grace_ms: u64,
    /// When it is killed unless that is put off: milliseconds of `CLOCK_BOOTTIME`. None: never.
    pub(crate) ends_ms: Option<u64>,
}

/// What a supervisor says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    /// It is there, and waits for its request.
    Hello,
    /// The program runs as this process.
    Started(i32),
    /// It has ended, and with it all that it started.
    Ended(Ended),
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ended {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// By its supervisor, since it had not ended so many milliseconds after SIGTERM.
    Overdue(u64),
    /// It never ran, or nobody knows how it ended.
    Failed(String),
}

/// SIGTERM.
const TERM: i32 = 15;
/// The exit code of a program that is not there, as shells say it.
pub(super) const NOT_FOUND: i32 = 127;
/// It is there and can't be executed.
pub(super) const NOT_EXECUTABLE: i32 = 126;
/// Whoever was to start it could not, for a reason that may pass.
pub(super) const NOT_LAUNCHED: i32 = 125;

impl Ended {
    /// Whether the program is not there or can't be executed, as we say it, and shells that were to run it.
    pub(crate) fn is_missing(&self) -> bool {
        match self {
            Ended::Exited(code) => matches!(*code, NOT_FOUND | NOT_EXECUTABLE),
            Ended::Killed(_) | Ended::Overdue(_) | Ended::Failed(_) => false,
        }
    }

    /// Whether this is what SIGTERM does, to the program or to a shell that ran it.
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

/// As a job file may say it.
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
            // It may stand in quotes.
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

/// How [`EXTEND`] is said.
pub(super) fn extension(ends_ms: u64) -> [u8; 9] {
    let mut said = [EXTEND; 9];
    said[1..].copy_from_slice(&ends_ms.to_be_bytes());
    said
}

/// Waits for a request; none if the socket ends before.
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

/// Sends a report. Blocks no longer than the TaskManager takes to read.
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
