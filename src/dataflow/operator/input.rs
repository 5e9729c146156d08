//! Classifies input files that can't be read. At a job's first attempt they are not where the job says, which
//! no further attempt can fix. Later they existed once and may come back.
//!
//! Not here: which files a source reads, and when it looks for them.

use std::io;
use std::path::Path;

use tanist_proto::id::Generation;

use super::OperatorError;
use crate::dataflow::host::host_name;

/// Whether this is the first look for the input of a job, which was never seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// No attempt looked before.
    First,
    /// The input existed before, or may have existed.
    Later,
}

impl Look {
    /// The look at the start of an attempt.
    pub fn at_start_of(attempt: Generation) -> Look {
        match attempt.get() {
            0 | 1 => Look::First,
            _ => Look::Later,
        }
    }
}

/// Whether the error is a lasting property of the host, and not a temporary problem of its disk or network.
fn is_lasting(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidFilename
    )
}

/// Error for a file or directory that can't be read.
pub(super) fn unreadable(path: &Path, error: io::Error, look: Look) -> OperatorError {
    if !is_lasting(error.kind()) {
        return OperatorError::io("read", path, error);
    }
    no_input(format!("can't read {path:?}"), error, look)
}

/// Error for an input on this host.
pub(super) fn no_input(
    what: impl std::fmt::Display,
    why: impl std::fmt::Display,
    look: Look,
) -> OperatorError {
    OperatorError::NoInput {
        message: format!("{what} on host {}: {why}", host_name()),
        is_unrecoverable: look == Look::First,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_at_the_first_try_is_never_there_and_what_was_there_may_come_back() {
        let path = Path::new("/data/in.txt");
        for kind in [
            io::ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::NotADirectory,
        ] {
            let at = |attempt| {
                let look = Look::at_start_of(Generation::new(attempt));
                unreadable(path, kind.into(), look)
            };
            assert!(at(1).is_unrecoverable(), "{kind:?}");
            assert!(!at(2).is_unrecoverable(), "{kind:?}");
            let text = at(1).to_string();
            assert!(
                text.contains("/data/in.txt") && text.contains(&host_name()),
                "{text}"
            );
        }
        let passing = unreadable(path, io::ErrorKind::TimedOut.into(), Look::First);
        assert!(!passing.is_unrecoverable(), "{passing}");
    }
}
